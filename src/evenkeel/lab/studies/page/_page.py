"""The page of a study: from its summary to `report.html`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenkeel.lab.studies.page import _depth as depth
from evenkeel.lab.studies.page import _loss as loss
from evenkeel.lab.studies.page._arms import Arm, all_rates, group_arms, without_twins
from evenkeel.lab.studies.page._cost import cost_figure, cost_of
from evenkeel.lab.studies.page._findings import message
from evenkeel.lab.studies.page._keys import arm_keys
from evenkeel.lab.studies.page._map import opening_picture
from evenkeel.lab.studies.page._outcome import fate_sentence, leak_sentence, loss_title, verdict
from evenkeel.lab.studies.page._words import Text, rate_range, sentences, text_of
from evenkeel.lab.transformer import norm_styles
from evenkeel.report import Cell, Figure, Finding, Page, Section, Table, format_number, join_words, write_page


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
        >>> study_page({"format": 2, "arms": []}).findings[0].title
        'Nothing has been measured yet'
    """
    arms = group_arms(summary)
    best = [arm.best for arm in arms]
    styles = norm_styles(arm.name for arm in arms)
    text = text_of(summary.get("corpus"))
    picture = opening_picture(arms, styles, text, message(summary, arms)) if arms else None
    figures: dict[str, list[tuple[str, Figure | None]]] = {
        "Loss at the best learning rate of each arm": [
            ("ranking", loss.ranking_figure(best, styles, text)),
            ("loss curves", loss.loss_figure(best, styles, text)),
        ],
        "Inside the network, at the best learning rate": [
            ("residual growth", depth.residual_figure(without_twins(best), styles)),
            ("values around the norms", depth.norms_figure(best, styles)),
            ("distributions around a norm", depth.histogram_figure(best, styles)),
            ("the share of the mean", depth.centring_figure(without_twins(best), styles)),
        ],
        "Cost": [("cost", cost_figure(arms, cost_of(summary, arms), styles, summary.get("machine") or {}))],
    }
    tables = {next(iter(figures)): [loss.ranking_table(arms, text)]} if arms else {}
    if len(all_rates(arms)) > 1:
        tables[next(iter(figures))].append(loss.rates_table(arms))
    sections = [
        Section(title, tables=tables.get(title, []), figures=[figure for _, figure in candidates if figure is not None])
        for title, candidates in figures.items()
        if title in tables or any(figure is not None for _, figure in candidates)
    ]
    missing = [name for candidates in figures.values() for name, figure in candidates if figure is None]
    sections.append(_what_was_run(summary, arms, missing))
    return Page(
        "Normalization study",
        _lead(summary, arms, text),
        _findings(summary, best, text),
        sections,
        _footer(summary),
        picture,
        arm_keys(arms, styles),
    )


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
        ...     write_report({"format": 2, "arms": []}, f"{directory}/report.html").name
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
        >>> ranking_table({"format": 2, "arms": []}).rows
        []
    """
    return loss.ranking_table(group_arms(summary), text_of(summary.get("corpus")))


def _findings(summary: Mapping[str, Any], best: Sequence[Arm], text: Text) -> list[Finding]:
    recorded = [Finding(item["title"].rstrip("."), item["text"]) for item in summary.get("findings") or ()]
    if recorded:
        return recorded
    if not best:
        return [Finding("Nothing has been measured yet", "The study has no arm with records.")]
    return [Finding(loss_title(best, text), sentences(verdict(best), fate_sentence(best), leak_sentence(best)))]


def _lead(summary: Mapping[str, Any], arms: Sequence[Arm], text: Text) -> list[str]:
    if not arms:
        return []
    settings, corpus = summary.get("settings") or {}, summary.get("corpus") or {}
    sizes = {"depth": "{} blocks", "width": "width {}", "context": "context {}"}
    shape = [text.format(settings[name]) for name, text in sizes.items() if name in settings]
    model = f" ({', '.join(shape)})" if shape else ""
    count = f"{len(arms)} arms" if len(arms) > 1 else "one arm"
    rates = all_rates(arms)
    at = f"at {len(rates)} learning rates from {rate_range(rates)}" if len(rates) > 1 else f"at the rate {rates[0]:g}"
    seeds = max(len(arm.at(rate).runs) for arm in arms for rate in arm.rates)
    steps = f", {settings['steps']} steps each" if "steps" in settings else ""
    source = f"The text is {corpus['source']}{_corpus_size(corpus, text.unit)}." if corpus.get("source") else ""
    lead = sentences(
        "An arm is one variant: a norm and its place, with all else equal.",
        f"The same {text.unit}-level transformer{model} was trained in {count} {at} with {_seeds(seeds)}{steps}.",
        source,
        f"All losses are in {text.nats}; lower is better.",
    )
    return [lead]


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def _corpus_size(corpus: Mapping[str, Any], unit: str) -> str:
    parts = [
        f"{_amount(corpus[f'{part}_{unit}s'], unit)} for {name}"
        for part, name in (("train", "training"), ("validation", "validation"))
        if corpus.get(f"{part}_{unit}s")
    ]
    if unit == "token":
        parts.append(f"a vocabulary of {_setting(corpus.get('vocabulary'))}")
    return f" ({', '.join(parts)})" if parts else ""


def _amount(count: int, unit: str) -> str:
    for prefix, size in (("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {prefix}B" if unit == "byte" else f"{count / size:.1f} {prefix} {unit}s"
    return f"{count} {unit}s"


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
    return Section("What was run", paragraphs=absent, tables=tables, folded=bool(tables))


def _arms_table(arms: Sequence[Arm]) -> Table:
    columns = ["arm", "norm", "placement", "feed-forward", "bias", "QK-norm", "warm-up", "parameters", "runs", "state"]
    rows: list[list[Cell]] = []
    for arm in arms:
        run = arm.runs[0]
        choices = [_setting(run.get(key)) for key in ("norm", "placement", "feed_forward", "bias", "qk_norm", "warmup")]
        rows.append([arm.name, *choices, run.get("parameters"), len(arm.runs), arm.fate() or "finished"])
    return Table(columns, rows, title="Arms")


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1 else format_number(value, digits=4)
    return "–" if value is None else str(value)


def _footer(summary: Mapping[str, Any]) -> str:
    parts = [f"{name} {summary[name]}" for name in ("evenkeel", "torch", "ray") if summary.get(name)]
    if summary.get("created"):
        parts.append(f"created {summary['created']}")
    return ", ".join(parts)
