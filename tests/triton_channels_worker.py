"""Run the Triton kernels of channel norms in the interpreter, as `triton_worker` does those of row norms.

Usage: TRITON_INTERPRET=1 python tests/triton_channels_worker.py CASE...   (JSON: case -> name of a number -> number)

A number is an error in ulps of the largest value that shares a statistic, or of bits that differ.
"""

import itertools
import sys

import torch
from channel_calls import MEASURED, errors
from regimes import CHANNELS
from triton_calls_worker import count_calls
from triton_worker import kernels, main, random, same

import evenkeel as ek
from evenkeel import functional as F
from evenkeel._spec import ACTIVATIONS, EPS_MODES, ChannelOptions
from evenkeel.functional import _batch_norm, _group_norm, _instance_norm
from evenkeel.testing import ulp_error

GROUPS = {"batch_norm": 0, "inference": 0, "instance_norm": -1, "group_norm": 2}
SMALL = (3, 4, 3, 5)
REGIMES = CHANNELS | {
    "rare channels among others": (
        lambda shape: torch.randn(shape) * 10.0 ** (torch.arange(shape[1]) % 5 * 16 - 20).view(-1, 1, 1),
        1e-5,
    ),
}


def use_tiles(elements):
    """Choose how many elements a tile has: with 32 a small tensor has several chunks of several tiles."""
    from evenkeel.kernels.triton import _channel_calls, _launch

    _launch.TILE = elements
    _channel_calls.found_call.cache_clear()


def running(x):
    """Statistics that are not of this input."""
    return torch.linspace(-1, 1, x.shape[1]), 1 + torch.linspace(-1, 1, x.shape[1]).square()


def run(norm, x, weight, bias, dy, *, eps=1e-5, mode="inside", activation=None, mask=None, offset=0.0):
    """y, dx, dweight and dbias of the kernels."""
    options = ChannelOptions(GROUPS[norm], eps, EPS_MODES[mode], offset, ACTIVATIONS[activation])
    given = running(x) if norm == "inference" else (None, None)
    k = kernels()
    mask = None if mask is None else mask.unsqueeze(1)
    y, statistics, _ = k.channels_forward(x, weight, bias, *given, mask, *options)
    flags = (True, weight is not None, bias is not None)
    remembered = norm == "inference"
    gradients = k.channels_backward(dy, x, weight, bias, statistics, mask, remembered, *options, *flags)
    return [y, *(t for t, there in zip(gradients, flags, strict=True) if there)]


def reference(norm, x, weight, bias, *, eps=1e-5, mode="inside", activation=None, mask=None, offset=0.0):
    options = {"eps": eps, "eps_mode": mode, "weight_offset": offset, "mask": mask}
    if norm == "instance_norm":
        return _instance_norm.instance_norm_reference(x, weight=weight, bias=bias, **options)
    if norm == "group_norm":
        return _group_norm.group_norm_reference(x, 2, weight, bias, **options, activation=activation)
    given = [t.double() for t in running(x)] if norm == "inference" else [None, None]
    training = norm == "batch_norm"
    return _batch_norm.batch_norm_reference(x, *given, weight, bias, training, **options, activation=activation)


def expected(norm, x, weight, bias, dy, **options):
    """The same in float64."""
    leaves = [t.double().requires_grad_() for t in (x, weight, bias) if t is not None]
    given = iter(leaves)
    y = reference(norm, *(None if t is None else next(given) for t in (x, weight, bias)), **options)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.double())]


def compare(norm, x, dtype=None, **options):
    """The errors under a random cotangent; where a mask leaves a value out, it may be none."""
    weight, bias = random(x.shape[1], dtype=dtype or x.dtype), random(x.shape[1], dtype=dtype or x.dtype)
    dy, mask = random(*x.shape, dtype=x.dtype), options.get("mask")
    given = x if mask is None else torch.where(mask.unsqueeze(1), x, torch.nan)
    mine, exact = run(norm, given, weight, bias, dy, **options), expected(norm, x, weight, bias, dy, **options)
    found = dict(zip(("y", "dx", "dweight", "dbias"), errors(norm, mine, exact), strict=True))
    if norm == "instance_norm" and x[0, 0].numel() < 8:
        del found["dx"]  # it has no bits to speak of
    return found


