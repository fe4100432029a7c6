"""Where data lies: a path of this machine, or an object or directory of a store that a URL names."""

from __future__ import annotations

import contextlib
import inspect
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
from evenkeel._options.urls import (
    AMAZON,
    AZURE,
    GOOGLE,
    HADOOP,
    HTTP,
    check_address,
    check_url,
    in_store,
    number_of,
    scheme_of,
    truth_of,
    unknown_scheme,
    without_scheme,
)
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
ANY = "**"  # among the names of options: any others
# How the text of an option is read, by the type of its default; any other stays as it is.
READ = {"bool": truth_of, "int": number_of}


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
        below = path[len(self.path.rstrip("/")) :].removeprefix("/")
        folder = self.url if self.url.endswith("://") else self.url.rstrip("/") + "/"
        return replace(self, url=folder + below, path=path, **facts)

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
        InvalidArgumentError: options are no mapping or given for a path, or the URL cannot be read or holds a password.
        SourceError: nothing is known of such URLs.
    """
    if isinstance(source, StoredFile):
        return source
    text = os.fspath(source)
    if MANGLED.match(text):
        raise InvalidArgumentError(f"{text} was a URL that a Path took a slash from; give URLs as text")
    check_url(text)
    check_options(storage_options, text)
    if scheme := scheme_of(text):
        return stored_file(text, scheme, storage_options or {})
    return Path(without_scheme(text))


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
    check_options(storage_options, source)
    return source


def check_options(options: Mapping[str, Any] | None, source: Any) -> None:
    """Raise `InvalidArgumentError` unless options are a mapping, and the source one that takes them."""
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidArgumentError(
            f"storage_options must be a dict such as {{'region': 'eu-west-1'}}, but got {type(options).__name__}"
        )
    if options and not in_store(source):
        what = source.partition("?")[0] if isinstance(source, str) else type(source).__name__
        raise InvalidArgumentError(f"storage_options are for URLs such as s3://bucket/key, not for {what}")


def stored_file(url: str, scheme: str, options: Mapping[str, Any]) -> StoredFile:
    """What a URL names."""
    plain, _, member = url.partition("::")
    store = Store(scheme, urlsplit(plain).netloc, tuple(sorted(options.items())))
    shown = re.split("[?#]", plain)[0] if scheme in HTTP else plain  # what follows may be a signature
    return StoredFile(shown, store, path_within(plain, store), member)


def missing(place: StoredFile) -> SourceError:
    """The error about a URL that names nothing, or whose bucket is not there where the store can tell."""
    bucket, where = place.path.partition("/")[0], "check its name, and the endpoint and region"
    if unquote(place.url) != place.url:
        where = f"names are those of the store, unlike in web addresses ({unquote(place.url)}?); {where}"
    if place.store.scheme in (*AMAZON, *GOOGLE, *AZURE):
        with contextlib.suppress(Exception):  # whether it is there may not be asked
            info = place.store.filesystem.get_file_info([bucket])[0]
            if info.type == require_package("pyarrow.fs").FileType.NotFound:
                return SourceError(f"{place}: there is no bucket {bucket!r}; {where}")
    return SourceError(f"there is no object or directory {place}; {where}")


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
    try:
        return CONNECTORS.get(store.scheme, connect_fsspec)(store)
    except TypeError as error:
        raise refused_options(store, error) from error
    except EvenkeelError:
        raise
    except ValueError as error:
        raise SourceError(f"{store.scheme}://{store.authority}: cannot be connected to: {one_line(error)}") from error
    except OSError as error:
        raise explained(f"{store.scheme}://{store.authority}", error, 1) from error


def as_it_is(name: str, value: object) -> object:
    """The value of an option."""
    return value


def refused_options(store: Store, reason: object) -> InvalidArgumentError:
    """The error about options that the client of a store does not take."""
    return InvalidArgumentError(f"storage_options: {store.scheme}:// does not take these: {reason}")


def options_for(store: Store, client: Any) -> dict[str, Any]:
    """The options of a store as its client takes them, words for truth values replaced.

    Raises:
        InvalidArgumentError: the client has no such option, or the value is none.
    """
    options, taken = dict(store.options), parameters_of(client)
    if unknown := [name for name in options if name not in taken and ANY not in taken]:
        raise refused_options(store, f"{', '.join(unknown)}; it takes {', '.join(taken)}")
    return {name: READ.get(taken.get(name, ""), as_it_is)(name, value) for name, value in options.items()}


def parameters_of(client: Any) -> dict[str, str]:
    """The names of the options that a client takes, each with the type of its default; `ANY` stands for any others."""
    if client.__module__.startswith("pyarrow"):  # which has its signatures only at the head of the documentation
        head = (client.__doc__ or "").partition("\n")[0].partition("(")[2]
        found = re.findall(r"(?:^|, )(?:\w+ )?(\w+)(?=[,:=)])(?:=(True|False|\d+))?", head)
        kinds = {"True": "bool", "False": "bool", "": ""}
        return {name: kinds.get(default, "int") for name, default in found} or {ANY: ""}
    parameters = list(inspect.signature(client.__init__).parameters.values())[1:]
    return {ANY if p.kind is p.VAR_KEYWORD else p.name: type(p.default).__name__ for p in parameters}


def amazon_options(store: Store) -> dict[str, Any]:
    """The options of a client of S3, with the endpoint and region by the usual chain of AWS."""
    fs = require_package("pyarrow.fs")
    options = options_for(store, fs.S3FileSystem)
    endpoint = next((value for name in AWS_ENDPOINTS if (value := os.environ.get(name))), None)
    if endpoint and "endpoint_override" not in options:
        options["endpoint_override"] = endpoint
    if "endpoint_override" in options:
        address = str(options["endpoint_override"])
        check_address(address if "://" in address else f"//{address}", "the endpoint")
    if "region" not in options and not any(os.environ.get(name) for name in AWS_REGIONS):
        if "endpoint_override" not in options:
            options["region"] = fs.resolve_s3_region(store.authority)
    elif "region" not in options:
        options["region"] = next(value for name in AWS_REGIONS if (value := os.environ.get(name)))
    return options


def connect_s3(store: Store) -> Any:
    """PyArrow's client of S3 and of what speaks like it; credentials by the usual chain of AWS."""
    fs = require_package("pyarrow.fs")
    retries = {"retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=READ_ATTEMPTS)}
    return fs.S3FileSystem(**retries | amazon_options(store))


def connect_gcs(store: Store) -> Any:
    """PyArrow's client of Google Cloud Storage; times may be numbers of seconds, a token's end is not needed."""
    client = require_package("pyarrow.fs").GcsFileSystem
    options = options_for(store, client)
    limit = options.get("retry_time_limit", TRIES)
    options["retry_time_limit"] = limit if isinstance(limit, timedelta) else timedelta(seconds=limit)
    if "access_token" in options:
        options.setdefault("credential_token_expiration", datetime.now(UTC) + TOKEN_LIVES)
    return client(**options)


def connect_azure(store: Store) -> Any:
    """PyArrow's client of Azure; the account stands in the URL (container@account.…), the options or a variable."""
    client = require_package("pyarrow.fs").AzureFileSystem
    options = options_for(store, client)
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
    return client(**options)


def connect_hadoop(store: Store) -> Any:
    """PyArrow's client of HDFS, which needs Hadoop's libhdfs."""
    client = require_package("pyarrow.fs").HadoopFileSystem
    options = options_for(store, client)
    host, _, port = store.authority.partition(":")
    try:
        return client(host or "default", int(port or 0), **options)
    except OSError as error:
        if not re.search("libhdfs|libjvm", str(error)):
            raise
        raise SourceError(
            f"{store.scheme}:// needs Java and Hadoop's libhdfs on this machine (JAVA_HOME, HADOOP_HOME, CLASSPATH as "
            f"`hadoop classpath --glob` tells it), or read webhdfs://{host or 'namenode'}:9870/… ({one_line(error)})"
        ) from error


def connect_fsspec(store: Store) -> Any:
    """A filesystem of fsspec as one of PyArrow's."""
    fsspec = require_package("fsspec")
    if store.scheme not in fsspec.available_protocols():
        raise SourceError(unknown_scheme(store.scheme))
    try:
        kind = fsspec.get_filesystem_class(store.scheme)
        found = kind._get_kwargs_from_urls(f"{store.scheme}://{store.authority}")  # such as the host
        options = found | options_for(store, kind)
        files = fsspec.filesystem(store.scheme, skip_instance_cache=True, **options)
    except ImportError as error:
        raise SourceError(
            f"{store.scheme}:// URLs need a package more: {error} (evenkeel[stores] brings https)"
        ) from error
    fs = require_package("pyarrow.fs")
    return fs.PyFileSystem(fs.FSSpecHandler(files))


CONNECTORS: dict[str, Callable[[Store], Any]] = {
    **dict.fromkeys(AMAZON, connect_s3),
    **dict.fromkeys(GOOGLE, connect_gcs),
    **dict.fromkeys(AZURE, connect_azure),
    **dict.fromkeys(HADOOP, connect_hadoop),
}
