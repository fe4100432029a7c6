"""What tells a URL from a path, and the options of a store as they are typed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from evenkeel._errors import InvalidArgumentError

URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
CHAIN = re.compile(rf"::{URL.pattern}", re.IGNORECASE)  # as fsspec writes one filesystem within another
HTTP = ("http", "https")
# The stores that PyArrow has clients of.
AMAZON, GOOGLE, AZURE, HADOOP = ("s3", "s3a"), ("gs", "gcs"), ("abfs", "abfss", "az"), ("hdfs", "viewfs")
# The package with the client of a store, by the scheme of its URLs; any other scheme is fsspec's.
CLIENTS = {**dict.fromkeys((*AMAZON, *GOOGLE, *AZURE, *HADOOP), "pyarrow"), "duckdb": "duckdb"}
EMPTY_NAME = (
    "a name between two slashes is empty; PyArrow reads no such key: remove a slash, or copy the object elsewhere"
)
QUERY = "duckdb"  # the scheme of URLs that name a query, not a store
WITHOUT_HOST = (*HADOOP, QUERY)  # or with one
TRUTHS = {"true": True, "false": False}
WORDS = {**TRUTHS, "yes": True, "no": False, "1": True, "0": False}


def scheme_of(source: object) -> str:
    """The scheme of text that is a URL, in lower case; nothing for any other, and for a ``file://`` of this machine.

    Example:
        >>> scheme_of("s3://bucket/key"), scheme_of("C:/data"), scheme_of("file:///data")
        ('s3', '', '')
    """
    match = URL.match(source) if isinstance(source, str) else None
    scheme = match[1].lower() if match else ""
    return "" if scheme == "file" else scheme


def without_scheme(text: str) -> str:
    """The path of a ``file://`` URL; any other text as it is."""
    return unquote(urlsplit(text).path) if URL.match(text) and not scheme_of(text) else text


def in_store(source: object) -> bool:
    """Whether text is a URL whose store takes options, unlike that of a query."""
    return scheme_of(source) not in ("", QUERY)


def check_url(text: str) -> None:
    """Raise `InvalidArgumentError` for a URL that cannot be read, or holds a password; paths pass."""
    if CHAIN.search(text):
        chain = text.partition("://")[0]
        raise InvalidArgumentError(f"{chain}://… chains filesystems; give the URL of the file itself, unpacked")
    if not (match := URL.match(text)):
        return
    scheme, plain = match[1].lower(), text.partition("::")[0]
    shown = plain.partition("?")[0] if scheme in HTTP else plain  # what follows may be a signature
    authority = re.split(r"[/?#]", shown[match.end() :], maxsplit=1)[0]
    path = shown[match.end() + len(authority) :]
    user, at, _ = authority.rpartition("@")
    if at and (":" in user or scheme not in AZURE):
        raise InvalidArgumentError(
            f"{scheme}:// URLs must hold no user and no password; give those in storage_options= (--storage-option), "
            "or in the variables that the store's own tools read"
        )
    check_address(shown.partition("?")[0])
    if not authority and scheme in (*CLIENTS, *HTTP) and scheme not in WITHOUT_HOST:
        kind = "host" if scheme in HTTP else "bucket"
        raise InvalidArgumentError(f"{shown} names no {kind}; a URL is {scheme}://{kind}/path")
    if scheme == "file" and authority not in ("", "localhost"):
        raise InvalidArgumentError(f"{shown} names the machine {authority!r}; a file of this one is file:///path")
    if scheme in HTTP and "*" in path:
        raise InvalidArgumentError(
            f"{shown}: patterns do not work with web addresses, whose files cannot be listed; name each file"
        )
    if scheme in (*AMAZON, *GOOGLE, *AZURE) and "//" in path.rstrip("/"):
        raise InvalidArgumentError(f"{shown}: {EMPTY_NAME}")


def check_address(url: str, name: str = "") -> None:
    """Raise `InvalidArgumentError` where a URL, or the option of this name, has a host or port that cannot be."""
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        raise InvalidArgumentError(f"{name or url} is no URL: {error}") from error


def truth_of(name: str, value: object) -> object:
    """The truth value that a word stands for; a value that is no text stays what it is.

    Raises:
        InvalidArgumentError: the word is none of these.

    Example:
        >>> truth_of("anonymous", "No"), truth_of("anonymous", True)
        (False, True)
    """
    if not isinstance(value, str):
        return value
    if (word := value.lower()) not in WORDS:
        raise InvalidArgumentError(f"storage_options: {name} must be true or false (or yes, no, 1, 0)")
    return WORDS[word]


def number_of(name: str, value: object) -> object:
    """The whole number that text says; a value that is no text stays what it is.

    Raises:
        InvalidArgumentError: the text is none.

    Example:
        >>> number_of("load_frequency", "600")
        600
    """
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError as error:
        raise InvalidArgumentError(f"storage_options: {name} must be a whole number") from error


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
        InvalidArgumentError: one has no name or no value or is given twice, or none of the places is in a store.

    Example:
        >>> parse_storage_options(["region=eu-west-1", "anonymous=True", "connect_timeout=5"], "s3://bucket/key")
        {'region': 'eu-west-1', 'anonymous': True, 'connect_timeout': 5.0}
    """
    if typed and places and not any(map(in_store, places)):
        raise InvalidArgumentError("--storage-option is for URLs such as s3://bucket/key, but none is given")
    options: dict[str, object] = {}
    for text in typed or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InvalidArgumentError("--storage-option: expected name=value, such as region=eu-west-1")
        if name in options:
            raise InvalidArgumentError(f"--storage-option: {name} is given twice; give one value")
        options[name] = TRUTHS.get(value.lower(), value)
        if name.endswith(("timeout", "time_limit")):
            try:
                options[name] = float(value)
            except ValueError as error:
                raise InvalidArgumentError(f"--storage-option: {name} needs a number of seconds") from error
    return options
