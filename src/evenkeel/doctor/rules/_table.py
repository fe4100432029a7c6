"""The table of rules: a row each, in the file of its group. Thresholds were set on half of the tests' programs."""

from evenkeel.doctor.rules import _data, _depth, _leaks, _parameters, _signal, _statistics
from evenkeel.doctor.rules._rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *_parameters.RULES,
    *_statistics.RULES,
    *_signal.RULES,
    *_depth.RULES,
    *_leaks.RULES,
    *_data.RULES,
)
