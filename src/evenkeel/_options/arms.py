"""The arms a study compares: which norm, where it stands, and the few other choices that model families differ in.

Everything that can be plugged in is in the tables of this file and in `NORMS` of lab/transformer, which builds what
`NORM_NAMES` names.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evenkeel._errors import StudyError
from evenkeel._options.names import nearest

NORM_NAMES = ("none", "layer", "rms", "batch", "dyt")
FEED_FORWARD_NAMES = ("relu", "gelu", "swiglu", "geglu")
DEFAULT_ARMS = ("none", "post-layer", "post-layer+warmup", "pre-layer", "pre-rms", "peri-rms", "pre-batch")
LONG_WARMUP = "warmup"  # after a plus sign in an arm's name


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where norms stand around each sublayer F (attention or feed-forward) and at the end of the model.

    A block computes ``x <- after_sum(a x + after(F(s before(x))))`` twice; a place that is off is left out, and a and s
    are 1 unless said otherwise.

    Attributes:
        before: normalize the sublayer's input.
        after: normalize the sublayer's output, before it is added to the residual stream.
        after_sum: normalize the residual stream itself, after the addition.
        final: normalize once more between the last block and the output head.
        damped: s = 1 / sqrt(l) in block l, counted from 1 (LayerNorm scaling, Sun et al. 2025).
        deepnorm: a = (2 N)^(1/4) for N blocks, and value, output and feed-forward maps start smaller by (8 N)^(-1/4)
            (DeepNorm, Wang et al. 2022).

    Example:
        >>> from evenkeel.lab import PLACEMENTS
        >>> PLACEMENTS["post"].after_sum, PLACEMENTS["post"].final
        (True, False)
    """

    before: bool = False
    after: bool = False
    after_sum: bool = False
    final: bool = False
    damped: bool = False
    deepnorm: bool = False


PLACEMENTS: dict[str, Placement] = {
    "none": Placement(),
    "pre": Placement(before=True, final=True),  # GPT-2, Llama
    "post": Placement(after_sum=True),  # the original transformer, BERT
    "peri": Placement(before=True, after=True, final=True),  # sandwich: Gemma 2
    "output-only": Placement(after=True, final=True),  # OLMo 2
    "damped": Placement(before=True, final=True, damped=True),  # LayerNorm scaling
    "deepnorm": Placement(after_sum=True, deepnorm=True),
}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One variant of the transformer: a norm, its placement, and the choices around it.

    Attributes:
        name: what the study calls it.
        placement: a key of `PLACEMENTS`.
        norm: a key of `NORMS`.
        feed_forward: ``relu``, ``gelu``, ``swiglu`` or ``geglu``.
        bias: whether linear layers, LayerNorm and DyT have bias terms.
        qk_norm: whether queries and keys pass an RMSNorm over the whole projection before attention (OLMo 2's form).
        eps: the norms' epsilon.
        weight_offset: what is added to an RMSNorm's weight before use (1 in the (1 + weight) family).
        long_warmup: whether the learning rate rises over half of the steps instead of the study's warm-up.

    Example:
        >>> from evenkeel.lab import find_arm
        >>> find_arm("llama").feed_forward
        'swiglu'
    """

    name: str
    placement: str = "pre"
    norm: str = "layer"
    feed_forward: str = "gelu"
    bias: bool = True
    qk_norm: bool = False
    eps: float = 1e-5
    weight_offset: float = 0.0
    long_warmup: bool = False

    @property
    def leaks(self) -> bool:
        """Whether a position's output depends on later positions and on other examples, through batch statistics."""
        return self.norm == "batch"


# The choices that the named families make; sizes, positions and initialization stay the study's own.
PRESETS: dict[str, Arm] = {
    "gpt2": Arm(name="gpt2", placement="pre", norm="layer", feed_forward="gelu", bias=True),
    "bert": Arm(name="bert", placement="post", norm="layer", feed_forward="gelu", bias=True, eps=1e-12),
    "llama": Arm(name="llama", placement="pre", norm="rms", feed_forward="swiglu", bias=False),
    "gemma2": Arm(
        name="gemma2", placement="peri", norm="rms", feed_forward="geglu", bias=False, eps=1e-6, weight_offset=1.0
    ),
    "olmo2": Arm(
        name="olmo2", placement="output-only", norm="rms", feed_forward="swiglu", bias=False, qk_norm=True, eps=1e-6
    ),
}


def arm_names() -> list[str]:
    """Return the name of every arm: ``none``, each ``<placement>-<norm>``, and the presets.

    Example:
        >>> from evenkeel.lab import arm_names
        >>> arm_names()[:3]
        ['none', 'pre-layer', 'pre-rms']
    """
    crossed = [f"{place}-{norm}" for place in PLACEMENTS if place != "none" for norm in NORM_NAMES if norm != "none"]
    return ["none", *crossed, *PRESETS]


def find_arm(name: str, *, feed_forward: str = "gelu", bias: bool = True, qk_norm: bool = False) -> Arm:
    """Return the arm of this name.

    Args:
        name: one of `arm_names`; followed by ``+warmup``, the learning rate rises over half of the steps.
        feed_forward: the feed-forward of an arm that is not a preset.
        bias: whether an arm that is not a preset has bias terms.
        qk_norm: whether an arm that has a norm and is not a preset normalizes queries and keys.

    Returns:
        The arm; presets keep their own feed-forward, bias and QK-norm.

    Raises:
        StudyError: there is no such arm.

    Example:
        >>> from evenkeel.lab import find_arm
        >>> find_arm("output-only-rms", bias=False).placement
        'output-only'
    """
    base, plus, option = name.partition("+")
    known = arm_names()
    if base not in known or (plus and option != LONG_WARMUP):
        suggestions = f"{base}+{LONG_WARMUP}" if base in known else nearest(base, known)
        raise StudyError(f"unknown arm {name!r}; did you mean {suggestions}?")
    if base in PRESETS:
        arm = PRESETS[base]
    else:
        placement, _, norm = base.rpartition("-")
        qk_norm = qk_norm and norm != "none"  # none means no norm anywhere
        arm = Arm(name=base, placement=placement or "none", norm=norm, feed_forward=feed_forward, bias=bias)
        arm = dataclasses.replace(arm, qk_norm=qk_norm)
    return dataclasses.replace(arm, name=name, long_warmup=bool(plus))
