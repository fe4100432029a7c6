"""The model's data: its input, what it does to it first, what its loss draws it to, and the data of the fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenkeel._errors import InvalidInputError, InvalidTypeError
from evenkeel.doctor.probes._records import InputState, Rescaling, Skew, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from evenkeel.doctor.probes._forward import Collector
    from evenkeel.recognition import Call

__all__ = ["inputs_of", "rescaling_of", "skew_of", "target_of"]

TABLE_AXES = 2
FEWEST_ROWS = 4  # of a batch that shows deviations
MOST = 2**20  # elements of an input that are compared
AFFINE = 1e-3  # of what is left of a line through the points of a feature, in deviations
FAR = 1e3  # sizes of the targets: so far from them losses grow as they do for outputs without bounds
GROWTH = 0.1  # how far from 1 or 2 the power may lie with which a loss grows


def inputs_of(collector: Collector, call: Call) -> InputState | None:
    """Measure the input of the first layer with weights, or of a norm before it, where that is the model's own."""
    if collector.first is None:
        return None
    site, x = collector.first
    if isinstance(collector.order.get(site), nn.Embedding) or not is_given(x, call.floating()):
        return None
    is_norm, x = site not in collector.order, x.detach()
    flat = x.float().reshape(x.shape[0], -1)
    is_table = x.ndim == TABLE_AXES and x.shape[0] > 1
    spread = flat.std(0) if is_table else flat.new_ones(1)
    varied = spread[spread > 0]
    return InputState(
        site=site,
        shape=tuple(x.shape),
        # zeros are no scale: one-hot features and padding have many
        rms=math.nan if is_norm else float((flat.square().sum() / (flat != 0).sum().clamp(min=1)).sqrt()),
        scales=math.nan if is_norm else float(varied.max() / varied.min()) if is_table and varied.numel() > 1 else 1.0,
        constant=float((spread == 0).float().mean()),
        rows=x.shape[0],
    )


def is_given(x: Tensor, given: Iterable[Tensor]) -> bool:
    """Whether a tensor is one of the model's inputs, or a view of one."""
    return any(x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in given)


def rescaling_of(collector: Collector, call: Call) -> Rescaling | None:
    """Measure what a model does to its own input before the first layer with weights, if a line a feature says it."""
    if collector.first is None:
        return None
    site, after = collector.first
    if site not in collector.order:  # a norm takes any scale
        return None
    tensors = (v for v in (*call.arguments, *call.keywords.values()) if isinstance(v, torch.Tensor))  # bytes too
    given = [x for x in tensors if x.shape == after.shape and x.ndim >= TABLE_AXES and x.dtype != torch.bool]
    if len(given) != 1 or is_given(after, given) or len(after) < FEWEST_ROWS or after.numel() > MOST:
        return None
    for axis in dict.fromkeys((1, after.ndim - 1)):
        x, y = (t.detach().movedim(axis, 0).reshape(t.shape[axis], -1).double() for t in (given[0], after))
        if x.shape[1] >= FEWEST_ROWS and is_affine(x, y):
            return Rescaling(
                site=site,
                mean=float(x.mean()),
                spread=float(x.std(1).median()),
                mean_after=float(y.mean()),
                spread_after=float(y.std(1).median()),
            )
    return None


def is_affine(x: Tensor, y: Tensor) -> bool:
    """Whether each row of the one is a line of the same row of the other."""
    a, b = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    power = a.square().sum(1, keepdim=True)
    slope = (a * b).sum(1, keepdim=True) / power.clamp(min=torch.finfo(a.dtype).tiny)
    left = (b - slope * a).square().sum(1)
    # rounding in the dtype of a tensor with a large mean leaves more than a line does
    allowed = (AFFINE * b.square().sum(1).sqrt() + 1e-6 * y.square().sum(1).sqrt()).square()
    return bool((power > 0).any()) and bool((left <= allowed).all())


