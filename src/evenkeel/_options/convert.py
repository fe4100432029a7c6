"""What is chosen of a conversion by name: where it may round, and what is done."""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["exact", "accurate"]
MODES: tuple[str, ...] = get_args(Mode)
ACTIONS = ("swap",)
