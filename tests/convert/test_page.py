"""The page of a certificate: what it says of errors, of norms that were left, and of plans without a batch."""

import re

import pytest
import torch
from norm_models import Gemma, Llama, Residual, shaken
from torch import nn

from evenkeel import InvalidArgumentError
from evenkeel.convert import Certificate, Check, Entry, plan
from evenkeel.convert._page import certificate_page, error_rows, told_of
from evenkeel.report import Row

CHECKS = (Check("the result", 1.0, 0.5), Check("the gradient of weight", 3.0, 2.5))
GATED = "its forward takes further inputs: gate"


def certificate(count=2, left=0, checks=CHECKS):
    entries = [
        Entry(site=f"blocks.{k}.norm", kind="Llama", spec="rms over token", action="swap", reason="", checks=checks)
        for k in range(count)
    ]
    entries += [Entry(site=f"gated.{k}", kind="Gated", spec="", action="leave", reason=GATED) for k in range(left)]
    model = (Check("the result", 2.0, 2.0), Check("the gradients", 0.0, 4.0)) if checks else ()
    return Certificate(
        entries=tuple(entries),
        mode="exact",
        model=model,
        verified=bool(checks),
        reference="float64",
        versions={},
        plan=None,
    )


def words(path):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", path.read_text()))


def test_the_page_opens_with_the_errors_and_three_findings():
    page = certificate_page(certificate(left=1))
    assert page.picture.title == (
        "2 of 3 norms are swapped, and nothing is more than 0.50 ulps further from float64 than it was"
    )
    assert [finding.title for finding in page.findings] == [
        "The whole model is 2.0 ulps (was 2.0) from float64",
        "The norm that moved furthest: 1.0 ulps (was 0.50)",
        "1 place is left as before",
    ]
    assert page.findings[2].text == "Its forward takes further inputs: gate."
    assert [section.title for section in page.sections] == ["Gradients", "Every norm", "What is left, and why"]
    assert page.sections[1].tables[0].rows[0][4:] == [1.0, 0.5, 3.0, 2.5]
    assert page.sections[2].tables[0].rows == [["gated.0", "Gated", "swap", GATED]]


def test_norms_of_one_place_in_many_blocks_share_a_row():
    rows = error_rows(certificate(), first=True)
    assert [row.name for row in rows] == ["the whole model", "blocks.*.norm ×2"]
    assert rows[1] == Row("blocks.*.norm ×2", 1.0, low=1.0, high=1.0, points=[1.0, 1.0], note="was 0.500", beside=0.5)


def test_what_is_no_worse_is_said_so():
    assert told_of([Check("the result", 1.0, 1.0)], "float32") == "further from float32 than it was"


def test_without_a_batch_the_page_says_so():
    page = certificate_page(certificate(checks=()))
    assert page.picture is None
    assert page.title == "2 of 2 norms are swapped; no batch was compared"
    assert page.sections[0].tables[0].columns == ["site", "class", "computes", "action"]


@pytest.mark.parametrize("verify", [None, torch.ones(2, 8)])
def test_pages_are_written_beside_json(verify, tmp_path):
    model = shaken(nn.Sequential(Residual(Llama(8)), Residual(Gemma(8)), nn.LayerNorm(8)))
    found = plan(model).apply(verify=verify)
    assert "3 of 3 norms are swapped" in words(found.save(tmp_path / "certificate.html"))
    assert found.save(tmp_path / "certificate.json").read_text().startswith("{")
    with pytest.raises(InvalidArgumentError, match=r"ending in \.json or \.html, but got '.*\.txt'"):
        found.save(tmp_path / "certificate.txt")
