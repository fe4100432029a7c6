"""The driver finds, minimises and survives; `fuzz.planted` holds the faults."""

import re
import signal
import subprocess
import sys

import pytest
from fuzz import driver


@pytest.fixture
def run(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))

    def call(*arguments):
        code = driver.main([*arguments, "--corpus", str(tmp_path / "corpus")])
        return code, capfd.readouterr().out

    return call


def test_faults_and_crashes_are_minimised_and_told_once_and_files_kept(run, tmp_path):
    code, told = run("planted", "--cases", "200", "--seed", "1")
    assert code == 1
    assert told.count("17 is too large") == 1
    assert "case: 17" in told
    (kept,) = (tmp_path / "corpus").iterdir()
    assert kept.name.endswith("-x.txt")
    assert kept.read_bytes() == b"seventeen"
    assert "the process ended with SIGSEGV" in told
    assert "case: 5" in told
    assert re.search(r"planted: \d+ cases, 2 found", told)


def test_a_seed_gives_the_same_cases(run):
    told = [re.sub(r"/\S+", "", run("planted", "--cases", "50", "--seed", "7")[1]) for _ in range(2)]
    assert told[0] == told[1]


def test_an_interrupted_run_ends_with_a_summary(tmp_path):
    command = [sys.executable, "-m", "fuzz.driver", "planted", "--minutes", "5", "--corpus", tmp_path]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    for line in process.stdout:
        if "cases (" in line:
            process.send_signal(signal.SIGINT)
            break
    told, _ = process.communicate(timeout=30)
    assert process.returncode in (0, 1)  # 1 where a fault was found before
    assert "interrupted" in told
    assert re.search(r"planted: [\d,]+ cases, \d+ found", told)
