"""A process that trains runs of a study, as `evenkeel.lab.runner.run_jobs` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenkeel._errors import StudyError
from evenkeel._options.study import StudySettings
from evenkeel.lab.runner import Job, Tell, clear_errors, serve, threads
from evenkeel.lab.studies._observer import Observer, Run, runs_of
from evenkeel.lab.studies._training import ArmTraining, train_arm
from evenkeel.lab.training import load_corpus


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


def prepare(setup: Mapping[str, Any]) -> Any:
    """Return what trains a run, told by its number in the study's order."""
    settings, out = StudySettings.from_options(setup["settings"]), Path(setup["out"])
    corpus = load_corpus(None if setup["text"] is None else Path(setup["text"]), context=settings.context)
    if corpus.digest != setup["digest"]:
        raise StudyError(f"the content of the text ({corpus.source}) has changed since the study began")
    runs = runs_of(settings)

    def work(job: Job, tell: Tell) -> None:
        run = runs[job["run"]]
        with clear_errors(out), threads(settings.threads):
            training = ArmTraining(run, settings, corpus, run.directory(out))
            train_arm(training, Teller(tell), checkpoint_seconds=setup["checkpoint_seconds"])

    return work


if __name__ == "__main__":
    serve(prepare)
