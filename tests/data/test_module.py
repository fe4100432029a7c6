"""Fitted scalers as modules: buffers, inverses, folding, export."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import evenkeel as ek
from evenkeel import InvalidArgumentError, InvalidInputError
from evenkeel.data import ImageNormalize, MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from evenkeel.nn import FeatureAffine, PixelNormalize

X = np.random.default_rng(0).normal([1e6, -5, 0.01], [3, 40, 1e-4], (80, 3)).astype(np.float32)
SCALERS = [StandardScaler(), MinMaxScaler((-1, 2)), MinMaxScaler(clip=True), MaxAbsScaler(), RobustScaler()]
each_scaler = pytest.mark.parametrize("scaler", SCALERS, ids=repr)
CONVOLUTIONS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]


@each_scaler
def test_the_module_computes_what_the_scaler_does(scaler):
    module = scaler.fit(X).to_module()
    x = torch.from_numpy(X)
    assert torch.equal(module(x), scaler.transform(x))
    back = module.inverse()(module(x))
    assert torch.equal(back, torch.from_numpy(scaler.inverse_transform(scaler.transform(X))))
    assert ((back - x).abs() <= 2**-22 * (x.abs().amax(0) + x.std(0))).all()
    again = module.inverse().inverse()
    again.clip = module.clip
    assert torch.equal(again(x), module(x))
    assert module(x.reshape(4, 20, 3)).shape == (4, 20, 3)
    assert "3, axis=-1" in repr(module)


def test_uint8_in_floats_out():
    pixels = torch.randint(0, 256, (50, 3), dtype=torch.uint8)
    scaler = StandardScaler().fit(pixels)
    y = scaler.to_module()(pixels)
    assert y.dtype == torch.float32
    assert torch.equal(y, scaler.to_module()(pixels.float()))
    assert y.mean().abs() < 1e-6


def test_buffers_move_and_keep_their_digits():
    module = StandardScaler().fit(X).to_module()
    assert set(module.state_dict()) == {"shift", "scale", "offset", "inverse_numbers"}
    assert list(module.parameters()) == []
    model = nn.Sequential(module, nn.Linear(3, 2)).half()
    assert model[1].weight.dtype == torch.float16
    assert all(buffer.dtype == torch.float64 for buffer in module.buffers())
    assert model.to("meta")[0].shift.is_meta
    other = FeatureAffine([0.0] * 3, [1.0] * 3)
    other.load_state_dict(StandardScaler().fit(X).to_module().state_dict())
    assert torch.equal(other(torch.from_numpy(X)), StandardScaler().fit(X).to_module()(torch.from_numpy(X)))
    assert torch.equal(copy.deepcopy(other)(torch.from_numpy(X)), other(torch.from_numpy(X)))


@pytest.mark.parametrize("axis", [-1, 1, -3, 0])
def test_axes(axis):
    x = torch.randn(3, 3, 3, 3)
    module = FeatureAffine([1.0, 2, 3], [0.5, 1, 2], [0.0, 1, 0], axis=axis)
    shape = [1] * 4
    shape[axis] = 3
    shift, scale, offset = (part.view(shape) for part in (module.shift, module.scale, module.offset))
    assert torch.allclose(module(x).double(), (x.double() - shift) * scale + offset, rtol=1e-6, atol=1e-6)
    assert torch.allclose(module.inverse()(module(x)), x, atol=1e-6)


def test_gradients():
    module = FeatureAffine([1.0, 2], [0.5, 4], clip=(-10, 10))
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))
    assert torch.autograd.gradcheck(module.inverse(), (x,))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: FeatureAffine([1.0, 2], [1.0]), InvalidArgumentError),
        (lambda: FeatureAffine([[1.0]], [[1.0]]), InvalidArgumentError),
        (lambda: FeatureAffine([1.0], [1.0], clip=(2, 1)), InvalidArgumentError),
        (lambda: FeatureAffine([1.0], [1.0])(torch.ones(3, 2)), InvalidInputError),
        (lambda: FeatureAffine([1.0], [1.0], axis=2)(torch.ones(3, 1)), InvalidInputError),
        (lambda: PixelNormalize([0.5], [0.0]), InvalidArgumentError),
        (lambda: PixelNormalize([0.5], [0.5], layout="WHC"), InvalidArgumentError),
    ],
)
def test_bad_arguments(make, error):
    with pytest.raises(error):
        make()


@each_scaler
@pytest.mark.parametrize("bias", [True, False])
def test_folding_into_linear(scaler, bias):
    table = X.astype(np.float64)
    module = scaler.fit(table).to_module()
    layer = nn.Linear(3, 4, bias=bias, dtype=torch.float64)
    layer.weight.requires_grad_(False)
    if module.clip is not None:
        with pytest.raises(InvalidArgumentError, match="clipping"):
            module.fold_into(layer)
        return
    folded = module.fold_into(layer)
    x = torch.from_numpy(table)
    # the mean of 1e6 deviations leaves 10 digits
    assert torch.allclose(folded(x), layer(module(x)), rtol=1e-8, atol=1e-8)
    assert type(folded) is nn.Linear
    assert folded is not layer
    assert not folded.weight.requires_grad
    assert folded.bias.requires_grad == bias


def images(dimensions, channels=4):
    return torch.randint(0, 256, (2, channels, *[7] * dimensions), dtype=torch.uint8)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"groups": 2, "stride": 2, "dilation": 2},
        {"padding": 1, "padding_mode": "replicate"},
        {"padding": "same", "padding_mode": "circular"},
        {"padding": "valid"},
    ],
    ids=repr,
)
def test_folding_into_convolutions(kind, options):
    dimensions = CONVOLUTIONS.index(kind) + 1
    x = images(dimensions)
    module = FeatureAffine(torch.rand(4) * 100, torch.rand(4) / 50, torch.randn(4), axis=1)
    layer = kind(4, 6, 3, **options).double()
    folded = module.fold_into(layer)
    assert torch.allclose(folded(x.double()), layer(module(x.double())), rtol=1e-10, atol=1e-10)
    assert type(folded) is kind
    assert folded.padding == layer.padding


@pytest.mark.parametrize("padding", [1, "same"])
def test_zero_padding_is_refused_where_zero_means_something_else(padding):
    layer = nn.Conv2d(3, 5, 3, padding=padding).double()
    for module in (ImageNormalize.preset("imagenet").to_module(), FeatureAffine([1.0] * 3, [2.0] * 3, axis=-3)):
        with pytest.raises(InvalidArgumentError, match="pads with zeros"):
            module.fold_into(layer)
    # without a shift, zero stays zero
    module = FeatureAffine([0.0] * 3, [0.5, 1, 2], axis=1)
    x = images(2, 3).double()
    assert torch.allclose(module.fold_into(layer)(x), layer(module(x)), rtol=1e-12)
    with pytest.raises(InvalidArgumentError, match=r"input 123\.675 \(feature 0\) now"):
        ImageNormalize.preset("imagenet").to_module().fold_into(layer)
    with pytest.raises(InvalidArgumentError, match=r"stand for no input at all \(feature 1\) now"):
        FeatureAffine([0.0, 5, 0], [1.0, 0, 1], [0.0, 0.5, 0], axis=1).fold_into(layer)
    one = nn.Conv2d(3, 5, 1, padding="same").double()  # one pixel wide: nothing is padded
    module = ImageNormalize.preset("imagenet", dtype=torch.float64).to_module()
    assert torch.allclose(module.fold_into(one)(x), one(module(x)), rtol=1e-12, atol=1e-12)


class Gated(nn.Linear):
    def forward(self, input):
        return super().forward(input).relu()


@pytest.mark.parametrize(
    ("module", "layer", "message"),
    [
        (FeatureAffine([1.0], [1.0]), Gated(1, 1), "of torch.nn itself"),
        (FeatureAffine([1.0], [1.0]), nn.LazyLinear(1), "of torch.nn itself"),
        (FeatureAffine([1.0], [1.0], axis=1), nn.ConvTranspose2d(1, 1, 1), "of torch.nn itself"),
        (FeatureAffine([1.0], [1.0]), nn.Conv2d(1, 1, 1), "along axis 1"),
        (FeatureAffine([1.0], [1.0], axis=1), nn.Linear(1, 1), "along axis -1"),
        (FeatureAffine([1.0], [1.0]), nn.Linear(2, 1), "takes 2 features"),
        (PixelNormalize([0.5], [0.5], layout="HWC"), nn.Conv2d(1, 1, 1), "HWC into CHW"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_folds_that_would_change_the_function_are_refused(module, layer, message):
    with pytest.raises(InvalidArgumentError, match=message):
        module.fold_into(layer)


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_pixel_normalize(layout):
    normalize = ImageNormalize.preset("imagenet")
    x = images(2, 3)
    given = x if layout == "CHW" else x.movedim(1, -1)
    module = normalize.to_module(layout=layout)
    assert torch.equal(module(given), normalize(x, layout="CHW"))
    assert torch.equal(module.inverse()(module(given)).round().byte(), x)
    layer = nn.Conv2d(3, 5, 3).double()
    if layout == "CHW":
        assert torch.allclose(module.fold_into(layer)(x.double()), layer(module(x).double()), atol=1e-6)
    assert f"layout={layout}" in repr(module)
    half = copy.deepcopy(module).half()
    assert half(given).dtype == torch.float32
    assert half.mean.dtype == torch.float64


def exportable():
    table = torch.from_numpy(X)
    yield "standard", StandardScaler().fit(X).to_module(), table
    yield "clipped range", MinMaxScaler(clip=True).fit(X).to_module(), table
    yield "uint8 table", RobustScaler().fit(images(1, 3)[0].T.numpy()).to_module(), images(1, 3)[0].T.contiguous()
    yield "channels", FeatureAffine([1.0, 2, 3, 4], [1.0, 2, 3, 4], axis=1), images(2).float()
    yield "images", ImageNormalize.preset("imagenet").to_module(), images(2, 3)
    yield (
        "images HWC",
        ImageNormalize.preset("imagenet").to_module(layout="HWC"),
        images(2, 3).movedim(1, -1).contiguous(),
    )
    yield "inverse", ImageNormalize.preset("imagenet").to_module().inverse(), torch.randn(2, 3, 4, 4)


CASES = [pytest.param(module.eval(), x, id=name) for name, module, x in exportable()]


@pytest.mark.parametrize(("module", "x"), CASES)
def test_export_computes_the_same(module, x):
    program = torch.export.export(module, (x,))
    # the exported graph is the reference: an ulp from the kernels
    assert torch.allclose(program.module()(x), module(x), rtol=2e-7, atol=1e-7)
    assert torch.compile(module, backend="eager", fullgraph=True)(x).dtype == module(x).dtype


@pytest.mark.slow
@pytest.mark.parametrize(("module", "x"), CASES)
@pytest.mark.filterwarnings("default")
def test_onnx_agrees(module, x, tmp_path):
    import onnx
    import onnxruntime

    batch = {0: torch.export.Dim("batch", min=2)}
    program = torch.onnx.export(module, (x,), dynamo=True, dynamic_shapes=(batch,), verbose=False)
    program.save(tmp_path / "module.onnx")
    model = onnx.load(tmp_path / "module.onnx")
    onnx.checker.check_model(model)
    assert {node.domain for node in model.graph.node} <= {"", "pkg.onnxscript.torch_lib.common"}
    session = onnxruntime.InferenceSession(tmp_path / "module.onnx", providers=["CPUExecutionProvider"])
    (name,) = (given.name for given in session.get_inputs())
    for given in (x, torch.cat([x, x])):
        (found,) = session.run(None, {name: given.numpy()})
        assert torch.allclose(torch.from_numpy(found), module(given), rtol=2e-7, atol=1e-7)


def test_modules_are_public():
    assert ek.nn.FeatureAffine is FeatureAffine
    assert isinstance(ImageNormalize.preset("clip").to_module(), FeatureAffine)
