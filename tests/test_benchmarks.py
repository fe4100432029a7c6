"""The benchmark runner as a user calls it: what it measures, prints and writes."""

import dataclasses
import functools
import json
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from settings import thread_count

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
    with thread_count(3):
        yield 3


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
def models(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import benchmarks.model as program

    return program


def small_case(models, norms, **options):
    """A convolution, a norm and a linear layer in place of a whole model."""

    def build(made_by):
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), made_by.norm("batch", 8), torch.nn.Flatten(), torch.nn.Linear(32, 5)
        )

    model = models.Model(build, ("torch", *norms, "no norms"), (2, 3, 4, 4), **options)
    return models.ModelCase(name="small", model=model, dtype=torch.float32, compiled=False)


def test_a_whole_model_is_timed_against_torchs_norms_in_the_same_rounds(models, monkeypatch, capsys):
    import benchmarks.__main__ as program

    monkeypatch.setattr(program, "SUITES", {"model": lambda: iter([small_case(models, ["evenkeel"])])})
    run(program, monkeypatch, "model", "--threads", "1,2")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed[3:]] == ["small, step", "small, saved", "small, inference"]
    assert {len(line) for line in printed[2:]} == {len(printed[2])}
    assert len(printed[2]) <= 130


def test_a_model_whose_norms_compute_something_else_fails(models, monkeypatch):
    wrong = models.Norms({"batch": lambda width, eps: torch.nn.GroupNorm(1, width, eps)})
    monkeypatch.setitem(models.OWNERS, "evenkeel", wrong)
    with pytest.raises(AssertionError, match="small: the training output with evenkeel's norms is"):
        list(small_case(models, ["evenkeel"]).measure("model", 1, 1))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Llama", (2, 16)),
        ("BERT", (2, 16)),
        ("ResNet channels-last", (2, 3, 32, 32)),
        ("ConvNeXt", (2, 3, 32, 32)),
        ("U-Net", (1, 3, 16, 16)),
    ],
)
def test_the_models_agree_whoever_makes_their_norms(models, name, shape):
    case = next(case for case in models.cases() if case.name == f"{name}, bf16")
    case = dataclasses.replace(case, model=dataclasses.replace(case.model, shape=shape))
    if len(shape) == 2:
        smaller = functools.partial(models.Transformer, llama=name == "Llama", width=64, depth=2, context=16)
        case = dataclasses.replace(case, model=dataclasses.replace(case.model, build=smaller))
    torch.manual_seed(0)
    built = {owner: case.model.made(owner, case.dtype) for owner in case.model.owners}
    case.check(built, case.model.input(case.dtype))


def test_all_of_a_model_moves_and_computes_the_same(models):
    model = small_case(models, []).model.made("evenkeel", torch.float32)
    model.to(memory_format=torch.channels_last)
    x = torch.ones(2, 3, 4, 4)
    expected, tensors = models.outcome(model, x), [*model.parameters(), *model.buffers()]
    places, strides = ([of(tensor) for tensor in tensors] for of in (torch.Tensor.data_ptr, torch.Tensor.stride))
    models.move({"evenkeel": model}, random.Random(0))
    assert all(tensor.data_ptr() != place for tensor, place in zip(tensors, places, strict=True))
    assert strides == [tensor.stride() for tensor in tensors]
    moved = models.outcome(model, x)
    assert all(torch.equal(moved[part], expected[part]) for part in ("training output", "gradient"))


