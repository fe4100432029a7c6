"""Private: the page of a study: findings in words, ranking and figures."""

from evenkeel.lab.studies.page._findings import find
from evenkeel.lab.studies.page._page import ranking_table, study_page, write_report

__all__ = ["find", "ranking_table", "study_page", "write_report"]
