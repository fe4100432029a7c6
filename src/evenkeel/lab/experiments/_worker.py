"""The work of an experiment: a trial is measured, wherever an executor has it done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from evenkeel._options.experiments import Options
from evenkeel.lab.experiments._experiment import Experiment
from evenkeel.lab.experiments.catalogue import EXPERIMENTS
from evenkeel.lab.runner import Job, Tell, Work, threads


def prepare(setup: Mapping[str, Any]) -> Work:
    """Return what measures a trial of an experiment, from plain values."""
    experiment = EXPERIMENTS[setup["name"]]
    return trial_work(experiment, experiment.read_options(setup["options"]))


def trial_work(experiment: Experiment, options: Options) -> Work:
    """Return what measures a trial."""

    def work(job: Job, tell: Tell) -> None:
        with threads(options.threads):
            start = time.perf_counter()
            measured = experiment.measure(options, job["trial"])
            tell({"seconds": time.perf_counter() - start, "measured": measured})

    return work
