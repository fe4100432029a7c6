"""ImageNormalize and ImageStatistics: pictures of every kind, presets, both definitions, and the way back."""

import numpy as np
import pytest
import torch
from PIL import Image

from evenkeel import ContractError, EvenkeelError, InvalidArgumentError, InvalidInputError, InvalidTypeError
from evenkeel.data import IMAGE_PRESETS, ContractWarning, ImageNormalize, ImagePreset, ImageStatistics, fit_statistics
from evenkeel.data.sources import IMAGES

MEAN, STD = IMAGE_PRESETS["imagenet"].mean, IMAGE_PRESETS["imagenet"].std
HWC = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)


def expected(hwc, max_value=255.0, mean=MEAN, std=STD):
    y = (hwc.astype(np.float64) / max_value - np.array(mean)) / np.array(std)
    return torch.from_numpy(np.moveaxis(y, -1, -3).astype(np.float32))


def test_worked_pixel():
    y = ImageNormalize.preset("imagenet")(np.array([[[120, 100, 90]]], dtype=np.uint8))
    assert [round(v, 6) for v in y.flatten().tolist()] == [-0.062933, -0.285014, -0.235817]


@pytest.mark.parametrize(
    "image",
    [
        HWC,
        HWC.transpose(2, 0, 1),
        torch.from_numpy(HWC),
        torch.from_numpy(HWC).permute(2, 0, 1),
        Image.fromarray(HWC),
        HWC[::-1][::-1],
        torch.from_numpy(HWC).float(),
    ],
    ids=["numpy HWC", "numpy CHW", "torch HWC", "torch CHW", "PIL", "strided", "float"],
)
def test_every_kind_of_image(image):
    y = ImageNormalize.preset("imagenet")(image)
    assert y.shape == (3, 6, 5)
    assert y.dtype == torch.float32
    assert (y - expected(HWC)).abs().max() <= 2**-22  # an ulp of the largest value, 2.6


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_batches(layout):
    batch = np.stack([HWC, HWC[::-1]])
    given = batch if layout == "HWC" else batch.transpose(0, 3, 1, 2)
    y = ImageNormalize.preset("imagenet")(given)
    assert torch.allclose(y, expected(batch), atol=2**-22)
    assert torch.allclose(ImageNormalize.preset("imagenet", layout=layout)(given), expected(batch), atol=2**-22)


def test_grey_palette_and_transparent_images():
    grey = Image.fromarray(HWC).convert("L")
    mnist = ImageNormalize.preset("mnist")
    assert mnist(grey).shape == (1, 6, 5)
    assert torch.equal(mnist(np.asarray(grey)), mnist(grey))
    normalize = ImageNormalize.preset("imagenet")
    for mode in ("RGBA", "P", "L", "CMYK"):
        assert normalize(Image.fromarray(HWC).convert(mode)).shape == (3, 6, 5)
    assert torch.equal(normalize(Image.fromarray(HWC).convert("RGBA")), normalize(HWC))


def test_ambiguous_layouts_are_asked_for():
    square = HWC[:3]  # (3, 5, 3)
    normalize = ImageNormalize.preset("imagenet")
    with pytest.raises(InvalidInputError, match="both HWC and CHW fit; pass layout"):
        normalize(square)
    assert torch.allclose(normalize(square, layout="HWC"), expected(square), atol=2**-22)
    assert normalize(square, layout="CHW").shape == (3, 5, 3)
    for shape in ((6, 5), (6, 5, 4), (3,)):
        with pytest.raises(InvalidInputError, match="no axis has 3 channels"):
            normalize(np.zeros(shape, np.uint8))


