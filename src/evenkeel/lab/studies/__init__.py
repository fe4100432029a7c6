"""Private: the study: its settings, the training of its arms, its summary, findings and page."""

from evenkeel._options.arms import DEFAULT_ARMS
from evenkeel._options.study import StudySettings
from evenkeel.lab.studies._observer import Observer, Run
from evenkeel.lab.studies._result import StudyResult
from evenkeel.lab.studies._run import read_study, run_study
from evenkeel.lab.studies._training import ArmTraining, train_arm
from evenkeel.lab.studies.page import find, ranking_table, study_page, write_report

__all__ = [
    "DEFAULT_ARMS",
    "ArmTraining",
    "Observer",
    "Run",
    "StudyResult",
    "StudySettings",
    "find",
    "ranking_table",
    "read_study",
    "run_study",
    "study_page",
    "train_arm",
    "write_report",
]
