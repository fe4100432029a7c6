"""Measure the numerics contract and write docs/numerics.md with its charts: `make numerics`.

Every figure is R = max |error| / ulp(largest |reference| of the row), in units of the last place of the output's
dtype, for ours and for torch's in the same run on the same numbers. The reference is a two-pass computation in
float64, for float64 in the processor's 80-bit numbers, on the inputs as rounded to their dtype.
"""

import datetime
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from charts import dot_chart, write_chart
from torch import Tensor

from evenkeel import functional as F
from evenkeel.cli.info import collect_info
from evenkeel.report import write_text_atomically

DOCS = Path(__file__).parent
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# one rounding of an exact result is 0.5; for float64 the contract states no limit
LIMITS = {torch.float32: 3.0, torch.bfloat16: 0.51, torch.float16: 0.51, torch.float64: float("inf")}
OWNERS = ("evenkeel", "torch")
Results = dict[str, np.ndarray]


@dataclass(frozen=True)
class Norm:
    """A norm as rows: which elements share a statistic, and which parameter belongs to each element.

    Attributes:
        shape: of the input.
        to_rows: views the input so that the last axis shares a statistic.
        parameter: the axis the parameters belong to.
        center: whether the mean is subtracted.
        call: (functions, x, weight, bias, eps) -> y.
    """

    shape: tuple[int, ...]
    to_rows: Callable[[Tensor], Tensor]
    parameter: int
    center: bool
    call: Callable[..., Tensor]


IMAGES = (8, 16, 12, 10)
NORMS = {
    "LayerNorm": Norm((64, 768), lambda t: t, -1, True, lambda f, x, w, b, e: f.layer_norm(x, x.shape[1:], w, b, e)),
    "RMSNorm": Norm((64, 768), lambda t: t, -1, False, lambda f, x, w, b, e: f.rms_norm(x, x.shape[1:], w, e)),
    "BatchNorm": Norm(
        IMAGES,
        lambda t: t.transpose(0, 1).flatten(1),
        1,
        True,
        lambda f, x, w, b, e: f.batch_norm(x, None, None, w, b, True, 0.1, e),
    ),
    "GroupNorm": Norm(
        IMAGES,
        lambda t: t.reshape(32, -1),
        1,
        True,
        lambda f, x, w, b, e: f.group_norm(x, 4, w, b, e),
    ),
    "InstanceNorm": Norm(
        IMAGES,
        lambda t: t.reshape(128, -1),
        1,
        True,
        lambda f, x, w, b, e: f.instance_norm(x, None, None, w, b, True, 0.1, e),
    ),
}
# what lies in a row, (rows, features) -> values, and eps; BatchNorm refuses eps = 0, so a tiny one stands for it
REGIMES: dict[str, tuple[Callable[[tuple[int, int]], Tensor], float]] = {
    "N(0, 1)": (lambda s: wide(s), 1e-5),
    "mean 1e4, spread 1": (lambda s: 1e4 + wide(s), 1e-5),
    "mean 1e4, spread 0.01": (lambda s: 1e4 + 0.01 * wide(s), 1e-5),
    "mean 1e6, spread 1": (lambda s: 1e6 + wide(s), 1e-5),
    "one outlier of 1e4": (lambda s: with_outlier(s), 1e-5),
    "1e18": (lambda s: 1e18 * wide(s), 1e-5),
    "1e30": (lambda s: 1e30 * wide(s), 1e-5),
    "up to 3e38": (lambda s: 3e38 * (2 * torch.rand(s, dtype=torch.float64) - 1), 1e-5),
    "1e-20, no eps": (lambda s: 1e-20 * wide(s), 1e-60),
    "1e-30, no eps": (lambda s: 1e-30 * wide(s), 1e-80),
    "constant 0.1": (lambda s: torch.full(s, 0.1, dtype=torch.float64), 1e-5),
    "constant 1234.567": (lambda s: torch.full(s, 1234.567, dtype=torch.float64), 1e-5),
}
LONG = dict.fromkeys(("LayerNorm", "RMSNorm"), (2, 1_000_000))


def wide(shape: tuple[int, ...]) -> Tensor:
    """Normal values in float64."""
    return torch.randn(shape, dtype=torch.float64)


def with_outlier(shape: tuple[int, int]) -> Tensor:
    """Normal values, and a large one at the start of every eighth row."""
    x = wide(shape)
    x[::8, 0] = 1e4
    return x


