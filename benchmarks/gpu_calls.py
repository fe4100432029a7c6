"""What `benchmarks.gpu` checks of calls beyond their values, and the training step that it times.

Views have the bits of contiguous tensors, running statistics move as their definition says; on a GPU, calls in a CUDA
graph, in compiled code without a graph break, on another device and on more than 2^31 elements have the bits of plain
ones.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import evenkeel as ek
from benchmarks.gpu_record import LeftOutError
from benchmarks.networks import HuggingFaceRMSNorm, Norms, Transformer, norms_of
from evenkeel import functional as F
from evenkeel.testing import ulp_error

Call = Callable[..., Tensor]
SHAPE = (8, 64, 16, 16)  # of what is captured and compiled: rows of 16 features, or maps
HUGE = {"layer_norm": (70_000, 32_768), "instance_norm": (9, 256, 1000, 1000), "batch_norm": (9, 256, 1000, 1000)}
HELD = 3  # tensors of x's size, that a huge call holds: x, which is dy too, y and dx
ROOT = Path(__file__).parents[1]
SANITIZER, SANITIZED = "compute-sanitizer", 240.0  # and how many seconds it may take
MARK = "========="  # before what the sanitizer says, and what of that is no error
HARMLESS = ("COMPUTE-SANITIZER", "ERROR SUMMARY: 0 errors", "Target application returned an error")
UNFINISHED = 3  # the status of a check that was not over in its time


def trained(call: Call, x: Tensor, dy: Tensor, parameters: list[Tensor], **options: Any) -> list[Tensor]:
    """y, dx and the gradients of the parameters that there are."""
    leaves = [t.detach().requires_grad_() for t in (x, *parameters)]
    y = call(*leaves, **options)
    return [y.detach(), *(g for g in torch.autograd.grad(y, leaves, dy, allow_unused=True) if g is not None)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether all bits are."""
    return all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def view_problems(device: str, backend: str) -> Iterator[str]:
    """Queries and keys of a fused projection, and a y to go back from."""
    whole, dy = torch.randn(6, 33, 3, 128, device=device), torch.randn(6, 33, 128, device=device)
    parameters = [torch.rand(128, device=device) + 0.5, torch.randn(128, device=device)]
    norm = partial(F.layer_norm, normalized_shape=(128,), backend=backend)

    def call(x: Tensor, w: Tensor, b: Tensor, **options: Any) -> Tensor:
        return norm(x, weight=w, bias=b, **options)

    view = whole[:, :, 1]
    plain = trained(call, view.contiguous(), dy, parameters)
    if not same(trained(call, view, dy, parameters), plain):
        yield "a view of every third row has other bits than a copy"
    kept = trained(call, view, dy, parameters, memory_efficient=True)
    if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(kept, plain, strict=True)):
        yield "memory_efficient gives other gradients"


def running_problems(device: str, backend: str) -> Iterator[str]:
    """Running statistics with a number and with the plain average, with a mask and without."""
    x = 3 + torch.randn(7, 40, 9, 5, device=device)
    mask = torch.rand(7, 9, 5, device=device) < 0.6
    for momentum in (0.1, None):
        for valid in (None, mask):
            norm = ek.nn.BatchNorm2d(40, momentum=momentum, backend=backend, device=device)
            exact = ek.nn.BatchNorm2d(40, momentum=momentum, backend="reference", device=device).double()
            for scale in (1.0, 2.0, 0.5):
                norm(x * scale, valid)
                exact((x * scale).double(), valid)
            for name in ("running_mean", "running_var"):
                error = ulp_error(getattr(norm, name), getattr(exact, name))
                if not error <= 6.0:  # three updates; torch's operators round each four times
                    yield f"momentum {momentum}, mask {valid is not None}: {name} is {error:.2f} ulps off"
            if norm.num_batches_tracked != 3:
                yield f"momentum {momentum}: {norm.num_batches_tracked} batches counted, not 3"


