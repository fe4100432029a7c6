"""Tables for the tests of the column kernels: every dtype, the shapes that take every path, and every storage."""

import pytest
import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool)
every_dtype = pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
# folded rows and plain ones, rests of both, several items and pieces, several blocks of columns
SHAPES = ((1, 1), (1, 40), (5, 3), (300, 7), (140000, 1), (3000, 16), (500, 65), (600, 257), (30, 2100), (901, 17))
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def sample(shape, dtype):
    if dtype.is_floating_point:
        return (3 * torch.randn(shape, dtype=torch.float64) + 1).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(dtype)


def strided(x):
    """The same table, stored otherwise, and whether its bits must stay: by rows they must."""
    rows, columns = x.shape
    wide = torch.zeros(rows, 2 * columns + 3, dtype=x.dtype)
    wide[:, 1 : columns + 1] = x
    yield wide[:, 1 : columns + 1], True
    tall = torch.zeros(2 * rows, columns, dtype=x.dtype)
    tall[::2] = x
    yield tall[::2], True
    both = torch.zeros(rows, 2 * columns, dtype=x.dtype)
    both[:, ::2] = x
    yield both[:, ::2], True
    yield x.t().contiguous().t(), False
    across = torch.zeros(columns, 2 * rows, dtype=x.dtype)
    across[:, ::2] = x.t()
    yield across[:, ::2].t(), False


def misaligned(count, dtype):
    """Memory in which no element lies at a multiple of its size, as files and network buffers may have it."""
    size = count * dtype.itemsize
    memory = bytearray(size + 64)
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, offset=dtype.itemsize + 1 - start, count=count)
