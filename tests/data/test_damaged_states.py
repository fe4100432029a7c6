"""Damaged states of every kind: one line says that they are, or what is loaded works; and old ones are still read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from damaged_states import ITEMS, X, assert_one_line, check_outcome, damaged_bytes, damaged_content, saved

from evenkeel import InvalidArgumentError, StateError
from evenkeel.data import GroupStatistics, ImageNormalize, StandardScaler, Statistics, load, save

OLD = Path(__file__).parent / "states"
SEEDS = 60
each_kind = pytest.mark.parametrize("kind", ITEMS)
each_format = pytest.mark.parametrize("suffix", [".json", ".safetensors"])


@each_kind
@each_format
def test_changed_bytes_are_refused_in_one_line_or_harmless(kind, suffix, tmp_path):
    data, path = saved(kind, suffix, tmp_path), tmp_path / f"bad{suffix}"
    for seed in range(SEEDS):
        path.write_bytes(damaged_bytes(data, seed))
        check_outcome(path)


@each_kind
@each_format
def test_changed_parts_are_refused_in_one_line_or_harmless(kind, suffix, tmp_path):
    data, path = saved(kind, suffix, tmp_path), tmp_path / f"bad{suffix}"
    path.write_bytes(data)
    assert check_outcome(path)
    for seed in range(SEEDS):
        path.write_bytes(damaged_content(data, suffix, seed))
        check_outcome(path)


@pytest.mark.parametrize("kind", [Statistics, GroupStatistics])
def test_changed_bytes_in_memory_are_refused_in_one_line(kind):
    statistics = Statistics(quantiles=True, sketch_size=8).update(X)
    data = (statistics if kind is Statistics else GroupStatistics().update(X, ["a", "b"] * 15)).to_bytes()
    for seed in range(4 * SEEDS):
        try:
            restored = kind.from_bytes(damaged_bytes(data, seed))
        except StateError as error:
            assert_one_line(error)
        else:
            assert kind.from_bytes(restored.to_bytes()).to_bytes() == restored.to_bytes()


def change(content, place, value):
    """Replace or remove (None) a part of plain data."""
    *parents, key = place.split(".")
    for parent in parents:
        content = content[int(parent) if isinstance(content, list) else parent]
    if value is ...:
        del content[key]
    else:
        content[key] = value


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        *(("minmax", "settings.parameters.feature_range", value) for value in ("", [0], [1, 0], [0, float("inf")])),
        ("standard", "settings.parameters.ddof", float("nan")),
        ("standard", "settings.parameters.with_mean", "yes"),
        ("standard", "settings.parameters.power", 2),
        ("standard", "settings.notes", {"units": [1]}),
        ("standard", "settings.notes", {"author": "a"}),
        ("standard", "settings.learned", {"transform": True}),
        ("standard", "state.learned._exact", [[1.0, 1.0]] * 3),
        ("standard", "settings.statistics.axis", [0]),
        ("robust", "state.learned._exact", [[1.0, 1.0]]),
        ("robust", "state.sketch", ...),
        ("robust", "state.sketch", "AAAA"),
        ("sketches", "settings.statistics.sketch_size", 16),
        ("sketches", "state.count", [30, 30]),
        ("histograms", "state.histogram", [[6], [5]]),
        ("histograms", "state.histogram_offset", [1 << 62]),
        ("histograms", "settings.statistics.quantiles", False),
        ("statistics", "settings.statistics.features", 1 << 62),
        ("statistics", "settings.statistics.features", None),
        ("statistics", "settings.statistics.features", 3),
        ("statistics", "settings.statistics.names", ["a"]),
        ("statistics", "settings.statistics.names", "ab"),
        ("statistics", "settings.statistics.names", [1, 2]),
        ("statistics", "settings.statistics.dtypes", ["O"]),
        ("statistics", "settings.statistics.rows", 29),
        ("statistics", "settings.statistics.rows", -1),
        ("statistics", "settings.statistics.nan_policy", ["omit"]),
        ("statistics", "settings.statistics.extra", 1),
        ("statistics", "state.count", [-1, 2]),
        ("statistics", "state.count", [float("inf"), 1.0]),
        ("statistics", "state.count", [[30, 29]]),
        ("statistics", "state.missing", [0, 31]),
        ("statistics", "state.missing", [0.0, 1.0]),
        ("statistics", "state.minimum", ["nan", 1.0]),
        ("statistics", "state.total", ["1", "2"]),
        ("statistics", "state.extra", [1.0]),
        ("statistics", "version", True),
        ("statistics", "version", "1"),
        ("groups", "settings.keys", ["a", "a"]),
        ("groups", "settings.keys", ["a"]),
        ("groups", "settings.keys", ["a", None]),
        ("groups", "settings.options", {"power": 1}),
        ("groups", "settings.options", {"features": 1 << 62}),
        ("groups", "state.2.count", [1]),
        ("images", "settings.options.max_value", float("nan")),
        ("images", "settings.options.mean", [0.1, 0.2]),
        ("images", "settings.options.std", [0.1, 0.2, float("inf")]),
        ("images", "settings.options.dtype", "int8"),
        ("images", "settings.options.layout", "WHC"),
        ("images", "settings.pooled", ...),
    ],
)
def test_a_part_that_cannot_be_is_refused(kind, place, value, tmp_path):
    content = json.loads(saved(kind, ".json", tmp_path))
    if place.startswith("state."):  # the names of arrays have points of their own
        content["state"].pop(place[6:], None)
        content["state"] |= {} if value is ... else {place[6:]: value}
    else:
        change(content, place, value)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(StateError) as caught:
        load(path)
    assert_one_line(caught.value)
    assert len(str(caught.value)) < 700 + len(str(path))


@each_format
def test_nested_brackets_are_refused(suffix, tmp_path):
    path, brackets = tmp_path / f"bad{suffix}", "[" * 100_000
    scaler = StandardScaler().fit(X)
    content = json.loads(save(scaler, tmp_path / "good.json").read_text())
    content["settings"]["notes"] = {"source": json.loads("[" * 50 + "]" * 50)}
    header = json.dumps({"__metadata__": {"evenkeel": brackets}})
    in_metadata = len(header).to_bytes(8, "little") + header.encode()
    texts = (brackets, '{"format": "evenkeel/data", "version": 1, "state": ' + brackets, json.dumps(content))
    for text in (*map(str.encode, texts), in_metadata):
        path.write_bytes(len(text).to_bytes(8, "little") * (suffix == ".safetensors") * (text != in_metadata) + text)
        with pytest.raises(StateError) as caught:
            load(path)
        assert_one_line(caught.value)


@pytest.mark.parametrize("path", sorted(OLD.iterdir()), ids=lambda path: path.name)
def test_files_of_version_1_come_back_to_the_last_bit(path, tmp_path):
    if path.suffix == ".bytes":
        kind = GroupStatistics if path.stem == "groups" else Statistics
        assert kind.from_bytes(path.read_bytes()).to_bytes() == path.read_bytes()
        return
    item = load(path, on_mismatch="raise" if path.stem in ("image", "preset") else "ignore")
    assert save(item, tmp_path / path.name).read_bytes() == path.read_bytes()
    if path.suffix == ".json":
        assert item.__class__ is load(path.with_suffix(".safetensors")).__class__


@pytest.mark.parametrize(
    "numbers", [{"max_value": v} for v in (float("nan"), -1, 0, float("inf"))] + [{"mean": [1e999]}]
)
def test_image_constants_that_could_not_be_saved_are_refused(numbers):
    with pytest.raises(InvalidArgumentError):
        ImageNormalize(**({"mean": [0.5], "std": [0.5]} | numbers))


# Prints the most that `load` had allocated, less the constant part, in sizes of the file; and cannot have much more.
BOUNDED = """
import pathlib, resource, sys, tracemalloc
from evenkeel import EvenkeelError
from evenkeel.data import load
paths = [pathlib.Path(path) for path in sys.argv[1:]]
for path in paths[:2]:  # imports what load imports
    load(path)
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))
for path in paths:
    tracemalloc.start()
    try:
        load(path)
    except EvenkeelError:
        pass
    print((tracemalloc.get_traced_memory()[1] - (1 << 20)) / path.stat().st_size)
    tracemalloc.stop()
