"""Private: the table of experiments."""

from __future__ import annotations

from evenkeel.lab.experiments._experiment import Experiment
from evenkeel.lab.experiments.catalogue._batchnorm_convergence import BATCHNORM_CONVERGENCE
from evenkeel.lab.experiments.catalogue._batchnorm_noise import BATCHNORM_NOISE
from evenkeel.lab.experiments.catalogue._bias_terms import BIAS_TERMS
from evenkeel.lab.experiments.catalogue._centring import CENTRING
from evenkeel.lab.experiments.catalogue._cost import COST
from evenkeel.lab.experiments.catalogue._covariate_shift import COVARIATE_SHIFT
from evenkeel.lab.experiments.catalogue._feature_scaling import FEATURE_SCALING
from evenkeel.lab.experiments.catalogue._gradients_at_init import GRADIENTS_AT_INIT
from evenkeel.lab.experiments.catalogue._learning_rate import LEARNING_RATE
from evenkeel.lab.experiments.catalogue._norm_before_activation import NORM_BEFORE_ACTIVATION
from evenkeel.lab.experiments.catalogue._padding import PADDING
from evenkeel.lab.experiments.catalogue._recurrent import RECURRENT
from evenkeel.lab.experiments.catalogue._residual_growth import RESIDUAL_GROWTH
from evenkeel.lab.experiments.catalogue._without_norm import WITHOUT_NORM

__all__ = ["EXPERIMENTS"]

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
