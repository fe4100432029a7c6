"""Every SIMD level that this processor has gives the same bits."""

import importlib
import json
import os
import platform
import subprocess
import sys

import torch

LEVELS = ("avx2", "avx512") if platform.machine().lower() in ("x86_64", "amd64") else ("baseline",)
MODULES = ("add_rows", "channels", "channels_extras", "channels_extremes", "columns", "images", "rows")
PROGRAM = """
import json, evenkeel, torch, kernels.test_simd_levels as t
print(json.dumps([torch.ops.evenkeel.simd_level(), t.digests()]))
"""


def digests():
    """What `digests` of each module of tests returns: the name of a call -> the digest of its results."""
    modules = {name: importlib.import_module(f"kernels.test_{name}") for name in MODULES}
    return {f"{name}: {call}": found for name, module in modules.items() for call, found in module.digests().items()}


def test_every_simd_level_gives_the_same_bits():
    """The highest level is that of this process; each of the others has a process of its own."""
    expected = digests()
    path = os.pathsep.join(filter(None, sys.path))
    for level in LEVELS[: LEVELS.index(torch.ops.evenkeel.simd_level())]:
        environment = os.environ | {"EVENKEEL_SIMD": level, "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ran, found = json.loads(done.stdout)
        assert ran == level
        assert len(found) == len(expected) > 500
        assert [call for call in expected if found[call] != expected[call]] == []
