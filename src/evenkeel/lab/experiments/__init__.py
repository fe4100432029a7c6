"""Experiments: the claims that the literature makes about normalization, run, measured and compared.

Each experiment is one file of this package; `EXPERIMENTS` declares them.
"""

from evenkeel.lab.experiments._experiment import VERDICTS, Claim, Experiment, Options
from evenkeel.lab.experiments._run import ExperimentObserver, read_experiment, run_experiments
from evenkeel.lab.experiments.padding import PADDING

__all__ = [
    "EXPERIMENTS",
    "VERDICTS",
    "Claim",
    "Experiment",
    "ExperimentObserver",
    "Options",
    "read_experiment",
    "run_experiments",
]

# Every experiment, in the order of the course: a file of this package, called by its name.
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (PADDING,)}