def lay_out(x, last):
    layout = torch.channels_last_3d if x.ndim == 5 else torch.channels_last
    return x.contiguous(memory_format=layout) if last else x


def regime(norm, name, last, mode="inside", shape=(6, 4, 2, 8)):
    use_tiles(32)
    sample, eps = REGIMES[name]
    return compare(norm, lay_out(sample(shape), last), eps=eps, mode=mode)


def shape(norm, *sizes, tile=2048):
    """Each layout that there is; a result has its input's."""
    use_tiles(tile)
    found = {}
    for last in (False, True) if len(sizes) in (4, 5) else (False,):
        x = lay_out(random(*sizes), last)
        found |= {f"{last} {name}": value for name, value in compare(norm, x).items()}
        y = run(norm, x, None, None, x)[0]
        found[f"{last} strides"] = float(y.stride() != x.stride())
    return found


def small_tiles(norm, *sizes):
    """The same with several chunks and tiles."""
    return shape(norm, *sizes, tile=32)


def extras(norm, activation, masked, last, mode="inside"):
    """Activation, mask, weight offset and eps mode in float32."""
    use_tiles(32)
    x = lay_out(random(3, 4, 4, 4), last)
    mask = torch.rand(3, 4, 4) < 0.7 if masked else None
    return compare(norm, x, mask=mask, activation=activation, mode=mode, offset=1.0)


def half(norm, last):
    """float16 with float16 and float32 parameters, fused or not: rounded once."""
    use_tiles(32)
    found = {}
    for dtype, activation in ((torch.float16, None), (torch.float32, None), (torch.float16, "silu")):
        if activation and norm == "instance_norm":
            continue
        x = lay_out(random(3, 4, 4, 4, dtype=torch.float16), last)
        one = compare(norm, x, dtype, activation=activation)
        found |= {f"{dtype} {activation} {n}": v for n, v in one.items() if n in "y dx" or dtype == torch.float16}
    return found


def alone(norm, last, *sizes):
    """A sample's bits do not depend on the others."""
    use_tiles(32)
    found = {}
    x, weight, bias = lay_out(random(*sizes), last), random(4), random(4)
    x[1] *= 1e25
    dy = lay_out(random(*sizes), last)
    whole = run(norm, x, weight, bias, dy)
    for sample in (1, 2):
        one = slice(sample, sample + 1)
        single = run(norm, x[one], weight, bias, dy[one])
        found |= {f"{sample} {i}": same(single[i], whole[i][one]) for i in (0, 1)}
    return found


def beside(last):
    """A channel's bits do not depend on rare ones beside it, and what is not a number stays in its channel."""
    use_tiles(32)
    found = {}
    x, dy = lay_out(random(4, 4, 2, 8), last), random(4, 4, 2, 8)
    before = run("batch_norm", x, None, None, dy)
    x[:, 1] *= 1e25
    x[:, 2, 1, 1] = float("nan")
    after = run("batch_norm", x, None, None, dy)
    for i in (0, 1):
        found[f"beside a rare channel {i}"] = same(after[i][:, [0, 3]], before[i][:, [0, 3]])
        found[f"not a number {i}"] = float((~after[i][:, 2].isnan()).sum())
    return found