"""


def hostile_files(folder):
    """Files whose headers speak of more than there is, or whose parts take far more memory than text."""
    good = json.loads(saved("sketches", ".json", folder))
    changes = [
        *(("settings.statistics.features", 1 << power) for power in (30, 39, 62)),
        ("settings.statistics.sketch_size", 65535),
        ("state.count", [0] * 100_000),
        ("state.histogram", [[]] * 100_000),
        ("state.total", [1e300] * 100_000),
        ("settings.statistics.names", ["a"] * 100_000),
        ("settings.kind", [{"": []}] * 100_000),
    ]
    for place, value in changes:
        content = json.loads(json.dumps(good))
        change(content, place, value)
        yield json.dumps(content, separators=(",", ":")).encode(), ".json"
    groups = json.loads(saved("groups", ".json", folder))
    change(groups, "settings.options.features", 1 << 39)
    yield json.dumps(groups).encode(), ".json"
    data = saved("sketches", ".safetensors", folder)
    for size in (1 << 20, 1 << 40, (1 << 64) - 1):
        yield size.to_bytes(8, "little") + data[8:], ".safetensors"
    yield data.replace(b'"shape":[2]', b'"shape":[9223372036854775807]'), ".safetensors"


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_reading_allocates_no_more_than_64_times_the_file(tmp_path):
    paths = [
        save(ITEMS[kind](), tmp_path / f"{kind}{end}")
        for kind, end in (("robust", ".json"), ("images", ".safetensors"))
    ]
    for number, (data, suffix) in enumerate(hostile_files(tmp_path)):
        paths.append(tmp_path / f"{number}{suffix}")
        paths[-1].write_bytes(data)
    run = subprocess.run([sys.executable, "-c", BOUNDED, *paths], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    ratios = [float(line) for line in run.stdout.split()]
    assert len(ratios) == len(paths)
    assert max(ratios) < 64
