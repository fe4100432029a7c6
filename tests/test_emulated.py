"""The kernels on another processor, in an emulator."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.alone
def test_an_arm_processor_computes_the_same_bits() -> None:
    run = subprocess.run([sys.executable, ROOT / "tests" / "emulated" / "run.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1].endswith(": 0 results differ in a bit")
