"""One forward and backward of a model, judged; the model is left as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import InvalidInputError, InvalidTypeError
from evenkeel.doctor._report import Report
from evenkeel.doctor.probes import (
    Collector,
    Depth,
    Leak,
    Measurements,
    Site,
    Target,
    depth_scalars,
    depths,
    find_sites,
    inputs_of,
    leaks,
    norm_state,
    optimizer_state,
    rescaling_of,
    skew_of,
    target_of,
    to_numbers,
)
from evenkeel.recognition import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

__all__ = ["NO_NORMS", "examine"]

NO_NORMS = "The model has no norms among its modules: only rules of depth, data and numbers could say anything."


def examine(
    model: nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    mask: Tensor | None = None,
    statistics: Any = None,
) -> Report:
    """Judge a model by one forward and backward, in the mode that it is in.

    The model, its buffers, gradients, hooks and mode, the optimizer and the random numbers are as before. Norms without
    remembered statistics that look over positions or over the batch are called a few times more, in evaluation, and a
    loss of yours for a few other outputs. A compiled model runs as it was written.

    Args:
        model: the model.
        batch: its inputs: a tensor, a tuple of positional or a mapping of keyword arguments.
        loss: takes the model's output and returns a scalar; by default ``output.loss`` where there is one, and no
            backward where there is none.
        optimizer: of the training, whose groups and steps are judged too.
        mask: (samples, positions), true for real elements and false for padding.
        statistics: `evenkeel.data.Statistics` of the data of the fit, with which the batch is compared.

    Returns:
        The report.

    Raises:
        InvalidTypeError: the model is no module, the optimizer none of torch, or the statistics are none.
        InvalidInputError: the model refuses the batch or the loss the output, the loss is no scalar, or the statistics
            have other features.

    Example:
        >>> import torch, evenkeel as ek
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
        >>> report = ek.doctor.examine(model, 1e-4 * torch.randn(32, 4), loss=lambda y: y.square().mean())
        >>> [(finding.rule, finding.site) for finding in report.findings]
        [('input-not-normalized', '0')]
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidTypeError(f"examine: expected a torch.nn.Module, but got {type(model).__name__}; pass the model")
    if not (optimizer is None or isinstance(optimizer, torch.optim.Optimizer)):
        raise InvalidTypeError(f"examine: expected a torch.optim.Optimizer, but got {type(optimizer).__name__}")
    call = Call.of(batch)
    given = call.floating()
    if given and not any(x.numel() for x in given):
        raise InvalidInputError(f"examine: the batch is empty: {tuple(given[0].shape)}; pass one with samples")
    skew = () if statistics is None else skew_of(call, statistics)
    model = getattr(model, "_orig_mod", model)
    with restored(model):
        collector, value, gradients, target = run(model, call, loss, mask)
        signals, layers = collector.records(iter(to_numbers(collector.scalars())))
        inputs, rescaling = inputs_of(collector, call), rescaling_of(collector, call)
    sites = list(collector.sites.values())
    with restored(model):
        leaking = leaked(model, sites, call)
    measured = Measurements(
        norms=tuple(norm_state(site) for site in sites),
        signals=signals,
        layers=layers,
        depths=() if gradients is None else depths_of(collector.order, gradients),
        optimizer=() if optimizer is None else optimizer_state(model, sites, optimizer, gradients, collector.called),
        leaks=leaking,
        inputs=inputs,
        rescaling=rescaling,
        target=target,
        skew=skew,
        loss=value,
    )
    what = "one forward" if gradients is None else "one forward and backward"
    return Report.of(f"{type(model).__name__}, {what}", measured, () if sites else (NO_NORMS,))


def depths_of(order: dict[str, nn.Module], gradients: dict[int, Tensor | None]) -> tuple[Depth, ...]:
    """The gradients along the depth."""
    names, scalars = depth_scalars(order, gradients)
    return depths(names, iter(to_numbers(scalars)))


def leaked(model: nn.Module, sites: list[Site], call: Call) -> tuple[Leak, ...]:
    """Probe for leaks; a model that refuses evaluation or changed inputs has none that can be seen."""
    try:
        with torch.enable_grad():
            return leaks(model, sites, call)
    except Exception:  # a model's own code, on inputs that it was not given
        return ()


def run(
    model: nn.Module, call: Call, loss: Callable[[Any], Tensor] | None, mask: Tensor | None
) -> tuple[Collector, float | None, dict[int, Tensor | None] | None, Target | None]:
    """Run the model and its loss; return what was collected, the loss, the gradients by parameter and the targets."""
    sites = find_sites(model)
    with torch.enable_grad(), Collector(model, sites, mask) as collector:
        try:
            output = call(model)
        except Exception as error:  # a model's own code
            shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in call.floating())
            raise InvalidInputError(
                f"examine: the model does not take this batch ({shapes}): {type(error).__name__}: {one_line(error)}; "
                "pass a tensor, a tuple of arguments or a mapping of keyword arguments"
            ) from error
        value = loss_of(output, loss)
        if value is None:
            return collector, None, None, None
        parameters = [p for p in model.parameters() if p.requires_grad]
        known: dict[int, Tensor | None] | None = None
        if value.requires_grad and parameters:
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            known = {id(p): g for p, g in zip(parameters, found, strict=True)}
        return collector, float(value.detach()), known, target_of(output, loss)


def one_line(error: Exception) -> str:
    """The words of an error, without breaks."""
    return " ".join(str(error).split())


def loss_of(output: Any, loss: Callable[[Any], Tensor] | None) -> Tensor | None:
    """The loss of an output, where there is one."""
    value: Any
    if loss is not None:
        try:
            value = loss(output)
        except Exception as error:  # a loss of theirs
            raise InvalidInputError(
                f"examine: the loss does not take the model's output: {type(error).__name__}: {one_line(error)}; "
                "pass a function from the output to a scalar"
            ) from error
    else:
        value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if value is None:
        return None
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        seen = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidInputError(
            f"examine: the loss is no scalar, but {seen}; take its mean: loss=lambda y: f(y).mean()"
        )
    return value.reshape(())


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Give the model its buffers, modes and compiled calls back, and the random numbers theirs."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    modes = [(module, module.training, module._compiled_call_impl) for module in model.modules()]
    for module, _, compiled in modes:
        if compiled is not None:  # its code would leave the hooks out
            module._compiled_call_impl = None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, training, compiled in modes:
            module.training = training
            if compiled is not None:
                module._compiled_call_impl = compiled
