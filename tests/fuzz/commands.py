"""Random command lines: exit code 0, or 2 (and 1 where it is documented) with one line of error; never a traceback."""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import typer.main
from fuzz.checks import check
from hypothesis import strategies as st

from evenkeel.cli import main
from evenkeel.cli.app import app
from evenkeel.data import fit, save

MEMORY = 3 << 30
# exit codes besides 0: wrong usage or input; for `data check`, data that drifted
CODES = {("data", "check"): (1, 2)}
WORDS = (
    "1",
    "0",
    "-1",
    "3",
    "2.5",
    "-2",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-320",
    "x",
    "",
    " ",
    ",",
    "a,b",
    "a,,b",
    "0,1",
    "é",
    "\udcff",
    "a\nb",
    "[red]",
    "1 2 3",
    "1,2;3,4",
    "9" * 30,
    "standard",
    "robust",
    "layer",
    "rms",
    "batch",
    "json",
    "markdown",
    "cpu",
    "reference",
    "skip",
    "raise",
    "omit",
    "--",
    "-",
    "-x",
    "--nope",
    "=",
    "a=1",
    "os:getcwd",
    "torch.nn:Identity",
    "no.module:f",
    "*",
    "*.csv",
    "%s",
    "{}",
    "all",
    "none",
    "pre-rms",
    "bfloat16",
    "float64",
)
FILES = (
    "good.csv",
    "good.npy",
    "words.csv",
    "empty.csv",
    "empty.npy",
    "numbers.txt",
    "numbers.json",
    "stats.json",
    "stats.safetensors",
    "broken.json",
    "noise.parquet",
    "noise.safetensors",
    "noise.png",
    "folder",
    "folder.json",
    "empty-folder",
    "missing.csv",
    "missing/out.json",
    "out.json",
    "out.safetensors",
    "out.html",
    "out.csv",
    "null",
    "null.json",
    "secret.csv",
    "dangling.csv",
    "loop.csv",
    "\udcff.csv",
    "a\nb.json",
    "x" * 300 + ".json",
    "/",
    ".",
    "..",
    "good.csv/x",
    "~",
    "good.csv::x",
)


def fill(folder):
    """Files of every fate in a folder."""
    path = Path(folder)
    x = np.random.default_rng(0).normal(size=(20, 2))
    pa.csv.write_csv(pa.table({"a": x[:, 0], "b": x[:, 1]}), path / "good.csv")
    np.save(path / "good.npy", x)
    (path / "words.csv").write_text("a,b\n1,x\n2,y\n")
    for name in ("empty.csv", "empty.npy"):
        (path / name).touch()
    (path / "numbers.txt").write_text("1 2 3\n4 5 6\n")
    (path / "numbers.json").write_text(json.dumps([[1, 2, 3], [4, 5, 6]]))
    fitted = fit(path / "good.csv")
    for name in ("stats.json", "stats.safetensors"):
        save(fitted, path / name)
    (path / "broken.json").write_text('{"format": "evenkeel/data"')
    for name in ("noise.parquet", "noise.safetensors", "noise.png", "secret.csv"):
        (path / name).write_bytes(bytes(range(256)))
    for name in ("folder", "folder.json", "empty-folder"):
        (path / name).mkdir()
    shutil.copy(path / "good.csv", path / "folder")
    for name, target in (
        ("null", os.devnull),
        ("null.json", os.devnull),
        ("dangling.csv", "nowhere"),
        ("loop.csv", "loop.csv"),
    ):
        (path / name).symlink_to(target)
    (path / "secret.csv").chmod(0)


TEMPLATE = tempfile.mkdtemp(prefix="evenkeel-fuzz-files-")  # in the driver's folder, which goes with the child
fill(TEMPLATE)


def leaves(command, path=()):
    """Every command of the tree: its words, and itself."""
    commands = getattr(command, "commands", None)
    if not commands:
        return [(path, command)]
    return [leaf for name, child in commands.items() for leaf in leaves(child, (*path, name))]


COMMANDS = dict(leaves(typer.main.get_command(app)))


def options_of(command):
    """(spelling, whether it takes a value) of each option; and how many arguments there are."""
    options = (p for p in command.params if p.param_type_name == "option" and p.name != "help")
    found = [(spelling, not p.is_flag) for p in options for spelling in (*p.opts, *p.secondary_opts)]
    return found, sum(parameter.param_type_name == "argument" for parameter in command.params)


