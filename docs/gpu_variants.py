"""The variants of the GPU kernels that are compiled ahead of time."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from gpu_compiled import BYTES, Variant

from evenkeel._spec import ACTIVATIONS, ChannelOptions
from evenkeel.kernels.triton import _columns, columns_kernels, images_kernels
from evenkeel.kernels.triton import channels_backward_kernels as channels_backward
from evenkeel.kernels.triton import channels_forward_kernels as channels_forward
from evenkeel.kernels.triton import rows_backward_kernels as backward
from evenkeel.kernels.triton import rows_forward_kernels as forward
from evenkeel.kernels.triton._channel_calls import Call, Step, Walk
from evenkeel.kernels.triton._launch import (
    CHANNEL_BLOCK,
    IMAGE_BLOCK,
    PARAMETER_BLOCK,
    SUMS_LAUNCH,
    TABLE_TILE,
    TREE_LAUNCH,
    Launch,
    backward_launch,
    forward_launch,
    merge_launch,
    table_launch,
    table_merge_launch,
    table_tiles,
)

FEATURES = (256, 1024, 4096, 8192, 16384, 65536, 131072, 262144)
# widths of models that are no powers of two, few features, and odd numbers
OTHER_FEATURES = (33, 64, 128, 300, 768, 1152, 1536, 3072, 5120, 7168, 12288, 50257, 100003)
RMS, MOMENTS, L2 = 0, 1, 2
RELU, SILU = ACTIVATIONS["relu"], ACTIVATIONS["silu"]
OPTIONS_OF_THE_COMPILER = ("num_warps", "enable_fp_fusion")


def options(features: int, launch: Launch, **more: Any) -> dict[str, Any]:
    """The compile-time arguments of a launch."""
    return {
        "N": features,
        "BLOCK": launch.block,
        "ROWS": launch.rows,
        "CHUNK": launch.chunk,
        "STATISTIC": MOMENTS,
        "EPS_MODE": 0,
        "EARLY": 0,
        "ROUNDED": True,
        "FROM_OUTPUT": False,
        "NESTED": False,
        "ALIGNED": math.gcd(features, 16),
    } | more


def forward_variant(features: int, dtype: str, label: str = "", residual: str | None = None, **more: Any) -> Variant:
    """The forward of LayerNorm, or of the statistic in ``more``."""
    launch = forward_launch(features)
    kernel = forward.long_rows_forward_kernel if launch.looped else forward.rows_forward_kernel
    centred = more.get("STATISTIC", MOMENTS) == MOMENTS
    pointers = {"x": dtype, "y": dtype, "weight": dtype, "bias": dtype if centred else None, "statistics": "fp32"}
    pointers |= {"residual": residual, "total": residual}
    moved = 2 * BYTES[dtype] + (2 * BYTES[residual] if residual else 0)
    name = f"forward {label or 'LayerNorm'} {dtype} {features}"
    again = BYTES[dtype] if launch.looped else 0
    return Variant(name, kernel, launch, pointers, options(features, launch, **more), moved, features, again)


def backward_variant(features: int, dtype: str, label: str = "", extra: str | None = None, **more: Any) -> Variant:
    """The backward of LayerNorm, or of the statistic in ``more``."""
    launch = backward_launch(features, BYTES[dtype])
    kernel = backward.long_rows_backward_kernel if launch.looped else backward.rows_backward_kernel
    bias = dtype if more.get("STATISTIC", MOMENTS) == MOMENTS else None
    pointers = {"dy": dtype, "x": dtype, "residual": extra, "dsum": extra, "weight": dtype, "bias": bias}
    pointers |= {"statistics": "fp32", "dx": dtype, "dresidual": extra}
    pointers |= {"dweight": "fp32", "dbias": "fp32" if bias else None}
    # the sums of a chunk are written, and read again
    moved = 3 * BYTES[dtype] + 2 * 4 * (2 if bias else 1) / launch.chunk
    constants, again = options(features, launch, **more), 0
    if launch.looped:
        again = 2 * BYTES[dtype]
        blocks = -(-features // SUMS_LAUNCH.block)
        constants |= {"ROWS": SUMS_LAUNCH.rows, "COLUMNS": SUMS_LAUNCH.block, "LINES": launch.chunk, "BLOCKS": blocks}
    name = f"backward {label or 'LayerNorm'} {dtype} {features}"
    return Variant(name, kernel, launch, pointers, constants, moved, features, again, again)


def tree_variant(features: int, dtype: str) -> Variant:
    """The tree over the chunks."""
    pointers: dict[str, str | None] = dict.fromkeys(("dweight_partial", "dbias_partial"), "fp32")
    constants = {"N": features, "BLOCK": TREE_LAUNCH.block, "ROWS": TREE_LAUNCH.rows}
    return Variant(
        f"tree {dtype} {features}", backward.tree_kernel, TREE_LAUNCH, pointers | {"dweight": dtype, "dbias": dtype},
        constants,
    )  # fmt: skip


def channel_call(
    channels: int, positions: int, *, samples: int = 64, groups: int = 0, last: bool = False, remembered: bool = False,
    masked: bool = False, activation: int = 0, eps_mode: int = 0,
) -> Call:  # fmt: skip
    """The launches of a channel norm."""
    options = ChannelOptions(groups, 1e-5, eps_mode, 0.0, activation)
    layout = torch.channels_last if last else None
    return Call((samples, channels, positions, 1), layout, options, remembered, masked)


def step_variant(
    name: str, call: Call, step: Step, launch: Launch, pointers: dict[str, str | None], size: int, **more: Any
) -> Variant:
    """A step of a call that goes through tensors of elements of so many bytes."""
    launch = replace(launch, warps=step.program.warps)
    constants = {key: value for key, value in step.program.constants.items() if key not in OPTIONS_OF_THE_COMPILER}
    tensors = sum(name in pointers for name in ("dy", "x", "y", "dx"))
    found = Variant(
        name, step.program.kernel, launch, pointers, constants, tensors * size, programs=step.grid[0],
        elements=call.samples * call.channels * call.positions, **more,
    )  # fmt: skip
    wide = [count for count, number in zip(found.counts, step.integers, strict=True) if number >= 2**31]
    return replace(found, wide=tuple(wide))


def channel_variants(norm: str, channels: int, positions: int, dtype: str, **options: Any) -> list[Variant]:
    """The kernels of a channel norm that go through a tensor: its statistics and y, its sums and dx."""
    call = channel_call(channels, positions, **options)
    mask = "u8" if call.masked else None
    given = {"x": dtype, "weight": dtype, "bias": dtype, "mask": mask, "statistics": "fp32"}
    measured, summed, whole = call.measured(), call.walk(summed=True), call.walk(summed=False)
    rows: tuple[tuple[str, Step, Walk, dict[str, str | None]], ...] = (
        ("measure", call.measure, measured, {"x": dtype, "mask": mask, "partial": "fp64"}),
        ("write", call.write, whole, given | {"y": dtype}),
        ("sums", call.sums, summed, given | {"dy": dtype, "partial": "fp64"}),
        ("gradient", call.gradient, whole,
         given | {"dy": dtype, "means": None if call.remembered else "fp64", "dx": dtype}),
    )  # fmt: skip
    name = f"{norm} {dtype} {channels}x{positions}" + (" last" if call.last else "")
    return [
        step_variant(
            f"{label} {name}", call, step, walk.launch(), pointers, BYTES[dtype],
            inner=channels if call.last else walk.positions,
        )
        for label, step, walk, pointers in rows
    ]  # fmt: skip


def group_variants(channels: int, positions: int, groups: int, dtype: str, **options: Any) -> list[Variant]:
    """The forward and the gradients of groups that a program each goes through, twice."""
    call, size = channel_call(channels, positions, groups=groups, **options), BYTES[dtype]
    launch = call.walk_of_group().launch()
    activation = ("", " relu", " SiLU")[call.options.activation]
    name = f"{activation} {dtype} {channels}x{positions}"
    given: dict[str, str | None] = {"x": dtype, "weight": dtype, "bias": dtype, "statistics": "fp32"}
    written: dict[str, str | None] = {"variances": "fp32", "y": dtype}
    others: dict[str, str | None] = {"dy": dtype, "dx": dtype, "partial": "fp64"}
    return [
        step_variant(
            f"group{name}", call, call.group_forward, launch, given | written, size, inner=positions, again=size,
            ahead=True,
        ),
        step_variant(
            f"group gradient{name}", call, call.group_gradient, launch, given | others, size, inner=positions,
            again=2 * size,
        ),
    ]  # fmt: skip


def merging_variants() -> Iterator[Variant]:
    """The kernels that have statistics alone."""
    merge, eps = merge_launch(1000), {"EPS": 1e-5, "EPS_MODE": 0}
    block = {"ROWS": merge.rows, "BLOCK": merge.block}
    saved: dict[str, str | None] = {"statistics": "fp32", "variances": "fp32"}
    kernel: Any = channels_forward.channels_merge_kernel
    moved: dict[str, str | None] = {"running_mean": "fp32", "running_var": "fp32"}
    for name, share in (("merge", None), ("merge and move", "fp64")):
        running = (moved if share else dict.fromkeys(moved)) | {"share": share}
        yield Variant(name, kernel, merge, saved | {"partial": "fp64"} | running, eps | block)
    kernel = channels_forward.channels_remember_kernel
    alone = Launch(block=CHANNEL_BLOCK)
    given = saved | {"mean": "fp32", "variance": "fp32"}
    yield Variant("remember", kernel, alone, given, eps | {"C": 256, "BLOCK": alone.block})
    kernel = channels_forward.channels_update_kernel
    given = saved | moved
    yield Variant("update", kernel, alone, given, {"C": 256, "WIDTH": 4, "BLOCK": alone.block})
    kernel = channels_backward.channels_means_kernel
    given = {"partial": "fp64", "weight": "bf16", "means": "fp64"}
    constants = block | {"SHARE": 8, "PARAMETERS": 32, "MASKED": True}
    yield Variant("means", kernel, merge, given, constants)
    kernel = channels_backward.channels_parameters_kernel
    given = {"partial": "fp64", "dweight": "bf16", "dbias": "bf16"}
    yield Variant("sum", kernel, merge, given, {"C": 256, "CHANNELS": merge.rows, "BLOCK": merge.block})


def all_channel_variants() -> Iterator[Variant]:
    """Channel norms in both layouts, with and without whole vectors, and what is fused once."""
    for dtype in ("bf16", "fp32"):
        yield from channel_variants("BatchNorm", 256, 3136, dtype)
        yield from channel_variants("BatchNorm", 256, 3136, dtype, last=True)
        yield from channel_variants("GroupNorm", 320, 4096, dtype, groups=32, activation=SILU)
    yield from channel_variants("BatchNorm relu", 2048, 49, "bf16", activation=RELU)
    yield from channel_variants("GroupNorm relu", 320, 4096, "bf16", groups=32, activation=RELU)
    yield from channel_variants(
        "GroupNorm masked", 320, 4096, "bf16", groups=32, last=True, activation=SILU, masked=True
    )
    yield from channel_variants("BatchNorm masked", 512, 784, "bf16", masked=True)
    yield from channel_variants("BatchNorm masked", 300, 1000, "bf16", last=True, masked=True)
    yield from channel_variants("InstanceNorm", 100, 333, "fp32", groups=-1)
    yield from channel_variants("GroupNorm few", 64, 16, "fp16", groups=32, activation=SILU)
    yield from channel_variants("inference silu", 256, 3136, "bf16", remembered=True, activation=SILU)
    for last in (False, True):  # so large that places in a tile have 64 bits
        yield from channel_variants("BatchNorm", 2, 2**30, "bf16", last=last)
    for dtype in ("bf16", "fp32"):
        yield from group_variants(512, 1024, 32, dtype, activation=SILU)
        yield from group_variants(1280, 256, 32, dtype, activation=SILU)
        yield from group_variants(1280, 256, 32, dtype)
    yield from group_variants(512, 196, 32, "bf16", eps_mode=1)
    yield from group_variants(66, 49, 2, "fp16", activation=RELU)
    yield from merging_variants()


def table_variant(columns: int, dtype: str, rows: int = 2**20, *, weighted: bool = False) -> Variant:
    """The sums of a table's columns."""
    walk = _columns.Walk(1, 1, rows, columns)
    whole = dtype == "u8" and not weighted
    launch = table_launch(walk.width, TABLE_TILE)
    tiles = table_tiles(-(-rows // walk.fold // launch.rows))
    launch = replace(launch, chunk=tiles)
    pointers = {"x": dtype, "weight": "fp64" if weighted else None, "partial": "fp64"}
    constants = walk.constants() | {"ROWS": launch.rows, "BLOCK": launch.block, "ALIGNED": walk.aligned}
    constants |= {"NESTED": False, "WIDE": dtype in ("fp64", "i64"), "ROUNDED": dtype[0] in "ui", "BYTES": whole}
    moved = BYTES[dtype] + 8 * 8 * 2 / (launch.rows * tiles)  # the sums of lanes are written, and read again
    name = f"sums of columns {dtype} {columns}" + (" weighted" if weighted else "")
    inner = walk.width if walk.aligned == 16 and not whole else 0  # a thread has 8 elements, of 8 bytes there
    return Variant(name, columns_kernels.columns_sum_kernel, launch, pointers, constants, moved, inner)


def map_variant(columns: int, dtype: str, to: str = "", **more: Any) -> Variant:
    """The affine map of columns."""
    fold = _columns.fold_of(columns)
    width = columns * fold
    launch = table_launch(width, 2 * TABLE_TILE)
    pointers: dict[str, str | None] = {"x": dtype, "y": to or dtype, "shift": "fp64", "scale": "fp64", "offset": "fp64"}
    pointers["infinite"] = "u8" if more.pop("searched", False) else None
    constants = {"COLUMNS": columns, "FOLD": fold, "WIDTH": width, "ROWS": launch.rows, "BLOCK": launch.block}
    constants |= {"ALIGNED": math.gcd(width, 16), "LOW": None, "HIGH": None} | more
    name = " ".join(["map of columns", dtype, *([to] if to else []), str(columns), *more])
    moved = BYTES[dtype] + BYTES[to or dtype]
    return Variant(name, columns_kernels.columns_map_kernel, launch, pointers, constants, moved, width)


def image_variants() -> Iterator[Variant]:
    """Bytes and numbers to planes."""
    constants = {"EVEN": 16, "BLOCK": IMAGE_BLOCK, "LARGEST": 255.0}
    launch = Launch(block=IMAGE_BLOCK)
    lying = {"CHANNELS": 3, "WHOLE": True, "WIDE": False, "ALIGNED": 16, "STEP": 1}
    kernel: Any = images_kernels.images_map_kernel
    tensors: dict[str, str | None] = {"mean": "fp64", "std": "fp64", "forms": "fp32"}
    for to in ("fp32", "bf16"):
        given = tensors | {"x": "u8", "y": to}
        planes = Variant(f"images u8 {to} CHW", kernel, launch, given, constants | lying, 1 + BYTES[to], 224 * 224)
        yield planes
        pixels: Any = images_kernels.images_pixels_kernel
        half = constants | {"BLOCK": IMAGE_BLOCK // 2}
        yield Variant(f"images u8 {to} HWC", pixels, Launch(block=IMAGE_BLOCK // 2), given, half, 1 + BYTES[to])
    given = tensors | {"forms": None, "x": "fp32", "y": "fp32"}
    yield Variant("images fp32 CHW", kernel, launch, given, constants | lying, 8, 224 * 224)
    cropped = constants | lying | {"WHOLE": False, "STEP": 4}
    yield Variant("images u8 fp32 crop", kernel, launch, tensors | {"x": "u8", "y": "fp32"}, cropped, 5)
    form: Any = images_kernels.images_form_kernel
    yield Variant("form of bytes", form, launch, tensors, {"LARGEST": 255.0})


def all_table_variants() -> Iterator[Variant]:
    """Tables of few columns and of many, and what differs with the type and the options."""
    for dtype in ("bf16", "fp32", "fp64", "u8"):
        yield table_variant(16, dtype)
        yield map_variant(16, dtype, "fp32" if dtype == "u8" else "")
    for columns in (1, 3, 256):
        yield table_variant(columns, "fp32")
    yield table_variant(5, "fp32", 1_000_001)
    yield table_variant(16, "i64")
    yield table_variant(256, "fp32", weighted=True)
    yield map_variant(5, "fp32")
    yield map_variant(256, "fp32", LOW=-2.0, HIGH=2.0, searched=True)
    merge = table_merge_launch(4096)
    fields = ("mean", "m2", "minimum", "maximum", "mean_low")
    counts = dict.fromkeys(("counts", "missing", "infinite"), "i64")
    pointers: dict[str, str | None] = {"partial": "fp64", **counts, **dict.fromkeys(fields, "fp64")}
    constants = {"COLUMNS": 16, "FOLD": 1, "WIDTH": 16, "ROWS": merge.rows, "BLOCK": merge.block}
    yield Variant("merge of columns", columns_kernels.columns_merge_kernel, merge, pointers, constants)
    yield from image_variants()


def variants() -> Iterator[Variant]:
    """Every kernel in every length, every mode once, and every kernel that is given integers once with wide ones."""
    found = [*row_variants(), *all_channel_variants(), *all_table_variants()]
    yield from found
    first = {variant.kernel.__name__: variant for variant in reversed(found) if variant.counts}
    yield from (replace(variant.named("i64"), wide=tuple(variant.counts)) for variant in first.values())


def row_variants() -> Iterator[Variant]:
    """Row norms of every length, the options that change their code, and the tree over their chunks."""
    for dtype in ("bf16", "fp32"):
        for features in FEATURES + OTHER_FEATURES:
            yield forward_variant(features, dtype)
            yield forward_variant(features, dtype, "RMSNorm", STATISTIC=RMS)
            yield backward_variant(features, dtype)
            yield backward_variant(features, dtype, "RMSNorm", STATISTIC=RMS)
    for features in (1000, 32768):  # resident, and in blocks
        yield from forward_modes(features)
        yield from backward_modes(features)
    yield tree_variant(4096, "bf16")
    limits = {"SMALLEST": 2.0**-10, "MOST": 16.0, "BLOCK": PARAMETER_BLOCK}
    pointers: dict[str, str | None] = {"weight": "bf16", "bias": "bf16", "enough": "i1"}
    yield Variant("recomputable", forward.recomputable_kernel, Launch(block=PARAMETER_BLOCK), pointers, limits)


def forward_modes(features: int) -> Iterator[Variant]:
    """The options that change the forward's code."""
    yield forward_variant(features, "fp16", "outside", EPS_MODE=1)
    yield forward_variant(features, "bf16", "clamp", EPS_MODE=2)
    yield forward_variant(features, "bf16", "l2", STATISTIC=L2)
    yield forward_variant(features, "bf16", "early", EARLY=1)
    yield forward_variant(features, "bf16", "early in one dtype", EARLY=2, STATISTIC=RMS)
    yield forward_variant(features, "bf16", "nested", NESTED=True)
    yield forward_variant(features, "bf16", "residual", "fp32")
    yield forward_variant(features, "bf16", "unrounded residual", "fp32", ROUNDED=False)
    yield forward_variant(features, "bf16").named("inference", ("statistics",))


def backward_modes(features: int) -> Iterator[Variant]:
    """The options that change the backward's code, and each gradient without the others."""
    yield backward_variant(features, "bf16", "clamp", EPS_MODE=2)
    yield backward_variant(features, "bf16", "l2", STATISTIC=L2)
    yield backward_variant(features, "bf16", "from output", FROM_OUTPUT=True)
    yield backward_variant(features, "bf16", "nested", NESTED=True)
    yield backward_variant(features, "bf16", "residual", "fp32", ROUNDED=False)
    whole = backward_variant(features, "bf16")
    looped = whole.launch.looped
    yield whole.named("dx alone", ("dweight", "dbias"), **{"BLOCKS": 0} if looped else {})
    yield whole.named("parameters alone", ("dx",), **{"LINES": 0} if looped else {})
