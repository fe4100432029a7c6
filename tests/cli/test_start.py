"""The first second of the command line: what it does not import, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evenkeel

HEAVY = {"torch", "numpy", "pyarrow", "sklearn", "plotly", "jinja2", "msgspec", "evenkeel.lab", "evenkeel.data"}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}


def imported(*arguments, cwd):
    """The exit code, what is printed, and the modules that a command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "evenkeel", *arguments]
    result = subprocess.run(command, env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, check=False)
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    modules = {
        line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")
    }
    return result.returncode, result.stdout + "\n".join(said), modules


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["--version"], 0, evenkeel.__version__),
        (["--help"], 0, "Examples:"),
        ([], 0, "Examples:"),
        (["study", "--help"], 0, "output-only-batch"),
        (["explain", "--help"], 0, "standardize"),
        (["data"], 0, "merge"),
        (["data", "check", "--help"], 0, "--max-psi"),
        (["info", "--help"], 0, "--json"),
        (["doctor", "--help"], 0, "--loss"),
        (["doctor"], 2, "Missing argument"),
        (["doctor", "none.safetensors"], 2, "there is no file or directory none.safetensors"),
        (["doctor", "my.model:build"], 2, "a model needs --input"),
        (["doctor", "my.model:build", "--input", "none.npz"], 2, "there is no file none.npz"),
        (["--nope"], 2, "No such option: --nope"),
        (["studdy"], 2, "Did you mean 'study'?"),
        (["study", "--wdith", "3"], 2, "did you mean --width"),
        (["study", "--steps", "many"], 2, "'--steps'"),
        (["study", "--width", "10", "--heads", "3"], 2, "not a multiple"),
        (["study", "--arms", "pre-lyer"], 2, "did you mean pre-layer, "),
        (["study", "--text", "none.txt"], 2, "there is no file or directory none.txt"),
        (["study", "--experiment", "pading"], 2, "did you mean padding, "),
        (["study", "compare", "--help"], 0, "--html"),
        (["study", "compare", "none"], 2, "none holds no summary of a study"),
        (["study", "--engine", "rai"], 2, "expected one of local, ray"),
        (["explain"], 2, "there is nothing to explain"),
        (["explain", "1", "--nrom", "rms"], 2, "did you mean --norm"),
        (["explain", "1", "--norm", "laier"], 2, "did you mean layer, "),
        (["explain", "one"], 2, "'one' in the input is not a number"),
        (["explain", "1", "--weight", "x"], 2, "'x' in it is not a number"),
        (["explain", "--file", "none.npy"], 2, "there is no file none.npy"),
        (["explain", "1", "--html", "there.html"], 2, "there.html exists already; replace it with --force"),
        (["convert", "--help"], 0, "my.model:build"),
        (["convert"], 2, "Missing argument"),
        (["convert", "nowhere"], 2, "there is no directory nowhere, and no factory is named"),
        (["convert", "nowhere:"], 2, "'nowhere:' does not name a model; write package.module:factory"),
        (["convert", "empty"], 2, "empty holds no *.safetensors"),
        (["convert", "there.json"], 2, "there.json is a file; give the directory"),
        (["convert", "a:b", "--actions", "swop"], 2, "did you mean swap"),
        (["convert", "a:b", "--mode", "fast"], 2, "expected one of exact, accurate"),
        (["convert", "a:b", "--input", "x.csv"], 2, "--input must end in .npz or .npy or .safetensors"),
        (["convert", "a:b", "--input", "x.npz"], 2, "--input: there is no file x.npz"),
        (["convert", "a:b", "--out", "x.bin"], 2, "--out must end in .safetensors"),
        (["convert", "a:b", "--report", "there.html"], 2, "there.html exists already; replace it with --force"),
        (["convert", "model", "--out", "model"], 2, "--out: model is the model itself"),
        (["convert", "model", "--out", "there.json"], 2, "--out: there.json is a file"),
        (["convert", "model", "--out", "no/new"], 2, "there is no directory no; make it first"),
        (["convert", "model", "--out", "full", "--force"], 2, "full holds other files than a model"),
        (["data", "fit", "none.csv", "--out", "s.json"], 2, "there is no file or directory none.csv"),
        (["data", "fit", ".", "--out", "s.json", "--scaler", "best"], 2, "expected one of standard"),
        (["data", "fit", ".", "--out", "there.json"], 2, "there.json exists already"),
        (["data", "fit", ".", "--out", "https://host/s.json"], 2, "web addresses are read, not written"),
        (["data", "fit", "s3://bucket", "--out", "s.json", "--storage-option", "x"], 2, "expected name=value"),
        (["data", "show", "none.json"], 2, "there is no file none.json"),
        (["data", "check", ".", "--stats", "there.json", "--max-spread", "0"], 2, "the limit spread"),
    ],
)
def test_help_and_wrong_usage_import_nothing_heavy(arguments, code, shown, tmp_path):
    for name in ("there.html", "there.json", "there.csv"):
        (tmp_path / name).touch()
    if arguments[0:1] == ["convert"]:
        for folder, files in {"empty": [], "model": ["config.json", "model.safetensors"], "full": ["mine.txt"]}.items():
            (tmp_path / folder).mkdir()
            for file in files:
                (tmp_path / folder / file).touch()
    found, said, modules = imported(*arguments, cwd=tmp_path)
    assert (found, shown in said, modules & HEAVY) == (code, True, set()), said
    assert "evenkeel.cli.app" in modules


