"""The norms on every kind of tensor: right to the contract's ulps, the same bits in every surrounding."""

from dataclasses import dataclass
from typing import Any

import torch
from fuzz.checks import Fault, check, check_error
from fuzz.numbers import dtypes, groups_of, lay_out, layouts, normals, poisons, regimes, same, seeds, sizes
from fuzz.surroundings import SURROUNDINGS, under
from hypothesis import strategies as st

from evenkeel import BackendError, InvalidInputError
from evenkeel import functional as F
from evenkeel.testing import ulp_error

MEMORY = 4 << 30
LIMITS = {torch.float32: 3.0, torch.bfloat16: 0.51, torch.float16: 0.51, torch.float64: 999.0}  # docs/numerics.md
PLAIN = 16.0  # of plain code in float32, whose sums over strided rows round more than the kernels do
# rounded to 16 bits before the weight, and once more after each step
EARLY = 3.0
GRADIENT = 4.0  # float32: of some hundred thousand random rows one dx reached 3.06
FEW = 16  # elements: of shorter rows, and of rows that one number rules, the true derivative cancels

modes = st.sampled_from(list(SURROUNDINGS))
epsilons = st.sampled_from([1e-5, 1e-12, 1e-2, 0.0, 1e-6, 1.0])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A call of a norm over the last axes."""

    name: str = "layer_norm"
    shape: tuple[int, ...] = (2, 8)
    axes: int = 1
    dtype: torch.dtype = torch.float32
    weight: torch.dtype | None = None
    bias: torch.dtype | None = None
    residual: torch.dtype = torch.float32
    layout: str = "plain"
    kinds: tuple[str, ...] = ("ordinary",)
    poison: tuple[str, ...] = ()
    seed: int = 0
    mode: str = "none"
    options: dict[str, Any]

    def early(self):
        """The dtype that an early rounding leaves in the result."""
        return (self.dtype,) if self.options.get("cast") == "early" else ()

    def offset(self):
        """The dtype in which the offset is added to the weight."""
        added = self.options.get("weight_offset") and self.weight is not None
        return (arithmetic(self.weight),) if added else ()

    @property
    def sizes(self):
        return self.shape[len(self.shape) - self.axes :]

    def tensors(self):
        """Input, residual, weight and bias."""
        x = self.numbers(self.dtype, self.seed)
        residual = self.numbers(self.residual, self.seed + 1) if self.name.startswith("add") else None
        weight, bias = (
            None if dtype is None else normals(self.sizes, self.seed + 2 + i, dtype)
            for i, dtype in enumerate((self.weight, self.bias))
        )
        return x, residual, None if self.name == "normalize" else weight, bias if "layer" in self.name else None

    def numbers(self, dtype, seed):
        x = torch.zeros(self.shape, dtype=torch.float64)
        rows = x.shape[: x.ndim - self.axes].numel()
        elements = torch.Size(self.sizes).numel()
        groups_of(x.view(rows, elements), self.kinds, self.poison, seed, torch.finfo(dtype))
        return lay_out(x.to(dtype), self.layout)

    def call(self, x, residual, weight, bias, **more):
        return self.result(getattr(F, self.name), x, residual, weight, bias, **self.options, **more)

    def result(self, function, x, residual, weight, bias, **options):
        if self.name.startswith("normalize"):
            return function(x, dim=-1, **options)
        affine = {"weight": weight} | ({"bias": bias} if "layer" in self.name else {})
        addends = (x,) if residual is None else (x, residual)
        return function(*addends, self.sizes, **affine, **options)

    def expected(self, x, residual, weight, bias):
        """The definition in float64, on the sum as the function rounds it."""
        name, options = self.name.removeprefix("add_"), dict(self.options)
        rounding = options.pop("residual_rounding", None)
        options.pop("memory_efficient", None)
        if residual is not None:
            total = x.double() + residual.double()
            wide = torch.float64 if torch.float64 in (self.dtype, self.residual) else torch.float32
            rounded = (x.detach().to(wide) + residual.detach().to(wide)).to(
                self.residual if rounding == "rounded" else wide
            )
            x = total + (rounded.double() - total.detach())  # roundings that let derivatives pass as they are
        doubles = [None if t is None else t.double() for t in (weight, bias)]
        return self.result_of_reference(name, x.double(), *doubles, options)

    def result_of_reference(self, name, x, weight, bias, options):
        function = getattr(F, f"{name}_reference")
        if name == "normalize":
            return function(x, dim=-1, **options)
        return function(x, self.sizes, weight, **({"bias": bias} if name == "layer_norm" else {}), **options)


@st.composite
def row_cases(draw):
    name = draw(st.sampled_from(["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "normalize"]))
    leading = draw(st.lists(st.one_of(st.integers(1, 9), st.just(0)), max_size=2))
    axes = 1 if name == "normalize" else draw(st.integers(1, 2))
    shape = (*leading, *((draw(st.integers(1, 4)),) if axes == 2 else ()), draw(sizes))
    optional = st.one_of(st.none(), dtypes)
    options = {"eps": draw(epsilons), "eps_mode": draw(st.sampled_from(["inside", "outside", "clamp"]))}
    if name != "normalize":
        options["weight_offset"] = draw(st.sampled_from([0.0, 1.0]))
    if name.startswith("add"):
        options["residual_rounding"] = draw(st.sampled_from(["rounded", "unrounded"]))
    elif name != "normalize":
        options["cast"] = draw(st.sampled_from(["late", "early"]))
        options["memory_efficient"] = draw(st.booleans())
    return Rows(
        name=name,
        shape=shape,
        axes=axes,
        dtype=draw(dtypes),
        weight=draw(optional),
        bias=draw(optional),
        residual=draw(dtypes),
        layout=draw(layouts),
        kinds=tuple(draw(regimes)),
        poison=tuple(draw(poisons)),
        seed=draw(seeds),
        mode=draw(modes),
        options=options,
    )


def check_rows(case):
    tensors = case.tensors()
    before = [None if t is None else t.clone() for t in tensors]
    results = under("none", case.call, *tensors)
    y, expected = flat(results[0], case.axes), flat(case.expected(*tensors), case.axes)
    within(case, y, expected, "y", *case.early(), *case.offset(), terms=(*largest(tensors[3]), *finest(case)))
    check(
        all(same(a, b) for a, b in zip(under(case.mode, case.call, *tensors), results, strict=True)),
        f"{case.name}: other bits under {case.mode}",
    )
    check_alone(case, tensors, results)
    check_out(case, tensors, results[0])
    check_row_gradients(case, tensors, results)
    unchanged = all(t is None or same(t, b) for t, b in zip(tensors, before, strict=True))
    check(unchanged, f"{case.name}: an input was modified")


def flat(t, axes):
    """(rows, elements that share a statistic)"""
    return t.reshape(t.shape[: t.ndim - axes].numel(), t.shape[t.ndim - axes :].numel())


def within(case, y, expected, label, *dtypes, terms=None, limit=None):
    """Within the contract's ulps of the reference, where the dtype can hold it and the definition is no 0/0.

    y and expected are (rows, elements that share a statistic). The ulps are those of the coarsest arithmetic on the
    way, and of the largest of the row and of the ``terms`` whose sum it is, which may cancel.
    """
    if y.numel() == 0:
        return
    if y.dtype in (torch.float32, torch.float64):
        y = y.to(max((y.dtype, *dtypes), key=lambda d: torch.finfo(d).eps))
    info, early = torch.finfo(y.dtype), case.options.get("cast") == "early"
    limit = limit or (max(EARLY, LIMITS[y.dtype]) if early else LIMITS[y.dtype])
    expected = expected.detach()
    for term in terms or ():
        size = term.detach().to(y.dtype).expand(len(y), 1)
        y, expected = torch.cat([y, size], 1), torch.cat([expected, size.double()], 1)
    regular = expected.isfinite().all(1)
    y, expected = y[regular], expected[regular]
    outside = expected.abs() >= info.max / (1024 if early else 1)  # an early rounding overflows before the weight
    error = ulp_error(y, torch.where(outside, y.double(), expected))
    if not error <= limit:
        raise Fault(f"{case.name} {label}: R = {error:.3g} exceeds {limit}")


def largest(t):
    """The largest size in a parameter, as a term."""
    return () if t is None else (t.abs().max().view(1, 1),)


def arithmetic(*dtypes):
    """The dtype of the arithmetic on tensors of these dtypes."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def finest(case):
    """What the smallest normal number becomes, as a term: differences of tiny numbers may be denormal."""
    eps = case.options["eps"] ** (0.5 if case.options["eps_mode"] == "inside" else 1)
    info = torch.finfo(torch.float32 if case.dtype == torch.bfloat16 else case.dtype)
    return (
        (torch.full((1, 1), info.tiny / eps, dtype=torch.float64),)
        if {"denormal", "tiny"} & {*case.kinds} and eps
        else ()
    )


