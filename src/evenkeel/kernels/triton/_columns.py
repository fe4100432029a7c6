"""The operators on tables on the GPU: layouts, allocation and launches; the kernels compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evenkeel.kernels import _fakes
from evenkeel.kernels.triton import columns_kernels
from evenkeel.kernels.triton._launch import ALIGNMENT, TABLE_TILE, table_launch, table_merge_launch, table_tiles
from evenkeel.kernels.triton._layout import dense
from evenkeel.kernels.triton._start import on_device, program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

FEW_COLUMNS = 64  # up to which several rows make one
BYTES = (torch.uint8, torch.int8)  # whose sums are those of integers, where they have no weights
WIDE_TYPES = (torch.float64, torch.int32, torch.int64)  # values that float32 does not hold


def fold_of(columns: int) -> int:
    """How many rows make one, so that it divides into vectors."""
    return ALIGNMENT // math.gcd(columns, ALIGNMENT) if columns <= FEW_COLUMNS else 1


class Walk(NamedTuple):
    """How the sums of tables are walked: columns that are stored one by one are tables of one column.

    Attributes:
        outer: tables.
        inner: columns of a table that are walked alone, else 1.
        rows: of each.
        columns: of each.
    """

    outer: int
    inner: int
    rows: int
    columns: int

    @property
    def fold(self) -> int:
        """How many rows make one."""
        return fold_of(self.columns)

    @property
    def width(self) -> int:
        """Lanes of a folded row."""
        return self.columns * self.fold

    @property
    def aligned(self) -> int:
        """What divides every place, for this shape: so its vectors are the same in every batch of tables."""
        return math.gcd(self.width, self.rows * self.columns, ALIGNMENT)

    def reaches(self, t: Tensor) -> bool:
        """Whether a tensor of this shape can be walked where it lies."""
        folds = self.fold > 1
        lanes = (self.columns == 1 or t.stride(3) == 1) and (not folds or self.rows == 1 or t.stride(2) == self.columns)
        steps = [t.stride(axis) for axis in range(2 if folds else 3) if t.shape[axis] > 1]
        return lanes and t.data_ptr() % ALIGNMENT == 0 and all(step % self.aligned == 0 for step in steps)

    def constants(self) -> dict[str, Any]:
        """The compile-time arguments of the lanes."""
        return {"COLUMNS": self.columns, "FOLD": self.fold, "WIDTH": self.width}


def laid_out(x: Tensor) -> tuple[Tensor, Walk]:
    """A table of tables as (outer, inner, rows, columns), itself or a copy that can be walked."""
    strides = x.stride()
    by_columns = x.shape[2] > 1 and strides[2] != 1 and (strides[1] == 1 or strides[1] < strides[2])
    view = as_numbers(x.transpose(1, 2).unsqueeze(3) if by_columns else x.unsqueeze(1))
    walk = Walk(*view.shape)
    return view if walk.reaches(view) else view.clone(memory_format=torch.contiguous_format), walk


def as_numbers(x: Tensor) -> Tensor:
    """Booleans as bytes."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def column_moments(x: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """The eight fields of the moments of (tables, rows, columns)."""
    fields = _fakes.column_moments(x, weight)
    if fields[0].numel() == 0:
        return fields
    source, walk = laid_out(x)
    whole = source.dtype in BYTES and weight is None
    tables, launch = walk.outer * walk.inner, table_launch(walk.width, TABLE_TILE)
    folded = -(-walk.rows // walk.fold)
    tiles = table_tiles(-(-folded // launch.rows))
    chunks = -(-folded // (tiles * launch.rows)) if folded else 0
    partial = torch.empty((8, tables, chunks, walk.width), dtype=torch.float64, device=x.device)
    with on_device(x):
        if chunks:
            row = walk.width if walk.fold > 1 else source.stride(2)
            sums = program(
                columns_kernels.columns_sum_kernel, launch.warps, ROWS=launch.rows, BLOCK=launch.block,
                ALIGNED=walk.aligned, NESTED=walk.inner > 1, WIDE=x.dtype in WIDE_TYPES,
                ROUNDED=not x.dtype.is_floating_point, BYTES=whole, **walk.constants(),
            )  # fmt: skip
            sums(
                (tables * chunks * -(-walk.width // launch.block),),
                (source, dense(weight), partial),
                (walk.rows, chunks, tiles, tables, walk.inner, *source.stride()[:2], row),
            )
        entries = chunks * walk.fold
        merge = table_merge_launch(entries)
        constants = {"ROWS": merge.rows, "BLOCK": merge.block, **walk.constants()}
        merged = program(columns_kernels.columns_merge_kernel, merge.warps, **constants)
        merged((-(-tables * walk.columns // merge.rows),), (partial, *fields), (tables, chunks, entries))
    return fields


def separate_column_moments(columns: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The eight fields of the moments of a list of columns."""
    each = [column_moments(x[None, :, None], None) for x in columns]
    return tuple(torch.cat([t.flatten() for t in parts]) for parts in zip(*each, strict=True))


