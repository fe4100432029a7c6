"""`evenkeel explain`: numbers, files and models from the command line, and what is said of wrong ones."""

import io
import json
import textwrap
import webbrowser
from functools import partial

import numpy as np
import pandas
import pytest
import torch

from evenkeel.cli import main
from evenkeel.explain import Explanation


def run(capsys, *arguments, code=0):
    assert main(["explain", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def explained(capsys, *arguments) -> Explanation:
    return Explanation.from_dict(json.loads(run(capsys, "--format", "json", "--full", *arguments)))


def output(capsys, *arguments):
    return np.round(explained(capsys, *arguments).step("output").value, 6).ravel().tolist()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["1", "2", "3", "4"], [-1.341635, -0.447212, 0.447212, 1.341635]),
        (["1,2,3,4", "--eps-mode", "outside"], [-1.341629, -0.44721, 0.44721, 1.341629]),
        (["1 2 3 4", "--eps", "0"], [-1.341641, -0.447214, 0.447214, 1.341641]),
        (["--", "-1", "1"], [-0.999995, 0.999995]),
        (["-1", "1"], [-0.999995, 0.999995]),
        (["-1e-0", "1.0", "--norm", "rms"], [-1.0, 1.0]),
        (["120", "100", "90", "--norm", "image"], [-0.062933, -0.285014, -0.235817]),
        (
            ["3 1; 4 2; 5 3", "--norm", "batch", "--weight", "2,0.5", "--bias", "1,0"],
            [-1.449471, -0.612368, 1.0, 0.0, 3.449471, 0.612368],
        ),
        (["3", "3", "0", "--norm", "batch", "--mask", "1,1,0"], [0.0, 0.0, 0.0]),
        (["0.146", "--mean", "0.135", "--variance", "0.0023"], [0.228869]),
        (["-2", "0", "2", "--norm", "minmax", "--feature-range", "-1,1"], [-1.0, 0.0, 1.0]),
        (["1 2; 3 5", "--norm", "standardize"], [-1.0, -1.0, 1.0, 1.0]),
    ],
)
def test_golden_values(arguments, expected, capsys):
    assert output(capsys, *arguments) == expected


def test_text_is_the_default_and_shows_the_steps(capsys):
    shown = run(capsys, "1", "2", "3", "4", "--backward")
    assert "μ = (1 + 2 + 3 + 4)/4 = 2.5" in shown
    assert "Gradient of the input" in shown
    assert "FAILED" not in shown


def test_markdown_and_shortened_json(capsys, tmp_path):
    assert run(capsys, "1", "2", "--format", "markdown").startswith("# LayerNorm of 2 numbers\n")
    np.save(tmp_path / "x.npy", np.arange(5000.0))
    short = json.loads(run(capsys, "--file", str(tmp_path / "x.npy"), "--format", "json"))
    assert short["steps"][0]["value"]["omitted"] == 4994