def by_group(norm, activation, mode, *sizes, regimes=False):
    """Groups that a program each normalizes: values, a sample's bits alone, each gradient without the others."""
    from evenkeel.kernels.triton import _channel_calls

    use_tiles(32)
    smallest, _channel_calls.SMALLEST_GROUP = _channel_calls.SMALLEST_GROUP, 65
    found = compare(norm, random(*sizes), activation=activation, mode=mode, offset=1.0)
    given = random(sizes[1]), random(sizes[1]), random(*sizes, dtype=torch.float16)
    if not activation:
        one = compare(norm, given[2], given[0].dtype)
        found |= {f"half {name}": one[name] for name in ("y", "dx")}
    x, (weight, bias, dy), options = random(*sizes), given, ChannelOptions(GROUPS[norm], 1e-5, 0, 0.0, 0)
    k, none = kernels(), (None,) * 3
    _, statistics, _ = k.channels_forward(x, weight, bias, *none, *options)
    whole = k.channels_backward(dy.float(), x, weight, bias, statistics, None, False, *options, True, True, True)
    for flags in ((True, False, True), (False, True, True)):
        part = k.channels_backward(dy.float(), x, weight, bias, statistics, None, False, *options, *flags)
        found |= {f"{flags} {i}": same(part[i], whole[i]) for i in range(3) if flags[i]}
    alone = run(norm, x[1:2], weight, bias, dy[1:2].float())
    found["alone"] = same(alone[1], whole[0][1:2])
    for regime, (sample, eps) in REGIMES.items() if regimes else ():
        found |= {f"{regime} {name}": value for name, value in compare(norm, sample(sizes), eps=eps, mode=mode).items()}
    constant = run(norm, torch.full(sizes, 1e4 / 3), weight, None, dy.float())[0]
    found["constant"] = float((constant != 0).sum())
    _channel_calls.SMALLEST_GROUP = smallest
    _channel_calls.found_call.cache_clear()
    return found


def wide(last):
    """Places of 64 bits in a tile give the bits of those of 32, with a mask and an activation."""
    from evenkeel.kernels.triton import _channel_calls

    found, first = {}, _channel_calls.FIRST_WIDE
    x, dy, weight, bias = lay_out(random(3, 4, 5, 9), last), random(3, 4, 5, 9), random(4), random(4)
    options = {"mask": torch.rand(3, 5, 9) < 0.7, "activation": "silu"}
    for norm in GROUPS:
        results = []
        for _channel_calls.FIRST_WIDE in (first, 0):
            use_tiles(32)
            results.append(run(norm, x, weight, bias, dy, **options))
        found |= {f"{norm} {i}": same(a, b) for i, (a, b) in enumerate(zip(*results, strict=True))}
    _channel_calls.FIRST_WIDE = first
    return found


def layouts(norm):
    """Strided and misaligned tensors have the contiguous bits."""
    use_tiles(2048)
    found = {}
    whole, dy = random(2, 8, 6, 8), random(2, 4, 6, 4)
    views = {
        "sliced": whole[:, 2:6, :, 1:5],
        "misaligned": whole.flatten()[1 : 1 + 192].view(2, 4, 6, 4),
        "transposed": random(2, 4, 4, 6).transpose(2, 3),
    }
    for name, view in views.items():
        a, b = (run(norm, v, torch.full((4,), 2.0), None, dy) for v in (view, view.contiguous()))
        found |= {f"{name} {i}": same(s, t) for i, (s, t) in enumerate(zip(a, b, strict=True))}
    return found


def constant(norm, last):
    """Constant channels give exactly 0."""
    use_tiles(2048)
    values = torch.tensor([0.0, 0.1, -1234.567, 3e30]).view(1, 4, 1, 1)
    if norm == "group_norm":
        values = values[:, [3, 3, 1, 1]]
    y = run(norm, lay_out(values.expand(SMALL).clone(), last), None, None, random(*SMALL))[0]
    return {"values": float((y != 0).sum())}