@dataclass(frozen=True)
class Line:
    """A command line."""

    path: tuple[str, ...]
    words: tuple[str, ...]
    stdin: str = ""


values = st.one_of(
    st.sampled_from(WORDS), st.sampled_from(FILES), st.text(max_size=6), st.integers().map(str), st.floats().map(str)
)
likely = {
    "--out": st.sampled_from(["out.json", "out.safetensors", *FILES]),
    "--stats": st.sampled_from(["stats.json", "stats.safetensors", *FILES]),
    "--html": st.sampled_from(["out.html", "folder", "missing/x.html", "null", "a\nb.html", "\udcff.html"]),
    "--file": st.sampled_from(["numbers.txt", "numbers.json", "good.npy", *FILES]),
    "--input": st.sampled_from(["good.npy", *FILES]),
}


# lines that work, from which one word and a few options away is where most faults are
GOOD = {
    ("data", "fit"): (["good.csv", "--out", "out.json"], ["folder", "--out", "out.safetensors", "--quantiles"]),
    ("data", "show"): (["stats.json"], ["stats.safetensors", "--json"]),
    ("data", "apply"): (["good.csv", "--out", "out.csv", "--stats", "stats.json"],),
    ("data", "check"): (["good.csv", "--stats", "stats.json"],),
    ("data", "merge"): (["stats.json", "stats.safetensors", "--out", "out.json"],),
    ("explain",): (["1", "2", "3"], ["--file", "numbers.txt"], ["1", "2", "4", "--backward"]),
}


@st.composite
def lines(draw):
    path = draw(st.sampled_from(sorted(COMMANDS)))
    options, arguments = options_of(COMMANDS[path])
    words = []
    if path in GOOD and draw(st.booleans()):
        words, arguments = list(draw(st.sampled_from(GOOD[path]))), -1
        if draw(st.booleans()):
            words[draw(st.integers(0, len(words) - 1))] = draw(values)
    for spelling, takes in draw(st.lists(st.sampled_from(options), max_size=4)) if options else ():
        if spelling == "--open" or (
            path == ("study",) and spelling == "--resume"
        ):  # a browser; a study of what is there
            continue
        words.append(spelling)
        if takes:
            words.append(draw(st.one_of(likely.get(spelling, values), values)))
    for _ in range(draw(st.integers(0, arguments + 1))):
        words.insert(draw(st.integers(0, len(words))), draw(values))
    if path == ("study",):  # no training: a text that cannot be read, or an option that is never valid, comes last
        words += draw(
            st.sampled_from(
                [
                    ["--text", "missing.csv"],
                    ["--depth", "0"],
                    ["--arms", "x"],
                    ["--steps", "x"],
                    ["--experiment", "nope"],
                    ["--list"],
                    ["--heads", "3", "--width", "4"],
                ]
            )
        )
    return Line(path, tuple(words), draw(st.sampled_from(["", "1 2 3", "x", "[[1"])))


def run(line):
    """Exit code, standard output and error in a folder with all the files."""
    here, stdin = os.getcwd(), sys.stdin
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape") for _ in range(2))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutil.copytree(TEMPLATE, folder, symlinks=True, dirs_exist_ok=True)
        os.chdir(folder)
        sys.stdin = io.StringIO(line.stdin)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                code = main([*line.path, *line.words])
        finally:
            sys.stdin = stdin
            os.chdir(here)
    for stream in (out, error):
        stream.flush()
    return code, *(stream.buffer.getvalue().decode(errors="surrogateescape") for stream in (out, error))


def check_line(line):
    code, _, error = run(line)
    check(code in (0, *CODES.get(line.path, (2,))), f"{' '.join(line.path)}: exit code {code}")
    check("Traceback" not in error, f"{' '.join(line.path)}: a traceback: {error[-500:]}")
    if code == 2:
        said = [text for text in error.splitlines() if text.startswith("evenkeel: error: ")]
        check(
            len(said) == 1 and len(said[0]) > 20, f"{' '.join(line.path)}: {len(said)} lines of error: {error[-500:]!r}"
        )
    check(
        os.path.exists(os.devnull) and not os.path.isfile(os.devnull), f"{' '.join(line.path)}: replaced {os.devnull}"
    )


PROPERTIES = {"lines": (lines(), check_line)}
