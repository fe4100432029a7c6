"""Private: what is judged of the measurements: one table of rules, one file a group."""

from evenkeel.doctor.rules._judge import judge, worst_readings
from evenkeel.doctor.rules._rule import Rule
from evenkeel.doctor.rules._table import RULES

__all__ = ["RULES", "Rule", "judge", "worst_readings"]
