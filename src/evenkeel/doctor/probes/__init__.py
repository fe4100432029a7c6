"""Private: what is measured of a model, its checkpoint or its training, as plain data; nothing here judges."""

from evenkeel.doctor.probes._depth import depth_scalars, depths
from evenkeel.doctor.probes._forward import Collector, inputs_of
from evenkeel.doctor.probes._leaks import leaks
from evenkeel.doctor.probes._norms import Site, find_sites, norm_state
from evenkeel.doctor.probes._optimizer import held_by, optimizer_state
from evenkeel.doctor.probes._records import (
    Depth,
    InputState,
    Layer,
    Leak,
    Measurements,
    NormState,
    OptimizerState,
    Signal,
    Step,
)
from evenkeel.doctor.probes._tensors import local, to_numbers
from evenkeel.doctor.probes._weights import states_of_weights

__all__ = [
    "Collector",
    "Depth",
    "InputState",
    "Layer",
    "Leak",
    "Measurements",
    "NormState",
    "OptimizerState",
    "Signal",
    "Site",
    "Step",
    "depth_scalars",
    "depths",
    "find_sites",
    "held_by",
    "inputs_of",
    "leaks",
    "local",
    "norm_state",
    "optimizer_state",
    "states_of_weights",
    "to_numbers",
]
