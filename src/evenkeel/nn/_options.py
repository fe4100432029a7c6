"""What every module shares: how its keyword-only options are stored, printed and told as a `NormSpec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.parameter import is_lazy

from evenkeel._errors import BackendError
from evenkeel._spec import NormSpec
from evenkeel.functional import NO_SCRIPT

if TYPE_CHECKING:
    from evenkeel._spec import Activation, Cast, EpsMode

# Every option with its default, in the order in which they are printed.
DEFAULTS: dict[str, Any] = {
    "eps_mode": "inside",
    "weight_offset": 0.0,
    "cast": "late",
    "backend": "auto",
    "activation": None,
    "gating": "silu_before",
    "groups": None,
    "residual_rounding": "rounded",
    "memory_efficient": False,
}
_SEARCH = torch.nn.Module.__getattr__
_is_compiling = torch.compiler.is_compiling  # looking the name up takes as long as the call


def held(module: torch.nn.Module, name: str) -> Any:
    """A module's parameter or buffer, without `torch.nn.Module`'s search for attributes: that takes 0.8 µs each time.

    One that is not the module's own (pruned, reparametrized), and one that somebody looks for in another way (a
    subclass, a tracer), comes from the search. So does each in a compiled graph, which would check what is asked here
    each time that it is called.
    """
    if not _is_compiling() and name not in module.__dict__ and type(module).__getattr__ is _SEARCH:
        if name in module._parameters:
            return module._parameters[name]
        if name in module._buffers:
            return module._buffers[name]
    return getattr(module, name)


def refuse_script(module: torch.nn.Module) -> torch.nn.Module:
    """What `torch.jit.script` asks of a module first."""
    raise BackendError(f"{type(module).__name__}: {NO_SCRIPT}")


def recorded_call(module: torch.nn.Module, *arguments: Any) -> Any:
    """A module's call as one node of the graph that `torch.fx` traces, as it records torch.nn's modules.

    Followed inside, the module would keep the mode of that moment and lose its counter of batches. None where nothing
    is traced or the module itself is, by a tracer that goes into torch.nn's modules, or with hooks, which fx has
    recorded already.
    """
    traced = arguments[0]
    if not isinstance(traced, torch.fx.Proxy) or module._forward_hooks or module._forward_pre_hooks:
        return None
    name = traced.tracer.path_of_module(module)  # type: ignore[attr-defined]  # of tracers of modules
    if not name or not traced.tracer.is_leaf_module(torch.nn.Identity(), name):  # type: ignore[attr-defined]
        return None
    given = tuple(argument for argument in arguments if argument is not None)
    return traced.tracer.create_proxy("call_module", name, given, {})


class NormOptions(torch.nn.Module):
    """Mixin before a torch.nn norm: the options that torch.nn leaves implicit, and the module's `NormSpec`."""

    _answers: ClassVar[dict[str, Any]]  # what distinguishes this norm in its NormSpec
    _options: ClassVar[tuple[str, ...]] = ("eps_mode", "weight_offset", "cast", "backend")  # of its function
    # Any: each torch.nn base declares these attributes in its own way
    eps: Any
    weight: Any
    bias: Any
    # the defaults of modules that were stored before an option was there
    eps_mode: EpsMode = "inside"
    weight_offset: float = 0.0
    cast: Cast = "late"
    backend: str = "auto"
    activation: Activation | None = None
    groups: int | None = None
    memory_efficient: bool = False
    __prepare_scriptable__ = refuse_script

    def _set_options(self, **options: Any) -> None:
        """Store the options, which building the spec checks."""
        for name, value in options.items():
            object.__setattr__(self, name, value)  # Module's own would register a tensor before anyone refuses it
        _ = self.spec
        if self.weight_offset:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset as torch.nn does, with the weight at 1 - weight_offset, so that the initial scale is 1."""
        super().reset_parameters()  # type: ignore[misc]
        if self.weight_offset and self.weight is not None and not is_lazy(self.weight):
            torch.nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    @property
    def spec(self) -> NormSpec:
        """What this module does, as a `NormSpec`."""
        return NormSpec(
            **self._answers,
            eps=self.eps,
            eps_mode=self.eps_mode,
            weight=self.weight is not None,
            bias=getattr(self, "bias", None) is not None,
            weight_offset=self.weight_offset,
            cast=self.cast,
            memory="running" if getattr(self, "track_running_stats", False) else "batch",
            groups=self.groups if "groups" in self._options else getattr(self, "num_groups", None),
            # what a class that was swapped calls so is something else
            activation=self.activation if "activation" in self._options else None,
            gating=getattr(self, "gating", None) if "gating" in self._options else None,
            residual_rounding=getattr(self, "residual_rounding", None),
        )

    def _keywords(self) -> dict[str, Any]:
        """The keyword-only arguments of this module's function."""
        return {name: getattr(self, name) for name in self._options}

    def extra_repr(self) -> str:
        """The arguments of torch.nn's module, then the options that differ from their defaults."""
        options = {name: getattr(self, name) for name in DEFAULTS if name in self._options}
        changed = [f"{name}={value}" for name, value in options.items() if value != DEFAULTS[name]]
        return ", ".join([super().extra_repr(), *changed])


def without_default_bias(bias: bool) -> dict[str, bool]:
    """Return the constructor argument ``bias`` if it is not the default: older torch versions do not take it."""
    return {} if bias else {"bias": False}