def exact(norm: Norm, x: Tensor, affine: tuple[Tensor, ...], dy: Tensor, eps: float) -> Results:
    """y, dX, dW and db in float64 or, for float64, in 80 bits, from the formulas."""
    kind = np.longdouble if x.dtype == torch.float64 else np.float64

    def rows(t: Tensor) -> np.ndarray:
        return norm.to_rows(t.double()).numpy().astype(kind)

    features = x.shape[norm.parameter]
    sizes = [features if axis == norm.parameter % x.ndim else 1 for axis in range(x.ndim)]
    owner = norm.to_rows(torch.arange(features).reshape(sizes).expand(x.shape)).numpy()  # whose parameter it takes
    parameters = [p.double().numpy().astype(kind) for p in affine]
    v, g = rows(x), rows(dy)
    centred = v - v.mean(-1, keepdims=True) if norm.center else v
    centred = centred - centred.mean(-1, keepdims=True) if norm.center else centred
    r = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + kind(eps))
    x_hat = centred * r
    results = {"y": x_hat}
    upstream = g
    if parameters:
        results = {"y": x_hat * parameters[0][owner] + (parameters[1][owner] if parameters[1:] else 0)}
        upstream = g * parameters[0][owner]
        sums = {"dW": g * x_hat, "db": g}
        for label, terms in list(sums.items())[: len(parameters)]:
            results[label] = np.zeros(features, kind)
            np.add.at(results[label], owner, terms)
    along = (upstream * x_hat).mean(-1, keepdims=True)
    shift = upstream.mean(-1, keepdims=True) if norm.center else 0
    return results | {"dX": r * (upstream - shift - x_hat * along)}


def measured(functions: Any, norm: Norm, x: Tensor, affine: tuple[Tensor, ...], dy: Tensor, eps: float) -> Results:
    """The same from an implementation."""
    leaves = [t.clone().requires_grad_() for t in (x, *affine)]
    padded = [*leaves[1:], None, None][:2]
    y = norm.call(functions, leaves[0], *padded, eps)
    gradients = torch.autograd.grad(y, leaves, dy)
    found = {"y": norm.to_rows(y.detach()), "dX": norm.to_rows(gradients[0])}
    found |= dict(zip(("dW", "db"), gradients[1:], strict=False))
    return {label: t.double().numpy() for label, t in found.items()}


def error(found: np.ndarray, wanted: np.ndarray, dtype: torch.dtype) -> float:
    """R over all rows; infinite where a value is not finite and should be."""
    info = torch.finfo(dtype)
    largest = np.maximum(np.abs(wanted).max(-1, keepdims=True), info.tiny)
    fits = largest <= info.max  # a result beyond the dtype's range is infinite by right
    # where everything should be 0, as in a constant row, nothing else will do
    ulp = np.where(np.abs(wanted).max(-1, keepdims=True) > 0, np.exp2(np.floor(np.log2(largest))) * info.eps, 0.0)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        difference = np.abs(found.astype(wanted.dtype) - wanted)
        r = np.where(difference == 0, 0.0, difference / ulp)
    return float(np.where(fits, np.where(np.isnan(r), np.inf, r), 0).max())


def measure(name: str, regime: str, dtype: torch.dtype, affine: bool, shape: tuple[int, ...]) -> dict[str, Any] | None:
    """R of each result by owner, or None where the dtype cannot hold the regime's values."""
    norm, (sample, eps) = NORMS[name], REGIMES[regime]
    torch.manual_seed(zlib.crc32(f"{name} {regime} {affine}".encode()))
    positions = norm.to_rows(torch.arange(int(np.prod(shape))).reshape(shape))
    x = torch.empty(positions.numel(), dtype=torch.float64)
    x[positions.flatten()] = sample((positions.shape[0], positions.shape[1])).flatten()
    x = x.reshape(shape).to(dtype)
    if not x.isfinite().all() or not x.any():
        return None
    features, count = shape[norm.parameter], (2 if norm.center else 1) if affine else 0
    parameters = tuple(wide((features,)).to(dtype) for _ in range(count))
    dy = wide(shape).to(dtype)
    wanted = exact(norm, x, parameters, dy, eps)
    return {
        owner: {
            label: error(value, wanted[label], dtype)
            for label, value in measured(functions, norm, x, parameters, dy, eps).items()
        }
        for owner, functions in zip(OWNERS, (F, TF), strict=True)
    }