def sample(device: str = "cuda") -> tuple[Tensor, Tensor, list[Tensor]]:
    """x, dy and parameters of 64 channels, which rows have as features."""
    x, dy = (torch.randn(SHAPE, device=device) for _ in range(2))
    return x, dy, [torch.randn(64, device=device) for _ in range(2)]


def rows_last(call: Call) -> Call:
    """A row norm of a map's channels."""
    return lambda x, *more, **options: call(x.flatten(2).transpose(1, 2).contiguous(), *more, **options).view(SHAPE)


def table_calls(backend: str) -> Iterator[tuple[str, Callable[[Tensor], list[Tensor]], Tensor]]:
    """What is computed of tables and pictures, and of which."""
    table, pictures = torch.randn(3000, 24, device="cuda"), torch.randint(0, 256, (4, 33, 31, 3), device="cuda").byte()
    shift, scale = (torch.randn(24, device="cuda", dtype=torch.float64) for _ in range(2))
    numbers = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    yield "column_moments", lambda x: [*F.column_moments(x, backend=backend)], table
    yield "column_affine", lambda x: [F.column_affine(x, shift, scale, clip=(-3, 3), backend=backend)], table
    yield "image_normalize", lambda x: [F.image_normalize(x, *numbers, layout="HWC", backend=backend)], pictures
    yield "image_moments", lambda x: [*F.image_moments(x, layout="HWC", backend=backend)], pictures


def graph_problems(norms: Mapping[str, Call], backend: str) -> Iterator[str]:
    """Calls captured once, norms forward and backward, and replayed on other values."""
    calls = list(table_calls(backend))
    for name, call in norms.items():
        x, dy, parameters = sample()
        calls.append((name, partial(trained, call, dy=dy, parameters=parameters, backend=backend), x))
    for name, run, x in calls:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run(x)
        x.copy_(255 - x)
        graph.replay()
        if not same(captured, run(x)):
            yield f"{name}: a replayed graph has other bits"


def compiled_problems(norms: Mapping[str, Call], backend: str) -> Iterator[str]:
    """Compiled without a graph break."""
    for name, call in norms.items():
        x, dy, parameters = sample()
        whole = torch.compile(partial(call, backend=backend), fullgraph=True)
        if not same(trained(whole, x, dy, parameters), trained(call, x, dy, parameters, backend=backend)):
            yield f"{name}: compiled code has other bits"
    for name, run, x in table_calls(backend):
        if name == "column_moments" and not same(torch.compile(run, fullgraph=True)(x), run(x)):
            yield f"{name}: compiled code has other bits"


def huge_problems(backend: str) -> Iterator[str]:
    """More than 2^31 elements: the last rows or sample have the bits that they have alone."""
    needed, free = HELD * 2 * max(map(math.prod, HUGE.values())), torch.cuda.mem_get_info()[0]
    if needed > free:
        raise LeftOutError(lacking(needed, free))
    for name, shape in HUGE.items():
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        channels, last = shape[1] if len(shape) > 2 else shape[-1], slice(-1, None)
        w, b = (torch.randn(channels, device="cuda") for _ in range(2))
        if name == "layer_norm":
            call: Call = partial(F.layer_norm, normalized_shape=(channels,), weight=w, bias=b, backend=backend)
        elif name == "instance_norm":
            call = partial(F.instance_norm, weight=w, bias=b, backend=backend)
        else:
            mean, variance = torch.zeros_like(w), torch.ones_like(w)
            call = partial(F.batch_norm, running_mean=mean, running_var=variance, weight=w, bias=b, backend=backend)
        whole, alone = (trained(call, part, part, []) for part in (x, x[last]))
        if not same([t[last] for t in whole], alone):
            yield f"{name} of {x.numel()} elements: the last have other bits than alone"
        del x, whole
        torch.cuda.empty_cache()


def lacking(needed: int, free: int) -> str:
    """Why something is left out for lack of memory."""
    return f"takes {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} are free"


