"""The lab: the same small transformer trained with each norm and placement on real text, and what that shows."""

from evenkeel._options.workers import Workers
from evenkeel.lab._run import experiment, study
from evenkeel.lab.studies import (
    DEFAULT_ARMS,
    Comparison,
    Observer,
    Run,
    Spent,
    StudyResult,
    StudySettings,
    compare_studies,
    ranking_table,
    read_study,
    run_study,
    write_report,
)
from evenkeel.lab.training import Corpus, load_corpus
from evenkeel.lab.transformer import (
    FEED_FORWARDS,
    NORMS,
    PLACEMENTS,
    PRESETS,
    Arm,
    Placement,
    TokenBatchNorm,
    Transformer,
    arm_names,
    find_arm,
)

__all__ = [
    "DEFAULT_ARMS",
    "FEED_FORWARDS",
    "NORMS",
    "PLACEMENTS",
    "PRESETS",
    "Arm",
    "Comparison",
    "Corpus",
    "Observer",
    "Placement",
    "Run",
    "Spent",
    "StudyResult",
    "StudySettings",
    "TokenBatchNorm",
    "Transformer",
    "Workers",
    "arm_names",
    "compare_studies",
    "experiment",
    "find_arm",
    "load_corpus",
    "ranking_table",
    "read_study",
    "run_study",
    "study",
    "write_report",
]
