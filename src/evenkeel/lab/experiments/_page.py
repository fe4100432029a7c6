"""The page of one or several experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenkeel.lab.experiments._experiment import VERDICTS, Experiment, Record
from evenkeel.report import Finding, Page, Section, Table, format_number, join_words

__all__ = ["claims_table", "experiments_page"]

Found = tuple[Experiment, dict[str, Any], list[Record]]


def experiments_page(found: Sequence[Found]) -> Page:
    """Build the page: every claim with its verdict first, then a section for each experiment.

    Args:
        found: experiments with their summary and their records.
    """
    claims = [claim for _, summary, _ in found for claim in summary["claims"]]
    counts = [
        f"{number} {text}"
        for verdict, text in VERDICTS.items()
        if (number := sum(claim["verdict"] == verdict for claim in claims))
    ]
    lead = f"{len(claims)} claims of the literature, each beside what this run measured: {join_words(counts)}."
    findings = [
        Finding(
            f"{VERDICTS[claim['verdict']].capitalize()}: {claim['claim']}", f"{claim['measured']} ({claim['source']})"
        )
        for claim in claims
    ]
    sections = [section(*item) for item in found]
    footer = ", ".join(f"{name} {found[0][1][name]}" for name in ("evenkeel", "torch")) if found else ""
    title = found[0][0].title if len(found) == 1 else "Normalization, measured"
    return Page(title, [lead] if claims else [], findings, sections, footer)


def section(experiment: Experiment, summary: dict[str, Any], records: Sequence[Record]) -> Section:
    """Return an experiment's part of the page."""
    options = experiment.read_options(summary["options"])
    state = "" if summary["complete"] else " Not every trial has run: what follows is of those that have."
    ran = (
        f"{len(records)} of {summary['trials']} trials, {format_number(summary['seconds'])} s on {summary['machine']}."
    )
    rows = [
        [name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else value]
        for name, value in summary["options"].items()
    ]
    return Section(
        experiment.title,
        [experiment.question + state, experiment.method, ran],
        [Table(["option", "value"], rows, title="Options"), claims_table(summary)],
        experiment.draw(options, records),
    )


def claims_table(summary: dict[str, Any]) -> Table:
    """Return the claims of an experiment: claim, source, measured, verdict.

    Args:
        summary: the content of summary.json.
    """
    rows = [
        [claim["claim"], claim["source"], claim["measured"], VERDICTS[claim["verdict"]]] for claim in summary["claims"]
    ]
    return Table(["claim", "source", "measured", "verdict"], rows, title="Claims")
