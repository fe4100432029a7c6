"""The page of an explanation in a real browser has Python's numbers and words, and commands that repeat them."""

import io
import json
import math
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from explain_pages import CASES, Opened, compare

from evenkeel.cli import main
from evenkeel.explain import walk

pytestmark = pytest.mark.slow

# Only Python has the library's functions to compare with.
PYTHON_ONLY = {"library", "autograd"}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_browser_computes_what_python_computes(plain_page, case, backward):
    explanation = walk(**case, backward=backward)
    python = explanation.to_dict()
    config = {
        "norm": python["norm"],
        "input": python["steps"][0]["value"],
        "options": python["options"],
        "shown": python["shown"],
    }
    found = plain_page.page.evaluate("(config) => window.evenkeel.walk(config)", config)
    assert found.keys() == python.keys()
    assert (found["title"], found["norm"], found["options"]) == (python["title"], python["norm"], python["options"])
    assert [step["id"] for step in found["steps"]] == [step["id"] for step in python["steps"]]
    for mine, theirs in zip(found["steps"], python["steps"], strict=True):
        assert mine["title"] == theirs["title"]
        assert mine["formula"] == theirs["formula"]
        if theirs["id"] == "finite_difference":
            # Differencing magnifies the last bit of a sum by 2^17 and more.
            columns = (np.array(rows["value"], dtype=float).reshape(-1, 3).T for rows in (mine, theirs))
            for name, tolerance, one, other in zip(("index", "dx", "numeric"), (0, 1e-12, 1e-5), *columns, strict=True):
                compare(one, other, tolerance, name)
        else:
            compare(mine["value"], theirs["value"], 1e-12, theirs["id"])
    wanted = [check for check in python["checks"] if check["id"] not in PYTHON_ONLY]
    assert [(c["id"], c["title"], c["passed"]) for c in found["checks"]] == [
        (c["id"], c["title"], c["passed"]) for c in wanted
    ]
    assert found["notes"] == python["notes"]
    for mine, theirs in zip(found["steps"], python["steps"], strict=True):
        if theirs["id"] != "finite_difference":  # there, and in the mean of x̂, the last bits show
            assert without_noise(mine["substituted"]) == without_noise(theirs["substituted"])
            assert without_noise(mine["meaning"]) == without_noise(theirs["meaning"])


def without_noise(text: str) -> str:
    """Words with what is only rounding, of which two programs have different amounts, as 0."""
    return NOISE.sub("0", text)


NOISE = re.compile(
    r"-?(?:\d+(?:\.\d+)? \\times )?10\^\{-(?:1[4-9]|[2-9]\d)\}|-?\d+(?:\.\d+)?e-(?:1[4-9]|[2-9]\d)|(?<=Mean )-?0(?=,)"
)


def test_the_command_repeats_the_state(browser, folder):
    with Opened(browser, folder, [1.0, -2.0, 3.0]) as opened:
        opened.page.locator("#norm").select_option("rms")
        opened.page.get_by_label("ε", exact=True).fill("0.01")
        opened.page.get_by_role("button", name="Copy as command").click()
        command = opened.page.locator("#command")
        command.wait_for()
        assert command.inner_text() == "evenkeel explain 1 -2 3 --norm rms --eps 0.01 --eps-mode inside"


COMMAND = """(seed) => window.evenkeel.state.command(window.evenkeel.state.fromSeed(seed))"""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_command_repeats_its_state(plain_page, case, capsys, monkeypatch):
    wanted = walk(**case, backward=True)
    data = wanted.to_dict()
    config = {"norm": data["norm"], "input": data["steps"][0]["value"], "options": data["options"]}
    line = plain_page.page.evaluate(COMMAND, config | {"shown": data["shown"]})
    words = shlex.split(line)
    if words[0] == "echo":
        monkeypatch.setattr("sys.stdin", io.StringIO(words[1]))
        words = words[3:]
    assert words[:2] == ["evenkeel", "explain"]
    assert main([*words[1:], "--format", "json", "--full"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["title"], found["options"], found["shown"]) == (data["title"], data["options"], data["shown"])
    for mine, theirs in zip(found["steps"], data["steps"], strict=True):
        compare(mine["value"], theirs["value"], 1e-12, theirs["id"])


def test_a_copied_command_runs_in_a_shell(browser, folder):
    with Opened(browser, folder, [[1.0, -2.0], [3.0, 5.0]], "batch", backward=True) as opened:
        opened.page.get_by_role("button", name="Copy as command").click()
        line = opened.page.locator("#command").inner_text()
        assert line.startswith("echo '[[1, -2], [3, 5]]' | evenkeel explain - --norm batch")
        line = line.replace("evenkeel explain", f"{shlex.quote(sys.executable)} -m evenkeel explain")
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=120, check=True)
        assert "Gradient of the input" in done.stdout


def test_the_stream_grows_before_norms_and_is_set_back_after_them(plain_page):
    blocks = plain_page.page.evaluate(
        """() => ["pre", "post"].map((kind) =>
            window.evenkeel.flow[kind]([1, 2, 3, 4], { eps: 1e-5, mode: "inside" }, "layer"))"""
    )
    before, after = ([block["out"] for block in kind] for kind in blocks)
    assert before == sorted(before)
    assert before[0] > math.sqrt(7.5)  # the input's rms
    assert [block["branch"] for block in blocks[0]] == pytest.approx([1.0] * 4, rel=1e-4)
    assert after == pytest.approx([1.0] * 4, rel=1e-4)
