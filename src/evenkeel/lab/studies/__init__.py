"""Private: the study: its settings, the training of its arms, its summary, findings and page."""

from evenkeel._options.arms import DEFAULT_ARMS
from evenkeel._options.study import StudySettings
from evenkeel.lab.studies._comparison import Comparison, compare_studies
from evenkeel.lab.studies._observer import Observer, Run, Spent
from evenkeel.lab.studies._result import StudyResult
from evenkeel.lab.studies._run import read_study, run_study
from evenkeel.lab.studies._training import ArmTraining, train_arm
from evenkeel.lab.studies.page import find, ranking_table, study_page, write_report

__all__ = [
    "DEFAULT_ARMS",
    "ArmTraining",
    "Comparison",
    "Observer",
    "Run",
    "Spent",
    "StudyResult",
    "StudySettings",
    "compare_studies",
    "find",
    "ranking_table",
    "read_study",
    "run_study",
    "study_page",
    "train_arm",
    "write_report",
]
