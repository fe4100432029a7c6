"""column_moments and column_affine: the statistics of a table's columns, and the map they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel.functional._common import check_tensor
from evenkeel.functional._out import overlap, unshared
from evenkeel.kernels import KERNEL_DTYPES, composite_required, runs_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class ColumnMoments(NamedTuple):
    """The results of `column_moments`: one element per column in each field.

    Attributes:
        count: elements that are not NaN, int64; with weights the sum of theirs, float64.
        mean: their mean, float64; 0 where there are none.
        m2: the (weighted) sum of their squared differences from the mean, float64; 0 where there are none.
        minimum: the smallest of them, float64; inf where there are none.
        maximum: the largest of them, float64; -inf where there are none.
        missing: elements that are NaN, int64.
        infinite: elements that are inf or -inf, int64.
        mean_low: what the mean lost in rounding, float64: mean + mean_low has about twice the digits, which merging
            tables with large means needs.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> moments = F.column_moments(torch.tensor([[1.0, 5.0], [3.0, float("nan")]]))
        >>> isinstance(moments, F.ColumnMoments), (moments.m2 / moments.count).tolist()
        (True, [1.0, 0.0])
    """

    count: Tensor  # type: ignore[assignment]  # tuple.count, which nobody looks for here
    mean: Tensor
    m2: Tensor
    minimum: Tensor
    maximum: Tensor
    missing: Tensor
    infinite: Tensor
    mean_low: Tensor


def column_moments_reference(x: Tensor, *, weight: Tensor | None = None) -> ColumnMoments:
    """`column_moments` in plain PyTorch, over the last axis but one: the definition (no argument checks).

    Two passes in float64, from a value of the column, so that a constant column has m2 = 0 exactly.
    """
    values = x.detach().double()
    weights = torch.ones(x.shape[-2], dtype=torch.float64, device=x.device) if weight is None else weight.double()
    weights = weights.unsqueeze(-1)
    valid = (weights != 0) & ~values.isnan()
    finite = valid & values.isfinite()
    infinite = (valid & values.isinf()).sum(-2)
    share = torch.where(finite, weights, 0.0)
    total = share.sum(-2)

    # the empty row makes amax and gather work on a table without rows
    filled = torch.cat([values, torch.zeros_like(values[..., :1, :].sum(-2, keepdim=True))], -2)
    first = torch.cat([finite, torch.ones_like(finite[..., :1, :].any(-2, keepdim=True))], -2).byte().argmax(-2)
    shift = filled.gather(-2, first.unsqueeze(-2))
    centred = torch.where(finite, values - shift, 0.0)
    offset = (share * centred).sum(-2, keepdim=True) / total.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(-2)
    centred = torch.where(finite, centred - offset, 0.0)
    m2 = (share * centred.square()).sum(-2)

    minimum = torch.cat([torch.where(valid, values, torch.inf), torch.full_like(filled[..., :1, :], torch.inf)], -2)
    maximum = torch.cat([torch.where(valid, values, -torch.inf), torch.full_like(filled[..., :1, :], -torch.inf)], -2)
    minimum, maximum = minimum.amin(-2), maximum.amax(-2)
    limit = maximum.clamp_min(0) + minimum.clamp_max(0)  # inf, -inf, or NaN where there are both
    shift, offset = shift.squeeze(-2), offset.squeeze(-2)
    mean = shift + offset
    low = torch.where(shift.abs() > offset.abs(), (shift - mean) + offset, (offset - mean) + shift)
    return ColumnMoments(
        count=valid.sum(-2) if weight is None else torch.where(valid, weights, 0.0).sum(-2),
        mean=torch.where(infinite > 0, torch.where(limit.isfinite(), torch.nan, limit), mean),
        m2=torch.where(infinite > 0, torch.nan, m2),
        minimum=minimum,
        maximum=maximum,
        missing=((weights != 0) & values.isnan()).sum(-2),
        infinite=infinite,
        mean_low=torch.where((infinite > 0) | ~mean.isfinite(), 0.0, low),
    )


def column_moments(
    x: Tensor | Sequence[Tensor], *, weight: Tensor | None = None, backend: str = "auto"
) -> ColumnMoments:
    r"""Count, mean, squared differences, range and missing values of each column of a table.

    .. math:: \mu_c = \frac{\sum_r w_r x_{rc}}{\sum_r w_r} \qquad M_c = \sum_r w_r (x_{rc} - \mu_c)^2

    The sums run over the rows where the column is not NaN, in float64 and about a value near the mean: a mean of 1e8
    with a spread of 1 costs no digits. A column with infinite values has the mean that IEEE arithmetic gives and m2 =
    NaN. The bits of the result do not depend on threads, SIMD level or strides. A column of its own or of a table
    stored by columns has the same bits whatever is beside it; in a table stored by rows, the number of columns decides
    in which order rows are summed. Not differentiable, and not for vmap or torch.compile.

    Args:
        x: (rows, columns), any real dtype, any strides; tables stored by rows or by columns are not copied. Or a list
            of columns (rows,), each with a dtype and memory of its own, as Arrow keeps them.
        weight: (rows,), finite and not negative (else an error, on a GPU NaN); a row of weight 0 is left out
            altogether. Default: 1 for each row. Not with a list.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``.

    Returns:
        A `ColumnMoments` of tensors (columns,).

    Raises:
        InvalidInputError: x is not a real matrix or list of real columns, or the weights do not fit it.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> moments = F.column_moments(torch.tensor([[1.0, 5.0], [3.0, float("nan")]]))
        >>> moments.mean.tolist(), moments.count.tolist(), moments.missing.tolist()
        ([2.0, 5.0], [2, 1], [0, 1])
        >>> F.column_moments([torch.tensor([1, 3]), torch.tensor([0.5])]).mean.tolist()
        [2.0, 0.5]

    Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance", 1983.
    """
    if not isinstance(x, torch.Tensor):
        return _separate_column_moments(list(x), weight, backend)
    check_tensor("column_moments", "x", x)
    if x.ndim != 2 or x.is_complex():
        raise InvalidInputError(
            f"column_moments: expected a real matrix (rows, columns), but got {x.dtype} of shape {tuple(x.shape)}; "
            "reshape it, e.g. x.reshape(-1, x.shape[-1])"
        )
    if weight is not None:
        weight = _checked_weight(x, weight)
    if not runs_kernel("columns", backend, None, x, weight):
        return column_moments_reference(x, weight=weight)
    weights = None if weight is None else weight.double()
    moments = torch.ops.evenkeel.column_moments.default(x.detach().unsqueeze(0), weights)
    return ColumnMoments(*(t.squeeze(0) for t in moments))


def _separate_column_moments(columns: list[Tensor], weight: Tensor | None, backend: str) -> ColumnMoments:
    for x in columns:
        if not isinstance(x, torch.Tensor) or x.ndim != 1 or x.is_complex():
            seen = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise InvalidInputError(f"column_moments: expected a list of real columns (rows,), but one is {seen}")
    if not columns or weight is not None:
        what = "no columns" if not columns else "a weight, which only a table takes; see torch.stack"
        raise InvalidInputError(f"column_moments: expected a list of columns alone, but got {what}")
    if not runs_kernel("columns", backend, None, *columns):
        moments = [column_moments_reference(x.unsqueeze(-1)) for x in columns]
        return ColumnMoments(*(torch.cat(parts) for parts in zip(*moments, strict=True)))
    return ColumnMoments(*torch.ops.evenkeel.separate_column_moments.default([x.detach() for x in columns]))


def _checked_weight(x: Tensor, weight: Tensor) -> Tensor:
    check_tensor("column_moments", "weight", weight)
    if weight.shape != x.shape[:1] or weight.is_complex():
        raise InvalidInputError(
            f"column_moments: expected one real weight for each of the {x.shape[0]} rows, but got {weight.dtype} of "
            f"shape {tuple(weight.shape)}"
        )
    valid = (weight >= 0) & (weight < torch.inf)
    if not weight.is_cpu:  # to look would be to wait
        return torch.where(valid, weight.double(), torch.nan)
    if not valid.all():
        raise InvalidInputError(
            f"column_moments: weights must be finite and not negative, but they range from {weight.min().item()} to "
            f"{weight.max().item()}; give rows to leave out the weight 0"
        )
    return weight


def column_affine_reference(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    *,
    clip: tuple[float | None, float | None] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`column_affine` in plain PyTorch, differentiable in every tensor: the definition (no argument checks)."""
    y = (x.double() - shift.double()) * scale.double()
    if offset is not None:
        y = y + offset.double()
    if clip not in (None, (None, None)):
        y = y.clamp(*clip)
    return y.to(dtype or default_dtype(x))