class Grid(NamedTuple):
    """A table whose rows or columns are dense.

    Attributes:
        tables: columns that are stored one by one, else 1.
        rows: of each.
        columns: of each.
        outer: elements from a table to the next.
        row: elements from a row to the next.
    """

    tables: int
    rows: int
    columns: int
    outer: int
    row: int


def grid_of(t: Tensor) -> Grid | None:
    """How a tensor (..., columns) is mapped; None where that takes a copy."""
    columns = t.shape[-1]
    if t.is_contiguous():
        return Grid(1, t.numel() // columns, columns, 0, columns)
    if t.ndim == 2 and (columns == 1 or t.stride(1) == 1):
        return Grid(1, t.shape[0], columns, 0, t.stride(0))
    return Grid(columns, t.shape[0], 1, t.stride(1), 1) if _fakes.stored_by_columns(t) else None


def map_columns(
    x: Tensor, parameters: Sequence[Tensor | None], clip: Sequence[float | None], y: Tensor, infinite: Tensor | None
) -> bool:
    """Map x into y if their layouts allow it."""
    if x.numel() == 0:
        return True
    grid, target = grid_of(x), grid_of(y)
    if grid is None or target is None or grid[:3] != target[:3]:
        return False
    folds = grid.row == target.row == grid.columns
    fold = fold_of(grid.columns) if folds else 1
    width = grid.columns * fold
    launch = table_launch(width, 2 * TABLE_TILE)
    rows = -(-grid.rows // fold)
    steps = (width, width) if fold > 1 else (grid.row, target.row)
    chunks, blocks = -(-rows // launch.rows), -(-width // launch.block)
    found = None if infinite is None else infinite.view(torch.uint8)
    with on_device(x):
        mapped = program(
            columns_kernels.columns_map_kernel, launch.warps, COLUMNS=grid.columns, FOLD=fold, WIDTH=width,
            ROWS=launch.rows, BLOCK=launch.block, LOW=clip[0], HIGH=clip[1],
            ALIGNED=math.gcd(width, grid.outer, target.outer, *steps, ALIGNMENT),
        )  # fmt: skip
        mapped(
            (grid.tables * chunks * blocks,),
            (as_numbers(x), *map(dense, parameters), found, y),
            (grid.rows, chunks, grid.outer, steps[0], target.outer, steps[1]),
        )
    return True


def column_affine(
    x: Tensor, shift: Tensor, scale: Tensor, offset: Tensor | None, low: float | None, high: float | None, *more: Any
) -> Tensor:
    """A new tensor, stored by columns where x is; more: its dtype, and a Boolean for whether x holds an infinity."""
    dtype, infinite = (*more, None)[:2]
    y = _fakes.column_affine(x, shift, scale, offset, low, high, dtype)
    if x.numel() and grid_of(x) is None:
        x = x.clone(memory_format=torch.contiguous_format)
    map_columns(x, (shift, scale, offset), (low, high), y, infinite)
    return y


def column_affine_out(
    x: Tensor, shift: Tensor, scale: Tensor, offset: Tensor | None, low: float | None, high: float | None, *more: Any
) -> None:
    """The same into the first of ``more``; a layout of its own is mapped in that of x, then copied."""
    out, infinite = (*more, None)[:2]
    if not map_columns(x, (shift, scale, offset), (low, high), out, infinite):
        out.copy_(column_affine(x, shift, scale, offset, low, high, out.dtype, infinite))
