"""Run the Triton kernels of tables and images in the interpreter, as `triton_worker` does those of row norms.

Usage: TRITON_INTERPRET=1 python tests/triton_tables_worker.py CASE...   (JSON: case -> name of a number -> number)

A number is an error relative to what it is an error of, or counts what differs.
"""

import itertools
import sys

import torch
from column_tables import sample, strided
from triton_worker import kernels, main, random

from evenkeel import functional as F
from evenkeel.functional._columns import column_affine_reference
from evenkeel.functional._images import image_normalize_reference

FLOATS = (torch.float32, torch.float64, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool)
SHAPES = ((1, 1), (1, 40), (5, 3), (70, 7), (300, 1), (90, 16), (40, 65), (20, 130))


def use_tiles(elements):
    """Choose how many elements a tile has, and two tiles for a chunk: small tables then have several."""
    from evenkeel.kernels.triton import _columns, _images, _launch

    _columns.TABLE_TILE, _launch.FEWEST_TILES, _images.IMAGE_BLOCK = elements, 2, elements


def moments(x, weight=None):
    """The moments of tables (rows, columns) or (tables, rows, columns)."""
    found = kernels().column_moments(x if x.ndim == 3 else x[None], weight)
    return F.ColumnMoments(*(t if x.ndim == 3 else t[0] for t in found))


def differing(a, b):
    """How many elements are not the same, NaN apart."""
    return float(((a != b) & ~(a.isnan() & b.isnan())).sum()) if a.dtype == b.dtype and a.shape == b.shape else 1e9


def errors(found, exact):
    """Of mean and m2, relative to the largest value and to m2; how many other fields differ."""
    size = exact.maximum.abs().nan_to_num(0, 0, 0).clamp_min(1e-300)
    numbers = {name: differing(getattr(found, name), getattr(exact, name)) for name in
               ("minimum", "maximum", "missing", "infinite")}  # fmt: skip
    if exact.count.dtype == torch.int64:
        numbers["count"] = differing(found.count, exact.count)
    else:
        numbers["count error"] = float(((found.count - exact.count) / exact.count.clamp_min(1e-300)).abs().max())
    for name, scale in (("mean", size), ("m2", exact.m2.clamp_min(1e-300))):
        mine, wanted = getattr(found, name), getattr(exact, name)
        numbers[f"{name} kind"] = float((mine.isfinite() != wanted.isfinite()).sum())
        both = mine.isfinite() & wanted.isfinite()
        numbers[f"{name} error"] = float((((mine - wanted).abs() / scale)[both]).max()) if both.any() else 0.0
    return numbers


def labelled(label, numbers):
    return {f"{label} {name}": value for name, value in numbers.items()}


def dtype_of_table(dtype, shapes=SHAPES):
    """Every shape: folded rows and plain ones, rests of both, several chunks and blocks of columns."""
    use_tiles(64)
    found = {}
    for shape in shapes:
        x = sample(shape, dtype)
        found |= labelled(shape, errors(moments(x), F.column_moments_reference(x)))
    return found


def missing(shapes=((1, 1), (1, 40), (5, 3), (70, 7), (20, 130))):
    """NaN is left out and counted, infinities decide the mean."""
    use_tiles(64)
    found = {}
    for shape, dtype in itertools.product(shapes, (torch.float32, torch.float16)):
        x = sample(shape, dtype)
        x[torch.rand(shape) < 0.1] = torch.nan
        x[-1, 0], x[0, -1] = torch.inf, -torch.inf
        found |= labelled(f"{shape} {dtype}", errors(moments(x), F.column_moments_reference(x)))
        x[:, 0] = torch.nan
        found |= labelled(f"{shape} {dtype} none", errors(moments(x), F.column_moments_reference(x)))
    return found


def weights(shapes=SHAPES):
    """Weights; a row of weight 0 does not exist."""
    use_tiles(64)
    found = {}
    for shape in shapes:
        x, weight = sample(shape, torch.float32), torch.rand(shape[0], dtype=torch.float64)
        weight[::3] = 0
        x[::3], x[1::7, 0], x[2::7, -1] = torch.nan, torch.nan, torch.inf
        found |= labelled(shape, errors(moments(x, weight), F.column_moments_reference(x, weight=weight)))
    return found


def shifts():
    """A chunk's first values far from its mean, and chunks far from each other, cost no digits."""
    use_tiles(64)
    found = {}
    for kind in ("plain", "first", "half", "sorted", "late", "outlier"):
        x = 1e6 + random(800, 5, dtype=torch.float64)
        if kind == "first":
            x[:100], x[100:] = 1e12, x[100:] * 1e-3
        elif kind == "half":
            x[::2] += 1e9
        elif kind == "sorted":
            x = x.sort(0).values
        elif kind == "late":
            x[:700] = torch.nan
        elif kind == "outlier":
            x[7, 3] = 1e300
        found |= labelled(kind, errors(moments(x), F.column_moments_reference(x)))
    return found


