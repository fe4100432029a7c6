"""What tells a URL from a path, and the options of a store as they are typed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from evenkeel._errors import InvalidArgumentError

URL = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
HTTP = ("http", "https")
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


def parse_storage_options(typed: Iterable[str]) -> dict[str, object]:
    """The options of a store's client, typed as name=value: true and false are truth values, times are numbers.

    Raises:
        InvalidArgumentError: one has no name or no value.

    Example:
        >>> parse_storage_options(["region=eu-west-1", "anonymous=true", "connect_timeout=5"])
        {'region': 'eu-west-1', 'anonymous': True, 'connect_timeout': 5.0}
    """
    options: dict[str, object] = {}
    for text in typed:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InvalidArgumentError("--storage-option: expected name=value, such as region=eu-west-1")
        options[name] = WORDS.get(value, value)
        if name.endswith("timeout"):
            try:
                options[name] = float(value)
            except ValueError as error:
                raise InvalidArgumentError(f"--storage-option: {name} needs a number of seconds") from error
    return options