def default_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a map of x: its own, or torch's default one for integers."""
    return x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()


def result_dtype(x: Tensor, out: Tensor | None, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype asked for, else that of ``out``, else that of a map of x; raise unless these are dense tensors."""
    check_tensor("column_affine", "x", x)
    if out is not None:
        check_tensor("column_affine", "out", out)
    if dtype is not None:
        return dtype
    return default_dtype(x) if out is None else out.dtype


def check_result_dtype(name: str, dtype: torch.dtype) -> None:
    """Raise `InvalidInputError` unless a result can have this dtype."""
    if dtype not in KERNEL_DTYPES:
        raise InvalidInputError(
            f"{name}: the result must be floating (float32, float64, bfloat16, float16), but got dtype {dtype}"
        )


def map_arguments(
    shift: Tensor, scale: Tensor, offset: Tensor | None, clip: tuple[float | None, float | None] | None = None
) -> tuple[Tensor, Tensor, Tensor | None, float | None, float | None]:
    """The map of columns in the order of the operators' schemas."""
    return shift.double(), scale.double(), None if offset is None else offset.double(), *(clip or (None, None))


class ColumnAffineFunction(torch.autograd.Function):
    """The derivative in x is again such a map, which makes every order available."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shift: Tensor, scale: Tensor, offset: Tensor | None, dtype: torch.dtype, backend: str
    ) -> Tensor:
        ctx.save_for_backward(scale)
        ctx.dtype, ctx.backend = x.dtype, backend
        return torch.ops.evenkeel.column_affine.default(x, *map_arguments(shift, scale, offset), dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        dx = column_affine(gradients[0], torch.zeros_like(scale), scale, dtype=ctx.dtype, backend=ctx.backend)
        return dx, None, None, None, None, None


def column_affine(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    *,
    clip: tuple[float | None, float | None] | None = None,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Shift and scale each column of a table, in float64 and rounded once.

    .. math:: y_{rc} = (x_{rc} - \text{shift}_c)\,\text{scale}_c + \text{offset}_c

    The difference is taken before anything is rounded, so that float32 values far from 0 keep the digits they have.

    Args:
        x: (..., columns), any real dtype, any strides; tables stored by rows or by columns are not copied.
        shift: (columns,), what is subtracted.
        scale: (columns,), what the difference is multiplied by.
        offset: (columns,), what is added; none by default.
        clip: the lowest and the highest value of the result, None where there is none; NaN stays NaN.
        out: a tensor of x's shape and ``dtype`` to write into, which may be x itself; not differentiable.
        dtype: of the result, floating; by default that of x, and torch's default one for integers.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``. While torch compiles or transforms, the reference runs.

    Returns:
        A tensor of x's shape, stored by columns where x is, or ``out``.

    Raises:
        InvalidInputError: a shape or dtype does not fit.
        InvalidArgumentError: clip's bounds are in the wrong order.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> table = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> F.column_affine(table, torch.tensor([2.0, 20.0]), torch.tensor([1.0, 0.1]))
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """
    tensors = (x, shift, scale, offset, out)
    if has_torch_function_variadic(*tensors):
        options: dict[str, Any] = {"clip": clip, "out": out, "dtype": dtype, "backend": backend}
        return handle_torch_function(column_affine, tensors, x, shift, scale, offset, **options)
    dtype = result_dtype(x, out, dtype)
    _check_affine(x, (shift, scale, offset), clip, out, dtype)
    parameters = (shift, scale) if offset is None else (shift, scale, offset)
    by_kernel = runs_kernel("columns", backend, None, x, *parameters, out)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters))
    by_reference = needs_grad and (clip is not None or any(p.requires_grad for p in parameters))
    if not by_kernel or by_reference or composite_required() or torch.compiler.is_compiling():
        y = column_affine_reference(x, shift, scale, offset, clip=clip, dtype=dtype)
        return y if out is None else out.copy_(y)
    if needs_grad:
        return ColumnAffineFunction.apply(x, shift, scale, offset, dtype, backend)
    return run_column_affine(x, map_arguments(shift, scale, offset, clip), out, dtype)


