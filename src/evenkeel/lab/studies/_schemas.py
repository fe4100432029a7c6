"""What the files of a study hold, as types that msgspec compares them with."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from evenkeel._options.study import BYTES, StudySettings

STUDY_FORMAT = 2  # of study.json and summary.json; 1 had one learning rate and no cost.json

Count = Annotated[int, Meta(ge=0)]
Size = Annotated[float, Meta(ge=0)]
Single = Annotated[float, Meta(ge=-1e39, le=1e39)]  # a value of float32
Block = int | None


class CorpusDescription(Struct):
    """What a study says about its text; the first ones said less."""

    source: str = ""
    train_files: Count = 0
    validation_files: Count = 0
    skipped_files: Count = 0
    duplicate_files: Count = 0
    train_bytes: Count = 0
    validation_bytes: Count = 0
    train_tokens: Count = 0
    validation_tokens: Count = 0
    frequency_loss: float | None = None
    digest: str = ""
    unit: Literal["byte", "token"] = "byte"
    vocabulary: Count = BYTES


class FrozenStudy(Struct):
    """The content of study.json."""

    evenkeel: str
    torch: str
    kernels: list[str]
    created: str
    settings: StudySettings
    text: str | None
    corpus: CorpusDescription
    python: str = ""
    ray: str = ""


class Start(Struct, tag_field="kind", tag="start"):
    """The first record of an arm."""

    arm: str
    lr: Size
    warmup: Count
    seed: int
    parameters: int
    norm: str
    placement: str
    feed_forward: str
    bias: bool
    qk_norm: bool


class Train(Struct, tag_field="kind", tag="train"):
    """A training step."""

    step: Count
    loss: float | None
    gradient_norm: float | None
    learning_rate: float


class Validation(Struct, tag_field="kind", tag="validation"):
    """A validation."""

    step: Count
    loss: float | None


class Residual(Struct):
    """The residual stream before a block, or after the last."""

    layer: int
    rms: float | None
    mean2_over_rms2: float | None


class Gradient(Struct):
    """The gradient of a group of parameters."""

    group: str
    block: Block
    norm: float | None


class AroundNorm(Struct):
    """The size (RMS) of the values before and after a norm."""

    norm: str
    block: Block
    before: float | None
    after: float | None


class Bins(Struct):
    """A histogram."""

    edges: Annotated[list[Single], Meta(min_length=2)]
    counts: list[int]

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError("one edge more than counts is needed")


class Widest(Struct):
    """The values before and after the norm with the widest input."""

    norm: str
    block: Block
    before: Bins
    after: Bins


class Probed(Struct, tag_field="kind", tag="probe"):
    """What a probe saw in a training step."""

    step: Count
    residual: list[Residual]
    gradients: list[Gradient]
    norms: list[AroundNorm]
    widest: Widest | None


class Timed(Struct):
    """What the steps of an arm took, and its norms alone, a measurement a round."""

    step_seconds: Annotated[list[Size], Meta(min_length=1)]
    norm_seconds: Annotated[list[Size], Meta(min_length=1)]


class Costs(Struct):
    """The content of cost.json."""

    arms: dict[str, Timed]


class End(Struct, tag_field="kind", tag="end"):
    """The last record of an arm."""

    status: Literal["finished", "diverged"]
    step: Count
    validation_loss: float | None
    leak: float | None


StudyRecord = Start | Train | Validation | Probed | End
