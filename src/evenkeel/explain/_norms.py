"""The norms that can be explained: one plain table."""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel._errors import InvalidArgumentError

__all__ = ["NORMS", "Norm", "find_norm"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
AFFINE = ("weight", "bias", "weight_offset")
EPS = ("eps", "eps_mode")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """One norm: what `walk` needs to know of it.

    Attributes:
        key: its name in `walk` and on the command line.
        name: its name in prose.
        family: which formulas it follows: moments, rms, minmax, image or dyt.
        shares: which elements share statistics, in words.
        options: the keywords of `walk` that it takes, besides those that every norm takes.
        defaults: the values of options that are not given.
        result: what the output means.
    """

    key: str
    name: str
    family: str
    shares: str
    options: tuple[str, ...]
    defaults: dict[str, object]
    result: str


ROW = "all elements of one row (one token, one example) along the shared axes; other rows do not matter"
INSIDE = {"eps": 1e-5, "eps_mode": "inside", "weight_offset": 0.0}

NORMS: tuple[Norm, ...] = (
    Norm(
        key="layer",
        name="LayerNorm",
        family="moments",
        shares=ROW,
        options=("axis", *EPS, *AFFINE, "mask", "mean", "variance"),
        defaults=INSIDE,
        result="It is affine per row: the row keeps the shape of its distribution, and no value exceeds √(n − 1) before"
        " the weight. Nothing is squeezed between 0 and 1.",
    ),
    Norm(
        key="rms",
        name="RMSNorm",
        family="rms",
        shares=ROW,
        options=("axis", *EPS, "weight", "weight_offset", "mask"),
        defaults={"eps": None, "eps_mode": "inside", "weight_offset": 0.0},
        result="The mean is kept: a weight of 1 + γ (called zero-centred) centres the weight, never the values.",
    ),
    Norm(
        key="batch",
        name="BatchNorm",
        family="moments",
        shares="all elements of one channel, over the batch and every position: examples depend on each other",
        options=("channel_axis", *EPS, *AFFINE, "mask", "mean", "variance"),
        defaults=INSIDE,
        result="In inference the remembered mean and variance take the place of these, so a batch of one works; the"
        " trouble is the difference between the two. γ = √(σ² + ε) with β = μ undoes it; γ = 0 leaves the constant β.",
    ),
    Norm(
        key="instance",
        name="InstanceNorm",
        family="moments",
        shares="the positions of one channel of one sample",
        options=("channel_axis", *EPS, *AFFINE, "mask", "mean", "variance"),
        defaults=INSIDE,
        result="Each channel of each sample loses its own brightness and contrast; samples stay independent.",
    ),
    Norm(
        key="group",
        name="GroupNorm",
        family="moments",
        shares="the channels of one group of one sample, with all their positions",
        options=("groups", "channel_axis", *EPS, *AFFINE, "mask", "mean", "variance"),
        defaults=INSIDE | {"groups": 1},
        result="One group is LayerNorm over channels and positions; as many groups as channels is InstanceNorm.",
    ),
    Norm(
        key="standardize",
        name="standardization",
        family="moments",
        shares="one feature (column) over all rows of the data",
        options=("axis", "correction", "mask", "mean", "variance"),
        defaults={"eps": 0.0, "eps_mode": "inside", "correction": 0},
        result="Compute mean and deviation once, on the training data, and use the same two for every later row. A"
        " constant column is divided by 1.",
    ),
    Norm(
        key="minmax",
        name="min-max scaling",
        family="minmax",
        shares="one feature (column) over all rows of the data",
        options=("axis", "feature_range", "mask"),
        defaults={"feature_range": (0.0, 1.0)},
        result="The least value lands on the low end and the largest on the high end: one outlier squeezes the rest.",
    ),
    Norm(
        key="image",
        name="image normalization",
        family="image",
        shares="one colour channel: its mean and deviation are constants, computed once on a whole data set",
        options=("channel_axis", "scale", "mean", "std"),
        defaults={"scale": 255.0, "mean": IMAGENET_MEAN, "std": IMAGENET_STD},
        result="The ImageNet deviation 0.229 is a mean of per-image deviations; the pooled one is about 0.28, so"
        " normalized ImageNet has a deviation near 1.25, not 1.",
    ),
    Norm(
        key="dyt",
        name="DyT (dynamic tanh)",
        family="dyt",
        shares="nothing: each element stands alone",
        options=("axis", "alpha", "weight", "bias"),
        defaults={"alpha": 0.5},
        result="No statistic is computed; values far from 0 saturate at ±γ + β, values near it pass almost linearly.",
    ),
)


def find_norm(key: str) -> Norm:
    """The norm of that key, or an error that lists them."""
    for norm in NORMS:
        if norm.key == key:
            return norm
    raise InvalidArgumentError(
        f"explain: the norm must be one of {', '.join(norm.key for norm in NORMS)}, but got {key!r}"
    )
