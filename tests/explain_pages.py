"""Pages of explanations in a browser, inputs that show everything a page can, and the comparison of numbers."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel.explain import Explanation, walk, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as BrowserPage

LAPTOP, PHONE = 1280, 390

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
    "overflow": {"x": [1e300, -1e300]},
    "overflowing mean": {"x": [1e308, 1e308, 1e308]},
    "several groups with nan": {"x": [[math.nan] * 5, [1.0] * 5, [1.0, 2.0, 3.0, 4.0, math.nan]], "show": 1},
    "rms inf": {"x": [1.0, -math.inf, 3.0], "norm": "rms"},
    "dyt inf": {"x": [1.0, -math.inf, 3.0], "norm": "dyt"},
    "minmax inf": {"x": [1.0, math.inf, 3.0], "norm": "minmax"},
    "masked nan": {"x": [1.0, math.nan, 3.0], "mask": [1, 0, 1]},
    "constant rows": {"x": [[2.0, 2.0], [3.0, 3.0], [1.0, 2.0]], "eps": 1e-3},
    "single elements": {"x": [[1.0], [2.0]]},
    "some single elements": {"x": [[1.0, 5.0], [2.0, 3.0]], "mask": [[1, 0], [1, 1]]},
    "minmax of one": {"x": [4.0], "norm": "minmax"},
    "image scaled": {"x": [0.5, 0.25, 1.0], "norm": "image"},
    "inf": {"x": [[1.0, math.inf, 3.0], [1.0, 2.0, 3.0]], "show": 1},
    "rms": {"x": VECTOR, "norm": "rms"},
    "rms eps": {"x": [1e-4, -1e-4], "norm": "rms", "eps": 1e-6, "eps_mode": "outside"},
    "rms clamp": {"x": VECTOR, "norm": "rms", "eps": 0.5, "eps_mode": "clamp"},
    "rms offset": {"x": SEQUENCE, "norm": "rms", "weight": normal(8), "weight_offset": 1.0},
    "rms zeros": {"x": [0.0, 0.0], "norm": "rms"},
    "rms zeros without eps": {"x": [0.0, 0.0], "norm": "rms", "eps": 0.0},
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
    "group of four": {"x": IMAGES, "norm": "group", "groups": 4},
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


class Opened:
    """A page, what it complained about, and what it asked the outside for."""

    def __init__(
        self, browser: "Browser", folder: Path, x: Any, norm: str = "layer", *, width=LAPTOP, context=None, **options
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


def compare(mine: Any, theirs: Any, tolerance: float, label: str) -> None:
    """Two nested lists of numbers, equal to the tolerance relative to the largest of the step."""
    one, other = np.array(mine, dtype=np.float64), np.array(theirs, dtype=np.float64)
    assert one.shape == other.shape, label
    assert np.array_equal(np.isfinite(one), np.isfinite(other)), label
    odd = ~np.isfinite(one)
    assert np.array_equal(one[odd], other[odd], equal_nan=True), label
    largest = np.abs(one[~odd]).max(initial=0.0)
    assert np.abs(one[~odd] - other[~odd]).max(initial=0.0) <= tolerance * largest, label


def config_of(explanation: Explanation) -> dict[str, Any]:
    """What the page's `walk` takes to repeat an explanation."""
    data = explanation.to_dict()
    start = {"norm": data["norm"], "input": data["steps"][0]["value"]}
    return start | {"options": data["options"], "shown": data["shown"]}


# Only Python has the library's functions to compare with.
PYTHON_ONLY = {"library", "autograd"}


def compare_explanations(page: dict[str, Any], python: dict[str, Any]) -> None:
    """The page's explanation has Python's numbers, words and checks."""
    assert page.keys() == python.keys()
    assert (page["title"], page["norm"], page["options"]) == (python["title"], python["norm"], python["options"])
    assert [step["id"] for step in page["steps"]] == [step["id"] for step in python["steps"]]
    for mine, theirs in zip(page["steps"], python["steps"], strict=True):
        assert mine["title"] == theirs["title"]
        assert mine["formula"] == theirs["formula"]
        if theirs["id"] == "finite_difference":
            # Differencing magnifies the last bit of a sum by 2^17 and more.
            columns = (np.array(rows["value"], dtype=float).reshape(-1, 3).T for rows in (mine, theirs))
            for name, tolerance, one, other in zip(("index", "dx", "numeric"), (0, 1e-12, 1e-5), *columns, strict=True):
                compare(one, other, tolerance, name)
        else:
            compare(mine["value"], theirs["value"], 1e-12, theirs["id"])
    checks = [check for check in python["checks"] if check["id"] not in PYTHON_ONLY]
    assert [(c["id"], c["title"], c["passed"]) for c in page["checks"]] == [
        (c["id"], c["title"], c["passed"]) for c in checks
    ]
    assert page["notes"] == python["notes"]
    for mine, theirs in zip(page["steps"], python["steps"], strict=True):
        if theirs["id"] != "finite_difference":  # there, and in the mean of x̂, the last bits show
            assert without_noise(mine["substituted"]) == without_noise(theirs["substituted"])
            assert without_noise(mine["meaning"]) == without_noise(theirs["meaning"])


def without_noise(text: str) -> str:
    """Words with what is only rounding, of which two programs have different amounts, as 0."""
    return NOISE.sub("0", text)


NOISE = re.compile(
    r"-?(?:\d+(?:\.\d+)? \\times )?10\^\{-(?:1[4-9]|[2-9]\d)\}|-?\d+(?:\.\d+)?e-(?:1[4-9]|[2-9]\d)|(?<=Mean )-?0(?=,)"
)