def nothing():
    """Empty batches and batches without a valid position: zeros."""
    found = {}
    weight, bias = random(4), random(4)
    y, dx, dweight, dbias = run("group_norm", random(0, 4, 3, 5), weight, bias, random(0, 4, 3, 5))
    found["no samples"] = float(y.shape != dx.shape) + float(dweight.any() or dbias.any())
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    results = run("group_norm", random(2, 4, 3, 5), weight, bias, random(2, 4, 3, 5), mask=mask)
    found["nothing valid"] = float(sum((t != 0).sum() for t in results))
    return found


def like_the_cpu(norms):
    """Statistics, y and gradients of the CPU kernels; running statistics move as there."""
    use_tiles(2048)
    found = {}
    operators = torch.ops.evenkeel
    x, weight, bias, dy = random(3, 4, 6, 4), random(4), random(4), random(3, 4, 6, 4)
    for norm in norms:
        options = ChannelOptions(GROUPS[norm], 1e-5, int(norm == "instance_norm"), 0.0, 2)
        results = []
        for k in (kernels(), operators):
            y, *statistics = k.channels_forward(x, weight, bias, None, None, None, *options)
            flags = (False, *options, True, True, True)
            results.append((y, *k.channels_backward(dy, x, weight, bias, statistics[0], None, *flags), *statistics))
        (*mine, measured, variances), (*theirs, wanted, spreads) = results
        found |= {f"{norm} {i} ulps": value for i, value in enumerate(errors(norm, mine, [t.double() for t in theirs]))}
        # a mean and a reciprocal are the sums of their parts
        off = [t.double()[:, 0:4:2] + t.double()[:, 1:4:2] for t in (measured, wanted)]
        found[f"{norm} statistics"] = float(((off[0] - off[1]).abs() > 1e-6).sum())
        found[f"{norm} variances ulps"] = ulp_error(variances[:, None], spreads[:, None].double())
    for dtype in (torch.float32, torch.float16):
        moved = [[t.to(dtype) for t in running(x)] for _ in range(2)]
        _, statistics, variances = operators.channels_forward.default(
            x, None, None, None, None, None, 0, 1e-5, 0, 0.0, 0
        )
        for tensors, update in zip(moved, (kernels().update_running, operators.update_running.default), strict=True):
            update(*tensors, statistics, variances, 0.1, 72)
        found |= {f"running {dtype} {i}": same(a, b) for i, (a, b) in enumerate(zip(*moved, strict=True))}
    return found


def moving(last):
    """Running statistics that the merge moves have the bits of those that a launch of their own moves.

    With a mask they are close to the definition, and stay where nothing is valid.
    """
    use_tiles(32)
    k, found = kernels(), {}
    options = ChannelOptions(0, 1e-5, 0, 0.0, 0)
    x, none = lay_out(random(4, 5, 3, 4), last), (None,) * 4
    for dtype, momentum in itertools.product(
        (torch.float32, torch.float16), (0.1, torch.tensor(1 / 3, dtype=torch.float64))
    ):
        moved, alone = ([t.to(dtype) for t in running(x)] for _ in range(2))
        y, *statistics = k.channels_forward(x, *none, None, *options, moved=(*moved, momentum))
        k.update_running(*alone, *statistics, float(momentum), 48)
        found |= {f"{dtype} {momentum} {i}": same(a, b) for i, (a, b) in enumerate(zip(moved, alone, strict=True))}
        found[f"{dtype} {momentum} y"] = same(y, k.channels_forward(x, *none, None, *options)[0])
    mask = torch.rand(4, 1, 3, 4) < 0.6
    moved, exact = running(x), [t.double() for t in running(x)]
    k.channels_forward(x, *none, mask, *options, moved=(*moved, 0.1))
    _batch_norm.batch_norm_reference(x.double(), *exact, training=True, momentum=0.1, mask=mask[:, 0])
    for i, (a, b) in enumerate(zip(moved, exact, strict=True)):
        found[f"masked {i} ulps"] = ulp_error(a[:, None], b[:, None])
    moved = running(x)
    k.channels_forward(x, *none, mask & False, *options, moved=(*moved, 0.1))
    found |= {f"nothing valid {i}": same(a, b) for i, (a, b) in enumerate(zip(moved, running(x), strict=True))}
    return found


