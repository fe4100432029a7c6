"""Pictures to normalized planes, and their moments: exact values, layouts, dtypes, memory, tracing."""

import numpy as np
import pytest
import torch
from bits import digest
from column_tables import misaligned

from evenkeel import BackendError, InvalidArgumentError, InvalidInputError
from evenkeel import functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
layouts = pytest.mark.parametrize("layout", ["HWC", "CHW"])


def pictures(shape, dtype=torch.uint8):
    if dtype.is_floating_point:
        return torch.rand(shape).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 120, shape).to(dtype)


def constants(channels):
    return torch.linspace(0.2, 0.7, channels, dtype=torch.float64), torch.linspace(0.2, 0.4, channels).double()


def every_byte(channels, layout):
    x = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, 32, 24)
    return x.expand(channels, -1, -1) if layout == "CHW" else x.expand(channels, -1, -1).movedim(0, -1).contiguous()


def test_the_worked_example():
    pixel = torch.tensor([[[120, 100, 90]]], dtype=torch.uint8)
    y = F.image_normalize(pixel, *IMAGENET, layout="HWC", backend="cpu").flatten()
    torch.testing.assert_close(y, torch.tensor([-0.062933, -0.285014, -0.235817]), rtol=0, atol=5e-7)


@layouts
@pytest.mark.parametrize("max_value", [255.0, 1.0, 65535.0, 3.7])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_byte_is_rounded_once(channels, max_value, layout):
    x = every_byte(channels, layout)
    generator = np.random.default_rng(0)
    # 0.4 = 102/255 gives an exact 0; 1000 and 1e-30 have no short form
    means = [*generator.uniform(0, 1, 20), 0.4, 0.5, 0.0, 1000.0, 1e-30]
    for mean in means:
        centre, spread = [mean * (1 - 0.1 * c) for c in range(channels)], [0.229 + 0.01 * c for c in range(channels)]
        wanted = F.image_normalize_reference(
            x, torch.tensor(centre).double(), torch.tensor(spread).double(), layout=layout, max_value=max_value
        )
        found = F.image_normalize(
            x, torch.tensor(centre).double(), torch.tensor(spread).double(), layout=layout, max_value=max_value,
            backend="cpu",
        )  # fmt: skip
        assert torch.equal(found, wanted)
        values = x.numpy() if layout == "CHW" else np.moveaxis(x.numpy(), -1, 0)
        c32 = torch.tensor(centre).double().numpy()[:, None, None]
        exact = (values.astype(np.longdouble) / max_value - c32) / torch.tensor(spread).double().numpy()[:, None, None]
        # within 1 ulp of the exact value where float64 itself keeps the digits: not where x/max and the mean cancel
        error = abs(found.numpy() - exact)
        assert (error <= np.spacing(abs(found.numpy())) + 1e-15 * (1 + abs(mean)) / 0.2).all()


@layouts
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("to", FLOATS, ids=str)
def test_channels_and_results(to, channels, layout):
    mean, std = constants(channels)
    for height, width in ((1, 1), (3, 5), (7, 16), (33, 31), (64, 64)):
        for leading in ((), (2,), (2, 3)):
            shape = (*leading, height, width, channels) if layout == "HWC" else (*leading, channels, height, width)
            x = pictures(shape)
            found = F.image_normalize(x, mean, std, layout=layout, dtype=to, backend="cpu")
            assert found.is_contiguous()
            assert torch.equal(found, F.image_normalize_reference(x, mean, std, layout=layout, dtype=to))


@layouts
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int16, torch.uint16, torch.int32, torch.bool], ids=str)
def test_other_inputs(dtype, layout):
    mean, std = constants(3)
    x = pictures((2, 9, 11, 3) if layout == "HWC" else (2, 3, 9, 11), dtype)
    for to in FLOATS:
        options = {"layout": layout, "max_value": 1.0 if dtype.is_floating_point else 4095.0, "dtype": to}
        found = F.image_normalize(x, mean, std, **options, backend="cpu")
        assert torch.equal(found, F.image_normalize_reference(x, mean, std, **options))


