"""fit: the scaler asked for, what is skipped, what is resumed, and the same bits whoever reads."""

import math
import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import preprocessing

from evenkeel import InvalidArgumentError, InvalidInputError, InvalidTypeError, SourceError, StateError
from evenkeel.data import (
    DriftLimits,
    DriftReport,
    FeatureDrift,
    FitProgress,
    MinMaxScaler,
    Statistics,
    all_merge,
    compare,
    fit,
    fit_statistics,
    load,
    save,
    transform_files,
)
from evenkeel.data._sources import open_source

PARTS = 5


@pytest.fixture
def table():
    return np.random.default_rng(0).normal([0, 1e4, 1e8], [1, 1, 1], (1000, 3))


@pytest.fixture
def folder(table, tmp_path):
    """A directory of Parquet files of unequal sizes."""
    path = tmp_path / "data"
    path.mkdir()
    for number, part in enumerate(np.split(table, [10, 300, 301, 900])):
        write_part(path, number, part)
    return path


def write_part(path, number, part):
    pq.write_table(pa.table(dict(zip("abc", part.T, strict=True))), path / f"part-{number}.parquet", row_group_size=64)


def break_part(folder, number):
    path = folder / f"part-{number}.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    return path


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("standard", preprocessing.StandardScaler()),
        ("minmax", preprocessing.MinMaxScaler()),
        ("maxabs", preprocessing.MaxAbsScaler()),
    ],
)
def test_scalers_by_name(name, theirs, folder, table):
    found = fit(folder, scaler=name)
    frame = pd.DataFrame(table, columns=list("abc"))
    np.testing.assert_allclose(found.transform(frame), theirs.fit_transform(frame), rtol=1e-7, atol=1e-7)
    assert found.feature_names_in_.tolist() == list("abc")
    assert found.statistics_.rows == len(table)


def test_robust_scalers_are_within_their_sketches_bound(folder, table):
    found = fit(folder, scaler="robust")
    rank = (table <= found.center_).mean(0)
    np.testing.assert_allclose(rank, 0.5, atol=found.statistics_.quantile_error + 1 / len(table))


def test_an_example_scaler_gives_its_options_and_stays_as_it_is(folder):
    example = MinMaxScaler(feature_range=(-1, 1), clip=True)
    found = fit(folder, scaler=example)
    assert found.feature_range == (-1, 1)
    assert found.clip
    assert found is not example
    assert not hasattr(example, "scale_")


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_bits_do_not_depend_on_the_workers(workers, folder):
    expected = fit_statistics(folder).to_bytes()
    threads = torch.get_num_threads()
    assert fit_statistics(folder, workers=workers).to_bytes() == expected
    assert torch.get_num_threads() == threads


def test_bits_do_not_depend_on_torch_threads(monkeypatch, table):
    monkeypatch.setattr("evenkeel.data._source_memory.FRAGMENT_ELEMENTS", 300)
    threads = torch.get_num_threads()
    found = set()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.add(fit_statistics(table).to_bytes())
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_any_cut_gives_the_two_pass_answer(monkeypatch, table):
    for elements in (1, 30, 1000, 10**6):
        monkeypatch.setattr("evenkeel.data._source_memory.FRAGMENT_ELEMENTS", elements)
        found = fit_statistics(table)
        mean = np.array([math.fsum(column) / len(table) for column in table.T])
        # ulps of the mean or of the spread (1), whichever is larger, and what they leave in the reference's variance
        np.testing.assert_allclose(found.mean, mean, rtol=3e-16, atol=1e-16)
        np.testing.assert_allclose(found.variance(), ((table - mean) ** 2).mean(0), rtol=1e-14)


def test_progress_counts_fragments_and_rows(folder, table):
    seen = []
    fit(folder, progress=seen.append)
    assert [p.done for p in seen] == list(range(1, PARTS + 1))
    assert seen[-1] == FitProgress(done=PARTS, total=PARTS, rows=len(table), skipped=0)
    seen.clear()
    fit(iter([table]), progress=seen.append)
    assert seen == [FitProgress(done=1, total=None, rows=len(table), skipped=0)]


