"""One command line: the rules that every command keeps."""

import json
import os
import shlex
import webbrowser

import numpy as np
import pytest
import torch
import typer.main
from safetensors.torch import save_file

from evenkeel._options.arms import arm_names
from evenkeel._options.names import EXPERIMENT_NAMES
from evenkeel.cli import main
from evenkeel.cli.app import app

ROOT = typer.main.get_command(app)
SMALL = "--depth 1 --width 8 --heads 1 --context 8 --batch 2 --steps 2 --lr 0.01 --seeds 1 --arms none --quiet"
SMALL += " --text text.txt"
PADDING = "--experiment padding --set lengths=4,8 --set features=3 --set batch=4 --seeds 1 --quiet"
# Every way to write something: the command, and what it writes.
WRITERS = {
    "data fit": ("data fit x.csv --out new.json", "new.json"),
    "data merge": ("data merge s.json t.json --out new.json", "new.json"),
    "data apply": ("data apply x.csv --stats s.json --out new.csv", "new.csv"),
    "data show": ("data show s.json --html new.html", "new.html"),
    "data check": ("data check x.csv --stats s.json --html new.html", "new.html"),
    "explain": ("explain 1 2 3 --html new.html", "new.html"),
    "doctor": ("doctor m.safetensors --html new.html", "new.html"),
    "convert": ("convert tiny:build --out new.safetensors", "new.safetensors"),
    "convert --report": ("convert tiny:build --report new.html", "new.html"),
    "study": (f"study {SMALL} --out new", "new/study.json"),
    "study --experiment": (f"study {PADDING} --out new", "new/padding/experiment.json"),
}
PAGES = ["data show s.json", "data check x.csv --stats s.json", "explain 1 2 3", "doctor m.safetensors"]
TABLES = {
    "info": "versions",
    "data fit x.csv --out new.json": "features",
    "data show s.json": "features",
    "data check x.csv --stats s.json": "features",
    "data merge s.json t.json --out new.json": "features",
    "explain 1 2 3": "steps",
    "doctor m.safetensors": "findings",
    "convert tiny:build": "norms",
    "study --list": "padding",
    f"study {SMALL} --out new": "arms",
    f"study {PADDING} --out new": "experiments",
}
SHARED = ("--force", "--json", "--open", "--quiet", "--html", "--resume")


def leaves(command, path=()):
    """Every command of the tree by its words."""
    itself = {" ".join(path): command} if path and options(command) else {}
    if not hasattr(command, "commands"):
        return itself
    found = [leaves(child, (*path, name)) for name, child in command.commands.items()]
    return itself | {words: leaf for part in found for words, leaf in part.items()}


def options(command):
    """The options of a command by their spelling, but for --help."""
    listed = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    return {spelling: parameter for parameter in listed for spelling in (*parameter.opts, *parameter.secondary_opts)}


COMMANDS = leaves(ROOT)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(50, 2))
    np.savetxt("x.csv", x, delimiter=",", header="a,b", comments="")
    np.savetxt("y.csv", x + 1, delimiter=",", header="a,b", comments="")
    save_file(torch.nn.BatchNorm1d(4).state_dict(), "m.safetensors")
    (tmp_path / "text.txt").write_text("some words to learn from, and more of them " * 50)
    (tmp_path / "tiny.py").write_text("from torch import nn\n\ndef build():\n    return nn.LayerNorm(4)\n")
    for source, out in (("x.csv", "s.json"), ("y.csv", "t.json")):
        assert run(f"data fit {source} --out {out} --quiet") == 0
    return tmp_path


def run(line):
    return main(shlex.split(line))


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_there_is_replaced_only_by_force(kind, here, capsys):
    line, written = WRITERS[kind]
    assert run(line) == 0
    first = (here / written).read_bytes()
    before = (here / written).stat().st_mtime_ns
    capsys.readouterr()
    assert run(line) == 2
    assert "--force" in capsys.readouterr().err
    assert (here / written).stat().st_mtime_ns == before
    assert run(f"{line} --force") == 0
    assert (here / written).stat().st_mtime_ns != before
    assert kind.startswith("study") or (here / written).read_bytes() == first


