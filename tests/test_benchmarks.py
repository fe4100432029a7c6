"""The benchmark runner as a user calls it: what it measures, prints and writes."""

import dataclasses
import json
import math
import random
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


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import benchmarks.sweep as program

    return program


def test_a_sweep_measures_what_its_seed_draws(sweep, threads, tmp_path, monkeypatch, capsys):
    found = []
    for name in ("a", "b"):
        monkeypatch.setattr(sweep, "LARGEST", 4096)
        arguments = ["--cases", 4, "--minutes", 0.001, "--seed", 7, "--threads", 1, "--out", tmp_path / name]
        monkeypatch.setattr(sys, "argv", ["sweep", *map(str, arguments)])
        sweep.main()
        found.append(json.loads((tmp_path / name).read_text()))
    assert [case["name"] for case in found[0]["cases"]] == [case["name"] for case in found[1]["cases"]]
    assert len({case["name"] for case in found[0]["cases"]}) == 4
    assert all(case["ours"] > 0 and case["theirs"] > 0 for run in found for case in run["cases"])
    assert "seed 7" in capsys.readouterr().out


def test_drawn_cases_are_calls_that_both_take_with_one_result(sweep):
    draw = random.Random(0)
    kinds = set()
    for _ in range(300):
        case = sweep.draw_case(draw)
        assert math.prod(case.shape) <= max(sweep.LARGEST, max(sweep.RARE_WIDTHS))
        if math.prod(case.shape) > 100_000 or case.dtype != "float32":
            continue
        kinds.add((case.norm, case.mode))
        torch.manual_seed(1)
        x = sweep.laid_out(case)
        assert x.shape.numel() == math.prod(case.shape)
        width = case.shape[-1] if case.norm in ("layer", "rms") else case.shape[1]
        count = 0 if not case.affine else 1 if case.norm == "rms" else 2
        parameters = [torch.rand(width)] * count
        ours, theirs = (norm(x, *parameters) for norm in sweep.norm_calls(case))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert len(kinds) == 11


def test_a_short_call_may_take_a_little_more(sweep):
    case = sweep.draw_case(random.Random(0))

    def is_slower(mode, ours, theirs):
        drawn = dataclasses.replace(case, mode=mode)
        return sweep.Measured(case=drawn, ours=ours, theirs=theirs, ratio=ours / theirs).is_slower(1.10)

    assert not is_slower("inference", 14e-6, 5e-6)
    assert is_slower("inference", 16e-6, 5e-6)
    assert not is_slower("forward + backward", 60e-6, 40e-6)
    assert is_slower("inference", 113e-6, 101e-6)
