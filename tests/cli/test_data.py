"""`evenkeel data`: what its commands print and write, and one clear line for whatever a user can get wrong."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import evenkeel
from evenkeel.cli import main
from evenkeel.cli.data_progress import Bar, Lines, make_watcher
from evenkeel.data import FitProgress, GroupStatistics, ImageNormalize, Statistics, fit, load, save
from evenkeel.data.views import QUARTILES

ROWS = 400
COMMANDS = ("fit", "show", "apply", "check", "merge")


def data(*arguments):
    return main(["data", *map(str, arguments)])


def make_table(seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    columns = {"height": rng.normal(170 + shift, 10, ROWS), "weight": rng.normal(70, 5, ROWS).astype(np.float32)}
    return pa.table(columns | {"city": ["x"] * ROWS})


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "people"
    path.mkdir()
    for number in range(4):
        pq.write_table(make_table(number), path / f"part-{number}.parquet")
    return path


@pytest.fixture
def stats(folder, tmp_path):
    path = tmp_path / "stats.json"
    save(fit(folder, columns="numeric", quantiles=True), path)
    return path


def last_error(capsys):
    _, error = capsys.readouterr()
    assert error.startswith("evenkeel: error: "), error
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_help_names_the_commands(capsys):
    assert data() == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_fit_writes_the_librarys_scaler_and_prints_its_table(suffix, folder, tmp_path, capsys):
    out = tmp_path / f"stats.{suffix}"
    assert data("fit", folder, "--columns", "weight,height", "--out", out, "--scaler", "minmax") == 0
    found, expected = load(out), fit(folder, columns=["weight", "height"], scaler="minmax")
    assert found.statistics_.to_bytes() == expected.statistics_.to_bytes()
    np.testing.assert_array_equal(found.data_max_, expected.data_max_)
    printed, error = capsys.readouterr()
    assert error == ""
    assert max(map(len, printed.splitlines()[:-1])) <= 100
    assert "1,600" in printed
    assert f"MinMaxScaler: 1,600 rows, 2 features of {folder}; written to {out}" in printed
    assert sorted(os.listdir(tmp_path)) == ["people", out.name]


def test_fit_takes_only_numbers_when_asked(folder, tmp_path):
    assert data("fit", folder, "--numeric", "--out", tmp_path / "s.json", "--quiet") == 0
    assert load(tmp_path / "s.json").statistics_.names == ("height", "weight")


def test_fit_skips_and_lists_broken_files(folder, tmp_path, capsys):
    broken = folder / "part-1.parquet"
    broken.write_bytes(b"PAR1")
    out = tmp_path / "s.json"
    assert data("fit", folder, "--numeric", "--out", out, "--on-error", "skip") == 0
    error = capsys.readouterr().err
    assert f"skipped {broken}: cannot be read" in error
    assert "1 files skipped; the list is in the file written" in error
    assert str(broken) in out.read_text()
    assert data("show", out) == 0
    assert "1 files skipped" in capsys.readouterr().out


def test_show_as_table_json_and_page(stats, tmp_path, capsys):
    assert data("show", stats, "--html", tmp_path / "page.html") == 0
    printed = capsys.readouterr().out
    statistics = load(stats).statistics_
    assert f"{statistics.mean[0]:.1f}" in printed
    assert all(f"{share:.0%}" in printed for share in QUARTILES)
    page = (tmp_path / "page.html").read_text()
    assert "height" in page
    assert "Distributions" in page

    assert data("show", stats, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "StandardScaler"
    assert [row["mean"] for row in shown["features"]] == statistics.mean.tolist()


def test_large_means_keep_their_digits(tmp_path, capsys):
    x = np.random.default_rng(0).normal([1700000000.25, 170, 1e-7], [1, 10, 1e-9], (50, 3))
    statistics = Statistics(names=["time", "height", "length"], quantiles=True).update(x)
    save(statistics, tmp_path / "s.json")
    assert data("show", tmp_path / "s.json", "--html", tmp_path / "page.html") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    # to a part of each feature's deviation, whatever its mean
    for text in (f"{statistics.mean[0]:,.3f}", f"{statistics.maximum[1]:.3f}", f"{statistics.minimum[2]:.5e}"):
        assert text in printed
        assert text in (tmp_path / "page.html").read_text()
    for name in ("mean", "max", "75%"):
        assert printed.split().count(name) == 1


def test_a_page_says_what_to_know_before_scaling(tmp_path):
    x = np.random.default_rng(0).normal(0, [1, 1000, 0, 1], (50, 4))
    x[3, 3] = np.nan
    x[4, 0] = np.inf
    save(Statistics(names=["a", "<b>", "c", "d"]).update(x), tmp_path / "s.json")
    assert data("show", tmp_path / "s.json", "--html", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    for text in ("1 of 4 features constant", "1 of 4 features with missing values", "1 of 4 features with infinities"):
        assert text in page
    assert "Scales differ" in page
    assert "&lt;b&gt;" in page
    assert "fit with quantiles=True (--quantiles)." in page


def test_apply_writes_what_transform_gives(stats, tmp_path, capsys):
    pq.write_table(make_table(9), tmp_path / "in.parquet")
    assert data("apply", tmp_path / "in.parquet", "--out", tmp_path / "out.parquet", "--stats", stats) == 0
    found = pq.read_table(tmp_path / "out.parquet")
    scaler = load(stats)
    expected = (make_table(9)["height"].to_numpy() - scaler.mean_[0]) / scaler.scale_[0]
    np.testing.assert_allclose(found["height"].to_numpy(), expected, rtol=1e-12, atol=1e-15)
    assert found["city"].to_pylist() == ["x"] * ROWS
    assert capsys.readouterr().out == f"written to {tmp_path / 'out.parquet'}\n"


def test_check_passes_the_same_data_and_names_what_drifted(stats, tmp_path, capsys):
    pq.write_table(make_table(9), tmp_path / "same.parquet")
    assert data("check", tmp_path / "same.parquet", "--stats", stats) == 0
    assert "400 rows are like those of" in capsys.readouterr().out

    pq.write_table(make_table(9, shift=30), tmp_path / "other.parquet")
    assert data("check", tmp_path / "other.parquet", "--stats", stats, "--html", tmp_path / "c.html") == 1
    printed = capsys.readouterr().out
    assert "FAILS height: mean shifted by 3" in printed
    assert not re.search("FAILS weight", printed)
    assert "mean shifted by 3" in (tmp_path / "c.html").read_text()
    assert data("check", tmp_path / "other.parquet", "--stats", stats, "--max-shift", 9, "--max-psi", 99) == 0


def test_check_finds_a_factor_and_missing_columns(stats, tmp_path, capsys):
    table = make_table(9)
    scaled = table.set_column(0, "height", pa.array(table["height"].to_numpy() * 255))
    scaled = scaled.set_column(1, "weight", pa.array(table["weight"].to_numpy() * 255))
    pq.write_table(scaled, tmp_path / "x255.parquet")
    assert data("check", tmp_path / "x255.parquet", "--stats", stats) == 1
    assert "FAILS the values look multiplied by 255" in capsys.readouterr().out
    pq.write_table(table.drop(["height"]), tmp_path / "less.parquet")
    assert data("check", tmp_path / "less.parquet", "--stats", stats) == 1
    assert "lacks the numeric columns height; it has weight" in capsys.readouterr().out


def test_columns_of_one_name_in_fit_and_check(stats, tmp_path, capsys):
    height, weight, city = make_table().columns
    unrelated = pa.table([height, weight, city, city, height, height], ["height", "weight", "x", "x", "z", "z"])
    pq.write_table(unrelated, tmp_path / "a.parquet")
    assert data("check", tmp_path / "a.parquet", "--stats", stats) == 0
    pq.write_table(pa.table([height, height, weight], ["height", "height", "weight"]), tmp_path / "b.parquet")
    for arguments in (
        ("check", tmp_path / "b.parquet", "--stats", stats),
        ("fit", tmp_path / "b.parquet", "--out", tmp_path / "s.json"),
        ("fit", tmp_path / "b.parquet", "--out", tmp_path / "s.json", "--numeric"),
        ("fit", tmp_path / "b.parquet", "--out", tmp_path / "s.json", "--columns", "weight,height"),
    ):
        assert data(*arguments) == 2
        assert "several columns have the name 'height'; rename them" in last_error(capsys)
    assert data("fit", tmp_path / "b.parquet", "--out", tmp_path / "s.json", "--columns", "weight") == 0


def test_columns_that_folders_name_are_checked_too(tmp_path):
    for year in (2020, 2021):
        (tmp_path / "all" / f"year={year}").mkdir(parents=True)
        pq.write_table(make_table(), tmp_path / "all" / f"year={year}" / "x.parquet")
    assert data("fit", tmp_path / "all", "--out", tmp_path / "s.json", "--columns", "height,year") == 0
    assert data("check", tmp_path / "all", "--stats", tmp_path / "s.json") == 0


def test_merge_gives_the_statistics_of_the_whole(folder, tmp_path, capsys):
    parts = []
    for number in range(4):
        parts.append(tmp_path / f"{number}.json")
        assert data("fit", folder / f"part-{number}.parquet", "--numeric", "--out", parts[-1]) == 0
    assert data("merge", *parts, "--out", tmp_path / "all.safetensors") == 0
    found = load(tmp_path / "all.safetensors")
    assert found.statistics_.to_bytes() == fit(folder, columns="numeric").statistics_.to_bytes()
    assert len(found.contract_.source["merged"]) == 4
    assert "4 files merged: 1,600 rows" in capsys.readouterr().out


def write(path, content=b""):
    path.write_bytes(content)
    return path


ERRORS = {
    "missing file": (lambda d: ["fit", d / "none.csv"], "there is no file or directory"),
    "empty file": (lambda d: ["fit", write(d / "x.csv")], "x.csv: the file is empty"),
    "empty directory": (lambda d: ["fit", d / "empty"], "holds no data: it is empty"),
    "wrong extension": (lambda d: ["fit", write(d / "x.xlsx", b"x")], "the name tells no format"),
    "no numeric columns": (
        lambda d: ["fit", write(d / "x.csv", b"a,b\nx,y\n"), "--numeric"],
        "no numeric column among",
    ),
    "words": (
        lambda d: ["fit", d / "people"],
        r"not numbers: city \(string\); name the columns to use, of height,",
    ),
    "unknown column": (
        lambda d: ["fit", d / "people", "--columns", "hieght"],
        "'hieght'; did you mean 'height'",
    ),
    "empty column": (lambda d: ["fit", d / "people", "--columns", "a,,b"], "expected names with commas between them"),
    "broken parquet": (lambda d: ["fit", write(d / "x.parquet", b"PAR1" * 9)], "x.parquet: cannot be read"),
    "nan": (
        lambda d: ["fit", write(d / "x.csv", b"a\n1\n\nNaN\n"), "--nan-policy", "raise"],
        "x.csv: the batch has missing values in 1 features: a",
    ),
    "infinity": (lambda d: ["fit", write(d / "x.csv", b"a\n1\ninf\n")], "infinities in"),
    "scaler": (lambda d: ["fit", d / "people", "--scaler", "best"], "'--scaler': expected one of standard"),
    "engine": (
        lambda d: ["fit", d / "people", "--numeric", "--engine", "spark"],
        "'--engine': expected one of local, ray",
    ),
    "on-error": (lambda d: ["fit", d / "people", "--on-error", "x"], "'--on-error': expected one of raise, skip"),
    "threads": (
        lambda d: ["fit", d / "people", "--threads", "0"],
        "'--threads': expected a whole number from 1 to 1024",
    ),
    "not statistics": (lambda d: ["show", write(d / "x.json", b"{}")], "x.json: expected an evenkeel/data state"),
    "not json": (lambda d: ["show", write(d / "x.json", b"{")], "x.json: not whole JSON"),
    "no statistics": (lambda d: ["show", d / "none.json"], "there is no file .*none.json"),
    "other suffix": (lambda d: ["show", d / "people" / "part-0.parquet"], "path ending in .json or .safetensors"),
    "preset": (
        lambda d: ["show", save(ImageNormalize.preset("imagenet"), d / "x.json")],
        "preset, which has constants but no statistics",
    ),
    "apply statistics": (
        lambda d: [
            "apply",
            d / "people",
            "--out",
            d / "o",
            "--stats",
            save(Statistics().update(np.eye(2)), d / "x.json"),
        ],
        "holds Statistics, which has no transform",
    ),
    "apply nothing": (
        lambda d: ["apply", d / "no.csv", "--out", d / "o.csv", "--stats", d / "stats.json"],
        "there is no file",
    ),
    "apply to what": (
        lambda d: ["apply", d / "people" / "part-0.parquet", "--out", d / "o.xlsx", "--stats", d / "stats.json"],
        "--out must end in .parquet",
    ),
    "apply to its input": (
        lambda d: [
            "apply",
            d / "people/part-0.parquet",
            "--out",
            d / "people/part-0.parquet",
            "--stats",
            d / "stats.json",
            "--force",
        ],
        "is the input; name another file",
    ),
    "apply to other columns": (
        lambda d: ["apply", write(d / "x.csv", b"height\n1\n"), "--out", d / "o.csv", "--stats", d / "stats.json"],
        "x.csv: there is no column 'weight'",
    ),
    "apply to other data": (
        lambda d: [
            "apply",
            write(d / "x.csv", b"height,weight\n1e9,1\n"),
            "--out",
            d / "o.csv",
            "--stats",
            d / "stats.json",
        ],
        "the data is not like that of the fit",
    ),
    "apply without": (lambda d: ["apply", d / "people", "--out", d / "o"], "Missing option '--stats'"),
    "check without numbers": (
        lambda d: ["check", write(d / "x.csv", b"a\nx\n"), "--stats", d / "stats.json"],
        "no numeric column among a",
    ),
    "merge one": (lambda d: ["merge", d / "stats.json"], "at least two files"),
    "merge twice": (lambda d: ["merge", d / "stats.json", d / "stats.json"], "stats.json is given twice"),
    "merge kinds": (
        lambda d: ["merge", d / "stats.json", save(Statistics().update(np.eye(2)), d / "x.json")],
        "of one kind, but got StandardScaler and Statistics",
    ),
    "merge others": (
        lambda d: ["merge", d / "stats.json", save(fit(np.eye(2)), d / "x.json")],
        "stats.json and .*x.json do not fit together",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_one_line_for_every_mistake(kind, stats, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    make, message = ERRORS[kind]
    arguments = make(tmp_path)
    before = set(os.listdir(tmp_path))
    if arguments[0] in ("fit", "merge"):
        arguments += ["--out", tmp_path / "out.json"]
    assert data(*arguments) == 2
    assert re.search(message, last_error(capsys))
    assert set(os.listdir(tmp_path)) - before <= {"out.json.partial"}


@pytest.mark.parametrize("out", ["s.txt", "no/s.json"])
def test_where_to_write_is_checked_before_the_work(out, folder, tmp_path, capsys):
    (folder / "part-0.parquet").write_bytes(b"")
    assert data("fit", folder, "--out", tmp_path / out) == 2
    assert "--out" in last_error(capsys)


INTERRUPTED = """
import sys
from evenkeel.cli import main
from evenkeel.cli.data_progress import Watcher
def stop(self, done, total, facts):
    if done == 2 and "--resume" not in sys.argv:
        raise KeyboardInterrupt