def test_standard_input(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1 2\n3 4\n"))
    assert explained(capsys, "-").step("mean").value.tolist() == [1.5, 3.5]


def test_files_with_axes_and_rows(capsys, tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    e = explained(capsys, "--file", str(tmp_path / "x.npy"), "--axis", "1,-1", "--row", "3")
    assert np.allclose(e.step("mean").value, x.mean((1, 3), dtype=np.float64).ravel())
    assert (e.shown, e.options["dtype"]) == (3, "float32")


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.csv.gz"])
def test_tables_are_read_as_data_fit_reads_them(name, capsys, tmp_path):
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [10.0, 30.0, 20.0], "place": ["x", "y", "z"]})
    {"parquet": frame.to_parquet, "feather": frame.to_feather, "gz": partial(frame.to_csv, index=False)}[
        name.rpartition(".")[2]
    ](tmp_path / name)
    assert main(["explain", "--file", str(tmp_path / name), "--norm", "standardize", "--json", "--full"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["steps"][0]["value"] == [[1.0, 10.0], [2.0, 30.0], [3.0, 20.0]]
    assert captured.err == "left out, as they hold no numbers: place\n"
    one = explained(capsys, "--file", str(tmp_path / name), "--key", "b")
    assert one.step("input").value.tolist() == [10.0, 30.0, 20.0]
    assert "did you mean" in run(capsys, "--file", str(tmp_path / name), "--key", "plac", code=2)


def test_a_table_without_numbers_or_rows_is_refused(capsys, tmp_path):
    pandas.DataFrame({"a": ["x"]}).to_parquet(tmp_path / "words.parquet")
    assert "no numeric column" in run(capsys, "--file", str(tmp_path / "words.parquet"), code=2)
    pandas.DataFrame({"a": np.zeros(0)}).to_feather(tmp_path / "empty.feather")
    assert "holds no rows" in run(capsys, "--file", str(tmp_path / "empty.feather"), code=2)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    assert "broken.parquet" in run(capsys, "--file", str(tmp_path / "broken.parquet"), code=2)


def test_the_page_is_written_and_opened(capsys, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page = tmp_path / "page.html"
    assert str(page) in run(capsys, "1", "2", "--html", str(page), "--open")
    assert "<html" in page.read_text()
    assert opened == [page.resolve().as_uri()]
    run(capsys, "1", "2", "--open")
    assert opened[1].endswith("/explain.html")


@pytest.fixture
def model(tmp_path, monkeypatch):
    source = """
    import torch
    def build():
        return torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.LayerNorm(8))
    def broken():
        raise RuntimeError("no weights here")
    number = 3
    def give_number():
        return 3
    """
    (tmp_path / "explained_model.py").write_text(textwrap.dedent(source))
    (tmp_path / "ids.json").write_text("[[1, 2, 3]]")
    monkeypatch.chdir(tmp_path)
    return "explained_model"


def test_a_layer_inside_a_model(capsys, model):
    e = explained(capsys, f"{model}:build", "--layer", "1", "--input", "ids.json", "--backward")
    assert e.checks[0].passed
    assert {c.id for c in e.checks} >= {"layer", "autograd", "finite_difference"}
    assert e.title == "1: LayerNorm of 1 × 3 × 8 numbers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}:build", "--layer", "norm", "--input", "ids.json"], "no layer 'norm'; layers that look like norms: 1"),
        (["{}:missing", "--layer", "1", "--input", "ids.json"], "AttributeError"),
        (["{}:broken", "--layer", "1", "--input", "ids.json"], "RuntimeError: no weights here"),
        (["{}:give_number", "--layer", "1", "--input", "ids.json"], "gave a int, not a torch.nn.Module"),
        (["no_such_module:f", "--layer", "1", "--input", "ids.json"], "there is no module no_such_module"),
        (["{}", "--layer", "1", "--input", "ids.json"], "write package.module:factory"),
        (["{}:build", "--layer", "1"], "--layer needs --input"),
        (["--layer", "1", "--input", "ids.json"], "--layer needs one model"),
        (["{}:build", "--layer", "1", "--input", "ids.json", "--eps", "1"], "--eps: these come from the layer itself"),
        (["{}:build", "--layer", "1", "--input", "ids.json", "--call", "1"], "the model calls it 1 time"),
        (["{}:build", "--layer", "1", "--input", "ids.json", "--file", "x"], "give the model's input once"),
        (["{}:build"], "names a model; give its layer with --layer"),
    ],
)
def test_wrong_models_are_one_line(arguments, message, capsys, model):
    told = run(capsys, *(word.format(model) for word in arguments), code=2)
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to explain"),
        (["one", "two"], "'one' in the input is not a number"),
        (["1 2; 3"], "different lengths"),
        (["[[1, 2], [3]]"], "different lengths"),
        (["1", "2", "--axis", "5"], "axis 5 does not exist: the input has shape (2,)"),
        (["1", "2", "--axis", "x"], "'--axis': expected whole numbers"),
        (["1", "2", "--norm", "laier"], "'--norm': there is no 'laier'; did you mean layer, "),
        (["1", "2", "--nrom", "rms"], "No such option: --nrom"),
        (["-1x", "2"], "'-1x' is not a number"),
        (["1", "2", "--groups", "2"], "LayerNorm has no option groups"),
        (["1", "2", "--weight", "a"], "'--weight': 'a' in it is not a number"),
        (["1", "2", "--format", "pdf"], "'--format': expected one of text, markdown, json"),
        (["1", "2", "--file", "x.npy"], "give numbers or --file, not both"),
        (["--file", "no-such-file.npy"], "there is no file no-such-file.npy"),
        (["--file", "tests/cli/test_explain.py"], "an ending that is not known"),
        (["1", "2", "--row", "1"], "there is no group 1"),
        (["1", "2", "--eps", "small"], "--eps"),
        (["1", "2", "--input", "x.npy"], "--input belongs to --layer"),
        (["1", "2", "--html", "no-such-directory/page.html"], "cannot write"),
        (["1", "2", "--html", "/"], "it names no file"),
        (["1", "2", "--html", ""], "the path is empty"),
        (["1", "2", "--html", "tests"], "it names no file"),
        (["1", "2", "--key", "w"], "--key belongs to --file"),
        (["1", "2", "--call", "1"], "--call belongs to --layer"),
        (["1", "2", "--upstream", "1,2"], "--upstream belongs to --backward"),
    ],
)
def test_wrong_usage_is_one_line(arguments, message, capsys):
    told = run(capsys, *arguments, code=2)
    assert told.startswith("evenkeel: error: ")
    assert told.count("\n") == 1
    assert message in told


def test_a_constant_vector_and_nan_are_explained(capsys):
    assert "ε = 1e-5 alone makes the divisor" in " ".join(run(capsys, "5", "5", "5").split())
    assert "NaN at [1]" in run(capsys, "1", "nan", "3")
    assert torch.isnan(torch.tensor(explained(capsys, "1", "nan").step("output").value)).all()
