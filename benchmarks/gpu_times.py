"""What `benchmarks.gpu` times: every contender on every shape, beside a copy of as many bytes."""

import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import gpu_calls, gpu_tables
from benchmarks.gpu_record import LeftOutError, first_line, is_broken
from benchmarks.timing import OURS
from evenkeel import functional as F
from evenkeel.cli.interrupts import find_interrupt

Record = dict[str, Any]
Call = Callable[[Tensor], Tensor]

# the most telling first: a run may be over before all are done
ROWS = (32768, 4096, 512, 1)
FEATURES = (4096, 8192, 1024, 16384, 65536, 262144, 256, 32768, 131072)
ROW_NORMS = ("layer_norm", "rms_norm")
DTYPES = (torch.bfloat16, torch.float32)
# (batch, channels, height, width) of a ResNet 50 and of a U-Net that draws pictures
RESNET = ((64, 64, 112, 112), (64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (64, 2048, 7, 7))
UNET = ((8, 320, 64, 64), (8, 640, 32, 32), (8, 1280, 16, 16), (8, 2560, 8, 8))
FLUSHED = 2**29  # bytes: more than the caches of any GPU, which are 256 MB on an MI300X
CYCLES = 1_000_000  # that the GPU waits, half a millisecond, while Python starts what is timed
MOST_CYCLES = 64 * CYCLES  # where Python takes longer


class Case(NamedTuple):
    """What is timed together: the contenders on one shape."""

    norm: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        shape, dtype = "x".join(map(str, self.shape)), str(self.dtype or "").removeprefix("torch.")
        return " ".join(filter(None, (self.norm, shape, dtype)))

    def fields(self) -> Record:
        """What identifies it in its record."""
        return {"norm": self.norm} | ({"shape": self.shape, "dtype": str(self.dtype)} if self.dtype else {})


class Contender(NamedTuple):
    """Who is timed: y from x, and the parameters whose gradients are asked for."""

    name: str
    call: Call
    parameters: tuple[Tensor, ...] = ()


def cases() -> list[Case]:
    """All that is timed, in its order."""
    rows = [(norm, shape) for shape in itertools.product(ROWS, FEATURES) for norm in ROW_NORMS]
    maps = [("batch_norm", shape) for shape in RESNET] + [("group_norm", shape) for shape in UNET]
    maps += [(f"{norm} last", shape) for norm, shape in maps]
    found = [Case("training step")]
    for dtype in DTYPES:
        found += [Case(norm, shape, dtype) for norm, shape in rows + maps]
    for shape, kind in gpu_tables.TIMED:
        found += [Case(kind, shape, dtype) for dtype in ((torch.uint8,) if kind == "pictures" else DTYPES)]
    return found


def liger_layer_norm(function: Any, w: Tensor, b: Tensor) -> Contender:
    """Liger's LayerNorm."""
    return Contender("Liger", lambda x: function.apply(x, w, b, 1e-5), (w, b))


def liger_rms_norm(function: Any, w: Tensor, b: Tensor) -> Contender:
    """Liger's RMSNorm, which is told to leave dy as it is: others are timed with it."""
    return Contender("Liger", lambda x: function.apply(x, w, 1e-6, 0.0, "llama", False), (w,))


def quack_layer_norm(function: Any, w: Tensor, b: Tensor) -> Contender:
    """quack's LayerNorm, whose weight is in float32 and which knows no bias."""
    wide = w.detach().float().requires_grad_()
    return Contender("quack", lambda x: function(x, wide, eps=1e-5), (wide,))


def quack_rms_norm(function: Any, w: Tensor, b: Tensor) -> Contender:
    """quack's RMSNorm."""
    return Contender("quack", lambda x: function(x, w, eps=1e-6), (w,))


# where the peers' functions are, if they are installed, and how they are called
ELSEWHERE: dict[str, tuple[tuple[str, str, Callable[..., Contender]], ...]] = {
    "layer_norm": (
        ("liger_kernel.ops.layer_norm", "LigerLayerNormFunction", liger_layer_norm),
        ("quack.layernorm", "layernorm", quack_layer_norm),
    ),
    "rms_norm": (
        ("liger_kernel.ops.rms_norm", "LigerRMSNormFunction", liger_rms_norm),
        ("quack", "rmsnorm", quack_rms_norm),
    ),
}


def row_contenders(name: str, w: Tensor, b: Tensor) -> Iterator[Contender]:
    """Those of a row norm: evenkeel, torch eager and compiled, and what else can be imported."""
    f, shape = torch.nn.functional, tuple(w.shape)
    if name == "rms_norm":
        yield from torch_contenders(
            lambda x: F.rms_norm(x, shape, w, eps=1e-6, backend="triton"), lambda x: f.rms_norm(x, shape, w, 1e-6), w
        )
    else:
        yield from torch_contenders(
            lambda x: F.layer_norm(x, shape, w, b, backend="triton"), lambda x: f.layer_norm(x, shape, w, b), w, b
        )
    for module, function, make in ELSEWHERE[name]:
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception:  # a peer that cannot be imported here, for whatever reason, is not there
            continue
        yield make(found, w, b)


def channel_contenders(name: str, w: Tensor, b: Tensor) -> Iterator[Contender]:
    """Those of BatchNorm with ReLU in training, or of GroupNorm with SiLU."""
    f = torch.nn.functional
    if name == "batch_norm":
        mean, variance = torch.zeros_like(w).detach(), torch.ones_like(w).detach()
        return torch_contenders(
            lambda x: F.batch_norm(x, mean, variance, w, b, True, activation="relu", backend="triton"),
            lambda x: f.relu(f.batch_norm(x, mean, variance, w, b, True)), w, b,
        )  # fmt: skip
    return torch_contenders(
        lambda x: F.group_norm(x, 32, w, b, activation="silu", backend="triton"),
        lambda x: f.silu(f.group_norm(x, 32, w, b)), w, b,
    )  # fmt: skip


def torch_contenders(mine: Call, eager: Call, *parameters: Tensor) -> Iterator[Contender]:
    """evenkeel, torch eager and torch compiled."""
    yield Contender("evenkeel", mine, parameters)
    yield Contender("torch", eager, parameters)
    yield Contender("torch.compile", torch.compile(eager, dynamic=False), parameters)


def on_device_seconds(call: Callable[[], object], repeats: int = 30, most_cycles: int = MOST_CYCLES) -> float:
    """The median time of a call between two CUDA events.

    Before each the GPU waits until Python has started everything, and its caches are filled with something else, which
    is read: what is written would have to leave them while the call is timed.
    """
    other = torch.zeros(FLUSHED // 4, dtype=torch.int32, device="cuda")
    for _ in range(3):
        call()
    cycles = CYCLES
    while True:
        seconds, late = event_seconds(call, other, repeats, cycles)
        if late <= repeats // 4 or cycles >= most_cycles:
            return seconds
        cycles *= 4  # the GPU was ready before Python was: it waited for launches while it was timed


def event_seconds(call: Callable[[], object], other: Tensor, repeats: int, cycles: int) -> tuple[float, int]:
    """The median time between two events, and how often the GPU was at the first before all was started."""
    pairs, late = [], 0
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(cycles)
        other.amax()
        start.record()
        call()
        end.record()
        late += start.query()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in pairs) / 1e3, late


def eager_seconds(call: Callable[[], object], rounds: int = 5, repeats: int = 10) -> float:
    """The time of a call as Python sees it, without waiting for the GPU, which queues a thousand launches."""
    call()
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        taken.append((time.perf_counter() - start) / repeats)
    torch.cuda.synchronize()
    return median(taken)


@contextmanager
def noting(contender: str, found: Record) -> Iterator[None]:
    """Note what a peer cannot do, which is a result too; our own errors are raised, and what breaks the GPU."""
    try:
        yield
    except Exception as error:
        if contender == OURS or find_interrupt(error):
            raise
        if is_broken():
            raise RuntimeError(f"{contender}: {first_line(error)}") from error
        found["error"] = first_line(error)


def times_of(contender: Contender, x: Tensor, dy: Tensor, copy: float) -> Record:
    """Forward, backward and both in seconds and as shares of a copy's bandwidth, or why one could not be timed."""
    found: Record = {}
    leaf = x.detach().requires_grad_()
    leaves = (leaf, *contender.parameters)

    def both() -> object:
        return torch.autograd.grad(contender.call(leaf), leaves, dy)

    with noting(contender.name, found):
        with torch.no_grad():
            found["forward"] = on_device_seconds(partial(contender.call, x))
            found["forward share"] = copy / found["forward"]
            found["eager"] = eager_seconds(partial(contender.call, x))
        y = contender.call(leaf)
        found["backward"] = on_device_seconds(partial(torch.autograd.grad, y, leaves, dy, retain_graph=True))
        found["backward share"] = 1.5 * copy / found["backward"]
        del y
        found["both"] = on_device_seconds(both)
        found["eager both"] = eager_seconds(both)
    return found


def time_norm(case: Case) -> Record:
    """The times of a norm's contenders."""
    assert case.dtype is not None
    x = torch.randn(case.shape, device="cuda", dtype=case.dtype)
    name, _, layout = case.norm.partition(" ")
    x = x.contiguous(memory_format=torch.channels_last) if layout else x
    w, b = (torch.randn(case.shape[1], device="cuda", dtype=case.dtype).requires_grad_() for _ in range(2))
    dy = torch.randn_like(x)
    # two elements moved; the forward moves two, the backward three
    copy = on_device_seconds(partial(torch.empty_like(x).copy_, x))
    record: Record = {"copy": copy}
    torch._dynamo.reset()  # or it would give up compiling after a few shapes, and time eager code
    for contender in row_contenders(name, w, b) if name in ROW_NORMS else channel_contenders(name, w, b):
        record[contender.name] = times_of(contender, x, dy, copy)
    return record


def time_table(case: Case) -> Record:
    """The times of every contender on a table or pictures, beside that of a copy of as many bytes."""
    assert case.dtype is not None
    x = gpu_tables.sample(case.shape, case.dtype, "cuda")
    half = torch.empty(gpu_tables.moved(case.norm, x) // 2, dtype=torch.uint8, device="cuda")
    copy = on_device_seconds(partial(torch.empty_like(half).copy_, half))
    record: Record = {"copy": copy}
    torch._dynamo.reset()
    for contender, call in gpu_tables.contenders(case.norm, x):
        found = record[contender] = {}
        with noting(contender, found):
            found["forward"] = on_device_seconds(call)
            found["forward share"] = copy / found["forward"]
            found["eager"] = eager_seconds(call)
    return record


def time_training() -> Record:
    """The time of a training step with each owner's norms, one after the other."""
    record: Record = {}
    for owner, step in gpu_calls.training_steps():
        found = record[owner] = {}
        with noting(owner, found):
            found["step"] = on_device_seconds(step, most_cycles=CYCLES)  # more launches than the GPU queues
    return record


def tensors_of(case: Case) -> int:
    """How many tensors of x's size are held at once, when the hungriest contender is timed."""
    if case.norm in ROW_NORMS:
        return 4  # x, dy, y and dx
    if case.norm == "pictures":
        return 18  # of bytes: x, the copies' bytes, three steps in float32
    # tables are drawn in float32; torch keeps what is between a channel norm and its activation, and two gradients
    return 6 if any(case.norm == kind for _, kind in gpu_tables.TIMED) else 7


def time_case(case: Case) -> Record:
    """The record of a case.

    Raises:
        LeftOutError: memory lacks for it.
    """
    if case.dtype is None:
        return case.fields() | time_training()
    needed, free = (
        tensors_of(case) * math.prod(case.shape) * case.dtype.itemsize + FLUSHED,
        torch.cuda.mem_get_info()[0],
    )
    if needed > free:
        raise LeftOutError(gpu_calls.lacking(needed, free))
    is_table = any(case.norm == kind for _, kind in gpu_tables.TIMED)
    return case.fields() | (time_table(case) if is_table else time_norm(case))


def line_of(case: Case, record: Record) -> str:
    """A case's line: each contender's shares of the copy's bandwidth and microseconds of an eager call."""
    cells = [f"copy {record['copy'] * 1e6:.1f} us"] if "copy" in record else []
    for name, found in record.items():
        if not isinstance(found, dict):
            continue
        shares = " / ".join(f"{value:.2f}" for key, value in found.items() if key.endswith("share"))
        calls = " / ".join(f"{found[key] * 1e6:.0f}" for key in ("eager", "eager both") if key in found)
        step = f"{found['step'] * 1e3:.2f} ms" if "step" in found else ""
        cells.append(" ".join(filter(None, (name, shares, calls and f"({calls} us)", step, found.get("error")))))
    why = f"left out: {record['left out']}" if "left out" in record else record.get("error", "nothing was timed")
    return f"{case}: {'; '.join(cells) or why}"
