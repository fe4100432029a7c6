"""What norms and layers are given in one forward: hooks that stay on the device, and one transfer at the end."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from evenkeel._errors import InvalidInputError
from evenkeel.doctor.probes._lost import lost_in_half, lost_in_int8, rounds_to_int8
from evenkeel.doctor.probes._records import Layer, Signal
from evenkeel.doctor.probes._signal import measure
from evenkeel.recognition import CannotCopyError, bare_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from evenkeel.doctor.probes._norms import Site

__all__ = ["Collector"]

MARK = "_evenkeel_source"
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MASK_AXES = 2
FEWEST_SAMPLES = 4  # of fewer it cannot be told how far samples differ
MOST = 2**16  # elements of a result by which its samples are compared
About = tuple[tuple[int, ...], str, bool, bool]  # shape, dtype, whether in training, whether the norm is a post-norm
Link = tuple[str, str, bool]  # the layer that gave the input, its kind, whether it has a bias


class Collector:
    """Hooks on the norms and layers of a model, for as long as it is entered.

    Args:
        model: the model.
        sites: its norms.
        mask: (samples, positions) of real elements.
        training: whether forwards without gradients in evaluation, between the steps of a training, are left out.

    Attributes:
        order: the names of the layers with a weight of two axes and more, in the order of their first calls.
        called: the names of the norms that were reached.
        first: the first layer with such a weight, or a norm before it, and its input; None before a forward.
    """

    def __init__(
        self, model: nn.Module, sites: Sequence[Site], mask: Tensor | None = None, *, training: bool = False
    ) -> None:
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.ndim == MASK_AXES):
            seen = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise InvalidInputError(f"doctor: a mask is a tensor of (samples, positions), but this is {seen}")
        self.model, self.mask, self.training = model, mask, training
        self.sites = {id(site.module): site for site in sites}
        self.order: dict[str, nn.Module] = {}
        self.called: set[str] = set()
        self.first: tuple[str, Tensor] | None = None
        self._inputs: dict[str, tuple[About, Link, dict[str, Tensor]]] = {}
        self._outputs: dict[str, tuple[str, str, dict[str, Tensor]]] = {}
        self._made: dict[Any, str] = {}  # the node of the graph that each norm's result comes from
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        inside = {id(part) for site in self.sites.values() for part in site.module.modules()} - set(self.sites)
        for name, module in self.model.named_modules():
            if id(module) in self.sites:
                hook = module.register_forward_pre_hook(self._before_norm, with_kwargs=True)
                self._stack.callback(hook.remove)
            is_leaf = not any(True for _ in module.children())
            if (is_leaf or id(module) in self.sites) and id(module) not in inside:
                self._stack.callback(module.register_forward_hook(self._named(name)).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._made.clear()

    def _looks_away(self) -> bool:
        """Whether a forward is compiled, or belongs to an evaluation inside of a training."""
        if torch.compiler.is_compiling():
            return True
        return self.training and not (self.model.training or torch.is_grad_enabled())

    def _before_norm(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._looks_away():
            return
        site = self.sites[id(module)]
        given = [v for v in (*arguments, *keywords.values()) if isinstance(v, torch.Tensor) and v.is_floating_point()]
        if site.name in self.called or len(given) != 1 or not given[0].numel() or given[0].is_meta:
            return
        self.called.add(site.name)
        x = given[0]
        site = self.sites[id(module)] = site.for_input(x)
        self.first = self.first or (site.name, x)
        with torch.no_grad():
            source = getattr(x, MARK, None)
            link = source[:3] if source is not None and source[3] == x._version else ("", "", False)
            node = x.grad_fn
            post = node is not None and any(other in self._made for other, _ in node.next_functions)
            about = (tuple(x.shape), str(x.dtype).removeprefix("torch."), module.training, post and is_sum(node))
            values = measure(site, x, self.mask)
            if link[1] == "conv" and site.spec.shares == "token" and x.ndim > 2:
                values["over_channels"] = depends_on_channels(module, x)
            self._inputs[site.name] = (about, link, values)

    def _named(self, name: str) -> Any:
        def after(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            if self._looks_away():
                return
            x = next((v for v in arguments if isinstance(v, torch.Tensor)), None)
            if not isinstance(output, torch.Tensor) or not output.is_floating_point():
                return
            weight = getattr(module, "weight", None)
            kind = "norm" if id(module) in self.sites else ""
            if not kind and isinstance(weight, torch.Tensor) and weight.ndim > 1:
                kind = "" if isinstance(module, nn.Embedding) else "weights"
                self.order.setdefault(name, module)
                if x is not None:
                    self.first = self.first or (name, x)
            self._mark(name, module, output)
            if name not in self._outputs and output.numel() and not output.is_meta:
                dtype = str(output.dtype).removeprefix("torch.")
                self._outputs[name] = (dtype, kind, self._of_result(module, kind, x, output))

        return after

    @torch.no_grad()
    def _of_result(self, module: nn.Module, kind: str, x: Tensor | None, output: Tensor) -> dict[str, Tensor]:
        """Measure a result."""
        values = sizes(output)
        source = getattr(x, MARK, None)
        is_number = x is not None and x.is_floating_point() and x.numel() > 0
        if x is not None and is_number and (source is None or source[3] != x._version):  # else its layer has told
            values["input"] = not_finite(x)
        if kind == "weights" and output.ndim > 1 and len(output) >= FEWEST_SAMPLES:
            values["spread"] = spread_of(output)
        if x is not None and is_number:
            site = self.sites.get(id(module))
            if site is not None and x.dtype == torch.float16 and site.spec.shares == "token":
                values["lost"] = lost_in_half(site, x, output)
            elif site is None and rounds_to_int8(module):
                values["lost"] = lost_in_int8(module, x)
        return values

    def _mark(self, name: str, module: nn.Module, output: Tensor) -> None:
        """Note on a result which layer gave it, so that a norm that gets it unchanged knows."""
        kind = "norm" if id(module) in self.sites else kind_of(module)
        setattr(output, MARK, (name, kind, getattr(module, "bias", None) is not None, output._version))
        if kind == "norm" and output.grad_fn is not None:
            self._made[output.grad_fn] = name

    def scalars(self) -> list[Tensor]:
        """What was measured, still on the device."""
        scalars = [s for _, _, values in self._inputs.values() for s in values.values()]
        return scalars + [s for _, _, values in self._outputs.values() for s in values.values()]

    def records(self, numbers: Iterator[float]) -> tuple[tuple[Signal, ...], tuple[Layer, ...]]:
        """Gather the records from the values of the scalars, in their order."""
        sites = {site.name: site for site in self.sites.values()}
        signals = tuple(
            signal_of(sites[name], about, link, {key: next(numbers) for key in values})
            for name, (about, link, values) in self._inputs.items()
        )
        layers = []
        for name, (dtype, kind, values) in self._outputs.items():
            found = {key: next(numbers) for key in values}
            finite = found.pop("input", 0.0) == 0.0
            layers.append(Layer(site=name, dtype=dtype, kind=kind, input_finite=finite, **found))
        return signals, tuple(layers)


def signal_of(site: Site, about: About, link: Link, values: dict[str, float]) -> Signal:
    """Gather the record of a norm."""
    shape, dtype, training, post = about
    count = getattr(site.module, "num_batches_tracked", None)
    return Signal(
        site=site.name,
        shares=site.spec.shares,
        statistic=site.spec.statistic,
        dtype=dtype,
        shape=shape,
        training=training,
        remembers=site.remembers,
        frozen=site.frozen,
        updates=int(count) if isinstance(count, torch.Tensor) else None,
        values=values,
        source=link[0],
        source_kind=link[1],
        source_bias=link[2],
        half_refuses=dtype == "float16" and refuses_half(site, shape),
        axis=site.layout.channel_axis,
        last_only=site.spec.shares == "token" and site.layout.axes == 1,
        post=post,
    )


def kind_of(module: nn.Module) -> str:
    """Whether a layer mixes the last axis, or the axis after the batch's."""
    if isinstance(module, nn.Linear):
        return "linear"
    return "conv" if isinstance(module, CONVOLUTIONS) else ""


