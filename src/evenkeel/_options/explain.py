"""The norms that can be explained, and the other names that `evenkeel explain` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Read by Python and by the page's JavaScript; see evenkeel/explain/_words.py.
TABLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).parents[1].joinpath("explain", "assets", "explain.json").read_text(encoding="utf-8")
)
NORM_KEYS = tuple(TABLES["norms"])
EPS_MODES = tuple(TABLES["choices"]["eps_mode"])
DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16")
FORMATS = ("text", "markdown", "json")
