"""A plan of what is swapped in a model: a table first, then the swap with its proof, and back."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn

from evenkeel._display import Displayed
from evenkeel._errors import ConversionError, InvalidArgumentError, InvalidTypeError
from evenkeel.convert._calls import Call, seen_inputs
from evenkeel.convert._certificate import Certificate
from evenkeel.convert._copies import HOOKS
from evenkeel.convert._recognition import Recognition
from evenkeel.convert._recognize import recognize
from evenkeel.convert._site import Mode, Site, refusal
from evenkeel.convert._verify import Verification, verify_swap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

__all__ = ["Plan", "plan", "swap"]

MOST_TENSORS = 8  # of a module that may be a norm
# Probing a matrix of 2048 by 2048 as if it were the weight of a norm over two axes takes a minute.
MOST_IN_EXAMPLE = 2**20  # of an input that a norm is probed on
MOST_IN_VECTOR, MOST_IN_MATRIX = 2**22, 2**14
SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.Size)


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
    seen = {} if example_inputs is None else seen_inputs(model, Call.of(example_inputs))
    default = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    known: dict[Any, Recognition] = {}
    sites = []
    for module, names in candidates(model):
        if where is not None and not where(module, names[0]):
            continue
        site = examine(module, names, mode, seen.get(id(module)), known, default)
        if site is not None:
            sites.append(site)
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


def candidates(model: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """Yield every module that may be a norm, with its names: one that has few tensors, all of them its own."""
    found: OrderedDict[int, tuple[nn.Module, list[str]]] = OrderedDict()
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(id(module), (module, []))[1].append(name)
    for module, names in found.values():
        parts = (child for child in module.modules() if not isinstance(child, nn.utils.parametrize.ParametrizationList))
        inner = [t for child in parts if child is not module for t in own_tensors(child)]
        own = own_tensors(module)
        parametrized = nn.utils.parametrize.is_parametrized(module)
        small = len(own) <= MOST_TENSORS and all(t.numel() <= most_numbers(module, t) for t in own)
        inside = "parametrizations" in ".".join(names).split(".")
        if small and not inside and (not inner or parametrized):
            yield module, names


def most_numbers(module: nn.Module, tensor: Tensor) -> int:
    """How many numbers a tensor of a norm has at most: few in a matrix, unless the module has an eps or a shape."""
    is_vector = sum(size > 1 for size in tensor.shape) < 2
    declares = any("eps" in name or name == "normalized_shape" for name in vars(module))
    return MOST_IN_VECTOR if is_vector or declares else MOST_IN_MATRIX


def own_tensors(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of a module without those of its children."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def examine(
    module: nn.Module,
    names: list[str],
    mode: Mode,
    seen: Tensor | None,
    known: dict[Any, Recognition],
    default: torch.dtype | None,
) -> Site | None:
    """Recognise a module and decide; None where it neither is nor looks like a norm."""
    kind = type(module).__name__
    if type(module).__module__.startswith("evenkeel."):
        own = Recognition(spec=getattr(module, "spec", None), reason="it is evenkeel's already", agreement={})
        site = Site(
            name=names[0], others=tuple(names[1:]), kind=kind, recognition=own, reason=own.reason, module=module
        )
        return site if own.spec is not None else None
    key = fingerprint(module)
    found = known.get(key) if key is not None else None
    if found is None:
        found = recognize(module)
        if key is not None:
            known[key] = found
    if seen is not None and seen.numel() <= MOST_IN_EXAMPLE and seen.ndim not in found.ranks:
        shown = recognize(module, example=seen)
        if shown.spec is not None and found.spec in (None, shown.spec):
            found = shown
    if found.spec is None and not looks_like_norm(module, found):
        return None
    dtype = default if seen is None else seen.dtype
    reason = refusal(module, found, mode, dtype)
    if not reason and seen is not None and seen.ndim not in found.ranks:
        reason = f"its inputs have {seen.ndim} axes, on which it was not seen to be this norm"
    spec = found.spec
    if spec is not None and mode == "accurate":
        spec = replace(spec, cast="late")
    return Site(
        name=names[0],
        others=tuple(names[1:]),
        kind=kind,
        recognition=found,
        action="leave" if reason else "swap",
        reason=reason,
        module=module,
        spec=spec,
    )


def looks_like_norm(module: nn.Module, found: Recognition) -> bool:
    """Whether a reader of the table expects the module in it: by its name, or an eps beside statistics."""
    has_eps = any("eps" in name for name in vars(module)) and not found.reason.endswith("it has no statistics")
    return "norm" in type(module).__name__.lower() or has_eps


def fingerprint(module: nn.Module) -> Any:
    """What decides the function of a module besides the values of its tensors; None where that cannot be told."""
    parts: list[Any] = [type(module)]
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers"):
            parts += [(key, None if t is None else (tuple(t.shape), t.dtype)) for key, t in value.items()]
        elif name == "_modules":
            inner = [(key, None if child is None else fingerprint(child)) for key, child in value.items()]
            if any(child is None for _, child in inner):
                return None
            parts += inner
        elif name in HOOKS or name in ("training", "_compiled_call_impl"):
            continue
        elif isinstance(value, SIMPLE) or (isinstance(value, tuple) and all(isinstance(v, SIMPLE) for v in value)):
            parts.append((name, type(value), value))
        elif value != set():  # torch's own _non_persistent_buffers_set
            return None
    return tuple(parts)
