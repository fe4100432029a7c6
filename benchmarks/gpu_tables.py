"""What `benchmarks.gpu` checks and times of tables and images: moments, maps, and bytes to planes."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evenkeel import functional as F

SUMS = 1e-12  # relative error of sums in float64
DTYPES = (torch.float32, torch.bfloat16, torch.uint8)
TABLES = ((300_000, 5), (70_001, 64), (20_000, 300), (3_000_001, 1))
FEW_TABLES = ((3_001, 5), (700, 64), (130, 300))
PICTURES = ((8, 224, 224, 3), (3, 37, 41, 3), (2, 64, 64, 4))
# what is timed: table, kind
TIMED = (
    *((shape, kind) for kind in ("moments", "map") for shape in ((2**24, 16), (2**20, 256), (2**28, 1))),
    ((256, 224, 224, 3), "pictures"),
    ((32, 1024, 1024, 3), "pictures"),
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def sample(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Random numbers with a mean far from 0, or bytes."""
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, device=device, dtype=dtype)
    return (1e3 + torch.randn(shape, device=device)).to(dtype)


def parameters(columns: int, device: str) -> list[Tensor]:
    """Shift, scale and offset."""
    return [torch.linspace(0.5, 2, columns, dtype=torch.float64, device=device) * n for n in (1000, 0.1, 3)]


def agree(mine: F.ColumnMoments, exact: F.ColumnMoments) -> bool:
    """Whether counts are equal and sums are as exact as float64 gives them."""
    sums = ("mean", "m2", "mean_low")
    counts = all(torch.equal(getattr(mine, n), getattr(exact, n)) for n in mine._fields if n not in sums)
    close = partial(torch.allclose, rtol=SUMS, atol=0.0, equal_nan=True)
    return counts and close(mine.mean, exact.mean) and close(mine.m2, exact.m2)


def same(a: Any, b: Any) -> bool:
    """Whether all bits are, NaN apart."""
    pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
    return all(torch.equal(s.nan_to_num(7), t.nan_to_num(7)) for s, t in pairs)


def table_problems(shape: tuple[int, int], dtype: torch.dtype, device: str, backend: str) -> Iterator[str]:
    """What is wrong with the moments and the map of a table."""
    case, x = f"columns {dtype} {shape}", sample(shape, dtype, device)
    if dtype != torch.uint8:
        x[torch.rand(shape, device=device) < 0.01] = torch.nan
    by_columns = x.t().contiguous().t()
    mine, exact = F.column_moments(x, backend=backend), F.column_moments(x, backend="reference")
    if not (agree(mine, exact) and agree(F.column_moments(by_columns, backend=backend), exact)):
        yield f"{case}: moments are off"
    if not same(mine, F.column_moments(x, backend=backend)):
        yield f"{case}: another run has other bits"
    alone = F.column_moments(by_columns[:, :1], backend=backend)
    if not same(alone, tuple(t[:1] for t in F.column_moments(by_columns, backend=backend))):
        yield f"{case}: a column alone has other bits"
    for to, table in itertools.product((torch.float32, torch.bfloat16), (x, by_columns)):
        shift, scale, offset = parameters(shape[1], device)
        options: dict[str, Any] = {"clip": (-2.0, 2.0), "dtype": to}
        y, wanted = (F.column_affine(table, shift, scale, offset, backend=b, **options) for b in (backend, "reference"))
        if not same(y, wanted):
            yield f"{case}: the map to {to} has other bits than its definition"


def picture_problems(shape: tuple[int, ...], dtype: torch.dtype, device: str, backend: str) -> Iterator[str]:
    """What is wrong with normalized pictures and their moments."""
    case, x = f"images {dtype} {shape}", sample(shape, dtype, device)
    mean, std = (torch.linspace(*ends, shape[-1]).double() for ends in ((0.4, 0.5), (0.22, 0.23)))
    for view, to in itertools.product((x, x[:, 1:-2, 3:]), (torch.float32, torch.bfloat16)):
        options: dict[str, Any] = {"layout": "HWC", "dtype": to}
        y, wanted = (F.image_normalize(view, mean, std, backend=b, **options) for b in (backend, "reference"))
        if not same(y, wanted):
            yield f"{case}: other bits in {to} than the definition's"
        if not same(F.image_normalize(view[1:2], mean, std, backend=backend, **options), y[1:2]):
            yield f"{case}: a picture alone has other bits"
    whole, one = (F.image_moments(t, layout="HWC", backend=backend) for t in (x, x[1:2]))
    if not agree(whole, F.image_moments(x, layout="HWC", backend="reference")):
        yield f"{case}: moments are off"
    if not same(one, tuple(t[1:2] for t in whole)):
        yield f"{case}: the moments of a picture alone have other bits"


def problems(device: str, backend: str, quick: bool) -> list[str]:
    """Everything that is wrong with tables and images."""
    found: list[str] = []
    for dtype in DTYPES:
        for table in FEW_TABLES if quick else TABLES:
            found += table_problems(table, dtype, device, backend)
        for pictures in PICTURES[1:] if quick else PICTURES:
            found += picture_problems(pictures, dtype, device, backend)
    return found


def moved(kind: str, x: Tensor) -> int:
    """Bytes that have to move: the moments only read."""
    written = {"moments": 0, "map": x.element_size(), "pictures": 4}[kind]
    return math.prod(x.shape) * (x.element_size() + written)


def contenders(kind: str, x: Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    """evenkeel, torch eager and compiled."""
    if kind == "pictures":
        mean, std = (torch.tensor(t, device=x.device) for t in (MEAN, STD))
        yield "evenkeel", partial(F.image_normalize, x, mean, std, layout="HWC", backend="triton")

        def eager() -> Any:
            scaled = x.permute(0, 3, 1, 2).float() / 255
            return ((scaled - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)).contiguous()
    elif kind == "moments":
        yield "evenkeel", partial(F.column_moments, x, backend="triton")

        def eager() -> Any:
            return torch.var_mean(x, 0), x.amin(0), x.amax(0), x.isnan().sum(0)
    else:
        shift, scale, offset = (p.float() for p in parameters(x.shape[1], str(x.device)))
        yield "evenkeel", partial(F.column_affine, x, shift, scale, offset, backend="triton")

        def eager() -> Any:
            return (x - shift) * scale + offset

    yield "torch", eager
    yield "torch.compile", torch.compile(eager, dynamic=False)
