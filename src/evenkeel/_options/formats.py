"""The formats of files of data, by the endings of their names: those that are read, and those that are written too."""

from __future__ import annotations

ENDINGS: dict[str, tuple[str, ...]] = {
    "Parquet": (".parquet", ".pq"),
    "CSV": (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.zst"),
    "Arrow": (".feather", ".arrow", ".ipc", ".arrows"),
    "NumPy": (".npy", ".npz"),
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"),
    "Lance": (".lance",),
}
DIRECTORIES = ("Lance",)  # formats of which a table is a directory
WRITTEN: dict[str, tuple[str, ...]] = {
    "Parquet": (".parquet", ".pq"),
    "CSV": (".csv",),
    "Arrow": (".feather", ".arrow", ".ipc"),
    "NumPy": (".npy",),
}
PACKAGES = {
    "Parquet": "pyarrow",
    "CSV": "pyarrow",
    "Arrow": "pyarrow",
    "image": "PIL",
    "Lance": "lance",
}  # that read and write them
WRITTEN_ENDINGS = tuple(ending for endings in WRITTEN.values() for ending in endings)


def format_name(name: str) -> str | None:
    """Return the format that a file's name ends in, or None.

    Example:
        >>> format_name("people.CSV.gz"), format_name("x.npz::rows"), format_name("notes.txt")
        ('CSV', 'NumPy', None)
    """
    plain = name.partition("::")[0].lower()
    return next((kind for kind, endings in ENDINGS.items() if plain.endswith(endings)), None)


def without_data(directory: object, files: int) -> str:
    """Say that none of a directory's files is of a known format."""
    reason = f"none of its {files} files ends in one of {known_endings()}" if files else "it is empty"
    return f"the directory {directory} holds no data: {reason}"


def known_endings() -> str:
    """Return the endings of all formats, as a message lists them."""
    return ", ".join(ending for endings in ENDINGS.values() for ending in endings)
