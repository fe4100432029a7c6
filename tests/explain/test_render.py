"""The renderings of an explanation: terminal text, Markdown, JSON, and formulas as plain text."""

import io
import json
import random
import re

import pytest
import torch
from damaged_states import assert_one_line, replace_part
from rich.cells import cell_len

import evenkeel as ek
from evenkeel.explain import Explanation, print_explanation, to_json, to_markdown, walk
from evenkeel.explain._mathtext import plain_text
from evenkeel.explain._page import render_page


def text_of(explanation, **options):
    stream = io.StringIO()
    print_explanation(explanation, file=stream, **options)
    return stream.getvalue()


def test_the_terminal_shows_every_step_with_its_numbers():
    shown = text_of(walk([1, 2, 3, 4], weight=2, backward=True))
    assert "μ = (1 + 2 + 3 + 4)/4 = 2.5" in shown
    assert "σ² = ((-1.5)² + (-0.5)² + 0.5² + 1.5²)/4 = 1.25" in shown
    assert "d = √(1.25 + 10⁻⁵) = 1.11804" in shown
    assert "Population 1.11803, sample 1.29099" in shown
    assert "\\" not in shown
    assert "FAILED" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("full", [False, True])
def test_terminal_text_fits_a_hundred_columns(full):
    for norm in ("batch", "rms", "minmax", "dyt", "group"):
        shown = text_of(walk(torch.randn(2, 4, 30), norm, backward=True), full=full)
        assert max(map(cell_len, shown.splitlines())) <= 100, norm  # a combining accent takes no column


def test_long_vectors_are_shortened_unless_all_is_asked_for():
    x = torch.tensor([0.146, 0.108, *[0.2] * 509, 0.110], dtype=torch.float64)
    e = walk(x)
    assert "x = [0.146, 0.108, …, 0.11]" in text_of(e)
    assert "(0.146 + 0.108 + … + 0.11)/512" in text_of(e)
    assert text_of(e, full=True).count("0.2, ") >= 500
    assert "0.146, 0.108, 0.2, 0.2" in to_markdown(e, full=True)


def test_a_million_elements_stay_a_page():
    e = walk(torch.randn(1_000_000))
    assert len(text_of(e)) < 20_000
    assert len(to_markdown(e)) < 20_000
    short = json.loads(to_json(e, full=False))
    value = next(step["value"] for step in short["steps"] if step["id"] == "output")
    assert (value["shape"], value["omitted"]) == ([1_000_000], 999_994)
    assert value["minimum"] == e.step("output").value.min()
    with pytest.raises(ek.EvenkeelError, match=r"values were shortened.*--full"):
        Explanation.from_dict(short)


def test_markdown_has_balanced_formulas_for_every_step():
    e = walk([1.0, 2.0, 4.0], "rms", backward=True)
    text = to_markdown(e)
    assert text.count("\n$$\n") % 2 == 0
    assert r"\mathrm{rms} = \sqrt{q}" in text
    assert len(re.findall(r"^## \d+\. ", text, flags=re.MULTILINE)) == len(e.steps)
    for formula in re.findall(r"\$\$\n(.+)\n\$\$", text):
        assert formula.count("{") == formula.count("}")


def test_json_has_no_bare_nan_and_comes_back():
    e = walk([1.0, float("nan")])
    text = to_json(e)
    assert "NaN" not in re.sub(r'"[^"]*"', "", text)
    again = Explanation.from_dict(json.loads(text))
    assert again.to_dict() == e.to_dict()


@pytest.mark.parametrize("data", [{}, {"steps": 1}, {"steps": [{"id": "x"}]}])
def test_other_json_is_refused(data):
    with pytest.raises(ek.EvenkeelError, match="not the data of a whole explanation"):
        Explanation.from_dict(data)


def test_changed_data_is_refused_in_one_line_or_can_be_rendered():
    good = [walk([1.0, 2.0, 3.0], "layer", backward=True).to_dict(), walk([[1.0, 2.0], [3.0, 4.0]], "batch").to_dict()]
    refused = 0
    for seed in range(400):
        data = replace_part(good[seed % 2], random.Random(seed))
        try:
            e = Explanation.from_dict(data)
        except ek.InvalidInputError as error:
            refused += 1
            assert_one_line(error)
        else:
            assert to_json(e)
            assert to_markdown(e)
            assert text_of(e)
            assert render_page(e)
    assert refused > 200


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\frac{a + b}{n}", "(a + b)/n"),
        (r"\sqrt{\sigma^2 + \epsilon}", "√(σ² + ε)"),
        (r"10^{-5}", "10⁻⁵"),
        (r"\frac{\partial L}{\partial x}", "∂L/∂x"),
        (r"\frac{[1, 2]}{3}", "[1, 2]/3"),
        (r"\frac{[1, 2] - 3}{\sqrt{2}}", "([1, 2] - 3)/√2"),
        (r"\sum_i \hat{x}_i", "Σᵢ x̂ᵢ"),
        (r"1.5 \times 10^{7}", "1.5 · 10⁷"),
    ],
)
def test_formulas_as_plain_text(latex, text):
    assert plain_text(latex) == text


def test_one_group_is_told_in_words_and_several_by_number():
    assert "all 4 share one statistic" in text_of(walk([1.0, 2.0, 3.0, 4.0]))
    assert "all 2 share one statistic" in to_markdown(walk([1.0, 2.0, 3.0], mask=[1, 1, 0]))
    assert "it shares with no other" in text_of(walk([1.0, 2.0], mask=[1, 0]))
    assert "[1, 1]" in text_of(walk([[1.0, 2.0], [3.0, 4.0]]))
