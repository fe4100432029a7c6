"""Private: sources of rows: values in memory, streams and files of every format in the table `FORMATS`."""

from evenkeel.data.sources._columns import (
    Block,
    Columns,
    arrow_column,
    column_name,
    column_positions,
    other_columns,
    select_columns,
)
from evenkeel.data.sources._files import dropped_columns, format_of, numeric_columns, read_schema, table_files
from evenkeel.data.sources._format import Format
from evenkeel.data.sources._formats import FORMATS
from evenkeel.data.sources._images import IMAGES, read_image
from evenkeel.data.sources._open import open_source
from evenkeel.data.sources._source import Fragment, Skip, Source

__all__ = [
    "FORMATS",
    "IMAGES",
    "Block",
    "Columns",
    "Format",
    "Fragment",
    "Skip",
    "Source",
    "arrow_column",
    "column_name",
    "column_positions",
    "dropped_columns",
    "format_of",
    "numeric_columns",
    "open_source",
    "other_columns",
    "read_image",
    "read_schema",
    "select_columns",
    "table_files",
]
