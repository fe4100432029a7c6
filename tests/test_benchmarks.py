"""The benchmark runner as a user calls it: what it measures, prints and writes."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def runner(monkeypatch):
    """The program with one suite of two small cases."""
    monkeypatch.syspath_prepend(ROOT)
    import benchmarks.__main__ as program
    from benchmarks.timing import OURS, Case

    calls = {"copy": lambda: torch.ones(10).clone(), OURS: lambda: torch.ones(10).sum()}
    monkeypatch.setattr(program, "SUITES", {"small": lambda: (Case(name=name, calls=calls) for name in ("a", "b"))})
    return program


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def run(program, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
    program.main()


def test_a_run_is_written_with_the_machine_as_it_was_found(runner, threads, tmp_path, monkeypatch, capsys):
    out = tmp_path / "results.json"
    run(runner, monkeypatch, "--case", "b", "--threads", "2,1", "--repeats", 1, "--out", out)
    found = json.loads(out.read_text())
    assert found["machine"]["threads"].startswith(f"{threads} used by torch")
    assert [(result["suite"], result["name"], result["threads"]) for result in found["results"]] == [
        ("small", "b", 2),
        ("small", "b", 1),
    ]
    assert all(seconds > 0 for result in found["results"] for seconds in result["seconds"].values())
    printed = capsys.readouterr().out
    assert "small, 2 threads" in printed
    assert "small, 1 thread\n" in printed
    assert printed.count("\nb: ") == 2


def test_an_unknown_suite_is_refused_before_anything_is_measured(runner, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(runner, monkeypatch, "lines")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no suite is called lines; there are small" in shown.err
