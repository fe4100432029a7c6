"""What `benchmarks.gpu` does around the GPU: it goes on where it ended, keeps errors, and decides on "auto"."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from evenkeel.kernels import _triton

RECORD = Path(__file__).parents[2] / "docs" / "measurements" / "gpu.json"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the command on a machine that seems to have a GPU; the parts and cases that it has begun, and its status."""
    from benchmarks import gpu, gpu_times

    monkeypatch.setattr(gpu.evenkeel, "kernels_available", lambda: {"triton": "available: rows"})
    monkeypatch.setattr(gpu, "collect_info", lambda: {"machine": "one"})
    cases = [gpu_times.Case("layer_norm", (4, 8), torch.float32), gpu_times.Case("training step")]
    monkeypatch.setattr(gpu_times, "cases", lambda: cases)
    out = tmp_path / "gpu.json"

    def command(*options, wrong=()):
        begun = []

        def part(name):
            begun.append(name)
            return list(wrong)

        def time_case(case):
            begun.append(str(case))
            shape = {"shape": case.shape, "dtype": str(case.dtype)} if case.shape else {}
            return {"norm": case.norm, "left out": "takes 9 GiB of 8"} | shape

        monkeypatch.setattr(gpu, "parts", lambda quick: {"rows": lambda: part("rows")})
        monkeypatch.setattr(gpu_times, "time_case", time_case)
        monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(out), *options])
        return begun, gpu.main()

    return SimpleNamespace(command=command, out=out)


def test_it_goes_on_where_it_ended(run):
    assert run.command("--bench", "--only", "float32") == (["layer_norm 4x8 float32"], 0)
    assert run.command("--check", "--bench") == (["rows", "training step"], 0)
    assert run.command("--check", "--bench") == ([], 0)
    found = json.loads(run.out.read_text())
    assert found["checked"] == {"rows": []}
    assert [record["norm"] for record in found["results"]] == ["layer_norm", "training step"]


def test_it_ends_in_its_time_and_says_what_is_left(run, capsys):
    assert run.command("--check", "--bench", "--seconds", "-1") == ([], 3)
    assert capsys.readouterr().out == "3 parts are left: the same command goes on with them\n"


def test_it_checks_again_what_was_wrong_and_begins_anew_elsewhere(run, monkeypatch):
    from benchmarks import gpu

    assert run.command("--check", wrong=["R = 9"]) == (["rows"], 1)
    assert run.command("--check") == (["rows"], 0)
    monkeypatch.setattr(gpu, "collect_info", lambda: {"machine": "another"})
    assert run.command("--check") == (["rows"], 0)


def test_times_keep_what_a_contender_cannot_do(monkeypatch):
    from benchmarks import gpu_times

    def seconds(call):
        call()
        return 2.0

    monkeypatch.setattr(gpu_times, "on_device_seconds", seconds)
    monkeypatch.setattr(gpu_times, "eager_seconds", seconds)
    x, w, b = torch.ones(3, 8), torch.ones(8).requires_grad_(), torch.zeros(8).requires_grad_()
    _, whole, _ = gpu_times.row_contenders("layer_norm", w, b)
    found = gpu_times.times_of(whole, x, x, 1.0)
    assert (found["forward share"], found["backward share"], found["both"]) == (0.5, 0.75, 2.0)
    forward_only = gpu_times.Contender("peer", lambda x: x.detach() * 2)
    found = gpu_times.times_of(forward_only, x, x, 1.0)
    assert found["forward"] == 2.0
    assert "does not require grad" in found["error"]
    case = gpu_times.Case("layer_norm", (3, 8), torch.bfloat16)
    line = gpu_times.line_of(case, {"norm": "layer_norm", "copy": 1e-5, "peer": found})
    assert line.startswith("layer_norm 3x8 bfloat16: copy 10.0 us; peer 0.50 element 0 of tensors")


def test_every_case_has_a_name_of_its_own():
    from benchmarks import gpu_times

    cases = gpu_times.cases()
    assert len({str(case) for case in cases}) == len(cases)


def test_auto_takes_the_kernels_from_the_first_green_check_on():
    from benchmarks import gpu

    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    checked = record.get("checked", {})
    whole = checked.keys() >= gpu.parts().keys() - {"second GPU"}
    assert (whole and not any(checked.values())) == _triton.MEASURED
