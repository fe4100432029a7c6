"""Compile the GPU kernels ahead of time and write the tables of docs/kernels-gpu.md; no GPU is needed.

Usage: PYTHONPATH=src python docs/build_gpu.py [--check]

The predictions come from a model of the schedule and were made before any measurement: see `predicted_share`.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gpu_compiled as c
import gpu_variants as v

from evenkeel.report import write_text_atomically

PAGE = Path(__file__).parent / "kernels-gpu.md"
ROWS = (1, 512, 4096, 32768)
COLUMNS = (256, 1024, 4096, 8192, 16384, 65536, 262144)
# channels, positions and groups of the maps in a ResNet 50 and a U-Net, and how many samples
MAPS = {
    "BatchNorm": (64, ((256, 3136, 0), (1024, 196, 0), (2048, 49, 0))),
    "GroupNorm SiLU": (8, ((320, 4096, 32), (1280, 256, 32))),
}
SIZES = (2**16, 2**20, 2**24, 2**28)  # elements of a table or of pictures
REACHABLE = 0.92  # of the peak bandwidth, by a plain copy
LATENCY = 0.8e-6  # seconds from a load to its data
STEP = 0.6e-6  # of a program between its loads and its stores: reductions across warps and the chain behind them
LAUNCH = 2e-6  # of a kernel on the device, from its start to its first load


@dataclass(frozen=True)
class Gpu:
    """What a model of the schedule needs of a GPU: its target, multiprocessors, bytes a second, and their limits."""

    target: str
    multiprocessors: int
    bandwidth: float
    warps: int = 64
    registers: int = 65536
    shared: int = 227 * 1024
    first: int = 256 * 1024  # bytes of the first-level cache and shared memory of a multiprocessor
    cache: float = 50e6  # bytes of the second-level cache, and how many it hands out in a second
    cache_bandwidth: float = 5.5e12


GPUS = {
    "H100": Gpu("sm_90", 132, 3.35e12),
    "H200": Gpu("sm_90", 132, 4.8e12),
    "B200": Gpu("sm_100", 148, 8.0e12, cache=126e6, cache_bandwidth=9e12),
    "MI300X": Gpu("gfx942", 304, 5.3e12, warps=32, registers=131072, shared=64 * 1024, first=32 * 1024, cache=256e6),
}


def tile_bytes(variant: c.Variant) -> int:
    """Bytes that a program reads at once of one tensor."""
    dtype = variant.pointers["x"] or "fp32"
    block = variant.launch.block
    return min(block, variant.constants.get("N", block)) * variant.launch.rows * c.BYTES[dtype]


def programs_at_once(variant: c.Variant, found: c.Resources, gpu: Gpu) -> int:
    """How many programs a multiprocessor runs side by side."""
    width = c.TARGETS[gpu.target].warp_size
    warps = c.warps_of(variant.launch.warps, width)
    by_registers = gpu.registers // (math.ceil(found.registers / 8) * 8 * width * warps)
    by_memory = gpu.shared // (found.shared + 1024)
    return max(1, min(by_registers, gpu.warps // warps, by_memory, 32))


class Work(NamedTuple):
    """What a kernel does: how many programs, of how many tiles one after the other, for how many elements in all."""

    programs: int
    steps: int
    elements: int


def work_on_rows(variant: c.Variant, rows: int) -> Work:
    """The work on some rows."""
    launch, features = variant.launch, variant.constants["N"]
    elements, blocks = rows * features, math.ceil(features / launch.block)
    if not launch.looped:
        per_program = max(launch.chunk, launch.rows)
        return Work(math.ceil(rows / per_program), per_program // launch.rows, elements)
    lines = Work(rows, 2 * blocks, elements)  # a row a program, read twice
    if "LINES" not in variant.constants:
        return lines
    # and the programs of dγ and dβ: as many as there are, of as many steps as all have on average
    programs = math.ceil(rows / launch.chunk) * variant.constants["BLOCKS"]
    steps = programs * launch.chunk / variant.constants["ROWS"] + lines.programs * lines.steps
    return Work(rows + programs, math.ceil(steps / (rows + programs)), elements)


def work_on_tree(variant: c.Variant, chunks: int, elements: int) -> Work:
    """The work on the sums of some chunks, whose bytes are counted with the kernel that wrote them."""
    launch = variant.launch
    blocks = math.ceil(variant.constants["N"] / launch.block)
    return Work(2 * blocks, math.ceil(chunks / launch.rows), elements)


def work_on_maps(variant: c.Variant) -> Work:
    """The work of the call that a variant is taken from."""
    known, steps = variant.constants, 1
    if "SPANS" not in known:  # a program for a group, which it goes through twice
        steps = 2 * math.ceil(known["SHARE"] / known["CHANNELS"]) * math.ceil(variant.inner / known["BLOCK"])
    elif not variant.writes:
        steps = variant.launch.chunk // variant.launch.block
    return Work(variant.programs, steps, variant.elements)


def work_on_table(variant: c.Variant, elements: int) -> Work:
    """The work on a table or on pictures of so many elements: tiles of a chunk or channels of a picture are steps."""
    launch = variant.launch
    steps = launch.chunk if launch.rows > 1 else 3
    return Work(math.ceil(elements / (launch.block * launch.rows * steps)), steps, elements)


def traffic(variant: c.Variant, found: c.Resources, gpu: Gpu) -> tuple[float, float]:
    """Bytes for each element that memory moves, and that the second-level cache hands out.

    What a program reads again, the newest first, its first-level cache still has as far as it reaches; the rest and
    what others read again is in the second-level cache, as far as that holds what is under way at once.
    """
    if not variant.again:
        return variant.moved, 0.0
    constants, programs = variant.constants, programs_at_once(variant, found, gpu)
    lines, blocks = constants.get("LINES", 1), constants.get("BLOCKS", 0)
    row = (constants.get("N") or variant.elements // variant.programs) * variant.again  # bytes read of a row
    lines_at_once = max(1.0, programs * lines / (lines + blocks))
    first = 0 if variant.ahead else gpu.first - programs * found.shared
    again = variant.again * (1 - min(1.0, first / (lines_at_once * row)))
    under_way = (programs * gpu.multiprocessors / (lines + blocks) + (blocks > 0)) * lines * row
    lost = 1 - min(1.0, gpu.cache / under_way)
    return variant.moved + lost * (again + variant.others), variant.again + again + variant.others


def seconds(variant: c.Variant, found: c.Resources, gpu: Gpu, work: Work) -> float:
    """The time of one kernel: that of its bytes or that of its waves, whichever is longer, and the last program's."""
    slots = programs_at_once(variant, found, gpu) * gpu.multiprocessors
    one = LATENCY + work.steps * STEP
    waves = math.ceil(work.programs / slots)
    moved, handed = traffic(variant, found, gpu)
    moving = work.elements * max(moved / (REACHABLE * gpu.bandwidth), handed / gpu.cache_bandwidth)
    return LAUNCH + max(moving, (waves - 1) * one) + one


