"""The digests of a test module's results on every SIMD level that this processor has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

LEVELS = ("baseline", "avx2", "avx512")


def digests_by_level(path):
    """What ``digests()`` of a test module returns in a process of each level, by level."""
    file = Path(path)
    program = (
        f"import json, sys; sys.path[:0] = {[str(file.parent), str(file.parents[1])]!r}; import {file.stem} as t\n"
        "print(json.dumps([t.torch.ops.evenkeel.simd_level(), t.digests()]))"
    )
    command, runs = [sys.executable, "-c", program], {}
    for level in LEVELS[: LEVELS.index(torch.ops.evenkeel.simd_level()) + 1]:
        environment = {**os.environ, "EVENKEEL_SIMD": level}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        ran, runs[level] = json.loads(done.stdout)
        assert ran == level
    return runs
