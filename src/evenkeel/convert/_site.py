"""A place of a model where a norm is, what is done with it, and how that is undone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._options.convert import Mode
from evenkeel.convert._modules import AnyLayout, class_for, replacement

if TYPE_CHECKING:
    from torch import nn

    from evenkeel._spec import NormSpec
    from evenkeel.convert._weights import Weights
    from evenkeel.recognition import Recognition

__all__ = ["Change", "Mode", "Site", "Swap", "refusal"]

MISSING = object()


class Change:
    """What is done at a site: how it is done, and how it is undone. Subclasses say both."""

    def apply(self, weights: Weights) -> None:
        """Change modules, and parameters through ``weights``, which rounds them once."""

    def check(self) -> None:
        """Raise `ConversionError` where the changed model is not what was promised, whatever is verified."""

    def revert(self) -> None:
        """Make the modules what they were; the weights go back by themselves. Nothing, where nothing was done."""


@dataclass(kw_only=True)
class Site:
    """One norm of a model, or another place where something is changed.

    Attributes:
        name: its qualified name; of a module in several places, the first.
        others: its further names.
        kind: the name of its class.
        recognition: what it computes.
        action: what is done, ``swap`` or another of the plan's actions, or ``leave``.
        reason: why it is left; empty where it is changed.
        sought: the action that was looked for.
        note: what else is to know of what is done.

    Example:
        >>> import torch, evenkeel as ek
        >>> plan = ek.convert.plan(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)))
        >>> [(site.name, site.kind, site.action) for site in plan.sites]
        [('1', 'LayerNorm', 'swap')]
    """

    name: str
    kind: str
    recognition: Recognition
    others: tuple[str, ...] = ()
    action: str = "leave"
    reason: str = ""
    sought: str = "swap"
    note: str = ""
    module: nn.Module = field(repr=False)
    change: Change | None = field(default=None, repr=False)
    # the names of modules whose results stay what they were, and of those whose results do not
    watched: tuple[str, ...] = field(default=(), repr=False)
    rescaled: tuple[str, ...] = field(default=(), repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from other sites of a plan: its action and its name."""
        return self.sought, self.name

    @property
    def is_swap(self) -> bool:
        """Whether the module itself computes what it did, by other means."""
        return self.action == "swap"


@dataclass(kw_only=True)
class Swap(Change):
    """A norm turns into evenkeel's in its place: the object, its tensors and its hooks stay the same."""

    module: nn.Module
    spec: NormSpec
    recognition: Recognition
    _before: tuple[type[nn.Module], dict[str, Any], list[str]] | None = None

    def apply(self, weights: Weights) -> None:
        """Give the module another class."""
        found, module = self.recognition, self.module
        assert found.layout is not None
        assert found.roles is not None
        mine, attributes = replacement(module, self.spec, found.layout, found.roles)
        theirs = type(module)
        kept = {name: vars(module).get(name, MISSING) for name in attributes}
        added = [name for name in ("weight", "bias") if mine is not AnyLayout and not hasattr(module, name)]
        self._before = theirs, kept, added
        try:
            vars(module).update(attributes)
            for name in added:
                module.register_parameter(name, None)
            module.__class__ = class_for(mine, theirs)
        except BaseException:
            self.revert()
            raise

    def revert(self) -> None:
        """Give the module its class and its attributes back."""
        if self._before is None:
            return
        theirs, kept, added = self._before
        self.module.__class__ = theirs
        for name, value in kept.items():
            if value is MISSING:
                vars(self.module).pop(name, None)
            else:
                vars(self.module)[name] = value
        for name in added:
            self.module._parameters.pop(name, None)
        self._before = None


def refusal(module: nn.Module, found: Recognition, mode: Mode, dtype: torch.dtype | None) -> str:
    """Say why a recognised module is not swapped, or return nothing."""
    spec, roles = found.spec, found.roles
    if spec is None or roles is None or found.layout is None:
        return found.reason
    if spec.activation is not None and spec.shares in ("token", "sample_channel"):
        return f"it applies {spec.activation} after the norm, for which there is no kernel over {spec.shares}"
    if roles.gate not in (None, "gate"):
        return f"its gate is called {roles.gate}, and callers may name it"
    own = {*dict(module.named_parameters(recurse=False)), *dict(module.named_buffers(recurse=False))}
    named = [name for name in (roles.weight, roles.bias, roles.mean, roles.variance) if name is not None]
    if not {name.removeprefix("parametrizations.").partition(".")[0] for name in named} <= own | set(dir(module)):
        return "its parameters belong to a module inside"
    if spec.memory == "running" and not found.frozen:
        mine, _ = replacement(module, spec, found.layout, roles)
        if mine is AnyLayout:
            return "no module of evenkeel's remembers statistics with these axes and names"
        if found.momentum != getattr(module, "momentum", None):
            return f"its statistics follow with momentum {found.momentum}, but its attribute says otherwise"
    weight = next((t.dtype for t in module.parameters(recurse=False) if t.is_floating_point()), dtype)
    pairs = [(d, weight) for d in (dtype, weight) if d is not None]
    if mode == "exact" and not all(found.rounds_alike(*pair) for pair in pairs):
        name = str(dtype).removeprefix("torch.")
        return f"in {name} it rounds in other places than any spec; mode='accurate' rounds once instead"
    return ""
