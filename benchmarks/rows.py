"""The last-axis norms: forward, with backward, 16 bits, fused addition, one row, awkward shapes.

"out=" and "reused" write where they wrote before; "allocated" takes new memory in each call, as a model does. The copy
always writes where it wrote before.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

import evenkeel as ek
from benchmarks.timing import Call, Case, repeated

Norm = Callable[..., Tensor]
NORMS: dict[str, tuple[Norm, Norm]] = {
    "LayerNorm": (ek.functional.layer_norm, torch.nn.functional.layer_norm),
    "RMSNorm": (ek.functional.rms_norm, torch.nn.functional.rms_norm),
}
SMALL, LARGE = (4096, 768), (8192, 4096)
# the largest share of each contender's time, by norm; 4096x768 stays in cache, 8192x4096 does not
FORWARD = {
    "LayerNorm": {"torch": 0.55, "torch.compile": 0.6},
    "RMSNorm": {"torch": 0.35, "torch.compile": 0.6},
}
BOTH_PASSES = {"LayerNorm": {"torch": 0.6}, "RMSNorm": {"torch": 0.06, "torch.compile": 0.3}}
HALF_FORWARD = {"LayerNorm": {"torch": 0.35}, "RMSNorm": {"torch": 0.07}}
HALF_BOTH_PASSES = {"LayerNorm": {}, "RMSNorm": {"torch": 0.03}}
ONE_ROW_CALLS = 1000


def affine_of(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Return a weight, and for LayerNorm a bias."""
    return (torch.ones(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))[: 2 if name == "LayerNorm" else 1]


def forward(norm: Norm, x: Tensor, affine: tuple[Tensor, ...], **options: Tensor) -> Call:
    """Return a call that runs a norm without gradients over the axes of its weight."""
    shape = tuple(affine[0].shape)

    def call() -> None:
        with torch.no_grad():
            norm(x, shape, *affine, **options)

    return call


def both_passes(norm: Norm, x: Tensor, affine: tuple[Tensor, ...], gradient: Tensor) -> Call:
    """Return a call that runs a norm forward and backward."""
    shape = tuple(affine[0].shape)
    leaves = tuple(t.clone().requires_grad_() for t in (x, *affine))
    return lambda: torch.autograd.grad(norm(leaves[0], shape, *leaves[1:]), leaves, gradient)


def copy_of(x: Tensor) -> dict[str, Call]:
    """Return the yardstick: a plain copy to the same place each time."""
    target = torch.empty_like(x)
    return {"copy": lambda: target.copy_(x)}


def owners(name: str, *, compiled: bool = True) -> dict[str, Norm]:
    """Return the contenders."""
    ours, theirs = NORMS[name]
    others = {"torch.compile": torch.compile(theirs, dynamic=False)} if compiled else {}
    return {"evenkeel": ours, "torch": theirs, **others}


def float32_cases(shape: tuple[int, int]) -> Iterator[Case]:
    """Yield forward with out= and allocated, and both passes."""
    x = torch.randn(shape)
    gradient, title = torch.randn_like(x), f"float32, {shape[0]}x{shape[1]}"
    for name in NORMS:
        affine = affine_of(name, shape[1:])
        calls = {by: forward(f, x, affine) for by, f in owners(name).items()}
        reused = {**calls, "evenkeel": forward(NORMS[name][0], x, affine, out=torch.empty_like(x))}
        in_cache = shape == SMALL
        limits: Mapping[str, float] = FORWARD[name] if in_cache else {"copy": 1.6}
        yield Case(
            name=f"{name} forward, out=, {title}", calls=copy_of(x) | reused, limits={"copy": 1.3 if in_cache else 1.08}
        )
        yield Case(name=f"{name} forward, allocated, {title}", calls=copy_of(x) | calls, limits=limits)
        yield Case(
            name=f"{name} forward + backward, allocated, {title}",
            calls=copy_of(x) | {by: both_passes(f, x, affine, gradient) for by, f in owners(name).items()},
            limits=BOTH_PASSES[name],
        )


def half_cases() -> Iterator[Case]:
    """Yield bfloat16 and float16."""
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(SMALL).to(dtype)
        gradient, title = torch.randn_like(x), f"{str(dtype)[6:]}, {SMALL[0]}x{SMALL[1]}"
        for name in NORMS:
            affine = affine_of(name, SMALL[1:], dtype)
            contenders = owners(name, compiled=False)
            yield Case(
                name=f"{name} forward, allocated, {title}",
                calls=copy_of(x) | {by: forward(f, x, affine) for by, f in contenders.items()},
                limits=HALF_FORWARD[name],
            )
            yield Case(
                name=f"{name} forward + backward, allocated, {title}",
                calls=copy_of(x) | {by: both_passes(f, x, affine, gradient) for by, f in contenders.items()},
                limits=HALF_BOTH_PASSES[name] if dtype == torch.bfloat16 else {},
            )


