"""Columns of sources: chosen by name and position, of other files, of partitions, and what is no number."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from data_sources import FILES, MEMORY, NAMES, ROWS, STREAMS, agree, as_arrow, chunks

from evenkeel import InvalidInputError, SourceError
from evenkeel.data import Statistics, fit, fit_statistics, transform_files


def test_columns_in_a_dict(gappy):
    columns = dict(zip(NAMES, gappy.T, strict=True))
    halves = [dict(zip(NAMES, half.T, strict=True)) for half in np.array_split(gappy, 2)]
    for source in (columns, [columns], halves, tuple(halves)):
        found = fit_statistics(source)
        assert found.names == tuple(NAMES)
        agree(found, gappy)


@pytest.mark.parametrize("form", ["arrow", "pandas", "parquet", "csv", "feather", "dicts"])
@pytest.mark.parametrize(("columns", "kept"), [(["c", "a"], [2, 0]), ([2, 0], [2, 0]), ("b", [1]), ([-1], [2])])
def test_columns_by_name_and_position(form, columns, kept, gappy, tmp_path):
    if form in ("parquet", "csv", "feather"):
        FILES[f"x.{form}"](source := tmp_path / f"x.{form}", gappy)
    else:
        source = {**MEMORY, **STREAMS}[form](gappy)
    found = fit_statistics(source, columns=columns)
    assert found.names == tuple(NAMES[i] for i in kept)
    agree(found, gappy[:, kept])


@pytest.mark.parametrize("columns", [[2, 0], [1], [0, 2], [1, 2], ["2", "0"], [2, 1, 0]])
def test_columns_of_arrays(columns, gappy, tmp_path):
    np.save(tmp_path / "x.npy", gappy)
    kept = [int(c) for c in columns]
    for source in (gappy, torch.from_numpy(gappy), tmp_path / "x.npy", iter(chunks(gappy))):
        agree(fit_statistics(source, columns=columns), gappy[:, kept])


def test_words_are_refused_by_name_or_left_out_when_asked(gappy, tmp_path):
    words = as_arrow(gappy).append_column("city", pa.array(["x"] * ROWS))
    pq.write_table(words, tmp_path / "x.parquet")
    pa.csv.write_csv(words, tmp_path / "x.csv")
    for source in (words, words.to_pandas(), pl.from_arrow(words), tmp_path / "x.parquet", tmp_path / "x.csv"):
        with pytest.raises(SourceError, match=r'not numbers: city \(.+\); name the columns.*columns="numeric"'):
            fit_statistics(source)
        agree(fit_statistics(source, columns="numeric"), gappy)
        with pytest.raises(SourceError, match=r"not numbers: city .*name numeric columns only"):
            fit_statistics(source, columns=["a", "city"])


def test_hive_partitions_are_columns_when_named(gappy, tmp_path):
    for year, part in zip((2023, 2024), np.array_split(gappy, 2), strict=True):
        folder = tmp_path / f"year={year}" / "city=x%20y"
        folder.mkdir(parents=True)
        pq.write_table(as_arrow(part), folder / "x.parquet")
    assert fit_statistics(tmp_path).names == tuple(NAMES)
    found = fit_statistics(tmp_path, columns=["a", "year"])
    assert found.mean[1] == 2023.5
    with pytest.raises(SourceError, match=r"not numbers: city \(text\)"):
        fit_statistics(tmp_path, columns=["city"])


def test_columns_of_other_files_are_found_by_name(tmp_path):
    pq.write_table(pa.table({"a": [1.0], "b": [10]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [20.0], "x": ["z"], "a": [3]}), tmp_path / "2.parquet")
    found = fit_statistics(tmp_path)
    assert found.mean.tolist() == [2.0, 15.0]
    pq.write_table(pa.table({"a": [1.0]}), tmp_path / "3.parquet")
    with pytest.raises(SourceError, match=r"3\.parquet: lacks the column 'b'"):
        fit_statistics(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["aa"], "there is no column 'aa'; did you mean 'a'"),
        (["zzz"], "there is no column 'zzz'; there are a, b, c"),
        ([3], "there is no column 3: the source has 3"),
        (["a", "a"], "'a' is asked for more than once"),
        ([], "no column is left"),
        ([1.5], "expected names or positions"),
    ],
)
def test_bad_columns(columns, message, gappy):
    with pytest.raises(ValueError, match=message):
        fit_statistics(as_arrow(gappy), columns=columns)


def doubled(words):
    """A table with two columns of the name a, of which the second may hold words, and two others."""
    second = ["x"] * 4 if words else [5.0, 6, 7, 8]
    columns = [np.arange(4.0), second, np.arange(4.0) + 1, ["y"] * 4]
    return pa.table([pa.array(column) for column in columns], names=["a", "a", "b", "word"])


def as_pandas(table):
    frame = pd.concat([pd.Series(column.to_pylist()) for column in table.columns], axis=1)
    return frame.set_axis(table.column_names, axis=1)  # to_pandas would mix the types of columns of one name


DOUBLED = {
    "parquet": lambda path, table: pq.write_table(table, path),
    "feather": lambda path, table: pa.feather.write_feather(table, str(path)),
    "csv": lambda path, table: pa.csv.write_csv(table, path),
}


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("form", [*DOUBLED, "arrow", "pandas", "tables"])
def test_columns_of_one_name_are_named_with_the_way_out(form, words, tmp_path):
    table = source = doubled(words)
    if form in DOUBLED:
        DOUBLED[form](source := tmp_path / f"x.{form}", table)
    for columns in (None, "numeric", ["a"], ["b", "a"], [0]):
        given = {"pandas": lambda: as_pandas(table), "tables": lambda: iter([table])}.get(
            form, lambda source=source: source
        )()
        with pytest.raises(SourceError, match=r"several columns have the name 'a'; rename them .*--columns") as caught:
            fit_statistics(given, columns=columns)
        assert "\n" not in str(caught.value)
    given = {"pandas": lambda: as_pandas(table), "tables": lambda: iter([table])}.get(form, lambda: source)()
    assert fit_statistics(given, columns=["b"]).mean.tolist() == [2.5]


@pytest.mark.parametrize("form", DOUBLED)
def test_a_later_file_with_columns_of_one_name_is_named(form, tmp_path):
    DOUBLED[form](tmp_path / f"a.{form}", doubled(False).select([0, 2]))
    DOUBLED[form](tmp_path / f"b.{form}", doubled(False))
    with pytest.raises(SourceError, match=rf"b\.{form}: several columns have the name 'a'"):
        fit_statistics(tmp_path)
    assert fit_statistics(tmp_path, columns="b").rows == 8
    with pytest.raises(SourceError, match=rf"b\.{form}: several columns have the name 'a'"):
        transform_files(fit(tmp_path / f"a.{form}"), tmp_path / f"b.{form}", tmp_path / f"y.{form}")


def test_entries_of_a_batch_that_become_columns_of_one_name():
    for batch in ({"a": np.eye(2), "a.1": np.ones(2)}, {1: np.ones(2), "1": np.ones(2)}):
        with pytest.raises(SourceError, match=r"several columns have the name '(a\.1|1)'"):
            fit_statistics(batch)
    names = pd.DataFrame(np.eye(2), columns=["a", "b"])
    with pytest.raises(InvalidInputError, match="several columns of the name a"):
        Statistics().update(names).update(pd.DataFrame(np.ones((2, 3)), columns=["a", "a", "b"]))


@pytest.mark.parametrize("rows", [50, 200_000])
@pytest.mark.parametrize("header", ["a;b\n", ""])
def test_a_word_among_numbers_is_told_with_its_row_whatever_the_size_of_the_file(rows, header, tmp_path):
    lines = [f"{number};{number / 2}" for number in range(rows)]
    lines[rows - 9] = "7;six"
    (tmp_path / "x.csv").write_text(header + "\n".join(lines) + "\n")
    column = "b" if header else "f1"
    row = rows - 8 + bool(header)
    with pytest.raises(SourceError, match=rf"{column}.*'six' in row {row}|'six' in row {row} of the column '{column}'"):
        fit_statistics(tmp_path / "x.csv")


def test_words_and_missing_values_are_no_words_among_numbers(tmp_path):
    (tmp_path / "x.csv").write_text("a,b,c\n1,x,2\nNA,y,3\n,3,z4\n4,,5\n")
    with pytest.raises(SourceError) as caught:
        fit_statistics(tmp_path / "x.csv")
    assert "b (string), c (string: 'z4' in row 4 among numbers)" in str(caught.value)
    assert fit_statistics(tmp_path / "x.csv", columns="numeric").missing.tolist() == [2]