Watcher.advance = stop
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupted_fit_says_how_to_continue(folder, tmp_path):
    out = tmp_path / "s.json"
    assert data("fit", folder, "--numeric", "--out", tmp_path / "whole.json", "--quiet") == 0
    command = [sys.executable, "-c", INTERRUPTED, "data", "fit", folder, "--numeric", "--out", out, "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 128 + signal.SIGINT
    assert first.stderr == "interrupted; the same command with --resume continues\n"
    assert not out.exists()
    states = tmp_path / "s.json.partial"
    assert states.read_bytes().count(b'"key"') == 2
    assert data("fit", folder, "--numeric", "--out", out, "--resume", "--quiet") == 0
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not states.exists()


def test_a_fit_without_resume_starts_afresh(folder, tmp_path):
    (tmp_path / "s.json.partial").write_bytes(b"whatever an older run left")
    assert data("fit", folder, "--numeric", "--out", tmp_path / "s.json") == 0


def read_all(descriptor):
    """What a terminal was sent so far."""
    shown = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(descriptor, 10_000):
            shown += part
    return shown.decode()


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch, capsys):
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with make_watcher("fit", quiet=False) as watcher:
            assert isinstance(watcher, Bar)
            watcher.fragment_done(FitProgress(done=3, total=7, rows=1234, skipped=1))
        terminal.flush()
        os.set_blocking(leader, False)
        shown = read_all(leader)
    os.close(leader)
    assert "3/7" in shown
    assert "1,234 rows, 1 skipped" in shown
    monkeypatch.undo()
    capsys.readouterr()
    monkeypatch.setattr("evenkeel.cli.data_progress.PAUSE", 0)
    with make_watcher("apply", quiet=False) as watcher:
        assert isinstance(watcher, Lines)
        time.sleep(0.01)
        watcher.block_done(2, 5, 10)
        watcher.fragment_done(FitProgress(done=3, total=None, rows=20, skipped=0))
    assert capsys.readouterr().err == "apply: 2 of 5 parts, 10 rows\napply: 3 parts, 20 rows\n"
    with make_watcher("fit", quiet=True) as watcher:
        watcher.block_done(2, 5, 10)
    assert capsys.readouterr().err == ""


