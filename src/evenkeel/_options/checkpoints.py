"""The files of a checkpoint, which are found before torch is imported to read them."""

from __future__ import annotations

from pathlib import Path

from evenkeel._errors import StateError

ENDING = ".safetensors"
CONVERT = (
    "load a pickled one with weights_only=True and write it: "
    "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
)


def checkpoint_files(path: Path) -> list[Path]:
    """Return the safetensors files that a path names.

    Raises:
        StateError: it names none.
    """
    if path.is_dir():
        files = sorted(path.glob(f"*{ENDING}"))
        if not files:
            raise StateError(f"checkpoint: the directory {path} holds no {ENDING} files; {CONVERT}")
        return files
    if not path.is_file():
        raise StateError(f"checkpoint: there is no file or directory {path}; name a {ENDING} file")
    if path.suffix != ENDING:
        raise StateError(
            f"checkpoint: {path} is no {ENDING} file, and files that can run code are not opened; {CONVERT}"
        )
    return [path]
