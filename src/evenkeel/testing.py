"""The check battery that every norm passes: values, derivatives, transforms, compilation. Use it on your own norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.autograd.gradcheck import GradcheckError

from evenkeel._errors import EvenkeelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = [
    "Case",
    "CheckError",
    "check_compiled",
    "check_derivatives",
    "check_transforms",
    "check_values",
    "ulp_error",
]


class CheckError(EvenkeelError, AssertionError):
    """A norm failed a check; the message says which, on what, and by how much."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One norm with its options bound, and what it is checked on.

    Attributes:
        name: how failures name it.
        function: ``(input, *parameters) -> output``, the implementation.
        reference: the same in plain PyTorch, exact enough in float64 to be the definition.
        shapes: input shapes to check; small, odd sizes included.
        parameters: from an input shape to the shapes of the parameters.
        rows: views an output so that its last axis is what shares a statistic, for measuring errors.

    Example:
        >>> import torch
        >>> from evenkeel import functional as F
        >>> from evenkeel.testing import Case, check_values
        >>> case = Case(
        ...     name="rms_norm",
        ...     function=lambda x, weight: F.rms_norm(x, x.shape[-1:], weight),
        ...     reference=lambda x, weight: F.rms_norm_reference(x, x.shape[-1:], weight, eps=2**-23),
        ...     shapes=((4, 33),),
        ...     parameters=lambda shape: (shape[-1:],),
        ... )
        >>> check_values(case, torch.float32, limit=3.0) < 3.0
        True
    """

    name: str
    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    parameters: Callable[[tuple[int, ...]], tuple[tuple[int, ...], ...]] = lambda shape: ()
    rows: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, ...]:
        """Random input, parameters and cotangent, the same for a seed whatever the dtype."""
        generator = torch.Generator().manual_seed(seed)
        shapes = (shape, *self.parameters(shape), shape)
        return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)


def ulp_error(actual: Tensor, expected: Tensor) -> float:
    r"""The largest error of a row in units of the last place of the row's largest value.

    .. math:: R = \max \frac{|\text{error}|}{\text{ulp}(\max_\text{row} |\text{expected}|)}

    0.5 is a correctly rounded row. The ulp is that of ``actual``'s dtype.

    Args:
        actual: (\*, features), the result under test.
        expected: the same shape in float64.

    Returns:
        R over all rows; infinity where a value is NaN or infinite in one and not the same in the other.

    Example:
        >>> import torch
        >>> from evenkeel.testing import ulp_error
        >>> ulp_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 2**-22], dtype=torch.float64))
        1.0
    """
    if actual.numel() == 0:
        return 0.0
    info = torch.finfo(actual.dtype)
    both = actual.double() == expected
    error = torch.where(both | (actual.isnan() & expected.isnan()), 0.0, (actual.double() - expected).abs())
    finite = torch.where(expected.isfinite(), expected, 0.0).abs()
    largest = finite.amax(-1, keepdim=True).clamp_min(info.tiny) if actual.ndim else finite.clamp_min(info.tiny)
    ulp = torch.exp2(torch.floor(torch.log2(largest))) * info.eps
    return float((error / ulp).nan_to_num(nan=torch.inf, posinf=torch.inf).max())


def _gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The output, and the gradients of every input and parameter under the last tensor as cotangent."""
    *values, cotangent = inputs
    leaves = [v.detach().clone().requires_grad_() for v in values]
    y = function(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, cotangent.to(y.dtype)))


def _case_error(case: Case, actual: Tensor, expected: Tensor) -> float:
    """The error over the case's rows; a parameter's gradient is one row."""
    is_output = actual.ndim > 1
    return ulp_error(case.rows(actual), case.rows(expected)) if is_output else ulp_error(actual, expected)


def check_values(case: Case, dtype: torch.dtype, limit: float) -> float:
    """Compare output and gradients with the float64 reference under a random cotangent, in ulps.

    Args:
        case: what to check.
        dtype: of the input, the parameters and the cotangent.
        limit: the largest R allowed.

    Returns:
        The largest R seen.

    Raises:
        CheckError: R exceeds the limit, a result has another dtype or shape, or an input was modified.

    Example:
        >>> import torch
        >>> from evenkeel.testing import Case, check_values
        >>> case = Case(name="tanh", function=torch.tanh, reference=torch.tanh, shapes=((2, 3),))
        >>> check_values(case, torch.float32, limit=3.0) < 3.0
        True
    """
    worst = 0.0
    for shape in case.shapes:
        inputs = case.inputs(shape, dtype)
        before = tuple(t.clone() for t in inputs)
        results = _gradients(case.function, inputs)
        if any(not torch.equal(a, b) for a, b in zip(inputs, before, strict=True)):
            raise CheckError(f"{case.name} {shape} {dtype}: an input or the upstream gradient was modified")
        expected = _gradients(case.reference, tuple(t.double() for t in inputs))
        labels = ("y", "dx", *(f"dparameter {i}" for i in range(len(results) - 2)))
        for label, result, exact in zip(labels, results, expected, strict=True):
            if result.dtype != dtype or result.shape != exact.shape:
                raise CheckError(f"{case.name} {shape} {label}: got {result.dtype} {tuple(result.shape)}")
            error = _case_error(case, result, exact)
            worst = max(worst, error)
            if not error <= limit:
                raise CheckError(f"{case.name} {shape} {dtype} {label}: R = {error:.3g} exceeds {limit}")
    return worst


