"""Private: which norm a module computes, told by probing copies of it; calls and copies that leave no trace."""

from evenkeel.recognition._apply import Tensors, apply_norm
from evenkeel.recognition._calls import Call, seen_inputs, tensors_of
from evenkeel.recognition._copies import CannotCopyError, bare_copy
from evenkeel.recognition._fit import Roles
from evenkeel.recognition._layout import Layout
from evenkeel.recognition._probes import distance, isolated, random_values
from evenkeel.recognition._recognition import Recognition
from evenkeel.recognition._recognize import recognize
from evenkeel.recognition._rounding import Agreement
from evenkeel.recognition._survey import Found, survey
from evenkeel.recognition._views import spec_line

__all__ = [
    "Agreement",
    "Call",
    "CannotCopyError",
    "Found",
    "Layout",
    "Recognition",
    "Roles",
    "Tensors",
    "apply_norm",
    "bare_copy",
    "distance",
    "isolated",
    "random_values",
    "recognize",
    "seen_inputs",
    "spec_line",
    "survey",
    "tensors_of",
]
