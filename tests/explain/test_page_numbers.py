"""The page of an explanation in a real browser has Python's numbers and words, and commands that repeat them."""

import math
import shlex
import subprocess
import sys

import pytest
from explain_pages import CASES, Opened, compare_explanations, config_of

from evenkeel.explain import walk

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_browser_computes_what_python_computes(plain_page, case, backward):
    explanation = walk(**case, backward=backward)
    page = plain_page.page.evaluate("(config) => window.evenkeel.walk(config)", config_of(explanation))
    compare_explanations(page, explanation.to_dict())


def test_the_command_repeats_the_state(browser, folder):
    with Opened(browser, folder, [1.0, -2.0, 3.0]) as opened:
        opened.page.locator("#norm").select_option("rms")
        opened.page.get_by_label("ε", exact=True).fill("0.01")
        opened.page.get_by_role("button", name="Copy as command").click()
        command = opened.page.locator("#command")
        command.wait_for()
        assert command.inner_text() == "evenkeel explain 1 -2 3 --norm rms --eps 0.01 --eps-mode inside"


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
