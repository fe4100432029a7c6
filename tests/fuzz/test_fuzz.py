"""A short run of every fuzzer, the files that once led to a fault, and what each fuzzer finds where one is planted."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import driver
from hypothesis import find, settings

from evenkeel import functional as F

CASES = {
    "values": 120,
    "channels": 60,
    "modules": 50,
    "arguments": 200,
    "tables": 50,
    "files": 60,
    "commands": 30,
}
CORPUS = sorted(path for path in driver.CORPUS.glob("*-*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", driver.FUZZERS)
def test_a_short_run_finds_nothing(name, tmp_path):
    command = [
        sys.executable,
        "-m",
        "fuzz.driver",
        name,
        "--cases",
        str(CASES[name]),
        "--seed",
        "0",
        "--corpus",
        tmp_path,
    ]
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("path", CORPUS, ids=[path.name for path in CORPUS])
def test_files_that_led_to_a_fault_no_longer_do(path):
    from fuzz.files import check_content

    check_content(path.name.partition("-")[2], path.read_bytes())


def twice_the_eps(monkeypatch):
    right = F.rms_norm
    monkeypatch.setattr(F, "rms_norm", lambda *args, eps, **more: right(*args, eps=2 * eps, **more))


def running_statistics_stay(monkeypatch):
    place = "evenkeel.functional._batch_norm"
    right = importlib.import_module(place).direct_channels

    def on_copies(spec, x, weight, bias, running, *more):
        return right(spec, x, weight, bias, tuple(None if t is None else t.clone() for t in running), *more)

    monkeypatch.setattr(f"{place}.direct_channels", on_copies)
    monkeypatch.setattr("evenkeel.functional._channel_kernels.move_running", lambda *arguments: None)


def numbers_unchecked(monkeypatch):
    monkeypatch.setattr("evenkeel.functional._specs.as_number", lambda name, label, value: float(value))


def a_digit_of_the_mean_lost(monkeypatch):
    right = F.column_moments

    def wrong(*arguments, **options):
        found = right(*arguments, **options)
        return found._replace(mean=found.mean * (1 + 1e-13))

    monkeypatch.setattr(F, "column_moments", wrong)


def errors_of_packages_escape(monkeypatch):
    monkeypatch.setattr("evenkeel.data._packages.BROKEN", (OSError,))


def errors_of_two_lines(monkeypatch):
    module = sys.modules["evenkeel.cli.app"]
    right = module.print_error
    monkeypatch.setattr(module, "print_error", lambda message: [right(message) for _ in range(2)])


def batches_uncounted(monkeypatch):
    monkeypatch.setattr("evenkeel.nn.BatchNorm1d.forward", lambda self, x: x)


PLANTED = {
    "modules": ("modules", batches_uncounted),
    "values": ("rows", twice_the_eps),
    "channels": ("channels", running_statistics_stay),
    "arguments": ("arguments", numbers_unchecked),
    "tables": ("columns", a_digit_of_the_mean_lost),
    "files": ("data", errors_of_packages_escape),
    "commands": ("lines", errors_of_two_lines),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", driver.FUZZERS)
@pytest.mark.filterwarnings("ignore")
def test_each_fuzzer_finds_a_planted_fault(name, monkeypatch):
    label, plant = PLANTED[name]
    strategy, check = importlib.import_module(f"fuzz.{name}").PROPERTIES[label]
    plant(monkeypatch)

    def fails(case):
        try:
            check(case)
        except Exception:
            return True
        return False

    find(strategy, fails, settings=settings(max_examples=2000, database=None, derandomize=True, deadline=None))


def test_every_fuzzer_has_a_short_run_and_a_planted_fault():
    folder = Path(driver.__file__).parent
    fuzzers = {path.stem for path in folder.glob("*.py") if "\nPROPERTIES = {" in path.read_text()} - {"planted"}
    assert fuzzers == set(driver.FUZZERS) == set(CASES) == set(PLANTED)
