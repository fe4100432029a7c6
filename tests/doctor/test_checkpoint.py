"""Checkpoints: files, directories, state dicts, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from doctor.faults.families import Resnet, encoder, program
from safetensors.torch import save_file
from torch import nn

import evenkeel as ek
from evenkeel.cli import main
from evenkeel.doctor import checkpoint


@pytest.fixture
def state():
    return program(Resnet, 1).trained(5).model.state_dict()


def test_a_file_a_directory_and_a_state_dict_are_alike(state, tmp_path):
    state["norm.running_var"][0] = float("nan")
    save_file(state, tmp_path / "whole.safetensors")
    (tmp_path / "shards").mkdir()
    names = list(state)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: state[name] for name in part}, tmp_path / "shards" / f"model-{number}.safetensors")
    sources = (state, tmp_path / "whole.safetensors", str(tmp_path / "shards"))
    reports = [checkpoint(source) for source in sources]
    for report in reports:
        assert [(f.rule, f.site) for f in report.findings] == [("statistics-not-finite", "norm")]
        assert [n.site for n in report.measured.norms][-1] == "norm"


def test_norms_are_told_by_shape_and_name():
    model = nn.ModuleDict(
        {
            "ln_1": nn.LayerNorm(4),
            "conv": nn.Conv2d(3, 4, 3),
            "final_norm": nn.RMSNorm(4),
            "bn": nn.BatchNorm2d(4, affine=False),
            "head": nn.Linear(4, 4),
            "words": nn.Embedding(4, 4),
        }
    )
    assert [n.site for n in checkpoint(model.state_dict()).measured.norms] == ["ln_1", "final_norm", "bn"]


def test_the_offset_of_a_weight_is_told():
    trained = {"a.norm.weight": torch.tensor([0.1, -0.2, 0.05]), "b.norm.weight": torch.tensor([1.1, 0.9, 1.0])}
    assert [n.offset for n in checkpoint(trained).measured.norms] == [1.0, 0.0]
    assert [n.offset for n in checkpoint({"norm.weight": torch.zeros(3)}).measured.norms] == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_model_as_it_is_made_is_not_judged(dtype):
    assert checkpoint(encoder(1, dtype=dtype).model.state_dict()).findings == ()
    assert checkpoint(program(Resnet, 1, dtype=dtype).model.state_dict()).findings == ()


def test_state_dicts_in_a_dict_have_their_names(state):
    report = checkpoint({"model": state, "epoch": 3, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}})
    assert {n.site for n in report.measured.norms} == {f"model.{n.site}" for n in checkpoint(state).measured.norms}


@pytest.mark.parametrize(
    ("names", "paired"),
    [
        (("model", "model_ema"), True),
        (("state_dict", "state_dict_ema.module"), True),
        (("net", "shadow"), True),
        (("online", "target"), False),
        (("model", "cinema"), False),
    ],
)
def test_an_average_is_told_by_its_name(state, names, paired):
    tensors = {f"{part}.{name}": t for part in names for name, t in state.items()}
    pairs = [(a.site, a.other) for a in checkpoint(tensors).measured.averages]
    sites = [n.site for n in checkpoint(state).measured.norms]
    assert pairs == ([(f"{names[1]}.{site}", f"{names[0]}.{site}") for site in sites] if paired else [])


def test_what_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors here")
    (tmp_path / "empty").mkdir()
    cases = {"model.pt": "weights_only=True", "broken.safetensors": "cannot be read"}
    cases |= {"empty": "holds no", "none": "there is no"}
    for name, part in cases.items():
        with pytest.raises(ek.StateError, match=part):
            checkpoint(tmp_path / name)
    with pytest.raises(ek.InvalidTypeError, match="a path or a state dict, but got int"):
        checkpoint(3)
    with pytest.raises(ek.InvalidTypeError, match="state_dict"):
        checkpoint({"model": {}, "epoch": 3})
    assert "No norm" in checkpoint({"a.weight": torch.ones(2, 3)}).notes[0]


MODEL = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
def ill():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8, track_running_stats=False))
def loss(y):
    return y.square().mean()
number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "doctored", raising=False)
    (tmp_path / "doctored.py").write_text(MODEL)
    x = np.random.default_rng(0).normal(size=(32, 4))
    np.savez("x.npz", input=x)
    np.save("x.npy", x)
    return tmp_path


def test_the_command_judges_a_checkpoint(here, state, capsys):
    save_file(state, "sound.safetensors")
    state["norm.running_mean"][0] = float("inf")
    save_file(state, "ill.safetensors")
    assert main(["doctor", "sound.safetensors"]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["doctor", "ill.safetensors", "--html", "page.html"]) == 1
    assert "CRITICAL  statistics-not-finite  norm" in capsys.readouterr().out
    assert "statistics-not-finite" in (here / "page.html").read_text()


def test_the_command_judges_a_model(here, capsys):
    assert main(["doctor", "doctored:build", "--input", "x.npz", "--loss", "doctored:loss"]) == 0
    assert "forward and backward" in capsys.readouterr().out
    assert main(["doctor", "doctored:ill", "--input", "x.npy", "--json"]) == 1
    assert '"batch-dependence"' in capsys.readouterr().out


def test_the_command_compares_with_the_data_of_the_fit(here, capsys):
    x = np.load("x.npy")
    for name, statistics in {
        "same": ek.data.Statistics().update(x),
        "other": ek.data.Statistics().update(x + 9),
    }.items():
        ek.data.save(statistics, here / f"{name}.json")
    for name, said in {"same": False, "other": True}.items():
        assert main(["doctor", "doctored:build", "--input", "x.npz", "--stats", f"{name}.json"]) == 0
        assert ("train-serve-skew" in capsys.readouterr().out) == said
    ek.data.save(ek.data.Statistics().update(x[:, :3]), here / "three.json")
    assert main(["doctor", "doctored:build", "--input", "x.npz", "--stats", "three.json"]) == 2
    assert "3 features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["doctored:build", "--input", "x.npz", "--stats", "none.json"], "there is no file none.json"),
        (["doctored:build"], "needs --input"),
        (["doctored:none", "--input", "x.npz"], "cannot load doctored:none"),
        (["doctored:number", "--input", "x.npz"], "cannot build doctored:number"),
        (["doctored:build", "--input", "doctored.py"], "--input must end in .npy or .npz"),
        (["doctored:build", "--input", "x.npz", "--loss", "loss"], "does not name a function"),
        (["x.npy"], "is no .safetensors file"),
        (["x.npy", "--loss", "doctored:loss"], "belong to a model"),
    ],
)
def test_what_is_typed_wrong_is_one_line(arguments, part, here, capsys):
    assert main(["doctor", *arguments]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
