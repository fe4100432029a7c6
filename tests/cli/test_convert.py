"""`evenkeel convert`: factories and directories of Hugging Face models, what is written, and wrong words."""

import json
import os
import pickle
import shlex
import shutil
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hugging_face import MODELS
from safetensors.torch import load_file, load_model

from evenkeel.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own making

MODULE = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, scale=None):
        x = self.norm(self.embed(tokens))
        return self.head(x if scale is None else x * scale)

def build():
    torch.manual_seed(0)
    return Tied()

def wrong():
    return 3

def failing():
    raise KeyError("no such size")

class Shifted(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1e-3

look_alike = nn.Sequential(nn.Linear(4, 4), Shifted(4), nn.RMSNorm(4))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny_model", raising=False)
    (tmp_path / "tiny_model.py").write_text(MODULE)
    np.savez(tmp_path / "x.npz", tokens=np.arange(6).reshape(2, 3), scale=np.full((2, 3, 1), 2.0))
    yield tmp_path
    sys.modules.pop("tiny_model", None)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The directory of a small Llama with a file beside the model's own."""
    path = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(0)
    MODELS["Llama"].build().save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


def run(line):
    return main(shlex.split(line))


def test_a_factory_is_converted_and_proved(here, capsys):
    assert run("convert tiny_model:build --input x.npz --verify") == 0
    shown = capsys.readouterr().out
    assert "1 of 1 norms is swapped (mode exact)." in shown
    assert "ulps from float64" in shown


def test_actions_that_follow_the_data_flow(here, capsys):
    assert run("convert tiny_model:build --actions fold_affine,swap --input x.npz --verify --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(norm["sought"], norm["action"]) for norm in told["norms"]] == [
        ("fold_affine", "leave"),
        ("swap", "swap"),
    ]
    assert run("convert tiny_model:build --actions fold_affine") == 2
    assert "--actions fold_affine needs inputs of the model; give them with --input" in capsys.readouterr().err


def test_what_is_not_swapped_is_shown_with_the_reason(here, capsys):
    assert run("convert tiny_model:look_alike --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["source"], told["swapped"], told["verified"]) == ("tiny_model:look_alike", 1, False)
    assert [(norm["site"], norm["action"]) for norm in told["norms"]] == [("1", "leave"), ("2", "swap")]
    assert "with 0.001 added" in told["norms"][0]["reason"]


def test_weights_are_written_once_and_load_again(here, capsys):
    assert run("convert tiny_model:build --out new.safetensors") == 0
    assert "written to new.safetensors" in capsys.readouterr().out
    import tiny_model

    assert sorted(load_file("new.safetensors")) == ["embed.weight", "norm.bias", "norm.weight"]
    fresh = tiny_model.Tied()
    load_model(fresh, "new.safetensors")
    tokens = torch.arange(5)[None]
    assert torch.equal(fresh(tokens), tiny_model.build()(tokens))


def test_inputs_by_position_and_as_safetensors(here, capsys):
    from safetensors.torch import save_file

    np.save("one.npy", np.arange(4, dtype=np.int32)[None])
    np.savez("two.npz", np.arange(4)[None], np.ones((1, 4, 1)))
    save_file({"tokens": torch.arange(4)[None]}, "three.safetensors")
    for name in ("one.npy", "two.npz", "three.safetensors"):
        assert run(f"convert tiny_model:build --verify --input {name} --json") == 0
        assert json.loads(capsys.readouterr().out)["verified"]


def test_a_hugging_face_model_is_written_back_as_it_was(stored, here, capsys):
    from transformers import LlamaForCausalLM

    assert run(f"convert {stored} --verify --out new --json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["swapped"], told["verified"], told["out"]) == (5, True, "new")
    assert sorted(os.listdir("new")) == sorted(os.listdir(stored))
    before, after = (LlamaForCausalLM.from_pretrained(path) for path in (stored, "new"))
    for (name, a), b in zip(before.state_dict().items(), after.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert run(f"convert {stored} --out new") == 2
    assert "new exists already; replace it with --force" in capsys.readouterr().err
    (here / "new" / "mine.txt").write_text("kept")
    (here / "new" / "model-00001-of-00002.safetensors").write_text("stale")
    assert run(f"convert {stored} --out new --force") == 0
    assert sorted(os.listdir("new")) == sorted([*os.listdir(stored), "mine.txt"])
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["GPT2", "T5", "ViT", "Whisper"])
def test_random_inputs_fit_the_configuration(name):
    from evenkeel.cli.hugging_face import random_inputs

    model = MODELS[name].build()
    assert torch.isfinite(model(**random_inputs(model))[0]).all()


class Touch:
    """Unpickling this leaves a file."""

    def __reduce__(self):
        return open, ("unpickled", "w")


def test_nothing_is_unpickled(stored, here, capsys):
    shutil.copytree(stored, "old")
    os.remove("old/model.safetensors")
    with open("old/pytorch_model.bin", "wb") as file:
        pickle.dump(Touch(), file)
    for name in ("old", "old/pytorch_model.bin"):
        assert run(f"convert {name}") == 2
        error = capsys.readouterr().err
        assert "old/pytorch_model.bin is of pickles, which can run any code" in error
        assert "save_pretrained" in error
    np.savez("x.npz", tokens=np.array([Touch()], dtype=object))
    assert run("convert tiny_model:build --input x.npz") == 2
    assert "x.npz cannot be read as npz: Object arrays cannot be loaded" in capsys.readouterr().err
    assert not os.path.exists("unpickled")


def test_a_model_without_all_its_weights_is_refused(stored, here, capsys):
    from safetensors.torch import save_file

    shutil.copytree(stored, "part")
    tensors = load_file("part/model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, "part/model.safetensors", metadata={"format": "pt"})
    assert run("convert part") == 2
    assert "part lacks weights of LlamaForCausalLM: model.norm.weight" in capsys.readouterr().err
    shutil.copytree(stored, "foreign")
    config = json.loads((stored / "config.json").read_text()) | {"architectures": ["NobodysModel"]}
    (here / "foreign" / "config.json").write_text(json.dumps(config))
    assert run("convert foreign") == 2
    assert "has no NobodysModel" in capsys.readouterr().err


def test_without_transformers_a_directory_names_the_package(stored, here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run(f"convert {stored}") == 2
    assert "run: pip install transformers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nowhere:build", "cannot load nowhere:build: there is no module nowhere"),
        ("tiny_model:bulid", "tiny_model has no bulid; did you mean build"),
        ("tiny_model:wrong", "tiny_model:wrong gave a int, not a torch.nn.Module"),
        ("tiny_model:failing", "KeyError: 'no such size'"),
        ("tiny_model:build --verify", "--verify needs inputs of the model; give them with --input x.npz"),
        ("tiny_model:build --input other.npz", "other.npz holds words, but the model takes tokens, scale"),
        ("tiny_model:build --input damaged.npz", "--input: damaged.npz cannot be read as npz"),
        ("tiny_model:build --input text.npz", "tokens in text.npz is no array of numbers (dtype <U3)"),
        (
            "tiny_model:build --input short.npz --verify",
            "the model does not run on the example inputs: index out of range",
        ),
        ("tiny_model:build --out /proc/new.safetensors", "/proc/new.safetensors"),
    ],
)
def test_what_is_wrong_is_one_line(line, said, here, capsys):
    np.savez("other.npz", words=np.arange(3))
    np.savez("text.npz", tokens=np.array(["one"]))
    np.savez("short.npz", tokens=np.array([99]))
    (here / "damaged.npz").write_bytes(b"PK\x03\x04 and nothing more")
    assert run(f"convert {line}") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("evenkeel: error: ") == 1  # beside the steps that a slow machine is told


def test_steps_are_told(here, monkeypatch):
    told = []
    monkeypatch.setattr("evenkeel.cli.convert.telling_steps", lambda: nullcontext(told.append))
    assert run("convert tiny_model:build --input x.npz --verify") == 0
    assert told[:2] == ["reading tiny_model:build", "recognising embed"]
    assert "running it in float64" in told
    assert told[-1] == "running the changed model, forward and backward"


def test_a_quick_run_is_silent(here, capsys):
    assert run("convert tiny_model:build") == 0
    assert capsys.readouterr().err == ""
