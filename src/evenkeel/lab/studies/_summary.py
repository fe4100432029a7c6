"""The summary of a study: what its records say, in the form that the findings, the report and other tools read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import FORMAT, platform_name, processors, read_records
from evenkeel.lab.studies._schemas import StudyRecord
from evenkeel.lab.studies.page import find

MOST_POINTS = 500  # of a training curve; records.jsonl has every step


def arm_directory(out: Path, arm: str, seed: int) -> Path:
    """Return where an arm's records and checkpoint are."""
    return out / "arms" / f"{arm}-seed{seed}"


def summarize(out: Path, frozen: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a study, from what it froze at its start and the records of its arms so far.

    Args:
        out: the study's directory.
        frozen: the content of its study.json.

    Returns:
        A dictionary that JSON can hold: settings, corpus, machine, one entry for each arm and seed that has begun, and
        the findings. Training curves are thinned out evenly to at most 500 points.
    """
    settings = StudySettings.from_options(frozen["settings"])
    arms: list[dict[str, Any]] = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        begun = len(arms)
        for arm in settings.find_arms():
            summarized = summarize_arm(arm_directory(out, arm.name, seed) / "records.jsonl")
            if summarized:
                arms.append({**summarized, "leaks": arm.leaks})
        if len(arms) == begun:
            break  # seeds run in order
    summary = {
        "format": FORMAT,
        "evenkeel": frozen["evenkeel"],
        "torch": frozen["torch"],
        "created": frozen["created"],
        "machine": {
            "processor": processors(),
            "threads": settings.threads,
            "system": platform_name(),
        },
        "settings": settings.as_dict(),
        "corpus": frozen["corpus"],
        "arms": arms,
    }
    return {**summary, "findings": find(summary)}


def summarize_arm(path: Path) -> dict[str, Any] | None:
    """Return one arm's part of the summary, or None if it has not begun."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in read_records(path, StudyRecord):
        by_kind.setdefault(record.pop("kind"), []).append(record)
    if "start" not in by_kind:
        return None
    start = by_kind["start"][0]
    end = by_kind.get("end", [{"status": "running", "validation_loss": None}])[-1]
    cost = by_kind.get("cost", [{"step_seconds": None, "norm_seconds": None, "norm_share": None}])[-1]
    train = by_kind.get("train", [])
    stride = math.ceil(len(train) / MOST_POINTS) or 1
    kept = train[::-stride][::-1]  # counted from the end, so that the last step is kept
    columns = ("step", "loss", "gradient_norm", "learning_rate")
    return {
        "name": start.pop("arm"),
        **start,
        "status": end["status"],
        "train": {column: [record[column] for record in kept] for column in columns},
        "validation": {
            column: [record[column] for record in by_kind.get("validation", [])] for column in ("step", "loss")
        },
        "probes": by_kind.get("probe", []),
        "cost": cost,
        "final_validation_loss": end["validation_loss"],
    }
