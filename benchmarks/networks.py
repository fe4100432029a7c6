"""Small whole models, written once for whoever makes their norms: `Norms`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

import evenkeel as ek

EPS = 1e-5
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU}


class HuggingFaceRMSNorm(nn.Module):
    """The RMSNorm of transformers' Llama: rounded before the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Sum(nn.Module):
    """An addition to the residual stream, then a norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return self.norm(residual), residual


@dataclass(frozen=True)
class Norms:
    """What makes the norms of a model.

    Attributes:
        modules: by kind, what makes a norm of a width; a kind that is not there is an identity.
        add: what makes a norm that adds first, by kind, where one module does both.
        fuses: whether the norms of channels apply the activation.
    """

    modules: dict[str, Any]
    add: dict[str, Any] | None = None
    fuses: bool = False

    def norm(self, kind: str, width: int, **options: Any) -> nn.Module:
        return self.modules[kind](width, eps=EPS, **options) if kind in self.modules else nn.Identity()

    def norm_of_sum(self, kind: str, width: int) -> nn.Module:
        return self.add[kind](width, eps=EPS) if self.add else Sum(self.norm(kind, width))

    def active(self, kind: str, width: int, activation: str) -> nn.Module:
        if self.fuses:
            return self.norm(kind, width, activation=activation)
        return nn.Sequential(self.norm(kind, width), ACTIVATIONS[activation]())


def norms_of(modules: Any, **options: Any) -> dict[str, Any]:
    """Return the norms of torch.nn or evenkeel.nn by kind; the options are those of the norms of rows."""
    return {
        "rms": lambda width, eps: modules.RMSNorm(width, eps=eps, **options),
        "layer": lambda width, eps: modules.LayerNorm(width, eps=eps, **options),
        "batch": lambda width, **more: modules.BatchNorm2d(width, **more),
        "group": lambda width, **more: modules.GroupNorm(min(32, width // 4), width, **more),
    }


class Attention(nn.Module):
    """Attention over a whole sequence: causal with rotary positions, or neither."""

    turns: Tensor

    def __init__(self, width: int, heads: int, context: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inputs, self.output = nn.Linear(width, 3 * width, not causal), nn.Linear(width, width, not causal)
        angles = torch.arange(context)[:, None] / 10000 ** torch.linspace(0, 1, width // heads // 2)
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())).repeat(1, 1, 2))

    def rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.turns[0] + torch.cat((-second, first), -1) * self.turns[1]

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inputs(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.causal:
            query, key = self.rotated(query), self.rotated(key)
        x = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(x.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU, or two layers with a GELU."""

    def __init__(self, width: int, gated: bool) -> None:
        super().__init__()
        self.gated, inner = gated, width * 8 // 3 if gated else 4 * width
        self.up, self.down = nn.Linear(width, inner * (1 + gated), not gated), nn.Linear(inner, width, not gated)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if not self.gated:
            return self.down(gelu(x))
        gate, x = x.chunk(2, -1)
        return self.down(silu(gate) * x)


class TransformerBlock(nn.Module):
    """Each half ends with the norm that the next one begins with (pre-norm), or with its own (post-norm)."""

    def __init__(self, norms: Norms, kind: str, width: int, context: int, llama: bool) -> None:
        super().__init__()
        self.pre = llama
        self.attention = Attention(width, width // 64, context, causal=llama)
        self.middle = norms.norm_of_sum(kind, width)
        self.feed = FeedForward(width, gated=llama)
        self.end = norms.norm_of_sum(kind, width)

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        x, stream = self.middle(self.attention(x), stream if self.pre else x)
        return self.end(self.feed(x), stream if self.pre else x)


class Transformer(nn.Module):
    """Llama's blocks (RMSNorm before, rotary positions, SwiGLU) or BERT's (LayerNorm after, GELU)."""

    def __init__(self, norms: Norms, *, llama: bool, width: int = 768, depth: int = 6, context: int = 128) -> None:
        super().__init__()
        kind = "rms" if llama else "layer"
        self.embedding = nn.Embedding(1000, width)
        self.first = norms.norm(kind, width)
        self.blocks = nn.ModuleList(TransformerBlock(norms, kind, width, context, llama) for _ in range(depth))
        self.head = nn.Linear(width, 1000, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.embedding(tokens)
        x = self.first(stream)
        for block in self.blocks:
            x, stream = block(x, stream)
        return self.head(x)


class ResidualBlock(nn.Module):
    """ResNet's: two 3x3 convolutions with BatchNorm around a shortcut; the first may halve the image."""

    def __init__(self, norms: Norms, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            norms.active("batch", out, "relu"),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            norms.norm("batch", out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, 2, bias=False), norms.norm("batch", out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.body(x))


def resnet(norms: Norms) -> nn.Module:
    """ResNet's first stages: the stem and a block of 64, 128 and 256 channels."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        norms.active("batch", 64, "relu"),
        *(ResidualBlock(norms, channels, out) for channels, out in ((64, 64), (64, 128), (128, 256))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class OverChannels(nn.Module):
    """A LayerNorm over the channels of each pixel."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise 7x7 convolution, LayerNorm, two linear layers, a layer scale and a shortcut."""

    def __init__(self, norms: Norms, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = norms.norm("layer", channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext(norms: Norms) -> nn.Module:
    """ConvNeXt-T's first two stages, each of three blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 4, 4),
        OverChannels(norms.norm("layer", 96)),
        *(ConvNeXtBlock(norms, 96) for _ in range(3)),
        OverChannels(norms.norm("layer", 96)),
        nn.Conv2d(96, 192, 2, 2),
        *(ConvNeXtBlock(norms, 192) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        norms.norm("layer", 192),
        nn.Linear(192, 10),
    )


class DiffusionBlock(nn.Module):
    """GroupNorm, SiLU and a convolution, twice, around a shortcut."""

    def __init__(self, norms: Norms, channels: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            norms.active("group", channels, "silu"),
            nn.Conv2d(channels, out, 3, padding=1),
            norms.active("group", out, "silu"),
            nn.Conv2d(out, out, 3, padding=1),
        )
        self.shortcut = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.body(x)


class UNet(nn.Module):
    """Two resolutions of a diffusion model's U-Net."""

    def __init__(self, norms: Norms, channels: int = 64) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, channels, 3, padding=1)
        self.fine = DiffusionBlock(norms, channels, channels)
        self.halve = nn.Conv2d(channels, 2 * channels, 3, 2, padding=1)
        self.coarse = nn.Sequential(*(DiffusionBlock(norms, 2 * channels, 2 * channels) for _ in range(2)))
        # no interpolation: Inductor of torch 2.13 gets its bfloat16 gradient wrong here, without any norm too
        self.enlarge = nn.ConvTranspose2d(2 * channels, 2 * channels, 2, 2)
        self.join = DiffusionBlock(norms, 3 * channels, channels)
        self.end = nn.Sequential(norms.active("group", channels, "silu"), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.start(x))
        coarse = self.enlarge(self.coarse(self.halve(fine)))
        return self.end(self.join(torch.cat((fine, coarse), 1)))


OWNERS = {
    "torch": Norms(norms_of(nn)),
    "evenkeel": Norms(norms_of(ek.nn)),
    "fused": Norms(norms_of(ek.nn), add={"rms": ek.nn.AddRMSNorm, "layer": ek.nn.AddLayerNorm}, fuses=True),
    "lean": Norms(norms_of(ek.nn, memory_efficient=True)),
    "Hugging Face": Norms({"rms": HuggingFaceRMSNorm}),
    "no norms": Norms({}),
}
