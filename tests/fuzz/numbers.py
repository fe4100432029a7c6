"""Tensors of every dtype, storage and regime of values, made from a few small numbers so that cases stay small."""

import torch
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
REGIMES = ("ordinary", "constant", "huge", "largest", "tiny", "denormal", "mean", "far", "outlier", "zero")
POISONS = ("inf", "-inf", "nan")
LAYOUTS = ("plain", "offset", "every second", "wide rows", "transposed", "expanded", "channels last")

dtypes = st.sampled_from(DTYPES)
layouts = st.sampled_from(LAYOUTS)
seeds = st.integers(0, 999)
# the first ones are the simplest, which is where a minimised case ends
regimes = st.lists(st.sampled_from(REGIMES), min_size=1, max_size=3)
poisons = st.lists(st.sampled_from(POISONS), max_size=2)
sizes = st.one_of(
    st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 129, 255, 256, 257, 768, 1023, 1024, 2049, 4099])
)


def fill(row, regime, generator, info):
    """Fill one group of numbers that share a statistic, in float64."""
    normal = torch.randn(row.shape, generator=generator, dtype=torch.float64)
    draw = float(torch.rand((), generator=generator, dtype=torch.float64))
    row.copy_(
        {
            "ordinary": lambda: normal,
            "constant": lambda: torch.full_like(normal, 20 * draw - 10),
            "huge": lambda: normal * min(10.0 ** (18 + 19 * draw), info.max / 8),
            "largest": lambda: normal.sign() * info.max * (0.5 + 0.5 * draw),
            "tiny": lambda: normal * max(10.0 ** (-20 - 17 * draw), info.tiny * 16),
            "denormal": lambda: normal * info.tiny / 16,
            "mean": lambda: 1e4 * (1 + draw) + normal,
            "far": lambda: 1e6 * (draw - 0.5) + 0.01 * normal,
            "outlier": lambda: torch.where(torch.arange(normal.numel()).view(normal.shape) == 0, 1e4, normal),
            "zero": lambda: torch.zeros_like(normal),
        }[regime]()
    )


def groups_of(view, kinds, found, seed, info):
    """Fill a view (groups, elements): regimes take turns, and poisons lie in the first groups but one."""
    generator = torch.Generator().manual_seed(seed)
    if info.bits == 64:  # the contract speaks of float32's range
        info = torch.finfo(torch.float32)
    for index, row in enumerate(view):
        fill(row, kinds[index % len(kinds)], generator, info)
    view.clamp_(-info.max, info.max)
    for index, poison in enumerate(found):
        if 1 + index < len(view) and view.shape[1]:
            view[1 + index, (seed + index) % view.shape[1]] = float(poison)


def lay_out(x, layout):
    """The same values in other memory."""
    if layout == "offset":
        return torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)
    if layout == "every second" and x.ndim:
        return torch.stack([x, x], -1).flatten(-2)[..., ::2]
    if layout == "wide rows" and x.ndim:
        return torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]]
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded" and x.ndim > 1 and x.shape[0]:
        return x[:1].clone().expand(x.shape)
    if layout == "channels last" and x.ndim in (4, 5):
        return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    return x


def normals(shape, seed, dtype):
    """Ordinary numbers in float64, rounded to a dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device="cpu").to(
        dtype
    )


def same(a, b):
    """Whether two tensors have the same dtype, shape and values, NaN included (0 and -0 are one)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
