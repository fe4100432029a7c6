"""`evenkeel study` from the command line: what it prints, and what a user can get wrong."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from evenkeel.cli import main
from evenkeel.lab import ranking_table

SIZES = {"depth": 1, "width": 8, "heads": 2, "context": 8, "batch": 2, "steps": 12, "threads": 1, "seeds": 1}
TINY = ["--arms=none,pre-rms", *(f"--{name}={value}" for name, value in SIZES.items()), "--lr=0.002", "--workers=1"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i} of a small text\n" for i in range(200)))
    return path


def study(*arguments):
    return main(["study", *map(str, arguments)])


def test_a_study_prints_ranking_findings_and_report(tmp_path, text, capsys):
    out = tmp_path / "out"
    assert study("--text", text, "--out", out, *TINY) == 0
    printed, progress = capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text())
    for number, finding in enumerate(summary["findings"][:3], start=1):
        assert f"{number}. {finding['title']}." in printed.splitlines()
    assert printed.rstrip().endswith(f"report: {out / 'report.html'}")
    assert max(map(len, printed.splitlines()[:-1])) <= 100
    table = printed.split("1. ")[0].splitlines()
    assert max(map(len, table)) <= 100
    for row in ranking_table(summary).rows:
        assert any(line.split()[:2] == [row[0], row[1]] for line in table)
    assert "2/2 pre-rms, rate 0.002, seed 0: finished at step 12/12, validation loss" in progress
    assert "tokens/s" in progress
    assert "timing the steps of 2 arms in turn" in progress


def test_a_directory_whose_name_is_not_utf8(tmp_path, text):
    out = tmp_path / os.fsdecode(b"o\xff")
    command = [sys.executable, "-m", "evenkeel", "study", "--text", text, "--out", out, *TINY, "--quiet"]
    result = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    )
    assert result.stdout.decode().rstrip().endswith("o\N{REPLACEMENT CHARACTER}/report.html")


def test_options_reach_the_settings(tmp_path, text):
    out = tmp_path / "out"
    options = "--lr 0.01,0.1 --warmup 3 --clip 1 --weight-decay 0 --feed-forward swiglu --no-bias --qk-norm"
    options += " --seed 7 --seeds 2"
    assert study("--text", text, "--out", out, *TINY, *options.split(), "--quiet") == 0
    settings = json.loads((out / "study.json").read_text())["settings"]
    expected = {
        "lr": [0.01, 0.1],
        "warmup": 3,
        "clip": 1.0,
        "weight_decay": 0.0,
        "feed_forward": "swiglu",
        "bias": False,
    }
    expected |= {"qk_norm": True, "seed": 7, "seeds": 2, "steps": 12, "arms": ["none", "pre-rms"]}
    assert {name: settings[name] for name in expected} == expected


def test_quiet_shows_no_progress(tmp_path, text, capsys):
    assert study("--text", text, "--out", tmp_path / "out", *TINY, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_resume_takes_what_was_not_typed_from_the_study(tmp_path, text, capsys):
    out = tmp_path / "out"
    assert study("--text", text, "--out", out, *TINY, "--quiet") == 0
    assert study("--out", out, "--resume", "--quiet") == 0
    capsys.readouterr()
    assert study("--out", out, "--resume", "--steps", "13") == 2
    assert capsys.readouterr().err.startswith(f"evenkeel: error: cannot resume {out}: steps was 12, now 13")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "no-such-file"], "there is no file or directory no-such-file"),
        (["--text", os.devnull], "is not a file or directory"),
        (["--arms", "pre-lyer"], "unknown arm 'pre-lyer'; did you mean pre-layer, peri-layer or damped-layer?"),
        (["--arms", ","], "no arms given"),
        (["--depth", "0"], "depth must be at least 1, but is 0"),
        (["--steps", "-5"], "steps must be at least 1, but is -5"),
        (["--width", "10", "--heads", "3"], "width 10 is not a multiple of heads 3"),
        (["--lr", "nan"], "lr must be a positive number"),
        (["--lr", "0.1,high"], "lr must be numbers with commas between them, but is '0.1,high'"),
        (["--lr", ","], "no learning rate given"),
        (["--workers", "0"], "Invalid value for '--workers': expected a whole number from 1 to 1024, but got '0'"),
        (["--resume", "--out", "nosuch"], "--resume: nosuch holds no study to continue; name its directory"),
        (["--engine", "ray", "--device", "cuda", "--out", "o"], "there is no GPU that torch can use"),
        (
            ["--text", os.devnull, "--experiment", "padding"],
            "leave --text and --storage-option out",
        ),
        (["--address", "auto"], "an address is that of a Ray cluster; give the engine ray with it"),
        (["--engine", "ray", "--address", "nowhere"], "the address of a Ray cluster is host:port or auto"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1 (Connection refused)"),
        (["--engine", "ray", "--address", "ray://127.0.0.1:1"], "is an address of Ray Client"),
        (["--device", "cuda"], "there is no GPU that torch can use"),
        (["--device", "tpu"], "expected one of cpu, cuda, but got 'tpu'"),
        (["--accumulate", "3"], "batch 8 does not split into 3 equal parts"),
        (["--from", "none.toml"], "--from: cannot read none.toml: No such file or directory"),
        (["--steps", "3", "compare", "a", "b"], "--steps belongs to `evenkeel study`"),
        (["compare", "a", "b"], "a holds no summary of a study"),
        (["comare"], "No such command 'comare'"),
        (["--width", "wide"], "Invalid value for '--width'"),
        (["--resume"], "--resume needs --out"),
        (["--wdith", "3"], "--wdith"),
        (["--text", ""], "Invalid value for '--text': the path is empty"),
        (["--out", ""], "Invalid value for '--out': the path is empty"),
        (["--arms", "pre-batch", "--batch", "1", "--context", "1"], "choose a larger batch or context"),
        (["--out", "/proc/nothing/here"], "cannot create directory /proc/nothing/here"),
        (["--out", "/proc"], "/proc"),
        (["--out", os.devnull], "cannot create directory"),
        (["--context", "100000000"], "choose smaller sizes"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert study(*arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_an_output_directory_is_not_overwritten(tmp_path, text, capsys):
    assert study("--text", text, "--out", tmp_path, *TINY) == 2
    assert "is not empty and holds no study (it has text.txt)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [text]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_study_says_how_to_resume(tmp_path, text, number, code, workers):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "evenkeel", "study", "--text", text, "--out", out, *TINY, "--steps", "100000"]
    command += ["--workers", str(workers)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    records = out / "arms" / "none-lr0.002-seed0" / "records.jsonl"
    while not (records.exists() and b'"train"' in records.read_bytes()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == code
    assert error.splitlines()[-1] == f"interrupted; continue with: evenkeel study --out {out} --resume"
    assert "Traceback" not in error


def test_progress_on_a_terminal(tmp_path, text):
    out = tmp_path / "out"
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "evenkeel", "study", "--text", text, "--out", out, *TINY]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.DEVNULL, env=environment)
    os.close(terminal)
    seen = b""
    while process.poll() is None or not seen.endswith(b"\n"):
        try:
            seen += os.read(master, 65536)
        except OSError:  # Linux reports the closed terminal this way
            break
    os.close(master)
    assert process.wait() == 0
    for shown in (b"pre-rms, rate 0.002, seed 0", b"tokens/s", b"loss ", b"left", b"1/2 runs"):
        assert shown in seen


def test_options_come_from_a_file_and_what_is_typed_goes_first(tmp_path, text, capsys):
    options = {name.replace("_", "-"): value for name, value in SIZES.items()}
    lines = [f"{name} = {value}" for name, value in (options | {"seeds": 2}).items()]
    lines += [
        "quiet = true",
        'arms = ["none", "pre-rms"]',
        "lr = [0.01, 0.02]",
        f'text = "{text}"',
        "workers = 1",
        "weight-decay = 1",
    ]
    path, out = tmp_path / "study.toml", tmp_path / "out"
    path.write_text("\n".join([*lines, f'out = "{out}"', 'feed_forward = "swiglu"']))
    assert study("--from", path, "--seeds", "1", "--lr", "0.002") == 0
    assert capsys.readouterr().err == ""
    frozen = json.loads((out / "study.json").read_text())
    expected = {**SIZES, "seeds": 1, "lr": [0.002], "arms": ["none", "pre-rms"], "feed_forward": "swiglu"}
    assert {name: frozen["settings"][name] for name in expected} == expected
    assert frozen["settings"]["weight_decay"] == 1
    assert frozen["text"] == str(text)
    assert study("--from", path, "--seeds", "1", "--lr", "0.002", "--resume") == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("steps = ", "is not TOML: "),
        (b"\xff", "is not TOML: "),
        ("stepz = 3", "there is no option 'stepz'; did you mean steps"),
        ('steps = "many"', "study.toml: steps must be a whole number, but is 'many'"),
        ("steps = true", "study.toml: steps must be a whole number, but is True"),
        ("bias = 1", "study.toml: bias must be true or false, but is 1"),
        ("text = 3", "study.toml: text must be text, but is 3"),
        ("arms = [1, 2]", "study.toml: arms must be a list of names, but is [1, 2]"),
        ('arms = [["pre-rms"]]', "study.toml: arms must be a list of names, but is [['pre-rms']]"),
        ("arms = [{a = 1}]", "study.toml: arms must be a list of names, but is [{'a': 1}]"),
        ('lr = [0.001, "a"]', "study.toml: lr must be a number or a list of numbers, but is [0.001, 'a']"),
        ("lr = [[0.1]]", "study.toml: lr must be a number or a list of numbers, but is [[0.1]]"),
        ("lr = [true]", "study.toml: lr must be a number or a list of numbers, but is [True]"),
        (f"lr = {'9' * 400}", "study.toml: lr must be a number or a list of numbers, but is 999"),
        ('lr = "0.1,high"', "study.toml: lr must be numbers with commas between them"),
        ("storage-option = [1]", "study.toml: storage_option must be a list of texts, but is [1]"),
        ("warmup = 1.5", "study.toml: warmup must be a whole number, but is 1.5"),
        ("quiet = 1", "study.toml: quiet must be true or false, but is 1"),
        ("force = true", "study.toml: force is for the command line alone: type --force"),
        ("workers = 0", "workers must be a whole number from 1 to 1024, but is 0"),
        ("workers = -1", "workers must be a whole number from 1 to 1024, but is -1"),
        ("workers = 1025", "workers must be a whole number from 1 to 1024, but is 1025"),
        ("steps = 0", "steps must be at least 1, but is 0"),
        ('arms = "pre-lyer"', "unknown arm 'pre-lyer'"),
        ('engine = "rai"', "there is no engine 'rai'"),
    ],
)
def test_a_wrong_file_of_options_is_one_line(content, message, tmp_path, capsys):
    path = tmp_path / "study.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert study("--from", path, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_list_minds_no_text(text, capsys):
    assert study("--list", "--text", text) == 0
    assert "padding" in capsys.readouterr().out


def test_compare_prints_differences_and_writes_a_page(tmp_path, text, capsys):
    for name, options in {"one": [], "two": ["--no-bias"]}.items():
        assert study("--text", text, "--out", tmp_path / name, *TINY, "--seeds", "2", *options, "--quiet") == 0
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert study("compare", tmp_path / "one", tmp_path / "two", "--html", page) == 0
    printed = capsys.readouterr().out
    assert "95 % interval" in printed
    assert max(map(len, printed.splitlines()[1:])) <= 100
    assert page.stat().st_size > 1000
    assert study("compare", tmp_path / "one", tmp_path / "two", "--html", page) == 2
    assert "--force" in capsys.readouterr().err
    assert study("compare", tmp_path / "one", tmp_path / "two", "--json") == 0
    assert json.loads(capsys.readouterr().out)["differences"] == {"bias": [True, False]}
    assert study("compare", tmp_path / "one") == 2
    assert "needs two studies or more" in capsys.readouterr().err


def test_a_study_on_a_table(tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [f"row {i} is a document of its own\n" for i in range(300)]
    pq.write_table(pa.table({"body": rows, "title": rows}), tmp_path / "rows.parquet")
    assert study("--text", f"{tmp_path}/rows.parquet", "--out", tmp_path / "out", *TINY) == 2
    assert "name it: " in capsys.readouterr().err
    assert study("--text", f"{tmp_path}/rows.parquet::body", "--out", tmp_path / "out", *TINY, "--quiet") == 0
    assert study("--out", tmp_path / "out", "--resume", "--quiet") == 0
