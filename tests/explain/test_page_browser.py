"""The page of an explanation in a real browser: the same numbers and words as Python, live, by keyboard, on a phone."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as BrowserPage

from evenkeel.explain import walk, write_page

pytestmark = pytest.mark.slow

LAPTOP, PHONE = 1280, 390
# Only Python has the library's functions to compare with.
PYTHON_ONLY = {"library", "autograd", "dx_one", "dx_xhat"}
RANDOM = np.random.default_rng(7)


def normal(*shape, mean=0.0, spread=1.0):
    return (RANDOM.normal(mean, spread, shape)).tolist()


VECTOR, TABLE, SEQUENCE, IMAGES = normal(7), normal(5, 3, mean=4.0), normal(2, 3, 8), normal(2, 4, 3, 2, spread=10.0)
CASES: dict[str, dict[str, Any]] = {
    "four": {"x": [1.0, 2.0, 3.0, 4.0]},
    "layer outside": {"x": VECTOR, "eps_mode": "outside", "eps": 0.1},
    "layer clamp": {"x": VECTOR, "eps_mode": "clamp", "eps": 0.1},
    "layer clamped": {"x": VECTOR, "eps_mode": "clamp", "eps": 5.0},
    "layer affine": {"x": VECTOR, "weight": normal(7), "bias": normal(7)},
    "layer two axes": {"x": SEQUENCE, "axis": (1, 2), "weight": normal(3, 8), "bias": 0.5},
    "layer first axis": {"x": TABLE, "axis": 0, "show": 2},
    "layer mask": {"x": SEQUENCE, "mask": (RANDOM.random((2, 3, 8)) > 0.3).tolist(), "show": 4},
    "layer given": {"x": VECTOR, "mean": 0.5, "variance": 2.0},
    "layer upstream": {"x": TABLE, "upstream": normal(5, 3)},
    "large mean": {"x": normal(9, mean=1e6)},
    "larger mean": {"x": normal(2, 9, mean=-1e9, spread=10.0)},
    "constant": {"x": [3.0, 3.0, 3.0, 3.0]},
    "constant without eps": {"x": [3.0, 3.0, 3.0], "eps": 0.0},
    "one element": {"x": [5.0]},
    "tiny": {"x": [1e-9, -2e-9, 3e-9]},
    "float32": {"x": np.float32(VECTOR)},
    "nan": {"x": [1.0, math.nan, 3.0]},
    "inf": {"x": [[1.0, math.inf, 3.0], [1.0, 2.0, 3.0]], "show": 1},
    "rms": {"x": VECTOR, "norm": "rms"},
    "rms eps": {"x": [1e-4, -1e-4], "norm": "rms", "eps": 1e-6, "eps_mode": "outside"},
    "rms clamp": {"x": VECTOR, "norm": "rms", "eps": 0.5, "eps_mode": "clamp"},
    "rms offset": {"x": SEQUENCE, "norm": "rms", "weight": normal(8), "weight_offset": 1.0},
    "rms zeros": {"x": [0.0, 0.0], "norm": "rms"},
    "rms mask": {"x": TABLE, "norm": "rms", "mask": [[1, 1, 0]] * 4 + [[0, 0, 0]], "show": 4},
    "batch": {"x": [[3.0, 1.0], [4.0, 2.0], [5.0, 3.0]], "norm": "batch", "weight": [2.0, 0.5], "bias": [1.0, 0.0]},
    "batch vector": {"x": VECTOR, "norm": "batch"},
    "batch images": {"x": IMAGES, "norm": "batch", "eps_mode": "outside", "show": 3, "weight": normal(4)},
    "batch mask": {"x": normal(3, 2, 4), "norm": "batch", "mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]},
    "batch last axis": {"x": SEQUENCE, "norm": "batch", "channel_axis": -1, "bias": normal(8)},
    "batch running": {"x": TABLE, "norm": "batch", "mean": normal(3), "variance": [1.0, 2.0, 3.0]},
    "instance": {"x": IMAGES, "norm": "instance", "show": 5, "weight": normal(4), "bias": normal(4)},
    "instance table": {"x": TABLE, "norm": "instance"},
    "group": {"x": IMAGES, "norm": "group", "groups": 2, "show": 3, "weight": normal(4), "bias": normal(4)},
    "group vector": {"x": normal(6), "norm": "group", "groups": 3},
    "group last axis": {"x": SEQUENCE, "norm": "group", "groups": 4, "channel_axis": 2},
    "group mask": {"x": SEQUENCE, "norm": "group", "groups": 3, "mask": (RANDOM.random((2, 8)) > 0.4).tolist()},
    "standardize": {"x": TABLE, "norm": "standardize"},
    "sample deviation": {"x": TABLE, "norm": "standardize", "correction": 1, "show": 1},
    "sample of one": {"x": [2.0], "norm": "standardize", "correction": 1},
    "constant column": {"x": [[1.0, 2.0], [1.0, 5.0]], "norm": "standardize"},
    "minmax": {"x": TABLE, "norm": "minmax", "feature_range": (-1.0, 2.0)},
    "minmax ties": {"x": [1.0, 3.0, 3.0, 1.0, 2.0], "norm": "minmax"},
    "minmax constant": {"x": [2.0, 2.0], "norm": "minmax"},
    "minmax mask": {"x": TABLE, "norm": "minmax", "mask": [[1, 1, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1]]},
    "image": {"x": [[[120.0, 100.0, 90.0], [0.0, 255.0, 17.0]]], "norm": "image"},
    "image first": {"x": normal(3, 4, 4, mean=100.0, spread=30.0), "norm": "image", "show": 2},
    "dyt": {"x": VECTOR, "norm": "dyt", "alpha": 0.7},
    "dyt affine": {"x": SEQUENCE, "norm": "dyt", "weight": normal(8), "bias": normal(8), "show": 3},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.fail("this test needs Chromium; install it with: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("explain")


class Opened:
    """A page, what it complained about, and what it asked the outside for."""

    def __init__(
        self, browser: Browser, folder: Path, x: Any, norm: str = "layer", *, width=LAPTOP, context=None, **options
    ):
        self.path = write_page(walk(x, norm, **options), folder / "page.html")
        phone = width < 500
        extra = {"is_mobile": True, "has_touch": True} if phone else {}
        self.context = browser.new_context(viewport={"width": width, "height": 844}, **extra, **(context or {}))
        self.page: BrowserPage = self.context.new_page()
        self.events: list[str] = []
        self.page.on("console", lambda message: self.events.append(message.text))
        self.page.on("pageerror", lambda error: self.events.append(str(error)))
        self.page.on("request", lambda request: self.events.append(request.url))
        self.page.goto(self.path.as_uri())

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def steps(self) -> dict[str, Any]:
        """The current explanation's values by step."""
        return {s["id"]: s["value"] for s in self.page.evaluate("window.evenkeel.current")["steps"]}


