"""A training, watched: little is measured every so many steps, and judged when asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import torch

from evenkeel._errors import InvalidArgumentError, InvalidInputError, InvalidTypeError, StateError
from evenkeel.doctor._examine import NO_NORMS
from evenkeel.doctor._history import History
from evenkeel.doctor._report import Report
from evenkeel.doctor.probes import (
    Average,
    Collector,
    Depth,
    Layer,
    Measurements,
    OptimizerState,
    Replicas,
    Signal,
    Step,
    depth_scalars,
    depths,
    find_sites,
    local,
    norm_state,
    optimizer_state,
    requested_steps,
    sample,
    to_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

__all__ = ["Watch", "watch"]

COMPILED = "The model is compiled: no hooks were set, and what reaches its norms was not measured."

UNSEEN = (
    "No norm was reached in the measured steps: they are compiled with what calls them, or not called; what reaches "
    "norms was not measured."
)


class Watch:
    """A training under watch: a context whose `step` is called after every step of the optimizer.

    Args:
        model: the model.
        optimizer: of the training.
        every: after so many steps something is measured.
        mask: (samples, positions) of real elements, where batches are padded alike.
        averaged: an average of the model's weights that the training keeps.

    Attributes:
        memory: bytes that the watch keeps: norms' first weights, and samples of the others.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with ek.doctor.Watch(model, optimizer, every=5) as watch:
        ...     for _ in range(10):
        ...         loss = model(torch.randn(16, 4)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         watch.step(loss)
        >>> watch.report().ok
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 50,
        mask: Tensor | None = None,
        averaged: nn.Module | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
            kinds = f"{type(model).__name__} and {type(optimizer).__name__}"
            raise InvalidTypeError(f"watch: expected a torch.nn.Module and a torch.optim.Optimizer, but got {kinds}")
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidArgumentError(f"watch: every must be a whole number from 1 on, but got {every!r}")
        self.model, self.optimizer, self.every, self.mask = model, optimizer, every, mask
        self._sites = find_sites(model)
        self._compiled = any(m._compiled_call_impl is not None or hasattr(m, "_orig_mod") for m in model.modules())
        self._count = self._measured = 0
        self._loss: Tensor | float | None = None
        self._weights = {s.name: w for s in self._sites if (w := s.tensor("weight")) is not None and w.requires_grad}
        self._first: dict[str, Tensor] = {}
        self._before: list[tuple[Tensor, Tensor]] = []
        self._collector: Collector | None = None
        self._history = History()
        self._fresh = self._entered = False
        self._replicas = Replicas(model, self._weights)
        self._average = None if averaged is None else Average(averaged, self._sites)
        self._signals: tuple[Signal, ...] = ()
        self._layers: tuple[Layer, ...] = ()
        self._depths: tuple[Depth, ...] = ()
        self._optimizer: dict[str, OptimizerState] = {}
        self._order: dict[str, nn.Module] = {}

    @property
    def memory(self) -> int:
        """Bytes that the watch keeps on the device."""
        kept = [*self._first.values(), *(before for _, before in self._before)]
        kept += [] if self._average is None else self._average.first
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)

    def __enter__(self) -> Self:
        self._first = {name: local(w.detach()).clone() for name, w in self._weights.items()}
        self._fresh, self._entered = self._starts_anew(), True
        if self._average is not None:
            self._average.begin()
        self._prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        self._release()

    def step(self, loss: Tensor | float | None = None) -> None:
        """Count a step of the optimizer; on every `every`-th, measure.

        Args:
            loss: of the step; it is read when something is measured.

        Raises:
            InvalidInputError: the loss is no scalar.
            InvalidTypeError: it is no tensor and no number.
            StateError: the watch was not entered, or it has ended.
        """
        if not self._entered:
            raise StateError("watch: a step outside of the watch; put it around the loop: with watch(...) as watching:")
        self._count += 1
        if loss is not None:
            if isinstance(loss, torch.Tensor) and loss.numel() != 1:
                raise InvalidInputError(f"watch: the loss is no scalar, but {tuple(loss.shape)}; take its mean")
            try:
                self._loss = loss.detach() if isinstance(loss, torch.Tensor) else float(loss)
            except (TypeError, ValueError) as error:
                said = f"watch: expected a scalar tensor as the loss, but got {type(loss).__name__}; pass loss.detach()"
                raise InvalidTypeError(said) from error
        if self._count == 1 or self._count % self.every == 0:
            self._record()
        if (self._count + 1) % self.every == 0:
            self._prepare()

    def report(self) -> Report:
        """Judge what was seen so far; the watch goes on."""
        measured = Measurements(
            norms=tuple(norm_state(site) for site in self._sites),
            signals=self._signals,
            layers=self._layers,
            depths=self._depths,
            optimizer=tuple(self._optimizer.values()),
            loss=None if self._loss is None else float(self._loss),
            steps=tuple(self._history.steps),
            fresh=self._fresh,
            replicas=self._replicas.found(),
            curves=self._history.curves(),
            averages=() if self._average is None else self._average.found(),
        )
        notes = [] if self._sites else [NO_NORMS]
        notes += [COMPILED] if self._compiled else []
        notes += [UNSEEN] if self._sites and not (self._compiled or self._signals) and self._measured > 1 else []
        seen = f"{self._measured} of {self._count} steps measured, {self.memory / 1024:,.0f} KiB kept"
        return Report.of(f"{type(self.model).__name__}, {seen}", measured, tuple(notes))

    def _prepare(self) -> None:
        """Keep samples of the weights, and set the hooks for the next forward."""
        held = [p for group in self.optimizer.param_groups for p in group["params"] if p.ndim > 1]
        self._before = [(p, sample(p).clone()) for p in held]
        if not self._compiled and self._collector is None:
            self._collector = Collector(self.model, self._sites, self.mask, training=True)
            self._collector.__enter__()

    def _release(self) -> None:
        if self._collector is not None:
            self._collector.__exit__()
            self._collector = None

    @torch.no_grad()
    def _record(self) -> None:
        """Measure, by one transfer."""
        collector = self._collector
        self._release()
        if collector is not None and collector.order:
            self._order = collector.order
        grads = {id(p): p.grad for p in self.model.parameters()}
        names, sizes = depth_scalars(self._order, grads)
        seen = [] if collector is None else collector.scalars()
        moved = [(local(w.detach()) != self._first[name]).float().mean() for name, w in self._weights.items()]
        largest = [biggest(w.grad, w) for w in self._weights.values()]
        loss = torch.as_tensor(math.nan if self._loss is None else self._loss).reshape(()).float()
        requested = requested_steps(self.optimizer, self._weights)
        digest = self._replicas.digest([sample for _, sample in self._before])
        scalars = [loss, self._update(), *moved, *largest, *requested.values(), *digest, *sizes, *seen]
        numbers = iter(to_numbers(scalars))
        value, update = next(numbers), next(numbers)
        shares = {name: next(numbers) for name in self._weights}
        slopes = {name: next(numbers) for name in self._weights}
        half_ulps = {name: next(numbers) for name in requested}
        rate = max(float(group["lr"]) for group in self.optimizer.param_groups)
        step = Step(
            step=self._count, loss=value, update=update, moved=shares, gradient=slopes, rate=rate, half_ulps=half_ulps
        )
        self._replicas.leave(self._count, [next(numbers) for _ in digest])
        self._keep(step, names, collector, numbers)

    def _keep(self, step: Step, names: list[str], collector: Collector | None, numbers: Iterator[float]) -> None:
        """Keep the records of the last step, or of the first that went wrong."""
        found = depths(names, numbers)
        signals, layers = ((), ()) if collector is None else collector.records(numbers)
        self._measured += 1
        self._history.add(Measurements(signals=signals, layers=layers, depths=found, loss=step.loss, steps=(step,)))
        self._depths = found or self._depths
        if not any(layer.not_finite > 0 for layer in self._layers):
            self._signals, self._layers = signals or self._signals, layers or self._layers
        for record in optimizer_state(self.model, self._sites, self.optimizer, None):
            before = self._optimizer.get(record.site)
            if before is None or record.rate >= before.rate:
                self._optimizer[record.site] = record

    def _starts_anew(self) -> bool:
        """Whether every gain is where norms start, by one transfer."""
        starts = [1.0 - s.spec.weight_offset for s in self._sites if s.name in self._weights]
        moved = [(w != start).sum() for w, start in zip(self._first.values(), starts, strict=True)]
        return bool(moved) and not any(to_numbers(moved))

    def _update(self) -> Tensor:
        """The median of the weights' steps since the samples were kept, each in parts of the weight."""
        steps = [
            (sample(p).float() - before.float()).norm() / before.float().norm()
            for p, before in self._before
            if before.numel()
        ]
        first = self._before[0][1].device if self._before else torch.device("cpu")
        # what starts at zero has no length to compare with
        return torch.stack([s.to(first) for s in steps]).nanmedian() if steps else torch.tensor(math.nan)


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    every: int = 50,
    mask: Tensor | None = None,
    averaged: nn.Module | None = None,
) -> Watch:
    """Watch a training.

    Enter the watch around the loop, and call its `Watch.step` with the loss after every step of the optimizer.
    Between the measured steps no hook is set and nothing is read from the device. Call it before
    ``zero_grad`` for gradients to be judged too. What was seen stays when the loop is interrupted.

    Args:
        model: the model.
        optimizer: of the training.
        every: after so many steps something is measured.
        mask: (samples, positions) of real elements, where batches are padded alike.
        averaged: an average of the model's weights that the training keeps (EMA, SWA), whose statistics are judged when
            the report is made: after `update_bn`, where that is called.

    Returns:
        The watch.

    Raises:
        InvalidTypeError: no module or no optimizer.
        InvalidInputError: the average has other norms than the model.
        InvalidArgumentError: ``every`` is no whole number from 1 on.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)).bfloat16()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        >>> with ek.doctor.watch(model, optimizer, every=25) as watch:
        ...     for _ in range(50):
        ...         loss = (model(torch.randn(16, 4).bfloat16()) - 1).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         watch.step(loss)
        ...         optimizer.zero_grad()
        >>> [(finding.rule, finding.site) for finding in watch.report().findings]
        [('gamma-frozen', '1')]
    """
    return Watch(model, optimizer, every=every, mask=mask, averaged=averaged)


def biggest(gradient: Tensor | None, weight: Tensor) -> Tensor:
    """The largest size in a gradient; NaN where there is none."""
    if gradient is None:
        return torch.full((), math.nan, device=weight.device)
    part = local(gradient)
    return part.abs().amax().float() if part.numel() else part.new_zeros((), dtype=torch.float32)
