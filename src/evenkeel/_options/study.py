"""What a study is told to do: frozen when it starts, compared when it resumes."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenkeel._errors import StudyError
from evenkeel._options.arms import DEFAULT_ARMS, FEED_FORWARD_NAMES, Arm, find_arm
from evenkeel._options.names import nearest
from evenkeel._options.numbers import COUNT, is_count, is_real, is_whole

BYTES = 256  # the vocabulary of a text that is not tokenized
MOST_TOKENS = 1 << 24  # of a vocabulary; ids beyond are no token's
DEVICES = ("cpu", "cuda")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How a training step is computed.

    Attributes:
        device: ``cpu`` or ``cuda``.
        precision: ``float32``, or ``bfloat16`` for linear maps and attention (autocast); weights stay float32.
        compile: whether the model is compiled (`torch.compile`), but for the steps that carry a probe.
        accumulate: parts of a batch whose gradients are summed, so that a larger batch fits into the memory;
            BatchNorm's statistics are each part's.

    Raises:
        StudyError: a value is impossible.

    Example:
        >>> Compute(precision="bfloat16").device
        'cpu'
    """

    device: str = "cpu"
    precision: str = "float32"
    compile: bool = False
    accumulate: int = 1

    def __post_init__(self) -> None:
        for name, known in (("device", DEVICES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise StudyError(f"{name} must be {' or '.join(known)}, but is {getattr(self, name)!r}")
        if self.accumulate < 1:
            raise StudyError(f"accumulate must be at least 1, but is {self.accumulate}")


@dataclass(frozen=True, kw_only=True)
class StudySettings(Compute):
    """Every option of a study; the defaults draw a map of seven arms over four rates in two minutes on two cores.

    Attributes:
        arms: names of the arms, in the order they run.
        depth: blocks of each transformer.
        width: size of the residual stream.
        heads: attention heads.
        context: bytes or tokens of a training sequence.
        vocabulary: how many token ids there are; None means as many as the largest one says. Bytes are always 256.
        batch: sequences of a training step.
        steps: training steps of each arm.
        lr: the highest learning rates, or one, each trained on its own: reached after the warm-up, a cosine then brings
            it to a tenth.
        warmup: steps of linear warm-up; None means a tenth of `steps`.
        clip: largest gradient norm; None leaves gradients as they are, so that divergence can show.
        weight_decay: AdamW's, on the weight matrices of linear maps only.
        feed_forward: of the arms that are no presets.
        bias: whether the arms that are no presets have bias terms.
        qk_norm: whether the arms that are no presets normalize queries and keys.
        seed: of the initialization and of the data order, the same for every arm.
        seeds: how many seeds each arm runs: `seed`, `seed` + 1, ...
        threads: of the processor, for each training. Trainings side by side use the cores better: a step of 6 blocks of
            width 96 took 79 ms with one thread and 61 ms with two on two idle cores, but 84 and 587 ms beside one other
            busy process.
        device: ``cpu`` or ``cuda``.
        precision: ``float32``, or ``bfloat16`` for linear maps and attention.
        compile: whether the model is compiled, but for the steps that carry a probe.
        accumulate: parts of a batch whose gradients are summed.

    Raises:
        StudyError: an option has an impossible value.

    Example:
        >>> from evenkeel.lab import StudySettings
        >>> StudySettings(arms=("none", "llama"), steps=50).warmup
        5
    """

    arms: tuple[str, ...] = DEFAULT_ARMS
    depth: int = 12
    width: int = 64
    heads: int = 4
    context: int = 48
    vocabulary: int | None = None
    batch: int = 8
    steps: int = 72
    lr: tuple[float, ...] | float = (0.001, 0.004, 0.016, 0.064)
    warmup: int | None = None
    clip: float | None = None
    weight_decay: float = 0.1
    feed_forward: str = "gelu"
    bias: bool = True
    qk_norm: bool = False
    seed: int = 0
    seeds: int = 2
    threads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "width", "heads", "context", "batch", "steps", "seeds"):
            if getattr(self, name) < 1:
                raise StudyError(f"{name} must be at least 1, but is {getattr(self, name)}")
        if self.width % self.heads:
            raise StudyError(
                f"width {self.width} is not a multiple of heads {self.heads}; choose a width divisible by heads"
            )
        if self.batch % self.accumulate:
            raise StudyError(f"batch {self.batch} does not split into {self.accumulate} equal parts; choose a multiple")
        self._check_optimizer()
        if self.feed_forward not in FEED_FORWARD_NAMES:
            raise StudyError(
                f"feed-forward must be one of {', '.join(FEED_FORWARD_NAMES)}, but is {self.feed_forward!r}"
            )
        if not self.arms:
            raise StudyError("no arms given; name at least one, for example pre-rms")
        repeated = {name for name in self.arms if self.arms.count(name) > 1}
        if repeated:
            raise StudyError(f"arm {', '.join(sorted(repeated))} is named more than once; name each arm once")
        self._check_positions()
        if not is_count(self.threads):
            raise StudyError(f"threads must be {COUNT}, but is {self.threads!r}")
        if self.vocabulary is not None and not 1 <= self.vocabulary <= MOST_TOKENS:
            raise StudyError(f"vocabulary must be from 1 to {MOST_TOKENS}, but is {self.vocabulary}")
        self.check_memory(self.vocabulary or BYTES)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates, however many there are."""
        return (self.lr,) if isinstance(self.lr, int | float) else tuple(self.lr)

    def _check_optimizer(self) -> None:
        object.__setattr__(self, "lr", tuple(map(float, self.rates)))
        if not self.rates:
            raise StudyError("no learning rate given; name at least one, for example 0.004")
        for name, value in (*(("lr", rate) for rate in self.rates), ("clip", self.clip)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise StudyError(f"{name} must be a positive number, but is {value}")
        names = [f"{rate:g}" for rate in self.rates]
        if len(set(names)) < len(names):
            raise StudyError(f"lr names {max(names, key=names.count)} more than once; name each rate once")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise StudyError(f"weight decay must be zero or more, but is {self.weight_decay}")
        warmup = self.steps // 10 if self.warmup is None else self.warmup
        if not 0 <= warmup <= self.steps:
            raise StudyError(f"warmup must be from 0 to the number of steps ({self.steps}), but is {warmup}")
        object.__setattr__(self, "warmup", warmup)

    def _check_positions(self) -> None:
        leaking = [arm.name for arm in self.find_arms() if arm.leaks]
        if leaking and self.batch // self.accumulate * self.context < 2:
            raise StudyError(
                f"arm {', '.join(leaking)} needs more than one position for BatchNorm's statistics, but batch and "
                "context are both 1; choose a larger batch or context"
            )

    def check_memory(self, vocabulary: int) -> None:
        """Raise `StudyError` where a model with a vocabulary needs more memory than this machine has."""
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
        needed = self.needed_bytes(vocabulary)
        if self.device == "cpu" and needed > available:
            tokens = "" if vocabulary == BYTES else f" for a vocabulary of {vocabulary}"
            raise StudyError(
                f"a model of depth {self.depth}, width {self.width}, batch {self.batch} and context {self.context}"
                f"{tokens} needs about {needed >> 30} GiB, but there are {available / 2**30:.0f}; choose smaller sizes"
            )

    def needed_bytes(self, vocabulary: int) -> int:
        """Return about the memory that a training takes beside the program itself."""
        weights = 4 * (12 * self.depth * self.width**2 + (2 * vocabulary + self.context) * self.width)
        tokens = self.batch // self.accumulate * self.context
        # per layer about 20 arrays of the width, and at the head the logits, their softmax and their gradient
        return 4 * weights + 4 * tokens * (20 * self.depth * self.width + 3 * vocabulary)

    def find_arms(self) -> list[Arm]:
        """Return the arms that `arms` names."""
        return [
            find_arm(name, feed_forward=self.feed_forward, bias=self.bias, qk_norm=self.qk_norm) for name in self.arms
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        return {**dataclasses.asdict(self), "arms": list(self.arms), "lr": list(self.rates)}

    @staticmethod
    def from_options(options: dict[str, Any]) -> StudySettings:
        """Return settings from a dictionary such as `as_dict` returns; options left out take their default."""
        for name, value in options.items():
            if name not in SETTINGS:
                raise StudyError(f"a study has no setting {name!r}; did you mean {nearest(str(name), SETTINGS)}?")
            if value is not None or getattr(StudySettings, name) is not None:
                check_kind(name, value, SETTINGS[name])
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
        return StudySettings(**given)


Kind = tuple[str, Callable[[Any], bool]]  # what an option may be: in words, and whether a value is that
TEXT: Kind = ("text", lambda value: isinstance(value, str))
TEXTS: Kind = ("a list of texts", lambda value: is_list(value, TEXT))
WHOLE: Kind = ("a whole number", is_whole)
NUMBER: Kind = ("a number", is_real)
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
SETTINGS: dict[str, Kind] = {
    field.name: {int: WHOLE, float: NUMBER, bool: FLAG, str: TEXT}.get(type(field.default), WHOLE)
    for field in dataclasses.fields(StudySettings)
} | {
    "arms": ("a list of names", TEXTS[1]),
    "lr": ("a number or a list of numbers", lambda value: is_real(value) or is_list(value, NUMBER)),
    "clip": NUMBER,
}


def is_list(value: Any, kind: Kind) -> bool:
    """Whether a value is a list whose items are of a kind."""
    return isinstance(value, list | tuple) and all(map(kind[1], value))


def check_kind(name: str, value: Any, kind: Kind) -> None:
    """Raise `StudyError` unless the value of an option is of a kind."""
    words, fits = kind
    if not fits(value):
        raise StudyError(f"{name} must be {words}, but is {value!r:.80}")
