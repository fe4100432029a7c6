"""A plan of what is swapped in a model: a table first, then the swap with its proof, and back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn

from evenkeel._display import Displayed
from evenkeel._errors import ConversionError, InvalidArgumentError, InvalidTypeError
from evenkeel.convert._certificate import Certificate
from evenkeel.convert._site import Mode, Site, refusal
from evenkeel.convert._verify import Verification, verify_swap
from evenkeel.recognition import Call, Found, seen_inputs, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["Plan", "plan", "swap"]


@dataclass(kw_only=True)
class Plan(Displayed):
    """What is swapped in a model, and what is left and why.

    Attributes:
        model: the model.
        sites: its norms, in the order of its modules.
        mode: ``exact`` keeps the places where each norm rounds, ``accurate`` rounds once, at the end.
        certificate: of the last `apply`; None before, and after `revert`.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
        >>> plan = ek.convert.plan(model)
        >>> certificate = plan.apply(verify=torch.randn(4, 8))
        >>> type(model[1])
        <class 'evenkeel.nn._layer_norm.LayerNorm'>
        >>> plan.revert()
        >>> type(model[1])
        <class 'torch.nn.modules.normalization.LayerNorm'>
    """

    views = "evenkeel.convert._views"

    model: nn.Module = field(repr=False)
    sites: list[Site]
    mode: Mode = "exact"
    certificate: Certificate | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        served = sum(site.action == "swap" for site in self.sites)
        swapped = "to swap" if self.certificate is None else "swapped"
        return f"Plan({served} of {len(self.sites)} norms {swapped}, mode={self.mode!r})"

    def apply(self, verify: Any = None) -> Certificate:
        """Swap, and compare with the original where a batch is given.

        Args:
            verify: inputs of the model: a tensor, a tuple of arguments or a mapping of keyword arguments. Each norm
                alone with a residual around it, and the whole model, are compared with a run in float64: results and
                gradients. Copies are run: the model's statistics, gradients and random numbers stay.

        Returns:
            What was swapped and how far it is from the original; also kept as `certificate`.

        Raises:
            ConversionError: it is applied already, or a norm or the model is further from float64 than the original
                allows; nothing is swapped then.
        """
        if self.certificate is not None:
            raise ConversionError("the plan is applied already; call revert() first")
        served = [site for site in self.sites if site.action == "swap"]
        before = Verification.before(self.model, served, Call.of(verify)) if verify is not None else None
        try:
            for site in served:
                site.swap()
            checks = None if before is None else verify_swap(before, self.model, served)
        except BaseException:
            self._undo()
            raise
        reference = "" if before is None else str(before.reference).removeprefix("torch.")
        self.certificate = Certificate.of(self, checks, reference)
        return self.certificate

    def revert(self) -> None:
        """Make the model what it was: the same objects, classes and attributes.

        Raises:
            ConversionError: the plan is not applied.
        """
        if self.certificate is None:
            raise ConversionError("the plan is not applied; there is nothing to revert")
        self._undo()
        self.certificate = None

    def _undo(self) -> None:
        for site in self.sites:
            site.revert()


def plan(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    mode: Mode = "exact",
    where: Callable[[nn.Module, str], bool] | None = None,
) -> Plan:
    """Find the norms of a model and decide which are swapped; nothing is changed.

    Args:
        model: any model; wrappers, shared modules and parametrizations are taken as they are.
        example_inputs: inputs of the model, as for `Plan.apply`. They show the shapes and dtypes that each norm gets.
        mode: ``exact`` swaps what keeps its rounding, ``accurate`` also what rounds in other places than any spec, and
            rounds once.
        where: (module, name) -> whether to look at it.

    Returns:
        The plan, which shows itself as a table.

    Raises:
        InvalidTypeError: the model is no module.
        InvalidArgumentError: an unknown mode.
        ConversionError: the model does not run on the example inputs.

    Example:
        >>> import torch, evenkeel as ek
        >>> print(ek.convert.plan(torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.GELU())))
        1 of 1 norms will be swapped (mode exact).
         site   class     spec                       action
         ──────────────────────────────────────────────────
            0   RMSNorm   rms over token, eps None   swap
    """
    if not isinstance(model, nn.Module):
        raise InvalidTypeError(f"plan: expected a torch.nn.Module, but got {type(model).__name__}; pass the model")
    if mode not in get_args(Mode):
        raise InvalidArgumentError(f"plan: mode must be 'exact' or 'accurate', but got {mode!r}")
    seen = {} if example_inputs is None else shown(model, Call.of(example_inputs))
    default = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    sites = [site_of(found, mode, seen.get(id(found.module)), default) for found in survey(model, seen, where)]
    return Plan(model=model, sites=sites, mode=mode)


def swap(model: nn.Module, *, verify: Any = None, mode: Mode = "exact", quiet: bool = False) -> Certificate:
    """Swap every norm of a model that can be, and print what was and was not.

    Args:
        model: any model.
        verify: inputs to compare with the original on, as for `Plan.apply`.
        mode: ``exact`` or ``accurate``.
        quiet: whether to print nothing.

    Returns:
        The certificate; ``certificate.plan.revert()`` undoes the swap.

    Example:
        >>> import torch, evenkeel as ek
        >>> certificate = ek.convert.swap(torch.nn.Sequential(torch.nn.LayerNorm(8)), quiet=True)
        >>> certificate.swapped
        1
    """
    certificate = plan(model, mode=mode).apply(verify)
    if not quiet:
        from rich.console import Console

        Console(highlight=False).print(str(certificate), markup=False, soft_wrap=True)
    return certificate


def shown(model: nn.Module, call: Call) -> dict[int, Tensor]:
    """Return what each module is given in a call."""
    try:
        return seen_inputs(model, call)
    except Exception as error:  # the model is the user's own code
        raise ConversionError(f"the model does not run on the example inputs: {error}") from error


def site_of(found: Found, mode: Mode, seen: Tensor | None, default: torch.dtype | None) -> Site:
    """Decide what is done with a norm."""
    module, names, recognition = found
    spec = recognition.spec
    reason = refusal(module, recognition, mode, default if seen is None else seen.dtype)
    if not reason and seen is not None and seen.ndim not in recognition.ranks:
        reason = f"its inputs have {seen.ndim} axes, on which it was not seen to be this norm"
    return Site(
        name=names[0],
        others=tuple(names[1:]),
        kind=type(module).__name__,
        recognition=recognition,
        action="leave" if reason else "swap",
        reason=reason,
        module=module,
        spec=replace(spec, cast="late") if spec is not None and mode == "accurate" else spec,
    )
