"""Which of the goals for the GPU kernels a run of `benchmarks.gpu --bench` has reached, as a table.

A goal is missed as soon as one measurement misses it, and reached when all of its cases were measured.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks import gpu_times
from benchmarks.gpu_times import Case
from benchmarks.timing import OURS

Record = dict[str, Any]
Records = dict[str, Record]
FORWARD, BACKWARD = 0.92, 0.75  # of a copy's bandwidth
KEPT = 0.8  # of the share at 65536 features, by longer rows: a cliff is what falls deeper
NOISE = 1.03  # times that differ less are not told apart
LATENCY = 1.2  # times that of the fastest peer


class Goal(NamedTuple):
    """A goal.

    Attributes:
        said: what is asked for.
        cases: whose measurements tell.
        worst: (all records by their case, case) -> the worst that was measured, or None without a measurement.
        limit: the least share, or the most times a peer's time.
        is_share: which of both.
    """

    said: str
    cases: list[Case]
    worst: Callable[[Records, Case], float | None]
    limit: float
    is_share: bool = False


def share(direction: str, records: Records, case: Case) -> float | None:
    """Our share of a copy's bandwidth."""
    found: float | None = records.get(str(case), {}).get(OURS, {}).get(f"{direction} share")
    return found


def kept_share(records: Records, case: Case) -> float | None:
    """What rows keep of the share that those of 65536 features have, forward or backward."""
    shorter, kept = case._replace(shape=(case.shape[0], 65536)), []
    for direction in ("forward", "backward"):
        here, there = (share(direction, records, one) for one in (case, shorter))
        if here and there:
            kept.append(here / there)
    return min(kept, default=None)


def multiple(keys: tuple[str, ...], peer: str, records: Records, case: Case) -> float | None:
    """The largest of our times as a multiple of a peer's, or of the fastest peer's if none is named."""
    record = records.get(str(case), {})
    peers = [times for name, times in record.items() if isinstance(times, dict) and name != OURS and peer in ("", name)]
    found = []
    for key in keys:
        theirs = [times[key] for times in peers if key in times]
        if theirs and key in record.get(OURS, {}):
            found.append(record[OURS][key] / min(theirs))
    return max(found, default=None)


def goals() -> Iterator[Goal]:
    """The goals, in their order."""
    cases = [case for case in gpu_times.cases() if case.dtype is not None]
    rows = [case for case in cases if case.norm in gpu_times.ROW_NORMS]
    many = [case for case in rows if case.shape[0] == 32768 and case.dtype == torch.bfloat16]
    usual = [case for case in many if 1024 <= case.shape[1] <= 65536]
    long = [case for case in many if case.shape[1] > 65536]
    groups = [case for case in cases if case.norm.startswith("group_norm")]
    small = [case for case in rows if case.shape == (512, 4096)]
    yield Goal(f"32K rows forward: {FORWARD:.0%} of a copy", usual, partial(share, "forward"), FORWARD, True)
    yield Goal(f"32K rows backward: {BACKWARD:.0%} of a copy", usual, partial(share, "backward"), BACKWARD, True)
    yield Goal(f"no cliff to 256K: {KEPT:.0%} of the share at 64K", long, kept_share, KEPT, True)
    never = partial(multiple, ("forward", "backward", "both"), "torch")
    yield Goal("no GPU time above torch eager's", cases, never, NOISE)
    yield Goal("GroupNorm backward ahead of torch's", groups, partial(multiple, ("backward",), "torch"), 1.0)
    latency = partial(multiple, ("eager", "eager both"), "")
    yield Goal(f"latency at 512x4096: {LATENCY} x the fastest peer's", small, latency, LATENCY)


def row_of(goal: Goal, records: Records) -> tuple[str, str, str]:
    """A goal, the worst that was measured, and whether it is reached."""
    values = {str(case): worst for case in goal.cases if (worst := goal.worst(records, case)) is not None}
    if not values:
        return goal.said, "-", "not measured"
    name = (min if goal.is_share else max)(values, key=lambda name: values[name])
    told = f"{values[name]:.1%}" if goal.is_share else f"{values[name]:.2f} x"
    missed = sum(value < goal.limit if goal.is_share else value > goal.limit for value in values.values())
    if missed:
        verdict = f"missed by {missed} of {len(values)} cases"
    elif len(values) == len(goal.cases):
        verdict = "reached"
    else:
        verdict = f"not decided: {len(values)} of {len(goal.cases)} cases measured"
    return goal.said, f"{told} ({name})", verdict


def table(records: Records) -> list[str]:
    """A line for each goal: what is asked for, the worst that was measured, reached or not."""
    rows = [("goal", "worst measured", "verdict"), *(row_of(goal, records) for goal in goals())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
