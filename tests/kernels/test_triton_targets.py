"""The Triton kernels compiled ahead of time, for GPUs that are not here: no spills, whole vectors, one order."""

import dataclasses
import importlib
import itertools
import random
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NVIDIA = ("sm_80", "sm_89", "sm_90", "sm_100")
CDNA = "gfx942"
WHOLE = "sm_90"  # the target that every variant is compiled for
VECTOR = r"(v4\.b32|v2\.b64)"
LATENCY = 0.8e-6  # seconds from a load to its data, under load
# the share of a copy's bandwidth to reach, by powers of two and by other widths, whose tiles are not full
NEEDS = {"forward": (0.92, 0.92), "backward": (0.75, 0.7)}
MOST_SPILLED = 64  # instructions of drawn norms: a few, where the assembler prefers one more program to registers


@pytest.fixture
def variants(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("gpu_variants")


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("gpu_compiled")


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


def test_a_variant_compiles_for_a_gpu_that_is_not_here(compiler, variants):
    found = compiler.compiled(variants.forward_variant(1024, "bf16"), compiler.TARGETS["sm_90"])
    assert found.spilled == 0
    assert 16 <= found.registers <= 128
    assert "cvt.rn.bf16x2.f32" in found.assembly  # rounded to nearest, which the interpreter cannot show
    assert not re.search(r"\b(mul|add|sub)\.f32\b", found.assembly)  # .rn: nothing may be fused that does not say so
    assert "ld.global.v4.b32" in found.assembly
    assert "st.global.v4.b32" in found.assembly


def test_a_channel_norm_compiles_too(compiler, variants):
    _, write, sums, _ = variants.channel_variants("GroupNorm", 320, 4096, "bf16", groups=32, last=True, activation=2)
    for variant in (write, sums):
        found = compiler.compiled(variant, compiler.TARGETS["sm_90"])
        # of the sums 2 instructions, for 168 registers; with 225 none is spilled, and two programs fit instead of three
        assert found.spilled <= (2 if variant is sums else 0)
        assert not re.search(r"\b(mul|add|sub)\.f32\b|ex2\.approx", found.assembly)  # the same bits on every GPU
        assert "ld.global.v4.b32" in found.assembly
    assert "cvt.rn.bf16x2.f32" in compiler.compiled(write, compiler.TARGETS["sm_90"]).assembly


def test_tables_and_images_compile_too(compiler, variants):
    sums, written = variants.table_variant(16, "fp32"), variants.map_variant(16, "fp32")
    pictures = next(one for one in variants.image_variants() if one.name == "images u8 fp32 HWC")
    for variant in (sums, written, pictures):
        found = compiler.compiled(variant, compiler.TARGETS["sm_90"])
        assert found.spilled == 0
        assert not re.search(r"\b(mul|add|sub)\.f(32|64)\b", found.assembly)
        assert variant is sums or "st.global.v4.b32" in found.assembly


@pytest.fixture
def compiled_for(variants):
    """The variants to compile for a target: all of them for one, and each of them for one of the others, drawn."""

    def chosen(target):
        drawn = list(variants.variants())
        if target == WHOLE:
            return drawn
        random.Random(0).shuffle(drawn)
        others = [name for name in (*NVIDIA, CDNA) if name != WHOLE]
        return drawn[others.index(target) :: len(others)]

    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("target", NVIDIA)
def test_nothing_is_spilled_and_rows_move_in_whole_vectors(compiler, compiled_for, target):
    for variant in compiled_for(target):
        found = compiler.compiled(variant, compiler.TARGETS[target])
        assert found.spilled == 0, variant.name
        assert not re.search(r"\b(ld|st)\.local", found.assembly), variant.name
        if variant.in_vectors:
            reads = rf"ld\.global\.{VECTOR}|cp\.async\.cg\.shared\.global [^\n]*0x10"
            assert re.search(reads, found.assembly), variant.name
            assert not variant.writes or re.search(rf"st\.global\.{VECTOR}", found.assembly), variant.name
            # what is not a vector is one value a row or channel: a first value, a statistic
            assert len(narrow_accesses(found.assembly)) <= 48, variant.name


def test_no_program_has_more_threads_than_a_gpu_allows(compiler, variants):
    for variant, (name, target) in itertools.product(variants.variants(), compiler.TARGETS.items()):
        warps = compiler.warps_of(variant.launch.warps, target.warp_size)
        assert 128 <= warps * target.warp_size <= 1024, (variant.name, name)


@pytest.mark.slow
def test_nothing_is_spilled_on_cdna(compiler, compiled_for):
    for variant in compiled_for(CDNA):
        found = compiler.compiled(variant, compiler.TARGETS[CDNA])
        assert found.spilled == 0, variant.name
        if variant.in_vectors:
            assert re.search(r"(global|buffer)_load_dwordx4", found.assembly), variant.name
            assert not variant.writes or re.search(r"(global|buffer)_store_dwordx4", found.assembly), variant.name


def summed(layouts):
    """The types of what is reduced, with their layouts: these decide in which order it is added."""
    layout_of = dict(re.findall(r"^(#\w+) = (.*)$", layouts, flags=re.MULTILINE))
    types = re.findall(r"\}\) : \((tensor<[^)]*)\) ->", layouts)
    return tuple(sorted({re.sub(r"#\w+", lambda name: layout_of.get(name[0], name[0]), text) for text in types}))


@pytest.mark.slow
def test_every_nvidia_gpu_adds_in_one_order(compiler, variants):
    for make, features, dtype in itertools.product(
        (variants.forward_variant, variants.backward_variant), (256, 4096, 65536, 262144), ("bf16", "fp32")
    ):
        variant = make(features, dtype)
        found = {summed(compiler.compiled(variant, compiler.TARGETS[target]).layouts) for target in NVIDIA}
        assert len(found) == 1, variant.name
        assert found != {()}


@pytest.mark.slow
@pytest.mark.parametrize("features", [256, 1000, 4096, 32768])
def test_the_order_depends_on_nothing_else_that_is_asked_for(compiler, variants, features):
    plain = variants.forward_variant(features, "bf16")
    alone = dataclasses.replace(plain, pointers=plain.pointers | {"statistics": None})
    residual = variants.forward_variant(features, "bf16", residual="bf16")
    wide = dataclasses.replace(plain, wide=tuple(plain.counts))
    asked = (plain, alone, residual, wide, variants.forward_variant(features, "bf16", NESTED=True))
    assert len({summed(compiler.compiled(each, compiler.TARGETS["sm_90"]).layouts) for each in asked}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", NVIDIA)
def test_channel_norms_of_drawn_shapes_spill_little(compiler, variants, target):
    generator = random.Random(target)  # the assembler decides: a shape drawn anew may spill by chance
    for _ in range(6):
        channels, positions = generator.choice((3, 30, 64, 300, 768)), generator.choice((7, 33, 196, 1000, 5001))
        options = {name: generator.random() < 0.4 for name in ("last", "masked")}
        options |= {"groups": generator.choice((0, -1, 1)), "activation": generator.randrange(3)}
        for variant in variants.channel_variants("drawn", channels, positions, "bf16", **options):
            found = compiler.compiled(variant, compiler.TARGETS[target])
            assert found.spilled <= MOST_SPILLED, (variant.name, options)


def on_the_way(builder, variant, found, gpu):
    """Bytes that a multiprocessor waits for, by those that hide the latency at the full bandwidth of a copy.

    Nobody waits for what is written.
    """
    read = sum(name in variant.pointers for name in ("dy", "x"))
    waiting = builder.programs_at_once(variant, found, gpu) * builder.tile_bytes(variant) * read
    return waiting / (gpu.bandwidth * read / (read + variant.writes) * LATENCY / gpu.multiprocessors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["H100", "H200", "B200", "MI300X"])
def test_enough_bytes_are_on_their_way_to_hide_the_latency(compiler, variants, builder, name):
    gpu, short = builder.GPUS[name], []
    others = [n for n in variants.OTHER_FEATURES if n % 8 == 0] if name in ("H100", "H200") else []
    for dtype, features in itertools.product(("bf16", "fp32"), (*variants.FEATURES, *others)):
        for variant in (variants.forward_variant(features, dtype), variants.backward_variant(features, dtype)):
            share = on_the_way(builder, variant, compiler.compiled(variant, compiler.TARGETS[gpu.target]), gpu)
            if share < NEEDS[variant.name.split()[0]][features in others]:
                short.append(f"{variant.name}: {share:.2f}")
    assert short == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["H100", "H200", "MI300X"])
def test_channel_norms_have_enough_bytes_on_their_way_too(compiler, variants, builder, name):
    gpu, short = builder.GPUS[name], []
    for variant in variants.all_channel_variants():
        if not (variant.in_vectors and variant.elements) or "few" in variant.name or variant.pointers.get("mask"):
            continue
        found = compiler.compiled(variant, compiler.TARGETS[gpu.target])
        tiles = 2 if "cp.async" in found.assembly and variant.name.startswith("measure") else 1  # two stages ahead
        if (share := tiles * on_the_way(builder, variant, found, gpu)) < 0.75:
            short.append(f"{variant.name}: {share:.2f}")
    assert short == []


@pytest.mark.slow
def test_the_page_shows_what_the_kernels_take(builder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["build_gpu", "--check"])
    assert builder.main() == 0
