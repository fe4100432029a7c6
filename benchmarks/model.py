"""Whole models with torch's norms and with others in their place: training steps, inference, bytes for the backward.

All owners of a model's norms have the same weights and run in turn. A figure is the median of an owner's times as
shares of torch's in the same round, with a 90 % interval of that median. What a norm that cost nothing would leave is
"no norms": identities in their place. A profiler would miss what norms do to their neighbours' memory.

Where a model's tensors lie decides some percent of its time, and stays the same as long as the process runs: of two
processes that timed the same models, each found an interval that left out the other's. So parameters and buffers move
to other memory before every round.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor, nn

from benchmarks.networks import OWNERS, Norms, Transformer, UNet, convnext, resnet
from benchmarks.timing import Call, Result, median_interval, repeated, times

TORCH, WITHOUT_NORMS = "torch", "no norms"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ROWS_OWNERS, CHANNELS_OWNERS = ("torch", "evenkeel", "lean", "no norms"), ("torch", "evenkeel", "fused", "no norms")
CHANNELS_LAST = torch.channels_last
TURN = 2  # inferences in a row
FEWEST = 5  # rounds that have a 90 % interval
ROUNDS = 2  # a repeat: as many places in memory
LARGEST_GAP = 2**18  # bytes, before a tensor that moves
# A swapped model may be twice as far from the same model in float64 as torch's is: roundings in another order are
# another draw of the same size. Below a quarter of the dtype's epsilon luck decides how far torch's is. A value within
# rounding of 0 switches a ReLU's gradient: one in 5 million did in float32 and moved the gradient by 1.2e-4 of its
# length, torch's being 1e-6 off: hence the square root of epsilon there. A wrong norm errs by more than any of these.
FURTHER, FLOOR = 2.0, 0.25


def random_input(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    """Return tokens for two axes, else images."""
    return torch.randint(0, 1000, shape) if len(shape) == 2 else torch.randn(shape).to(dtype, memory_format=layout)


@dataclass(frozen=True)
class Model:
    """How a model is built for the owners of its norms, and its input: tokens if the shape has two axes or images."""

    build: Callable[[Norms], nn.Module]
    owners: tuple[str, ...]
    shape: tuple[int, ...]
    layout: torch.memory_format = torch.contiguous_format
    has_relu: bool = False

    def input(self, dtype: torch.dtype) -> Tensor:
        return random_input(self.shape, dtype, self.layout)

    def made(self, owner: str, dtype: torch.dtype) -> nn.Module:
        """Return the model with the same weights for every owner."""
        torch.manual_seed(0)
        model = self.build(OWNERS[owner])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms' weights are all 1 so far, which hides mistakes
                    parameter.add_(torch.linspace(-0.1, 0.1, len(parameter)))
        return model.to(dtype).to(memory_format=self.layout)  # type: ignore[call-overload]


MODELS = {
    "Llama": Model(
        lambda norms: Transformer(norms, llama=True),
        ("torch", "Hugging Face", "evenkeel", "fused", "lean", "no norms"),
        (1, 128),
    ),
    "BERT": Model(
        lambda norms: Transformer(norms, llama=False), ("torch", "evenkeel", "fused", "lean", "no norms"), (1, 128)
    ),
    "ResNet": Model(resnet, CHANNELS_OWNERS, (4, 3, 64, 64), has_relu=True),
    "ResNet channels-last": Model(resnet, CHANNELS_OWNERS, (4, 3, 64, 64), CHANNELS_LAST, has_relu=True),
    "ConvNeXt": Model(convnext, ROWS_OWNERS, (4, 3, 112, 112), CHANNELS_LAST),
    "U-Net": Model(UNet, CHANNELS_OWNERS, (2, 3, 64, 64)),
}


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """A model in a dtype, as it is or compiled by Inductor."""

    name: str
    model: Model
    dtype: torch.dtype
    compiled: bool

    def measure(self, suite: str, threads: int, repeats: int) -> Iterator[Result]:
        """Yield the training step, with the bytes that the forward keeps for the backward, and inference."""
        torch._dynamo.reset()
        models = {owner: self.model.made(owner, self.dtype) for owner in self.model.owners}
        if self.compiled:
            for owner, model in models.items():
                compile_apart(model, owner)
        torch.manual_seed(1)
        x = self.model.input(self.dtype)
        self.check(models, x)
        saved = {owner: saved_bytes(model, x) for owner, model in models.items()}
        for name, work in (("step", training_step), ("inference", inference)):
            calls = {owner: work(model, x) for owner, model in models.items()}
            seconds, ratios = compared(models, calls, repeats)
            yield Result(
                suite=suite,
                name=f"{self.name}, {name}",
                threads=threads,
                seconds=seconds,
                limits={},
                ratios=ratios,
                saved=saved if work is training_step else {},
            )

    def check(self, models: dict[str, nn.Module], x: Tensor) -> None:
        """Fail if a model's outputs or gradients are further from float64's than those of torch's allow."""
        exact = outcome(self.model.made(TORCH, self.dtype).double(), x.double() if x.is_floating_point() else x)
        epsilon = torch.finfo(self.dtype).eps
        allowed: dict[str, float] = {}
        for owner, model in models.items():  # torch's is the first
            if owner == WITHOUT_NORMS:
                continue
            for part, value in outcome(model, x).items():
                error = float((value.double() - exact[part]).norm() / exact[part].norm())
                floor = epsilon**0.5 if self.model.has_relu and part == "gradient" else FLOOR * epsilon
                limit = allowed.setdefault(part, FURTHER * max(error, floor))
                if not error <= limit:
                    raise AssertionError(
                        f"{self.name}: the {part} with {owner}'s norms is {error:.2g} from float64's, "
                        f"and torch's norms allow {limit:.2g}"
                    )


