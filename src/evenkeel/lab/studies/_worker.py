"""The work of a study: a run is trained, or all arms are timed, wherever an executor has it done."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenkeel._errors import StudyError
from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import Job, Tell, Work, clear_errors, threads
from evenkeel.lab.studies._estimate import memory_used
from evenkeel.lab.studies._observer import Observer, Run, runs_of
from evenkeel.lab.studies._training import ArmTraining, make_model, train_arm
from evenkeel.lab.training import Corpus, check_device, even_windows, laid_out_before, load_corpus, measure_in_turn

TIMING: Job = {"timing": True}  # of all arms in turn


class Teller(Observer):
    """Tells the first process how a run goes on, by the name of the method that it then calls there."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def run_started(self, run: Run, step: int) -> None:
        """Tell where the run begins."""
        self.tell({"run_started": [step]})

    def step_done(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        """Tell of the step."""
        self.tell({"step_done": [step, loss, tokens_per_second]})

    def validated(self, run: Run, step: int, loss: float) -> None:
        """Tell the loss."""
        self.tell({"validated": [step, loss]})

    def run_ended(self, run: Run, status: str) -> None:
        """Tell how the run ended."""
        self.tell({"run_ended": [status]})


def prepare(setup: Mapping[str, Any]) -> Work:
    """Return what does the jobs of a study, from plain values."""
    settings, out = StudySettings.from_options(setup["settings"]), Path(setup["out"])
    corpus = laid_out_before(out, setup["digest"], str(setup["text"]), settings.context)
    if corpus is None:
        options = setup["storage_options"]
        size: dict[str, Any] = {"context": settings.context, "vocabulary": settings.vocabulary}
        corpus = load_corpus(setup["text"], **size, folder=out, storage_options=options)
    if corpus.digest != setup["digest"]:
        raise StudyError(f"the content of the text ({corpus.source}) is not the one that the study began with")
    return study_work(settings, corpus, out, setup["checkpoint_seconds"])


def study_work(settings: StudySettings, corpus: Corpus, out: Path, checkpoint_seconds: float) -> Work:
    """Return what trains a run, told by its number in the study's order, or times the arms."""
    runs = runs_of(settings)

    def work(job: Job, tell: Tell) -> None:
        with clear_errors(out), threads(settings.threads):
            check_device(settings)
            if job == TIMING:
                tell({"timed": time_arms(settings, corpus)})
                return
            run = runs[job["run"]]
            training = ArmTraining(run, settings, corpus, run.directory(out))
            train_arm(training, Teller(tell), checkpoint_seconds=checkpoint_seconds)
            tell({"memory": memory_used(settings)})

    return work


def time_arms(settings: StudySettings, corpus: Corpus) -> dict[str, dict[str, list[float]]]:
    """Return what a step of each arm takes, and its norms alone, all in turn."""
    models = {arm.name: functools.partial(make_model, arm, settings, corpus) for arm in timed_arms(settings)}
    windows = even_windows(corpus, settings.batch, context=settings.context)
    return measure_in_turn(models, windows, compute=settings)


def timed_arms(settings: StudySettings) -> list[Any]:
    """Return the arms whose steps are timed: warm-up changes no step's time."""
    return [arm for arm in settings.find_arms() if not arm.long_warmup]
