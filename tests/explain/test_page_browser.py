"""The page of an explanation in a real browser: live, by keyboard, on a phone, readable, and asking for nothing."""

import json
import math
import re

import numpy as np
import pytest
from explain_pages import LAPTOP, PHONE, RANDOM, VECTOR, Opened, compare, normal

from evenkeel.explain import walk

pytestmark = pytest.mark.slow

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
        assert opened.page.locator("#flow svg, #against svg, #line svg").count() == 4
        own = case.get("norm") == "image"  # which is none of the four norms
        assert opened.page.locator("#sharing-body [role=grid]").count() == 4 + own


@pytest.mark.parametrize(
    ("width", "backward", "most"), [(LAPTOP, False, 3000), (LAPTOP, True, 4300), (PHONE, False, 5350)]
)
def test_four_numbers_need_half_the_page_they_once_did(browser, folder, width, backward, most):
    with Opened(browser, folder, [1.0, 2.0, 3.0, 4.0], width=width, backward=backward) as opened:
        assert opened.page.evaluate("document.documentElement.scrollHeight") <= most


def test_a_fold_holds_what_the_result_does_not_need(browser, folder):
    with Opened(browser, folder, [1.0, 2.0, 3.0, 4.0]) as opened:
        titles = opened.page.locator("#forward h3").all_inner_texts()
        assert titles[1:] == [
            *("Mean", "Subtract the mean", "Variance", "Standard deviation", "The divisor", "Normalize", "The output")
        ]
        assert not opened.page.locator("#step-sample_std").is_visible()
        opened.page.locator("#beside summary").click()
        assert opened.page.locator("#step-sample_std").is_visible()
        assert opened.page.locator("#checked summary").inner_text() == "✓ 3 checks hold"
        # the output is that of the step before, and is not written again
        assert opened.page.locator("#step-output .numbers").count() == 0
        opened.page.get_by_label("x₃", exact=True).fill("nan")
        assert opened.page.locator("#line-body svg").count() == 1


@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "instance", "group", "standardize", "minmax", "dyt"])
def test_the_cell_of_the_reader_s_own_norm_becomes_what_the_steps_say(browser, folder, norm):
    x = normal(2, 4, 3, 2)
    with Opened(browser, folder, x, norm, **({"groups": 4} if norm == "group" else {})) as opened:
        panel = opened.page.locator("#sharing-body > div", has=opened.page.get_by_text("(yours)"))
        panel.get_by_role("gridcell").first.hover()
        told = panel.locator(".readout strong").last.inner_text().replace("−", "-")
        assert float(told) == pytest.approx(opened.steps()["output"][0][0][0][0], rel=1e-3)


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
        assert "NaN at [0]: every statistic it enters becomes NaN" in opened.page.locator("#notes").inner_text()
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
        # The page itself knows its address at once; `page.url` learns it by a message that may come later.
        address = opened.page.evaluate("window.location.href")
        assert "#s=" in address
        opened.page.goto("about:blank")
        opened.page.goto(address)
        assert opened.steps()["input"] == [1, 7, 3]
        opened.page.goto("about:blank")
        opened.page.goto(opened.path.as_uri() + "#s=" + json.dumps({"norm": "<img>", "x": [1]}))
        assert opened.steps()["input"] == [1, 2, 3]


def test_a_long_vector_is_cut_and_the_whole_is_told(browser, folder):
    x = np.arange(1_000_000) % 1000.0
    with Opened(browser, folder, x) as opened:
        assert opened.steps()["input"] == x[:64].tolist()
        told = opened.page.locator("#whole").inner_text()
        assert "1,000,000 numbers" in told
        assert "mean 499.5" in told


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_pointing_at_a_cell_or_tapping_it_shows_its_partners(browser, folder, width):
    x = np.array(normal(2, 4, 3))
    with Opened(browser, folder, x, "layer", axis=1, width=width) as opened:
        panel = opened.page.locator("#sharing-body > div").nth(2)  # InstanceNorm
        cell = panel.get_by_role("gridcell").nth(4)
        opened.page.locator("#sharing-options select").last.select_option(label="1")
        cell.tap() if width == PHONE else cell.hover()
        told = panel.locator(".readout").inner_text()
        assert f"x[0, 1, 1] = {x[0, 1, 1]:.4g}".replace("-", "−") in told
        assert "2 others: channel 1 of sample 0, all positions" in told
        assert panel.locator(".partner").count() == 3
        assert panel.locator(".self").count() == 1


def test_masked_cells_share_with_nobody_in_the_view_of_the_axes(browser, folder):
    x = np.array(normal(3, 2, 4))
    mask = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]
    with Opened(browser, folder, x, "batch", mask=mask) as opened:
        panel = opened.page.locator("#sharing-body > div").first
        cells = panel.get_by_role("gridcell")
        assert panel.locator(".masked").count() == 6
        cells.first.hover()
        told = panel.locator(".readout").inner_text()
        statistics = walk(x, "batch", mask=mask)
        mean, variance = (float(n.replace("−", "-")) for n in re.findall(r"[Mm]ean (\S+), variance (\S+);", told)[0])
        assert mean == pytest.approx(statistics.step("mean").value[0], rel=1e-3)
        assert variance == pytest.approx(statistics.step("variance").value[0], rel=1e-3)
        assert panel.locator(".partner").count() == 9
        cells.last.hover()
        assert "is masked. It counts nowhere" in panel.locator(".readout").inner_text()
        assert panel.locator(".partner").count() == 0


def test_fields_show_few_digits_until_they_are_edited(browser, folder):
    x = normal(2, 3)
    with Opened(browser, folder, x) as opened:
        field = opened.page.get_by_label("x[1, 2]", exact=True)
        shown = field.input_value()
        assert float(shown) == pytest.approx(x[1][2], rel=1e-4)
        assert opened.page.evaluate(
            "[...document.querySelectorAll('.grid input')].every(one => one.scrollWidth <= one.clientWidth)"
        )
        field.focus()
        assert float(field.input_value()) == x[1][2]
        opened.page.get_by_label("x[0, 0]", exact=True).focus()
        assert field.input_value() == shown
        assert opened.steps()["input"] == x
