"""Run the Triton kernels of row norms in the interpreter, in a process of their own, and print what they gave.

Usage: TRITON_INTERPRET=1 python tests/triton_worker.py CASE...   (JSON: case -> name of a number -> number)

Whether kernels are interpreted is decided where Triton is imported, so tests of both kinds cannot share a process.
A number is an error in ulps of the row's largest value, or of bits that differ. bfloat16 is left out: the interpreter
truncates casts to it.
"""

import itertools
import json
import os
import subprocess
import sys
import time
import warnings

import torch
from regimes import ROWS

from evenkeel.functional._rows_reference import add_rows_reference, rows_reference
from evenkeel.functional._specs import row_spec
from evenkeel.testing import ulp_error

STATISTICS = ("moments", "rms", "l2")
MODES = ("inside", "outside", "clamp")
REGIMES = ROWS | {
    "rare rows among others": (
        lambda shape: torch.randn(shape) * 10.0 ** (torch.arange(shape[0]) % 5 * 16 - 20)[:, None],
        1e-5,
    ),
}
TINIEST = 2.0**-126  # gradients below it have lost bits: the contract leaves them out


def interpret(worker, cases):
    """What the kernels gave in the interpreter, which must be chosen before Triton is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, worker.__file__, *cases], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


def check(worker, cases, limit_of):
    """Interpret all cases in one process, and fail with every number that is over its limit."""
    found = interpret(worker, cases)
    assert found.keys() == cases.keys()
    assert all(found.values())
    numbers = [(case, name, value) for case, given in found.items() for name, value in given.items()]
    over = [f"{case}: {name} is {value}" for case, name, value in numbers if not value <= limit_of(case, name)]
    assert not over, "\n".join(["", *over])


def kernels():
    from evenkeel.kernels import triton

    return triton


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def shorten_rows():
    """Make rows of more than 64 features long ones, in blocks of 32, so that they can be interpreted."""
    from evenkeel.kernels.triton import _launch, _rows

    def short(launch):
        long = _launch.Launch(block=32, chunk=8, looped=True)
        return lambda features, *size: long if features > 64 else launch(features)

    _rows.forward_launch = short(_launch.forward_launch)
    _rows.backward_launch = short(_launch.backward_launch)
    _rows.SUMS_LAUNCH = _launch.Launch(block=32, rows=4)
    _rows.forward_program.cache_clear()
    _rows.backward_program.cache_clear()


def run(spec, x, weight, bias, dy, from_output=False):
    """y, dx, dweight and dbias of the kernels, those that there are."""
    k, options = kernels(), spec.row_options
    y, _, statistics = k.rows_forward(x, None, weight, bias, 1, *options, from_output)
    source, flags = y if from_output else x, (True, False, weight is not None, bias is not None, from_output)
    dx, _, dweight, dbias = k.rows_backward(dy, None, source, None, weight, bias, statistics, 1, *options, *flags)
    return [
        t for t, there in ((y, True), (dx, True), (dweight, weight is not None), (dbias, bias is not None)) if there
    ]


def expected(spec, x, weight, bias, dy):
    """The same in float64."""
    leaves = [t.double().requires_grad_() for t in (x, weight, bias) if t is not None]
    given = iter(leaves)
    arguments = [None if t is None else next(given) for t in (x, weight, bias)]
    y = rows_reference(*arguments, 1, spec)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.double())]


def errors(spec, x, weight, bias, **options):
    dy = random(*x.shape, dtype=x.dtype)
    mine, exact = run(spec, x, weight, bias, dy, **options), expected(spec, x, weight, bias, dy)
    names = ("y", "dx", "dweight" if weight is not None else "dbias", "dbias")
    found = {name: ulp_error(a, b) for name, a, b in zip(names, mine, exact, strict=False)}
    if exact[1].abs().amax() < TINIEST * 2**24:
        del found["dx"]
    return found


def parameters(statistic, features, dtype=torch.float32):
    return random(features, dtype=dtype), random(features, dtype=dtype) if statistic == "moments" else None


def regime(name, statistic, mode="inside", rows=9, features=100):
    sample, eps = REGIMES[name]
    spec = row_spec("norm", statistic, eps, mode)
    return errors(spec, sample((rows, features)), *parameters(statistic, features))


def length(features, statistics=STATISTICS):
    """Rows of one length; those of up to 7 features have no dx to speak of."""
    found = {}
    for statistic in statistics:
        one = errors(row_spec("norm", statistic, 1e-5), random(3, features), *parameters(statistic, features))
        if features < 8:
            one = {"y": one["y"], "dbias": one.get("dbias", 0.0)}
        found |= {f"{statistic} {name}": value for name, value in one.items()}
    return found


def half(statistic, mode):
    """float16 rows with float16 and float32 parameters and an offset."""
    found = {}
    for dtype in (torch.float16, torch.float32):
        x = random(5, 48, dtype=torch.float16)
        weight, bias = parameters(statistic, 48, dtype)
        one = errors(row_spec("norm", statistic, 1e-5, mode, 1.0), x, weight, bias)
        found |= {f"{dtype} {name}": value for name, value in one.items() if dtype == torch.float16 or name[:2] != "dw"}
    return {name: value for name, value in found.items() if "float32 db" not in name}


def same(actual, wanted):
    """How many elements differ in their bits."""
    integers = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    return float((actual.contiguous().view(integers) != wanted.contiguous().view(integers)).sum())


def early():
    """float16 rows that round before the weight, against the reference: at most an ulp where a statistic differs."""
    found = {}
    for statistic, offset, wide in itertools.product(STATISTICS, (0.0, 1.0), (torch.float16, torch.float32)):
        spec = row_spec("norm", statistic, 1e-5, weight_offset=offset, cast="early")
        x, (weight, bias) = random(6, 80, dtype=torch.float16), parameters(statistic, 80, wide)
        y, _, _ = kernels().rows_forward(x, None, weight, bias, 1, *spec.row_options, False)
        exact = rows_reference(x, weight, bias, 1, spec)
        found[f"{statistic} {offset} {wide} dtype"] = float(y.dtype != exact.dtype)
        found[f"{statistic} {offset} {wide} share that differs"] = float((y != exact).double().mean())
    return found


def residual(branch, stream, rounding):
    """x + residual in mixed dtypes, with upstream gradients of both results."""
    x, r = random(6, 40, dtype=branch), random(6, 40, dtype=stream)
    weight, bias = parameters("moments", 40)
    spec = row_spec("norm", "moments", 1e-5, residual_rounding=rounding)
    k, options = kernels(), spec.row_options
    y, total, statistics = k.rows_forward(x, r, weight, bias, 1, *options, False)
    dy, dtotal = random(6, 40, dtype=branch), random(6, 40, dtype=stream)
    saved, flags = (x, r) if rounding == "unrounded" else (total, None), (True, True, True, True, False)
    dx, dr, *more = k.rows_backward(dy, dtotal, *saved, weight, bias, statistics, 1, *options, *flags)
    leaves = [t.double().requires_grad_() for t in (x, r, weight, bias)]
    # float64 sums the addends; of a rounded stream, its rounding is part of what is normalized
    exact_total = leaves[0] + leaves[1]
    if rounding == "rounded":
        exact_total = exact_total + (total.double() - exact_total).detach()
    exact = rows_reference(exact_total, leaves[2], leaves[3], 1, spec)
    gradients = torch.autograd.grad([exact, exact_total], leaves, [dy.double(), dtotal.double()])
    _, stored = add_rows_reference(x, r, weight, bias, 1, spec)
    results = dict(zip(("dx", "dresidual", "dweight", "dbias"), (dx, dr if dr.numel() else dx, *more), strict=True))
    found = {name: ulp_error(t, wanted) for (name, t), wanted in zip(results.items(), gradients, strict=True)}
    return found | {"y": ulp_error(y, exact.detach()), "sum": same(total, stored)}


def layouts():
    """Strided rows, in one axis, two and more, misaligned ones, and rows that are not dense: the contiguous bits."""
    spec = row_spec("norm", "moments", 1e-5)
    weight, bias = parameters("moments", 32)
    whole = random(3, 4, 5, 96)
    views = {
        "one axis": whole[..., 32:64],
        "two axes": whole[:, 1:3, :, :32],
        "three axes": whole[:, 1:3, 1::2, 64:],
        "transposed": whole[..., :32].transpose(0, 1),
        "misaligned": whole.flatten()[3 : 3 + 64].view(2, 32),
        "columns": whole[0, 0, :, :32].repeat(7, 1)[:32].t()[:, :32],
        "expanded": whole[0, 0, :1, :32].expand(6, 32),
    }
    found = {}
    for name, view in views.items():
        dy = random(*view.shape)
        for part, a, b in zip(
            ("y", "dx", "dweight", "dbias"),
            run(spec, view, weight, bias, dy.transpose(0, 1).contiguous().transpose(0, 1)),
            run(spec, view.contiguous(), weight, bias, dy),
            strict=True,
        ):
            found[f"{name} {part}"] = same(a, b)
    return found


def batches():
    """A row's bits do not depend on the other rows, and y's not on what else is asked for."""
    found = {}
    for statistic, features in (*itertools.product(STATISTICS, (40, 100)), ("moments", 600)):
        spec = row_spec("norm", statistic, 1e-5)
        weight, bias = parameters(statistic, features)
        x, dy = random(19, features), random(19, features)
        x[4] *= 1e30
        y, dx, *_ = run(spec, x, weight, bias, dy)
        for row in (0, 4, 18):
            one = slice(row, row + 1)
            alone_y, alone_dx, *_ = run(spec, x[one].clone(), weight, bias, dy[one].clone())
            found[f"{statistic} {features} {row} y"] = same(alone_y, y[one])
            found[f"{statistic} {features} {row} dx"] = same(alone_dx, dx[one])
        inference = kernels().rows_inference(x, weight, bias, 1, *spec.row_options)
        found[f"{statistic} {features} inference"] = same(inference, y)
    return found


def outputs():
    """y into given memory: the input's own, strided, misaligned."""
    spec = row_spec("norm", "rms", 1e-5)
    weight, x = random(32), random(7, 32)
    y = kernels().rows_inference(x, weight, None, 1, *spec.row_options)
    found = {}
    targets = {"itself": x.clone(), "strided": random(7, 64)[:, 16:48], "off": random(300)[1:225].view(7, 32)}
    targets["blocks"] = random(7, 3, 64)[:, 1, :32]
    for name, out in targets.items():
        kernels().rows_out(out if name == "itself" else x, weight, None, 1, *spec.row_options, out)
        found[name] = same(out, y)
    return found


