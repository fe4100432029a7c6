"""Resolve what the caller gave: the input, who shares statistics, parameters, options."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evenkeel._errors import InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel._options.axes import check_parameter, check_statistic
from evenkeel._options.explain import (
    DTYPE_NAMES,
    EPS_MODES,
    check_correction,
    check_ends,
    check_given,
    check_one,
    check_spread,
)
from evenkeel._options.names import check_choice
from evenkeel._spec import NormSpec
from evenkeel.explain._data import plain
from evenkeel.explain._layout import Layout, build_layout, expand_mask

if TYPE_CHECKING:
    from evenkeel.explain._norms import Norm

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
OF_SPEC = ("eps", "eps_mode", "weight_offset")  # the options of `walk` that a spec holds


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One explanation's input and options, resolved.

    Attributes:
        norm: the norm.
        spec: its options, ε as a number.
        tensor: the input in its dtype, as the library's functions get it.
        x: the same values in float64.
        layout: who shares statistics, and which parameter each element has.
        valid: of the input's shape, False where masked.
        masked: whether there is a mask.
        weight: γ without the offset, one number for each parameter, or None.
        gamma: γ' = weight_offset + γ, likewise.
        beta: β likewise.
        mean, variance, std: given statistics, a number for each group, or None.
        correction, low, high, scale, alpha: the numbers of the norms that are no layers.
    """

    norm: Norm
    spec: NormSpec
    tensor: torch.Tensor
    x: np.ndarray
    layout: Layout
    valid: np.ndarray
    masked: bool
    weight: np.ndarray | None
    gamma: np.ndarray | None
    beta: np.ndarray | None
    mean: np.ndarray | None
    variance: np.ndarray | None
    std: np.ndarray | None
    correction: int
    low: float
    high: float
    scale: float
    alpha: float

    @property
    def given(self) -> bool:
        """Whether the statistics are constants, which gradients do not pass through."""
        return self.variance is not None or self.norm.family == "image"

    @property
    def eps(self) -> float:
        """ε, 0 for a norm without one."""
        return self.spec.eps or 0.0

    def elements(self, values: np.ndarray) -> np.ndarray:
        """Arrange (groups, members), or a column of one value for each group, in the input's shape."""
        result = np.empty(self.x.size)
        result[self.layout.order] = values
        return result.reshape(self.x.shape)

    def options(self, *, upstream: np.ndarray | None, backward: bool) -> dict[str, Any]:
        """Return the options as JSON-ready data: the keys that `evenkeel.explain._data` lists."""
        lay = self.layout
        numbers: dict[str, Any] = {name: getattr(self.spec, name) for name in OF_SPEC}
        numbers |= {"correction": self.correction, "feature_range": [self.low, self.high]}
        numbers |= {"scale": self.scale, "alpha": self.alpha}
        affine = {"weight": self.weight, "bias": self.beta}
        statistics = {"mean": self.mean, "variance": self.variance, "std": self.std}
        return {
            "shape": list(self.x.shape),
            "dtype": str(self.tensor.dtype).removeprefix("torch."),
            "shared": list(lay.shared),
            "parameter_axes": list(lay.parameter_axes),
            "sample_axis": lay.sample_axis,
            "channel_axis": lay.channel_axis,
            "num_groups": lay.num_groups,
            **{name: value if name in self.norm.options else None for name, value in numbers.items()},
            **{name: None if p is None else plain(p.reshape(lay.parameter_shape)) for name, p in affine.items()},
            "mask": self.valid.astype(int).tolist() if self.masked else None,
            **{name: None if s is None else plain(s) for name, s in statistics.items()},
            "backward": backward,
            "upstream": None if upstream is None else plain(upstream),
        }


def read_spec(norm: Norm, given: dict[str, Any]) -> tuple[NormSpec, dict[str, Any]]:
    """Split the options that are not None into the norm's spec and those that no spec holds."""
    given = {name: value for name, value in given.items() if value is not None}
    check_given(norm.key, given)
    answers = {name: given.pop(name) for name in OF_SPEC if name in given}
    check_choice("explain: eps_mode", answers.get("eps_mode", "inside"), EPS_MODES)
    answers |= {name: number(name, answers[name]) for name in ("eps", "weight_offset") if name in answers}
    return replace(norm.spec, **answers), given