def test_presets():
    assert IMAGE_PRESETS["imagenet"] == ImagePreset((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "per-image")
    assert IMAGE_PRESETS["imagenet-inception"].mean == (0.5, 0.5, 0.5)
    for name, preset in IMAGE_PRESETS.items():
        normalize = ImageNormalize.preset(name)
        assert (normalize.mean, normalize.std) == (preset.mean, preset.std)
        assert name in repr(normalize)
        black = normalize(np.zeros((2, 2, len(preset.mean)), np.uint8), layout="HWC")
        assert torch.allclose(black[:, 0, 0], torch.tensor(preset.mean) / -torch.tensor(preset.std))
    with pytest.raises(InvalidArgumentError, match="imagenet, imagenet-inception, clip"):
        ImageNormalize.preset("imagenette")


@pytest.mark.parametrize(
    ("values", "dtype", "max_value"),
    [
        (np.arange(256).astype(np.uint8), torch.float32, 255),
        (np.arange(256).astype(np.uint8), torch.float64, 255),
        (np.arange(65536).astype(np.uint16), torch.float32, 65535),
    ],
)
@pytest.mark.parametrize("preset", list(IMAGE_PRESETS))
def test_the_way_back_is_exact_for_every_value(preset, values, dtype, max_value):
    channels = len(IMAGE_PRESETS[preset].mean)
    image = np.repeat(values.reshape(16, -1, 1), channels, axis=2)
    normalize = ImageNormalize.preset(preset, dtype=dtype, max_value=max_value, layout="HWC")
    y = normalize(image)
    back = normalize.inverse(y)
    assert back.dtype == (torch.uint8 if max_value == 255 else torch.int32)
    assert (back.numpy() == image).all()
    assert (normalize.inverse(y, layout="CHW").movedim(0, -1).numpy() == image).all()
    assert normalize.inverse(y + 100).max() == max_value  # clipped, not wrapped around


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (HWC / 255, {}, "scaled already"),
        ((HWC / 255 - 0.5) / 0.25, {}, "normalized already"),
        (HWC, {"max_value": 1}, "divide by 255"),
        (HWC.astype(np.int16) * 100, {}, "check the depth"),
        (HWC, {"max_value": 65535}, "8 bits"),
    ],
)
def test_images_that_were_scaled_before_are_noticed(image, options, message):
    with pytest.raises(ContractError, match=message):
        ImageNormalize.preset("imagenet", **options)(image)
    with pytest.warns(ContractWarning, match=message):
        ImageNormalize.preset("imagenet", on_mismatch="warn", **options)(image)
    assert ImageNormalize.preset("imagenet", on_mismatch="ignore", **options)(image).shape == (3, 6, 5)


def test_scaled_images_have_the_depth_1():
    y = ImageNormalize.preset("imagenet", max_value=1)(HWC / 255)
    assert torch.allclose(y, expected(HWC), atol=2**-22)
    normalize = ImageNormalize.preset("imagenet", max_value=1)
    assert torch.allclose(normalize.inverse(y), torch.from_numpy(HWC / 255).float(), atol=1e-6)


def pictures():
    random = np.random.default_rng(0)
    sizes = [(5, 7), (6, 4), (8, 8)]
    # each picture around a brightness of its own: pooled deviations exceed per-image ones
    return [(random.integers(0, 60, (*size, 3)) + 90 * i).astype(np.uint8) for i, size in enumerate(sizes)]


def test_pooled_and_per_image_statistics_differ(tmp_path):
    found = ImageNormalize.fit(pictures(), definition="pooled")
    pixels = np.concatenate([p.reshape(-1, 3) for p in pictures()]) / 255
    assert np.allclose(found.mean, pixels.mean(0), rtol=1e-13)
    assert np.allclose(found.std, pixels.std(0), rtol=1e-13)
    single = ImageNormalize.fit(pictures(), definition="per-image")
    assert np.allclose(single.mean, np.mean([p.mean((0, 1)) for p in pictures()], axis=0) / 255, rtol=1e-13)
    assert np.allclose(single.std, np.mean([p.std((0, 1)) for p in pictures()], axis=0) / 255, rtol=1e-13)
    assert min(np.array(found.std) / single.std) > 1.5
    assert (found.definition, single.definition) == ("pooled", "per-image")
    pooled = torch.cat([found(p).flatten(1) for p in pictures()], 1).double()
    assert torch.allclose(pooled.std(1, correction=0), torch.ones(3).double(), atol=1e-6)

    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True)
    for index, picture in enumerate(pictures()):
        Image.fromarray(picture).save(folder / f"{index}.png")
    (tmp_path / "images" / "notes.txt").write_text("no image")
    for definition, reference in (("pooled", found), ("per-image", single)):
        fitted = ImageNormalize.fit(tmp_path / "images", definition=definition)
        assert (fitted.mean, fitted.std) == (reference.mean, reference.std)
        assert fitted.statistics_.images == 3
    (folder / "broken.png").write_bytes((folder / "0.png").read_bytes()[:60])
    with pytest.raises(EvenkeelError, match=r"broken\.png"):
        ImageNormalize.fit(tmp_path / "images", definition="pooled")


def test_images_of_every_ending_are_read_alike_by_both_fits(tmp_path):
    for number, suffix in enumerate(IMAGES.suffixes):
        Image.fromarray(np.roll(HWC, number)).save(tmp_path / f"{number}{suffix}")
    (tmp_path / "upper.PNG").write_bytes((tmp_path / "0.png").read_bytes())
    number = len(IMAGES.suffixes) + 1
    assert {".png", ".jpg", ".gif", ".ppm", ".tif"} < set(IMAGES.suffixes)
    as_table = fit_statistics(tmp_path)
    as_images = ImageNormalize.fit(tmp_path, definition="pooled").statistics_
    assert as_table.rows == as_images.pooled.rows == number * HWC.shape[0] * HWC.shape[1]
    assert as_images.images == number
    np.testing.assert_allclose(as_table.mean, as_images.pooled.mean, rtol=1e-15)