@pytest.mark.parametrize("broken", [[0], [2], [0, 1], [4]])
def test_unreadable_files_are_named_or_skipped_and_listed(broken, folder, tmp_path, table):
    paths = [str(break_part(folder, number)) for number in broken]
    with pytest.raises(SourceError, match=f"{re.escape(paths[0])}: cannot be read: "):
        fit(folder)
    found = fit(folder, on_error="skip")
    kept = [part for n, part in enumerate(np.split(table, [10, 300, 301, 900])) if n not in broken]
    assert found.statistics_.rows == sum(map(len, kept))
    np.testing.assert_allclose(found.mean_, np.concatenate(kept).mean(0), rtol=1e-14)
    for suffix in ("json", "safetensors"):
        skipped = load(save(found, tmp_path / f"s.{suffix}")).contract_.source["skipped"]
        assert [skip["file"] for skip in skipped] == paths
        errors = [skip["error"] for skip in skipped]
        assert all(e.startswith(f"{path}: cannot be read") for e, path in zip(errors, paths, strict=True))
    with pytest.warns(UserWarning, match=f"skipped {len(paths)} that cannot be read: {re.escape(paths[0])}"):
        fit_statistics(folder, on_error="skip")


def test_all_unreadable_is_an_error(folder):
    for number in range(PARTS):
        break_part(folder, number)
    with pytest.raises(SourceError, match="cannot be read"):
        fit(folder, on_error="skip")


def test_nan_policies(folder, table):
    table[500, 1] = np.nan
    write_part(folder, 5, table)
    assert fit(folder).statistics_.missing.tolist() == [0, 1, 0]
    with pytest.raises(InvalidInputError, match=r"part-5\.parquet: .*missing values in 1 features: b \(1\)"):
        fit(folder, nan_policy="raise")
    assert np.isnan(fit_statistics(folder, nan_policy="propagate").mean).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaler": "fancy"}, "scaler: expected one of standard, minmax, robust, maxabs"),
        ({"engine": "spark"}, "engine: expected one of local, ray"),
        ({"on_error": "ignore"}, "on_error: expected one of raise, skip"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"nan_policy": "drop"}, "nan_policy must be"),
    ],
)
def test_bad_options(options, message, table):
    with pytest.raises(InvalidArgumentError, match=message):
        fit(table, **options)


def test_bad_types_and_streams(table, tmp_path):
    with pytest.raises(InvalidTypeError, match="scaler: expected one of"):
        fit(table, scaler=3)
    for options in ({"engine": "ray"}, {"resume": tmp_path / "r"}):
        with pytest.raises(InvalidArgumentError, match="is read once, in this process"):
            fit(iter([table]), **options)
    with pytest.raises(InvalidInputError, match="infinities"):
        fit(np.array([[np.inf], [1.0]]))


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(folder, states, after):
    def stop(progress):
        if progress.done == after:
            raise Killed

    with pytest.raises(Killed):
        fit_statistics(folder, resume=states, progress=stop)


@pytest.mark.parametrize("after", [1, 3, PARTS])
@pytest.mark.parametrize("torn", [0, 1, 100])
def test_an_interrupted_fit_continues_to_the_same_bytes(after, torn, folder, tmp_path, monkeypatch):
    expected = fit_statistics(folder).to_bytes()
    states = tmp_path / "states"
    interrupt(folder, states, after)
    whole = states.read_bytes()
    states.write_bytes(whole[: len(whole) - torn])  # a kill in the middle of a write
    read = []
    original = type(open_source(folder).fragments[0]).add_to

    def add_to(self, statistics, skipped):
        read.append(self.key)
        original(self, statistics, skipped)

    monkeypatch.setattr("evenkeel.data._formats.FileFragment.add_to", add_to)
    assert fit_statistics(folder, resume=states).to_bytes() == expected
    assert len(read) == PARTS - after + (torn > 0)
    assert fit_statistics(folder, resume=states).to_bytes() == expected
    assert len(read) == PARTS - after + (torn > 0)


def test_files_added_since_are_read_too(folder, tmp_path, table):
    states = tmp_path / "states"
    fit_statistics(folder, resume=states)
    write_part(folder, 9, table)
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()


def test_skipped_files_are_tried_again(folder, tmp_path):
    good = (folder / "part-2.parquet").read_bytes()
    path = break_part(folder, 2)
    states = tmp_path / "states"
    with pytest.warns(UserWarning, match="skipped 1"):
        fit_statistics(folder, on_error="skip", resume=states)
    path.write_bytes(good)
    assert fit_statistics(folder, resume=states).to_bytes() == fit_statistics(folder).to_bytes()


def rewrite(folder):
    pq.write_table(pa.table({"a": [1.0], "b": [1.0], "c": [1.0]}), folder / "part-1.parquet")


