"""The scripts that write docs/performance.md and docs/numerics.md, on made-up results and a norm that is wrong."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def numerics(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    spec = importlib.util.spec_from_file_location("build_numerics", DOCS / "build_numerics.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "build_numerics", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def builder_of_the_readme(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.syspath_prepend(str(DOCS.parent))
    return importlib.import_module("build_readme")


def result(name, seconds, limits, suite="rows"):
    return {"suite": suite, "name": name, "threads": 1, "seconds": seconds, "limits": limits}


GPU_RESULTS = [
    {
        "norm": "layer_norm",
        "shape": [4096, 8192],
        "dtype": "torch.bfloat16",
        "copy": 2e-5,
        "evenkeel": {"forward": 1e-5, "forward share": 0.95, "backward share": 0.8, "eager": 7e-6, "eager both": 38e-6},
        "torch": {"error": "out of memory"},
    },
    {"norm": "training step", "torch": {"step": 2e-3}, "evenkeel": {"step": 1e-3}},
    {"norm": "layer_norm", "shape": [1, 2], "dtype": "torch.bfloat16", "left out": "takes 9 GiB of memory"},
]


def test_the_performance_page_says_what_misses_its_target(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS.parent))
    from benchmarks.sweep import NORMS

    run = {
        "date": "2026-01-02",
        "machine": {"processor": "P", "system": "S", "threads": "2 used"},
        "versions": {"evenkeel": "1", "torch": "2", "python": "3", "scikit-learn": "4"},
        "simd": "avx2",
        "repeats": 3,
        "results": [
            result("fast <case>", {"copy": 1.0, "evenkeel": 1.5, "torch": 3.0}, {"copy": 2.0, "torch": 0.6}),
            result("slow case", {"evenkeel": 4.0, "torch": 2.0}, {"torch": 0.9}),
            result("Net, fp32, step", {"torch": 0.2, "evenkeel": 0.1, "lean": 0.2}, {}, suite="model")
            | {
                "ratios": {"evenkeel": [0.5, 0.4, 0.6], "lean": [0.99, 0.9, 1.1]},
                "saved": {"torch": 2**21, "evenkeel": 2**21, "lean": 2**20},
            },
            result("Net, folded (3), step", {"torch": 0.2, "evenkeel": 0.1}, {}, suite="convert")
            | {"ratios": {"evenkeel": [0.5, 0.4, 0.6]}},
            result(
                "StandardScaler.transform, in place, float32, 9x2",
                {"evenkeel": 1.0, "scikit-learn": 4.0},
                {},
                "columns",
            ),
            result(
                "StandardScaler.transform, output reused, float32, 9x2", {"copy": 1.0, "evenkeel": 1.0}, {}, "columns"
            ),
        ],
    }
    drawn = {"norm": "layer", "mode": "inference"}
    sweep = {
        "date": "2026-01-02",
        "processor": "P",
        "simd": "avx2",
        "torch's simd": "default",
        "threads": 2,
        "seed": 7,
        "summary": {
            "mean": 0.5,
            "ratio above 1": 0.25,
            "slower than 1.02": 0.25,
            "slower than 1.10": 0.125,
            "kinds": {"layer inference": 0.5},
        },
        "cases": [
            {"case": drawn, "name": "layer <i>", "ours": 2e-6, "theirs": 1e-6, "ratio": 2.0},
            *(
                {"case": drawn | {"norm": norm}, "name": norm, "ours": 1e-3, "theirs": 8e-3, "ratio": 0.125}
                for norm in NORMS
                if norm != "layer"
            ),
        ],
    }
    alone = sweep | {"threads": 1, "summary": sweep["summary"] | {"mean": 0.75}}
    for name, results in (("run", run), ("sweep", sweep), ("alone", alone)):
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    page, readme = tmp_path / "docs" / "performance.md", tmp_path / "README.md"
    page.parent.joinpath("measurements").mkdir(parents=True)
    page.parent.joinpath("measurements", "gpu.json").write_text(json.dumps({"results": dict(enumerate(GPU_RESULTS))}))
    where = {"date": "2025-12-31", "processor": "Elsewhere", "simd": "avx512", "torch's simd": "avx512", "threads": 2}
    elsewhere = where | {"seed": 1, "calls": 300, "mean": 0.25, "slower than 1.02": 0.0, "slower than 1.10": 0.0}
    record = page.parent / "measurements" / "sweeps.json"
    record.write_text(json.dumps([elsewhere, elsewhere | {"processor": "P", "simd": "avx2"}]))
    readme.write_text("above\n<!-- measured: speed -->\nold\n<!-- end -->\nbelow\n")
    subprocess.run(
        [
            *(sys.executable, DOCS / "build_performance.py"),
            *(tmp_path / f"{name}.json" for name in ("run", "sweep", "alone")),
            *("--page", page),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(DOCS.parent), *sys.path])},
        check=True,
        capture_output=True,
    )
    text = page.read_text()
    assert "2 of 3 targets are met;" in text
    assert "| fast <case> | 1.50 (≤ 2) | 0.50 (≤ 0.6) |" in text
    assert "| slow case |  | **2.00** (≤ 0.9) |" in text
    assert "| Net, fp32, step | 200 ms |  | 0.50 0.40–0.60 |  | ≈1 0.90–1.10 |  |" in text
    assert "| Net, fp32, saved | 2 MiB |  | 1.00 |  | 0.50 |  |" in text
    assert "| Net, folded (3), step | 200 ms | 0.50 0.40–0.60 |" in text
    assert text.index("## Whole models") < text.index("## Shapes drawn at random") < text.index("## LayerNorm")
    assert "25.0% of the calls take longer than torch's; 12.5% take more than 1.10" in text
    assert "| 2.00 | 2 | 1 | layer <i> |" in text
    processors = [
        "| Elsewhere | avx512 | avx512 | 2 | 300 | 0.25 | 0.0% | 0.0% | 2025-12-31 |",
        f"| P | avx2 | default | 2 | {len(NORMS)} | 0.50 | 25.0% | 12.5% | 2026-01-02 |",
        f"| P | avx2 | default | 1 | {len(NORMS)} | 0.75 | 25.0% | 12.5% | 2026-01-02 |",
    ]
    assert "\n".join(processors) in text
    assert [one["date"] for one in json.loads(record.read_text())] == ["2025-12-31", "2026-01-02", "2026-01-02"]
    for chart in ("performance-sweep.svg", "performance-rows-1.svg", "performance-model.svg"):
        assert f"(images/{chart})" in text
        ElementTree.parse(page.parent / "images" / chart)
    assert "| 4096x8192 | 20.0 | 95% / 80%; 7 / 38 µs | out of memory |" in text
    assert "Training step of a Llama-like model in bfloat16: torch 2.00 ms, evenkeel 1.00 ms." in text
    assert text.count("Training step of a Llama-like model") == 1
    for direction in ("forward", "backward"):
        ElementTree.parse(page.parent / "images" / f"performance-gpu-layer_norm-bfloat16-{direction}.svg")
    above, start, picture, _, caption, *more, end, below = readme.read_text().splitlines()
    assert (above, start, end, below) == ("above", "<!-- measured: speed -->", "<!-- end -->", "below")
    assert picture == "![evenkeel's time as a share of torch's and scikit-learn's](docs/images/speed.svg)"
    assert caption == "Measured 2026-01-02 on P, 1 thread: evenkeel 1 (avx2), torch 2, scikit-learn 4."
    assert more[0].startswith("Whole models in float32; norms on 7 calls drawn at random (means); ")
    texts = [text.text for text in ElementTree.parse(page.parent / "images" / "speed.svg").iter() if text.text]
    assert [text for text in texts if "," in text and "axis" not in text][-2 - len(NORMS) :] == [
        "Net, training step",
        "AddLayerNorm, random shapes",
        "AddRMSNorm, random shapes",
        "BatchNorm, random shapes",
        "GroupNorm, random shapes",
        "InstanceNorm, random shapes",
        "LayerNorm, random shapes",
        "RMSNorm, random shapes",
        "transform, in place, 2 columns",
    ]
    assert {"of torch's: 0.5", "of torch's: 2", "of torch's: 0.125", "of scikit-learn's: 0.25"} <= {*texts}


def test_a_readme_without_the_place_of_its_chart_is_one_line(builder_of_the_readme, tmp_path):
    (tmp_path / "README.md").write_text("words")
    with pytest.raises(SystemExit, match="write the place of the chart as"):
        builder_of_the_readme.fill(tmp_path / "README.md", "block")


def test_the_reference_of_the_numerics_page_agrees_with_autograd(numerics):
    for name, norm in numerics.NORMS.items():
        torch.manual_seed(0)
        features = norm.shape[norm.parameter]
        x, dy = torch.randn(2, *norm.shape, dtype=torch.float64)
        affine = tuple(torch.randn(features, dtype=torch.float64) for _ in range(2 if norm.center else 1))
        wanted = numerics.exact(norm, x, affine, dy, 1e-5)
        found = numerics.measured(torch.nn.functional, norm, x, affine, dy, 1e-5)
        assert set(found) == set(wanted)
        for label, value in found.items():
            np.testing.assert_allclose(
                value, wanted[label].astype(float), rtol=1e-9, atol=1e-9, err_msg=f"{name} {label}"
            )


def test_errors_are_measured_in_units_of_the_last_place(numerics):
    wanted = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert numerics.error(wanted, wanted, torch.float32) == 0.0
    assert numerics.error(np.add(wanted, [[0, 2.0**-22], [0, 0]]), wanted, torch.float32) == 1.0
    assert numerics.error(np.add(wanted, [[0, 0], [0, 1e-30]]), wanted, torch.float32) == np.inf
    assert numerics.error(np.array([[1.0, np.nan], [0, 0]]), wanted, torch.float32) == np.inf


def test_what_exceeds_the_contract_is_bold(numerics):
    results = {"evenkeel": {"y": 3.5}, "torch": {"y": 9000.0}}
    assert numerics.cell(results, "y", 3.0) == "**3.50** · 9000"
    assert numerics.cell(results, "y", 4.0) == "3.50 · 9000"
    assert numerics.cell({"evenkeel": {"y": np.inf}, "torch": {"y": 1.0}}, "y", 3.0) == "**∞** · 1.00"


def test_the_picture_is_small_and_there_for_light_and_dark():
    brightness = []
    for scheme in ("light", "dark"):
        path = DOCS / "images" / f"explain-{scheme}.png"
        assert path.stat().st_size < 80_000
        with Image.open(path) as picture:
            assert picture.size == (2004, 1444)
            assert len(picture.info["page"]) == 64  # the digest of the page that it shows
            brightness.append(np.asarray(picture.convert("L")).mean())
    light, dark = brightness
    assert light > 200
    assert dark < 60


@pytest.mark.slow
def test_the_picture_is_taken_again_only_when_the_page_changed(builder_of_the_readme, tmp_path):
    assert builder_of_the_readme.take_pictures(tmp_path) == ["light", "dark"]
    builder_of_the_readme.write_picture(tmp_path / "dark.png", (tmp_path / "explain-dark.png").read_bytes(), "another")
    (tmp_path / "dark.png").replace(tmp_path / "explain-dark.png")
    assert builder_of_the_readme.take_pictures(tmp_path) == ["dark"]
    assert builder_of_the_readme.take_pictures(tmp_path) == []