def device_problems(norms: Mapping[str, Call], backend: str) -> Iterator[str]:
    """The second GPU, while the first is current."""
    for name, call in norms.items():
        x, dy, parameters = sample("cuda:0")
        there = [t.to("cuda:1") for t in (x, dy, *parameters)]
        first = trained(call, x, dy, parameters, backend=backend)
        second = trained(call, there[0], there[1], there[2:], backend=backend)
        if not same(first, [t.to("cuda:0") for t in second]):
            yield f"{name}: the second GPU has other bits"


def output_within(seconds: float, command: list[str]) -> tuple[int | None, str]:
    """The status of a command, None if it was ended after these seconds, and what it printed."""
    out = subprocess.PIPE
    # a session of its own: all that it starts ends with it, and would hold the pipe open otherwise
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    except BaseException:  # Ctrl-C does not reach another session
        os.killpg(process.pid, signal.SIGKILL)
        raise


def sanitizer_problems(seconds: float = SANITIZED) -> Iterator[str]:
    """What the sanitizer finds in a quick check, where it is installed; it need not end, what it has seen counts."""
    if shutil.which(SANITIZER) is None:
        raise LeftOutError(f"{SANITIZER} is not installed")
    command = [SANITIZER, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    # a part that has begun may take long: none is begun in the last quarter
    command += [sys.executable, "-m", "benchmarks.gpu", "--check", "--quick", "--seconds", str(0.75 * seconds)]
    status, text = output_within(seconds, command)
    lines = text.strip().splitlines() or ["it printed nothing"]
    told = [line.removeprefix(MARK).strip() for line in lines if line.startswith(MARK) and not line.endswith(HARMLESS)]
    if status is None and not told and not any(line.endswith(": green") for line in lines):
        raise LeftOutError(f"no part was over in {seconds:.0f} s under {SANITIZER}")
    if status not in (None, 0, UNFINISHED) or told:
        said = told[:3] or [line for line in lines if not line.startswith(MARK)][-1:]
        yield f"{SANITIZER}: {' '.join(said)[:200]}"


def parts(
    rows: Mapping[str, Call],
    maps: Mapping[str, Call],
    device: str,
    backend: str,
    quick: bool,
    sanitized: float = SANITIZED,
) -> dict[str, Callable[[], list[str]]]:
    """What is checked of calls, one after the other: name -> a function that returns what is wrong."""
    norms = {name: rows_last(call) for name, call in rows.items()} | dict(maps)
    found: dict[str, Callable[[], Iterator[str]]] = {
        "views": partial(view_problems, device, backend),
        "running statistics": partial(running_problems, device, backend),
    }
    if device.startswith("cuda"):
        found["graphs"] = partial(graph_problems, norms, backend)
        if torch.cuda.device_count() > 1:
            found["second GPU"] = partial(device_problems, norms, backend)
        if not quick:
            found["compiled"] = partial(compiled_problems, norms, backend)
            found["more than 2^31"] = partial(huge_problems, backend)
            found["sanitizer"] = partial(sanitizer_problems, sanitized)
    return {name: partial(listed, part) for name, part in found.items()}


def listed(part: Callable[[], Iterator[str]]) -> list[str]:
    """What a part finds."""
    return list(part())


# what makes the norms of a Llama-like model: transformers' own, torch's, and ours
OWNERS = {
    "Hugging Face": Norms({"rms": HuggingFaceRMSNorm}),
    "torch": Norms(norms_of(torch.nn)),
    "evenkeel": Norms(norms_of(ek.nn, cast="early", backend="triton")),
}


def training_steps(device: str = "cuda", width: int = 2048, depth: int = 8) -> Iterator[tuple[str, Callable[[], None]]]:
    """A bf16 training step of a Llama-like model with each owner's norms."""
    tokens = torch.randint(0, 1000, (4, 2048 if width > 64 else 8), device=device)
    for owner, norms in OWNERS.items():
        torch.manual_seed(0)
        model = Transformer(norms, llama=True, width=width, depth=depth, context=tokens.shape[1])
        model.to(device, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(model: Transformer = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            logits = model(tokens).flatten(0, 1).float()
            torch.nn.functional.cross_entropy(logits[:-1], tokens.flatten()[1:]).backward()
            optimizer.step()
            optimizer.zero_grad()

        yield owner, step
