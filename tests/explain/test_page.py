"""What a page starts with: the whole explanation, or a part of a large one that is cut consistently."""

import json
import re

import numpy as np
import pytest

from evenkeel import EvenkeelError
from evenkeel.explain import walk, write_page
from evenkeel.explain._page import TENSOR_LIMIT, VECTOR_LIMIT, render_page, seed

RANDOM = np.random.default_rng(3)


def embedded(html):
    return json.loads(re.search(r'id="seed">(.*?)</script>', html, flags=re.DOTALL)[1])


def test_a_small_input_is_there_whole():
    explanation = walk([1.0, 2.0, np.nan], weight=[1.0, 2.0, 3.0], backward=True)
    found = embedded(render_page(explanation))
    assert found["input"] == [1.0, 2.0, "NaN"]
    assert found["options"] == explanation.options
    assert found["whole"] is None
    assert {check["id"] for check in found["checks"]} <= {"library", "autograd"}


def test_a_page_is_self_contained(tmp_path):
    path = write_page(walk([1.0, 2.0]), tmp_path / "page.html")
    html = path.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", html)
    assert not re.search(r"@import|url\(", html)
    assert "default-src 'none'" in html
    assert len(html) < 300_000
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_says_why(tmp_path):
    with pytest.raises(EvenkeelError, match="cannot write"):
        write_page(walk([1.0, 2.0]), tmp_path / "nowhere" / "page.html")


CASES = {
    "vector": ((1000,), "layer", {}),
    "rows": ((50, 40), "layer", {"show": 45}),
    "two axes": ((9, 30, 20), "layer", {"axis": (1, 2), "show": 8}),
    "batch": ((40, 30, 5), "batch", {"show": 29, "bias": RANDOM.normal(size=30)}),
    "running": ((40, 30), "batch", {"show": 2, "mean": RANDOM.normal(size=30), "variance": np.ones(30)}),
    "instance": ((6, 30, 8, 8), "instance", {"show": 100}),
    "group": ((6, 32, 8, 8), "group", {"groups": 4, "show": 23}),
    "many groups": ((3, 512, 2), "group", {"groups": 512, "show": 1000}),
    "group last": ((2, 50, 64), "group", {"groups": 2, "channel_axis": -1, "show": 3}),
    "mask": ((40, 30), "layer", {"mask": RANDOM.random((40, 30)) > 0.5, "show": 17}),
    "image": ((224, 224, 3), "image", {"show": 1}),
}


@pytest.mark.parametrize(("shape", "norm", "options"), CASES.values(), ids=CASES.keys())
def test_a_part_is_cut_around_the_group_that_is_shown(shape, norm, options):
    x = np.arange(np.prod(shape), dtype=float).reshape(shape)
    parameters = {"weight": 2.0} if norm != "image" else {}
    whole = walk(x, norm, backward=True, **parameters, **options)
    found = seed(whole)
    part = np.array(found["input"])
    assert part.size <= (VECTOR_LIMIT if len(shape) == 1 else TENSOR_LIMIT)
    assert list(part.shape) == found["options"]["shape"]
    # The values number the elements, so they tell which elements of the whole were kept.
    index = part.astype(int).reshape(-1)
    groups = whole.step("groups").value.reshape(-1)[index]
    kept = found["options"]
    valid = np.array(kept["mask"]).reshape(-1) == 1 if kept["mask"] else np.ones(index.size, dtype=bool)
    assert whole.shown in groups[valid]
    assert np.array_equal(
        np.array(kept["upstream"]).reshape(-1)[valid], whole.step("upstream").value.reshape(-1)[index][valid]
    )
    again = walk(part, norm, **arguments(found, norm), backward=True)
    # What shares in the part shared in the whole, and the shown group of the part belongs to that of the whole.
    ours = again.step("groups").value.reshape(-1)
    assert set(groups[valid & (ours == found["shown"])]) == {whole.shown}
    assert len(set(zip(ours[valid], groups[valid], strict=True))) == len(set(ours[valid])) == len(set(groups[valid]))
    for step in ("mean", "variance"):
        if kept[step] is not None and norm != "image":
            assert again.step(step).value[found["shown"]] == whole.step(step).value[whole.shown]
    assert found["whole"]["shape"] == list(shape)


def arguments(found, norm):
    """The options of `walk` that repeat a page's start."""
    options = found["options"]
    names = ["upstream", "mask"] if options["mask"] else ["upstream"]
    names += ["weight"] if norm != "image" else []
    names += ["mean", "variance"] if options["variance"] else []
    given = {name: options[name] for name in names}
    if norm == "layer":
        given["axis"] = options["shared"]
    elif options["channel_axis"] is not None:
        given["channel_axis"] = options["channel_axis"]
    return given | ({"groups": options["num_groups"]} if norm == "group" else {}) | {"show": found["shown"]}