def predicted_share(variants: list[c.Variant], gpu: Gpu, works: list[Work], bytes_moved: float, merges: int) -> float:
    """The share of a copy's bandwidth: the time of a copy of as many bytes, by that of the kernels and merges."""
    copy = LAUNCH + LATENCY + works[0].elements * bytes_moved / (REACHABLE * gpu.bandwidth)
    found = [c.compiled(one, c.TARGETS[gpu.target]) for one in variants]
    kernels = sum(seconds(one, taken, gpu, work) for one, taken, work in zip(variants, found, works, strict=True))
    return copy / (kernels + merges * (LAUNCH + LATENCY + STEP))


def shown() -> list[c.Variant]:
    """The variants of the table: bf16 LayerNorm in every length."""
    return [make(features, "bf16") for make in (v.forward_variant, v.backward_variant) for features in v.FEATURES]


def shown_channels() -> list[c.Variant]:
    """The same of channel norms."""
    return [
        *v.channel_variants("BatchNorm", 256, 3136, "bf16"),
        *v.channel_variants("BatchNorm", 256, 3136, "bf16", last=True),
        *v.channel_variants("GroupNorm SiLU", 320, 4096, "bf16", groups=32, activation=v.SILU),
        *v.group_variants(1280, 256, 32, "bf16", activation=v.SILU),
    ]


def shown_tables() -> list[c.Variant]:
    """Sums and maps of tables, bytes to planes."""
    sums = [v.table_variant(columns, dtype) for dtype in ("fp32", "u8") for columns in (1, 16, 256)]
    maps = [v.map_variant(columns, "fp32") for columns in (1, 16, 256)]
    return [*sums, *maps, *(one for one in v.image_variants() if one.moved)]


def resource_table(variants: list[c.Variant], elements: Callable[[c.Variant], int]) -> list[str]:
    """A line for each variant: registers and shared memory for each target, and the roofline of so many elements."""
    lines = ["| kernel | " + " | ".join(c.TARGETS) + " | B/element | " + " | ".join(GPUS) + " |"]
    lines.append("| --- |" + " --- |" * (len(c.TARGETS) + 1 + len(GPUS)))
    for variant in variants:
        cells = []
        for target in c.TARGETS.values():
            found = c.compiled(variant, target)
            spilled = f", **{found.spilled} spilled**" if found.spilled else ""
            cells.append(f"{found.registers} / {found.shared}{spilled}")
        cells.append(f"{variant.moved:.3g}")
        bytes_moved = elements(variant) * variant.moved
        cells += [f"{bytes_moved / gpu.bandwidth * 1e6:.3g}" for gpu in GPUS.values()]
        lines.append(f"| {variant.name} | " + " | ".join(cells) + " |")
    return lines


