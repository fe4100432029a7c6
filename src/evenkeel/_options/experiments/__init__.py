"""Private: the options of the experiments, with defaults and checks, which the command line needs before torch."""

from evenkeel._options.experiments._digits import (
    ACTIVATION_NAMES,
    HIDDEN_NORM_NAMES,
    MOST_IMAGES,
    TEST_IMAGES,
    ConvergenceOptions,
    DigitsOptions,
    NoiseOptions,
    OrderOptions,
    ShiftOptions,
)
from evenkeel._options.experiments._options import Options, Trial, read_options
from evenkeel._options.experiments._others import CELLS, PaddingOptions, RecurrentOptions, ScalingOptions
from evenkeel._options.experiments._transformer import (
    ArmOptions,
    BiasOptions,
    CentringOptions,
    CostOptions,
    GradientOptions,
    GrowthOptions,
    RateOptions,
    TrainingOptions,
    WithoutOptions,
)

__all__ = [
    "ACTIVATION_NAMES",
    "CELLS",
    "EXPERIMENT_OPTIONS",
    "HIDDEN_NORM_NAMES",
    "MOST_IMAGES",
    "TEST_IMAGES",
    "ArmOptions",
    "BiasOptions",
    "CentringOptions",
    "ConvergenceOptions",
    "CostOptions",
    "DigitsOptions",
    "GradientOptions",
    "GrowthOptions",
    "NoiseOptions",
    "Options",
    "OrderOptions",
    "PaddingOptions",
    "RateOptions",
    "RecurrentOptions",
    "ScalingOptions",
    "ShiftOptions",
    "TrainingOptions",
    "Trial",
    "WithoutOptions",
    "read_options",
]

# By the names of `EXPERIMENT_NAMES`, which help lists without these classes: they take 15 ms to make.
EXPERIMENT_OPTIONS: dict[str, type[Options]] = {
    "feature-scaling": ScalingOptions,
    "batchnorm-convergence": ConvergenceOptions,
    "batchnorm-noise": NoiseOptions,
    "covariate-shift": ShiftOptions,
    "norm-before-activation": OrderOptions,
    "padding": PaddingOptions,
    "recurrent": RecurrentOptions,
    "gradients-at-init": GradientOptions,
    "residual-growth": GrowthOptions,
    "learning-rate": RateOptions,
    "without-norm": WithoutOptions,
    "centring": CentringOptions,
    "bias-terms": BiasOptions,
    "cost": CostOptions,
}
