"""Inputs that are no dense tensors, options that are no numbers: as torch takes them, or refused in one line."""

import inspect
import re

import numpy as np
import pytest
import torch

from evenkeel import EvenkeelError, nn
from evenkeel import functional as F
from evenkeel.data import ImageNormalize, StandardScaler

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
CALLS = {
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "layer_norm weight": lambda x: F.layer_norm(X, (4,), x),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "rms_norm weight": lambda x: F.rms_norm(X, (4,), x, 1e-6),
    "add_layer_norm": lambda x: F.add_layer_norm(x, X, (4,)),
    "add_rms_norm": lambda x: F.add_rms_norm(x, X, (4,)),
    "add_rms_norm residual": lambda x: F.add_rms_norm(X, x, (4,)),
    "normalize": F.normalize,
    "normalize axis": lambda x: F.normalize(x, dim=0, p=1.0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm running_mean": lambda x: F.batch_norm(X, x, X.new_ones(4)),
    "batch_norm weight": lambda x: F.batch_norm(X, None, None, x, training=True),
    "instance_norm": F.instance_norm,
    "group_norm": lambda x: F.group_norm(x, 2),
    "group_norm bias": lambda x: F.group_norm(X, 2, None, x),
    "group_norm mask": lambda x: F.group_norm(X, 2, mask=x),
    "dyt": lambda x: F.dyt(x, 0.5),
    "LayerNorm": lambda x: nn.LayerNorm(4)(x),
    "RMSNorm": lambda x: nn.RMSNorm(4)(x),
    "BatchNorm1d": lambda x: nn.BatchNorm1d(4)(x),
    "InstanceNorm1d": lambda x: nn.InstanceNorm1d(2)(x),
    "GroupNorm": lambda x: nn.GroupNorm(2, 4)(x),
    "DyT": lambda x: nn.DyT(4)(x),
}
FOREIGN = {
    "ndarray": X.numpy,
    "list": X.tolist,
    "str": lambda: "x",
    "sparse_coo": X.to_sparse,
    "sparse_csr": X.to_sparse_csr,
    "_mkldnn": X.to_mkldnn,
    "int32": X.int,
    "qint8": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
}
# torch's words about its own prototypes
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(nested tensors|Sparse CSR|torch.jit.script|quantize_per_tensor).*", "ignore:.*is deprecated.*"
)


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_dense_floating_tensor_is_refused_in_one_line(call, kind):
    with pytest.raises(EvenkeelError) as raised:
        CALLS[call](FOREIGN[kind]())
    message = str(raised.value)
    assert "\n" not in message
    assert kind in message
    assert re.search("pass|convert", message)
    assert isinstance(raised.value, TypeError if kind in ("ndarray", "list", "str") else RuntimeError)


@pytest.mark.parametrize("call", [name for name in CALLS if len(name.split()) == 1])
def test_none_is_refused_as_an_input(call):
    with pytest.raises(TypeError, match="argument 'input' must be Tensor, not NoneType"):
        CALLS[call](None)


def parts_of(x):
    return [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)).to(x) for n in (2, 3, 1)]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm])
def test_nested_tensors_are_normalized_part_by_part(make, dtype, layout):
    norm = make(4)
    leaves = [part.requires_grad_() for part in parts_of(X.to(dtype))]
    y = norm(torch.nested.as_nested_tensor(leaves, layout=layout))
    assert y.is_nested
    assert y.layout == layout
    again = [part.detach().clone().requires_grad_() for part in leaves]
    weight = torch.arange(4.0)
    gradients = [
        torch.autograd.grad(sum((part.float() * weight).sum() for part in found), [*inputs, norm.weight])
        for found, inputs in ((y.unbind(), leaves), ([norm(part) for part in again], again))
    ]
    for a, b in zip(y.unbind(), again, strict=True):
        torch.testing.assert_close(a, norm(b))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("call", ["batch_norm", "instance_norm", "group_norm", "add_layer_norm", "dyt", "normalize"])
def test_other_norms_refuse_torchs_older_nested_tensors(call):
    nested = torch.nested.nested_tensor(parts_of(X))
    with pytest.raises(EvenkeelError, match=r"does not take a nested input; pass input\.to_padded_tensor"):
        CALLS[call](nested)


EPS = {
    "layer_norm": lambda eps: F.layer_norm(X, (4,), eps=eps),
    "rms_norm": lambda eps: F.rms_norm(X, (4,), eps=eps),
    "add_rms_norm": lambda eps: F.add_rms_norm(X, X, (4,), eps=eps),
    "normalize": lambda eps: F.normalize(X, eps=eps),
    "batch_norm": lambda eps: F.batch_norm(X, None, None, training=True, eps=eps),
    "group_norm": lambda eps: F.group_norm(X, 2, eps=eps),
    "instance_norm": lambda eps: F.instance_norm(X[None], eps=eps),
}