@pytest.fixture(scope="module")
def plain_page(browser, folder) -> Iterator[Opened]:
    with Opened(browser, folder, [1.0, 2.0, 3.0, 4.0]) as opened:
        yield opened


def compare(mine: Any, theirs: Any, tolerance: float, label: str) -> None:
    """Two nested lists of numbers, equal to the tolerance relative to the largest of the step."""
    one, other = np.array(mine, dtype=np.float64), np.array(theirs, dtype=np.float64)
    assert one.shape == other.shape, label
    assert np.array_equal(np.isfinite(one), np.isfinite(other)), label
    odd = ~np.isfinite(one)
    assert np.array_equal(one[odd], other[odd], equal_nan=True), label
    largest = np.abs(one[~odd]).max(initial=0.0)
    assert np.abs(one[~odd] - other[~odd]).max(initial=0.0) <= tolerance * largest, label


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
    assert [(c["id"], c["passed"]) for c in found["checks"]] == [(c["id"], c["passed"]) for c in wanted]


@pytest.mark.parametrize(
    "name", ["four", "layer affine", "group", "rms offset", "minmax", "dyt affine", "image", "batch"]
)
def test_the_browser_uses_the_terminals_words(plain_page, name):
    python = walk(**CASES[name], backward=True).to_dict()
    config = {
        "norm": python["norm"],
        "input": python["steps"][0]["value"],
        "options": python["options"],
        "shown": python["shown"],
    }
    found = plain_page.page.evaluate("(config) => window.evenkeel.walk(config)", config)
    for mine, theirs in zip(found["steps"], python["steps"], strict=True):
        if theirs["id"] == "finite_difference":
            continue
        assert mine["substituted"] == theirs["substituted"]
        # The mean of x̂ is rounding noise, of which two programs have different amounts.
        noise = re.compile(r"Mean \S+,")
        assert noise.sub("", mine["meaning"]) == noise.sub("", theirs["meaning"])


INPUTS = {
    "vector": {"x": [1.0, 2.0, 3.0, 4.0]},
    "tensor": {"x": normal(2, 4, 2, 3), "norm": "group", "groups": 2},
    "image": {"x": normal(8, 8, 3, mean=120.0, spread=40.0), "norm": "image"},
    "backward": {"x": VECTOR, "weight": normal(7), "bias": normal(7), "backward": True},
    "long": {"x": RANDOM.normal(0, 1, 1_000_000)},
    "nan": {"x": [1.0, math.nan, 3.0], "backward": True},
}


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
@pytest.mark.parametrize("case", INPUTS.values(), ids=INPUTS.keys())
def test_the_page_fits_complains_of_nothing_and_asks_for_nothing(browser, folder, case, width):
    with Opened(browser, folder, width=width, **case) as opened:
        assert opened.events == [opened.path.as_uri()]
        assert opened.path.stat().st_size < 1_000_000
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert opened.page.locator("math .unknown").count() == 0
        assert opened.page.locator("#forward > li").count() > 5
        assert opened.page.locator("#flow svg, #against svg, #distribution svg").count() == 5
        assert opened.page.locator("#sharing-body [role=grid]").count() == 4


CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = (c) => c.slice(0, 3).map((v) => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const node of document.querySelectorAll("main *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.checkVisibility() || node.disabled) continue;
        const style = getComputedStyle(node);
        const svg = node instanceof SVGElement;
        const [one, other] = [light(rgba(svg ? style.fill : style.color)), light(behind(node))].sort((a, b) => b - a);
        found.push([(one + 0.05) / (other + 0.05), node.tagName, node.className.baseVal ?? node.className]);
    }
    return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(browser, folder, scheme):
    with Opened(browser, folder, **INPUTS["tensor"], backward=True, context={"color_scheme": scheme}) as opened:
        found = opened.page.evaluate(CONTRAST)
        assert len(found) > 200
        assert found[0][0] >= 4.5, found[:5]
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_typing_recomputes_every_step(browser, folder):
    with Opened(browser, folder, [1.0, 2.0, 3.0, 4.0]) as opened:
        opened.page.get_by_label("x₃", exact=True).fill("10")
        compare(opened.steps()["output"], walk([1.0, 2.0, 3.0, 10.0]).step("output").value, 1e-12, "typed")
        assert "= 4" in opened.page.locator("#step-mean .numbers").inner_text().replace("\n", " ")
        assert opened.page.locator("[data-result='3']").inner_text() == "1.6971"
        opened.page.get_by_label("ε", exact=True).fill("2")
        opened.page.locator("#eps-mode").select_option("outside")
        expected = walk([1.0, 2.0, 3.0, 10.0], eps=2.0, eps_mode="outside")
        compare(opened.steps()["output"], expected.step("output").value, 1e-12, "eps")
        opened.page.locator("#norm").select_option("rms")
        expected = walk([1.0, 2.0, 3.0, 10.0], "rms", eps=2.0, eps_mode="outside")
        compare(opened.steps()["output"], expected.step("output").value, 1e-12, "norm")
        opened.page.get_by_role("button", name="Add element").click()
        assert opened.steps()["input"] == [1, 2, 3, 10, 10]
        opened.page.get_by_role("button", name="Reset").click()
        assert opened.steps()["input"] == [1, 2, 3, 4]
        assert opened.page.locator("#norm").input_value() == "layer"
        assert opened.events == [opened.path.as_uri()]


def test_weight_and_bias_are_switched_on_and_edited(browser, folder):
    with Opened(browser, folder, [1.0, 2.0, 4.0]) as opened:
        opened.page.locator("#affine summary").click()
        opened.page.get_by_label("weight γ").check()
        opened.page.get_by_label("γ₁", exact=True).fill("3")
        opened.page.get_by_label("bias β").check()
        opened.page.get_by_label("β₀", exact=True).fill("-1")
        expected = walk([1.0, 2.0, 4.0], weight=[1.0, 3.0, 1.0], bias=[-1.0, 0.0, 0.0])
        compare(opened.steps()["output"], expected.step("output").value, 1e-12, "affine")


@pytest.mark.parametrize("typed", ["", "abc", "1e", "--2", "0x10"])
def test_what_is_no_number_is_marked_and_the_last_result_stays(browser, folder, typed):
    with Opened(browser, folder, [1.0, 2.0, 3.0]) as opened:
        before = opened.steps()
        field = opened.page.get_by_label("x₁", exact=True)
        field.fill(typed)
        assert field.get_attribute("aria-invalid") == "true"
        assert "is not a number; the last good number stays" in opened.page.locator("#values-error").inner_text()
        assert opened.steps() == before
        field.fill("2.5")
        assert field.get_attribute("aria-invalid") is None
        assert not opened.page.locator("#values-error").is_visible()
        assert opened.steps()["input"] == [1, 2.5, 3]


def test_epsilon_must_not_be_negative_and_nan_is_explained(browser, folder):
    with Opened(browser, folder, [1.0, 2.0, 3.0]) as opened:
        opened.page.get_by_label("ε", exact=True).fill("-1")
        assert "not negative" in opened.page.locator("#eps-error").inner_text()
        assert opened.steps()["denominator"] == walk([1.0, 2.0, 3.0]).step("denominator").value.tolist()
        opened.page.get_by_label("x₀", exact=True).fill("nan")
        assert opened.steps()["output"] == ["NaN", "NaN", "NaN"]
        assert "not finite" in opened.page.locator("#notes").inner_text()
        assert opened.events == [opened.path.as_uri()]


FOCUSED = "document.activeElement.getAttribute('aria-label') || document.activeElement.id"


def test_everything_is_reached_and_moved_by_keyboard(browser, folder):
    with Opened(browser, folder, normal(2, 3)) as opened:
        page = opened.page
        page.locator("#norm").focus()
        seen = []
        for _ in range(20):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(FOCUSED))
        # The slider belongs to the cell that was focused last.
        wanted = [
            "axes",
            "ε",
            "ε, as a power of ten",
            "eps-mode",
            "x[0, 0]",
            "x[1, 2]",
            "x[1, 2] slider",
            "reset",
            "copy",
        ]
        assert [name for name in seen if name in wanted] == wanted
        page.get_by_label("x[0, 1]", exact=True).focus()
        page.keyboard.press("ArrowDown")
        assert page.evaluate(FOCUSED) == "x[1, 1]"
        before = opened.steps()["input"][1][1]
        page.get_by_label("x[1, 1] slider").focus()
        page.keyboard.press("ArrowRight")
        assert opened.steps()["input"][1][1] > before


