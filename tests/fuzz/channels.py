"""The norms with channels on every kind of tensor: values, running statistics, masks, layouts, surroundings."""

from dataclasses import dataclass
from typing import Any

import torch
from fuzz.checks import check
from fuzz.numbers import REGIMES, dtypes, groups_of, lay_out, normals, poisons, same, seeds
from fuzz.surroundings import SURROUNDINGS, under
from fuzz.values import FEW, PLAIN, arithmetic, epsilons, finest, gradients, largest, within
from hypothesis import strategies as st

from evenkeel import functional as F

MEMORY = 4 << 30
POWERS = (0, 0, 0, -30, -21, -8, 8, 17, 25)
SHORT = 4.0  # not the contract's 3, which docs/numerics.md measures on long channels: of 7 values one in 10^4 has 3.7


@dataclass(frozen=True, kw_only=True)
class Channels:
    """A call of a norm with channels."""

    name: str = "batch_norm"
    shape: tuple[int, ...] = (2, 2, 3)
    groups: int = 1
    dtype: torch.dtype = torch.float32
    weight: torch.dtype | None = None
    bias: torch.dtype | None = None
    powers: tuple[int, int] = (0, 0)  # of ten: how large weight and bias are
    running: torch.dtype | None = None
    measured: bool = True  # statistics of this input, not the running ones
    mask: int = 0  # axes of the mask
    momentum: float = 0.1
    layout: str = "plain"
    kinds: tuple[str, ...] = ("ordinary",)
    poison: tuple[str, ...] = ()
    seed: int = 0
    mode: str = "none"
    options: dict[str, Any]

    def early(self):
        """The dtype that an early rounding leaves in the result."""
        return (self.dtype,) if self.options["cast"] == "early" else ()

    def offset(self):
        """The dtype in which the offset is added to the weight."""
        return (arithmetic(self.weight),) if self.options["weight_offset"] and self.weight is not None else ()

    def terms(self, exact, function):
        """What the result is a sum of, before the activation."""
        (mean, variance), (x, weight, bias) = exact[:2], exact[2:]
        y = self.rows(
            self.call(x, weight, bias, self.wide_remembered(), function=function, activation=None)
            if "activation" in self.options
            else x.new_zeros(x.shape)
        )
        terms = (*largest(bias), y.nan_to_num(0, 0, 0).abs().amax(1, keepdim=True)) if y.numel() else ()
        if mean is not None and not self.measured:
            terms += largest(mean / (variance.sqrt() + 1e-30) * (1 + (0 if weight is None else weight.abs())))
        smallest = torch.full((1, 1), torch.finfo(torch.float32).tiny, dtype=torch.float64)  # below it are fewer bits
        scaled = 1.0 if weight is None else weight.abs().max().clamp(min=1)
        return (*terms, smallest, *(term * scaled for term in finest(self))) if y.numel() else ()

    def wide_remembered(self):
        return tuple(None if t is None else t.double() for t in self.remembered())

    def rows(self, t):
        """(groups, elements that share a statistic)"""
        if self.name == "batch_norm":
            return t.transpose(0, 1).reshape(t.shape[1], t.shape[0] * t.shape[2:].numel())
        groups = t.shape[1] if self.name == "instance_norm" else self.groups
        return t.reshape(t.shape[0] * groups, t.shape[1] // groups * t.shape[2:].numel())

    def tensors(self):
        """Input, weight and bias."""
        info = torch.finfo(self.dtype)
        # filled by group and brought into the order of the axes
        if self.name == "batch_norm":
            turned = torch.zeros(self.shape[1], self.shape[0], *self.shape[2:], dtype=torch.float64)
            groups_of(self.rows_of_turned(turned), self.kinds, self.poison, self.seed, info)
            x = turned.transpose(0, 1).contiguous()
        else:
            x = torch.zeros(self.shape, dtype=torch.float64)
            groups_of(self.rows(x), self.kinds, self.poison, self.seed, info)
        affine = (
            None if d is None else self.parameter(self.seed + 2 + i, d, 10.0**power)
            for i, (d, power) in enumerate(zip((self.weight, self.bias), self.powers, strict=True))
        )
        return lay_out(x.to(self.dtype), self.layout), *affine

    def parameter(self, seed, dtype, size):
        limit = torch.finfo(dtype).max
        return (size * normals(self.shape[1:2], seed, torch.float64)).clamp(-limit, limit).to(dtype)

    @staticmethod
    def rows_of_turned(turned):
        return turned.view(turned.shape[0], turned.shape[1:].numel())

    def remembered(self):
        """Running mean and variance, or None twice."""
        if self.running is None:
            return None, None
        mean = normals(self.shape[1:2], self.seed + 4, self.running)
        return mean, mean.square() + 0.5

    def valid(self):
        positions = (self.shape[0], *self.shape[2:])[: self.mask]
        return normals(positions, self.seed + 5, torch.float64) < 0.5 if self.mask else None

    def call(self, x, weight, bias, running=(None, None), function=None, **more):
        options = self.options | {"mask": self.valid()} | more
        function = function or getattr(F, self.name)
        if self.name == "group_norm":
            return function(x, self.groups, weight, bias, **options)
        key = "training" if self.name == "batch_norm" else "use_input_stats"
        return function(x, *running, weight, bias, **{key: self.measured}, momentum=self.momentum, **options)


@st.composite
def channel_cases(draw):
    name = draw(st.sampled_from(["batch_norm", "instance_norm", "group_norm"]))
    groups = draw(st.sampled_from([1, 2, 3, 8]))
    channels = groups * draw(st.integers(1, 9)) if name == "group_norm" else draw(st.sampled_from([1, 2, 3, 8, 33, 64]))
    size = st.sampled_from([1, 2, 3, 5, 7, 14, 16, 33])
    positions = draw(st.lists(size, min_size=name == "instance_norm", max_size=3))
    batch = draw(st.integers(0, 9))
    running = None if name == "group_norm" else draw(st.one_of(st.none(), dtypes))
    options = {"eps": draw(epsilons), "eps_mode": draw(st.sampled_from(["inside", "outside", "clamp"]))}
    options |= {"weight_offset": draw(st.sampled_from([0.0, 1.0])), "cast": draw(st.sampled_from(["late", "early"]))}
    if name != "instance_norm":
        options["activation"] = draw(st.sampled_from([None, "relu", "silu"]))
    dtype = draw(dtypes)
    late = options["cast"] == "late"  # else x_hat may overflow before the weight
    # where a part of float16 overflows, the rest is rounded as the largest is
    powers = st.sampled_from([p for p in POWERS if p == 0 or (late and (p < 0 or dtype != torch.float16))])
    return Channels(
        name=name,
        shape=(batch, channels, *positions),
        groups=groups,
        dtype=dtype,
        weight=draw(st.one_of(st.none(), dtypes)),
        bias=draw(st.one_of(st.none(), dtypes)),
        powers=draw(st.tuples(powers, powers)),
        running=running,
        measured=running is None or draw(st.booleans()),
        mask=draw(st.integers(0, 1 + len(positions))),
        momentum=draw(st.sampled_from([0.1, 0.0, 1.0, 0.5])),
        layout=draw(st.sampled_from(["plain", "offset", "every second", "transposed", "channels last"])),
        kinds=tuple(draw(st.lists(st.sampled_from(REGIMES), min_size=1, max_size=3))),
        poison=tuple(draw(poisons)),
        seed=draw(seeds),
        mode=draw(st.sampled_from(list(SURROUNDINGS))),
        options=options,
    )


def refused(case):
    """What torch refuses as well: statistics of a single value, and eps of 0 in the training of BatchNorm."""
    values = case.rows(torch.empty(case.shape)).shape[1]
    single = case.name != "group_norm" and values == 1
    whole = case.name == "group_norm" and torch.Size(case.shape).numel() == case.groups
    return case.measured and (single or whole or (case.name == "batch_norm" and case.options["eps"] == 0.0))


def check_channels(case):
    tensors = case.tensors()
    before = [None if t is None else t.clone() for t in tensors]
    running = case.remembered()
    try:
        (y,) = under("none", lambda *t: case.call(*t, running), *tensors)
    except ValueError:
        if refused(case):
            return
        raise
    exact = [None if t is None else t.double() for t in (*case.remembered(), *tensors)]
    function = getattr(F, f"{case.name}_reference")
    expected = case.call(exact[2], *exact[3:], exact[:2], function=function)
    terms = case.terms(exact, function)
    limit = SHORT if y.dtype == torch.float32 and case.options["cast"] == "late" else None
    overflows = case.options["cast"] == "early" and case.options.get("activation") == "silu"  # of -inf it is NaN
    if not (overflows and {"huge", "largest"} & set(case.kinds)):
        within(case, case.rows(y), case.rows(expected), "y", *case.early(), *case.offset(), terms=terms, limit=limit)
    check_running(case, running, exact[:2], tensors[0])
    again = case.remembered()
    (other,) = under(case.mode, lambda *t: case.call(*t, again), *tensors)
    check(same(other, y), f"{case.name}: other bits under {case.mode}")
    pairs = zip(again, running, strict=True)
    check(all(a is None or same(a, b) for a, b in pairs), f"{case.name}: other running statistics under {case.mode}")
    check_sample_alone(case, tensors, y)
    check_channel_gradients(case, tensors, y)
    unchanged = all(t is None or same(t, b) for t, b in zip(tensors, before, strict=True))
    check(unchanged, f"{case.name}: an input was modified")


def check_running(case, running, expected, x):
    """What is remembered is that of float64, as far as float32 can hold the variance; samples' means may cancel."""
    if {"huge", "largest"} & set(case.kinds):
        return
    for label, found, exact, before in zip(
        ("running_mean", "running_var"), running, expected, case.remembered(), strict=True
    ):
        if found is not None:
            terms = (*largest(before), *(largest(x) if label == "running_mean" and x.numel() else ()))
            limit = PLAIN if case.options["cast"] == "early" else 4.0
            within(
                case, found.unsqueeze(1), exact.unsqueeze(1), label, arithmetic(case.dtype), terms=terms, limit=limit
            )


def check_sample_alone(case, tensors, y):
    """A sample alone has the bits that it has among others, where statistics are its own."""
    x, weight, bias = tensors
    own = (not case.measured or case.name != "batch_norm") and case.options["cast"] == "late"  # early runs plain code
    if not own or x.numel() == 0 or case.mask or (case.shape[0] > 1 and y[0].numel() == case.groups):
        return
    index = case.seed % case.shape[0]
    alone = case.call(x[index : index + 1], weight, bias, case.remembered())
    check(same(alone, y[index : index + 1]), f"{case.name}: sample {index} alone has other bits")


def check_channel_gradients(case, tensors, y):
    x = tensors[0]
    if case.options["cast"] == "early" or x.numel() == 0:
        return
    ys, (dy,), found = gradients(lambda *t: case.call(*t, case.remembered()), tensors, case.seed)
    check(same(ys[0].detach(), y), f"{case.name}: other bits with grad")
    clamped = case.options["eps_mode"] == "clamp" and case.options["eps"] > 0.0
    kinked = case.options.get("activation") is not None or case.mask  # masks may leave few values
    if clamped or kinked or case.rows(x).shape[1] < FEW or {"outlier", "denormal"} & set(case.kinds):
        return
    leaves = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    running = [None if t is None else t.double() for t in case.remembered()]
    expected = case.call(*leaves, running, function=getattr(F, f"{case.name}_reference"))
    exact = iter(torch.autograd.grad(expected, [t for t in leaves if t is not None], dy.double()))
    exact = [None if t is None else next(exact) for t in leaves]
    within(case, case.rows(found[0]), case.rows(exact[0]), "dx", *case.offset())
    for label, gradient, wide in zip(("dweight", "dbias"), found[1:], exact[1:], strict=True):
        if gradient is not None and bool(wide.isfinite().all()):
            within(case, gradient.unsqueeze(0), wide.unsqueeze(0), label, arithmetic(case.dtype))


PROPERTIES = {"channels": (channel_cases(), check_channels)}
