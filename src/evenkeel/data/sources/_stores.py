"""Where data lies: a path of this machine, or an object or directory of a store that a URL names."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from evenkeel._errors import EvenkeelError, InvalidArgumentError, SourceError
from evenkeel._options.urls import AMAZON, AZURE, GOOGLE, HADOOP, HTTP, URL, check_url, scheme_of, unknown_scheme
from evenkeel._packages import require_package
from evenkeel.data.sources._transfers import explained, one_line

MANGLED = re.compile(rf"({'|'.join((*AMAZON, *GOOGLE, *AZURE, *HADOOP, *HTTP))}):/[^/]")
# Where the usual chain of AWS keeps what PyArrow does not look for itself.
VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
AWS_ENDPOINTS, AWS_REGIONS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
READ_ATTEMPTS = 3  # of PyArrow's client itself, for each of ours
# That of Google tries for so many seconds, and for minutes unless it is told.
TRIES, TOKEN_LIVES = 5, timedelta(hours=1)
# Where the tools of Azure keep the account and its key, by the names of PyArrow's client.
AZURE_ACCOUNT = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
AZURE_KEYS = {"account_key": "AZURE_STORAGE_KEY", "sas_token": "AZURE_STORAGE_SAS_TOKEN"}


@dataclass(frozen=True)
class Store:
    """A store as a process connects to it: what its URLs begin with, and the options of its client.

    Attributes:
        scheme: such as s3.
        authority: what follows ://, up to the path.
        options: names and values; they may be secrets, so no message shows them.
    """

    scheme: str
    authority: str
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @cached_property
    def filesystem(self) -> Any:
        """PyArrow's filesystem of this store, made once in each process while the credentials stay the same."""
        variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        key = f"{self!r}{self.options!r}{variables!r}"  # a client keeps the credentials that it finds
        with CONNECTING:
            if key not in CONNECTED:
                CONNECTED[key] = connect(self)
            return CONNECTED[key]

    def __reduce__(self) -> tuple[type[Store], tuple[Any, ...]]:
        return Store, (self.scheme, self.authority, self.options)  # another process connects by itself

    @property
    def files(self) -> Any:
        """The filesystem of fsspec beneath PyArrow's, or None where PyArrow speaks to the store itself."""
        return beneath(self.filesystem)


def beneath(filesystem: Any) -> Any:
    """The filesystem of fsspec beneath one of PyArrow's, or None."""
    return getattr(getattr(filesystem, "handler", None), "fs", None)


CONNECTED: dict[str, Any] = {}
CONNECTING = threading.Lock()


@dataclass(frozen=True, order=True)
class StoredFile:
    """An object of a store, or a directory or pattern of objects.

    Attributes:
        url: names it in messages; of a web address without what follows the question mark.
        store: that holds it.
        path: as the store's filesystem spells it.
        member: the array of a .npz file that is meant.
        size: in bytes, where the store was asked.
        modified: time of the last change in nanoseconds, likewise.
        version: the ETag or version that must be read; empty for whichever is there.
    """

    url: str
    store: Store = field(compare=False)
    path: str = field(compare=False)
    member: str = field(default="", compare=False)
    size: int | None = field(default=None, compare=False)
    modified: int = field(default=0, compare=False)
    version: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.url.rpartition("://")[2]).name

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.name).suffix

    def __str__(self) -> str:
        return f"{self.url}::{self.member}" if self.member else self.url

    def child(self, path: str, **facts: Any) -> StoredFile:
        """An object below this directory, by the path that the filesystem gives it."""
        return replace(self, url=self.url.rstrip("/") + path[len(self.path.rstrip("/")) :], path=path, **facts)

    def beside(self, name: str) -> StoredFile:
        """An object of the same directory; without a name the directory."""
        url, path = (f"{text.rpartition('/')[0]}/{name}" for text in (self.url, self.path))
        return replace(self, url=url, path=path, size=None, version="")


Place = Path | StoredFile


def locate(source: str | os.PathLike[str] | StoredFile, storage_options: Mapping[str, Any] | None = None) -> Place:
    """Turn a path or URL into the place that every reader and writer takes.

    Args:
        source: a path, a URL, or a place, which stays as it is.
        storage_options: for the client of the store, beside what it finds in the environment by itself.

    Raises:
        InvalidArgumentError: options are given for a path, or the URL holds a password.
        SourceError: nothing is known of such URLs.
    """
    if isinstance(source, StoredFile):
        return source
    text = os.fspath(source)
    if scheme := scheme_of(text):
        return stored_file(text, scheme, storage_options or {})
    if MANGLED.match(text):
        raise InvalidArgumentError(f"{text} was a URL that a Path took a slash from; give URLs as text")
    if storage_options:
        raise InvalidArgumentError(f"storage_options are for URLs such as s3://bucket/key, but {text} is a path")
    return Path(unquote(urlsplit(text).path)) if URL.match(text) else Path(text)