@pytest.mark.parametrize("eps", ["1e-5", b"1", [1e-5], X, 10**400, 1j], ids=lambda eps: type(eps).__name__)
@pytest.mark.parametrize("name", EPS)
def test_an_eps_that_is_no_number_is_refused_as_torch_refuses_it(name, eps):
    with pytest.raises(TypeError, match=rf"^{name}\(\): argument 'eps' must be float, not \w+; pass a number$"):
        EPS[name](eps)


@pytest.mark.parametrize("eps", [np.float32(0.5), np.float64(0.5), torch.tensor(0.5), np.array(0.5)], ids=type)
@pytest.mark.parametrize("name", EPS)
def test_any_number_is_an_eps(name, eps):
    expected, found = EPS[name](0.5), EPS[name](eps)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


MODULES = [
    cls
    for cls in vars(nn).values()
    if inspect.isclass(cls) and cls.__module__.startswith("evenkeel.") and cls.__name__ != "PixelNormalize"
]


@pytest.mark.parametrize("cls", MODULES, ids=lambda cls: cls.__name__)
def test_scripting_a_module_is_refused_in_one_line(cls):
    arguments = {"GroupNorm": (2, 4), "FeatureAffine": ([0.0], [1.0])}.get(
        cls.__name__, () if "Lazy" in cls.__name__ else (4,)
    )
    module = torch.nn.Sequential(cls(*arguments))
    with pytest.raises(RuntimeError) as raised:
        torch.jit.script(module)
    assert re.fullmatch(rf"{cls.__name__}: .*use torch\.jit\.trace, torch\.export.*", str(raised.value))
    assert type(module[0]) is cls


@pytest.mark.parametrize("name", [name for name in F.__all__ if inspect.isfunction(getattr(F, name))])
def test_scripting_a_function_is_refused_in_one_line(name):
    with pytest.raises(RuntimeError) as raised:
        torch.jit.script(getattr(F, name))
    assert re.fullmatch(rf".*{name}: .*use torch\.jit\.trace, torch\.export.*", str(raised.value))


TABLE = torch.ones(3, 4)
OPTIONS = {
    "normalized_shape str": lambda: F.layer_norm(X, "x"),
    "normalized_shape of str": lambda: F.rms_norm(X, ("a",)),
    "normalized_shape tensor": lambda: F.layer_norm(X, torch.zeros(4, 6)),
    "normalized_shape array": lambda: F.rms_norm(X, np.zeros((4, 6))),
    "num_groups": lambda: F.group_norm(X, 2.5),
    "dim str": lambda: F.normalize(X, dim="x"),
    "dim bool array": lambda: F.normalize(X, dim=np.zeros((4, 6))),
    "dim dict": lambda: F.normalize(X, dim={"a": 1}),
    "dim empty tensor": lambda: F.normalize(X, dim=torch.zeros(0)),
    "p": lambda: F.normalize(X, p=torch.zeros(0)),
    "momentum": lambda: F.batch_norm(X, X.new_zeros(4), X.new_ones(4), training=True, momentum=torch.zeros(0)),
    "eps of a module": lambda: nn.BatchNorm1d(4, eps=torch.zeros(0)),
    "weight_offset of a module": lambda: nn.LayerNorm(4, weight_offset="x"),
    "max_value": lambda: F.image_normalize(X.expand(3, 2, 4), [0.0] * 3, [1.0] * 3, layout="CHW", max_value="x"),
    "alpha": lambda: F.dyt(X, None),
    "out of images": lambda: F.image_normalize(X.expand(3, 2, 4), [0.0] * 3, [1.0] * 3, layout="CHW", out="x"),
    "out": lambda: F.layer_norm(X, (4,), out="x"),
    "array as alpha": lambda: nn.DyT(4, alpha=np.zeros((4, 6))),
    "alpha of a module": lambda: nn.DyT(4, alpha=None),
    "input of FeatureAffine": lambda: nn.FeatureAffine([0.0], [1.0])(None),
    "dim bytes": lambda: F.normalize(X, dim=b"x"),
    "bias of dyt": lambda: F.dyt(X, 0.5, bias="x"),
    "x of column_affine": lambda: F.column_affine("x", X[0], X[0]),
    "shift of column_affine": lambda: F.column_affine(TABLE, None, X[0]),
    "x of has_infinity": lambda: F.has_infinity([1.0]),
    "images": lambda: F.image_moments("x", layout="CHW"),
    "weight of column_moments": lambda: F.column_moments(TABLE, weight="x"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_another_kind_is_a_type_error_in_one_line(option):
    with pytest.raises(EvenkeelError) as raised:
        OPTIONS[option]()
    assert isinstance(raised.value, TypeError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "clip",
    ["x", b"x", [], torch.zeros(0), torch.zeros(2, 2).to_mkldnn(), torch.tensor(2.0), (1.0, 0.0), (0.0, 1.0, 2.0)],
    ids=str,
)
def test_what_is_no_range_is_refused(clip):
    with pytest.raises(EvenkeelError, match="clip needs"):
        F.column_affine(TABLE, X[0], X[0], clip=clip)


@pytest.mark.parametrize(
    "call", [F.has_infinity, lambda x: F.column_moments(x), lambda x: F.column_affine(x, X[0], X[0])]
)
@pytest.mark.parametrize("kind", ["sparse_coo", "_mkldnn"])
def test_tables_that_are_not_dense_are_refused(call, kind):
    with pytest.raises(EvenkeelError, match="expected a dense x"):
        call(FOREIGN[kind]())


def test_a_message_is_one_line_whatever_a_value_prints():
    for value in (torch.zeros(4, 6), "a\nb"):
        with pytest.raises(EvenkeelError) as raised:
            F.layer_norm(X, (4,), backend=value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_vectors_along_all_axes(p):
    assert torch.allclose(F.normalize(X, p=p, dim=None), torch.nn.functional.normalize(X, p=p, dim=None), rtol=1e-6)


def test_momentum_may_be_any_number():
    running = [X.new_zeros(4), X.new_ones(4)]
    F.batch_norm(X, *running, training=True, momentum=10**30)
    assert running[0].isfinite().all()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: F.layer_norm(X, {}), TypeError, "must be tuple of ints, not dict"),
        (lambda: F.group_norm(X, 0), RuntimeError, "Expected num groups to be greater than 0"),
        (lambda: F.group_norm(X, -1), RuntimeError, "Expected num groups to be greater than 0"),
        (lambda: nn.GroupNorm(-1, 4), RuntimeError, "Expected num groups to be greater than 0"),
        (lambda: nn.FeatureAffine([0.0], [1.0], axis=True), TypeError, "'axis' must be int, not bool"),
        (lambda: ImageNormalize(X.to_mkldnn(), [1.0]), TypeError, "expected mean, one number per channel"),
        (lambda: StandardScaler().fit(torch.nested.nested_tensor([X, X])), TypeError, "expected a dense tensor"),
    ],
    ids=["mapping", "no groups", "fewer groups", "groups", "axis", "image means", "nested table"],
)
def test_what_the_fuzzers_found(call, kind, message):
    with pytest.raises(kind, match=message) as raised:
        call()
    assert isinstance(raised.value, EvenkeelError)
    assert "\n" not in str(raised.value)


