"""The Triton kernels compiled ahead of time, for GPUs that are not here: no spills, whole vectors, one order."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NVIDIA = ("sm_80", "sm_89", "sm_90", "sm_100")
LATENCY = 0.8e-6  # seconds from a load to its data, under load


@pytest.fixture
def variants(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("gpu_variants")


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("build_gpu")


def narrow_accesses(assembly):
    """The accesses to rows that are not of 16 bytes; statistics, first values and sums have 4, 2 and 8."""
    return [
        line.strip()
        for line in assembly.splitlines()
        if re.search(r"\b(ld|st)\.global", line) and not re.search(r"\.v4\.b32|\.v2\.b64|\.v2\.b32|\.v8\.b32", line)
    ]


def test_a_variant_compiles_for_a_gpu_that_is_not_here(variants):
    found = variants.compiled(variants.forward_variant(1024, "bf16"), variants.TARGETS["sm_90"])
    assert found.spilled == 0
    assert 16 <= found.registers <= 128
    assert "cvt.rn.bf16x2.f32" in found.assembly  # rounded to nearest, which the interpreter cannot show
    assert not re.search(r"\b(mul|add|sub)\.f32\b", found.assembly)  # .rn: nothing may be fused that does not say so
    assert "ld.global.v4.b32" in found.assembly
    assert "st.global.v4.b32" in found.assembly


@pytest.mark.slow
@pytest.mark.parametrize("target", NVIDIA)
def test_nothing_is_spilled_and_rows_move_in_whole_vectors(variants, target):
    for variant in variants.variants():
        found = variants.compiled(variant, variants.TARGETS[target])
        assert found.spilled == 0, variant.name
        assert not re.search(r"\b(ld|st)\.local", found.assembly), variant.name
        if variant.constants["N"] % 16 == 0 and "tree" not in variant.name:
            reads = re.search(r"ld\.global\.v4\.b32|cp\.async\.cg\.shared\.global [^\n]*0x10", found.assembly)
            assert reads, variant.name
            assert variant.name.startswith("parameters") or "st.global.v4.b32" in found.assembly, variant.name
            # what is not a vector is one value a row: a first value, a statistic
            assert len(narrow_accesses(found.assembly)) <= 40, variant.name


@pytest.mark.slow
def test_nothing_is_spilled_on_cdna(variants):
    for variant in variants.variants():
        found = variants.compiled(variant, variants.TARGETS["gfx942"])
        assert found.spilled == 0, variant.name
        if variant.constants["N"] % 16 == 0 and "tree" not in variant.name:
            assert re.search(r"(global|buffer)_load_dwordx4", found.assembly), variant.name


@pytest.mark.slow
def test_every_nvidia_gpu_adds_in_one_order(variants):
    """Layouts decide in which order a reduction adds: they are the same from Ampere to Blackwell."""
    for variant in (
        *(variants.forward_variant(n, d) for n in (256, 4096, 65536) for d in ("bf16", "fp32")),
        *(variants.backward_variant(n, d) for n in (256, 4096, 65536) for d in ("bf16", "fp32")),
    ):
        found = [variants.compiled(variant, variants.TARGETS[target]).layouts for target in NVIDIA]
        layouts = {tuple(re.findall(r"^#blocked.*$", text, flags=re.MULTILINE)) for text in found}
        assert len(layouts) == 1, variant.name


@pytest.mark.slow
def test_enough_bytes_are_on_their_way_to_hide_the_latency(variants, builder):
    gpu = builder.GPUS["H200"]
    for features in (256, 1024, 4096, 8192, 16384, 65536):
        for variant in (variants.forward_variant(features, "bf16"), variants.backward_variant(features, "bf16")):
            found = variants.compiled(variant, variants.TARGETS["sm_90"])
            streams = 1 if variant.name.startswith("forward") else 2
            waiting = builder.programs_at_once(variant, found, gpu) * builder.tile_bytes(variant) * streams
            assert waiting >= 0.85 * gpu.bandwidth * LATENCY / gpu.multiprocessors, variant.name
