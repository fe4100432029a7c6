"""What `benchmarks.gpu` does around the GPU: it goes on where it ended, keeps errors, and decides on "auto"."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from evenkeel.kernels import _triton

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "measurements" / "gpu.json"
CUDA_ERROR = "CUDA error: an illegal memory access was encountered"
GO_ON = "the same command goes on with what is left"


class Machine:
    """A machine that seems to have a GPU, and the command there.

    Attributes:
        act: what a part or case does, by its name: returns its outcome, or raises.
        begun: the parts and cases that the last run has begun.
        broken: whether the GPU does no more work.
        gpu: its name.
    """

    def __init__(self, monkeypatch, out):
        from benchmarks import gpu, gpu_record, gpu_times

        self.gpu_module, self.patch, self.out = gpu, monkeypatch, out
        self.act, self.begun, self.broken, self.gpu = {}, [], False, "one"
        self.cases = [gpu_times.Case("layer_norm", (4, 8), torch.float32), gpu_times.Case("training step")]
        monkeypatch.setattr(gpu.evenkeel, "kernels_available", lambda: {"triton": "available: rows"})
        monkeypatch.setattr(gpu, "collect_info", lambda: {"machine": {"accelerator": self.gpu}})
        monkeypatch.setattr(gpu_times, "cases", lambda: self.cases)
        monkeypatch.setattr(gpu_times, "time_case", lambda case: case.fields() | {"copy": self.do(str(case), 1e-5)})
        monkeypatch.setattr(gpu, "parts", lambda **options: {n: lambda n=n: self.do(n, []) for n in ("rows", "maps")})
        monkeypatch.setattr(gpu_record, "settle", self.settle)

    def do(self, name, outcome):
        self.begun.append(name)
        return self.act[name]() if name in self.act else outcome

    def settle(self):
        if self.broken:
            raise RuntimeError(
                "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`"
            )

    def break_gpu(self):
        self.broken = True
        return []

    def run(self, *options, out=True):
        """What has begun, and the status."""
        self.begun = []
        self.patch.setattr(sys, "argv", ["gpu", *(["--out", str(self.out)] if out else []), *options])
        try:
            return self.begun, self.gpu_module.main()
        except KeyboardInterrupt:  # would end all tests
            return self.begun, "a traceback"

    def found(self):
        return json.loads(self.out.read_text())


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path / "gpu.json")


def failing(error):
    def act():
        raise error

    return act


def test_it_goes_on_where_it_ended(machine):
    assert machine.run("--bench", "--only", "float32") == (["layer_norm 4x8 float32"], 0)
    assert machine.run("--check", "--bench") == (["rows", "maps", "training step"], 0)
    assert machine.run("--check", "--bench") == ([], 0)
    found = machine.found()
    assert found["checked"] == {"rows": [], "maps": []}
    assert [record["norm"] for record in found["results"].values()] == ["layer_norm", "training step"]
    assert found["broke"] == {}


def test_it_ends_in_its_time_and_says_what_is_left(machine, capsys):
    assert machine.run("--check", "--bench", "--seconds", "-1") == ([], 3)
    assert capsys.readouterr().out.endswith(f"\n4 parts are left: {GO_ON}\n")
    assert machine.run("--check", "--seconds", "-1", out=False) == ([], 3)
    assert capsys.readouterr().out.endswith("\n2 parts are left: with --out, the same command would go on\n")


def test_it_checks_again_what_was_wrong(machine, capsys):
    seen = []
    machine.act["rows"] = lambda: seen.append(torch.rand(())) or ["R = 9", "R = 8"]
    assert machine.run("--check") == (["rows", "maps"], 1)
    assert capsys.readouterr().out.endswith("1 of 2 failed:\n  rows: R = 9 (and 1 more)\n")
    machine.act["rows"] = lambda: [] if torch.rand(()) == seen[0] else ["other numbers"]
    assert machine.run("--check") == (["rows"], 0)
    assert "the check is green" in capsys.readouterr().out


def test_random_numbers_are_new_in_each_record_and_the_same_in_its_next_run(machine):
    drawn = []
    machine.act["rows"] = lambda: drawn.append(torch.randn(3).tolist()) or ["off"]
    machine.run("--check")
    machine.run("--check")
    machine.out.unlink()
    machine.run("--check")
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_part_that_raises_is_a_finding_and_the_others_go_on(machine, capsys):
    name = "layer_norm 4x8 float32"
    machine.act = {"rows": failing(ValueError("no such\nkernel")), name: failing(RuntimeError("compiler:\ndied\nat"))}
    assert machine.run("--check", "--bench") == (["rows", "maps", name, "training step"], 1)
    end = f"2 of 4 failed:\n  rows: ValueError: no such\n  {name}: RuntimeError: compiler: died\n"
    assert capsys.readouterr().out.endswith(end)
    found = machine.found()
    assert found["checked"]["rows"]["traceback"][-2:] == ["ValueError: no such", "kernel"]
    assert found["results"][name].keys() == {"norm", "shape", "dtype", "error", "traceback"}
    machine.act.clear()
    assert machine.run("--check", "--bench") == (["rows", name], 0)
    assert "error" not in machine.found()["results"][name]


def test_a_broken_gpu_ends_the_run_and_its_part_comes_last(machine, capsys):
    machine.act["rows"] = machine.break_gpu
    assert machine.run("--check", "--bench") == (["rows"], 1)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:3] == ["1 of 4 failed:", f"  rows: RuntimeError: {CUDA_ERROR}"]
    assert shown[3] == f"rows broke the GPU for this process, so nothing else can run in it: {GO_ON}, rows last"
    assert machine.found()["checked"].keys() == {"rows"}
    assert machine.found()["results"] == {}
    machine.broken = False
    everything = ["maps", "layer_norm 4x8 float32", "training step", "rows"]
    assert machine.run("--check", "--bench") == (everything, 1)
    machine.broken = False
    machine.act.clear()
    assert machine.run("--check", "--bench") == (["rows"], 0)
    assert machine.found()["broke"] == {}


def test_what_was_under_way_when_the_process_died_comes_last(machine, capsys):
    machine.act["rows"] = failing(SystemExit())  # as if killed: nothing is put away
    with pytest.raises(SystemExit):
        machine.run("--check")
    machine.act.clear()
    assert machine.run("--check") == (["maps", "rows"], 0)
    assert "rows: once more, last, because the process ended within it\n" in capsys.readouterr().out


def test_quick_results_are_kept_apart_from_full_ones(machine, capsys):
    machine.act["rows"] = lambda: ["R = 9"]
    assert machine.run("--check", "--quick") == (["rows", "maps"], 1)
    assert machine.found()["checked"] == {}
    assert "green" not in capsys.readouterr().out.replace("maps: green", "")
    machine.act.clear()
    assert machine.run("--check") == (["rows", "maps"], 0)
    assert machine.found()["checked quick"] == {"rows": ["R = 9"], "maps": []}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to do: neither --check nor --bench was given; give one of them, or both"),
        (["--bench", "--quick"], "--quick is of the check, and --check was not given; add it, or leave --quick out"),
        (
            ["--check", "--bench", "--only", "lines"],
            "no name has 'lines' in it, as --only asks; there are (some with a shape and a dtype) "
            "rows, maps, layer_norm, training step",
        ),
    ],
)
def test_what_asks_for_nothing_is_refused_in_one_line(machine, capsys, options, said):
    assert machine.run(*options) == ([], 2)
    assert capsys.readouterr() == ("", f"{said}\n")
    assert not machine.out.exists()


def test_ctrl_c_says_how_to_go_on(machine, capsys):
    machine.act["maps"] = lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(10)
    assert machine.run("--check") == (["rows", "maps"], 130)
    assert capsys.readouterr().err == f"interrupted; {GO_ON}\n"
    machine.act.clear()
    assert machine.run("--check") == (["maps"], 0)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(machine, capsys, tmp_path):
    machine.out = tmp_path / "missing" / "gpu.json"
    assert machine.run("--check") == ([], 2)
    assert capsys.readouterr().err.startswith(f"cannot write {machine.out}: No such file or directory; ")
    machine.out = tmp_path
    assert machine.run("--check") == ([], 2)
    assert capsys.readouterr().err == f"{tmp_path} cannot be read (Is a directory); give another --out\n"


@pytest.mark.parametrize("text", ["{", "[]", '{"info": {}, "results": []}'])
def test_another_file_is_not_replaced(machine, capsys, text):
    machine.out.write_text(text)
    assert machine.run("--check") == ([], 2)
    assert capsys.readouterr().err == f"{machine.out} is no record of this benchmark; give another --out\n"
    assert machine.out.read_text() == text


def test_the_record_of_another_machine_is_refused(machine, capsys):
    assert machine.run("--check") == (["rows", "maps"], 0)
    before, machine.gpu = machine.out.read_text(), "another"
    capsys.readouterr()
    assert machine.run("--check") == ([], 2)
    said = f"{machine.out} is of another machine or version (GPU one there, another here); "
    said += "give another --out, or remove it\n"
    assert capsys.readouterr().err == said
    machine.gpu = "one"
    machine.patch.setattr(machine.gpu_module, "digest", lambda: "changed")
    assert machine.run("--check") == ([], 2)
    assert "kernels" in capsys.readouterr().err
    assert machine.out.read_text() == before


def test_what_memory_lacks_for_is_left_out_and_only_some_parts_may_be(machine, capsys):
    from benchmarks import gpu

    machine.act["rows"] = failing(torch.OutOfMemoryError("CUDA out of memory. Tried\nto"))
    machine.act["training step"] = failing(torch.OutOfMemoryError("CUDA out of memory"))
    assert machine.run("--check", "--bench")[1] == 3
    shown = capsys.readouterr().out
    assert "the check is not green\n  without rows: left out: OutOfMemoryError: CUDA out of memory. Tried\n" in shown
    assert shown.endswith(f"1 parts are left: {GO_ON}\n")
    assert machine.found()["results"]["training step"]["left out"] == "OutOfMemoryError: CUDA out of memory"
    machine.patch.setattr(gpu, "MAY_BE_LEFT_OUT", ("rows",))
    assert machine.run("--check", "--bench") == (["rows"], 0)
    assert "the check is green: `MEASURED`" in capsys.readouterr().out


def test_green_are_all_parts_but_those_that_a_small_machine_cannot_run():
    from benchmarks import gpu

    whole = {name: [] for name in gpu.parts()}
    without = {"left out": "takes 14.0 GiB of memory, 10.0 are free"}
    assert gpu.is_green(whole, gpu.parts())
    assert gpu.is_green(whole | {"more than 2^31": without, "sanitizer": without}, gpu.parts())
    for wrong in ({"layer_norm": without}, {"tables": {"error": "died"}}, {"sanitizer": ["invalid read"]}):
        assert not gpu.is_green(whole | wrong, gpu.parts())
    for name in whole:
        assert not gpu.is_green({n: o for n, o in whole.items() if n != name}, gpu.parts())


@pytest.mark.parametrize("command", [["-m", "benchmarks.gpu"], [ROOT / "benchmarks" / "gpu.py"]])
def test_module_and_script_run(command, tmp_path):
    folder = ROOT if "-m" in command else tmp_path
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nothing to do: ")


def test_auto_takes_the_kernels_from_the_first_green_check_on():
    from benchmarks import gpu

    checked = json.loads(RECORD.read_text())["checked"] if RECORD.exists() else {}
    assert gpu.is_green(checked, gpu.parts().keys() - {"second GPU"}) == _triton.MEASURED
