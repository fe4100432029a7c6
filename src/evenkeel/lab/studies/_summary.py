"""The summary of a study: what its records say, in the form that the findings, the report and other tools read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import platform_name, processors, read_records
from evenkeel.lab.studies._estimate import read_spent
from evenkeel.lab.studies._observer import runs_of
from evenkeel.lab.studies._schemas import STUDY_FORMAT, Costs, StudyRecord
from evenkeel.lab.studies.page import find

MOST_POINTS = 500  # of a training curve; records.jsonl has every step


def summarize(out: Path, frozen: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a study, from what it froze at its start and the records of its arms so far.

    Args:
        out: the study's directory.
        frozen: the content of its study.json.

    Returns:
        A dictionary that JSON can hold: settings, corpus, machine, one entry for each run that has begun, what a step
        of each arm costs, and the findings. Training curves are thinned out evenly to at most 500 points.
    """
    settings = StudySettings.from_options(frozen["settings"])
    summarized = ((run, summarize_run(run.directory(out) / "records.jsonl")) for run in runs_of(settings))
    summary = {
        "format": STUDY_FORMAT,
        "evenkeel": frozen["evenkeel"],
        "torch": frozen["torch"],
        "python": frozen.get("python", ""),
        **{name: frozen[name] for name in ("ray",) if name in frozen},
        "kernels": frozen["kernels"],
        "created": frozen["created"],
        "machine": {
            "processor": processors(),
            "threads": settings.threads,
            "system": platform_name(),
        },
        "settings": settings.as_dict(),
        "corpus": frozen["corpus"],
        "arms": [{**entry, "leaks": run.arm.leaks} for run, entry in summarized if entry is not None],
        "costs": read_costs(out),
        "spent": read_spent(out),
    }
    return {**summary, "findings": find(summary)}


def read_costs(out: Path) -> dict[str, Any]:
    """Return what a step of each arm takes, or nothing where that was not measured or is damaged."""
    try:
        content = json.loads((out / "cost.json").read_bytes())
        msgspec.convert(content, Costs)
        return dict(content["arms"])
    except (OSError, RecursionError, ValueError):
        return {}


def summarize_run(path: Path) -> dict[str, Any] | None:
    """Return one run's part of the summary, or None if it has not begun."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in read_records(path, StudyRecord):
        by_kind.setdefault(record.pop("kind"), []).append(record)
    if "start" not in by_kind:
        return None
    start = by_kind["start"][0]
    end = by_kind.get("end", [{"status": "running", "validation_loss": None, "leak": None}])[-1]
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
        "final_validation_loss": end["validation_loss"],
        "leak": end["leak"],
    }
