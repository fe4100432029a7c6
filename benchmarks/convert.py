"""Whole models before and after `ek.convert`: step and inference of both in turn, and the ratio with its interval.

Each is converted and proved first; what was changed stands beside its name. Folded models are in evaluation in both
measurements, since what is folded is fixed.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

import evenkeel as ek
from benchmarks.model import CHANNELS_LAST, TORCH, compared, inference, random_input, training_step
from benchmarks.networks import OWNERS, Norms, Transformer, UNet, resnet
from benchmarks.timing import OURS, Result


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
        x = random_input(self.shape, torch.float32, CHANNELS_LAST)
        after = copy.deepcopy(before)
        certificate = ek.convert.plan(after, x, actions=self.actions).apply(verify=x)
        done = sum(entry.action != "leave" for entry in certificate.entries)
        models = {TORCH: before, OURS: after}
        for name, work in (("step", partial(training_step, frozen=self.frozen)), ("inference", inference)):
            calls = {owner: work(model, x) for owner, model in models.items()}
            seconds, ratios = compared(models, calls, repeats)
            yield Result(
                suite=suite,
                name=f"{self.name} ({done}), {name}",
                threads=threads,
                seconds=seconds,
                limits={},
                ratios=ratios,
            )


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
