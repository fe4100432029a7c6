"""The examples run as programs and print what they promise; the notebooks run afresh and show themselves."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import typer.main
import yaml
from nbclient import NotebookClient

from evenkeel.cli.app import app

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
# one thread: two spin against each other where a machine is shared, and take five times as long
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def run(name, *arguments, cwd):
    """What an example prints; it finds the package where this process finds it."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    result = subprocess.run(command, env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def numbers(text, pattern):
    """The numbers of the one place in a text that matches."""
    (found,) = re.findall(pattern, text)
    return [float(number) for number in ([found] if isinstance(found, str) else found)]


def test_every_example_is_short_and_tested():
    scripts = sorted(EXAMPLES.glob("*.py"))
    tested = Path(__file__).read_text()
    assert len(scripts) == 8
    for script in scripts:
        assert f'"{script.name}"' in tested
        assert len(script.read_text().splitlines()) <= 62  # as the README says


def test_replaced_norms_compute_the_same(tmp_path):
    said = run("replace_norms.py", cwd=tmp_path)
    assert "8 norms replaced\n" in said
    error, largest = numbers(said, r"outputs differ by at most (\S+) \(the largest is (\S+)\)")
    assert 0 <= error < 1e-5 * largest
    assert numbers(said, r"gradients differ by (\S+) of their length")[0] < 1e-5
    assert numbers(said, r"takes (\S+) of the time")[0] > 0


def test_a_mask_keeps_padding_out(tmp_path):
    said = run("masked_batch_norm.py", cwd=tmp_path)
    truth, torch, masked = (
        numbers(said, rf"{who}: +mean (\S+), deviation (\S+)") for who in ("truth", r"torch\.nn", "evenkeel with mask")
    )
    assert masked == pytest.approx(truth, abs=0.01)
    assert torch[0] < 0.7 * truth[0]
    assert torch[1] > 1.3 * truth[1]
    assert numbers(said, r"torch\.nn: twice the padding changes outputs by at most (\S+)")[0] > 0.1
    assert numbers(said, r"mask: twice the padding changes outputs by at most (\S+)") == [0.0]


def test_statistics_of_parquet_files_make_training_work(tmp_path):
    said = run("parquet_to_training.py", cwd=tmp_path)
    assert numbers(said, r"height: mean (\S+), deviation (\S+)") == pytest.approx([170, 10], abs=0.5)
    assert numbers(said, r"missing: (\d+) values")[0] == pytest.approx(100, abs=40)
    raw, scaled = numbers(said, r"loss on raw features (\S+), on scaled ones (\S+)")
    assert scaled < 0.5 * raw
    assert list(tmp_path.iterdir()) == []


def test_frozen_statistics_keep_the_old_task(tmp_path):
    said = run("frozen_statistics.py", cwd=tmp_path)
    (before,) = numbers(said, r"before +old task (\S+)")
    moving = numbers(said, r"weights frozen +old task (\S+), new task (\S+)")
    frozen = numbers(said, r"weights and statistics frozen +old task (\S+), new task (\S+)")
    assert frozen[0] == before > 0.9
    assert moving[0] < before - 0.02
    assert min(moving[1], frozen[1]) > 0.5


@pytest.mark.slow
def test_a_scaler_in_onnx_agrees(tmp_path):
    said = run("scaler_to_onnx.py", cwd=tmp_path)
    assert numbers(said, r"loss after 30 steps on raw columns: (\S+)")[0] < 1e-4
    assert numbers(said, r"onnxruntime and torch differ by at most (\S+),")[0] < 1e-4
    assert numbers(said, r"the result differs by at most (\S+)")[0] < 1e-2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_study_of_own_text_ranks_norms(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(3):
        (text / f"{number}.txt").write_text(f"{number} says: all work and no play makes a dull text. " * 300)
    said = run("study_own_text.py", text, cwd=tmp_path)
    assert "of text; loss in nats per byte" in said
    for arm in ("none", "post-layer", "pre-layer", "pre-rms"):
        assert numbers(said, rf"\d +{arm} +(\S+) +\S+")[0] < 3.0  # a guess among 256 bytes has a loss of 5.55
    assert "figures: map, ranking, loss" in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) >= 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_itself(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()  # an error in a cell is one here
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in shown} <= {"execute_result", "display_data", "stream"}
    pages = [output.data["text/html"] for output in shown if "iframe" in output.get("data", {}).get("text/html", "")]
    assert len(pages) >= 2
    printed = "".join(output.text for output in shown if output.output_type == "stream")
    assert printed
    assert "\x1b" not in printed
    if path.stem == "explain_and_study":
        assert sum("application/vnd.plotly.v1+json" in output.get("data", ()) for output in shown) == 2


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["explain_and_study", "tables_to_first_layer"]


def test_the_doctor_sees_gains_that_never_move(tmp_path):
    narrow, wide = run("gamma_never_moves.py", cwd=tmp_path).split("weights in torch.float32")
    assert numbers(narrow, r"(\S+)% of the gains moved") == [0.0]
    assert "gamma-frozen at *.norm (2), gamma-frozen at 3" in narrow
    assert numbers(wide, r"(\S+)% of the gains moved") == [100.0]
    assert "nothing found" in wide
    assert "Warning: gamma-frozen" in (tmp_path / "doctor.html").read_text()


def test_the_doctor_sees_a_batch_of_two(tmp_path):
    small, kept = run("batch_of_two.py", cwd=tmp_path).split("the same, statistics kept")
    training, evaluation = numbers(small, r"(\S+)% as in training, (\S+)% in evaluation")
    assert training > evaluation + 10
    assert "batch-too-small at * (2)" in small
    assert numbers(kept, r"(\S+)% in evaluation")[0] > evaluation + 10
    assert "nothing found" in kept


@pytest.mark.parametrize("name", ["cluster", "kuberay"])
def test_recipes_for_ray_run_commands_that_are_there(name):
    path = EXAMPLES / "ray" / f"{name}.yaml"
    words = yaml.safe_load(path.read_text())
    text = words["spec"]["entrypoint"] if name == "kuberay" else path.read_text().partition('"')[2].partition('"')[0]
    program, *command = shlex.split(text)
    assert program == "evenkeel"
    options = {o for p in typer.main.get_command(app).commands["data"].commands["fit"].params for o in p.opts}
    assert [word for word in command if word.startswith("--") and word not in options] == []
    assert f"examples/ray/{name}.yaml" in (EXAMPLES.parent / "docs" / "data.md").read_text()