def check_derivatives(case: Case, *, fast: bool = False) -> None:
    """Run torch's gradient checks in float64: reverse and forward mode, batched, and second derivatives.

    Args:
        case: what to check.
        fast: check random projections of the Jacobian rather than all of it.

    Raises:
        CheckError: a derivative differs from the finite differences.

    Example:
        >>> import torch
        >>> from evenkeel.testing import Case, check_derivatives
        >>> case = Case(name="tanh", function=torch.tanh, reference=torch.tanh, shapes=((2, 3),))
        >>> check_derivatives(case)
    """
    for shape in case.shapes:
        inputs = tuple(t.requires_grad_() for t in case.inputs(shape, torch.float64)[:-1])
        try:
            torch.autograd.gradcheck(
                case.function,
                inputs,
                check_batched_grad=True,
                check_forward_ad=True,
                check_batched_forward_grad=True,
                check_undefined_grad=False,
                fast_mode=fast,
            )
            torch.autograd.gradgradcheck(case.function, inputs, check_batched_grad=True, fast_mode=fast)
        except GradcheckError as error:
            raise CheckError(f"{case.name} {shape}: {error}") from error


def check_transforms(case: Case) -> None:
    """Compare vmap, jacrev, jacfwd and hessian with the reference in float64.

    Raises:
        CheckError: a transform of the function differs from that of the reference.

    Example:
        >>> import torch
        >>> from evenkeel.testing import Case, check_transforms
        >>> case = Case(name="tanh", function=torch.tanh, reference=torch.tanh, shapes=((2, 3),))
        >>> check_transforms(case)
    """
    for shape in case.shapes:
        x, *parameters = case.inputs(shape, torch.float64)[:-1]
        stacked = torch.stack([x, x + 1.0, -x])

        def mapped(f: Callable[..., Tensor], p: list[Tensor] = parameters, xs: Tensor = stacked) -> Tensor:
            return torch.func.vmap(lambda one: f(one, *p))(xs)

        def scalar(f: Callable[..., Tensor], p: list[Tensor] = parameters) -> Callable[[Tensor], Tensor]:
            return lambda one: f(one, *p).sin().sum()

        pairs = {"vmap": (mapped(case.function), mapped(case.reference))}
        for name, transform in (
            ("jacrev", torch.func.jacrev),
            ("jacfwd", torch.func.jacfwd),
            ("hessian", torch.func.hessian),
        ):
            pairs[name] = tuple(transform(scalar(f))(x) for f in (case.function, case.reference))
        for name, (ours, exact) in pairs.items():
            if not torch.allclose(ours, exact, rtol=1e-9, atol=1e-9):
                worst = float((ours - exact).abs().max())
                raise CheckError(f"{case.name} {shape}: {name} differs from the reference's by {worst:.3g}")


def check_compiled(case: Case, backend: str, *, limit: float = 3.0) -> None:
    """Compile forward and backward as one graph each and compare with the float64 reference, in ulps.

    Args:
        case: what to check.
        backend: of `torch.compile`, e.g. ``aot_eager`` or ``inductor``.
        limit: the largest R allowed, in float32.

    Raises:
        CheckError: R exceeds the limit. A graph break raises torch's own error.

    Example:
        >>> import torch
        >>> from evenkeel.testing import Case, check_compiled
        >>> case = Case(name="tanh", function=torch.tanh, reference=torch.tanh, shapes=((2, 3),))
        >>> check_compiled(case, "eager")
    """
    torch._dynamo.reset()
    compiled = torch.compile(case.function, backend=backend, fullgraph=True)
    for shape in case.shapes:
        inputs = case.inputs(shape, torch.float32)
        expected = _gradients(case.reference, tuple(t.double() for t in inputs))
        for index, (ours, exact) in enumerate(zip(_gradients(compiled, inputs), expected, strict=True)):
            error = _case_error(case, ours, exact)
            if not error <= limit:
                raise CheckError(f"{case.name} {shape}: compiled result {index} has R = {error:.3g}, above {limit}")