def touch(folder):
    os.utime(folder / "part-1.parquet", ns=(1, 1))


def remove(folder):
    (folder / "part-1.parquet").unlink()


def rename_columns(folder):
    pq.write_table(pa.table({"x": [1.0]}), folder / "part-0.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rewrite, r"part-1\.parquet was written again"),
        (touch, r"part-1\.parquet was written again"),
        (remove, r"part-1\.parquet is gone"),
        (rename_columns, "begun with columns"),
    ],
)
def test_a_changed_source_is_not_resumed(change, message, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    change(folder)
    with pytest.raises(SourceError, match=message):
        fit_statistics(folder, resume=states)


@pytest.mark.parametrize("options", [{"columns": ["a"]}, {"quantiles": True}, {"nan_policy": "raise"}])
def test_other_options_are_not_resumed(options, folder, tmp_path):
    states = tmp_path / "states"
    interrupt(folder, states, 3)
    with pytest.raises(SourceError, match=f"begun with {next(iter(options))}"):
        fit_statistics(folder, resume=states, **options)


@pytest.mark.parametrize("content", [b"hello\n", b'{"format": "other"}\n', b"\x00\xff" * 50])
def test_a_foreign_file_is_not_resumed_nor_touched(content, folder, tmp_path):
    states = tmp_path / "states"
    states.write_bytes(content)
    with pytest.raises(StateError, match="holds no interrupted fit"):
        fit_statistics(folder, resume=states)
    assert states.read_bytes() == content


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather", "npy"])
def test_files_are_transformed_block_by_block(suffix, folder, table, tmp_path, monkeypatch):
    monkeypatch.setattr("evenkeel.data._columns.COPIED_ROWS", (50, 70))
    np.save(tmp_path / "in.npy", table)
    scaler = fit(folder)
    out = transform_files(scaler, tmp_path / "in.npy", tmp_path / f"out.{suffix}")
    found = np.load(out) if suffix == "npy" else pa_table(out)
    expected = scaler.transform(pd.DataFrame(table, columns=list("abc")))
    np.testing.assert_allclose(found, expected, rtol=0 if suffix != "csv" else 1e-15)
    assert os.listdir(tmp_path).count(f".{out.name}.tmp") == 0


def pa_table(path):
    source = open_source(path)
    assert source.names == ("a", "b", "c")
    return np.concatenate([b.tensor().numpy() for f in source.fragments for b in f.blocks(None)])


def test_other_columns_order_dtypes_and_nulls_are_kept(folder, tmp_path):
    scaler = fit(folder)
    columns = {
        "id": ["x", "y", "z"],
        "c": pa.array([1e8, None, 1e8 + 1], pa.float32()),
        "a": pa.array([1, 2, None]),
        "b": pa.array([1e4, 1e4 + 1, float("nan")]),
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    found = pq.read_table(transform_files(scaler, tmp_path / "in.parquet", tmp_path / "out.parquet"))
    assert found.column_names == ["id", "c", "a", "b"]
    assert found["id"].to_pylist() == ["x", "y", "z"]
    assert [str(found.schema.field(name).type) for name in "cab"] == ["float", "double", "double"]
    assert [found[name].null_count for name in "cab"] == [1, 1, 0]
    np.testing.assert_allclose(found["a"].to_pylist()[:2], (np.array([1, 2]) - scaler.mean_[0]) / scaler.scale_[0])


def test_a_directory_becomes_a_directory(folder, table, tmp_path):
    seen = []
    scaler = fit(folder)
    out = transform_files(scaler, folder, tmp_path / "out", progress=lambda *now: seen.append(now))
    assert sorted(os.listdir(out)) == sorted(os.listdir(folder))
    np.testing.assert_allclose(fit_statistics(out).mean, 0, atol=1e-7)
    assert seen[-1] == (PARTS - 1, PARTS, len(table))


def test_nothing_appears_where_transforming_fails(folder, table, tmp_path):
    scaler = fit(folder)
    break_part(folder, 3)
    with pytest.raises(SourceError, match=r"part-3\.parquet: cannot be read"):
        transform_files(scaler, folder, tmp_path / "out")
    np.save(tmp_path / "in.npy", table * 255)
    with pytest.raises(ValueError, match="the data is not like that of the fit"):
        transform_files(scaler, tmp_path / "in.npy", tmp_path / "out.npy")
    assert sorted(os.listdir(tmp_path)) == ["data", "in.npy"]
    with pytest.warns(UserWarning, match="not like that of the fit"):
        transform_files(scaler, tmp_path / "in.npy", tmp_path / "out.npy", on_mismatch="warn")
    transform_files(scaler, tmp_path / "in.npy", tmp_path / "out.npy", on_mismatch="ignore")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("in.npy", "out.xlsx"), {}, "the name must end in .parquet"),
        (("in.npy", "in.npy"), {}, "is the input"),
        (("in.npy", "out.npy"), {"columns": [0, 1]}, "the statistics are of 3 columns, but 2 were found"),
        (("in.npy", "out.npy"), {"on_mismatch": "shrug"}, "on_mismatch must be"),
        (("in.npy", "no/out.npy"), {}, "cannot write"),
        (("data", "out.csv"), {}, "is a directory"),
        (("none.csv", "out.csv"), {}, "there is no file"),
    ],
)
def test_transforming_what_cannot_be(names, options, message, folder, table, tmp_path):
    np.save(tmp_path / "in.npy", table)
    with pytest.raises(Exception, match=message) as caught:
        transform_files(fit(folder), tmp_path / names[0], tmp_path / names[1], **options)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(np.load(tmp_path / "in.npy"), table)