@layouts
def test_views_are_read_where_they_are(layout):
    mean, std = constants(3)
    whole = pictures((3, 40, 50, 4)) if layout == "HWC" else pictures((3, 4, 40, 50))
    if layout == "HWC":
        views = [whole[..., :3], whole[:, 3:35, 5:37, :3], whole[:, ::2, ::3, 1:], whole[::2, :, :, :3]]
        views.append(whole.movedim(-1, 1).contiguous().movedim(1, -1)[..., :3])
    else:
        views = [whole[:, :3], whole[:, :3, 3:35, 5:37], whole[:, 1:, ::2, ::3], whole[::2, :3]]
        views.append(whole[:, :3].contiguous(memory_format=torch.channels_last))
    views += [views[0].transpose(0, 1)] if layout == "HWC" else [whole[:, :3].expand(2, -1, -1, -1, -1)]
    for view in views:
        kept = view.clone()
        found = F.image_normalize(view, mean, std, layout=layout, backend="cpu")
        assert torch.equal(found, F.image_normalize_reference(view, mean, std, layout=layout))
        assert torch.equal(view, kept)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("size", [(224, 224), (223, 225)], ids=str)
def test_large_batches_into_given_memory(size, offset):
    # large enough to be written past the caches, aligned and not
    x = pictures((30, *size, 3))
    elements = x.numel()
    memory = torch.full((elements + 2,), torch.nan)
    out = memory[offset : offset + elements].view(30, 3, *size)
    returned = F.image_normalize(x, *IMAGENET, layout="HWC", out=out, backend="cpu")
    assert returned is out
    assert torch.equal(out, F.image_normalize(x, *IMAGENET, layout="HWC", backend="reference"))
    assert memory[:offset].isnan().all()
    assert memory[offset + elements :].isnan().all()


@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16], ids=str)
def test_large_batches_into_misaligned_memory(to):
    x = pictures((56 * 4 // to.itemsize, 160, 160, 3))  # 16 MB: large enough to be written past the caches
    mean, std = constants(3)
    out = misaligned(x.numel(), to).view(len(x), 3, 160, 160)
    F.image_normalize(x, mean, std, layout="HWC", dtype=to, out=out, backend="cpu")
    assert torch.equal(out, F.image_normalize_reference(x, mean, std, layout="HWC", dtype=to))


def digests():
    torch.manual_seed(0)
    found = {}
    for channels in (1, 3, 4, 5):
        mean, std = constants(channels)
        for to in FLOATS:
            x = pictures((2, 33, 31, channels))
            data = [F.image_normalize(x, mean * s, std, layout="HWC", dtype=to) for s in (1, 1e9)]
            data += F.image_moments(x, layout="HWC")
            found[f"{channels} {to}"] = digest(data)
    return found


@layouts
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32], ids=str)
def test_moments_per_image_and_pooled(dtype, layout):
    x = pictures((2, 3, 17, 19, 3), dtype) if layout == "HWC" else pictures((2, 3, 3, 17, 19), dtype)
    found = F.image_moments(x, layout=layout, backend="cpu")
    values = (x if layout == "HWC" else x.movedim(-3, -1)).double().flatten(2, 3)  # (2, 3, pixels, channels)
    torch.testing.assert_close(found.mean, values.mean(2), rtol=1e-14, atol=0)
    torch.testing.assert_close(found.m2, values.var(2, correction=0) * 17 * 19, rtol=1e-13, atol=0)
    assert found.count.shape == (2, 3, 3)
    assert (found.count == 17 * 19).all()
    reference = F.image_moments(x, layout=layout, backend="reference")
    torch.testing.assert_close(found.m2, reference.m2, rtol=1e-13, atol=0)
    assert torch.equal(found.maximum, reference.maximum)
    # pooled: within and between the pictures
    pooled = (found.m2 + (found.mean - found.mean.mean((0, 1))).square() * found.count).sum((0, 1)) / found.count.sum(
        (0, 1)
    )
    torch.testing.assert_close(pooled, values.flatten(0, 2).var(0, correction=0), rtol=1e-13, atol=0)


