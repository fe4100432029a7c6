"""Private: statistics, scalers and drift as text, tables and pages."""

from evenkeel.data.views._flags import warn_of_features
from evenkeel.data.views._notebook import html, markdown, text
from evenkeel.data.views._pages import (
    QUARTILES,
    describe,
    drift_page,
    drift_table,
    show_page,
    skipped_of,
    statistics_of,
    statistics_table,
)

__all__ = [
    "QUARTILES",
    "describe",
    "drift_page",
    "drift_table",
    "html",
    "markdown",
    "show_page",
    "skipped_of",
    "statistics_of",
    "statistics_table",
    "text",
    "warn_of_features",
]