def drifted(change, quantiles=True):
    before = np.random.default_rng(1).normal(size=(4000, 2))
    now = np.random.default_rng(2).normal(size=(4000, 2))
    now[:, 1] = change(now[:, 1])
    reference, current = (Statistics(names=["x", "y"], quantiles=quantiles).update(v) for v in (before, now))
    return compare(reference, current)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y + 1, "mean shifted by 1 standard deviations"),
        (lambda y: y * 3, "standard deviation changed to 3 of what it was"),
        (lambda y: np.where(np.arange(4000) == 0, 40.0, y), "leaves the range seen"),
        (lambda y: np.where(np.arange(4000) % 5 == 0, np.nan, y), "20.0% missing, 0.0% before"),
        (lambda y: np.sign(y), "distribution changed"),
        (lambda y: np.full(4000, np.nan), "has no values"),
    ],
)
def test_drift_is_found_in_the_feature_that_drifted(change, message):
    found = drifted(change)
    assert isinstance(found, DriftReport)
    assert not found.ok
    assert any(failure.startswith("y: ") and message in failure for failure in found.failures)
    assert isinstance(found.features[0], FeatureDrift)
    assert found.features[0].failures == ()


def test_samples_of_the_same_data_do_not_drift():
    rng = np.random.default_rng(3)
    reference = Statistics(quantiles=True).update(rng.normal(size=(5000, 4)))
    for rows in (2, 5, 20, 100, 5000):
        for _ in range(5):
            current = Statistics(quantiles=True).update(rng.normal(size=(rows, 4)))
            assert compare(reference, current).failures == ()


def test_the_distance_of_distributions_is_kolmogorov_and_smirnovs():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 200, (3000, 1), dtype=np.uint8), rng.integers(20, 256, (2000, 1), dtype=np.uint8)
    found = compare(Statistics(quantiles=True).update(a), Statistics(quantiles=True).update(b)).features[0]
    assert found.ks == pytest.approx(ks_2samp(a[:, 0], b[:, 0]).statistic, abs=1e-12)
    assert found.psi > DriftLimits().psi


@pytest.mark.parametrize("quantiles", [False, True])
def test_a_constant_feature_drifts_when_it_changes_only(quantiles):
    before, other = np.full((500, 1), 3.0), np.full((500, 1), 4.0)
    kept = Statistics(quantiles=quantiles).update(before)
    assert compare(kept, Statistics(quantiles=quantiles).update(before[:300])).ok
    message = "0: was constant in the data of the fit, and is something else now"
    assert compare(kept, Statistics(quantiles=quantiles).update(other)).failures == (message,)
    mixed = Statistics(quantiles=quantiles).update(np.random.default_rng(0).normal(3, 1, (500, 1)))
    assert compare(kept, mixed).failures == (message,)
    # and one that has become constant has lost its spread
    assert "0: standard deviation changed to 0 of what it was" in compare(mixed, kept).failures


def test_drift_of_other_features_is_refused():
    with pytest.raises(InvalidInputError, match="expected 2 features"):
        compare(Statistics().update(np.eye(2)), Statistics().update(np.eye(3)))


def test_all_merge_needs_a_process_group():
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialized"):
        all_merge(Statistics().update(np.eye(2)))
