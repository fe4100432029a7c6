"""The section of docs/performance.md on GPUs, from what `python -m benchmarks.gpu --bench --out` has written."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charts import dot_chart, write_chart

Record = dict[str, Any]
DIRECTIONS = ("forward", "backward")


def shape_of(record: Record) -> str:
    """A shape for people."""
    return "x".join(map(str, record["shape"]))


def shares(record: Record, direction: str) -> dict[str, float]:
    """Each contender's share of the copy's bandwidth."""
    key = f"{direction} share"
    return {name: found[key] for name, found in record.items() if isinstance(found, dict) and key in found}


def kind_of(record: Record) -> str:
    """Norm and dtype."""
    return f"{record['norm']}, {record['dtype'].removeprefix('torch.')}"


def chart(records: Sequence[Record], direction: str, folder: Path) -> str:
    """A dot for each contender and shape."""
    title = f"{kind_of(records[0])}: {direction}, as a share of a copy's bandwidth"
    rows = {shape_of(record): found for record in records if (found := shares(record, direction))}
    name = f"performance-gpu-{kind_of(records[0])}-{direction}.svg".replace(", ", "-").replace(" ", "-")
    drawn = dot_chart(title, "right is faster; a copy is 1", rows, line=1.0, said="a copy")
    return write_chart(folder / "images" / name, drawn)


def table(records: Sequence[Record]) -> list[str]:
    """A line for each shape: shares, and the microseconds of an eager call forward, and forward and backward."""
    owners = list(
        dict.fromkeys(name for record in records for name, found in record.items() if isinstance(found, dict))
    )
    lines = ["| shape | copy, µs | " + " | ".join(owners) + " |", "| --- | --- |" + " --- |" * len(owners)]
    for record in records:
        cells = []
        for owner in owners:
            found = record.get(owner, {})
            parts = [f"{found[f'{d} share']:.0%}" for d in DIRECTIONS if f"{d} share" in found]
            calls = [f"{found[key] * 1e6:.0f}" for key in ("eager", "eager both") if key in found]
            cells.append(f"{' / '.join(parts)}; {' / '.join(calls)} µs" if calls else found.get("error", "–"))
        lines.append(f"| {shape_of(record)} | {record['copy'] * 1e6:.1f} | " + " | ".join(cells) + " |")
    return lines


def gpu_section(run: Record, folder: Path) -> list[str]:
    """Charts and tables of every norm, and the training step."""
    said = "Shares of a copy's bandwidth, forward / backward; an eager call's time, forward / forward and backward."
    lines = ["## GPU kernels", "", said, ""]
    kinds: dict[str, list[Record]] = {}
    for record in run.get("results", {}).values():
        if "copy" in record:
            kinds.setdefault(kind_of(record), []).append(record)
        found = {owner: f for owner, f in record.items() if isinstance(f, dict) and "step" in f}
        if found:
            steps = (f"{owner} {times['step'] * 1e3:.2f} ms" for owner, times in found.items())
            lines += [f"Training step of a Llama-like model in bfloat16: {', '.join(steps)}.", ""]
    for kind, records in kinds.items():
        lines += [f"### {kind}", ""]
        for direction in DIRECTIONS:
            if any(shares(record, direction) for record in records):
                lines += [chart(records, direction, folder), ""]
        lines += [*table(records), ""]
    return lines
