"""Whole models before and after `ek.convert`: step and inference of both in turn, and the ratio with its interval.

Each is converted and proved first; what was changed stands beside its name. Folded models are in evaluation in both
measurements, since what is folded is fixed.
"""

import copy
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import evenkeel as ek
from benchmarks.model import CHANNELS_LAST, FEWEST, TORCH, inference
from benchmarks.networks import OWNERS, Norms, Transformer, UNet, resnet
from benchmarks.timing import OURS, Call, Result, median_interval, times


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A model as somebody has it, and what is asked of `ek.convert.plan`.

    Attributes:
        name: of the model and of what is done.
        build: makes it.
        shape: of its input: tokens if it has two axes, or images.
        actions: of the plan.
        frozen: whether it is in evaluation when it is trained too.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    actions: tuple[str, ...]
    frozen: bool = False

    def measure(self, suite: str, threads: int, repeats: int) -> Iterator[Result]:
        """Yield the training step and inference."""
        torch.manual_seed(0)
        before = self.build().eval()
        x = self.input()
        after = copy.deepcopy(before)
        certificate = ek.convert.plan(after, x, actions=self.actions).apply(verify=x)
        done = sum(entry.action != "leave" for entry in certificate.entries)
        models = {TORCH: before, OURS: after}
        for name, work in (("step", self.step), ("inference", inference)):
            found = times({owner: work(model, x) for owner, model in models.items()}, max(repeats, FEWEST))
            ratio = median_interval([a / b for a, b in zip(found[OURS], found[TORCH], strict=True)])
            yield Result(
                suite=suite,
                name=f"{self.name} ({done}), {name}",
                threads=threads,
                seconds={owner: statistics.median(values) for owner, values in found.items()},
                limits={},
                ratios={OURS: ratio},
            )

    def input(self) -> Tensor:
        """Return tokens or images."""
        if len(self.shape) == 2:
            return torch.randint(0, 1000, self.shape)
        return torch.randn(self.shape).to(memory_format=CHANNELS_LAST)

    def step(self, model: nn.Module, x: Tensor) -> Call:
        """Return a call that runs forward, backward and an SGD step."""
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
        model.train(not self.frozen)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step


# pre-norm blocks with LayerNorms in them, which is what GPT-2 has
PRE_LAYER = Norms({"rms": OWNERS["torch"].modules["layer"]})
CONVERSIONS = (
    Conversion(
        name="Llama, swap and fuse_residual_add",
        build=lambda: Transformer(OWNERS["Hugging Face"], llama=True),
        shape=(1, 128),
        actions=("fuse_residual_add", "swap"),
    ),
    Conversion(
        name="GPT-2, to_rms_norm and swap",
        build=lambda: Transformer(PRE_LAYER, llama=True),
        shape=(1, 128),
        actions=("to_rms_norm", "swap"),
    ),
    Conversion(
        name="ResNet, fold_batch_norm",
        build=lambda: resnet(OWNERS["torch"]).to(memory_format=CHANNELS_LAST),  # type: ignore[call-overload]
        shape=(4, 3, 64, 64),
        actions=("fold_batch_norm", "swap"),
        frozen=True,
    ),
    Conversion(
        name="U-Net, fuse_activation and swap",
        build=lambda: UNet(OWNERS["torch"]).to(memory_format=CHANNELS_LAST),  # type: ignore[call-overload]
        shape=(2, 3, 64, 64),
        actions=("fuse_activation", "swap"),
    ),
)


def cases() -> Iterator[Conversion]:
    """Yield the models."""
    yield from CONVERSIONS
