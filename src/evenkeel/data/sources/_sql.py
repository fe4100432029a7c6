"""Queries of DuckDB: their rows as Arrow batches, once, in this process."""

from __future__ import annotations

import warnings
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from evenkeel._errors import SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import Columns
from evenkeel.data.sources._source import Source
from evenkeel.data.sources._stream import open_stream

SCHEME = "duckdb"
ROWS = 1 << 17  # of a batch
HOW = "write duckdb:///file.db?query=SELECT … (duckdb:///?query=… without a file), the special signs as in any URL"


def is_query(source: Any) -> bool:
    """Whether this is the URL of a query, or a connection or relation of DuckDB, which need not be installed."""
    if isinstance(source, str):
        return source.startswith(f"{SCHEME}://")
    return type(source).__module__.partition(".")[0] in (SCHEME, f"_{SCHEME}") and hasattr(source, "fetchone")


def open_query(source: Any, columns: Columns) -> Source:
    """Open the rows of a query: a URL, a relation, or a connection that has executed one.

    Raises:
        SourceError: there is no such file, the query is wrong, or a connection has none.
    """
    duckdb = require_package("duckdb")
    try:
        result = run_query(duckdb, source) if isinstance(source, str) else source
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DuckDB's: a connection, unlike a relation, hands out copies
            reader = result.to_arrow_reader(ROWS)
        opened = open_stream(reader, columns)
    except duckdb.Error as error:
        raise SourceError(f"the query failed: {error}") from error
    opened.description = f"query ({source.partition('?')[0] if isinstance(source, str) else type(source).__name__})"
    return opened


def run_query(duckdb: Any, url: str) -> Any:
    """The relation of the query of a URL; the file is only read."""
    parts = urlsplit(url)
    query = parse_qs(parts.query, keep_blank_values=True).get("query", [""])[0]
    path = unquote(parts.netloc + parts.path[1:] if parts.path[:2] != "//" else parts.path[1:])
    if not query.strip():
        raise SourceError(f"{parts.scheme}://{parts.netloc}{parts.path} names no query; {HOW}")
    connection = duckdb.connect(path, read_only=True) if path else duckdb.connect()
    relation = connection.sql(query)
    if relation is None:
        raise SourceError(f"the query gives no rows; {HOW}")
    return relation