def digits():
    """mean + mean_low has the digits that the spread needs."""
    use_tiles(64)
    found = {}
    for mean, spread in ((0, 1), (1e6, 0.01), (-1e12, 1)):
        x = mean + spread * random(500, 3, dtype=torch.float64)
        result, exact = moments(x), F.column_moments_reference(x - mean)
        found[f"{mean} mean error"] = float(
            (((result.mean - mean) + result.mean_low - exact.mean) / spread).abs().max()
        )
        found[f"{mean} m2 error"] = float((result.m2 / exact.m2 - 1).abs().max())
    return found


def constant():
    """Constant columns have no spread, and their value for a mean."""
    use_tiles(64)
    values = torch.tensor([0.0, 1.0, 0.1, 77.7, -3e30], dtype=torch.float64)
    found = {}
    for dtype, rows in itertools.product((torch.float32, torch.float64), (1, 2, 15, 201)):
        x = values.to(dtype).expand(rows, 5).clone()
        result = moments(x)
        found[f"{dtype} {rows}"] = float((result.m2 != 0).sum() + (result.mean_low != 0).sum())
        found[f"{dtype} {rows} mean"] = differing(result.mean, x[0].double())
    return found


def layouts(shapes=((21, 7), (33, 1))):
    """Strides change no bit of a table by rows; columns that are stored one by one have the bits of each alone."""
    use_tiles(64)
    found = {}
    for shape, dtype in itertools.product(shapes, (torch.float32, torch.uint8)):
        x = sample(shape, dtype)
        plain = moments(x)
        for index, (view, same) in enumerate(strided(x)):
            result = moments(view)
            if same:
                found[f"{shape} {dtype} {index} bits"] = sum(map(differing, result, plain))
                continue
            found |= labelled(f"{shape} {dtype} {index}", errors(result, plain))
            alone = kernels().separate_column_moments(list(x.t()))
            found[f"{shape} {dtype} {index} alone"] = sum(map(differing, result, alone))
    for kind in ("pictures", "beside"):
        tables = sample((3, 50, 3), torch.float32)
        tables[1, :, 1] = torch.nan if kind == "beside" else 1e20
        whole, one = moments(tables), moments(tables[2])
        found[f"{kind} alone"] = sum(differing(a[2], b) for a, b in zip(whole, one, strict=True))
        clean = moments(torch.where(torch.arange(3) == 1, 0.0, tables))
        found[f"{kind} columns"] = sum(differing(a[:, ::2], b[:, ::2]) for a, b in zip(whole, clean, strict=True))
    return found


def empty():
    """Tables without rows, columns or both."""
    found = {}
    for shape in ((0, 3), (3, 0), (0, 0)):
        x = torch.zeros(shape)
        results, exact = moments(x), F.column_moments_reference(x)
        found[f"{shape}"] = sum(map(differing, results, exact))
        y = kernels().column_affine(x, *torch.ones(2, shape[1]).double(), None, None, None, torch.float32)
        found[f"{shape} map"] = float(y.shape != shape)
    return found


def affine(dtypes=(torch.float32, torch.float16, torch.uint8, torch.bool), shapes=SHAPES):
    """The map, in every layout, has the reference's bits."""
    use_tiles(32)
    found = {}
    for dtype, shape in itertools.product(dtypes, shapes):
        x, (shift, scale, offset) = sample(shape, dtype), random(3, shape[1], dtype=torch.float64)
        for to, given, clip in ((torch.float32, offset, (-0.5, 0.75)), (torch.float64, None, (None, 0.1)),
                                (torch.float16, None, (None, None))):  # fmt: skip
            exact = column_affine_reference(x, shift, scale, given, clip=clip, dtype=to)
            views = [("plain", x), *((str(i), view) for i, (view, _) in enumerate(strided(x)))]
            views.append(("misaligned", torch.cat([x.flatten()[:1], x.flatten()])[1:].view(shape)))
            for name, view in views if to == torch.float32 else views[:1]:
                y = kernels().column_affine(view, shift, scale, given, *clip, to)
                found[f"{dtype} {shape} {to} {name}"] = differing(y, exact)
    return found


def outputs():
    """Into given memory of any layout, the input's own too; whether there is an infinity."""
    use_tiles(32)
    found = {}
    x, (shift, scale) = sample((40, 5), torch.float32), random(2, 5, dtype=torch.float64)
    exact = column_affine_reference(x, shift, scale)
    targets = {"itself": x.clone(), "rows": torch.empty(40, 9)[:, 2:7], "columns": torch.empty(5, 40).t(),
               "sparse": torch.empty(40, 10)[:, ::2]}  # fmt: skip
    for name, out in targets.items():
        kernels().column_affine_out(out if name == "itself" else x, shift, scale, None, None, None, out)
        found[name] = differing(out, exact)
    for value in (1.0, torch.nan, torch.inf, -torch.inf):
        x[39, 4] = value
        infinite = torch.zeros(1, dtype=torch.bool)
        kernels().column_affine(x, shift, scale, None, None, None, torch.float32, infinite)
        found[f"infinite {value}"] = float(infinite.item() != (abs(value) == torch.inf))
    several = random(2, 3, 4, 5)
    y = kernels().column_affine(several.transpose(0, 1), shift, scale, None, None, None, torch.float32)
    found["leading axes"] = differing(y, column_affine_reference(several.transpose(0, 1), shift, scale))
    return found


