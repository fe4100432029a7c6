"""Damaged data files and state files: a result or one error, in bounded memory, and never an abort when skipping."""

import contextlib
import io
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
from fuzz.checks import Fault, check, check_error
from hypothesis import strategies as st
from PIL import Image

from evenkeel.data import (
    GroupStatistics,
    ImageNormalize,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
    Statistics,
    fit_statistics,
    load,
    save,
)

MEMORY = 2 << 30
ROWS = 30
IMAGES = ("png", "jpg", "bmp", "gif", "tiff", "webp", "ppm")
FEW_BYTES = b'\x00\x01\x7f\x80\xff\n",PK{}[]0129-eE. '


def table():
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    x[3, 1] = np.nan
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in zip("abc", x.T, strict=True)})


def image(path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)


def stream(path):
    with pa.ipc.new_stream(str(path), table().schema) as writer:
        writer.write_table(table())


def parts(folder):
    """A file that is read in parts, of always the same time."""
    path = Path(folder) / "parts.parquet"
    pq.write_table(table(), path, row_group_size=10)
    os.utime(path, (0, 0))
    return path


DATA = {
    "x.npy": lambda path: np.save(path, np.arange(60.0).reshape(20, 3)),
    "bytes.npy": lambda path: np.save(path, np.arange(60, dtype=np.uint8).reshape(20, 3)),
    "fortran.npy": lambda path: np.save(path, np.asfortranarray(np.arange(60.0).reshape(20, 3))),
    "x.npz": lambda path: np.savez(path, x=np.arange(60.0).reshape(20, 3)),
    "packed.npz": lambda path: np.savez_compressed(path, x=np.arange(60.0).reshape(20, 3)),
    "x.csv": lambda path: pa.csv.write_csv(table(), path),
    "x.tsv": lambda path: table().to_pandas().to_csv(path, sep="\t", index=False),
    "x.csv.gz": lambda path: table().to_pandas().to_csv(path, index=False),
    "words.csv": lambda path: pd.DataFrame({"a": ["1", "x"], "b": [1, 2]}).to_csv(path, index=False),
    "x.parquet": lambda path: pq.write_table(table(), path, row_group_size=10),
    "gzip.parquet": lambda path: pq.write_table(table(), path, compression="gzip"),
    "x.feather": lambda path: pa.feather.write_feather(table(), path),
    "plain.arrow": lambda path: pa.feather.write_feather(table(), path, compression="uncompressed"),
    "x.arrows": stream,
    **{f"x.{suffix}": image for suffix in IMAGES},
}


def items():
    """One of each kind that can be saved."""
    x = np.random.default_rng(1).normal(size=(ROWS, 3))
    frame = pd.DataFrame(x, columns=list("abc"))
    pictures = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)
    return {
        "statistics": Statistics(names=list("abc")).update(x),
        "sketches": Statistics(quantiles=True).update(x),
        "groups": GroupStatistics().update(x, np.arange(ROWS) % 3),
        "standard": StandardScaler(ddof=1).fit(frame),
        "minmax": MinMaxScaler(feature_range=(-1, 2), clip=True).fit(x),
        "maxabs": MaxAbsScaler().fit(x),
        "robust": RobustScaler(quantile_range=(10.0, 80.0)).fit(x),
        "images": ImageNormalize.preset("imagenet"),
        "fitted-images": ImageNormalize.fit(pictures, layout="HWC", definition="pooled"),
    }


