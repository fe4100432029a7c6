"""fit: the scaler asked for, what is skipped, and the same bits whoever reads."""

import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
from parquet_parts import PARTS, break_part, write_part
from settings import on_threads
from sklearn import preprocessing

from evenkeel import InvalidArgumentError, InvalidInputError, InvalidTypeError, SourceError
from evenkeel.data import (
    FitProgress,
    MinMaxScaler,
    Statistics,
    all_merge,
    fit,
    fit_statistics,
    load,
    save,
)


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
    monkeypatch.setattr("evenkeel.data.sources._memory.FRAGMENT_ELEMENTS", 300)
    assert len(set(on_threads(lambda: fit_statistics(table).to_bytes()))) == 1


def test_any_cut_gives_the_two_pass_answer(monkeypatch, table):
    for elements in (1, 30, 1000, 10**6):
        monkeypatch.setattr("evenkeel.data.sources._memory.FRAGMENT_ELEMENTS", elements)
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


@pytest.mark.parametrize("name", ["a.parquet", "z.parquet"])
def test_a_link_to_nowhere_is_unreadable_too(name, folder, table):
    (folder / name).symlink_to(folder / "gone.parquet")
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: cannot be read"):
        fit(folder)
    assert fit(folder, on_error="skip").statistics_.rows == len(table)


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


def test_all_merge_needs_a_process_group():
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialized"):
        all_merge(Statistics().update(np.eye(2)))