def run_column_affine(
    x: Tensor, arguments: tuple[Any, ...], out: Tensor | None, dtype: torch.dtype, infinite: Tensor | None = None
) -> Tensor:
    """Run the kernel, into ``out`` if there is one; it sets ``infinite`` if x holds an infinity."""
    if out is not None and unshared("column_affine", out, x, *arguments[:3]):
        torch.ops.evenkeel.column_affine_out.default(x, *arguments, out, infinite)
        return out
    y: Tensor = torch.ops.evenkeel.column_affine.default(x, *arguments, dtype, infinite)
    return y if out is None else out.copy_(y)


def finite_column_affine(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    *,
    clip: tuple[float | None, float | None] | None = None,
    out: Tensor | None = None,
) -> Tensor | None:
    r"""Map each column as `column_affine` does, and look for infinities in the same pass.

    .. math:: y_{rc} = (x_{rc} - \text{shift}_c)\,\text{scale}_c + \text{offset}_c

    Not differentiable.

    Args:
        x: (..., columns), any real dtype, any strides.
        shift: (columns,), what is subtracted.
        scale: (columns,), what the difference is multiplied by.
        offset: (columns,), what is added; none by default.
        clip: the lowest and the highest value of the result, None where there is none; NaN stays NaN.
        out: a floating tensor of x's shape to write into. If it is x's own memory, x is searched first and stays as it
            was where it holds an infinity; any other ``out`` is overwritten in any case.

    Returns:
        The mapped table, or None if x holds an infinity.

    Raises:
        InvalidInputError: a shape or dtype does not fit.
        InvalidArgumentError: clip's bounds are in the wrong order.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> table, zero, one = torch.tensor([[1.0], [3.0]]), torch.zeros(1), torch.ones(1)
        >>> F.finite_column_affine(table, zero, one).tolist(), F.finite_column_affine(table / 0, zero, one)
        ([[1.0], [3.0]], None)
    """
    dtype = result_dtype(x, out, None)
    _check_affine(x, (shift, scale, offset), clip, out, dtype)
    parameters = (shift, scale) if offset is None else (shift, scale, offset)
    in_place = out is not None and overlap(out, x)
    if in_place or not runs_kernel("columns", "auto", None, x, *parameters, out):
        return None if has_infinity(x) else column_affine(x, shift, scale, offset, clip=clip, out=out)
    infinite = torch.zeros(1, dtype=torch.bool, device=x.device)
    y = run_column_affine(x, map_arguments(shift, scale, offset, clip), out, dtype, infinite)
    return None if infinite.item() else y