def test_a_cell_tells_who_shares_its_statistics(browser, folder):
    x = normal(2, 4, 3)
    with Opened(browser, folder, x, "batch") as opened:
        page = opened.page
        grid = page.get_by_role("grid").first
        grid.get_by_role("gridcell").first.focus()
        page.keyboard.press("ArrowDown")
        focused = page.evaluate(FOCUSED)
        assert focused.startswith("sample 0, channel 1, position 0")
        statistics = walk(x, "batch")
        told = page.locator("#sharing-body .readout").first.inner_text()
        mean, variance = (float(n.replace("−", "-")) for n in re.findall(r"[Mm]ean (\S+), variance (\S+);", told)[0])
        assert mean == pytest.approx(statistics.step("mean").value[1], rel=1e-3)
        assert variance == pytest.approx(statistics.step("variance").value[1], rel=1e-3)
        assert "5 others: channel 1 of every sample and position" in told
        assert [page.locator("#sharing-body .tensor").nth(i).locator(".partner").count() for i in range(4)] == [
            6,
            4,
            3,
            6,
        ]
        letters = {cell.get_attribute("data-letter") for cell in grid.get_by_role("gridcell").all()}
        assert letters == set("ABCD")


def test_backward_is_switched_on_and_its_upstream_gradient_edited(browser, folder):
    with Opened(browser, folder, [1.0, 2.0, 4.0]) as opened:
        assert "dx" not in opened.steps()
        opened.page.get_by_role("button", name="Compute the backward pass").click()
        opened.page.get_by_label("upstream gradient 1", exact=True).fill("0.75")
        upstream = walk([1.0, 2.0, 4.0], backward=True).step("upstream").value
        upstream[1] = 0.75
        expected = walk([1.0, 2.0, 4.0], backward=True, upstream=upstream)
        compare(opened.steps()["dx"], expected.step("dx").value, 1e-12, "dx")
        assert opened.page.locator("#backward .bars svg").count() == 2


def test_the_address_keeps_a_changed_state_and_refuses_a_bad_one(browser, folder):
    with Opened(browser, folder, [1.0, 2.0, 3.0]) as opened:
        opened.page.get_by_label("x₁", exact=True).fill("7")
        address = opened.page.url
        assert "#s=" in address
        opened.page.goto("about:blank")
        opened.page.goto(address)
        assert opened.steps()["input"] == [1, 7, 3]
        opened.page.goto("about:blank")
        opened.page.goto(opened.path.as_uri() + "#s=" + json.dumps({"norm": "<img>", "x": [1]}))
        assert opened.steps()["input"] == [1, 2, 3]


def test_the_command_repeats_the_state(browser, folder):
    with Opened(browser, folder, [1.0, -2.0, 3.0]) as opened:
        opened.page.locator("#norm").select_option("rms")
        opened.page.get_by_label("ε", exact=True).fill("0.01")
        opened.page.get_by_role("button", name="Copy as command").click()
        command = opened.page.locator("#command")
        command.wait_for()
        assert command.inner_text() == "evenkeel explain 1 -2 3 --norm rms --eps 0.01 --eps-mode inside"


def test_a_long_vector_is_cut_and_the_whole_is_told(browser, folder):
    x = np.arange(1_000_000) % 1000.0
    with Opened(browser, folder, x) as opened:
        assert opened.steps()["input"] == x[:64].tolist()
        told = opened.page.locator("#whole").inner_text()
        assert "1,000,000 numbers" in told
        assert "mean 499.5" in told