def test_statistics_of_groups_are_refused_with_the_way_to_one_of_them(folder, tmp_path, capsys):
    path = tmp_path / "groups.json"
    save(GroupStatistics().update(np.arange(6.0).reshape(3, 2), ["a", "b", "b"]), path)
    for arguments in (("show", path), ("check", folder, "--stats", path), ("merge", path, path, "--out", "x.json")):
        assert data(*arguments) == 2
        assert re.search("groups; load it with evenkeel.data.load and choose one|given twice", last_error(capsys))
    assert data("apply", folder / "part-0.parquet", "--out", tmp_path / "out.parquet", "--stats", path) == 2
    assert "has no transform" in last_error(capsys)


def test_images_are_checked_against_images(tmp_path, capsys):
    colours = np.random.default_rng(0).integers(0, 100, (8, 9, 3), dtype=np.uint8)
    for name, values in (("same", colours), ("bright", colours + 150)):
        (tmp_path / name).mkdir()
        Image.fromarray(values).save(tmp_path / name / "x.png")
    assert data("fit", tmp_path / "same", "--out", tmp_path / "stats.json") == 0
    assert data("check", tmp_path / "same", "--stats", tmp_path / "stats.json") == 0
    assert data("check", tmp_path / "bright", "--stats", tmp_path / "stats.json") == 1
    assert "FAILS red" in capsys.readouterr().out


