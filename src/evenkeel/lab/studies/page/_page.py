"""The page of a study: from its summary to `report.html`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenkeel.lab.studies.page import _depth as depth
from evenkeel.lab.studies.page import _loss as loss
from evenkeel.lab.studies.page._arms import Arm, group_arms
from evenkeel.lab.studies.page._cost import cost_figure
from evenkeel.lab.studies.page._outcome import fate_sentence, leak_sentence, loss_title, verdict
from evenkeel.lab.studies.page._words import sentences
from evenkeel.report import Figure, Finding, Page, Section, Table, assign_styles, join_words, write_page


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
    arms = group_arms(summary)
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
        "Cost": [("cost", cost_figure(arms, styles, summary.get("machine") or {}))],
    }
    tables = {"Loss": [loss.ranking_table(arms)]} if arms else {}
    sections = [
        Section(title, tables=tables.get(title, []), figures=[figure for _, figure in candidates if figure is not None])
        for title, candidates in figures.items()
        if title in tables or any(figure is not None for _, figure in candidates)
    ]
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
    return loss.ranking_table(group_arms(summary))


def _findings(summary: Mapping[str, Any], arms: Sequence[Arm]) -> list[Finding]:
    recorded = [Finding(item["title"].rstrip("."), item["text"]) for item in summary.get("findings") or ()]
    if recorded:
        return recorded
    if not arms:
        return [Finding("Nothing has been measured yet", "The study has no arm with records.")]
    text = sentences(verdict(arms), fate_sentence(arms), leak_sentence(arms))
    return [Finding(loss_title(arms), text)]


def _lead(summary: Mapping[str, Any], arms: Sequence[Arm]) -> list[str]:
    if not arms:
        return []
    settings, corpus = summary.get("settings") or {}, summary.get("corpus") or {}
    sizes = {"depth": "{} blocks", "width": "width {}", "context": "context {}"}
    shape = [text.format(settings[name]) for name, text in sizes.items() if name in settings]
    model = f" ({', '.join(shape)})" if shape else ""
    names = join_words([arm.name for arm in arms])
    count = f"{len(arms)} arms" if len(arms) > 1 else "one arm"
    runs = max(len(arm.runs) for arm in arms)
    seeds = f"{runs} seeds" if runs > 1 else "one seed"
    steps = f"was set to run {settings['steps']} steps with" if "steps" in settings else "has"
    source = f"The text is {corpus['source']}{_corpus_size(corpus)}." if corpus.get("source") else ""
    text = sentences(
        f"The same byte-level transformer{model} was trained in {count}: {names}.",
        f"Each arm {steps} {seeds}.",
        source,
        "All losses are in nats per byte; lower is better.",
    )
    return [text]


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


def _what_was_run(summary: Mapping[str, Any], arms: Sequence[Arm], missing: Sequence[str]) -> Section:
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


def _arms_table(arms: Sequence[Arm]) -> Table:
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