def test_the_check_sees_heavy_modules(tmp_path):
    code, _, modules = imported("info", "--json", cwd=tmp_path)
    assert code == 0
    assert {"torch", "numpy", "evenkeel.lab"} <= modules


def test_names_come_with_their_first_use_in_the_program(tmp_path):
    script = tmp_path / "evenkeel"
    script.write_text(
        "import pickle, sys, evenkeel\n"
        "assert 'torch' not in sys.modules\n"
        "assert not hasattr(evenkeel, 'nonsense')\n"
        "for name in evenkeel.__all__:\n"
        "    getattr(evenkeel, name)\n"
        "from evenkeel import *\n"
        "import torch\n"
        "assert torch.ops.evenkeel\n"
        "layer = pickle.loads(pickle.dumps(nn.LayerNorm(3)))\n"
        "print(type(layer) is evenkeel.nn.LayerNorm, NormSpec is evenkeel.NormSpec)\n"
        "print('reference' in kernels_available())\n"
    )
    result = subprocess.run([sys.executable, script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert result.stdout == "True True\nTrue\n", result.stderr


def test_the_library_is_whole_once_it_is_imported():
    code = "import sys, evenkeel; print(*(name for name in evenkeel.__all__ if name not in vars(evenkeel)))"
    result = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert result.stdout == "\n"


# A module in the place of a package: Ctrl-C in the middle of its import, and a package that makes something else of it.
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
SWALLOW = "try:\n    import interrupted_part\nexcept BaseException as error:\n    raise ImportError(error)\n"
SMALL = "--arms none --depth 1 --width 8 --heads 1 --context 8 --batch 2 --steps 1 --lr 0.01 --seeds 1 --quiet"
SMALL += " --out out --text text.txt"


@pytest.mark.parametrize(
    ("module", "arguments", "advice"),
    [
        ("typer", ["info"], ""),
        ("torch", ["info"], ""),
        ("plotly", ["study", *SMALL.split()], "; continue with: evenkeel study --out out --resume"),
    ],
)
@pytest.mark.parametrize("source", [INTERRUPT, SWALLOW], ids=["passed on", "swallowed"])
def test_ctrl_c_during_an_import_is_one_line(module, arguments, advice, source, tmp_path):
    (tmp_path / f"{module}.py").write_text(source)
    (tmp_path / "interrupted_part.py").write_text(INTERRUPT)
    (tmp_path / "text.txt").write_text("some words to learn " * 50)
    path = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    command = [sys.executable, "-m", "evenkeel", *arguments]
    options = {"env": ENVIRONMENT | {"PYTHONPATH": path}, "cwd": tmp_path, "capture_output": True, "text": True}
    result = subprocess.run(command, check=False, **options)
    assert (result.returncode, result.stderr) == (130, f"interrupted{advice}\n")


@pytest.mark.parametrize("delay", [0.15, 0.3, 0.6, 1.0])
def test_ctrl_c_at_any_moment_is_at_most_one_line(delay, tmp_path):
    command = [sys.executable, "-m", "evenkeel", "explain", "1", "2", "3", "--backward"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, **options)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    shown, error = process.communicate()
    if process.returncode == 0:
        assert "FAILED" not in shown
        assert error == ""
    else:
        assert (process.returncode, error) == (130, "interrupted\n")


def test_an_ignored_ctrl_c_stays_ignored(tmp_path):
    ignoring = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); \
process = subprocess.Popen([sys.executable, '-m', 'evenkeel', 'info']); __import__('time').sleep(0.5); \
process.send_signal(signal.SIGINT); sys.exit(process.wait())"
    command = [sys.executable, "-c", ignoring]
    result = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