def test_each_storage_that_is_saved_counts_once_and_parameters_never(models):
    class Squares(torch.nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            return x * x.view(-1, 2) + x.exp()  # saved: the input, this x, its view, the exponentials

    assert models.saved_bytes(Squares(3, 2), torch.ones(5, 3, requires_grad=True)) == 4 * (5 * 3 + 5 * 2 + 5 * 2)


def test_the_interval_of_a_median_misses_it_one_time_in_ten_at_most(models):
    for count, ranks in {5: (2, 0, 4), 8: (3.5, 1, 6), 15: (7, 3, 11), 30: (14.5, 10, 19)}.items():
        assert models.median_interval(range(count)) == ranks
        below = sum(math.comb(count, k) for k in range(ranks[1] + 1)) / 2**count
        assert 2 * below <= 0.1
        assert 2 * (below + math.comb(count, ranks[1] + 1) / 2**count) > 0.1


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
    kind = [found[0][key] for key in ("simd", "torch's simd", "threads", "seed")]
    assert kind == [torch.ops.evenkeel.simd_level(), torch.backends.cpu.get_cpu_capability().lower(), 1, 7]
    assert "seed 7" in capsys.readouterr().out


def test_drawn_cases_are_calls_that_both_take_with_one_result(sweep):
    draw = random.Random(0)
    kinds = set()
    for _ in range(600):
        case = sweep.draw_case(draw)
        assert math.prod(case.shape) <= max(sweep.LARGEST, max(sweep.RARE_WIDTHS))
        if math.prod(case.shape) > 100_000 or case.dtype != "float32":
            continue
        kinds.add((case.norm, case.mode))
        torch.manual_seed(1)
        inputs, parameters = sweep.drawn_tensors(case)
        assert {x.shape.numel() for x in inputs} == {math.prod(case.shape)}
        ours, theirs = (norm(*inputs, *parameters) for norm in sweep.norm_calls(case))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert len(kinds) == 16


def test_a_short_call_may_take_a_little_more(sweep):
    case = sweep.draw_case(random.Random(0))

    def is_slower(mode, ours, theirs):
        drawn = dataclasses.replace(case, mode=mode)
        return sweep.Measured(case=drawn, ours=ours, theirs=theirs, ratio=ours / theirs).is_slower(1.10)

    assert not is_slower("inference", 14e-6, 5e-6)
    assert is_slower("inference", 16e-6, 5e-6)
    assert not is_slower("forward + backward", 60e-6, 40e-6)
    assert is_slower("inference", 113e-6, 101e-6)


def test_what_seems_slow_counts_by_the_middle_of_three_times(sweep, monkeypatch):
    draw = random.Random(0)
    cases = [sweep.draw_case(draw) for _ in range(3)]
    ratios = {cases[0]: [3.9, 1.01, 1.0], cases[1]: [0.5], cases[2]: [1.2, 1.0, 1.3]}

    def measure(case, seconds):
        ratio = ratios[case].pop(0)
        return sweep.Measured(case=case, ours=ratio, theirs=1.0, ratio=ratio)

    monkeypatch.setattr(sweep, "measure", measure)
    assert [m.ratio for m in sweep.measure_all(cases, 1.0, Console(quiet=True))] == [1.01, 0.5, 1.2]
    assert not any(ratios.values())


def test_models_before_and_after_their_conversion(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    import benchmarks.__main__ as program
    from benchmarks.convert import CONVERSIONS, Conversion

    small = Conversion(
        name="small",
        build=lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten()),
        shape=(2, 3, 4, 4),
        actions=("fold_batch_norm",),
        frozen=True,
    )
    monkeypatch.setattr(program, "SUITES", {"convert": lambda: iter([small])})
    run(program, monkeypatch, "convert", "--threads", "1,2", "--repeats", 5)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed[3:]] == ["small (1), step", "small (1), inference"]
    assert [one.name.partition(",")[0] for one in CONVERSIONS] == ["Llama", "GPT-2", "ResNet", "U-Net"]


@pytest.mark.parametrize(
    "program", [("-m", "benchmarks"), ("-m", "benchmarks.sweep"), ("-m", "benchmarks.gpu"), ("benchmarks/gpu.py",)]
)
def test_ctrl_c_while_torch_is_imported_is_told_in_a_line(program):
    """Whoever changes their mind at once sees no traceback of a package that seems broken."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *program], cwd=ROOT, **pipes)
    maps = Path(f"/proc/{process.pid}/maps")
    while "libtorch_cpu" not in maps.read_text() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "interrupted\n")
