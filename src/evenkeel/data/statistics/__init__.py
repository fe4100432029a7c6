"""Private: statistics of data as mergeable states, and how they are saved."""

from evenkeel.data.statistics._distributed import all_merge
from evenkeel.data.statistics._encoding import (
    Array,
    State,
    StateFormat,
    one_line,
    plain_numbers,
    refuse_rest,
    take_array,
)
from evenkeel.data.statistics._groups import GroupStatistics, group_state, restore_groups
from evenkeel.data.statistics._images import (
    Definition,
    ImageStatistics,
    Layout,
    check_definition,
    image_state,
    restore_images,
)
from evenkeel.data.statistics._merging import merge_all
from evenkeel.data.statistics._moments import Moments, empty_moments, joined_columns, merge_moments
from evenkeel.data.statistics._quantiles import Histograms, Sketches, exact_percentiles
from evenkeel.data.statistics._statistics import (
    NanPolicy,
    Statistics,
    check_mergeable,
    restore,
    state_of,
)
from evenkeel.data.statistics._tables import table_moments

__all__ = [
    "Array",
    "Definition",
    "GroupStatistics",
    "Histograms",
    "ImageStatistics",
    "Layout",
    "Moments",
    "NanPolicy",
    "Sketches",
    "State",
    "StateFormat",
    "Statistics",
    "all_merge",
    "check_definition",
    "check_mergeable",
    "empty_moments",
    "exact_percentiles",
    "group_state",
    "image_state",
    "joined_columns",
    "merge_all",
    "merge_moments",
    "one_line",
    "plain_numbers",
    "refuse_rest",
    "restore",
    "restore_groups",
    "restore_images",
    "state_of",
    "table_moments",
    "take_array",
]