@layouts
def test_moments_of_a_picture_are_those_it_has_in_a_batch(layout):
    picture = pictures((3, 700, 800) if layout == "CHW" else (700, 800, 3), torch.float64)
    alone = F.image_moments(picture, layout=layout, backend="cpu")
    batch = F.image_moments(picture.expand(90, *picture.shape), layout=layout, backend="cpu")
    for one, many in zip(alone, batch, strict=True):
        assert torch.equal(one.expand_as(many), many)


def test_integer_moments_are_exact():
    x = torch.randint(0, 256, (2, 100, 100, 3), dtype=torch.uint8)
    found = F.image_moments(x, layout="HWC", backend="cpu")
    for image, channel in ((0, 0), (1, 2)):
        values = [int(v) for v in x[image, ..., channel].flatten()]
        total, squares, n = sum(values), sum(v * v for v in values), len(values)
        assert found.mean[image, channel].item() == total / n
        # sums are exact, and their combination rounds twice
        exact = (n * squares - total * total) / n
        assert abs(found.m2[image, channel].item() - exact) <= 2**-51 * exact


def test_wrong_inputs_say_what_to_do():
    x = pictures((4, 5, 3))
    with pytest.raises(InvalidArgumentError, match="layout must be one of HWC, CHW"):
        F.image_normalize(x, *IMAGENET, layout="hwc")
    with pytest.raises(InvalidInputError, match="is the layout right"):
        F.image_normalize(x, *IMAGENET, layout="CHW")
    with pytest.raises(InvalidInputError, match="unsqueeze"):
        F.image_moments(x[..., 0], layout="HWC")
    with pytest.raises(InvalidArgumentError, match="std must not be 0"):
        F.image_normalize(x, [0, 0, 0], [1, 0, 1], layout="HWC")
    with pytest.raises(InvalidArgumentError, match="max_value must be positive"):
        F.image_normalize(x, *IMAGENET, layout="HWC", max_value=0)
    with pytest.raises(InvalidInputError, match="floating"):
        F.image_normalize(x, *IMAGENET, layout="HWC", dtype=torch.uint8)
    with pytest.raises(InvalidInputError, match="out must be contiguous"):
        F.image_normalize(x, *IMAGENET, layout="HWC", out=torch.empty(4, 5, 3))
    with pytest.raises(BackendError, match="it does not take"):
        F.image_normalize(x.to(torch.uint64), *IMAGENET, layout="HWC", backend="cpu")


@pytest.mark.parametrize("shape", [(0, 4, 5, 3), (2, 0, 5, 3), (2, 4, 5, 0)], ids=str)
def test_empty_pictures(shape):
    mean, std = constants(shape[-1])
    assert F.image_normalize(pictures(shape), mean, std, layout="HWC", backend="cpu").numel() == 0
    assert F.image_moments(pictures(shape), layout="HWC", backend="cpu").count.shape == (shape[0], shape[-1])


def test_gradients_compile_and_export():
    mean, std = constants(3)
    x = pictures((2, 8, 9, 3))
    call = lambda t: F.image_normalize(t, mean, std, layout="HWC")  # noqa: E731
    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))

    class Module(torch.nn.Module):
        def forward(self, x):
            return call(x)

    torch.testing.assert_close(torch.export.export(Module(), (x,)).module()(x), call(x))
    leaf = torch.rand(2, 8, 9, 3, dtype=torch.float64, requires_grad=True)
    double = lambda t: F.image_normalize(t, mean, std, layout="HWC", max_value=1.0, dtype=torch.float64)  # noqa: E731
    assert torch.autograd.gradcheck(double, (leaf[:1, :2, :2],))


def test_operators_pass_opcheck():
    mean, std = constants(3)
    x = pictures((2, 6, 7, 3)).movedim(-1, -3)
    torch.library.opcheck(torch.ops.evenkeel.image_normalize, (x, mean, std, 255.0, torch.float32))
    torch.library.opcheck(torch.ops.evenkeel.image_normalize_out, (x, mean, std, 255.0, torch.empty(2, 3, 6, 7)))