def has_infinity(x: Tensor) -> bool:
    """Whether a tensor holds an infinity: one pass at memory speed, a second one only if there are NaN as well.

    Args:
        x: any shape and real dtype.

    Returns:
        True if an element is inf or -inf.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> F.has_infinity(torch.tensor([1.0, float("inf")])), F.has_infinity(torch.tensor([1.0, float("nan")]))
        (True, False)
    """
    check_tensor("has_infinity", "x", x)
    return not torch.isfinite(x.sum()) and bool(torch.isinf(x).any())


def is_range(clip: Any) -> bool:
    """Whether a value is a pair of numbers in their order, each of which may be None."""
    try:
        low, high = (None if bound is None else float(bound) for bound in clip)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return low is None or high is None or low <= high


def _check_affine(
    x: Tensor,
    parameters: tuple[Tensor | None, ...],
    clip: tuple[float | None, float | None] | None,
    out: Tensor | None,
    dtype: torch.dtype,
) -> None:
    for label, parameter in zip(("shift", "scale", "offset"), parameters, strict=True):
        if parameter is not None or label != "offset":
            check_tensor("column_affine", label, parameter)
    if x.ndim == 0 or x.is_complex():
        raise InvalidInputError(f"column_affine: expected real (..., columns), but got {x.dtype}, {tuple(x.shape)}")
    for name, parameter in zip(("shift", "scale", "offset"), parameters, strict=True):
        if parameter is not None and (parameter.shape != x.shape[-1:] or parameter.is_complex()):
            raise InvalidInputError(
                f"column_affine: {name} must be real with one element for each of the {x.shape[-1]} columns, but got "
                f"{parameter.dtype} of shape {tuple(parameter.shape)}"
            )
    check_result_dtype("column_affine", dtype)
    if not (clip is None or is_range(clip)):
        raise InvalidArgumentError(f"column_affine: clip needs (lowest, highest), but got {clip!r}")
    if out is None:
        return
    if out.shape != x.shape or out.dtype != dtype:
        raise InvalidInputError(
            f"column_affine: out must be {dtype} of shape {tuple(x.shape)}, but got {out.dtype} of {tuple(out.shape)}"
        )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, out, *parameters)):
        raise InvalidInputError("column_affine: out= is not differentiable; leave it out, or use torch.no_grad()")
