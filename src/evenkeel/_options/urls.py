"""What tells a URL from a path, and the options of a store as they are typed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from evenkeel._errors import InvalidArgumentError

URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
HTTP = ("http", "https")
# The stores that PyArrow has clients of.
AMAZON, GOOGLE, AZURE, HADOOP = ("s3", "s3a"), ("gs", "gcs"), ("abfs", "abfss", "az"), ("hdfs", "viewfs")
# The package with the client of a store, by the scheme of its URLs; any other scheme is fsspec's.
CLIENTS = {**dict.fromkeys((*AMAZON, *GOOGLE, *AZURE, *HADOOP), "pyarrow"), "duckdb": "duckdb"}
WITHOUT_HOST = (*HADOOP, "duckdb")  # or with one
WORDS = {"true": True, "false": False}


def scheme_of(source: object) -> str:
    """The scheme of text that is a URL, in lower case; nothing for any other, and for a ``file://`` of this machine.

    Example:
        >>> scheme_of("s3://bucket/key"), scheme_of("C:/data"), scheme_of("file:///data")
        ('s3', '', '')
    """
    match = URL.match(source) if isinstance(source, str) else None
    scheme = match[1].lower() if match else ""
    return "" if scheme == "file" else scheme


def check_url(url: str) -> None:
    """Raise `InvalidArgumentError` for what is no URL, or names no bucket or host, or holds a password."""
    scheme = scheme_of(url)
    try:
        authority = urlsplit(url.partition("::")[0]).netloc
    except ValueError as error:
        raise InvalidArgumentError(f"{url} is no URL: {error}") from error
    user, at, _ = authority.rpartition("@")
    if at and (":" in user or scheme not in AZURE):
        raise InvalidArgumentError(
            f"{scheme}:// URLs must hold no user and no password; give those in storage_options= (--storage-option), "
            "or in the variables that the store's own tools read"
        )
    if not authority and scheme in (*CLIENTS, *HTTP) and scheme not in WITHOUT_HOST:
        kind = "host" if scheme in HTTP else "bucket"
        raise InvalidArgumentError(f"{url} names no {kind}; a URL is {scheme}://{kind}/path")


def unknown_scheme(scheme: str) -> str:
    """Say that nothing is known of such URLs."""
    return (
        f"no filesystem is known for {scheme}:// URLs; there are {', '.join([*CLIENTS, *HTTP])}, and those of fsspec's "
        "packages that are installed"
    )


def parse_storage_options(typed: Iterable[str] | None, *places: str | None) -> dict[str, object]:
    """The options of a store's client, typed as name=value: true and false are truth values, times are numbers.

    Without places they are for one that stands in a file.

    Raises:
        InvalidArgumentError: one has no name or no value, or none of the places is a URL.

    Example:
        >>> parse_storage_options(["region=eu-west-1", "anonymous=true", "connect_timeout=5"], "s3://bucket/key")
        {'region': 'eu-west-1', 'anonymous': True, 'connect_timeout': 5.0}
    """
    if typed and places and not any(map(scheme_of, places)):
        raise InvalidArgumentError("--storage-option is for URLs such as s3://bucket/key, but none is given")
    options: dict[str, object] = {}
    for text in typed or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InvalidArgumentError("--storage-option: expected name=value, such as region=eu-west-1")
        options[name] = WORDS.get(value, value)
        if name.endswith(("timeout", "time_limit")):
            try:
                options[name] = float(value)
            except ValueError as error:
                raise InvalidArgumentError(f"--storage-option: {name} needs a number of seconds") from error
    return options