def compare_pictures(planes, to=torch.float32, max_value=255.0, mean=0.4):
    """How many elements of pictures (..., channels, height, width) differ from the reference's."""
    channels = planes.shape[-3]
    centre = mean * (1 - 0.1 * torch.arange(channels).double())
    spread = 0.229 + 0.01 * torch.arange(channels).double()
    y = kernels().image_normalize(planes, centre, spread, max_value, to)
    exact = image_normalize_reference(planes, centre, spread, layout="CHW", max_value=max_value, dtype=to)
    return differing(y, exact)


def every_byte():
    """Bytes are rounded once, in both layouts, with a short form and without."""
    use_tiles(64)
    found = {}
    for channels, mean, max_value in itertools.product((1, 3, 4), (0.4, 0.485, 1000.0, 1e-30), (255.0, 3.7)):
        x = torch.arange(256, dtype=torch.uint8).view(16, 16)
        pixels = x[:, :, None].expand(-1, -1, channels).contiguous().permute(2, 0, 1)
        for name, planes in (("HWC", pixels), ("CHW", pixels.contiguous())):
            found[f"{channels} {mean} {max_value} {name}"] = compare_pictures(planes, torch.float32, max_value, mean)
    return found


def pictures():
    """Every dtype, and layouts that are read where they are."""
    use_tiles(64)
    found = {}
    for dtype, to in itertools.product((torch.uint8, torch.float32, torch.uint16, torch.bool), FLOATS):
        found[f"{dtype} {to}"] = compare_pictures(sample((2, 3, 5, 7), dtype), to)
    whole = sample((2, 3, 9, 12, 4), torch.uint8)
    views = {"alpha": whole[..., :3], "crop": whole[:, :, 2:8, 3:9], "leading": whole.transpose(0, 1),
             "every second": whole[:, :, ::2, ::3], "one": whole[:1, :1]}  # fmt: skip
    for name, view in views.items():
        found[name] = compare_pictures(view.movedim(-1, -3))
    for area in ((4, 5), (6, 6), (3, 5)):
        for start in (0, 1):
            bytes_ = sample((2 * area[0] * area[1] * 3 + 1,), torch.uint8)[start : start + 2 * area[0] * area[1] * 3]
            found[f"words {area} {start}"] = compare_pictures(bytes_.view(2, *area, 3).movedim(-1, -3))
    found["nothing"] = compare_pictures(torch.zeros(0, 3, 4, 4, dtype=torch.uint8))
    return found


def sizes():
    """Pictures and tables of another size take the programs that there are."""
    from evenkeel.kernels.triton._start import PROGRAMS

    use_tiles(64)
    found, counts = {}, []
    for height, width, rows in ((8, 8, 40), (16, 24, 72), (40, 8, 8)):
        whole = sample((2, height, width + 4, 3), torch.uint8)
        for name, pixels in (("whole", whole[:, :, 4:].contiguous()), ("crop", whole[:, :, 4:])):
            found[f"{name} {height}x{width}"] = compare_pictures(pixels.movedim(-1, -3))
            found[f"{name} {height}x{width} planes"] = compare_pictures(pixels.movedim(-1, -3).contiguous())
        kernels().column_affine(random(rows, 16), *random(2, 16).double(), None, None, None, torch.float32)
        counts.append(len(PROGRAMS))
    return found | {"programs": float(counts[0] != counts[-1])}


ONE = ((21, 7),)
FAST = {
    "dtype, few": (dtype_of_table, (torch.float32, (*ONE, (6, 70)))),
    "dtype, bytes": (dtype_of_table, (torch.uint8, ONE)),
    "missing, few": (missing, (ONE,)),
    "weights, few": (weights, (ONE,)),
    "empty": (empty, ()),
    "affine, few": (affine, ((torch.float32,), ONE)),
    "outputs": (outputs, ()),
    "pictures": (pictures, ()),
    "sizes": (sizes, ()),
}
SLOW = {
    **{f"dtype, {dtype}": (dtype_of_table, (dtype,)) for dtype in (*FLOATS, *INTEGERS)},
    "missing": (missing, ()),
    "weights": (weights, ()),
    "shifts": (shifts, ()),
    "digits": (digits, ()),
    "constant": (constant, ()),
    "layouts": (layouts, ()),
    **{
        f"affine, {dtype}": (affine, ((dtype,), ((5, 3), (40, 1), (9, 16), (4, 65))))
        for dtype in (torch.float32, torch.float16, torch.uint8, torch.bool)
    },
    "every byte": (every_byte, ()),
}

if __name__ == "__main__":
    main(FAST | SLOW, sys.argv[1:])