def originals():
    """The undamaged files: name -> bytes."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, write in DATA.items():
            write(Path(folder) / name)
            found[name] = (Path(folder) / name).read_bytes()
        for name, item in items().items():
            for suffix in ("json", "safetensors"):
                path = Path(folder) / f"{name}.{suffix}"
                found[path.name] = save(item, path).read_bytes()
        fit_statistics(parts(folder), resume=Path(folder) / "fit.partial")
        found["fit.partial"] = (Path(folder) / "fit.partial").read_bytes()
    return found


ORIGINALS = originals()
STATES = tuple(name for name in ORIGINALS if name.endswith((".json", ".safetensors")))


@dataclass(frozen=True)
class Damage:
    """One change: at a share of the length, bytes are replaced, inserted, removed or repeated."""

    kind: str
    place: float
    content: bytes
    length: int

    def apply(self, data):
        start = int(self.place * len(data))
        end = start + self.length
        return {
            "replace": lambda: data[:start] + self.content + data[start + len(self.content) :],
            "insert": lambda: data[:start] + self.content + data[start:],
            "remove": lambda: data[:start] + data[end:],
            "cut": lambda: data[:start],
            "repeat": lambda: data[:end] + data[start:end] * 3 + data[end:],
            "flip": lambda: (
                data[:start] + bytes(b ^ self.content[0] for b in data[start : start + 1]) + data[start + 1 :]
            ),
        }[self.kind]()


contents = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.lists(st.sampled_from(FEW_BYTES), min_size=1, max_size=6).map(bytes),
    st.sampled_from(
        [
            b"NaN",
            b"1e999",
            b"-1",
            b"null",
            b"true",
            b'"x"',
            b"[]",
            b"9" * 30,
            b"18446744073709551615",
            b"\xff\xff\xff\x7f",
            b"\xff" * 8,
            b"\x00" * 8,
            b"\n",
            b"\xef\xbb\xbf",
            b"-Infinity",
            b"{}",
        ]
    ),
)
damages = st.lists(
    st.builds(
        Damage,
        kind=st.sampled_from(["replace", "flip", "insert", "remove", "cut", "repeat"]),
        place=st.floats(0, 1, exclude_max=True),
        content=contents,
        length=st.integers(1, 40),
    ),
    min_size=1,
    max_size=4,
)


def damaged(name, changes):
    data = ORIGINALS[name]
    for change in changes:
        data = change.apply(data)
    return data


def check_content(name, content):
    """A damaged file gives a result or one clear error; the name says what kind it is."""
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            path = Path(folder) / name
            path.write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (load_state if is_state(path) else resume_fit if path.suffix == ".partial" else read_data)(path)
    except Exception as error:
        error.files = {name: content}
        raise


def is_state(path):
    return path.suffix in (".json", ".safetensors")


def read_data(path):
    """Reads or refuses alone; beside a good file it is skipped, and the good one is read."""
    try:
        alone = fit_statistics(path, columns="numeric")
        check(alone.rows > 0, f"{path.name}: a result without rows")
    except Exception as error:
        check_error(error)
        alone = None
    suffix = "".join(path.suffixes)
    good = path.with_name(f"a-good{suffix}")  # it comes first, so that it gives the schema
    good.write_bytes(ORIGINALS[next(n for n in ORIGINALS if n.endswith(suffix) and n != "words.csv")])
    whole = fit_statistics(good).rows
    try:
        both = fit_statistics(path.parent, on_error="skip", workers=1)
    except Exception as error:
        check_error(error)
        raise Fault(f"{path.name}: on_error='skip' ends with {error}") from error
    check(both.rows >= whole, f"{path.name}: the good file beside it was not read whole")


def load_state(path):
    """Loads or refuses; what loads can be used, saved and loaded again."""
    try:
        item = load(path)
    except Exception as error:
        check_error(error)
        return
    try:
        repr(item)
        again = load(save(item, path.with_name(f"again{path.suffix}")))
        check(type(again) is type(item), f"{path.name}: loads as another kind")
        if hasattr(item, "mean") and hasattr(item, "variance"):
            item.variance()
        if hasattr(item, "transform"):
            item.set_params(on_mismatch="ignore").transform(np.zeros((2, item.n_features_in_)))
    except Exception as error:
        check_error(error)


def resume_fit(path):
    """Continues or refuses; a result is that of the data."""
    source = parts(path.parent)
    try:
        found = fit_statistics(source, resume=path)
    except Exception as error:
        check_error(error)
        return
    check(found.to_bytes() == fit_statistics(source).to_bytes(), "a damaged interrupted fit gave another result")


def check_damage(drawn):
    name, changes = drawn
    check_content(name, damaged(name, changes))


def one_of(names):
    return st.tuples(st.sampled_from(list(names)), damages)


PROPERTIES = {
    "data": (one_of(DATA), check_damage),
    "states": (one_of(STATES), check_damage),
    "partial": (one_of(["fit.partial"]), check_damage),
}
