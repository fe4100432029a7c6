"""Saved states of every kind, ways to damage them, and what may become of a damaged one."""

import copy
import json
import random
import warnings

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from evenkeel import EvenkeelError, StateError
from evenkeel.data import (
    GroupStatistics,
    ImageNormalize,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
    Statistics,
    load,
    save,
)

X = np.round(np.random.default_rng(0).normal(40, 12, (30, 2)), 2)
X[3, 1] = np.nan
SMALL = np.arange(12, dtype=np.uint8).reshape(6, 2)
PICTURES = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
NOTES = {"units": {"a": "cm"}, "source": {"description": "a.csv", "skipped": []}}
ITEMS = {
    "statistics": lambda: Statistics(names=["a", "b"]).update(X),
    "sketches": lambda: Statistics(quantiles=True, sketch_size=8).update(X),
    "histograms": lambda: Statistics(quantiles=True).update(SMALL),
    "groups": lambda: GroupStatistics(axis=(1,)).update(X, ["a", "b"] * 15),
    "images": lambda: ImageNormalize.fit(PICTURES, definition="pooled"),
    "standard": lambda: StandardScaler(ddof=1).fit(X).annotate(**NOTES),
    "minmax": lambda: MinMaxScaler(feature_range=(-1, 2), clip=True).fit(X),
    "maxabs": lambda: MaxAbsScaler().fit(X),
    "robust": lambda: RobustScaler(sketch_size=8).fit(X),
}
# What a part of a state is replaced by: of every type, of no size that memory holds, and not a number.
ODD = [None, True, -1, 0, 2, 1 << 62, 1 << 70, 0.5, 1e308, float("nan"), "", "inf", "x\ny", [], [[]], [1], ["a"], {}]


def saved(kind, suffix, folder):
    """The bytes of a file of a kind."""
    return save(ITEMS[kind](), folder / f"{kind}{suffix}").read_bytes()


def damaged_bytes(data, seed):
    """A copy of bytes of which some are flipped, inserted, deleted, repeated or cut off."""
    rng, data = random.Random(seed), bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        # The front is where the structure is.
        place = rng.randrange(min(len(data), rng.choice([16, 400, 1 << 20, 1 << 20])) or 1)
        size = rng.choice([1, 1, 2, 8, 50])
        change = rng.choice(["flip", "flip", "digit", "set", "insert", "delete", "repeat", "cut"])
        if change == "cut":
            del data[place:]
        elif not data:
            break
        elif change == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif change == "digit":  # the damage that leaves JSON whole
            digits = [place for place, byte in enumerate(data) if byte in b"0123456789"] or [0]
            data[rng.choice(digits)] = rng.choice(b"0123456789")
        elif change == "set":
            data[place : place + 1] = rng.choice([b'"', b"9", b"-", b"[", b"]", b"{", b",", b"\n", b"\0", b"\xff"])
        else:
            chunk = {"insert": rng.randbytes(size), "delete": b"", "repeat": bytes(data[place : place + size]) * 2}
            data[place : place + (size if change != "insert" else 0)] = chunk[change]
    return bytes(data)


def damaged_content(data, suffix, seed):
    """A copy of a file in which one part of its JSON, or one of its arrays, is something else, gone or there twice."""
    rng = random.Random(seed)
    if suffix == ".json":
        return json.dumps(replace_part(json.loads(data), rng)).encode()
    end = 8 + int.from_bytes(data[:8], "little")
    metadata = json.loads(json.loads(data[8:end])["__metadata__"]["evenkeel"])
    arrays = load_arrays(data)
    if rng.random() < 0.5:
        metadata = replace_part(metadata, rng)
    else:
        name = rng.choice(list(arrays))
        change_array(arrays, name, rng)
    return save_arrays(arrays, {"evenkeel": json.dumps(metadata)})


def replace_part(content, rng):
    """A copy of plain data with one part replaced by something odd, removed or repeated."""
    content = copy.deepcopy(content)
    places = list(places_of(content))
    holder, key = rng.choice(places)
    change = rng.choice(["odd", "odd", "odd", "remove", "repeat"])
    if change == "odd":
        holder[key] = rng.choice([*ODD, copy.deepcopy(content)])
    elif change == "remove":
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, holder[key])
    else:
        holder[f"{key}2"] = holder[key]
    return content


def places_of(content):
    """Yield every holder and key in plain data."""
    for key in list(content) if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places_of(content[key])


def change_array(arrays, name, rng):
    """Give an array another dtype, shape, name or value, or take it away."""
    array = arrays.pop(name)
    change = rng.choice(["dtype", "shape", "name", "value", "gone"])
    if change == "dtype":
        with np.errstate(invalid="ignore"):
            arrays[name] = array.astype(rng.choice(["f4", "f8", "i8", "i4", "u1", "?"]))
    elif change == "shape":
        arrays[name] = rng.choice(
            [array[:-1], array[None], np.repeat(array, 2, axis=-1), np.empty((2, 0)), array.sum()[None]]
        )
    elif change == "name":
        arrays[f"{name}.x"] = array
    elif change == "value":
        array = array.copy()
        value = rng.choice([-1, 1, 255, 1 << 62, np.nan, np.inf, -np.inf, 1e300])
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array.reshape(-1)[rng.randrange(array.size) : rng.choice([None, 1])] = np.array(value).astype(array.dtype)
        arrays[name] = array


def check_outcome(path):
    """Load a file that may be damaged: one line says why not, or what is loaded works and can be saved again."""
    try:
        item = load(path, on_mismatch="ignore")
    except StateError as error:
        assert_one_line(error)
        return False
    again = save(item, path.with_name(f"again{path.suffix}"))
    assert type(load(again)) is type(item)
    for use in USES:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(item)
        except EvenkeelError as error:
            assert_one_line(error)
    return True


def assert_one_line(error):
    assert len(str(error).splitlines()) == 1, str(error)


def use_statistics(item):
    """Read and go on with statistics of any kind."""
    if isinstance(item, GroupStatistics):
        for key in item:
            use_statistics(item[key])
        item.update(np.ones((2, 2)), ["a", "b"])
    elif isinstance(item, ImageNormalize):
        if item.statistics_ is not None:
            item.statistics_.std("pooled")
            item.statistics_.update(PICTURES, layout="HWC")
    else:
        statistics = item if isinstance(item, Statistics) else item.statistics_
        if statistics.keeps_quantiles:
            statistics.quantile([0, 0.5, 1])
        _ = statistics.mean, statistics.std(), repr(statistics)
        copied = Statistics.from_bytes(statistics.to_bytes())
        copied.merge(statistics)
        features = statistics.features
        assert features is None or features < 1000, "a size that no array backs"
        copied.update((SMALL if copied.dtypes == ("uint8",) else X)[:, :features])


def use_transform(item):
    """Apply a scaler or image constants."""
    if hasattr(item, "transform"):
        item.transform(X[:, : item.n_features_in_])
        item.inverse_transform(X[:, : item.n_features_in_])
        assert isinstance(item.contract_.problems(X[:, : item.n_features_in_]), list)
        item.to_module()
    elif isinstance(item, ImageNormalize):
        item.inverse(item(PICTURES, layout="HWC"))
        item.to_module()


USES = (use_statistics, use_transform)
