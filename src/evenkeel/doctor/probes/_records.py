"""What was measured: one frozen record per norm, layer, step."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "Averaged",
    "Curve",
    "Depth",
    "InputState",
    "Layer",
    "Leak",
    "Measurements",
    "NormState",
    "OptimizerState",
    "Replica",
    "Rescaling",
    "Signal",
    "Skew",
    "Step",
    "Target",
    "Threshold",
]

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """From where on a value is a verdict.

    Attributes:
        threshold: the value.
        above: whether larger values are worse.
    """

    threshold: float
    above: bool = True

    def fires(self, value: float) -> bool:
        """Whether a value is a verdict; one that is no number is none."""
        return value >= self.threshold if self.above else value <= self.threshold


@dataclass(frozen=True, kw_only=True)
class NormState:
    """The parameters and buffers of a norm, in numbers.

    Attributes:
        site: its name in the model.
        shares: as in `evenkeel.NormSpec`.
        dtype: of its weight, or of its statistics.
        offset: what is added to the weight.
        eps: the constant beside the variance; None where it is not known.
        size: how many numbers its weight has.
        at_start: the share of the weight that is exactly at the value that norms start with.
        dead: the share of the gains that are smaller than a thousandth of the median one; NaN without a weight.
        bias_moved: whether the bias is off zero; None without a bias.
        trainable: whether a parameter of it requires a gradient; None where that is not known.
        training: whether it is in training mode; None where that is not known.
        frozen: whether it uses remembered statistics in training too.
        updates: how many batches its statistics have seen; None where nothing counts.
        default_statistics: whether they are exactly 0 and 1.
        not_finite: how many numbers of it are NaN, infinite, or a negative variance.
        tiny: the share of its remembered variances below eps.
        outlier: the largest gain over the median one; NaN where there are few.
        channel: where the largest gain is.
    """

    site: str
    shares: str
    dtype: str
    offset: float = 0.0
    eps: float | None = None
    size: int = 0
    at_start: float = 0.0
    dead: float = NAN
    bias_moved: bool | None = None
    trainable: bool | None = None
    training: bool | None = None
    frozen: bool = False
    updates: int | None = None
    default_statistics: bool = False
    not_finite: int = 0
    tiny: float = 0.0
    outlier: float = NAN
    channel: int = 0

    @property
    def remembers(self) -> bool:
        """Whether it has remembered statistics."""
        return self.updates is not None or self.default_statistics or self.tiny > 0


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What a norm was given in one forward.

    Attributes:
        site: its name in the model.
        shares: as in `evenkeel.NormSpec`.
        statistic: as in `evenkeel.NormSpec`.
        dtype: of the input.
        shape: of the input.
        training: whether the module was in training mode.
        remembers: whether it has remembered statistics, which it uses in evaluation.
        frozen: whether it uses them in training too.
        updates: how many batches these have seen.
        values: what was measured on the device, by name; see `evenkeel.doctor.probes._signal`.
        source: the name of the layer whose result it was given unchanged; empty where there is none.
        source_kind: ``linear``, ``conv``, ``norm``, or nothing.
        source_bias: whether that layer has a bias.
        half_refuses: whether it gives NaN for a row of zeros in float16; False where that was not tried.
        axis: of the channels.
        last_only: whether it takes its statistics over the last axis alone.
        post: whether its input is the sum of something and another norm's result: the stream goes through both.
    """

    site: str
    shares: str
    statistic: str
    dtype: str
    shape: tuple[int, ...]
    training: bool
    remembers: bool
    frozen: bool
    updates: int | None
    values: dict[str, float]
    source: str = ""
    source_kind: str = ""
    source_bias: bool = False
    half_refuses: bool = False
    axis: int = -1
    last_only: bool = False
    post: bool = False


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a module without children gave in one forward.

    Attributes:
        site: its name in the model, in the order of calls.
        dtype: of the result.
        largest: the largest finite size in it.
        not_finite: the share of it that is not finite.
        input_finite: whether its input was.
        kind: ``norm``, ``weights`` for what has a matrix or a kernel, or nothing.
        spread: how far samples differ in the result of such a layer: the deviation over the batch; NaN for few samples.
        lost: the part of the result that is lost beside massive values of the input; NaN where nothing rounds so.
    """

    site: str
    dtype: str
    largest: float
    not_finite: float
    input_finite: bool
    kind: str = ""
    spread: float = NAN
    lost: float = NAN


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The gradient of a weight matrix or kernel, in parts of its own length.

    Attributes:
        site: the name of the layer, in the order of calls.
        gradient: its root mean square over that of the weight.
    """

    site: str
    gradient: float


@dataclass(frozen=True, kw_only=True)
class OptimizerState:
    """What an optimizer holds of a norm.

    Attributes:
        site: the norm.
        held: whether its trainable parameters are in the optimizer.
        others_held: the share of the trainable matrices of the model that are in it.
        decay: the weight decay of its weight.
        rate: the learning rate of its weight.
        lost: the share of the weight's steps that float32 would take and its dtype rounds away; NaN where unknown.
        has_gradient: whether a gradient reached it; None where there was no backward.
    """

    site: str
    held: bool
    others_held: float
    decay: float = 0.0
    rate: float = 0.0
    lost: float = NAN
    has_gradient: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Leak:
    """How far an output moves with an input that it must not depend on, in parts of the output's deviation.

    Attributes:
        kind: ``batch`` or ``time``.
        site: the norms through which it goes.
        moved: the largest movement of the output.
        held: the same with the statistics of the norms kept.
    """

    kind: str
    site: str
    moved: float
    held: float