def add_cases() -> Iterator[Case]:
    """Yield the fused residual addition against torch's two steps."""
    x, residual, weight = torch.randn(SMALL), torch.randn(SMALL), torch.ones(SMALL[1])
    gradients = torch.randn(SMALL), torch.randn(SMALL)

    def eager(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = a + b
        return torch.nn.functional.rms_norm(total, w.shape, w), total

    def fused(a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return ek.functional.add_rms_norm(a, b, w.shape, w)

    def plain(function: Callable[..., tuple[Tensor, Tensor]]) -> Call:
        def call() -> None:
            with torch.no_grad():
                function(x, residual, weight)

        return call

    def trained(function: Callable[..., tuple[Tensor, Tensor]]) -> Call:
        leaves = [t.clone().requires_grad_() for t in (x, residual, weight)]
        return lambda: torch.autograd.grad(function(*leaves), leaves, gradients)

    contenders = {"evenkeel": fused, "torch": eager, "torch.compile": torch.compile(eager, dynamic=False)}
    title = f"allocated, float32, {SMALL[0]}x{SMALL[1]}"
    for kind, run, limits in (("forward", plain, {"torch": 0.3}), ("forward + backward", trained, {})):
        calls = copy_of(x) | {by: run(f) for by, f in contenders.items()}
        yield Case(name=f"add + RMSNorm {kind}, {title}", calls=calls, limits=limits)


def one_row_cases() -> Iterator[Case]:
    """Yield a decoding step's norm: one row, in inference mode."""
    features = 4096
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(1, features).to(dtype)
        for name in NORMS:
            affine = affine_of(name, (features,), dtype)
            modules = {"evenkeel": getattr(ek.nn, name), "torch": getattr(torch.nn, name)}
            functions = {by: one_row(f, x, (features,), *affine) for by, f in owners(name, compiled=False).items()}
            calls = {by: one_row(module(features, dtype=dtype), x) for by, module in modules.items()}
            title = f"one row of {features}, inference mode, {str(dtype)[6:]}"
            yield Case(name=f"{name} function, {title}", calls=functions, limits={"torch": 1.0})
            yield Case(name=f"{name} module, {title}", calls=calls, limits={"torch": 0.9})


def one_row(function: Callable[..., Tensor], *arguments: object) -> Call:
    """Return a call that runs a function many times in inference mode."""
    many = repeated(lambda: function(*arguments), ONE_ROW_CALLS)

    def call() -> None:
        with torch.inference_mode():
            many()

    return call


def awkward_cases() -> Iterator[Case]:
    """Yield odd numbers of features, few rows, slices and heads: never slower than torch."""
    fused = torch.randn(64, 128, 3 * 768)
    heads = torch.randn(64, 128, 12, 64)
    inputs: dict[str, tuple[Tensor, int]] = {
        "4096x1023": (torch.randn(4096, 1023), 1),
        "400000x7": (torch.randn(400_000, 7), 1),
        "64x65536": (torch.randn(64, 65_536), 1),
        "300x768": (torch.randn(300, 768), 1),
        "64x128x768 slices": (fused[..., 768:1536], 1),
        "64x128x12x64 heads": (heads, 1),
        "64x128x12x64 with a weight for each head": (heads, 2),
    }
    for shape, (x, axes) in inputs.items():
        for name in NORMS:
            affine = affine_of(name, tuple(x.shape[-axes:]))
            contenders = owners(name, compiled=False)
            yield Case(
                name=f"{name} forward, allocated, float32, {shape}",
                calls=copy_of(x) | {by: forward(f, x, affine) for by, f in contenders.items()},
                limits={"torch": 1.0},
            )
            yield Case(
                name=f"{name} forward + backward, allocated, float32, {shape}",
                calls=copy_of(x)
                | {by: both_passes(f, x, affine, torch.randn(x.shape)) for by, f in contenders.items()},
                limits={"torch": 1.0},
            )


def cases() -> Iterator[Case]:
    """Yield every case."""
    yield from float32_cases(SMALL)
    yield from half_cases()
    yield from add_cases()
    yield from one_row_cases()
    yield from awkward_cases()
    yield from float32_cases(LARGE)
