"""A decoder-only transformer in which the norm and its placement are plug-ins.

The whole model is one recurrence. Each block applies two sublayers F (attention, feed-forward) to the residual stream:

    x <- after_sum(a x + after(F(s before(x))))

and a placement says which of the three norms are there: Pre-LN has ``before``, Post-LN has ``after_sum``, the sandwich
has ``before`` and ``after``, OLMo 2 has ``after``; a is 1 but in DeepNorm, s is 1 but in LayerNorm scaling. Shapes:
b batch, t time, w width, h heads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenkeel.nn as ek_nn
from evenkeel._errors import StudyError
from evenkeel._options.arms import PLACEMENTS, Arm
from evenkeel._options.study import BYTES
from evenkeel.lab.transformer._norms import NORMS, TokenBatchNorm

ON_THE_WAY = ("value", "output", "up", "gate", "down")  # the linear maps that a sublayer's values pass through

# What `FEED_FORWARD_NAMES` names -> (activation, gated); a gated one multiplies the activation by a second projection
FEED_FORWARDS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "relu": (F.relu, False),
    "gelu": (F.gelu, False),
    "swiglu": (F.silu, True),
    "geglu": (F.gelu, True),
}


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, width: int, heads: int, arm: Arm) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=arm.bias)
        self.key = nn.Linear(width, width, bias=arm.bias)
        self.value = nn.Linear(width, width, bias=arm.bias)
        self.output = nn.Linear(width, width, bias=arm.bias)
        self.query_norm = ek_nn.RMSNorm(width, eps=arm.eps) if arm.qk_norm else None
        self.key_norm = ek_nn.RMSNorm(width, eps=arm.eps) if arm.qk_norm else None

    def forward(self, x: Tensor) -> Tensor:  # (b, t, w)
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (b, h, t, w/h)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear maps around an activation; a gated one has about as many parameters as a plain one."""

    def __init__(self, width: int, arm: Arm) -> None:
        super().__init__()
        self.activation, gated = FEED_FORWARDS[arm.feed_forward]
        hidden = 8 * math.ceil(width / 3) if gated else 4 * width
        self.up = nn.Linear(width, hidden, bias=arm.bias)
        self.gate = nn.Linear(width, hidden, bias=arm.bias) if gated else None
        self.down = nn.Linear(hidden, width, bias=arm.bias)

    def forward(self, x: Tensor) -> Tensor:  # (b, t, w)
        if self.gate is not None:
            return self.down(self.activation(self.gate(x)) * self.up(x))
        return self.down(self.activation(self.up(x)))


class Sublayer(nn.Module):
    """``x -> after_sum(a x + after(F(s before(x))))``, with the norms and gains that the placement asks for.

    Args:
        function: attention or feed-forward.
        width: of the residual stream.
        arm: norm and placement.
        number: of the block, counted from 1.
        depth: blocks of the model.
    """

    def __init__(self, function: nn.Module, width: int, arm: Arm, *, number: int, depth: int) -> None:
        super().__init__()
        place = PLACEMENTS[arm.placement]
        self.residual_gain = (2 * depth) ** 0.25 if place.deepnorm else 1.0
        self.input_gain = number**-0.5 if place.damped else 1.0
        self.before = NORMS[arm.norm](width, arm) if place.before else None
        self.function = function
        self.after = NORMS[arm.norm](width, arm) if place.after else None
        self.after_sum = NORMS[arm.norm](width, arm) if place.after_sum else None

    def forward(self, x: Tensor, mask: Tensor | None, steps: list[Tensor]) -> Tensor:
        y = x
        if self.before is not None:
            steps.append(y := scaled(normalized(self.before, y, mask), self.input_gain))
        steps.append(y := self.function(y))
        if self.after is not None:
            steps.append(y := normalized(self.after, y, mask))
        steps.append(x := scaled(x, self.residual_gain) + y)
        if self.after_sum is not None:
            steps.append(x := normalized(self.after_sum, x, mask))
        return x


class Block(nn.Module):
    """Attention, then feed-forward."""

    def __init__(self, width: int, heads: int, arm: Arm, *, number: int, depth: int) -> None:
        super().__init__()
        self.attention = Sublayer(Attention(width, heads, arm), width, arm, number=number, depth=depth)
        self.feed_forward = Sublayer(FeedForward(width, arm), width, arm, number=number, depth=depth)

    def forward(self, x: Tensor, mask: Tensor | None, steps: list[Tensor]) -> Tensor:
        return self.feed_forward(self.attention(x, mask, steps), mask, steps)


