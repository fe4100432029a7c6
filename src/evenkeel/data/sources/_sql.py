"""Queries: their rows as Arrow batches, once, in this process; by DuckDB, or by any driver of ADBC."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from evenkeel._errors import EvenkeelError, SourceError
from evenkeel._packages import require_package
from evenkeel.data.sources._columns import Block, Columns
from evenkeel.data.sources._source import Source
from evenkeel.data.sources._stream import open_stream

SCHEME = "duckdb"
ROWS = 1 << 17  # of a batch
READERS = ("to_arrow_reader", "fetch_record_batch")  # DuckDB's, ADBC's
WRITING = ("COPY", "EXPORT")
HOW = "write duckdb:///file.db?query=SELECT … (duckdb:///?query=… without a file), and % as %25"
NO_TEXT = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
NO_RESULT = (
    "this connection holds no result; call its execute('SELECT …') first, or give what its sql('SELECT …') returns"
)


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
        opened = open_stream(reader_of(source), columns, empty="the query gives no rows; there is nothing to fit")
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
        reason = NO_RESULT if "No open result set" in str(error) else f"the query failed: {error}"
        raise SourceError(reason) from error


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
        if (reader := source.to_arrow_reader(ROWS)) is None:  # all was fetched
            raise SourceError(NO_RESULT)
        return reader


def run_query(duckdb: Any, url: str) -> Any:
    """The relation of the query of a URL; the file is only read."""
    path, query = parsed(url)
    if path and ":" not in path and not Path(path).exists():
        absolute = f"; an absolute path takes four slashes: duckdb:////{path}" if not path.startswith("/") else ""
        raise SourceError(f"there is no database {path}{absolute}")
    connection = duckdb.connect(path, read_only=True) if path else duckdb.connect()
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise SourceError(f"expected one statement, but the query has {len(statements)}; {HOW}")
    if (kind := statements[0].type.name) in WRITING:  # files, which a database that is opened for reading does not stop
        raise SourceError(f"a query is read, but this one writes ({kind}); {HOW}")
    relation = connection.sql(query)
    if relation is None:
        raise SourceError(f"the query gives no rows; {HOW}")
    return relation


def parsed(url: str) -> tuple[str, str]:
    """The path and the query of a URL; `query` is its one parameter, so & and + and # belong to the SQL."""
    place, _, parameters = url.partition("://")[2].partition("?")
    name, _, text = parameters.partition("=")
    query = unquote(text)
    if name.strip() not in ("", "query"):
        raise SourceError(f"duckdb:// URLs have the parameter query alone, but got {name!r}; {HOW}")
    if not query.strip():
        raise SourceError(f"{SCHEME}://{place} names no query; {HOW}")
    if NO_TEXT.search(query):
        raise SourceError(f"the query has a % before digits that stand for no sign of a text; {HOW}")
    return unquote(place.removeprefix("/")), query
