"""Where a study or experiments may be written, which is told before torch is imported."""

from __future__ import annotations

from pathlib import Path

from evenkeel._errors import StudyError
from evenkeel._files import is_temporary

STUDY, EXPERIMENT = "study.json", "experiment.json"  # each marks a directory as its own
TEXT = ("corpus.json", "train.bin")  # of a text that was laid out


def is_laid_out(place: Path) -> bool:
    """Whether a directory holds a text that was laid out."""
    return place.is_dir() and all((place / name).is_file() for name in TEXT)


def check_study(out: Path) -> None:
    """Raise `StudyError` where a directory holds something else than a study, or the text of one that did not begin."""
    foreign = next((entry for entry in entries(out) if not (is_temporary(entry) or is_laid_out(entry))), None)
    if foreign is not None and not (out / STUDY).exists():
        raise StudyError(
            f"{out} is not empty and holds no study (it has {foreign.name}); choose a new directory with --out"
        )


def check_experiments(out: Path) -> None:
    """Raise `StudyError` where a directory holds something else than experiments."""
    for entry in entries(out):
        known = entry.name == "report.html" or is_temporary(entry) or (entry / EXPERIMENT).exists()
        if not known and not (entry.is_dir() and not any(entry.iterdir())):
            raise StudyError(
                f"{out} holds {entry.name}, which is not an experiment's; choose a new directory with --out"
            )


def entries(out: Path) -> list[Path]:
    """Return what stands in a directory, which need not exist."""
    try:
        return list(out.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StudyError(f"cannot create directory {out}: {error.strerror}; choose another --out") from error


def check_new(directory: Path, file: str, run: str, *, resume: bool, force: bool) -> None:
    """Raise `StudyError` where a directory holds a run, marked by a file, that is neither resumed nor replaced."""
    if (directory / file).exists() and not (resume or force):
        raise StudyError(
            f"{directory} already holds {run}; continue it with --resume, replace it with --force, or choose "
            "another --out"
        )