def shown(value: float) -> str:
    """A figure of the tables."""
    if not np.isfinite(value):
        return "∞"
    if value >= 1e5:
        return f"{value:.1e}".replace("e+0", "e")
    return "0" if value == 0 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def cell(results: Mapping[str, Mapping[str, float]] | None, label: str, limit: float) -> str:
    """Ours and torch's; ours is bold where it exceeds the contract."""
    if results is None or label not in results[OWNERS[0]]:
        return ""
    ours, theirs = (results[owner][label] for owner in OWNERS)
    return f"{f'**{shown(ours)}**' if not (ours <= limit) else shown(ours)} · {shown(theirs)}"


def table(name: str, dtype: torch.dtype, found: dict[tuple[str, bool], Any]) -> tuple[list[str], int]:
    """The table of one norm and dtype, and how many of our figures exceed the contract."""
    columns = [("y", True), ("dX", True), ("dW", True), ("db", True), ("y", False), ("dX", False)]
    lines = [
        "| values | y | dX | dW | db | y, no affine | dX, no affine |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for regime in dict.fromkeys(regime for regime, _ in found):
        cells = [cell(found.get((regime, affine)), label, LIMITS[dtype]) for label, affine in columns]
        if any(cells):
            lines.append(f"| {regime} | {' | '.join(cells)} |")
    return lines, sum(text.count("**") // 2 for text in lines)


def run_norm(name: str, folder: Path) -> tuple[list[str], int]:
    """The section of one norm, with the chart of its float32 results."""
    lines, exceeded = [f"## {name}", ""], 0
    for dtype in DTYPES:
        found = {
            (regime, affine): measure(name, regime, dtype, affine, NORMS[name].shape)
            for regime in REGIMES
            for affine in (True, False)
        }
        if name in LONG and dtype == torch.float32:
            long = measure(name, "mean 1e4, spread 1", dtype, True, LONG[name])
            found["a million features, mean 1e4", True] = long
        if dtype == torch.float32:
            worst = {
                regime: {owner: max(results[owner].values()) for owner in OWNERS}
                for (regime, affine), results in found.items()
                if affine and results
            }
            chart = dot_chart(
                f"{name}, float32: the worst of y, dX, dW and db",
                "R in units of the last place; left end: 0; beyond the right: not finite, or not 0 where 0 is right",
                worst,
                line=LIMITS[dtype],
                said="contract: 3",
            )
            lines += [write_chart(folder / "images" / f"numerics-{name.lower()}.svg", chart), ""]
        rows, beyond = table(name, dtype, found)
        promise = "no limit in the contract" if np.isinf(LIMITS[dtype]) else f"contract: {LIMITS[dtype]:g}"
        lines += [f"### {str(dtype).removeprefix('torch.')} ({promise})", "", *rows, ""]
        exceeded += beyond
        if dtype == torch.float64:
            ours = [results[OWNERS[0]] for results in found.values() if results]
            lines += [f"The largest of ours in float64 is {shown(max(max(r.values()) for r in ours))}.", ""]
        print(f"{name} {dtype}: {beyond} figures beyond the contract", flush=True)
    return lines, exceeded


def main() -> None:
    """Measure everything and write the page."""
    target = Path(sys.argv[1]) if sys.argv[1:] else DOCS / "numerics.md"
    torch.set_num_threads(1)
    sections, exceeded = [], 0
    for name in NORMS:
        lines, beyond = run_norm(name, target.parent)
        sections += lines
        exceeded += beyond
    facts = collect_info()
    machine, versions = facts["machine"], facts["versions"]
    simd = facts["compiled"].get("simd level", "none")
    verdict = (
        "All of ours keep the contract, which states no limit for float64."
        if not exceeded
        else f"{exceeded} of ours, in bold, exceed the contract."
    )
    introduction = [
        "# Numerics",
        "",
        "Written by `make numerics`; edit `docs/build_numerics.py`, not this page.",
        "",
        *(__doc__ or "").split("\n\n", 1)[1].strip().splitlines(),
        "0.5 is a correctly rounded row. Each cell is *ours · torch's*; seeds are fixed.",
        "A regime that a dtype cannot hold is left out; ∞ is a value that is not finite, or not 0 where 0 is right.",
        "",
        f"**{verdict}**",
        "",
        f"{datetime.datetime.now(tz=datetime.UTC).date()}; {machine['processor']}, {machine['system']}; "
        f"evenkeel {versions['evenkeel']} ({simd}), torch {versions['torch']}, numpy {versions['numpy']}, "
        f"Python {versions['python']}; one thread (the bits do not depend on the number of threads).",
        "",
    ]
    write_text_atomically(target, "\n".join([*introduction, *sections]))
    print(f"wrote {target}; {verdict}")


if __name__ == "__main__":
    main()
