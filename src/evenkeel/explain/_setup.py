"""From what the caller gave to what the arithmetic needs: the input, who shares statistics, parameters, options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from evenkeel._errors import InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel._spec import EpsMode
from evenkeel.explain._data import plain
from evenkeel.explain._layout import Layout, build_layout, expand_mask

if TYPE_CHECKING:
    from evenkeel.explain._norms import Norm

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One explanation's input and options, resolved.

    Attributes:
        norm: the norm.
        tensor: the input in its dtype, as the library's functions get it.
        x: the same values in float64.
        layout: who shares statistics, and which parameter each element has.
        valid: of the input's shape, False where masked.
        masked: whether there is a mask.
        gamma: γ', one number for each parameter, or None.
        beta: β likewise.
        mean, variance, std: given statistics, a number for each group, or None.
        eps, eps_mode, correction, low, high, scale, alpha: the norm's numbers.
        weight, weight_offset: what γ' is made of.
    """

    norm: Norm
    tensor: torch.Tensor
    x: np.ndarray
    layout: Layout
    valid: np.ndarray
    masked: bool
    weight: np.ndarray | None
    weight_offset: float
    gamma: np.ndarray | None
    beta: np.ndarray | None
    mean: np.ndarray | None
    variance: np.ndarray | None
    std: np.ndarray | None
    eps: float
    eps_mode: EpsMode
    correction: int
    low: float
    high: float
    scale: float
    alpha: float

    @property
    def given(self) -> bool:
        """Whether the statistics are constants, which gradients do not pass through."""
        return self.variance is not None or self.norm.family == "image"

    def options(self, *, upstream: np.ndarray | None, backward: bool) -> dict[str, Any]:
        """The resolved options, JSON-ready: the keys that `evenkeel.explain._data` lists."""
        family, lay = self.norm.family, self.layout
        has_eps = "eps" in self.norm.options
        return {
            "shape": list(self.x.shape),
            "dtype": str(self.tensor.dtype).removeprefix("torch."),
            "shared": list(lay.shared),
            "parameter_axes": list(lay.parameter_axes),
            "sample_axis": lay.sample_axis,
            "channel_axis": lay.channel_axis,
            "num_groups": lay.num_groups,
            "eps": self.eps if has_eps else None,
            "eps_mode": self.eps_mode if has_eps else None,
            "weight_offset": self.weight_offset if "weight_offset" in self.norm.options else None,
            "correction": self.correction if "correction" in self.norm.options else None,
            "feature_range": [self.low, self.high] if family == "minmax" else None,
            "scale": self.scale if family == "image" else None,
            "alpha": self.alpha if family == "dyt" else None,
            "weight": None if self.weight is None else plain(self.weight.reshape(lay.parameter_shape)),
            "bias": None if self.beta is None else plain(self.beta.reshape(lay.parameter_shape)),
            "mask": self.valid.astype(int).tolist() if self.masked else None,
            "mean": None if self.mean is None else plain(self.mean),
            "variance": None if self.variance is None else plain(self.variance),
            "std": None if self.std is None else plain(self.std),
            "backward": backward,
            "upstream": None if upstream is None else plain(upstream),
        }


def set_up(x: Any, norm: Norm, given: dict[str, Any], dtype: str | torch.dtype | None) -> Setup:
    """Resolve the input and the options that were given (None: not given)."""
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in chosen:
        if name not in norm.options:
            raise InvalidArgumentError(f"explain: {norm.name} has no option {name}; it takes {', '.join(norm.options)}")
    options: dict[str, Any] = norm.defaults | chosen
    tensor = as_tensor(x, dtype)
    values = tensor.double().numpy().copy()
    channels = np.size(np.asarray(options["mean"])) if norm.family == "image" else None
    layout = build_layout(norm, values.shape, chosen, channels)
    valid = expand_mask(options.get("mask"), values.shape, layout)
    statistics = {name: per_group(name, options.get(name), layout, norm) for name in ("mean", "variance", "std")}
    check_statistics(norm, statistics)
    weight, bias = (parameter(name, options.get(name), layout) for name in ("weight", "bias"))
    offset = number("weight_offset", options.get("weight_offset", 0.0))
    low, high = feature_range(options.get("feature_range", (0.0, 1.0)))
    eps_mode: Any = options.get("eps_mode", "inside")
    if eps_mode not in get_args(EpsMode):
        raise InvalidArgumentError(
            f"explain: eps_mode must be one of {', '.join(get_args(EpsMode))}, but got {eps_mode!r}"
        )
    return Setup(
        norm=norm,
        tensor=tensor,
        x=values,
        layout=layout,
        valid=valid,
        masked=options.get("mask") is not None,
        weight=weight,
        weight_offset=offset,
        gamma=None if weight is None else weight + offset,
        beta=bias,
        eps=resolve_eps(options.get("eps", 0.0), tensor.dtype),
        eps_mode=eps_mode,
        correction=correction(options.get("correction", 0)),
        low=low,
        high=high,
        scale=number("scale", options.get("scale", 1.0), positive=True),
        alpha=number("alpha", options.get("alpha", 1.0)),
        **statistics,
    )