def compile_apart(model: nn.Module, owner: str) -> None:
    """Compile a model's blocks, alike ones once, as if no other owner's model were there.

    What is compiled of one code is tried in the order of its compilation, so that all but the first would wait.
    """
    own: dict[type[nn.Module], FunctionType] = {}
    for part in getattr(model, "blocks", [model]):
        kind = type(part)
        if kind not in own:
            whole = kind.forward
            code = whole.__code__.replace(co_name=f"forward of {owner}")
            own[kind] = FunctionType(code, whole.__globals__, whole.__name__, whole.__defaults__, whole.__closure__)
        part.forward = torch.compile(own[kind].__get__(part), dynamic=False)


def outcome(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return what a model computes, in float32 at least: outputs in both modes and the gradient of all parameters."""
    output = model.train()(x)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
    gradients = torch.autograd.grad(output, list(model.parameters()), direction)
    with torch.no_grad():
        inferred = model.eval()(x)
    gradient = torch.cat([gradient.flatten() for gradient in gradients])
    return {"training output": output.detach(), "gradient": gradient, "inference output": inferred}


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd keeps between forward and backward, each storage once, parameters not counted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    @torch.compiler.disable
    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.train()(x)
    del output
    return sum(storage.nbytes() for pointer, storage in kept.items() if pointer not in parameters)


def training_step(model: nn.Module, x: Tensor, *, frozen: bool = False) -> Call:
    """Return a call that runs forward, backward and an SGD step; so small that values stay finite without norms."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    model.train(not frozen)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def inference(model: nn.Module, x: Tensor) -> Call:
    """Return calls without gradients."""
    model.eval()
    return repeated(torch.no_grad()(lambda: model(x)), TURN)


def compared(
    models: Mapping[str, nn.Module], calls: Mapping[str, Call], repeats: int
) -> tuple[dict[str, float], dict[str, tuple[float, float, float]]]:
    """Return each owner's median time and, of all but torch's, its median share of torch's with its 90 % interval."""
    draw = random.Random(0)
    found = times(calls, max(ROUNDS * repeats, FEWEST), before=lambda: move(models, draw))
    ratios = {
        owner: median_interval([ours / theirs for ours, theirs in zip(values, found[TORCH], strict=True)])
        for owner, values in found.items()
        if owner != TORCH
    }
    return {owner: statistics.median(values) for owner, values in found.items()}, ratios


def move(models: Mapping[str, nn.Module], draw: random.Random) -> None:
    """Give the models' parameters and buffers other memory, in an order and with gaps that are drawn."""
    tensors = [tensor for model in models.values() for tensor in (*model.parameters(), *model.buffers())]
    draw.shuffle(tensors)
    gaps = []  # held until all have moved
    for tensor in tensors:
        gaps.append(torch.empty(draw.randrange(LARGEST_GAP), dtype=torch.uint8))
        tensor.data = tensor.data.clone()


def cases() -> Iterator[ModelCase]:
    """Yield the cases; compiled ones in one dtype, because compiling takes most of their time."""
    for name, model in MODELS.items():
        for dtype, compiled in (("fp32", False), ("bf16", False), ("bf16", True)):
            label = f"{name}, {dtype}, compiled" if compiled else f"{name}, {dtype}"
            yield ModelCase(name=label, model=model, dtype=DTYPES[dtype], compiled=compiled)
