"""The workflows, the Makefile and the script that sets up an environment name nothing that is not there."""

import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
RULES = dict(re.findall(r"^([a-z-]+):(?!=)(.*(?:\n\t.*)*)", MAKEFILE, re.MULTILINE))
PINNED = re.compile(r"(\./\.github/workflows/\w+\.yml|[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)")


def jobs(path: Path) -> dict[str, dict]:
    return yaml.safe_load(path.read_text())["jobs"]


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "test", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_and_images_are_pinned(path: Path) -> None:
    uses = re.findall(r"uses: (.+)", path.read_text())
    assert uses
    assert [each for each in uses if not PINNED.fullmatch(each)] == []
    containers = [job["container"] for job in jobs(path).values() if "container" in job]
    images = [row["image"] for job in jobs(path).values() for row in matrix(job).get("include", ())]
    assert all(each.endswith("@${{ matrix.image }}") for each in containers)
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in images)
    assert bool(containers) == bool(images)


def matrix(job: dict) -> dict:
    return job.get("strategy", {}).get("matrix", {})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_permissions_are_the_least(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in jobs(path).items() if "permissions" in job}
    allowed = {
        "docs": {"deploy": {"pages": "write", "id-token": "write"}},
        "release": {"publish": {"id-token": "write"}},
    }
    assert more == allowed.get(path.stem, {})
    steps = [step for job in jobs(path).values() for step in job.get("steps", ())]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert all("timeout-minutes" in job or "uses" in job for job in jobs(path).values())


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / ".ci" / "run"], ids=lambda path: path.stem)
def test_targets_of_make_exist(path: Path) -> None:
    targets = re.findall(r"\bmake ([a-z-]+)", path.read_text())
    assert [target for target in targets if target not in RULES] == []
    assert targets or path.stem == "release"


@pytest.mark.parametrize("target", sorted(RULES))
def test_a_target_sets_up_what_it_runs(target: str) -> None:
    rule = RULES[target]
    if "$(BIN)" in rule:
        prerequisites = rule.splitlines()[0].partition("##")[0].split()
        assert "install" in prerequisites or "$(SET_UP)" in rule
    made = subprocess.run(
        ["make", "--dry-run", "--warn-undefined-variables", target, "SEED="], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "undefined" not in made.stderr


@pytest.fixture
def set_up() -> dict:
    return runpy.run_path(str(ROOT / "tools" / "set_up.py"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose phases take a moment: the programs of its environment are scripts that log how they are called."""
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "csrc").mkdir()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    write_program(programs / "python", 'case "$*" in "-c import pip") ;; *) echo "$@" >> calls; ;; esac')
    return tmp_path


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run_set_up(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "set_up.py"), *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def calls(project: Path) -> list[str]:
    log = project / "calls"
    found = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def test_phases_run_once_and_again_after_a_change(project: Path) -> None:
    first = run_set_up(project, "report", "echo", "the report")
    assert first.returncode == 0, first.stderr
    assert re.search(r"torch \d+ s · kernels \d+ s · report \d+ s · echo \d+ s · total \d+ s", first.stdout)
    torch, kernels, report = calls(project)
    assert " torch " in torch
    assert kernels == "setup.py -q build_ext --inplace"
    assert report.endswith("--editable .[report]")
    assert "the report" in run_set_up(project, "report", "echo", "the report").stdout
    assert calls(project) == []
    (project / "csrc" / "new.cpp").write_text("int x;")
    run_set_up(project, "report")
    assert calls(project) == [kernels]
    run_set_up(project, "dev")
    all_kernels, developers = calls(project)  # a report needs this processor's alone
    assert (all_kernels, developers.split()[-1]) == (kernels, ".[dev]")
    (project / ".venv" / ".evenkeel-report").unlink()
    run_set_up(project, "report")
    assert calls(project) == []  # the developers' environment serves


def test_a_failed_phase_is_run_again_and_earlier_ones_are_not(project: Path) -> None:
    python = project / ".venv" / "bin" / "python"
    works = python.read_text()
    write_program(python, 'echo "$@" >> calls; case "$*" in setup.py*) exit 3;; esac')
    failed = run_set_up(project, "report", "echo", "the report")
    assert failed.returncode == 1
    assert "build_ext --inplace` failed with exit status 3" in failed.stderr
    assert "the report" not in failed.stdout
    calls(project)
    python.write_text(works)
    assert run_set_up(project, "report").returncode == 0
    assert len(calls(project)) == 2


def test_an_environment_without_pip_is_made_again(project: Path, set_up: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(project / ".venv" / "bin" / "python", "exit 1")
    monkeypatch.chdir(project)
    set_up["make_environment"]()
    assert subprocess.run([project / ".venv" / "bin" / "python", "-m", "pip", "--version"]).returncode == 0


def test_an_interrupt_ends_in_one_line(project: Path) -> None:
    write_program(project / ".venv" / "bin" / "python", 'case "$*" in "-c import pip") ;; *) exec sleep 60;; esac')
    command = [sys.executable, str(ROOT / "tools" / "set_up.py"), "report"]
    process = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert process.stdout.readline().startswith("== torch")
    time.sleep(0.3)  # until the command has begun
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.endswith("interrupted; the same command goes on from here\n")
    assert "Traceback" not in errors


def test_units_that_take_long_are_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **options: None)
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    import setup

    names = [setup.LIBRARY, setup.DIRECT_CALLS, setup.AUTOGRAD]
    units = sorted((unit for name in names for unit in setup.units(name)), key=lambda unit: unit.weight, reverse=True)
    assert str(units[0]) == "torch/autograd"
    of_channels = {f"channels/{walk}_kernels" for walk in ("columns", "groups", "planes")}  # about a minute each
    assert {str(unit).split()[0] for unit in units[1:7]} == of_channels
    assert {str(unit).split("/")[0] for unit in units[-3:]} == {"core"}


@pytest.mark.parametrize(("wanted", "jobs"), [("1", 1), ("7", 7), ("0", 1)])
def test_max_jobs_chooses_the_compilers_at_once(wanted: str, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **options: None)
    monkeypatch.syspath_prepend(str(ROOT))
    import setup

    monkeypatch.setenv("MAX_JOBS", wanted)
    assert setup.count_jobs() == jobs
    monkeypatch.setenv("MAX_JOBS", "many")
    with pytest.raises(SystemExit, match="MAX_JOBS must be a whole number"):
        setup.count_jobs()
    monkeypatch.delenv("MAX_JOBS")
    assert setup.count_jobs() >= 1


def test_the_demo_resumes_a_study_that_is_there_alone(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)

    def commands() -> str:
        return subprocess.run(["make", "-n", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "evenkeel study" in commands()
    assert "--resume" not in commands()
    study = tmp_path / "runs" / "demo" / "study.json"
    study.parent.mkdir(parents=True)
    study.write_text("{}")
    assert "--resume" in commands()
