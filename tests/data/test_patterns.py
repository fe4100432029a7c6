"""Patterns and partitions: the same files and columns on this machine and in a store."""

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenkeel import SourceError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics
from evenkeel.data.sources import key_of, list_files, locate

KEYS = [
    "top.parquet",
    "year=2023/c=de/part.parquet",
    "year=2024/c=de/part.parquet",
    "year=2024/c=de/part-1.parquet",
    "year=2024/c=fr/deep/part-2.parquet",
]
HIDDEN = ["_old.parquet", "year=2024/_part.parquet", "year=2024/.part.parquet", "year=2024/_tmp/part.parquet"]


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def hive(tmp_path):
    for number, key in enumerate([*KEYS, *HIDDEN]):
        write(tmp_path / "hive" / key, n=[2.0**number])
    for name in ("_SUCCESS", "year=2024/_SUCCESS", "year=2024/notes.txt"):
        (tmp_path / "hive" / name).touch()
    return tmp_path / "hive"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", KEYS),
        ("*", KEYS[:1]),
        ("year=2024/**", KEYS[2:]),
        ("**/part.parquet", KEYS[1:3]),
        ("*/c=de/part.parquet", KEYS[1:3]),
        ("year=202[4-9]/*/part*", KEYS[2:4]),
        ("year=202[!4]/**/*.parquet", KEYS[1:2]),
        ("year=202?/c=de/part-[0-9].parquet", KEYS[3:4]),
        ("year=2024/c=fr/**/part-?.parquet", KEYS[4:]),
        ("year=2024/_*.parquet", HIDDEN[1:2]),  # asked for by name
    ],
)
def test_a_pattern_stands_for_the_same_files_everywhere(pattern, expected, hive, store):
    url = store.upload(hive, "hive")
    files, *_ = list_files(hive / pattern)
    assert sorted(key_of(file, hive) for file in files) == sorted(expected)
    files, *_ = list_files(locate(f"{url}/{pattern}", store.options))
    assert sorted(key_of(file, locate(url, store.options)) for file in files) == sorted(expected)


def test_all_of_a_bucket(hive, store):
    store.upload(hive, "hive")
    assert fit_statistics("s3://bucket/**", storage_options=store.options).rows == len(KEYS)


@pytest.mark.parametrize("name", ["part[1].parquet", "what?.parquet"])
def test_a_name_with_the_signs_of_a_pattern_is_taken_as_it_is(name, store, tmp_path):
    write(tmp_path / "data" / name, n=[1.0])
    write(tmp_path / "data" / "part1.parquet", n=[3.0])
    url = store.upload(tmp_path / "data", "data")
    assert fit_statistics(tmp_path / "data" / name).mean.tolist() == [1.0]
    assert fit_statistics(f"{url}/{name}", storage_options=store.options).mean.tolist() == [1.0]


def test_nothing_matches(hive, store, tmp_path, capsys):
    url = store.upload(hive, "hive")
    for source, options in ((str(hive), {}), (url, {"storage_options": store.options})):
        with pytest.raises(SourceError, match=r"no (file|object) matches .*x\?\.csv$"):
            fit(f"{source}/x?.csv", **options)
        with pytest.raises(SourceError, match=r"notes\.\*: the names of 1 that match end in none of \.parquet"):
            fit(f"{source}/year=2024/notes.*", **options)
    command = ["--out", str(tmp_path / "s.json"), "--quiet"]
    assert main(["data", "fit", f"{hive}/*/c=de/part.parquet", *command]) == 0
    assert main(["data", "fit", f"{hive}/*/c=de/none.parquet", *command, "--force"]) == 2
    assert "no file matches" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["year=2024/*/*.parquet", "year=2024/c=de", "year=2024/c=de/part.parquet", "y*/**"])
def test_folders_before_and_behind_a_wildcard_give_columns(pattern, hive, store):
    url = store.upload(hive, "hive")
    found = fit_statistics(f"{hive}/{pattern}", columns=["year", "n"])
    assert found.maximum[0] == 2024
    stored = fit_statistics(f"{url}/{pattern}", columns=["year", "n"], storage_options=store.options)
    assert stored.to_bytes() == found.to_bytes()
    with pytest.raises(SourceError, match=r"not numbers: c \(text\)"):
        fit(f"{hive}/{pattern}", columns=["c"])


@pytest.mark.parametrize("folder", ["k=__HIVE_DEFAULT_PARTITION__", "k=%31", "k=-3", "k=--3", "k=x%20y"])
def test_the_values_of_folders(folder, tmp_path, store):
    write(tmp_path / "t" / "k=2" / "x.parquet", n=[1.0, 2.0])
    write(tmp_path / "t" / folder / "y.parquet", n=[3.0])
    sources = [(tmp_path / "t", {}), (store.upload(tmp_path / "t", "t"), {"storage_options": store.options})]
    for source, options in sources:
        if folder in ("k=--3", "k=x%20y"):
            with pytest.raises(SourceError, match=r"not numbers: k \(text\)"):
                fit(source, columns=["k", "n"], **options)
            continue
        for names in (["k", "n"], ["k"]):
            found = fit_statistics(source, columns=names, **options)
            assert found.missing[0] == ("HIVE" in folder)
            assert found.minimum[0] == {"k=%31": 1, "k=-3": -3}.get(folder, 2)
        assert found.rows == 3


def test_a_delta_table_whose_columns_grew(tmp_path, store):
    path = tmp_path / "grown"
    deltalake.write_deltalake(path, pa.table({"n": [1.0, 2.0, 3.0], "k": [1, None, 2]}), partition_by=["k"])
    new = pa.table({"n": [5.0, 6.0], "k": [7, 7], "new": [1.5, 2.5], "word": ["a", "b"]})
    deltalake.write_deltalake(path, new, mode="append", schema_mode="merge")
    for source, options in ((path, {}), (store.upload(path, "grown"), {"storage_options": store.options})):
        found = fit_statistics(source, columns=["n", "new", "k"], **options)
        assert found.rows == 5
        assert found.missing.tolist() == [0, 3, 1]
        np.testing.assert_allclose(found.mean, [3.4, 2.0, 17 / 4])
        assert fit_statistics(source, columns="numeric", **options).names == ("n", "new")
        assert fit_statistics(source, columns=["new"], quantiles=True, **options).missing.tolist() == [3]
    assert main(["data", "fit", str(path), "--numeric", "--out", str(tmp_path / "s.json"), "--quiet"]) == 0
    assert main(["data", "check", str(path), "--stats", str(tmp_path / "s.json"), "--quiet"]) == 0
    deltalake.DeltaTable(path).delete()
    with pytest.raises(SourceError, match="grown: this Delta table has no rows"):
        fit(path, columns="numeric")
