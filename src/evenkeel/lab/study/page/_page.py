"""The page of a study: from its summary to `report.html`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenkeel.lab.study.page import _arms as data
from evenkeel.lab.study.page import _depth as depth
from evenkeel.lab.study.page import _loss as loss
from evenkeel.report import Figure, Finding, Page, Section, Table, assign_styles, join_words, write_page

__all__ = ["ranking_table", "study_page", "write_report"]


def study_page(summary: Mapping[str, Any]) -> Page:
    """Build the page of a study from its summary.

    Every title, caption and remark is computed from the recorded measurements; a figure without measurements is left
    out and named.

    Args:
        summary: the content of `summary.json`.

    Returns:
        The page.

    Raises:
        StudyError: the summary has another format.

    Example:
        >>> study_page({"format": 1, "arms": []}).findings[0].title
        'Nothing has been measured yet'
    """
    arms = data.group_arms(summary)
    styles = assign_styles(arm.name for arm in arms)
    figures: dict[str, list[tuple[str, Figure | None]]] = {
        "Loss": [("ranking", loss.ranking_figure(arms, styles)), ("loss curves", loss.loss_figure(arms, styles))],
        "Signals by depth": [
            ("gradient norms", depth.gradient_figure(arms, styles)),
            ("residual growth", depth.residual_figure(arms, styles)),
            ("distributions around a norm", depth.histogram_figure(arms, styles)),
            ("the share of the mean", depth.centring_figure(arms, styles)),
        ],
        "Updates": [("update-to-weight ratios", depth.update_figure(arms, styles))],
        "Cost": [("cost", loss.cost_figure(arms, styles, summary.get("machine") or {}))],
    }
    sections = []
    for title, candidates in figures.items():
        found = [figure for _, figure in candidates if figure is not None]
        tables = [loss.ranking_table(arms)] if title == "Loss" and arms else []
        if found or tables:
            sections.append(Section(title, tables=tables, figures=found))
    missing = [name for candidates in figures.values() for name, figure in candidates if figure is None]
    sections.append(_what_was_run(summary, arms, missing))
    return Page("Normalization study", _lead(summary, arms), _findings(summary, arms), sections, _footer(summary))


def write_report(summary: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the page of a study to an HTML file, whole or not at all.

    Args:
        summary: the content of `summary.json`.
        path: the file, usually `report.html` in the study's directory.

    Returns:
        The path written.

    Raises:
        StudyError: the summary has another format.
        EvenkeelError: the file cannot be written, or plotly or jinja2 is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     write_report({"format": 1, "arms": []}, f"{directory}/report.html").name
        'report.html'
    """
    return write_page(study_page(summary), path)


def ranking_table(summary: Mapping[str, Any]) -> Table:
    """The ranking of a study: comparable arms by mean final validation loss, then the others with the reason.

    Args:
        summary: the content of `summary.json`.

    Returns:
        A table that fits a terminal.

    Raises:
        StudyError: the summary has another format.

    Example:
        >>> ranking_table({"format": 1, "arms": []}).rows
        []
    """
    return loss.ranking_table(data.group_arms(summary))


def _findings(summary: Mapping[str, Any], arms: Sequence[data.Arm]) -> list[Finding]:
    recorded = [Finding(item["title"].rstrip("."), item["text"]) for item in summary.get("findings") or ()]
    if recorded:
        return recorded
    if not arms:
        return [Finding("Nothing has been measured yet", "The study has no arm with records.")]
    text = data.sentences(loss.verdict(arms), loss.fate_sentence(arms), data.leak_sentence(arms))
    return [Finding(loss.loss_title(arms), text)]


def _lead(summary: Mapping[str, Any], arms: Sequence[data.Arm]) -> list[str]:
    if not arms:
        return []
    settings, corpus = summary.get("settings") or {}, summary.get("corpus") or {}
    shape = [f"{settings[key]} {text}" for key, text in (("depth", "blocks"),) if key in settings]
    shape += [
        f"{text} {settings[key]}" for key, text in (("width", "width"), ("context", "context")) if key in settings
    ]
    model = f" ({', '.join(shape)})" if shape else ""
    seeds = max(len(arm.runs) for arm in arms)
    count = f"{len(arms)} arms" if len(arms) > 1 else "one arm"
    first = f"The same byte-level transformer{model} was trained in {count}: {join_words([arm.name for arm in arms])}."
    steps = f"{settings['steps']} steps" if "steps" in settings else ""
    each = " with ".join(part for part in (steps, f"{seeds} seeds" if seeds > 1 else "one seed") if part)
    sources = [first, f"Each arm was set to run {each}." if steps else f"Each arm has {each}."]
    if corpus.get("source"):
        sources.append(f"The text is {corpus['source']}{_corpus_size(corpus)}.")
    sources.append("All losses are in nats per byte; lower is better.")
    return [" ".join(sources)]


def _corpus_size(corpus: Mapping[str, Any]) -> str:
    parts = [
        f"{_bytes(corpus[f'{part}_bytes'])} for {name}"
        for part, name in (("train", "training"), ("validation", "validation"))
        if corpus.get(f"{part}_bytes")
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _bytes(count: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _what_was_run(summary: Mapping[str, Any], arms: Sequence[data.Arm], missing: Sequence[str]) -> Section:
    tables = []
    if arms:
        tables.append(_arms_table(arms))
    for title, key in (("Settings", "settings"), ("Text", "corpus"), ("Machine", "machine")):
        values = summary.get(key) or {}
        if values:
            rows = [[name.replace("_", " "), _setting(value)] for name, value in values.items()]
            tables.append(Table(["setting" if key == "settings" else "item", "value"], rows, title=title))
    absent = [f"Not measured in this study, so without a figure: {join_words(missing)}."] if missing else []
    return Section("What was run", paragraphs=absent, tables=tables)


def _arms_table(arms: Sequence[data.Arm]) -> Table:
    columns = ["arm", "norm", "placement", "feed-forward", "bias", "QK-norm", "parameters", "seeds", "state"]
    rows = []
    for arm in arms:
        run = arm.runs[0]
        choices = [_setting(run.get(key)) for key in ("norm", "placement", "feed_forward", "bias", "qk_norm")]
        seeds = ", ".join(str(item.get("seed")) for item in arm.runs)
        rows.append([arm.name, *choices, run.get("parameters"), seeds, arm.fate() or "finished"])
    return Table(columns, rows, title="Arms")


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value is None else str(value)


def _footer(summary: Mapping[str, Any]) -> str:
    parts = [f"{name} {summary[name]}" for name in ("evenkeel", "torch") if summary.get(name)]
    if summary.get("created"):
        parts.append(f"created {summary['created']}")
    return ", ".join(parts)
