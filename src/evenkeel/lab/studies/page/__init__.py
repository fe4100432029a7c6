"""Private: the pages of studies: findings in words, ranking and figures; and of studies compared."""

from evenkeel.lab.studies.page._arms import group_arms
from evenkeel.lab.studies.page._comparison import comparison_findings, comparison_page, pairs_table, standing_table
from evenkeel.lab.studies.page._findings import find
from evenkeel.lab.studies.page._page import ranking_table, study_page, write_report

__all__ = [
    "comparison_findings",
    "comparison_page",
    "find",
    "group_arms",
    "pairs_table",
    "ranking_table",
    "standing_table",
    "study_page",
    "write_report",
]
