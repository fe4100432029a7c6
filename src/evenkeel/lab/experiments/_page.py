"""The page of one or several experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.lab.experiments._experiment import VERDICTS, Experiment, Record
from evenkeel.report import (
    Axis,
    Cell,
    Figure,
    Finding,
    Intervals,
    Page,
    Row,
    Section,
    Style,
    Table,
    assign_styles,
    bars,
    format_number,
    join_words,
)

# How a tally says it, and which verdicts a reader wants to see first.
TALLY = {"agrees": "agree", "partly": "agree in part", "disagrees": "disagree", "undecided": "are undecided"}
SURPRISE = ("disagrees", "partly", "undecided", "agrees")
# One colour for all verdicts: the icon and the name tell them apart.
PLAIN: Style = assign_styles(["verdicts"])["verdicts"]
ICONS = {"agrees": "✓", "partly": "◐", "disagrees": "✗", "undecided": "?"}


@dataclass(frozen=True)
class Measured:
    """An experiment with what a run of it measured.

    Attributes:
        experiment: the experiment.
        summary: the content of summary.json.
        records: each trial's entries beside what was measured.
        figures: what the records show.
    """

    experiment: Experiment
    summary: dict[str, Any]
    records: Sequence[Record]
    figures: Sequence[Figure]


def draw(experiment: Experiment, summary: dict[str, Any], records: Sequence[Record]) -> Measured:
    """Return what was measured with its figures."""
    figures = experiment.draw(experiment.read_options(summary["options"]), records)
    return Measured(experiment, summary, records, figures)


def experiments_page(runs: Sequence[Measured]) -> Page:
    """Build the page: how many claims hold, then a section for each experiment with its claims and figures.

    Args:
        runs: experiments with their summary and their records.
    """
    claims = [claim for run in runs for claim in run.summary["claims"]]
    lead = f"{len(claims)} claims of the literature, each beside what this run measured: {tally(claims)}."
    sections = [counts_section(claims)] if len(runs) > 1 and claims else []
    sections += [section(run) for run in runs]
    if runs:
        sections.append(Section("What was run", tables=[options_table(run) for run in runs]))
    first = runs[0].summary if runs else {}
    footer = ", ".join(f"{name} {first[name]}" for name in ("evenkeel", "torch", "ray") if name in first)
    title = runs[0].experiment.title if len(runs) == 1 else "Normalization, measured"
    return Page(title, [lead] if claims else [], [], sections, footer)


def counts_section(claims: Sequence[Mapping[str, Any]]) -> Section:
    """Return the verdicts as a picture, and the claims that do not agree, by name."""
    counts = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in VERDICTS}
    rows = [Row(verdict_text(verdict), count) for verdict, count in counts.items() if count]
    panel = bars(rows, x=Axis("claims", integer=True), styles=dict.fromkeys((row.name for row in rows), PLAIN))
    title = f"{counts['agrees']} of {len(claims)} claims agree with what was measured"
    caption = "Undecided: the interval covers both. Agreement means at the sizes tried here."
    return Section(title, figures=[Figure("verdicts", title, caption, [panel])])


def verdict_text(verdict: str) -> str:
    """Return a verdict with its icon."""
    return f"{ICONS[verdict]} {VERDICTS[verdict]}"


def claim_finding(claim: Mapping[str, Any]) -> Finding:
    """Return a claim with its verdict and what was measured."""
    title = f"{VERDICTS[claim['verdict']].capitalize()}: {claim['claim']}"
    return Finding(title, f"{claim['measured']}. Claim: {claim['source']}.")


def tally(claims: Sequence[Mapping[str, str]]) -> str:
    """Return how many claims have each verdict, in words."""
    verdicts = [claim["verdict"] for claim in claims]
    return join_words([f"{verdicts.count(each)} {text}" for each, text in TALLY.items() if each in verdicts])


def section(run: Measured) -> Section:
    """Return an experiment's part of the page, under the message of its first figure."""
    state = "" if run.summary["complete"] else " Not every trial has run: what follows is of those that have."
    tables = [claims_table(run.summary, drawn=True)] if run.summary["claims"] else []
    experiment = run.experiment
    heading = run.figures[0].title if run.figures else experiment.title
    return Section(heading, [experiment.question + state, experiment.method], tables, run.figures)


def options_table(run: Measured) -> Table:
    """Return what an experiment was told, and what it took."""
    options = [(name.replace("_", " "), option_text(value)) for name, value in run.summary["options"].items()]
    rows: list[list[str | float | None]] = [
        *map(list, options),
        ["trials", f"{len(run.records)} of {run.summary['trials']}"],
        ["time", f"{format_number(run.summary['seconds'])} s"],
        ["machine", str(run.summary["machine"])],
    ]
    return Table(["option", "value"], rows, title=run.experiment.name)


def option_text(value: Any) -> str:
    """Return an option's value in words."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def claims_table(summary: dict[str, Any], *, drawn: bool = False) -> Table:
    """Return the claims of an experiment: claim, source, measured, verdict; what surprises first where drawn.

    Args:
        summary: the content of summary.json.
        drawn: whether the numbers are drawn in a column of their own, as for a page.
    """
    claims = summary["claims"]
    if not drawn:
        rows: list[list[Cell]] = [
            [claim["claim"], claim["source"], claim["measured"], VERDICTS[claim["verdict"]]] for claim in claims
        ]
        return Table(["claim", "source", "measured", "verdict"], rows, title="Claims")
    listed = sorted(claims, key=lambda claim: SURPRISE.index(claim["verdict"]))
    rows = [
        [verdict_text(claim["verdict"]), claim["claim"], claim_picture(claim), claim["measured"], claim["source"]]
        for claim in listed
    ]
    return Table(["verdict", "claim", "interval", "measured", "source"], rows)


def claim_picture(claim: Mapping[str, Any]) -> Intervals | None:
    """Return the numbers behind a claim as a picture, if it has any."""
    rows = claim.get("intervals")
    return Intervals(rows, claim.get("quantity", ""), claim.get("allowed")) if rows else None