def modules():
    """The modules, from the choice of the backend to gradients and running statistics, beside the reference."""
    use_tiles(2048)
    called, found = count_calls(), {}
    x, dy, mask = random(3, 4, 5, 2), random(3, 4, 5, 2), torch.rand(3, 5, 2) < 0.7
    makers = {
        "BatchNorm2d": lambda **o: ek.nn.BatchNorm2d(4, activation="silu", **o),
        "cumulative": lambda **o: ek.nn.BatchNorm2d(4, momentum=None, **o),
        "GroupNorm": lambda **o: ek.nn.GroupNorm(2, 4, activation="relu", **o),
        "InstanceNorm2d": lambda **o: ek.nn.InstanceNorm2d(4, affine=True, **o),
    }
    for name, make in makers.items():
        results = []
        for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
            module, leaf = make(backend=backend).to(dtype), x.to(dtype, copy=True).requires_grad_()
            for _ in range(2):
                y = module(leaf, mask)
            gradients = torch.autograd.grad(y, [leaf, *module.parameters()], dy.to(dtype))
            results.append([y.detach().flatten(1), gradients[0].flatten(1), *gradients[1:], *module.buffers()])
        for i, (a, b) in enumerate(zip(*results, strict=True)):
            found[f"{name} {i}{' ulps' if a.ndim else ''}"] = ulp_error(a, b) if a.ndim else float(a != b)
    found["operators"] = float({"channels_forward", "channels_backward"} - set(called) != set())
    return found


def cancelling():
    """Statistics that are not of this input, with terms that cancel."""
    found = {}
    for last in (False, True):
        x = lay_out(random(2, 4, 3, 4), last)
        mean, variance = torch.full((4,), 300.0), torch.full((4,), 0.01)
        weight, bias = torch.full((4,), 0.1), torch.full((4,), 300.0)
        options = ChannelOptions(0, 1e-5, 0, 0.0, 0)
        y = kernels().channels_forward(x, weight, bias, mean, variance, None, *options)[0]
        exact = F.batch_norm(x.double(), mean.double(), variance.double(), weight.double(), bias.double())
        found[f"{last} ulps"] = ulp_error(y.transpose(0, 1).flatten(1), exact.transpose(0, 1).flatten(1))
        infinite = kernels().channels_forward(x / 0, weight, bias, mean, variance, None, *options)[0]
        found[f"infinite {last}"] = float((infinite != x / 0).sum())
    return found