def from_output():
    """memory_efficient: gradients from y carry its rounding, and bad weights are refused."""
    weight = torch.rand(40) + 0.5
    spec = row_spec("norm", "moments", 1e-5)
    x, bias, dy = random(9, 40), random(40), random(9, 40)
    kept, recomputed = run(spec, x, weight, bias, dy), run(spec, x, weight, bias, dy, from_output=True)
    found = {
        f"closeness {i}": float((a - b).abs().max()) for i, (a, b) in enumerate(zip(kept, recomputed, strict=True))
    }
    small, shifted, nan = weight.clone(), bias.clone(), weight.clone()
    small[3], shifted[39], nan[0] = 0.0, 16.5 * weight[39], torch.nan
    for name, w, b in (("small", small, bias), ("shifted", weight, shifted), ("nan", nan, bias)):
        try:
            run(spec, x, w, b, dy, from_output=True)
        except RuntimeError as error:
            found[f"refused {name}"] = float("memory_efficient=False" not in str(error))
        else:
            found[f"refused {name}"] = 1.0
    return found


def exact_rows():
    """Constant rows, one feature, zero rows, and none: exactly 0 or the bias."""
    k, found = kernels(), {}
    spec = row_spec("norm", "moments", 1e-5)
    for value, features in itertools.product((0.0, 3.0, 1e4 / 3, -1e30, 7e-20), (1, 37, 100)):
        for dtype in (torch.float32, torch.float16):
            if dtype == torch.float16 and abs(value) > 1e4:
                continue
            x = torch.full((2, features), value).to(dtype)
            y = k.rows_inference(x, None, None, 1, *spec.row_options)
            found[f"{value} {features} {dtype}"] = float((y != 0).sum())
    weight, bias = random(8), random(8)
    y, dx, dweight, dbias = run(spec, random(0, 8), weight, bias, random(0, 8))
    found["no rows"] = float(y.shape != (0, 8) or dx.shape != (0, 8)) + float(dweight.any() or dbias.any())
    return found


