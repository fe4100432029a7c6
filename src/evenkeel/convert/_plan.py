"""A plan of what is changed in a model: a table first, then the change with its proof, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from evenkeel._display import Summarised
from evenkeel._errors import ConversionError, InvalidArgumentError, InvalidTypeError
from evenkeel.convert._actions import ACTIONS
from evenkeel.convert._certificate import Certificate
from evenkeel.convert._placement import Placement, names_of, placements
from evenkeel.convert._search import Search
from evenkeel.convert._site import Mode, Site
from evenkeel.convert._verify import Verification, verify_changes
from evenkeel.convert._weights import Weights
from evenkeel.recognition import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Plan", "plan", "swap", "to_rms_norm"]


@dataclass(kw_only=True)
class Plan(Summarised):
    """What is changed in a model, and what is left and why.

    Attributes:
        model: the model.
        sites: its norms and other places, by action, in the order of its modules.
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
    _search: Search | None = field(default=None, repr=False)
    _weights: Weights = field(default_factory=Weights, repr=False)

    def __repr__(self) -> str:
        from evenkeel.convert._views import counted

        return f"Plan({counted(self.sites, done=self.certificate is not None)}, mode={self.mode!r})"

    def apply(self, verify: Any = None, *, progress: Callable[[str], None] | None = None) -> Certificate:
        """Change the model, and compare with the original where a batch is given.

        Args:
            verify: inputs of the model: a tensor, a tuple of arguments or a mapping of keyword arguments. Each norm
                alone with a residual around it, the results of what a norm was folded into, and the whole model are
                compared with a run in float64: results and gradients. Copies are run: the model's statistics,
                gradients and random numbers stay.
            progress: called with what comes next, in words.

        Returns:
            What was changed and how far it is from the original; also kept as `certificate`.

        Raises:
            ConversionError: it is applied already, or a site or the model is further from float64 than the original
                allows; nothing is changed then.
        """
        if self.certificate is not None:
            raise ConversionError("the plan is applied already; call revert() first")
        served = [site for site in self.sites if site.change is not None]
        tell = progress or silent
        before = Verification.before(self.model, served, Call.of(verify), tell) if verify is not None else None
        tell("changing the model")
        try:
            for site in served:
                assert site.change is not None
                site.change.apply(self._weights)
            self._weights.write()
            for site in served:
                assert site.change is not None
                site.change.check()
            checks = None if before is None else verify_changes(before, self.model, served, self._weights.touched, tell)
        except BaseException:
            self._undo()
            raise
        reference = "" if before is None else str(before.reference).removeprefix("torch.")
        self.certificate = Certificate.of(self, checks, reference)
        return self.certificate

    def placement(self) -> list[Placement]:
        """Tell where norms stand around the branches of the residual stream: by the data flow, never by names.

        Returns:
            One for each sum ``x + f(x)``, in the order of the run.

        Raises:
            InvalidArgumentError: the plan was made without example inputs.
        """
        if self._search is None or self._search.call is None:
            raise InvalidArgumentError("placement follows the data flow; give plan() example_inputs")
        return placements(self._search.graph, names_of([f for f in self._search.norms if f.recognition.spec]))

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
        for site in reversed(self.sites):
            if site.change is not None:
                site.change.revert()
        self._weights.restore()


def silent(step: str) -> None:
    """Tell nobody what comes next."""