def test_infinities_are_named(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array([[1.0, np.inf], [2.0, 3.0]]))
    assert data("fit", tmp_path / "x.npy", "--out", tmp_path / "stats.json") == 2
    assert "infinities in 1; replace them" in last_error(capsys)


def test_images_that_pillow_warns_about_or_refuses(tmp_path, monkeypatch, capsys):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (10, 15)).save(tmp_path / "images" / "a.png")
    Image.new("RGB", (50, 50)).save(tmp_path / "images" / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    out = tmp_path / "s.json"
    for extra, code in (((), 2), (("--on-error", "skip"), 0)):
        assert data("fit", tmp_path / "images", "--out", out, "--quiet", *extra) == code
        lines = capsys.readouterr().err.splitlines()
        assert all(line.startswith(("warning: ", "skipped ", "1 files skipped", "evenkeel: error: ")) for line in lines)
        assert any("bomb.png: cannot be read: Image size (2500 pixels) exceeds limit" in line for line in lines)
        assert any(line.startswith("warning: Image size (150 pixels) exceeds limit") for line in lines)
    assert load(out).statistics_.rows == 150
    assert data("fit", tmp_path / "images" / "bomb.png", "--out", out, "--quiet", "--on-error", "skip", "--force") == 2
    assert "nothing of" in (error := capsys.readouterr().err)
    assert "exceeds limit" in error
    assert data("check", tmp_path / "images", "--stats", out, "--quiet") == 2
    assert "bomb.png: cannot be read" in capsys.readouterr().err
    assert data("apply", tmp_path / "images", "--out", tmp_path / "out", "--stats", out, "--quiet") == 2
    assert "images are not rewritten" in last_error(capsys)
