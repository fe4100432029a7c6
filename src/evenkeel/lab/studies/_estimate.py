"""What a study will take, before it starts, and what it took: time, and memory of each worker."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
import torch

from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import Executor, peak_memory, write_json
from evenkeel.lab.studies._observer import Run, Spent
from evenkeel.lab.studies._training import VALIDATION_STEPS, VALIDATIONS, make_model
from evenkeel.lab.training import Corpus, even_windows, seconds_in_turn, training_step
from evenkeel.report import join_words

FILE = "spent.json"
ROUNDS = 3


def write_spent(out: Path, spent: Spent) -> None:
    """Keep in a study's directory what it took."""
    write_json(out / FILE, dataclasses.asdict(spent))


def read_spent(out: Path) -> dict[str, Any]:
    """Return what a study has noted, or nothing where it did not or the file is damaged."""
    try:
        content = json.loads((out / FILE).read_bytes())
        return dataclasses.asdict(msgspec.convert(content, Spent))
    except (OSError, RecursionError, ValueError):
        return {}


def estimate(settings: StudySettings, corpus: Corpus, runs: list[Run], executor: Executor) -> Spent:
    """Return what the runs will take: the time and the memory of a step, measured now on the first arm.

    Args:
        settings: of the study.
        corpus: what is learned.
        runs: that are to be trained; what comes before their steps is named and not counted.
        executor: who trains them; the machines of a cluster are taken to be as fast as this one.
    """
    uncounted = join_words([*filter(None, [executor.starts(len(runs))]), *["compiling"] * settings.compile])
    if settings.device == "cuda" and not torch.cuda.is_available():
        return Spent(estimated_bytes=settings.needed_bytes(corpus.vocabulary), uncounted=uncounted)
    model = make_model(runs[0].arm, settings, corpus).to(settings.device).train()
    windows = even_windows(corpus, settings.batch, context=settings.context)
    (times,) = seconds_in_turn([training_step(model, windows, settings)], ROUNDS)
    steps = settings.steps + (VALIDATIONS + 1) * VALIDATION_STEPS
    rounds = math.ceil(len(runs) / executor.at_once(len(runs)))
    busy = len(runs) * settings.threads / executor.processors()
    seconds = statistics.median(times) * steps * max(rounds, busy)
    return Spent(estimated_seconds=seconds, estimated_bytes=memory_used(settings), uncounted=uncounted)


def memory_used(settings: StudySettings) -> int | None:
    """Return the most bytes that this process has held on the device."""
    return torch.cuda.max_memory_allocated() if settings.device == "cuda" else peak_memory()
