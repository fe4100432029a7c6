"""The digests of a test module's results on every SIMD level that this processor has."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

LEVELS = ("avx2", "avx512") if platform.machine().lower() in ("x86_64", "amd64") else ("baseline",)


def available_levels():
    """The levels from the lowest that is built to the processor's own."""
    return LEVELS[: LEVELS.index(torch.ops.evenkeel.simd_level()) + 1]


def digests_by_level(path, name="digests"):
    """What a function of a test module returns in a process of each level, by level."""
    file = Path(path)
    program = (
        f"import json, sys; sys.path[:0] = {[str(file.parent), str(file.parents[1])]!r}; import {file.stem} as t\n"
        f"print(json.dumps([t.torch.ops.evenkeel.simd_level(), t.{name}()]))"
    )
    command, runs = [sys.executable, "-c", program], {}
    for level in available_levels():
        environment = {**os.environ, "EVENKEEL_SIMD": level}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        ran, runs[level] = json.loads(done.stdout)
        assert ran == level
    return list(runs.values())
