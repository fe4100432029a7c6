"""Private: what is measured of a model, its checkpoint or its training, as plain data; nothing here judges."""

from evenkeel.doctor.probes._averages import Average, averages_in
from evenkeel.doctor.probes._data import inputs_of, rescaling_of, skew_of, target_of
from evenkeel.doctor.probes._depth import depth_scalars, depths
from evenkeel.doctor.probes._forward import Collector
from evenkeel.doctor.probes._leaks import leaks
from evenkeel.doctor.probes._norms import Site, find_sites, norm_state
from evenkeel.doctor.probes._optimizer import held_by, optimizer_state, requested_steps
from evenkeel.doctor.probes._records import (
    Averaged,
    Curve,
    Depth,
    InputState,
    Layer,
    Leak,
    Measurements,
    NormState,
    OptimizerState,
    Replica,
    Rescaling,
    Signal,
    Skew,
    Step,
    Target,
    Threshold,
)
from evenkeel.doctor.probes._replicas import Replicas
from evenkeel.doctor.probes._tensors import local, sample, to_numbers
from evenkeel.doctor.probes._weights import states_of_weights

__all__ = [
    "Average",
    "Averaged",
    "Collector",
    "Curve",
    "Depth",
    "InputState",
    "Layer",
    "Leak",
    "Measurements",
    "NormState",
    "OptimizerState",
    "Replica",
    "Replicas",
    "Rescaling",
    "Signal",
    "Site",
    "Skew",
    "Step",
    "Target",
    "Threshold",
    "averages_in",
    "depth_scalars",
    "depths",
    "find_sites",
    "held_by",
    "inputs_of",
    "leaks",
    "local",
    "norm_state",
    "optimizer_state",
    "requested_steps",
    "rescaling_of",
    "sample",
    "skew_of",
    "states_of_weights",
    "target_of",
    "to_numbers",
]