def sizes(output: Tensor) -> dict[str, Tensor]:
    """The largest finite size in a result, and how much of it is not finite: exactly where some of it is not."""
    low, high = output.aminmax()  # one pass; what is not finite shows in it
    top = torch.maximum(-low, high).float()
    some = output.flatten()[:: max(1, output.numel() // MOST)]
    finite = some.isfinite()
    return {
        "largest": torch.where(top.isfinite(), top, torch.where(finite, some, 0).abs().amax().float()),
        "not_finite": torch.where(top.isfinite(), 0.0, (~finite).float().mean().clamp(min=1 / output.numel())),
    }


def not_finite(x: Tensor) -> Tensor:
    """1 for a tensor whose numbers are not all finite, 0 for others."""
    low, high = x.detach().aminmax()
    return (~(low.isfinite() & high.isfinite())).float()


def spread_of(output: Tensor) -> Tensor:
    """How far samples differ: the root mean square of the deviations over the batch, of some elements of each."""
    flat = output.detach().flatten(1)
    some = flat[:, :: max(1, math.ceil(flat.numel() / MOST))]
    return some.float().var(0).mean().sqrt()


def depends_on_channels(module: nn.Module, x: Tensor) -> Tensor:
    """1 where a norm's result changes with another index of axis 1, 0 where it does not; NaN where that fails."""
    other = x.detach().clone()
    other[:, 0] = 2 * other[:, 0] + 1
    try:
        before, after = (module.forward(part)[:, 1:] for part in (x.detach(), other))
        return (before != after).any().float()
    except Exception:  # anybody's module
        return torch.full((), math.nan, device=x.device)


def is_sum(node: Any) -> bool:
    """Whether a node of the graph adds."""
    return type(node).__name__.startswith("AddBackward")


def refuses_half(site: Site, shape: tuple[int, ...]) -> bool:
    """Whether a copy of a norm gives something else than numbers for zeros in float16."""
    try:
        copy = bare_copy(site.module).half().eval()
        with torch.no_grad():
            y = copy(torch.zeros((2, *shape[1:]), dtype=torch.float16))
    except (CannotCopyError, RuntimeError):
        return False
    return not bool(y.isfinite().all())