def strangers():
    """inf and NaN stay in their row."""
    found = {}
    for statistic, value in itertools.product(STATISTICS, (float("nan"), float("inf"))):
        spec = row_spec("norm", statistic, 1e-5)
        x, dy = random(6, 40), random(6, 40)
        clean = run(spec, x, None, None, dy)
        x[2, 7] = value
        y, dx = run(spec, x, None, None, dy)
        others = torch.arange(6) != 2
        found[f"{statistic} {value} y"] = same(y[others], clean[0][others])
        found[f"{statistic} {value} dx"] = same(dx[others], clean[1][others])
        wanted = rows_reference(x, None, None, 1, spec)[2]
        found[f"{statistic} {value} kind"] = float((y[2].isnan() != wanted.isnan()).sum())
    return found


def long(name, statistic):
    """Rows in blocks, whole ones or not: the same regimes."""
    shorten_rows()
    return regime(name, statistic, features=192 if statistic == "rms" else 200)


def long_others():
    """Rows in blocks: strides, batches, half precision, a first block unlike the rest, gradients one at a time."""
    shorten_rows()
    spec = row_spec("norm", "moments", 1e-5)
    weight, bias = parameters("moments", 150)
    x, dy = random(5, 2, 200), random(5, 2, 150)
    strided, dense = (run(spec, v, weight, bias, dy) for v in (x[..., 16:166], x[..., 16:166].contiguous()))
    found = {f"strided {i}": same(a, b) for i, (a, b) in enumerate(zip(strided, dense, strict=True))}
    alone = run(spec, x[3, :1, 16:166], weight, bias, dy[3, :1])
    found |= {f"alone {i}": same(alone[i], dense[i][3, :1]) for i in (0, 1)}
    odd = random(4, 150)
    odd[:, :32] += 1e5
    found |= {f"odd block {name}": value for name, value in errors(spec, odd, weight, bias).items()}
    half_x = random(4, 150, dtype=torch.float16)
    found |= {f"half {name}": value for name, value in errors(spec, half_x, weight.half(), bias.half()).items()}
    constants = {v: run(spec, torch.full((2, 150), v), None, None, dy[0])[0] for v in (3, 1e9)}
    found |= {f"constant {v}": float((y != 0).sum()) for v, y in constants.items()}
    x, dy = random(19, 150), random(19, 150)
    _, *whole = run(spec, x, weight, bias, dy)
    _, _, statistics = kernels().rows_forward(x, None, weight, bias, 1, *spec.row_options, False)
    for i, wanted in enumerate(whole):
        flags = (i == 0, False, i == 1, i == 2, False)
        one = kernels().rows_backward(dy, None, x, None, weight, bias, statistics, 1, *spec.row_options, *flags)
        found[f"only {i}"] = same(one[i + (i > 0)], wanted)
    return found