def locate_all(source: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """A path, a URL or a list of them as places; anything else as it is."""
    if isinstance(source, str | os.PathLike | StoredFile):
        return locate(source, storage_options)
    if (
        isinstance(source, list | tuple)
        and source
        and all(isinstance(p, str | os.PathLike | StoredFile) for p in source)
    ):
        return [locate(path, storage_options) for path in source]
    if storage_options:
        raise InvalidArgumentError(
            f"storage_options are for URLs such as s3://bucket/key, not for {type(source).__name__}"
        )
    return source


def stored_file(url: str, scheme: str, options: Mapping[str, Any]) -> StoredFile:
    """What a URL names."""
    plain, _, member = url.partition("::")
    check_url(plain)
    store = Store(scheme, urlsplit(plain).netloc, tuple(sorted(options.items())))
    shown = plain.partition("?")[0] if scheme in HTTP else plain  # what follows may be a signature
    return StoredFile(shown, store, path_within(plain, store), member)


def path_within(url: str, store: Store) -> str:
    """The path of a URL as the store's filesystem spells it."""
    rest = url.partition("://")[2]
    if store.scheme in AZURE:
        container, _, path = rest.partition("/")
        return f"{container.partition('@')[0]}/{path}".rstrip("/")
    if store.scheme in HADOOP:
        return "/" + rest.partition("/")[2]
    if store.scheme in CONNECTORS:
        return rest.rstrip("/")
    return str(store.files._strip_protocol(url))


def connect(store: Store) -> Any:
    """Connect to a store: by PyArrow, or where that has no client by fsspec."""
    options = dict(store.options)
    try:
        return CONNECTORS.get(store.scheme, connect_fsspec)(store, options)
    except TypeError as error:
        raise InvalidArgumentError(f"storage_options: {store.scheme}:// does not take these: {error}") from error
    except EvenkeelError:
        raise
    except ValueError as error:
        raise SourceError(f"{store.scheme}://{store.authority}: cannot be connected to: {one_line(error)}") from error
    except OSError as error:
        raise explained(f"{store.scheme}://{store.authority}", error, 1) from error


def connect_s3(store: Store, options: dict[str, Any]) -> Any:
    """PyArrow's client of S3 and of what speaks like it; credentials by the usual chain of AWS."""
    fs = require_package("pyarrow.fs")
    endpoint = next((value for name in AWS_ENDPOINTS if (value := os.environ.get(name))), None)
    if endpoint and "endpoint_override" not in options:
        options["endpoint_override"] = endpoint
    if "region" not in options and not any(os.environ.get(name) for name in AWS_REGIONS):
        if "endpoint_override" not in options:
            options["region"] = fs.resolve_s3_region(store.authority)
    elif "region" not in options:
        options["region"] = next(value for name in AWS_REGIONS if (value := os.environ.get(name)))
    options.setdefault("retry_strategy", fs.AwsStandardS3RetryStrategy(max_attempts=READ_ATTEMPTS))
    return fs.S3FileSystem(**options)


def connect_gcs(store: Store, options: dict[str, Any]) -> Any:
    """PyArrow's client of Google Cloud Storage; times may be numbers of seconds, a token's end is not needed."""
    limit = options.get("retry_time_limit", TRIES)
    options["retry_time_limit"] = limit if isinstance(limit, timedelta) else timedelta(seconds=limit)
    if "access_token" in options:
        options.setdefault("credential_token_expiration", datetime.now(UTC) + TOKEN_LIVES)
    return require_package("pyarrow.fs").GcsFileSystem(**options)


def connect_azure(store: Store, options: dict[str, Any]) -> Any:
    """PyArrow's client of Azure; the account stands in the URL (container@account.…), the options or a variable."""
    _, at, host = store.authority.rpartition("@")
    account = host.partition(".")[0] if at else next(filter(None, map(os.environ.get, AZURE_ACCOUNT)), None)
    if "account_name" not in options and not account:
        raise InvalidArgumentError(
            f"{store.scheme}://{store.authority} names no storage account; write {store.scheme}://container@ACCOUNT."
            "dfs.core.windows.net/path, or give account_name in storage_options= (--storage-option)"
        )
    options.setdefault("account_name", account)
    if options.keys().isdisjoint((*AZURE_KEYS, "client_id")):
        found = [(name, value) for name, variable in AZURE_KEYS.items() if (value := os.environ.get(variable))]
        options |= dict(found[:1])
    return require_package("pyarrow.fs").AzureFileSystem(**options)


def connect_hadoop(store: Store, options: dict[str, Any]) -> Any:
    """PyArrow's client of HDFS, which needs Hadoop's libhdfs."""
    host, _, port = store.authority.partition(":")
    try:
        return require_package("pyarrow.fs").HadoopFileSystem(host or "default", int(port or 0), **options)
    except OSError as error:
        if not re.search("libhdfs|libjvm", str(error)):
            raise
        raise SourceError(
            f"{store.scheme}:// needs Java and Hadoop's libhdfs on this machine (JAVA_HOME, HADOOP_HOME, CLASSPATH as "
            f"`hadoop classpath --glob` tells it), or read webhdfs://{host or 'namenode'}:9870/… ({one_line(error)})"
        ) from error


def connect_fsspec(store: Store, options: dict[str, Any]) -> Any:
    """A filesystem of fsspec as one of PyArrow's."""
    fsspec = require_package("fsspec")
    if store.scheme not in fsspec.available_protocols():
        raise SourceError(unknown_scheme(store.scheme))
    try:
        kind = fsspec.get_filesystem_class(store.scheme)
        options = kind._get_kwargs_from_urls(f"{store.scheme}://{store.authority}") | options  # such as the host
        files = fsspec.filesystem(store.scheme, skip_instance_cache=True, **options)
    except ImportError as error:
        raise SourceError(
            f"{store.scheme}:// URLs need a package more: {error} (evenkeel[stores] brings https)"
        ) from error
    fs = require_package("pyarrow.fs")
    return fs.PyFileSystem(fs.FSSpecHandler(files))


CONNECTORS: dict[str, Callable[[Store, dict[str, Any]], Any]] = {
    **dict.fromkeys(AMAZON, connect_s3),
    **dict.fromkeys(GOOGLE, connect_gcs),
    **dict.fromkeys(AZURE, connect_azure),
    **dict.fromkeys(HADOOP, connect_hadoop),
}