def target_of(output: Any, loss: Callable[[Any], Tensor] | None) -> Target | None:
    """Measure the targets inside a loss of regression, by its values for an output of zeros and for one far away.

    Far from every target the mean of the squares is the square of the distance, and the mean of the distances the
    distance itself; the loss of a class stays, since all outputs move alike, or grows otherwise.
    """
    if loss is None or not isinstance(output, torch.Tensor) or not output.is_floating_point() or not output.numel():
        return None

    def at(value: float) -> float:
        return float(loss(torch.full_like(output, value)))

    try:
        with torch.no_grad():
            zero = at(0.0)
            far = FAR * max(1.0, abs(zero) ** 0.75)  # a square that float32 holds for targets up to 1e10
            near, away = ((at(d) + at(-d)) / 2 for d in (far, 2 * far))
    except Exception:  # a loss that refuses such an output is none of regression
        return None
    if not (zero > 0 and near > 0 and math.isfinite(away)):
        return None
    power = round(math.log2(away / near))
    if power not in (1, 2) or abs(math.log2(away / near) - power) > GROWTH:
        return None
    scale = near / far**power
    size = (zero / scale) ** (1 / power)
    return Target(size=size, output=float(output.detach().float().square().mean().sqrt()), power=power)


def skew_of(call: Call, statistics: Any) -> tuple[Skew, ...]:
    """Compare the features of a model's input with saved statistics of the data of the fit.

    Raises:
        InvalidTypeError: no statistics.
        InvalidInputError: no input has as many features.
    """
    own = getattr(statistics, "pooled", statistics)
    if not (hasattr(own, "mean") and callable(getattr(own, "std", None))):
        raise InvalidTypeError(
            f"examine: expected evenkeel.data.Statistics, but got {type(statistics).__name__}; "
            "load them with evenkeel.data.load"
        )
    mean, deviation = (torch.as_tensor(v, dtype=torch.float64).reshape(-1) for v in (own.mean, own.std()))
    axes = (1,) if own is not statistics else (*getattr(own, "axis", (-1,)), -1, 1)
    for x in call.floating():
        for axis in axes:
            if x.ndim >= TABLE_AXES and -x.ndim <= axis < x.ndim and x.shape[axis] == len(mean):
                values = x.detach().movedim(axis, 0).double().cpu().reshape(len(mean), -1)
                names = getattr(own, "names", None) or [str(k) for k in range(len(mean))]
                error = math.sqrt(1 / len(x) + 1 / max(1.0, float(getattr(own, "rows", len(x)))))
                features = zip(names, values, mean.tolist(), deviation.tolist(), strict=True)
                found = [compared(*feature, rows=len(x), error=error * sigmas(len(mean))) for feature in features]
                return tuple(skew for skew in found if skew is not None)
    shapes = ", ".join(str(tuple(x.shape)) for x in call.floating())
    raise InvalidInputError(
        f"examine: the statistics are of {len(mean)} features, but the inputs have the shapes {shapes}; "
        "give the statistics of the data that the model takes"
    )


def sigmas(features: int) -> float:
    """How many standard errors the largest of so many differences has by chance, and three more."""
    return 3.0 + math.sqrt(2 * math.log(features))


def compared(name: str, values: Tensor, mean: float, deviation: float, rows: int, error: float) -> Skew | None:
    """The record of a feature that has numbers now and varied then; the error is that of a mean, in deviations."""
    values = values[values.isfinite()]
    if values.numel() < 2 or not deviation > 0:
        return None
    spread = float(values.std(correction=0))
    peaks = float(((values - values.mean()) / spread).pow(4).mean()) if spread > 0 else 3.0
    return Skew(
        feature=name,
        shift=abs(float(values.mean()) - mean) / deviation,
        spread=spread / deviation,
        rows=rows,
        chance=error,
        # the deviation of a deviation goes with the fourth moment: features that are mostly zero have a large one
        chance_of_spread=error * math.sqrt((max(peaks, 3.0) - 1) / 4) / math.log(2),
    )
