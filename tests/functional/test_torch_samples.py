"""torch's own operator test inputs for the norms, on ours: values, gradients, transforms and error inputs."""

import contextlib
import inspect
import re

import pytest
import torch
from settings import SETTINGS
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

from evenkeel import functional as F
from evenkeel import nn

NAMES = ("layer_norm", "rms_norm", "batch_norm", "instance_norm", "group_norm", "normalize")
INFOS = {name: next(i for i in op_db if i.name == f"nn.functional.{name}") for name in NAMES}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MODULES = {
    info.module_cls.__name__: info
    for info in module_db
    if re.fullmatch(r"(Batch|Instance|Group|Layer|RMS)Norm(\dd)?", info.module_cls.__name__)
}

every_norm = pytest.mark.parametrize("name", NAMES)
every_setting = pytest.mark.parametrize("setting", SETTINGS)


def samples(name, dtype, *, requires_grad=False):
    return list(INFOS[name].sample_inputs("cpu", dtype, requires_grad))


def call(function, sample, *tensors):
    """Call with the sample's arguments, floating tensors replaced in order; running statistics are copied."""
    given = iter(tensors)
    args = [next(given) if is_floating(a) else a for a in (sample.input, *sample.args)]
    kwargs = {k: next(given) if is_floating(v) else v for k, v in sample.kwargs.items()}
    return function(*args, **kwargs)


def is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def floating(sample):
    values = (sample.input, *sample.args, *sample.kwargs.values())
    return [v.detach().clone() for v in values if is_floating(v)]


def differentiable(name, sample):
    """The positions of the tensors that take a gradient: all but running statistics."""
    count = len(floating(sample))
    if name in ("batch_norm", "instance_norm"):
        named = [k for k, v in sample.kwargs.items() if is_floating(v)]
        positional = 1 + sum(is_floating(a) for a in sample.args)
        running = {positional + i for i, k in enumerate(named) if k.startswith("running")}
        running |= {i for i in (1, 2) if i < positional and name == "batch_norm" and len(sample.args) >= 2}
        return [i for i in range(count) if i not in running]
    return list(range(count))


def uses_batch(name, sample):
    bound = inspect.signature(getattr(F, name)).bind(sample.input, *sample.args, **sample.kwargs)
    bound.apply_defaults()
    return bound.arguments.get("training", bound.arguments.get("use_input_stats", False))


