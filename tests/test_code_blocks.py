"""Every code block of every page runs: examples as doctests, commands in a folder that holds what they name."""

import doctest
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lab.experiments.tiny import TINY as TINY_EXPERIMENTS
from safetensors.torch import save_file
from study_runs import TINY as TINY_STUDY

from evenkeel import lab
from evenkeel.cli import main

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
ALL_PAGES = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [path for path in ALL_PAGES if "```" in path.read_text() and path.name != "api.md"]  # api.md: a directive
MODEL = """
import torch, evenkeel as ek

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = ek.nn.RMSNorm(8)

    def forward(self, x):
        return x + self.norm(x)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*[Block() for _ in range(4)])
        self.embedding = torch.nn.Embedding(16, 8)

    def forward(self, tokens):
        return self.blocks(self.embedding(tokens.long()))

factory = Model
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that pages name; a browser opens nothing; studies and experiments run at a tiny size."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    generator = np.random.default_rng(0)
    tables = {"measurements/1": 60, "measurements/2": 40, "new": 50, "monday": 30, "tuesday": 20}
    for place in ("measurements", "my-corpus", "package"):
        Path(place).mkdir()
    for name, rows in tables.items():
        columns = {"height": generator.normal(170, 10, rows), "weight": generator.normal(70, 9, rows)}
        pd.DataFrame(columns).to_parquet(f"{name}.parquet")
        if "day" in name:
            assert main(["data", "fit", f"{name}.parquet", "--out", f"{name}.json", "--quiet"]) == 0
    np.save("x.npy", generator.normal(size=(2, 8, 3)))
    np.savez("x.npz", tokens=np.array([[1, 2, 3], [3, 4, 5]]))
    save_file(torch.nn.BatchNorm1d(4).state_dict(), "model.safetensors")
    np.savez("tokens.npz", tokens=[[1, 2, 3]])
    Path("tokens.json").write_text("[[1, 2, 3]]")
    Path("package/module.py").write_text(MODEL)
    Path("my-corpus/text.txt").write_text("all work and no play makes a dull text\n" * 400)
    Path("study.toml").write_text('text = "my-corpus"\narms = ["pre-rms", "llama"]\nout = "runs/from-file"\n')
    pd.DataFrame({"body": [f"document {i} of a small table" for i in range(300)]}).to_parquet("documents.parquet")

    def tiny_study(*, resume, workers, **typed):  # in this process: starting others takes longer than their runs
        return lab.study(resume=resume, workers=1, **(typed if resume else typed | TINY_STUDY))

    def tiny_experiments(experiments, out, **arguments):
        options = {experiment.name: TINY_EXPERIMENTS[experiment.name] for experiment in experiments}
        return lab.experiments.run_experiments(experiments, out, **arguments | {"options": options})

    monkeypatch.setattr("evenkeel.cli.study.study", tiny_study)
    monkeypatch.setattr("evenkeel.cli.experiments.run_experiments", tiny_experiments)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    return tmp_path


def python_blocks(text):
    """The text with every line outside its Python blocks left empty, so that line numbers stay."""
    kept, end = "", 0
    for block in FENCE.finditer(text):
        code = block[3] if block[2] == "python" else "\n" * block[3].count("\n")
        kept, end = kept + "\n" * text.count("\n", end, block.start(3)) + code, block.end(3)
    return kept


def run_examples(text, name, flags=0):
    """Run a page's examples in order, and return how many there are and what the failed ones say."""
    examples = doctest.DocTestParser().get_doctest(python_blocks(text), {}, name, name, 0)
    said = []
    result = doctest.DocTestRunner(optionflags=flags).run(examples, out=said.append)
    return result.attempted, "".join(said)


def run_command(line):
    """Run a line of a shell block, or look up what it names where running it would install or build something."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)]
    if not words:
        return
    program, *arguments = words
    if program == "evenkeel":
        assert main(arguments) == 0, line
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), line
    else:
        assert (program, arguments[0]) == ("pip", "install"), line
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"[a-z]+", "".join(re.findall(r"\[(.+?)\]", line)))) <= set(extras), line


@pytest.fixture
def bucket(folder, store, monkeypatch):
    """A bucket with the files that the pages name, which the commands find by the variables of AWS."""
    for name in ("measurements/1", "measurements/2", "new"):
        store.put(f"{name}.parquet", Path(f"{name}.parquet").read_bytes())
    for number in range(20):
        store.put(f"documents/{number}.txt", f"document {number} of a small directory\n".encode() * 20)
    host, port = store.proxy.server_address
    variables = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "REGION": "us-east-1"}
    for name, value in (variables | {"ENDPOINT_URL": f"http://{host}:{port}"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_code_runs(path, folder, pytestconfig, request):
    text = path.read_text()
    if "s3://" in "".join(code for _, language, code in FENCE.findall(text) if language == "sh"):
        request.getfixturevalue("bucket")
    blocks = FENCE.findall(text)
    assert 2 * len(blocks) == text.count("```")
    assert {language for _, language, _ in blocks} <= {"python", "sh"}
    flags = sum(doctest.OPTIONFLAGS_BY_NAME[name] for name in pytestconfig.getini("doctest_optionflags"))
    attempted, said = run_examples(text, path.name, flags)
    assert said == ""
    assert attempted >= sum(language == "python" for _, language, _ in blocks)
    for _, language, code in blocks:
        if language == "sh":
            for line in code.splitlines():
                run_command(line)


def test_a_wrong_example_is_found():
    attempted, said = run_examples("words\n\n```python\n>>> 1 + 1\n3\n\n```\n\n>>> not code\n", "page")
    assert attempted == 1
    assert "Expected:\n    3\nGot:\n    2" in said
    assert "line 4" in said


@pytest.mark.parametrize(
    "line",
    ["evenkeel explain one", "make nothing", "pip install 'evenkeel[dta]'", "curl x", "evenkeel study --arm none"],
)
def test_a_wrong_command_is_found(line, folder):
    with pytest.raises(AssertionError):
        run_command(line)