def chunks(features, tree_rows):
    """Rows of several chunks, of which the last is not whole, and a tree that goes round: R of dγ and dβ, one dx."""
    from evenkeel.kernels.triton import _launch, _rows

    _rows.TREE_LAUNCH = _launch.Launch(block=8, rows=tree_rows)
    _rows.tree_program.cache_clear()
    launch = _rows.backward_launch(features)
    rows = 4 * launch.chunk + 5
    spec = row_spec("norm", "moments", 1e-5)
    x, dy, (weight, bias) = random(rows, features), random(rows, features), parameters("moments", features)
    mine, exact = run(spec, x, weight, bias, dy), expected(spec, x, weight, bias, dy)
    found = {f"{i} ulps": ulp_error(a, b) for i, (a, b) in enumerate(zip(mine, exact, strict=True))}
    last = slice(-6, None)  # of which one lies in the chunk before
    found["dx of the last"] = same(run(spec, x[last].clone(), weight, bias, dy[last].clone())[1], mine[1][last])
    found["chunks"] = float(-(-rows // launch.chunk) <= tree_rows)
    return found


def like_the_cpu():
    """y, statistics and gradients of the CPU kernels, each of which may be 3 ulps off."""
    found = {}
    for (statistic, mode), dtype in itertools.product(
        itertools.product(STATISTICS, MODES), (torch.float32, torch.float16)
    ):
        options = row_spec("norm", statistic, 1e-3, mode, 1.0).row_options
        x, dy, (weight, bias) = random(5, 70, dtype=dtype), random(5, 70, dtype=dtype), parameters(statistic, 70, dtype)
        flags, results = (True, False, True, bias is not None, False), []
        for k in (kernels(), torch.ops.evenkeel):
            y, _, statistics = k.rows_forward(x, None, weight, bias, 1, *options, False)
            dx, _, *sums = k.rows_backward(dy, None, x, None, weight, bias, statistics, 1, *options, *flags)
            results.append((y, dx, *(t for t in sums if t.numel())))
        for i, (mine, theirs) in enumerate(zip(*results, strict=True)):
            kind = "half" if dtype == torch.float16 else "float"
            found[f"{kind} {statistic} {mode} {i}"] = ulp_error(mine, theirs.double())
    return found


FAST = {
    **{f"regime, {s}, {name}": (regime, (name, s)) for name in REGIMES for s in ("moments", "rms")},
    **{f"regime, l2, {name}": (regime, (name, "l2")) for name in ("N(0,1)", "up to 3e38", "rare rows among others")},
    **{f"mode, {s}, {mode}": (half, (s, mode)) for s in STATISTICS for mode in MODES},
    **{f"length, {n}": (length, (n,)) for n in (1, 2, 7, 8, 33, 64, 257)},
    "early": (early, ()),
    "residual, rounded": (residual, (torch.float16, torch.float32, "rounded")),
    "residual, unrounded": (residual, (torch.float16, torch.float32, "unrounded")),
    "residual, half": (residual, (torch.float32, torch.float16, "rounded")),
    "residual, one dtype": (residual, (torch.float32, torch.float32, "rounded")),
    "layouts": (layouts, ()),
    "batches": (batches, ()),
    "outputs": (outputs, ()),
    "from output": (from_output, ()),
    "exact rows": (exact_rows, ()),
    "strangers": (strangers, ()),
    **{f"long, {s}, {name}": (long, (name, s)) for s in STATISTICS[:2] for name in ("1e18", "rare rows among others")},
    "long, others": (long_others, ()),
    "chunks, 24": (chunks, (24, 2)),
    "like the CPU": (like_the_cpu, ()),
}  # fmt: skip
SLOW = {
    **{f"regime, {s}, {mode}, {name}": (regime, (name, s, mode, 4, 768))
       for name in REGIMES for s in STATISTICS for mode in MODES
       if mode == "inside" or name in ("N(0,1)", "up to 3e38", "1e-30, eps 0", "rare rows among others")},
    **{f"long, {s}, {name}": (long, (name, s)) for name in REGIMES for s in STATISTICS},
    "length, 1000": (length, (1000,)),
    "length, 8193": (length, (8193, STATISTICS[:1])),
    "chunks, 600": (chunks, (600, 4)),
}  # fmt: skip


def main(cases, names):
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # NumPy's, of overflows that are meant to happen
    found = {}
    for name in names:
        torch.manual_seed(0)
        start = time.perf_counter()
        function, arguments = cases[name]
        found[name] = function(*arguments)
        sys.stderr.write(f"{time.perf_counter() - start:6.2f} s  {name}\n")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(FAST | SLOW, sys.argv[1:])
