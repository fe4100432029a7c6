"""What a run is told to do: frozen in its directory when it starts, compared when it resumes."""

from __future__ import annotations

import datetime
import json
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

import evenkeel
from evenkeel._directories import check_new
from evenkeel._errors import StudyError
from evenkeel.lab.runner._records import write_json

FORMAT = 1  # of the frozen file and of summary.json, where a run has no other


def stamp() -> dict[str, Any]:
    """Return the versions that a run begins with, and the time."""
    return {
        "evenkeel": evenkeel.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


class Versioned(msgspec.Struct):
    """What the frozen file of every format holds."""

    format: int


@dataclass(frozen=True)
class FrozenFile:
    """The file that marks a directory as a run's own and keeps what was asked for.

    Attributes:
        name: of the file.
        owner: whose it is, in words: a study.
        run: what the directory then holds, in words.
        options: the entry with the options; a resumed run must have the same.
        fixed: the other entries that must be the same.
        content: what it holds, as a type that msgspec compares it with; other content means it is not the owner's.
        differences: yields, in words, what else differs between what was frozen and what is asked.
        own: what else the run writes into the directory, which goes when the run is replaced.
        format: the number of the file's form; another one is refused.
        defaults: what options are that earlier runs did not know.
    """

    name: str
    owner: str
    run: str
    options: str
    fixed: tuple[str, ...]
    content: Any = dict[str, Any]
    differences: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[str]] = lambda frozen, asked: ()
    own: tuple[str, ...] = ()
    format: int = FORMAT
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, directory: Path) -> dict[str, Any] | None:
        """Return what the run in a directory froze, or None if there is none.

        Raises:
            StudyError: the file is damaged, foreign or of another format.
        """
        path = directory / self.name
        try:
            frozen = json.loads(path.read_text())
            number = msgspec.convert(frozen, Versioned).format
            if number != self.format:
                raise StudyError(f"{path} has format {number}, but this version reads {self.format}; use another --out")
            msgspec.convert(frozen, self.content)
            msgspec.convert(frozen.get(self.options), dict[str, Any])
            return dict(frozen)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StudyError(f"cannot read {path}: {error.strerror}") from error
        except (RecursionError, ValueError) as error:
            raise StudyError(f"{path} is not {self.owner}'s; choose another --out") from error

    def freeze(self, directory: Path, asked: dict[str, Any], *, resume: bool, force: bool = False) -> dict[str, Any]:
        """Write what is asked of a new run, or compare it with what a resumed one froze; return what is frozen.

        Args:
            directory: of the run.
            asked: what the run is told to do.
            resume: go on with the run that is there.
            force: remove the run that is there.

        Raises:
            StudyError: the directory holds a run that is not to be resumed, or one that was asked for something else.
        """
        frozen = self.read(directory)
        if frozen is not None and force:
            self.remove(directory)
            frozen = None
        if frozen is None:
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / self.name, asked)
            return asked
        check_new(directory, self.name, self.run, resume=resume, force=force)
        if differences := list(self.compare(frozen, asked)):
            raise StudyError(
                f"cannot resume {directory}: {'; '.join(differences)}; resume with what it began with, or choose "
                "another --out"
            )
        return frozen

    def remove(self, directory: Path) -> None:
        """Remove the run in a directory, and nothing else; the file that marks it goes last."""
        for name in (*self.own, self.name):
            path = directory / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def compare(self, frozen: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
        """Yield what differs between a run and what is asked of it, in words."""
        before = {**self.defaults, **frozen[self.options]}
        pairs = [(name, before.get(name), value) for name, value in asked[self.options].items()]
        pairs += [(name, frozen.get(name), asked[name]) for name in self.fixed]
        yield from (f"{name} was {as_typed(was)}, now {as_typed(now)}" for name, was, now in pairs if was != now)
        yield from self.differences(frozen, asked)


def as_typed(value: Any) -> str:
    """Return an option's value as a user would type it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