def plan(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    actions: Sequence[str] = ("swap",),
    mode: Mode = "exact",
    where: Callable[[nn.Module, str], bool] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Find the norms of a model and decide what is done with each; nothing is changed.

    Args:
        model: any model; wrappers, shared modules and parametrizations are taken as they are.
        example_inputs: inputs of the model, as for `Plan.apply`. They show the shapes and dtypes that each norm gets,
            and the data flow, which every action but ``swap`` follows.
        actions: any of ``swap``, ``fold_batch_norm`` (into the convolution or linear layer before, or else after it),
            ``fold_affine`` (weight and bias of a norm into every linear layer that reads it) and ``fold_scaler`` (a
            `FeatureAffine` into the first layer), ``to_rms_norm`` (see `to_rms_norm`), ``fuse_activation`` (a ReLU or
            SiLU into the BatchNorm or GroupNorm before it) and ``fuse_residual_add`` (``x + f(x)`` and the norm of it
            in one call). Folds change weights: they are for inference.
        mode: ``exact`` swaps what keeps its rounding, ``accurate`` also what rounds in other places than any spec, and
            rounds once.
        where: (module, name) -> whether to look at it.
        progress: called with what comes next, in words: large models take minutes.

    Returns:
        The plan, which shows itself as a table.

    Raises:
        InvalidTypeError: the model is no module.
        InvalidArgumentError: an unknown mode or action, or no example inputs for an action that needs them.
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
    unknown = [name for name in actions if name not in ACTIONS] if not isinstance(actions, str) else [actions]
    if unknown:
        raise InvalidArgumentError(f"plan: actions must be of {', '.join(ACTIONS)} in a list, but got {unknown[0]!r}")
    chosen = {name: action for name, action in ACTIONS.items() if name in actions}
    needing = [name for name, action in chosen.items() if action.needs_inputs]
    if needing and example_inputs is None:
        raise InvalidArgumentError(f"plan: {needing[0]} follows the data flow; give example_inputs")
    call = None if example_inputs is None else Call.of(example_inputs)
    search = Search(model, call, mode, where, progress=progress or silent)
    sites = [site for action in chosen.values() for site in action.find(search)]
    return Plan(model=model, sites=sites, mode=mode, _search=search)


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


def to_rms_norm(model: nn.Module, example_inputs: Any, *, verify: Any = None) -> Certificate:
    r"""Turn the LayerNorms of a Pre-LN transformer into RMSNorms that compute the same.

    LayerNorm is RMSNorm of what has no mean. So every product, table and bias that writes into the residual stream
    loses its mean over the features, and a norm's own bias goes into the products that read it:

    .. math:: W' = W - \tfrac1n 1 1^\top W, \qquad b' = b - \tfrac1n 1 1^\top b

    Writers and readers are found by the data flow; arithmetic is in float64, rounded once; each norm keeps its eps. A
    head that is tied to a re-centred table gets a table of its own, and the certificate says so.

    Args:
        model: in evaluation, or without dropout.
        example_inputs: inputs of the model, as for `plan`.
        verify: inputs to compare with the original on, as for `Plan.apply`.

    Returns:
        The certificate, which names the norms that stay and why; ``certificate.plan.revert()`` undoes it.

    Raises:
        ConversionError: no norm can be turned, with the reason; or the model is further from float64 than the original
            allows, or its stream keeps a mean; nothing is changed then.

    Source: Jiang et al., "Pre-RMSNorm and Pre-CRMSNorm Transformers" (arXiv 2305.14858).

    Example:
        >>> import torch, evenkeel as ek
        >>> class Block(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.norm, self.feed = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        ...     def forward(self, x):
        ...         return x + self.feed(self.norm(x))
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), Block(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
        >>> x = torch.randn(5, 4)
        >>> ek.convert.to_rms_norm(model, x, verify=x)
        Certificate(2 of 2 LayerNorms turned into RMSNorms (to_rms_norm), verified=True)
    """
    found = plan(model, example_inputs, actions=("to_rms_norm",))
    if not any(site.change is not None for site in found.sites):
        reasons = sorted((site.reason.startswith("it did not run"), site.name, site.reason) for site in found.sites)
        why = f"{reasons[0][1]}: {reasons[0][2]}" if reasons else "it has no LayerNorm"
        raise ConversionError(f"to_rms_norm: nothing can be turned into an RMSNorm: {why}")
    return found.apply(verify)
