"""What sources cannot be read, and say so in one line."""

import os
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from evenkeel import InvalidTypeError, SourceError
from evenkeel.data import Statistics, fit, fit_statistics
from evenkeel.data.sources import _parquet


def saved(path, write):
    write(path)
    return path


def filled(path, content):
    path.write_bytes(content)
    return path


def touched(path):
    return filled(path, b"")


BAD = {
    "missing": (lambda d: d / "none.csv", "there is no file or directory"),
    "pattern": (lambda d: d / "*.csv", "no file matches"),
    "empty directory": (lambda d: d, "holds no data: it is empty"),
    "strange directory": (
        lambda d: touched(d / "x.txt").parent,
        "none of its 1 files ends in",
    ),
    "mixed": (
        lambda d: touched(touched(d / "a.csv").with_suffix(".npy")).parent,
        "mixes CSV and NumPy files; give one kind",
    ),
    "extension": (
        lambda d: touched(d / "x.xlsx"),
        "the name tells no format; it must end in one of .parquet",
    ),
    "empty csv": (lambda d: touched(d / "x.csv"), "the file is empty"),
    "empty npy": (lambda d: touched(d / "x.npy"), "the file is empty"),
    "empty parquet": (lambda d: touched(d / "x.parquet"), "cannot be read: Parquet file size is 0"),
    "broken parquet": (
        lambda d: filled(d / "x.parquet", b"PAR1" * 9),
        "x.parquet: cannot be read",
    ),
    "broken feather": (
        lambda d: filled(d / "x.feather", b"ARROW1" * 9),
        "x.feather: cannot be",
    ),
    "broken npz": (lambda d: filled(d / "x.npz", b"PK" * 90), "x.npz: cannot be read"),
    "broken image": (lambda d: filled(d / "x.png", b"x"), "x.png: cannot be read"),
    "broken csv": (lambda d: saved(d / "x.csv", lambda p: p.write_text("a,b\n1,2\n1\n")), "Expected 2 columns, got 1"),
    "header only": (lambda d: saved(d / "x.csv", lambda p: p.write_text("a,b\n")), "has no rows"),
    "late word": (
        lambda d: filled(d / "x.csv", b"a\n" + b"1\n" * 600_000 + b"x\n"),
        "'x' in row 600002 of the column 'a' is no number",
    ),
    "npy header": (
        lambda d: filled(d / "x.npy", b"\x93NUMPY\x01\x00\x06\x00{'a': "),
        "x.npy: cannot be read",
    ),
    "several arrays": (
        lambda d: saved(d / "x.npz", lambda p: np.savez(p, u=1, v=2)),
        "holds 2 arrays: u, v; choose one",
    ),
    "objects": (
        lambda d: saved(d / "x.npy", lambda p: np.save(p, np.array([[None]]), allow_pickle=True)),
        "x.npy: holds Python objects; save numbers",
    ),
    "vector file": (lambda d: saved(d / "x.npy", lambda p: np.save(p, np.ones(3))), r"the shape is \(3,\)"),
    "vector": (lambda d: np.ones(3), r"the shape is \(3,\); use x.reshape\(-1, 1\)"),
    "no rows": (lambda d: np.ones((0, 3)), "has no rows"),
    "no columns": (lambda d: np.ones((3, 0)), "has no columns"),
    "ragged": (lambda d: [[1.0], [1.0, 2.0]], "one length"),
    "complex": (lambda d: np.ones((2, 2), complex), "expected real numbers, but the dtype is complex128"),
    "text": (lambda d: np.array([["a"]]), "expected real numbers"),
    "empty iterable": (lambda d: iter([]), "gives no batches"),
    "samples": (lambda d: iter([np.ones(3)]), r"expected batches of shape \(rows, columns\)"),
    "no numbers": (lambda d: pa.table({"a": ["x"]}), r"not numbers: a \(string\); there is no numeric column"),
    "twice": (lambda d: [saved(d / "x.csv", lambda p: p.write_text("a\n1\n"))] * 2, "is given twice"),
    "ragged dict": (lambda d: iter([{"a": np.ones(2), "b": np.ones(3)}]), "differ in length: a 2, b 3"),
    "changing dicts": (lambda d: iter([{"a": np.ones(2)}, {"b": np.ones(2)}]), "a batch lacks the column 'a'"),
    "other width": (lambda d: iter([np.ones((2, 2)), np.ones((2, 3))]), "batch 2: expected 2 features"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sources_say_so_in_one_line(kind, tmp_path):
    make, message = BAD[kind]
    with pytest.raises((SourceError, ValueError), match=message) as caught:
        fit_statistics(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_file_with_words_for_numbers_is_skipped(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "b.csv").write_text("a,b\n1,2\n3,4\x0055\n")
    with pytest.raises(InvalidTypeError, match=r"b\.csv: expected numbers"):
        fit(tmp_path)
    fitted = fit(tmp_path, on_error="skip")
    assert fitted.statistics_.rows == 2
    assert [skip["file"] for skip in fitted.contract_.source["skipped"]] == [str(tmp_path / "b.csv")]


@pytest.mark.parametrize("source", [3, None, object()])
def test_what_holds_no_rows(source):
    with pytest.raises(InvalidTypeError, match="cannot read rows from a"):
        fit_statistics(source)


def test_a_dataset_of_samples_asks_for_a_loader():
    class Samples(torch.utils.data.Dataset):
        def __getitem__(self, index):
            return torch.ones(3)

    with pytest.raises((InvalidTypeError, SourceError), match="DataLoader"):
        fit_statistics(Samples())


@pytest.mark.parametrize("quantiles", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_parquet_file_cut_short_while_it_is_read_is_an_error(on_error, quantiles, tmp_path, monkeypatch):
    monkeypatch.setattr(_parquet, "PIECE_ROWS", 100_000)
    for name, rows in (("a", 300_000), ("b", 400_000)):
        table = pa.table({"a": np.random.default_rng(0).normal(size=rows)})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=100_000, compression="none")
    opened, cut = _parquet.open_file, []

    @contextmanager
    def opened_and_cut(path, *arguments):
        with opened(path, *arguments) as found:
            if path.name == "b.parquet":
                os.truncate(path, 1_000_000)  # a mapped file would end the process here
                cut.append(path)
            yield found

    monkeypatch.setattr(_parquet, "open_file", opened_and_cut)
    if on_error == "raise":
        with pytest.raises(SourceError, match=r"b\.parquet: cannot be read"):
            fit(tmp_path, quantiles=quantiles)
    else:
        assert fit(tmp_path, on_error="skip", quantiles=quantiles).statistics_.rows == 300_000
    assert cut


@pytest.mark.parametrize("kind", ["to_sparse", "to_mkldnn"])
def test_tensors_that_are_not_dense(kind):
    with pytest.raises(InvalidTypeError, match="expected a dense tensor"):
        Statistics().update(getattr(torch.ones(3, 2), kind)())
