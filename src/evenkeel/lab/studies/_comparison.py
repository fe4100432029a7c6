"""Studies of one text joined: what differs between them, and by how much an arm ends lower, paired by seed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenkeel._errors import StudyError
from evenkeel._options.study import BYTES
from evenkeel.lab._result import Result
from evenkeel.lab.studies._result import StudyResult
from evenkeel.lab.studies.page import comparison_findings, comparison_page, group_arms, pairs_table, standing_table
from evenkeel.lab.training import mean_of
from evenkeel.report import Finding, Page, Table

STATED = ("evenkeel", "torch", "python", "kernels", "created", "machine", "settings", "spent")
COMPARED = ("evenkeel", "torch", "python", "kernels", "machine", "settings")


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """The result of `evenkeel.lab.compare_studies`; a notebook shows it as the page.

    Attributes:
        summary: the studies with their settings and versions, what differs between them, the standing of all arms, and
            the differences of each arm that several studies have.
        directory: None; nothing is written.

    Example:
        >>> from evenkeel.lab import Comparison
        >>> Comparison({"studies": [], "differences": {}, "standing": [], "pairs": []})
        Comparison(0 studies, 0 pairs)
    """

    def __repr__(self) -> str:
        return f"Comparison({len(self.summary['studies'])} studies, {len(self.summary['pairs'])} pairs)"

    def page(self) -> Page:
        """Return the page: differences with their intervals, the standing of all arms, and what differs."""
        return comparison_page(self.summary)

    def findings(self) -> list[Finding]:
        """Return what the differences say."""
        return comparison_findings(self.summary)

    def table(self) -> Table:
        """Return the differences of the arms that several studies have, or the standing where there are none."""
        return pairs_table(self.summary) if self.summary["pairs"] else standing_table(self.summary)


def compare_studies(*directories: str | os.PathLike[str]) -> Comparison:
    """Join studies of the same text: each arm at its best rate, compared seed by seed.

    A seed gives two arms the same initialization, where they share parameters, and the same sequences in the same
    order; so the differences of their losses by seed vary less than the losses, and the interval is that of Student's
    t over them.

    Args:
        *directories: of two studies or more; each arm is compared with that of the first study that has it.

    Returns:
        The comparison.

    Raises:
        StudyError: there are fewer than two; one is missing, damaged or of another text.

    Example:
        >>> import tempfile
        >>> from evenkeel import lab
        >>> sizes = dict(depth=1, width=8, heads=1, context=8, batch=2, steps=2, seeds=2, lr=0.01, progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, bias in (("with", True), ("without", False)):
        ...         _ = lab.study(arms=["pre-rms"], bias=bias, out=f"{folder}/{name}", **sizes)
        ...     comparison = lab.compare_studies(f"{folder}/with", f"{folder}/without")
        >>> comparison.summary["differences"]["bias"], comparison.summary["pairs"][0]["seeds"]
        ([True, False], 2)
    """
    places = named(directories)
    if len(places) < 2:
        raise StudyError("a comparison needs two studies or more; give the directory of each")
    summaries = {name: StudyResult.read(path).summary for name, path in places.items()}
    check_texts(summaries)
    standing = list(entries(summaries))
    return Comparison(
        {
            "studies": [
                {"name": name, **{key: summary.get(key) for key in STATED}} for name, summary in summaries.items()
            ],
            "text": next(iter(summaries.values()))["corpus"],
            "differences": differences(list(summaries.values())),
            "standing": against_best(standing),
            "pairs": same_arms(standing),
        }
    )


def named(directories: Sequence[str | os.PathLike[str]]) -> dict[str, Path]:
    """Return the directories by their last name, or in full where that is not unique; each once."""
    paths = list({path.resolve(): path for path in map(Path, reversed(directories))}.values())[::-1]
    short = [path.resolve().name for path in paths]
    return {name if short.count(name) == 1 else str(path): path for name, path in zip(short, paths, strict=True)}


def check_texts(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `StudyError` unless all studies learned the same text, in the same unit with the same vocabulary."""
    (first, reference), *others = summaries.items()
    for name, summary in others:
        one, other = ((each.get("corpus") or {}) for each in (reference, summary))
        learned = [
            f"{each.get('unit', 'byte')}s of a vocabulary of {each.get('vocabulary', BYTES)}" for each in (one, other)
        ]
        if learned[0] != learned[1]:
            raise StudyError(f"{first} learned {learned[0]} and {name} {learned[1]}: losses cannot be compared")
        if one.get("digest") != other.get("digest"):
            raise StudyError(
                f"{first} and {name} learned different texts ({one.get('source')}; {other.get('source')}), whose "
                "losses cannot be compared"
            )


def differences(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings, versions and machines that are not the same in all studies: a value for each."""
    flat = [
        {key: summary.get(key) for key in COMPARED if key != "settings"} | (summary.get("settings") or {})
        for summary in summaries
    ]
    keys = dict.fromkeys(key for values in flat for key in values)
    columns = {key: [values.get(key) for values in flat] for key in keys}
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def entries(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each arm of each study at its best rate."""
    for study, summary in summaries.items():
        for arm in group_arms(summary):
            best = arm.best
            finished = {run["seed"]: run["final_validation_loss"] for run in best.with_status("finished")}
            losses = {seed: loss for seed, loss in finished.items() if loss is not None}
            yield {
                "study": study,
                "arm": arm.name,
                "rate": best.rates[0],
                "losses": losses,
                "loss": best.loss if losses else None,
                "leaks": arm.leaks,
                "remark": best.note(),
            }


def same_arms(standing: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each arm with the same arm of the first study that has it."""
    pairs, first = [], dict[str, Mapping[str, Any]]()
    for entry in standing:
        if entry["arm"] in first:
            pairs.append(paired(entry, first[entry["arm"]]))
        else:
            first[entry["arm"]] = entry
    return pairs


def against_best(standing: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the arms that can be ranked, lowest loss first, with their difference to the best; then the others."""
    ranked = sorted((e for e in standing if e["loss"] is not None and not e["leaks"]), key=lambda e: e["loss"])
    others = [entry for entry in standing if entry["loss"] is None or entry["leaks"]]
    best = [{**paired(entry, entry), "seen": "the best"} for entry in ranked[:1]]
    return best + [paired(entry, ranked[0]) for entry in ranked[1:]] + [{**entry, "seeds": 0} for entry in others]


def paired(entry: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with its difference to another one, over the seeds that both have."""
    common = [seed for seed in entry["losses"] if seed in reference["losses"]]
    estimate = mean_of(entry["losses"][seed] - reference["losses"][seed] for seed in common)
    if not common:
        seen = "no seed in common"
    elif len(common) == 1:
        seen = "one seed, no interval"
    else:
        seen = "higher" if estimate.low > 0 else "lower" if estimate.high < 0 else "no difference seen"
    several = len(common) > 1
    return {
        **entry,
        "reference": reference["study"],
        "difference": estimate.value if common else None,
        "low": estimate.low if several else None,
        "high": estimate.high if several else None,
        "seeds": len(common),
        "seen": seen,
    }
