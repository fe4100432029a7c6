"""Queries: their rows as Arrow batches, once, in this process; by DuckDB, or by any driver of ADBC."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from evenkeel._errors import EvenkeelError, SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import Block, Columns
from evenkeel.data.sources._source import Source
from evenkeel.data.sources._stream import open_stream

SCHEME = "duckdb"
ROWS = 1 << 17  # of a batch
READERS = ("to_arrow_reader", "fetch_record_batch")  # DuckDB's, ADBC's
HOW = "write duckdb:///file.db?query=SELECT … (duckdb:///?query=… without a file), the special signs as in any URL"


def is_query(source: Any) -> bool:
    """Whether this is the URL of a query, or what executed one: a connection or relation of DuckDB, a cursor of ADBC.

    None of them need be installed.
    """
    if isinstance(source, str):
        return source.startswith(f"{SCHEME}://")
    return any(hasattr(source, reader) for reader in READERS)


def open_query(source: Any, columns: Columns) -> Source:
    """Open the rows of a query: a URL, a relation, or a connection or cursor that has executed one.

    Raises:
        SourceError: there is no such file, the query is wrong, or a connection or cursor has none.
    """
    with answering():
        opened = open_stream(reader_of(source), columns)
    opened.stream = answered(opened.stream or ())
    opened.description = f"query ({source.partition('?')[0] if isinstance(source, str) else type(source).__name__})"
    return opened


@contextmanager
def answering() -> Iterator[None]:
    """Turn the drivers' errors, which are of classes of their own, into a SourceError."""
    try:
        yield
    except EvenkeelError:
        raise
    except Exception as error:
        raise SourceError(f"the query failed: {error}") from error


def answered(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of a query, which may fail at any row."""
    with answering():
        yield from blocks


def reader_of(source: Any) -> Any:
    """What reads the rows of a query, a batch at a time."""
    if isinstance(source, str):
        source = run_query(require_package("duckdb"), source)
    if not hasattr(source, "to_arrow_reader"):
        return source.fetch_record_batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DuckDB's: a connection, unlike a relation, hands out copies
        return source.to_arrow_reader(ROWS)


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