BOTH = (False, True)
FEW = (4, 2, 2, 8)
FAST = {
    **{f"regime, batch_norm, {name}, {last}": (regime, ("batch_norm", name, last, "inside", FEW))
       for name, last in (("mean 1e4 spread 0.01", False), ("up to 3e38", True), ("1e-30, eps 1e-80", False),
                          ("rare channels among others", True))},
    "regime, group_norm, up to 3e38": (regime, ("group_norm", "up to 3e38", False, "inside", FEW)),
    "extras, batch_norm": (extras, ("batch_norm", "silu", True, False, "outside")),
    "extras, instance_norm": (extras, ("instance_norm", None, True, False, "clamp")),
    "extras, group_norm": (extras, ("group_norm", "silu", True, True)),
    "extras, inference": (extras, ("inference", "relu", True, False)),
    "half, group_norm": (half, ("group_norm", False)),
    "shape, 2-d": (shape, ("batch_norm", 9, 6)),
    "alone": (alone, ("group_norm", False, 3, 4, 2, 8)),
    "constant": (constant, ("batch_norm", False)),
    "nothing": (nothing, ()),
    "like the CPU": (like_the_cpu, (("group_norm",),)),
    "cancelling": (cancelling, ()),
    "moving": (moving, (True,)),
    "by group": (by_group, ("group_norm", "silu", "outside", 2, 6, 5, 7)),
    "modules": (modules, ()),
    "shape, channels-last in 3-d": (shape, ("batch_norm", 2, 4, 3, 2, 5)),
}  # fmt: skip
SLOW = {
    **{f"regime, {norm}, {name}, {last}": (regime, (norm, name, last, "inside", (4, 4, 3, 6)))
       for (norm, name), last in zip(itertools.product(MEASURED, REGIMES), itertools.cycle(BOTH))},
    **{f"regime, batch_norm, {name}, False, {mode}": (regime, ("batch_norm", name, False, mode, (4, 4, 3, 6)))
       for name, mode in itertools.product(("up to 3e38", "1e-30, eps 1e-80"), ("outside", "clamp"))},
    **{f"extras, {norm}, {activation}, {masked}, {last}, {mode}": (extras, (norm, activation, masked, last, mode))
       for norm, activation, masked, last, mode in itertools.product(GROUPS, ACTIVATIONS, BOTH, BOTH, EPS_MODES)
       if (not activation or norm != "instance_norm") and (
           (ACTIVATIONS[activation] + masked + last) % 2 == 0 if mode == "inside"
           else activation == "silu" and masked)},
    **{f"half, {norm}, {last}": (half, (norm, last)) for norm, last in itertools.product(GROUPS, BOTH)},
    **{f"shape, {norm}, {sizes}": (shape, (norm, *sizes))
       for norm, sizes in itertools.product(GROUPS, (
           (3, 70, 5, 3), (2, 6, 57, 41), (12, 4, 7, 7), (2, 4, 3000), (5, 6, 1, 3), (2, 4, 3, 4, 5), (20, 34, 2)))},
    **{f"shape, tiles, {norm}, {sizes}": (small_tiles, (norm, *sizes))
       for norm, sizes in (("batch_norm", (3, 4, 5, 9)), ("group_norm", (3, 4, 5, 9)), ("group_norm", (12, 4, 3, 3)),
                           ("instance_norm", (2, 4, 70)), ("inference", (2, 4, 70)))},
    "shape, 2-d, groups": (shape, ("group_norm", 4, 70)),
    "shape, 3-d": (shape, ("batch_norm", 3, 6, 7)),
    **{f"alone, {norm}, {last}, {sizes}": (alone, (norm, last, *sizes))
       for norm, last, sizes in itertools.product(
           ("instance_norm", "group_norm", "inference"), BOTH, ((5, 4, 5, 4), (5, 4, 1, 3)))},
    **{f"constant, {norm}, {last}": (constant, (norm, last)) for norm, last in itertools.product(MEASURED, BOTH)},
    **{f"beside, {last}": (beside, (last,)) for last in BOTH},
    "shape, few positions": (shape, ("group_norm", 3, 6, 2, 2)),
    **{f"layouts, {norm}": (layouts, (norm,)) for norm in ("batch_norm", "group_norm")},
    "like the CPU, all": (like_the_cpu, (MEASURED,)),
    **{f"by group, {norm}, {sizes}": (by_group, (norm, None, mode, *sizes))
       for norm, mode, sizes in (("group_norm", "inside", (3, 4, 6, 8)), ("group_norm", "clamp", (2, 70, 3)),
                                 ("instance_norm", "inside", (2, 3, 9, 8)), ("group_norm", "inside", (2, 6, 2, 5, 5)))},
    "by group, regimes": (lambda: by_group("group_norm", None, "inside", 2, 4, 7, 8, regimes=True), ()),
    "moving, contiguous": (moving, (False,)),
    **{f"wide, {last}": (wide, (last,)) for last in BOTH},
}  # fmt: skip

if __name__ == "__main__":
    main(FAST | SLOW, sys.argv[1:])
