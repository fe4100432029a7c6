"""Digest every bit that the norms compute, so that two versions of the code can be compared.

Usage: python tests/bits.py digests.json                   write the digests of the code that Python imports
       python tests/bits.py digests.json --compare old.json   and name the calls whose bits differ from others'

    PYTHONPATH=../before/src python tests/bits.py before.json
    PYTHONPATH=src python tests/bits.py after.json --compare before.json

The calls are those of `tests/cases.py` in every floating dtype, by kernel and by reference, with first and second
derivatives, and 600 with random shapes, layouts, dtypes and options.
"""

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path

import torch
from cases import CASES

from evenkeel import functional as F

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RANDOM_CALLS = 600


def digest(tensors):
    """The hash of dtypes, shapes, strides and bytes; of an error, its class."""
    if isinstance(tensors, Exception):
        return type(tensors).__name__
    text = hashlib.sha256()
    for t in tensors:
        if t is not None:
            text.update(f"{t.dtype} {tuple(t.shape)} {t.stride()}".encode())
            text.update(t.detach().contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return text.hexdigest()[:16]


def results(function, inputs, *, second=False):
    """The outputs without gradients, and with them: first derivatives and, where asked for, second ones."""
    try:
        with torch.no_grad():
            alone = as_tuple(function(*inputs))
        leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in inputs]
        outputs = as_tuple(function(*leaves))
        generator = torch.Generator().manual_seed(7)
        cotangents = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]
        first = torch.autograd.grad(outputs, leaves, cotangents, create_graph=second)
        again = ()
        if second:
            again = torch.autograd.grad([g.sin().sum() for g in first], leaves, allow_unused=True)
    except (RuntimeError, ValueError, TypeError) as error:
        return error
    return (*alone, *outputs, *first, *again)


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def case_digests():
    for case in CASES:
        for dtype in DTYPES:
            for shape in case.shapes:
                inputs = case.inputs(shape, dtype)[:-1]
                for name, function in (("kernel", case.function), ("reference", case.reference)):
                    key = f"{case.name} {name} {dtype} {shape}"
                    yield key, digest(results(function, inputs, second=dtype == torch.float64))


def random_tensor(chance, shape, dtype):
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    t = torch.randn(shape, generator=generator, dtype=torch.float64) * chance.choice([1.0, 1.0, 1e-3, 1e4])
    t = (t + chance.choice([0.0, 0.0, 3.0, 1e3])).to(dtype)
    if len(shape) == 4 and chance.random() < 0.4:
        return t.to(memory_format=torch.channels_last)
    if chance.random() < 0.2:
        return torch.cat([t, t], -1)[..., : shape[-1]]
    return t


def parameters(chance, shape, dtype):
    kinds = chance.choice([(), ("weight",), ("weight", "bias")])
    other = chance.choice([dtype, torch.float32])
    return {kind: random_tensor(chance, shape, other) * 0.1 + 1.0 for kind in kinds}


def random_options(chance, **more):
    options = {"eps": chance.choice([1e-5, 1e-6, 1e-2]), **more}
    if chance.random() < 0.3:
        options["eps_mode"] = chance.choice(["outside", "clamp"])
    if chance.random() < 0.3:
        options["weight_offset"] = 1.0
    return options


def random_row_call(chance):
    dtype = chance.choice(DTYPES)
    name = chance.choice(["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"])
    features = chance.choice([1, 3, 16, 33, 64, 300, 768, 1023])
    shape = (*chance.choice([(), (1,), (5,), (40,), (2, 3), (3, 7, 2)]), features)
    affine = parameters(chance, (features,), dtype)
    if "rms" in name:
        affine.pop("bias", None)
    options = random_options(chance)
    inputs = [random_tensor(chance, shape, dtype)]
    if name.startswith("add"):
        inputs.append(random_tensor(chance, shape, chance.choice([dtype, torch.float32])))
        options["residual_rounding"] = chance.choice(["rounded", "unrounded"])
    elif chance.random() < 0.3:
        options["cast"] = "early"
    elif chance.random() < 0.3:
        options["memory_efficient"] = True

    def call(*tensors):
        given = dict(zip(affine, tensors[len(inputs) :], strict=True))
        return getattr(F, name)(*tensors[: len(inputs)], (features,), **given, **options)

    return f"{name} {shape} {dtype} {options} {list(affine)}", call, (*inputs, *affine.values())


def random_channel_call(chance):
    dtype = chance.choice(DTYPES)
    name = chance.choice(["batch_norm", "instance_norm", "group_norm"])
    channels = chance.choice([4, 8, 12, 64])
    shape = (chance.choice([2, 3, 8]), channels, *chance.choice([(5,), (3, 4), (7, 7), (14, 14), (2, 3, 4)]))
    affine = parameters(chance, (channels,), dtype)
    options = random_options(chance)
    if chance.random() < 0.3:
        options["mask"] = torch.arange(shape[0]) != 1
    if chance.random() < 0.2:
        options["cast"] = "early"
    if name != "instance_norm" and chance.random() < 0.4:
        options["activation"] = chance.choice(["relu", "silu"])
    arguments, running = (), {}
    if name == "group_norm":
        arguments = (chance.choice([1, 2, 4]),)
    else:
        key = "training" if name == "batch_norm" else "use_input_stats"
        options[key] = chance.random() < 0.6
        running = {"running_mean": torch.arange(float(channels)) / 4, "running_var": 1 + torch.arange(channels) / 8}

    def call(x, *tensors):
        given = dict(zip(affine, tensors, strict=True))
        remembered = {label: statistic.clone() for label, statistic in running.items()}
        y = getattr(F, name)(x, *arguments, **remembered, **given, **options)
        running.update(remembered)
        return y

    return (
        f"{name} {shape} {dtype} {options} {list(affine)}",
        call,
        (random_tensor(chance, shape, dtype), *affine.values()),
    )


def random_digests():
    chance = random.Random(20)
    for index in range(RANDOM_CALLS):
        make = random_row_call if index % 2 else random_channel_call
        key, call, inputs = make(chance)
        yield f"{index} {key} {[t.stride() for t in inputs]}", digest(results(call, inputs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("digests", type=Path)
    parser.add_argument("--compare", type=Path)
    options = parser.parse_args()
    digests = {**dict(case_digests()), **dict(random_digests())}
    options.digests.write_text(json.dumps(digests, indent=1))
    errors = sum(len(value) < 16 or not set(value) <= set("0123456789abcdef") for value in digests.values())
    sys.stdout.write(f"{len(digests)} calls, {errors} of which raise\n")
    if options.compare:
        other = json.loads(options.compare.read_text())
        different = sorted(key for key in digests.keys() | other.keys() if digests.get(key) != other.get(key))
        sys.stdout.write("\n".join([*different, f"{len(different)} of {len(digests)} differ\n"]))
        return int(bool(different))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