@dataclass(frozen=True, kw_only=True)
class InputState:
    """What the first layer with weights, or a norm before it, was given, where that is the model's own input.

    Attributes:
        site: that layer.
        shape: of the input.
        rms: the root mean square of what is not zero in it; NaN for a norm, which takes any scale.
        scales: the largest over the smallest deviation of its features, for a table; NaN for a norm.
        constant: the share of its features that are constant.
        rows: how many rows there are.
    """

    site: str
    shape: tuple[int, ...]
    rms: float
    scales: float
    constant: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """What was seen at one step of a training.

    Attributes:
        step: its number, from 1.
        loss: of that step; NaN where it was not given.
        update: the median over the weight matrices of the length of a step over that of the weight.
        moved: by norm: the share of its weight that has changed since the start.
        gradient: by norm: the largest gradient of its weight; NaN where there is none.
        rate: the largest learning rate.
        half_ulps: by norm whose weight has 16 bits: the largest step that the optimizer asks for, in half ulps.
    """

    step: int
    loss: float
    update: float
    moved: dict[str, float]
    gradient: dict[str, float]
    rate: float = 0.0
    half_ulps: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rescaling:
    """What a model does to its own input, feature by feature, before the first layer with weights.

    Attributes:
        site: that layer.
        mean: of the model's input.
        spread: the median deviation of its features.
        mean_after: of what the layer is given.
        spread_after: the median deviation of its features there.
    """

    site: str
    mean: float
    spread: float
    mean_after: float
    spread_after: float


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a loss draws the output to, where it grows as its distance or the square of that.

    Attributes:
        size: the root mean square of the targets, or their mean size.
        output: the root mean square of the model's output.
        power: 1 or 2: as what the loss grows.
    """

    size: float
    output: float
    power: int


@dataclass(frozen=True, kw_only=True)
class Skew:
    """A feature of the model's input beside its statistics in the data of the fit.

    Attributes:
        feature: its name or position.
        shift: of the mean, in deviations of the fit.
        spread: the deviation in parts of that of the fit.
        rows: how many rows the batch has.
        chance: the shift that batches of the same data may have.
        chance_of_spread: the doublings of the deviation that they may have.
    """

    feature: str
    shift: float
    spread: float
    rows: int
    chance: float
    chance_of_spread: float


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The weights of one process at one step of a training, in two numbers."""

    rank: int
    step: int
    digest: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """The statistics of a norm in an average of weights, beside those of the same norm in the model that it averages.

    Attributes:
        site: the norm in the average.
        other: the norm in the model.
        updates: how many batches the average's statistics have seen; None where nothing counts.
        others: how many the model's have.
        shift: how far the two means lie apart, in the model's deviations.
        ratio: the factor between the two deviations, from 1 up.
        followed: how much of the way of the model's weight and bias the average's have gone; NaN without any.
        stayed: whether its statistics kept every bit while the model's, and the average's weights, moved; None where
            that was not watched.
    """

    site: str
    other: str
    updates: int | None
    others: int | None
    shift: float
    ratio: float
    followed: float = NAN
    stayed: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Curve(Threshold):
    """The worst reading at the measured steps of a training.

    Attributes:
        rule: whose verdict it belongs to.
        quantity: what is drawn.
        steps: their numbers.
        values: the reading at each.
    """

    rule: str
    quantity: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Everything that was measured.

    Attributes:
        norms: the state of each norm.
        signals: what each was given.
        layers: what each module without children gave.
        depths: the gradients along the depth.
        optimizer: what the optimizer holds of each norm.
        leaks: dependences of outputs on what they must not depend on.
        inputs: the input of the first layer, where that is the model's own.
        rescaling: what the model does to its input before that layer.
        target: what the loss draws the output to.
        skew: the features of the input beside the statistics of the fit.
        loss: its last value.
        steps: of a training.
        fresh: whether all gains of the norms were at their start when the watch began.
        replicas: the weights of the processes that train copies of the model.
        curves: the readings of rules by step.
        averages: the norms of an average of the weights, beside the model's.
    """

    norms: tuple[NormState, ...] = ()
    signals: tuple[Signal, ...] = ()
    layers: tuple[Layer, ...] = ()
    depths: tuple[Depth, ...] = ()
    optimizer: tuple[OptimizerState, ...] = ()
    leaks: tuple[Leak, ...] = ()
    inputs: InputState | None = None
    rescaling: Rescaling | None = None
    target: Target | None = None
    skew: tuple[Skew, ...] = ()
    loss: float | None = None
    steps: tuple[Step, ...] = ()
    fresh: bool = False
    replicas: tuple[Replica, ...] = ()
    curves: tuple[Curve, ...] = ()
    averages: tuple[Averaged, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether anything of the norms shows that the model was trained: one that has just been made is not judged."""
        return any(n.bias_moved or n.updates or (n.size and n.at_start < 1 and n.shares != "?") for n in self.norms)