def test_a_largest_value_may_be_any_number():
    assert nn.PixelNormalize([0.5], [0.5], max_value=10**30)(torch.zeros(1, 2, 2)).isfinite().all()


def freed(*shape):
    """A tensor whose storage was given back, as sharding does with parameters that are not needed now."""
    t = torch.randn(shape)
    t.untyped_storage().resize_(0)
    return t


FREED = {
    "layer_norm": lambda: F.layer_norm(freed(2, 4), (4,)),
    "layer_norm weight": lambda: F.layer_norm(X, (4,), freed(4)),
    "layer_norm gradient": lambda: F.layer_norm(X.clone().requires_grad_(), (4,)).backward(freed(2, 4)),
    "layer_norm of a slice": lambda: F.layer_norm(freed(2, 8)[:, :4], (4,)),
    "add_rms_norm": lambda: F.add_rms_norm(X, freed(2, 4), (4,)),
    "batch_norm": lambda: F.batch_norm(freed(2, 4), None, None, training=True),
    "batch_norm running_var": lambda: F.batch_norm(X, X.new_ones(4), freed(4)),
    "group_norm": lambda: F.group_norm(freed(2, 4), 2),
    "group_norm gradient": lambda: F.group_norm(X.clone().requires_grad_(), 2).backward(freed(2, 4)),
    "instance_norm": lambda: F.instance_norm(freed(2, 4, 3)),
    "large": lambda: F.layer_norm(freed(1024, 1025), (1025,)),
    "fit": lambda: StandardScaler().fit(freed(5, 4)),
    "transform": lambda: StandardScaler().fit(X).transform(freed(5, 4)),
}


@pytest.mark.parametrize("in_python", [False, True], ids=["compiled nodes", "Python's nodes"])
@pytest.mark.parametrize("name", FREED)
def test_a_tensor_whose_storage_was_freed_is_refused(name, in_python, monkeypatch):
    if in_python:
        for module in ("_rows_autograd", "_channel_kernels"):
            monkeypatch.setattr(f"evenkeel.functional.{module}.nodes", None)
    with pytest.raises(RuntimeError, match=r"no memory|data pointer|out of bounds for storage"):
        FREED[name]()
