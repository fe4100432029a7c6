"""What the record of a finished fragment holds, as a type that msgspec compares it with; imported by resumed fits."""

from typing import Annotated

from msgspec import Meta, Struct

Unsigned = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Record(Struct, forbid_unknown_fields=True):
    """The line before the bytes of a fragment's state."""

    key: str
    signature: list[int]
    size: Unsigned
    checksum: Unsigned
    skipped: list[tuple[str, str]]
    version: str = ""
