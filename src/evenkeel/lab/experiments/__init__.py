"""Experiments: the claims that the literature makes about normalization, run, measured and compared.

Each experiment is one file of this package; `EXPERIMENTS` declares them.
"""

from evenkeel.lab.experiments._experiment import VERDICTS, Claim, Experiment, Options
from evenkeel.lab.experiments._run import ExperimentObserver, read_experiment, run_experiments
from evenkeel.lab.experiments.batchnorm_convergence import BATCHNORM_CONVERGENCE
from evenkeel.lab.experiments.batchnorm_noise import BATCHNORM_NOISE
from evenkeel.lab.experiments.bias_terms import BIAS_TERMS
from evenkeel.lab.experiments.centring import CENTRING
from evenkeel.lab.experiments.cost import COST
from evenkeel.lab.experiments.covariate_shift import COVARIATE_SHIFT
from evenkeel.lab.experiments.feature_scaling import FEATURE_SCALING
from evenkeel.lab.experiments.gradients_at_init import GRADIENTS_AT_INIT
from evenkeel.lab.experiments.learning_rate import LEARNING_RATE
from evenkeel.lab.experiments.norm_before_activation import NORM_BEFORE_ACTIVATION
from evenkeel.lab.experiments.padding import PADDING
from evenkeel.lab.experiments.recurrent import RECURRENT
from evenkeel.lab.experiments.residual_growth import RESIDUAL_GROWTH
from evenkeel.lab.experiments.without_norm import WITHOUT_NORM

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
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        FEATURE_SCALING,
        BATCHNORM_CONVERGENCE,
        BATCHNORM_NOISE,
        COVARIATE_SHIFT,
        NORM_BEFORE_ACTIVATION,
        PADDING,
        RECURRENT,
        GRADIENTS_AT_INIT,
        RESIDUAL_GROWTH,
        LEARNING_RATE,
        WITHOUT_NORM,
        CENTRING,
        BIAS_TERMS,
        COST,
    )
}
