"""The frame of the command line: `evenkeel info`, `--version`, and what becomes of errors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import evenkeel
from evenkeel import functional
from evenkeel.cli import main
from evenkeel.cli.app import COMMANDS

FULL = Path("/dev/full")  # every write to it fails: no space left on device


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evenkeel", *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}
    return subprocess.run(command, env=environment, text=True, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


def fail_with(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"evenkeel {evenkeel.__version__}\n"


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_info_as_json_holds_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["evenkeel"] == evenkeel.__version__
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["machine"]["threads"].startswith(f"{torch.get_num_threads()} used by torch")
    assert facts["backends"] == evenkeel.kernels_available()
    assert facts["compiled"] == (functional.backend_info() or {"kernels": "none"})


def test_info_table_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown
    assert torch.__version__ in shown


def test_info_names_a_missing_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel.cli.info.OPTIONAL", ("no-such-package",))
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["versions"]["no-such-package"] == "not installed"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nonsense"], "No such option: --nonsense"),
        (["studdy"], "No such command 'studdy'. Did you mean 'study'?"),
        (["info", "extra"], "unexpected extra argument"),
        (["study", "--steps", "many"], "--steps"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("evenkeel: error: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (evenkeel.StudyError("the text\nis empty"), 2, "evenkeel: error: the text is empty\n"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 2, "evenkeel: error: a.txt: No such file or"),
        (OSError(28, "No space left on device"), 2, "evenkeel: error: No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evenkeel.cli.info.collect_info", fail_with(error))
    assert main(["info"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenkeel.cli.info.collect_info", fail_with(ZeroDivisionError("bug")))
    with pytest.raises(ZeroDivisionError, match="bug"):
        main(["info"])


def test_module_is_the_same_command_line() -> None:
    result = run("--version", stdout=subprocess.PIPE)
    assert (result.returncode, result.stdout) == (0, f"evenkeel {evenkeel.__version__}\n")
    assert run("studdy", stdout=subprocess.PIPE).returncode == 2


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = run("info", "--json", stdout=writer)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_full_disk_is_one_line() -> None:
    with FULL.open("w") as full:
        result = run("info", stdout=full)
    assert result.returncode == 2
    assert result.stderr == "evenkeel: error: No space left on device\n"