def set_up(x: Any, norm: Norm, spec: NormSpec, given: dict[str, Any], dtype: str | torch.dtype | None = None) -> Setup:
    """Resolve the input and the options: a spec, and those that no spec holds."""
    options = norm.defaults | given
    tensor = as_tensor(x, dtype)
    values = tensor.double().numpy().copy()
    colours = np.size(np.asarray(options["mean"])) if norm.family == "image" else 0
    layout = build_layout(norm.key, values.shape, given, colours)
    valid = expand_mask(options.get("mask"), values.shape, layout)
    statistics = {name: per_group(name, options.get(name), layout, norm) for name in ("mean", "variance", "std")}
    check_statistics(statistics)
    weight, bias = (parameter(name, options.get(name), layout) for name in ("weight", "bias"))
    low, high = feature_range(options.get("feature_range", (0.0, 1.0)))
    return Setup(
        norm=norm,
        spec=replace(spec, eps=spec.epsilon(tensor.dtype), weight=weight is not None, bias=bias is not None),
        tensor=tensor,
        x=values,
        layout=layout,
        valid=valid,
        masked=options.get("mask") is not None,
        weight=weight,
        gamma=None if weight is None else weight + spec.weight_offset,
        beta=bias,
        correction=check_correction(options.get("correction", 0)),
        low=low,
        high=high,
        scale=number("scale", options.get("scale", 1.0)),
        alpha=number("alpha", options.get("alpha", 1.0)),
        **statistics,
    )


def as_tensor(x: Any, dtype: str | torch.dtype | None) -> torch.Tensor:
    """Return the input as a tensor on the CPU: floating dtypes stay, everything else becomes float64."""
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
    return tensor.reshape(tensor.shape or (1,)).to(find_dtype(dtype, tensor.dtype))


def as_array(x: Any) -> np.ndarray:
    """Convert numbers, nested lists or numpy to an array."""
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
    """Return the dtype to explain in: the given one, or the input's own where it is floating, or float64."""
    if dtype is None:
        return own if own in DTYPES.values() else torch.float64
    name = str(dtype).removeprefix("torch.")
    check_choice("explain: dtype", name, DTYPE_NAMES)
    return DTYPES[name]


def numbers(name: str, value: Any) -> np.ndarray:
    """Return an option of one or more numbers as float64."""
    if isinstance(value, torch.Tensor) and (value.is_nested or value.layout is not torch.strided):
        raise InvalidInputError(f"{name}: expected a dense tensor, but got a sparse or nested one")
    array = value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else as_array(value)
    return array.astype(np.float64)


def number(name: str, value: Any) -> float:
    """Return an option of one finite number."""
    array = numbers(name, value)
    if array.size != 1:
        raise InvalidArgumentError(f"explain: {name} must be one number, but got {value}")
    return check_one(name, float(array.item()))


def feature_range(value: Any) -> tuple[float, float]:
    """Return the two ends of min-max scaling."""
    return check_ends(numbers("feature_range", value).reshape(-1).tolist())


def parameter(name: str, value: Any, layout: Layout) -> np.ndarray | None:
    """Return weight or bias as a flat array of one number for each parameter; a single number is repeated."""
    if value is None:
        return None
    array = numbers(name, value)
    check_parameter(name, array.shape, layout)
    return np.full(math.prod(layout.parameter_shape), array.item()) if array.size == 1 else array.reshape(-1)


def per_group(name: str, value: Any, layout: Layout, norm: Norm) -> np.ndarray | None:
    """Return given statistics as a flat array of one number for each group; a single number is repeated."""
    if value is None:
        return None
    array = numbers(name, value).reshape(-1)
    check_statistic(name, array.size, norm.key, layout)
    return np.broadcast_to(array, (layout.groups,)).copy()


def check_statistics(statistics: dict[str, np.ndarray | None]) -> None:
    """Raise unless the given statistics are possible."""
    for name in ("variance", "std"):
        array = statistics[name]
        if array is not None:
            check_spread(name, float(array.min()))