def test_what_pillow_refuses_is_named_by_both_fits(tmp_path, monkeypatch):
    Image.fromarray(HWC).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for fit in (fit_statistics, lambda path: ImageNormalize.fit(path, definition="pooled")):
        with pytest.raises(EvenkeelError, match=r"bomb\.png: cannot be read: Image size"):
            fit(tmp_path)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_of_more_than_8_bits_are_named_or_skipped_one_by_one(mode, tmp_path):
    Image.fromarray(HWC).save(tmp_path / "a.png")
    Image.new(mode, (5, 6)).save(tmp_path / "b.tif")
    with pytest.raises(EvenkeelError, match=rf"b\.tif: holds {mode} values, not 8 bits a channel"):
        fit_statistics(tmp_path)
    with pytest.warns(UserWarning, match=r"skipped 1 .*b\.tif"):
        assert fit_statistics(tmp_path, on_error="skip").rows == HWC.shape[0] * HWC.shape[1]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_fit_takes_batches_layouts_and_depths(dtype):
    depth = {np.uint8: 255, np.uint16: 65535, np.float32: 1}[dtype]
    batch = (np.random.default_rng(0).random((4, 6, 5, 3)) * depth).astype(dtype)
    one = ImageNormalize.fit(batch, definition="pooled")
    assert one.max_value == depth
    assert np.allclose(one.std, batch.std((0, 1, 2), dtype=np.float64) / depth)
    other = ImageNormalize.fit(list(batch.transpose(0, 3, 1, 2)), definition="pooled")
    assert np.allclose(other.std, one.std, rtol=1e-13)
    grey = ImageNormalize.fit(batch[..., :1], definition="per-image", channels=1)
    assert len(grey.mean) == 1


def test_image_statistics_merge():
    whole = ImageStatistics()
    for picture in pictures():
        whole.update(picture, layout="HWC")
    first = ImageStatistics().update(pictures()[0], layout="HWC")
    rest = ImageStatistics().update(pictures()[1].transpose(2, 0, 1), layout="CHW").update(pictures()[2], layout="HWC")
    merged = first.merge(rest)
    for definition in ("pooled", "per-image"):
        assert np.allclose(merged.std(definition), whole.std(definition), rtol=1e-14)
        assert np.allclose(merged.mean(definition), whole.mean(definition), rtol=1e-14)
    assert merged.images == 3
    assert merged.pooled.rows == sum(p.shape[0] * p.shape[1] for p in pictures())
    assert merged.pooled.dtypes == ("uint8",)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: ImageNormalize((0.5,), (0.5, 0.5)), InvalidArgumentError),
        (lambda: ImageNormalize((0.5,), (0,)), InvalidArgumentError),
        (lambda: ImageNormalize((0.5,), (1,), layout="WHC"), InvalidArgumentError),
        (lambda: ImageNormalize((0.5,), (1,), on_mismatch="shout"), InvalidArgumentError),
        (lambda: ImageNormalize.fit(pictures(), definition="imagenet"), InvalidArgumentError),
        (lambda: ImageNormalize.fit([], definition="pooled"), InvalidInputError),
        (lambda: ImageNormalize.fit([HWC, HWC / 255], definition="pooled"), InvalidInputError),
        (lambda: ImageNormalize.fit(HWC.astype(np.int64), definition="pooled"), InvalidInputError),
        (lambda: ImageNormalize.fit(np.ones((4, 5, 3)), definition="pooled"), InvalidInputError),
        (lambda: ImageNormalize.fit(np.ones((0, 5, 3)), definition="pooled"), InvalidInputError),
        (lambda: ImageNormalize.fit("/no/such/folder", definition="pooled"), InvalidInputError),
        (lambda: ImageStatistics().std("mean"), InvalidArgumentError),
    ],
)
def test_bad_arguments(act, error):
    with pytest.raises(error):
        act()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected mean, one number per channel, but got nothing"),
        (([0.5],), "expected std, one number per channel, but got nothing"),
        ((0.5, 0.5), "expected mean, one number per channel, but got float"),
        (("imagenet",), "expected mean, one number per channel, but got str"),
        (([0.5], np.ones((1, 2))), "expected std, one number per channel, but got ndarray"),
    ],
)
def test_without_constants_one_line_says_what_to_pass(arguments, message):
    with pytest.raises(InvalidTypeError, match=message) as caught:
        ImageNormalize(*arguments)
    assert isinstance(caught.value, TypeError)
    assert "ImageNormalize.preset(name)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_on_the_meta_device_have_no_statistics():
    for act in (
        lambda x: ImageStatistics().update(x, layout="CHW"),
        lambda x: ImageNormalize.fit(x, definition="pooled"),
    ):
        with pytest.raises(InvalidInputError, match=r"the tensor of shape \(2, 3, 4, 4\) is on the meta device"):
            act(torch.empty(2, 3, 4, 4, device="meta"))
