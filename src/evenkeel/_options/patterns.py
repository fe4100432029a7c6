"""Patterns of paths as a shell has them, the same on this machine and in stores."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

WILDCARD = re.compile(r"[*?]|\[[^/]+\]")
HIDDEN = (".", "_")


def is_pattern(path: str) -> bool:
    """Whether a path has a wildcard: ``*``, ``?`` or signs in brackets.

    Example:
        >>> is_pattern("logs/part-[01].csv"), is_pattern("logs/[old.csv")
        (True, False)
    """
    return WILDCARD.search(path) is not None


def fixed_folder(pattern: str) -> str:
    """The directories before the first one with a wildcard.

    Example:
        >>> fixed_folder("data/year=2024/*/x?.csv"), fixed_folder("*.csv")
        ('data/year=2024', '')
    """
    match = WILDCARD.search(pattern)
    return pattern[: match.start() if match else None].rpartition("/")[0]


def matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the names of a path are those of a pattern: ``**`` stands for any folders, at the end with their files.

    A wildcard stands for no name that begins with ``.`` or ``_``.

    Example:
        >>> matches(["**", "x[12].csv"], ["a", "b", "x1.csv"]), matches(["**"], ["a", "_SUCCESS"])
        (True, False)
    """
    if not parts:
        return not names
    if parts[0] == "**" and matches(parts[1:], names):
        return True
    if not names or (names[0].startswith(HIDDEN) and names[0][0] != parts[0][:1]):
        return False
    if parts[0] == "**":
        return matches(parts, names[1:])
    return fnmatchcase(names[0], parts[0]) and matches(parts[1:], names[1:])


def matching_paths(pattern: str) -> Iterator[str]:
    """Yield the files of this machine that a pattern stands for."""
    start = len(fixed_folder(pattern))
    parts = pattern[start:].lstrip("/").split("/")
    for name in glob.iglob(pattern, recursive=True):
        if matches(parts, name[start:].lstrip("/").split("/")) and os.path.isfile(name):
            yield name
