"""Private: what is judged of the measurements: one table of rules, one file a group."""

from evenkeel.doctor.rules._judge import judge
from evenkeel.doctor.rules._rule import Rule
from evenkeel.doctor.rules._table import RULES

__all__ = ["RULES", "Rule", "judge"]