def by_kernel(case, tensors):
    """Whether a compiled kernel runs the call: the reference promises values, and no bits."""
    try:
        case.call(*tensors, backend="cpu")
    except BackendError as error:
        check_error(error)
        return False
    return True


def check_alone(case, tensors, results):
    """A row alone, from memory of its own, has the bits that it has among others."""
    x, residual, weight, bias = tensors
    rows = x.shape[: x.ndim - case.axes].numel()
    if rows == 0 or x.numel() == 0 or not by_kernel(case, tensors):
        return
    index = case.seed % rows

    def row(t):
        return None if t is None else t.reshape(rows, *case.sizes)[index : index + 1].clone()

    alone = under("none", case.call, row(x), row(residual), weight, bias)
    for a, b in zip(alone, results, strict=True):
        check(same(a, row(b)), f"{case.name}: row {index} alone has other bits")


def check_out(case, tensors, y):
    if case.name.startswith("add"):
        return
    out = torch.empty_like(y)
    given = case.call(*tensors, out=out)
    check(given is out, f"{case.name}: does not return out")
    check(same(out, y), f"{case.name}: out= has other bits")


def gradients(function, tensors, seed):
    """Derivatives in the tensors given, under random cotangents."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    cotangents = [normals(y.shape, seed + 7 + i, y.dtype) for i, y in enumerate(results)]
    given = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(results, given, cotangents))
    return results, cotangents, [None if leaf is None else next(found) for leaf in leaves]


def check_row_gradients(case, tensors, results):
    x, residual = tensors[:2]
    elements = torch.Size(case.sizes).numel()
    if case.options.get("cast") == "early":
        return
    efficient = case.options.get("memory_efficient", False)
    try:
        ys, (dy, *dsum), found = gradients(case.call, tensors, case.seed)
    except InvalidInputError as error:
        check_error(error)
        check(efficient, f"{case.name}: refuses gradients")
        return
    if not efficient:
        check(all(same(a.detach(), b) for a, b in zip(ys, results, strict=True)), f"{case.name}: other bits with grad")
    for t, gradient in zip(tensors, found, strict=True):
        shaped = t is None or (gradient.shape == t.shape and gradient.dtype == t.dtype)
        check(shaped, f"{case.name}: a gradient of another shape or dtype")
    clamped = case.options["eps_mode"] == "clamp" and case.options["eps"] > 0.0  # the derivative has a jump there
    hard = {"outlier", "denormal"} & set(case.kinds)
    if efficient or clamped or elements < FEW or x.numel() == 0 or hard or not by_kernel(case, tensors):
        return
    leaves = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    wide = [t for t in leaves if t is not None]
    y = case.expected(*leaves)
    exact = iter(torch.autograd.grad(y, wide, dy.double()))
    exact = [None if leaf is None else next(exact) for leaf in leaves]
    if dsum:
        exact = [e + dsum[0].double() if i < 2 else e for i, e in enumerate(exact)]
    dtypes = (x.dtype,) if residual is None else (x.dtype, residual.dtype)
    dtypes += case.offset()
    for label, gradient, expected in zip(("dx", "dresidual"), found, exact, strict=False):
        if gradient is not None:
            limit = GRADIENT if gradient.dtype == torch.float32 else None
            within(case, flat(gradient, case.axes), flat(expected, case.axes), label, *dtypes, limit=limit)
    if all(t is None or bool(t.isfinite().all()) for t in exact):
        wide = arithmetic(*((x.dtype,) if residual is None else (residual.dtype,)))
        for label, gradient, expected in zip(("dweight", "dbias"), found[2:], exact[2:], strict=True):
            if gradient is not None:
                within(case, flat(gradient, case.axes), flat(expected, case.axes), label, wide)


def check_vmap(case):
    """Mapped over its first axis a norm is right as well; then plain code runs, not a kernel."""
    tensors = case.tensors()
    x, *others = tensors
    if x.ndim <= case.axes or x.shape[0] == 0 or case.options.get("memory_efficient"):
        return
    dims = (0, *(0 if t is others[0] and t is not None else None for t in others))
    results = torch.func.vmap(case.call, in_dims=dims, out_dims=0)(*tensors)
    y, expected = results[0] if isinstance(results, tuple) else results, case.expected(*tensors)
    terms = (*largest(tensors[3]), *finest(case))
    limit = PLAIN if y.dtype == torch.float32 else None
    within(
        case,
        flat(y, case.axes),
        flat(expected, case.axes),
        "vmap",
        *case.early(),
        *case.offset(),
        terms=terms,
        limit=limit,
    )


PROPERTIES = {"rows": (row_cases(), check_rows), "vmap": (row_cases(), check_vmap)}