class Transformer(nn.Module):
    r"""The study's model: token and learned position embeddings, `depth` blocks, a linear head; a byte is a token.

    Initialization, the same for every arm: linear maps are Xavier normal, biases 0, token and position embeddings
    N(0, 1/2) each, so that the residual stream starts at RMS 1; norms start as their modules do (weight 1, bias 0).
    DeepNorm's maps on the way from a sublayer's input to its output, values included, start smaller.
    Each parameter has its own random stream, derived from the seed and its name: two arms with the same seed share the
    values of every parameter they share.

    Args:
        arm: the norm, its placement and the choices around it.
        depth: number of blocks.
        width: size of the residual stream.
        heads: attention heads; divides width.
        context: the longest sequence.
        seed: of the initialization.
        vocabulary: how many different tokens there can be; 256 for bytes.

    Raises:
        StudyError: width is not a multiple of heads.

    Example:
        >>> import torch
        >>> from evenkeel.lab import Transformer, find_arm
        >>> model = Transformer(find_arm("pre-rms"), depth=2, width=16, heads=2, context=8)
        >>> model(torch.zeros(1, 8, dtype=torch.long)).shape
        torch.Size([1, 8, 256])

    Source: Vaswani et al. 2017 (the model, Post-LN); Xiong et al. 2020 (Pre-LN, initialization).
    """

    def __init__(
        self, arm: Arm, *, depth: int, width: int, heads: int, context: int, seed: int = 0, vocabulary: int = BYTES
    ) -> None:
        super().__init__()
        if width % heads:
            raise StudyError(f"width {width} is not a multiple of heads {heads}; choose a width divisible by heads")
        self.arm = arm
        self.bytes = nn.Embedding(vocabulary, width)  # or tokens: its first values are drawn by this name
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, arm, number=number, depth=depth) for number in range(1, depth + 1)
        )
        self.final_norm = NORMS[arm.norm](width, arm) if PLACEMENTS[arm.placement].final else None
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.initialize(seed)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, trace: dict[str, Tensor] | None = None) -> Tensor:
        """Return the logits (b, t, vocabulary) of the token after each position.

        Args:
            tokens: their ids (b, t).
            mask: (b, t), True where valid; padding stands on the right, where causal attention never looks from a
                valid position, so only BatchNorm needs it.
            trace: when given, filled as `trace` describes.
        """
        x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]  # (b, t, w)
        for layer, block in enumerate(self.blocks):
            steps: list[Tensor] = []
            previous, x = x, block(x, mask, steps)
            if trace is not None:
                trace[f"blocks.{layer}.x"] = previous
                numbered = {f"blocks.{layer}.x_{self.step_name}_{i}": y for i, y in enumerate(steps[:-1], start=1)}
                trace.update(numbered)
        if trace is not None:
            trace["x"] = x
        if self.final_norm is not None:
            x = normalized(self.final_norm, x, mask)
            if trace is not None:
                trace[f"x_{self.step_name}_final"] = x
        return self.head(x)

    @property
    def step_name(self) -> str:
        """The placement as part of a name: ``pre``, ``post``, ``peri``, ``output_only``, ``none``."""
        return self.arm.placement.replace("-", "_")

    def trace(self, tokens: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return every intermediate of a forward pass by the names of Xiong et al. 2020, table 1.

        ``blocks.<l>.x`` is the input of block l; ``blocks.<l>.x_pre_1`` ... ``x_pre_5`` (or ``x_post_1`` ...) are the
        results in the order computed, of which the last one is the next block's input; ``x`` leaves the last block and
        ``x_pre_final`` is its final norm. In Pre-LN: 1 norm, 2 attention, 3 sum, 4 norm, 5 feed-forward. In Post-LN:
        1 attention, 2 sum, 3 norm, 4 feed-forward, 5 sum. Other placements number their own results the same way.

        Args:
            tokens: their ids (b, t).
            mask: (b, t), True where valid.
        """
        steps: dict[str, Tensor] = {}
        self(tokens, mask, steps)
        return steps

    def initialize(self, seed: int) -> None:
        """Draw every parameter of the linear maps and embeddings anew from the seed."""
        deepnorm_gain = (8 * len(self.blocks)) ** -0.25 if PLACEMENTS[self.arm.placement].deepnorm else 1.0
        for name, module in self.named_modules():
            generator = torch.Generator().manual_seed(derive_seed(seed, name))
            if isinstance(module, nn.Linear):
                gain = deepnorm_gain if name.rpartition(".")[2] in ON_THE_WAY else 1.0
                nn.init.xavier_normal_(module.weight, gain, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=math.sqrt(0.5), generator=generator)

    def norms(self) -> dict[str, nn.Module]:
        """Return the norm modules by name, in the order of the forward pass, QK-norms included."""
        last = ("before", "after", "after_sum", "query_norm", "key_norm", "final_norm")
        return {name: module for name, module in self.named_modules() if name.rpartition(".")[2] in last}


def normalized(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a norm; only BatchNorm's statistics cross positions, so only it is told which ones are padding."""
    return norm(x, mask) if isinstance(norm, TokenBatchNorm) else norm(x)


def scaled(x: Tensor, gain: float) -> Tensor:
    """Return x times a gain; without one, x itself: a product costs time even where it changes nothing."""
    return x if gain == 1.0 else gain * x


def next_token_loss(model: Callable[..., Tensor], windows: Tensor) -> Tensor:
    """Return the mean cross-entropy of the token after each position, in nats; windows are (b, t + 1)."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def derive_seed(seed: int, *role: object) -> int:
    """Return a 63-bit seed for one use of a study's seed: independent streams, the same on every machine."""
    digest = hashlib.sha256(repr((seed, *role)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
