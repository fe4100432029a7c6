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
from evenkeel.data.sources._files import dropped_columns, grouped, numeric_columns, opened_as, read_schema
from evenkeel.data.sources._folders import read_images
from evenkeel.data.sources._format import Format
from evenkeel.data.sources._formats import FORMATS
from evenkeel.data.sources._images import IMAGES
from evenkeel.data.sources._listing import format_of, is_directory, key_of, list_files, list_objects, place_exists
from evenkeel.data.sources._objects import opened, pinned
from evenkeel.data.sources._open import open_source
from evenkeel.data.sources._source import Fragment, Skip, Source
from evenkeel.data.sources._sql import is_query
from evenkeel.data.sources._stores import Place, StoredFile, locate, locate_all
from evenkeel.data.sources._writing import WRITERS, check_bucket, inside, open_writer, write_bytes, writing

__all__ = [
    "FORMATS",
    "IMAGES",
    "WRITERS",
    "Block",
    "Columns",
    "Format",
    "Fragment",
    "Place",
    "Skip",
    "Source",
    "StoredFile",
    "arrow_column",
    "check_bucket",
    "column_name",
    "column_positions",
    "dropped_columns",
    "format_of",
    "grouped",
    "inside",
    "is_directory",
    "is_query",
    "key_of",
    "list_files",
    "list_objects",
    "locate",
    "locate_all",
    "numeric_columns",
    "open_source",
    "open_writer",
    "opened",
    "opened_as",
    "other_columns",
    "pinned",
    "place_exists",
    "read_images",
    "read_schema",
    "select_columns",
    "write_bytes",
    "writing",
]