def close(mine, theirs, name, sample):
    # torch's own half-precision results carry several roundings: its tolerances, not ours
    loose = {torch.bfloat16: (3e-2, 3e-2), torch.float16: (4e-3, 4e-3)}.get(mine.dtype)
    tolerance = {} if loose is None else {"rtol": loose[0], "atol": loose[1]}
    torch.testing.assert_close(mine, theirs, msg=lambda m: f"{name} {sample}: {m}", **tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_norm
def test_values_and_running_statistics(name, dtype):
    function, theirs = getattr(F, name), INFOS[name].op
    found = samples(name, dtype)
    assert found
    for sample in found:
        mine_in, their_in = floating(sample), floating(sample)
        close(call(function, sample, *mine_in), call(theirs, sample, *their_in), name, sample)
        for a, b in zip(mine_in, their_in, strict=True):
            close(a, b, name, sample)


@every_norm
def test_gradients_match_torch(name):
    for sample in samples(name, torch.float64):
        chosen = differentiable(name, sample)
        results = []
        for function in (getattr(F, name), INFOS[name].op):
            tensors = [t.requires_grad_() if i in chosen else t for i, t in enumerate(floating(sample))]
            y = call(function, sample, *tensors)
            cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
            leaves = [tensors[i] for i in chosen]
            results.append(torch.autograd.grad(y, leaves, cotangent, allow_unused=True))
        for a, b in zip(*results, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def as_plain(t):
    return None if t is None else t.as_subclass(torch.Tensor)


def bits(t):
    return t if t is None else (t.dtype, t.shape, t.stride(), t.detach().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_setting
@every_norm
def test_a_setting_changes_no_bit(name, setting, dtype):
    """Values, running statistics and gradients."""
    mode, convert = SETTINGS[setting]
    for sample in samples(name, dtype):
        chosen, results = differentiable(name, sample), []
        for watched in (False, True):
            tensors = [t.requires_grad_() if i in chosen else t for i, t in enumerate(floating(sample))]
            with mode() if watched else contextlib.nullcontext():
                y = call(getattr(F, name), sample, *[convert(t) if watched else t for t in tensors])
                dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device="cpu").reshape(y.shape)
                gradients = torch.autograd.grad(y, [tensors[i] for i in chosen], dy, allow_unused=True)
            found = (y, *tensors, *gradients)
            assert all(t is None or t.device.type == "cpu" for t in found)
            results.append([bits(as_plain(t)) for t in found])
        assert results[0] == results[1]


@every_norm
def test_gradcheck_of_every_sample(name):
    checked = 0
    for sample in samples(name, torch.float64):
        if sample.input.numel() == 0:
            continue
        chosen = differentiable(name, sample)
        fixed = floating(sample)

        def function(*leaves, sample=sample, fixed=fixed, chosen=chosen):
            tensors = [t.clone() for t in fixed]
            for i, leaf in zip(chosen, leaves, strict=True):
                tensors[i] = leaf
            return call(getattr(F, name), sample, *tensors)

        leaves = [fixed[i].clone().requires_grad_() for i in chosen]
        torch.autograd.gradcheck(
            function, leaves, fast_mode=True, check_forward_ad=True, check_batched_grad=True, check_undefined_grad=False
        )
        torch.autograd.gradgradcheck(function, leaves, fast_mode=True)
        checked += 1
    assert checked


@every_norm
def test_vmap_of_every_sample(name):
    for sample in samples(name, torch.float64):
        tensors = floating(sample)
        chosen = differentiable(name, sample)
        if len(chosen) < len(tensors) and uses_batch(name, sample):
            continue  # running statistics are updated in place: vmap refuses that, in torch too

        def one(x, sample=sample, tensors=tensors):
            return call(getattr(F, name), sample, x, *(t.clone() for t in tensors[1:]))

        stacked = torch.stack([tensors[0], tensors[0] * 2 + 1])
        expected = torch.stack([one(x) for x in stacked])
        torch.testing.assert_close(torch.func.vmap(one)(stacked), expected)


@every_setting
@every_norm
def test_error_inputs(name, setting):
    info, (mode, convert) = INFOS[name], SETTINGS[setting]
    if info.error_inputs_func is None:
        assert name not in ("rms_norm", "group_norm")
        return
    for error in info.error_inputs("cpu"):
        sample = error.sample_input
        with mode(), pytest.raises(error.error_type, match=error.error_regex):
            getattr(F, name)(convert(sample.input), *sample.args, **sample.kwargs)


def test_layer_norm_error_inputs():
    info = next(i for i in op_db if i.name == "native_layer_norm")
    for error in info.error_inputs("cpu"):
        sample = error.sample_input
        with pytest.raises(error.error_type, match=error.error_regex):
            F.layer_norm(sample.input, *sample.args)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("setting", [None, *SETTINGS])
@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_on_torchs_inputs(name, setting, training):
    info = MODULES[name]
    mode, convert = (contextlib.nullcontext, as_plain) if setting is None else SETTINGS[setting]
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=training)
    assert inputs
    for one in inputs:
        built = one.constructor_input
        modules = [
            cls(*built.args, dtype=torch.float64, **built.kwargs) for cls in (getattr(nn, name), info.module_cls)
        ]
        modules[0].load_state_dict(modules[1].state_dict())
        results = []
        for module, inside, own in zip(modules, (mode, contextlib.nullcontext), (convert, as_plain), strict=True):
            module.train(training)
            x = one.forward_input.args[0].detach().clone().requires_grad_()
            with inside():
                y = module(own(x))
                cotangent = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device="cpu").reshape(y.shape)
                results.append((y, *torch.autograd.grad(y, [x, *module.parameters()], cotangent)))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(as_plain(a), as_plain(b), rtol=1e-9, atol=1e-9)
        for key, value in modules[1].state_dict().items():
            torch.testing.assert_close(as_plain(modules[0].state_dict()[key]), value)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", sorted(n for n, i in MODULES.items() if i.module_error_inputs_func))
def test_module_error_inputs(name, setting):
    info, (mode, convert) = MODULES[name], SETTINGS[setting]
    errors = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    assert errors
    for error in errors:
        one = error.module_error_input
        built = one.constructor_input
        with mode(), pytest.raises(error.error_type, match=error.error_regex):  # noqa: PT012  either call may raise
            module = getattr(nn, name)(*built.args, **built.kwargs)
            module(*map(convert, one.forward_input.args), **one.forward_input.kwargs)
