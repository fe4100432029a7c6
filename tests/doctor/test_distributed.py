"""A training of two processes under watch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import evenkeel

WORKER = Path(__file__).with_name("distributed_worker.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.alone
def test_ddp_and_fsdp_are_watched(tmp_path):
    commands = [[sys.executable, "-W", "ignore", WORKER, str(rank), "2", tmp_path / "meeting"] for rank in range(2)]
    options = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **options) for command in commands]
    for process in processes:
        said, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        ddp, fsdp = said.splitlines()
        assert ddp == "ddp 0 4 ['module.1']"
        assert fsdp == "fsdp 0 4 ['1']"
