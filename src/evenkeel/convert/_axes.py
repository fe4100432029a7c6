"""Where the numbers of an axis are after an operation that only moves numbers, and where they were before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenkeel.convert._graph import Node, Value

__all__ = ["axis_after", "axis_before", "broadcast_axis"]

SAME = ("alias", "clone", "contiguous", "detach", "lift_fresh", "_to_copy")
VIEWS = ("_reshape_alias", "_unsafe_view", "reshape", "view")
ALONG = ("cat", "flip", "index_select", "slice", "split", "split_with_sizes")  # one axis, given as dim
EDGES = ("reflection_pad", "replication_pad")


def axis_after(node: Node, before: Value, after: Value, axis: int) -> int | None:
    """Where an axis of an input is in the result, all its numbers in order; None where they are not all there.

    Args:
        node: the operation.
        before: one of its inputs.
        after: one of its results.
        axis: of the input, counted from the front.
    """
    if not after.dtype.is_floating_point:
        return None
    found = moved(node.op.removeprefix("aten."), node.arguments, before.shape, after.shape, axis)
    if found is None or not 0 <= found < len(after.shape) or after.shape[found] != before.shape[axis]:
        return None
    return found


def axis_before(node: Node, before: Value, after: Value, axis: int) -> int | None:
    """Where an axis of the result was in an input; None where its numbers were elsewhere."""
    return next((k for k in range(len(before.shape)) if axis_after(node, before, after, k) == axis), None)


def moved(op: str, given: dict[str, Any], before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The new place of an axis, before its size is compared."""
    count = len(before)
    if op in SAME:
        return axis
    if op in VIEWS:
        return viewed(before, after, axis)
    if op == "t":
        return count - 1 - axis
    if op == "transpose":
        ends = (given["dim0"] % count, given["dim1"] % count)
        return ends[1 - ends.index(axis)] if axis in ends else axis
    if op == "permute":
        return [dim % count for dim in given["dims"]].index(axis)
    if op == "expand":
        return axis + len(after) - count
    if op == "unsqueeze":
        return axis + (given["dim"] % (count + 1) <= axis)
    if op == "squeeze":
        dims = given.get("dim", range(count))
        dims = [dims] if isinstance(dims, int) else dims
        gone = [dim % count for dim in dims if before[dim] == 1]
        return None if axis in gone else axis - sum(dim < axis for dim in gone)
    dim = given.get("dim", 0)
    dim = dim % count if isinstance(dim, int) else 0
    if op in ("select", "unbind"):
        return None if dim == axis else axis - (dim < axis)
    if op in ALONG:
        return None if dim == axis and op != "slice" else axis  # a slice of everything keeps the size
    return axis if op.startswith(EDGES) and axis < count - len(given["padding"]) // 2 else None


def viewed(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The axis of a reshaped tensor that has as many numbers, and as many behind it."""
    inner = math.prod(before[axis + 1 :])
    places = (k for k in range(len(after)) if math.prod(after[k + 1 :]) == inner and after[k] == before[axis])
    return next(places, None)


def broadcast_axis(before: Value, after: Value, axis: int) -> int | None:
    """The axis of an operand that becomes this axis of an elementwise result; None where it is broadcast there."""
    found = axis - len(after.shape) + len(before.shape)
    return found if found >= 0 and before.shape[found] == after.shape[axis] else None