def test_force_removes_nothing_foreign(here, capsys):
    (here / "new").mkdir()
    (here / "new" / "mine.txt").write_text("kept")
    assert run(f"study {SMALL} --out new --force") == 2
    assert "holds no study" in capsys.readouterr().err
    assert run("data apply x.csv --stats s.json --out new --force") == 2
    assert "names no file" in capsys.readouterr().err
    assert run(f"study {SMALL} --out other") == 0
    (here / "other" / "mine.txt").write_text("kept")
    assert run(f"study {SMALL} --out other --seed 1 --force") == 0
    assert [(here / name / "mine.txt").read_text() for name in ("new", "other")] == ["kept", "kept"]
    assert json.loads((here / "other" / "study.json").read_text())["settings"]["seed"] == 1


def test_force_and_resume_exclude_each_other(here, capsys):
    assert run(f"study {SMALL} --out new --force --resume") == 2
    assert "give one" in capsys.readouterr().err


@pytest.mark.parametrize("line", TABLES)
def test_json_is_one_object_and_nothing_else(line, here, capsys):
    capsys.readouterr()
    assert run(f"{line} --json") == 0
    assert TABLES[line] in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "line", [*PAGES, "convert tiny:build", f"study {SMALL} --out new", f"study {PADDING} --out new"]
)
def test_open_opens_the_page(line, here, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert run(f"{line} --open --json") == 0
    json.loads(capsys.readouterr().out)
    (address,) = opened
    path = address.removeprefix("file://")
    assert os.path.getsize(path) > 1000
    if line in PAGES:
        assert run(f"{line} --open --html named.html") == 0
        assert opened[1] == (here / "named.html").as_uri()


def test_check_tells_json_what_failed(here, capsys):
    capsys.readouterr()
    assert run("data check y.csv --stats s.json --json --max-shift 0.1") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["rows"], len(told["failures"])) == (False, 50, 2)
    (here / "z.csv").write_text("a\n1\n")
    assert run("data check z.csv --stats s.json --json") == 1
    assert "lacks the numeric columns b" in json.loads(capsys.readouterr().out)["failures"][0]


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_panels_and_two_examples_that_parse(words, here, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(f"{words} --help") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert {name for name in options(COMMANDS[words]) if f" {name} " not in shown} == set()
    assert [p.name for p in options(COMMANDS[words]).values() if not p.rich_help_panel] == []
    examples = shown.partition("Examples:")[2].strip().splitlines()
    assert len(examples) == 2
    for example in examples:
        program, *typed = shlex.split(example)
        assert program == "evenkeel"
        assert " ".join(typed).startswith(words)
        used = [word for word in typed if word.startswith("--")]
        assert [word for word in used if word not in options(COMMANDS[words])] == []


def test_help_lists_every_arm_and_experiment(capsys):
    assert run("study --help") == 0
    shown = capsys.readouterr().out.replace(",", " ").replace(".", " ").split()
    assert {name for name in (*arm_names(), *EXPERIMENT_NAMES) if name not in shown} == set()


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_option_is_alike_everywhere(name):
    found = [options(command)[name] for command in COMMANDS.values() if name in options(command)]
    assert len(found) > 1
    assert len({(p.help, p.rich_help_panel, p.is_flag) for p in found}) == 1


def test_pages_can_be_opened_and_work_has_threads():
    for command in COMMANDS.values():
        names = options(command)
        assert ("--html" not in names) or {"--open", "--force", "--json"} <= names.keys()
        assert ("--out" not in names) or "--force" in names
        assert ("--quiet" in names) == ("--threads" in names)


def test_threads_are_those_of_torch_while_a_command_works(here, monkeypatch):
    import torch

    seen = []
    before = torch.get_num_threads()
    right = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda number: (seen.append(number), right(number)))
    for line in (
        "data fit x.csv --out n.json",
        "data apply x.csv --stats s.json --out n.csv",
        "data check x.csv --stats s.json",
    ):
        seen.clear()
        assert run(f"{line} --threads 3") == 0
        assert 3 in seen
        assert torch.get_num_threads() == before


def test_messages_name_the_files_that_were_typed(here, capsys):
    for line, path in (
        ("data fit x.csv --out /proc/new.json", "/proc/new.json"),
        ("data apply x.csv --stats s.json --out /proc/new.csv", "/proc/new.csv"),
        ("data merge s.json t.json --out /proc/new.json", "/proc/new.json"),
        ("explain 1 2 --html /proc/new.html", "/proc/new.html"),
    ):
        assert run(line) == 2
        error = capsys.readouterr().err
        assert path in error
        assert ".tmp" not in error
        assert ".partial" not in error
