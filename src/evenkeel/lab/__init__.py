"""The lab: the same small transformer trained with each norm and placement on real text, and what that shows."""

from evenkeel.lab.arms import NORMS, PLACEMENTS, PRESETS, Arm, Placement, TokenBatchNorm, arm_names, find_arm
from evenkeel.lab.model import FEED_FORWARDS, Transformer
from evenkeel.lab.page import ranking_table, write_report
from evenkeel.lab.settings import DEFAULT_ARMS, StudySettings
from evenkeel.lab.study import read_study, run_study
from evenkeel.lab.text import Corpus, load_corpus
from evenkeel.lab.training import Observer

__all__ = [
    "DEFAULT_ARMS",
    "FEED_FORWARDS",
    "NORMS",
    "PLACEMENTS",
    "PRESETS",
    "Arm",
    "Corpus",
    "Observer",
    "Placement",
    "StudySettings",
    "TokenBatchNorm",
    "Transformer",
    "arm_names",
    "find_arm",
    "load_corpus",
    "ranking_table",
    "read_study",
    "run_study",
    "write_report",
]
