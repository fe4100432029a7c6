"""The page of every norm class of transformers: what it counts, and that its script still finds the same."""

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import evenkeel as ek

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "norms-in-the-wild.md").read_text()
HEADING = r"^## {} (\S+): of (\d+) norms of one input, (\d+) are recognised, (\d+) wrongly$"
# by what they do: Llama rounds before the weight, Gemma adds 1, OLMo2 rounds once, T5 rounds to the weight's dtype
SAMPLE = {
    "llama.LlamaRMSNorm": "rms over token, eps 1e-06, early cast",
    "gemma.GemmaRMSNorm": "rms over token, eps 1e-06, 1 + weight",
    "gpt_oss.GptOssRMSNorm": "rms over token, eps 1e-06",
    "t5.T5LayerNorm": "rms over token, eps 1e-06, weight cast",
    "detr.DetrFrozenBatchNorm2d": "moments over channel, eps 1e-05, remembered, frozen",
    "cohere.CohereLayerNorm": "moments over token, eps 1e-05, no bias",
}

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own making


@pytest.fixture
def builder(monkeypatch):
    spec = importlib.util.spec_from_file_location("build_norms", DOCS / "build_norms.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "build_norms", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def counts(page, package):
    version, *numbers = re.search(HEADING.format(package), page, flags=re.MULTILINE).groups()
    return version, *map(int, numbers)


def test_the_page_tells_what_was_aimed_at():
    _, norms, recognised, wrong = counts(PAGE, "transformers")
    assert norms >= 250
    assert recognised >= 0.95 * norms
    assert wrong == 0
    for package in ("timm", "diffusers"):
        assert counts(PAGE, package)[3] == 0


def test_every_row_says_what_or_why():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) >= 100
    assert all(cell.strip() for line in rows for cell in re.split(r"(?<!\\)\|", line)[1:-1])


def test_some_classes_are_what_the_page_says(builder):
    folders = {name.partition(".")[0] for name in SAMPLE}
    entries = [entry for entry in builder.candidates("transformers", folders) if place_of(entry) in SAMPLE]
    found = {one.name: one for entry in entries for one in builder.examine(*entry)}
    assert {name: one.spec_text() for name, one in found.items()} == SAMPLE
    assert all(one.error <= 16 for one in found.values())
    assert all(builder.short(one.body) in PAGE for one in found.values())


def place_of(entry):
    return f"{entry[0].split('.')[-2]}.{entry[1]}"


def test_the_script_tells_a_wrong_swap(builder, monkeypatch):
    norm = torch.nn.RMSNorm(16)
    found = ek.convert.recognize(norm)
    assert builder.compared(norm, found) <= 4
    monkeypatch.setattr(ek.nn.RMSNorm, "forward", lambda self, x: 1.001 * torch.nn.RMSNorm.forward(self, x))
    assert builder.compared(norm, found) > builder.MOST_ULPS


@pytest.mark.slow
def test_the_page_is_up_to_date(builder):
    text = builder.sections("transformers", builder.survey("transformers"))
    version, norms, recognised, wrong = counts(text, "transformers")
    assert wrong == 0
    assert recognised >= 0.95 * norms
    if counts(PAGE, "transformers")[0] == importlib.metadata.version("transformers") == version:
        assert counts(PAGE, "transformers") == (version, norms, recognised, wrong)
