"""Directories that are more than their files: Delta tables, and what Hugging Face's `save_to_disk` writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

from evenkeel._errors import SourceError
from evenkeel._options.urls import AMAZON
from evenkeel._packages import require_package
from evenkeel.data.sources._stores import Place, StoredFile, amazon_options
from evenkeel.data.sources._transfers import one_line

DELTA_LOG, SPLITS = "_delta_log", "dataset_dict.json"
# What a table may ask of its readers that reading its files by name does not do.
UNREAD = {
    "deletionVectors": "has rows that are marked as deleted; write it again with VACUUM or REORG … APPLY (PURGE)",
    "columnMapping": "stores its columns under other names; write it again without column mapping",
}
# The options of PyArrow's client of S3 by the names of that of Delta and Lance, and those that they write as times.
RUST_OPTIONS = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "endpoint_override": "aws_endpoint",
    "anonymous": "aws_skip_signature",
    "request_timeout": "timeout",
}
RUST_TIMES = ("request_timeout", "connect_timeout")


def refuse_splits(names: Collection[str], root: Place) -> None:
    """Raise `SourceError` for a directory of several splits: their rows are not those of one data set."""
    if SPLITS in names:
        splits = sorted(name for name in names if "." not in name)
        one = f"{str(root).removesuffix('/')}/{splits[0]}"
        raise SourceError(f"{root} holds the splits {', '.join(splits)}; give one, such as {one}")


def delta_files(root: Place) -> tuple[list[str], Any]:
    """The keys of the files that a Delta table consists of now, in their order, and the columns that they may have.

    Files that are older than a column lack it. Columns that the table is partitioned by are not among them.

    Raises:
        SourceError: it cannot be read, has no file, or asks for what reading its files does not do.
    """
    arrow = require_package("pyarrow")
    delta = require_package("deltalake")
    options = rust_options(root) if isinstance(root, StoredFile) else None
    try:
        table = delta.DeltaTable(str(root), storage_options=options)
        features = table.protocol().reader_features or ()
        paths = arrow.table(table.get_add_actions())["path"].to_pylist()
        folders = table.metadata().partition_columns
        schema = arrow.schema([field for field in arrow.schema(table.schema()) if field.name not in folders])
    except Exception as error:  # of several classes of its own
        raise SourceError(f"{root}: this Delta table cannot be read: {one_line(error)}") from error
    if refused := [f"{feature}: it {UNREAD[feature]}" for feature in features if feature in UNREAD]:
        raise SourceError(f"{root}: this Delta table uses {refused[0]}")
    if table.protocol().min_reader_version == 2:
        raise SourceError(f"{root}: this Delta table uses columnMapping: it {UNREAD['columnMapping']}")
    if not paths:
        raise SourceError(f"{root}: this Delta table has no rows")
    return sorted(unquote(path) for path in paths), schema


def rust_options(root: StoredFile) -> dict[str, Any]:
    """The options of a store by the names of the client that Delta and Lance share, which looks for fewer itself."""
    store = root.store
    given = amazon_options(store) if store.scheme in AMAZON else dict(store.options)
    scheme = given.pop("scheme", None) or "https"
    given |= {name: f"{float(given[name]) * 1000:.0f}ms" for name in RUST_TIMES if given.get(name) is not None}
    options = {RUST_OPTIONS.get(name, name): str(value) for name, value in given.items() if value is not None}
    if endpoint := options.get("aws_endpoint"):
        options["aws_endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        options["aws_endpoint_url_s3"] = options["aws_endpoint"]  # or a variable would count more
        options["aws_allow_http"] = str(options["aws_endpoint"].startswith("http://")).lower()
    return options
