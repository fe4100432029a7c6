"""The page of one or several experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenkeel.lab.experiments._experiment import VERDICTS, Experiment, Record
from evenkeel.report import Finding, Page, Section, Table, format_number, join_words

__all__ = ["claims_table", "experiments_page"]

# How a tally says it, and which verdicts a reader wants to see first.
TALLY = {"agrees": "agree", "partly": "agree in part", "disagrees": "disagree", "undecided": "are undecided"}
SURPRISE = ("disagrees", "partly", "undecided", "agrees")
Found = tuple[Experiment, dict[str, Any], list[Record]]


def experiments_page(found: Sequence[Found]) -> Page:
    """Build the page: what disagrees with the literature first, then a section for each experiment.

    Args:
        found: experiments with their summary and their records.
    """
    claims = [(experiment, claim) for experiment, summary, _ in found for claim in summary["claims"]]
    tallies = {verdict: sum(claim["verdict"] == verdict for _, claim in claims) for verdict in VERDICTS}
    counts = [f"{number} {TALLY[verdict]}" for verdict, number in tallies.items() if number]
    lead = f"{len(claims)} claims of the literature, each beside what this run measured: {join_words(counts)}."
    order = sorted(claims, key=lambda item: SURPRISE.index(item[1]["verdict"]))
    shown = [item for item in order if item[1]["verdict"] != "agrees"] if len(found) > 1 else order
    findings = [
        Finding(
            f"{VERDICTS[claim['verdict']].capitalize()}: {claim['claim']}",
            f"{claim['measured']}. Claim: {claim['source']}.",
        )
        for _, claim in shown
    ]
    sections = [section(*item) for item in found]
    if found:
        sections.append(Section("What was run", tables=[options_table(*item) for item in found]))
    footer = ", ".join(f"{name} {found[0][1][name]}" for name in ("evenkeel", "torch")) if found else ""
    title = found[0][0].title if len(found) == 1 else "Normalization, measured"
    return Page(title, [lead] if claims else [], findings, sections, footer)


def section(experiment: Experiment, summary: dict[str, Any], records: Sequence[Record]) -> Section:
    """Return an experiment's part of the page."""
    options = experiment.read_options(summary["options"])
    state = "" if summary["complete"] else " Not every trial has run: what follows is of those that have."
    tables = [claims_table(summary)] if summary["claims"] else []
    return Section(
        experiment.title, [experiment.question + state, experiment.method], tables, experiment.draw(options, records)
    )


def options_table(experiment: Experiment, summary: dict[str, Any], records: Sequence[Record]) -> Table:
    """Return what an experiment was told, and what it took."""
    rows: list[list[str | float | None]] = [
        [name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)]
        for name, value in summary["options"].items()
    ]
    rows += [
        ["trials", f"{len(records)} of {summary['trials']}"],
        ["time", f"{format_number(summary['seconds'])} s"],
        ["machine", str(summary["machine"])],
    ]
    return Table(["option", "value"], rows, title=experiment.name)


def claims_table(summary: dict[str, Any]) -> Table:
    """Return the claims of an experiment: claim, source, measured, verdict.

    Args:
        summary: the content of summary.json.
    """
    rows = [
        [claim["claim"], claim["source"], claim["measured"], VERDICTS[claim["verdict"]]] for claim in summary["claims"]
    ]
    return Table(["claim", "source", "measured", "verdict"], rows, title="Claims")