def as_tensor(x: Any, dtype: str | torch.dtype | None) -> torch.Tensor:
    """The input as a floating tensor on the CPU: floating dtypes stay, everything else becomes float64."""
    if isinstance(x, torch.Tensor):
        tensor = x.detach().cpu()
        if tensor.is_sparse or tensor.is_quantized or tensor.is_meta:
            raise InvalidTypeError("explain: expected a dense tensor with values; convert it first, e.g. x.to_dense()")
    else:
        tensor = torch.from_numpy(as_array(x))
    if tensor.is_complex():
        raise InvalidTypeError("explain: expected real numbers, but got complex ones; pass x.real or x.abs()")
    if tensor.numel() == 0:
        raise InvalidInputError(f"explain: the input is empty (shape {tuple(tensor.shape)}); give at least one number")
    wanted = find_dtype(dtype, tensor.dtype)
    return tensor.reshape(tensor.shape or (1,)).to(wanted)


def as_array(x: Any) -> np.ndarray:
    """An array from numbers, nested lists or numpy; a plain message where that is impossible."""
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise InvalidInputError(
            "explain: the rows have different lengths; give every row as many numbers, or pad and pass mask="
        ) from error
    if array.dtype == object or array.dtype.kind not in "biuf":
        kind = "text or objects" if array.dtype.kind in "OUS" else str(array.dtype)
        raise InvalidTypeError(f"explain: expected numbers, but got {kind}; give a list, numpy array or tensor")
    wide = array.dtype.kind != "f" or array.dtype.itemsize > np.dtype(np.float64).itemsize
    array = array.astype(np.float64) if wide else array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def find_dtype(dtype: str | torch.dtype | None, own: torch.dtype) -> torch.dtype:
    """The dtype to explain in: the one asked for, or the input's own where it is floating, or float64."""
    if dtype is None:
        return own if own in DTYPES.values() else torch.float64
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise InvalidArgumentError(f"explain: dtype must be one of {', '.join(DTYPES)}, but got {dtype!r}")
    return found


def numbers(name: str, value: Any) -> np.ndarray:
    """An option of one or more numbers as float64."""
    array = value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else as_array(value)
    return array.astype(np.float64)


def number(name: str, value: Any, *, positive: bool = False) -> float:
    """An option of one finite number."""
    array = numbers(name, value)
    if array.size != 1 or not math.isfinite(array.item()) or (positive and array.item() <= 0):
        kind = "one positive number" if positive else "one finite number"
        raise InvalidArgumentError(f"explain: {name} must be {kind}, but got {value}")
    return float(array.item())


def resolve_eps(value: Any, dtype: torch.dtype) -> float:
    """ε as a number; None is the machine epsilon of the library's arithmetic."""
    if value is None:
        return float(torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps)
    eps = number("eps", value)
    if eps < 0:
        raise InvalidArgumentError(f"explain: eps must be at least 0, but got {eps}")
    return eps


def correction(value: Any) -> int:
    """0 for the population deviation, 1 for the sample one."""
    if value not in (0, 1):
        raise InvalidArgumentError(f"explain: correction must be 0 (population) or 1 (sample), but got {value}")
    return int(value)


def feature_range(value: Any) -> tuple[float, float]:
    """The two ends of min-max scaling."""
    ends = numbers("feature_range", value).reshape(-1)
    if ends.size != 2 or not np.isfinite(ends).all() or ends[0] >= ends[1]:
        raise InvalidArgumentError(f"explain: feature_range must be two numbers, low below high, but got {value}")
    return float(ends[0]), float(ends[1])


def parameter(name: str, value: Any, layout: Layout) -> np.ndarray | None:
    """Weight or bias as a flat array with one number for each parameter; a single number is repeated."""
    if value is None:
        return None
    array = numbers(name, value)
    if array.size == 1:
        return np.full(math.prod(layout.parameter_shape), array.item())
    if tuple(array.shape) != layout.parameter_shape:
        raise InvalidInputError(
            f"explain: {name} has shape {tuple(array.shape)}, but this norm needs {layout.parameter_shape}, "
            "or one number for all"
        )
    return array.reshape(-1)


def per_group(name: str, value: Any, layout: Layout, norm: Norm) -> np.ndarray | None:
    """Given statistics as a flat array with one number for each group; a single number is repeated."""
    if value is None:
        return None
    array = numbers(name, value).reshape(-1)
    groups = layout.order.shape[0]
    if array.size not in (1, groups):
        raise InvalidInputError(
            f"explain: {name} has {array.size} numbers, but {norm.name} has {groups} groups here; give one for each, "
            "or one for all"
        )
    return np.broadcast_to(array, (groups,)).copy()


def check_statistics(norm: Norm, statistics: dict[str, np.ndarray | None]) -> None:
    """Raise unless the given statistics go together and are possible."""
    if norm.family == "moments" and (statistics["mean"] is None) != (statistics["variance"] is None):
        raise InvalidArgumentError("explain: mean and variance go together; give both, or none to compute them")
    for name in ("variance", "std"):
        array = statistics[name]
        if array is not None and not (array >= 0).all():
            raise InvalidArgumentError(f"explain: {name} must not be negative, but got {array.min()}")
