"""Experiments: the claims that the literature makes about normalization, run, measured and compared.

Each experiment is one file of this package; `EXPERIMENTS` declares them.
"""

from evenkeel._options.experiments import Options
from evenkeel.lab.experiments._experiment import VERDICTS, Claim, Experiment
from evenkeel.lab.experiments._result import ExperimentResult
from evenkeel.lab.experiments._run import ExperimentObserver, read_experiment, run_experiments
from evenkeel.lab.experiments.catalogue import EXPERIMENTS

__all__ = [
    "EXPERIMENTS",
    "VERDICTS",
    "Claim",
    "Experiment",
    "ExperimentObserver",
    "ExperimentResult",
    "Options",
    "read_experiment",
    "run_experiments",
]
