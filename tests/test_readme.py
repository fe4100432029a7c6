"""The README: its code and commands run, its links lead to files, and a stranger can read it in a sitting."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
PYTHON = [code for language, code in BLOCKS if language == "python"]
LINES = [line.partition("#")[0].strip() for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
INLINE = re.findall(r"`([^`\n]+)`", TEXT)
COMMANDS = [*LINES, *(word for word in INLINE if re.match(r"(evenkeel|make) .", word))]


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 150
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    assert len(PYTHON) == 3


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[1])
def test_each_example_runs_by_itself(code):
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("evenkeel ")])
def test_each_command_runs(command, tmp_path):
    save_file({"norm.weight": torch.ones(4), "norm.bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    words = [word for word in shlex.split(command)[1:] if word != "--open"]
    result = subprocess.run([sys.executable, "-m", "evenkeel", *words, *help_of(words)], cwd=tmp_path, check=False)
    assert result.returncode == 0
    assert all((tmp_path / word).stat().st_size for word in words if word.endswith(".html"))


def help_of(words):
    """A command named without arguments, as `evenkeel data`, has its help."""
    return ["--help"] if len(words) == 1 and words != ["info"] else []


def test_every_other_command_is_one_of_ours():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    made = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert {"demo", "test", "test-slow", "lint"} <= {*made} <= {*targets}
    (pip,) = [command for command in LINES if not command.startswith(("evenkeel ", "make "))]
    *settings, install = re.fullmatch(r"(\w+)=(\S+) (\w+)=(\S+) (pip install .+)", pip).groups()
    assert settings == ["PIP_CONSTRAINT", "constraints.txt", "PIP_BUILD_CONSTRAINT", "constraints.txt"]
    assert (ROOT / "constraints.txt").exists()
    extras = re.fullmatch(r"pip install '\.\[(.+)\]'", install)[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras} <= {*known}


def test_what_it_says_of_ci_is_what_runs():
    assert "`.ci/run` is `make lint`, `make test` and `make test-slow`" in " ".join(TEXT.split())
    script = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make (\S+)$", script, flags=re.MULTILINE) == ["lint", "test", "test-slow"]


def test_links_and_pictures_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT) + re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(links) >= 20
    assert [link for link in links if not (ROOT / link).exists()] == []