def row_share(gpu: Gpu, rows: int, features: int, backward: bool) -> str:
    """The predicted share of the copy's bandwidth, bf16 LayerNorm with parameters."""
    variants = [v.backward_variant(features, "bf16") if backward else v.forward_variant(features, "bf16")]
    works = [work_on_rows(variants[0], rows)]
    if backward:
        variants.append(v.tree_variant(features, "bf16"))
        works.append(work_on_tree(variants[1], math.ceil(rows / variants[0].launch.chunk), works[0].elements))
    return percent(predicted_share(variants, gpu, works, 6.0 if backward else 4.0, 0))


def percent(share: float) -> str:
    """A share for people."""
    return f"{share:.0%}".replace("%", " %")


def prediction_table(gpu: Gpu, backward: bool) -> list[str]:
    """Predicted shares by rows and features."""
    lines = ["| rows | " + " | ".join(map(str, COLUMNS)) + " |", "| --- |" + " --- |" * len(COLUMNS)]
    for rows in ROWS:
        shares = [row_share(gpu, rows, features, backward) for features in COLUMNS]
        lines.append(f"| {rows} | " + " | ".join(shares) + " |")
    return lines


def width_table(gpu: Gpu) -> list[str]:
    """The same of 32768 rows in widths that are no powers of two."""
    lines = ["| | " + " | ".join(map(str, v.OTHER_FEATURES)) + " |", "| --- |" + " --- |" * len(v.OTHER_FEATURES)]
    for name, backward in (("forward", False), ("backward", True)):
        shares = [row_share(gpu, ROWS[-1], features, backward) for features in v.OTHER_FEATURES]
        lines.append(f"| {name} | " + " | ".join(shares) + " |")
    return lines


def map_table(gpu: Gpu) -> list[str]:
    """The same of channel norms in bf16 with parameters: forward and backward, in both layouts."""
    lines = ["| norm | samples x channels x positions | forward | backward | forward, last | backward, last |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, (samples, maps) in MAPS.items():
        for channels, positions, groups in maps:
            cells = []
            for last in (False, True):
                options = {"samples": samples, "activation": v.SILU if groups else 0}
                variants = v.channel_variants(name, channels, positions, "bf16", groups=groups, last=last, **options)
                merges = 1, 2
                if v.channel_call(channels, positions, groups=groups, last=last).by_group:
                    variants = v.group_variants(channels, positions, groups, "bf16", **options)
                    merges = 0, 1
                works, half = [work_on_maps(variant) for variant in variants], len(variants) // 2
                forward = predicted_share(variants[:half], gpu, works[:half], 4.0, merges[0])
                backward = predicted_share(variants[half:], gpu, works[half:], 6.0, merges[1])
                cells += [percent(forward), percent(backward)]
            lines.append(f"| {name} | {samples}x{channels}x{positions} | " + " | ".join(cells) + " |")
    return lines


def table_table(gpu: Gpu) -> list[str]:
    """The same of tables and images, by how many elements there are."""
    lines = ["| kernel | " + " | ".join(map(str, SIZES)) + " |", "| --- |" + " --- |" * len(SIZES)]
    for variant in shown_tables():
        cells = []
        for elements in SIZES:
            read = c.BYTES[variant.pointers["x"] or ""]
            merges = 1 if variant.name.startswith("sums") else 0
            moved = read if merges else variant.moved
            cells.append(percent(predicted_share([variant], gpu, [work_on_table(variant, elements)], moved, merges)))
        lines.append(f"| {variant.name} | " + " | ".join(cells) + " |")
    return lines


def tables() -> dict[str, list[str]]:
    """The generated parts of the page by their markers."""
    number = sum(1 for _ in v.variants())
    return {
        "variants": [
            f"Here they are {number}: each length up to 262144 features, widths of models that are no powers of two, "
            "odd ones, each option, each gradient without the others, integers of 64 bits."
        ],
        "resources": resource_table(shown(), lambda variant: 4096 * variant.constants["N"]),
        "channels": resource_table(shown_channels(), lambda variant: variant.elements),
        "tables": resource_table(shown_tables(), lambda variant: 2**26),
        "table shares": table_table(GPUS["H200"]),
        "maps": map_table(GPUS["H200"]),
        "forward": prediction_table(GPUS["H200"], backward=False),
        "backward": prediction_table(GPUS["H200"], backward=True),
        "widths": width_table(GPUS["H200"]),
    }


def fill(page: str, parts: dict[str, list[str]]) -> str:
    """The page with its generated parts replaced."""
    for name, lines in parts.items():
        marked = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(marked, "\\1" + "\n".join(lines) + "\n\\2", page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"docs/kernels-gpu.md must have one part '<!-- generated: {name} -->', but has {count}")
    return page


def main() -> int:
    """Write the page, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = fill(before, tables())
    if arguments.check:
        return int(before != after)
    write_text_atomically(PAGE, after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
