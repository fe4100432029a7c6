"""Results show themselves: short in a list, as text in a terminal, as Markdown and pages in a notebook."""

import builtins
import html
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from rich.cells import cell_len

import evenkeel as ek
from evenkeel import lab
from evenkeel.data import DriftReport, MinMaxScaler, StandardScaler, Statistics, compare
from evenkeel.lab import StudyResult, experiment, study
from evenkeel.lab.experiments import ExperimentResult
from evenkeel.report import Axis, Figure, Row, Series, Table, dots, frame_page, lines, plotly_figure, render_document

SIZES = {"depth": 1, "width": 8, "heads": 2, "context": 8, "batch": 2, "steps": 6, "lr": 0.002, "seeds": 1}
PADDING = {"seeds": 1, "lengths": (4, 8), "features": 3, "batch": 4}
X = np.random.default_rng(0).normal(size=(50, 2))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i} of a small text\n" for i in range(200)))
    return path


@pytest.fixture(scope="module")
def results(text):
    before, now = Statistics(quantiles=True).update(X), Statistics(quantiles=True).update(X + 2)
    return {
        "explanation": ek.explain.walk([1.0, 2.0, 4.0], "rms", backward=True),
        "statistics": before,
        "no statistics": Statistics(),
        "scaler": StandardScaler().fit(X),
        "no scaler": MinMaxScaler(feature_range=(-1, 1)),
        "drift": compare(before, now),
        "spec": ek.NormSpec(statistic="rms", shares="token", center=False, eps=1e-6, bias=False),
        "study": study(text=text, arms=["none", "pre-rms"], progress=False, **SIZES),
        "experiment": experiment("padding", progress=False, **PADDING),
    }


# What each says in short; in a terminal; and in its page.
SHORT = {
    "explanation": "Explanation('RMSNorm of 3 numbers', 17 steps, 5 checks passed)",
    "statistics": "Statistics(features=2, rows=50, axis=(-1,))",
    "no statistics": "Statistics(features=None, rows=0, axis=(-1,))",
    "scaler": "StandardScaler()",
    "no scaler": "MinMaxScaler(feature_range=(-1, 1))",
    "drift": "DriftReport(features=2, failures=2)",
    "spec": "NormSpec(statistic='rms', shares='token', center=False, eps=1e-06, bias=False)",
    "study": "StudyResult(2 arms)",
    "experiment": "ExperimentResult('padding', 2 trials, claims: ",
}
TOLD = {
    "explanation": ["Root mean square", "Checks"],
    "statistics": ["50 rows, 2 features", "missing", "50%"],
    "no statistics": ["rows=0"],
    "scaler": ["StandardScaler: 50 rows", "std"],
    "no scaler": ["MinMaxScaler(feature_range=(-1, 1))"],
    "drift": ["2 differences", "FAILS"],
    "spec": ["eps_mode", "inside"],
    "study": ["pre-rms", "nats per byte"],
    "experiment": ["A mask keeps padding out of BatchNorm's statistics"],
}


@pytest.mark.parametrize("kind", SHORT)
def test_a_result_shows_itself(kind, results):
    result = results[kind]
    assert repr(result).startswith(SHORT[kind])
    assert len(repr(result)) < 120
    for shown in (str(result), result._repr_markdown_(), html.unescape(html.unescape(result._repr_html_()))):
        for word in TOLD[kind]:
            assert word in shown
    if kind not in ("study", "experiment"):  # whose findings are sentences
        assert max(map(cell_len, str(result).splitlines())) <= 100
    assert "\x1b" not in str(result)


FRAMED = ("explanation", "statistics", "scaler", "drift", "study", "experiment")


@pytest.mark.parametrize("kind", FRAMED)
def test_a_page_is_in_a_frame_that_loads_nothing(kind, results):
    shown = results[kind]._repr_html_()
    assert re.fullmatch(
        r'<iframe style="[^"]*" sandbox="allow-scripts allow-downloads" srcdoc="[^"]*"></iframe>', shown
    )
    page = html.unescape(shown.partition('srcdoc="')[2].removesuffix('"></iframe>'))
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page


@pytest.mark.parametrize("kind", ["statistics", "study", "experiment"])
def test_without_the_packages_of_pages_a_notebook_shows_markdown(kind, results, monkeypatch):
    right = builtins.__import__

    def missing(name, *rest):
        if name.partition(".")[0] in ("jinja2", "plotly"):
            raise ImportError(name)
        return right(name, *rest)

    monkeypatch.setattr("importlib.import_module", lambda name: missing(name, None, None, ["x"]))
    assert results[kind]._repr_html_() is None
    assert "|" in results[kind]._repr_markdown_()


def test_a_notebook_asks_a_scaler_for_its_own_page(results):
    # scikit-learn's bundle would come first, and knows its diagram alone
    assert results["scaler"]._repr_mimebundle_() is None


def test_what_is_shown_is_what_it_was(results):
    import copy
    import pickle

    for kind in ("explanation", "statistics", "scaler", "drift", "study", "experiment"):
        for same in (copy.deepcopy(results[kind]), pickle.loads(pickle.dumps(results[kind]))):
            assert str(same) == str(results[kind])


def test_a_table_shows_itself():
    table = Table(["name", "value"], [["a|<b>", 1234.5], ["c\nd", None]])
    assert repr(table) == "Table(['name', 'value'], 2 rows)"
    assert str(table).splitlines()[0].split() == ["name", "value"]
    assert table.markdown() == "| name | value |\n| --- | ---: |\n| a\\|&lt;b&gt; | 1,234 |\n| c d |  |\n"
    assert table._repr_markdown_() == table.markdown()


@pytest.mark.parametrize("kind", ["explanation", "statistics", "drift", "study"])
def test_text_is_text_inside_a_notebook_too(kind, results, monkeypatch, capsys):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)  # Rich would show tags and write nothing
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook's kernel has it
    told = str(results[kind])
    assert "\x1b" not in told
    assert len(told.splitlines()) > 3
    assert capsys.readouterr().out == ""
    ek.explain.print_explanation(results["explanation"])
    assert "RMSNorm of 3 numbers" in capsys.readouterr().out


def test_names_cannot_leave_the_frame():
    shown = frame_page(render_document('"></iframe><script>', '<p title="x">&</p>'), height=10)
    assert shown.count("<") == 2
    assert shown.count('"') == 6


def test_figures_are_those_of_plotly(results):
    result = results["study"]
    assert {"map", "loss", "ranking", "residual"} <= result.figures().keys()
    for name, title in result.figures().items():
        figure = result.figure(name)
        assert isinstance(figure, go.Figure)
        assert figure.layout.title.text.replace("<br>", " ") == html.escape(title, quote=False)
        assert figure.data
    loss = result.figure("loss")
    last = next(row for row in result.table().rows if row[1] == "none")
    curve = next(trace for trace in loss.data if trace.name == "none" and trace.xaxis == "x")
    assert f"{curve.y[-1]:.3f}" == last[2]
    assert [trace.name for trace in loss.data if trace.showlegend] == ["none", "pre-rms"]
    with pytest.raises(ValueError, match="there is no figure 'los'; did you mean loss, "):
        result.figure("los")


def test_a_figure_of_several_panels_has_axes_for_each():
    panels = [
        lines([Series("a", [0, 40], [1.0, 2.0], low=[0, 1], high=[2, 3])], x=Axis("block", integer=True), y=Axis("y")),
        dots([Row("b", 1.0), Row("c", 2.0)], x=Axis("z"), heading="Second"),
    ]
    figure = plotly_figure(Figure("both", "Two & two", "", panels))
    assert figure.layout.xaxis.domain[1] < figure.layout.xaxis2.domain[0]
    assert (figure.layout.xaxis.title.text, figure.layout.xaxis2.title.text) == ("block", "z")
    assert figure.layout.xaxis.dtick == 10
    assert {trace.xaxis for trace in figure.data} == {"x", "x2"}
    assert [trace.name for trace in figure.data if trace.showlegend] == ["a"]  # neither the band nor named rows
    placed = [(note.text, note.xref) for note in figure.layout.annotations]
    assert ("<b>Second</b>", "x2 domain") in placed
    assert figure.layout.title.text == "Two &amp; two"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1.2, 30.0], {1: "1", 2: "2", 5: "5", 10: "10", 20: "20"}),
        ([3e4, 4e5], {5e4: "50000", 1e5: "10<sup>5</sup>", 2e5: "2×10<sup>5</sup>"}),
        ([2e-8, 3.0], {1e-8: "10<sup>-8</sup>", 1e-6: "10<sup>-6</sup>", 1e-4: "0.0001", 1e-2: "0.01", 1: "1"}),
        ([1.0, 2.0], None),
    ],
    ids=str,
)
def test_logarithmic_axes_have_few_ticks_of_one_size(values, ticks):
    panel = lines([Series("a", [0, 1], values)], x=Axis("x"), y=Axis("y", log=True))
    axis = plotly_figure(Figure("one", "One", "", [panel])).layout.yaxis
    assert (axis.tickvals and dict(zip(axis.tickvals, axis.ticktext, strict=True))) == ticks


def test_a_study_from_python_is_that_of_the_command(text, tmp_path, capsys):
    options = {"text": text, "arms": ("none",), "threads": 1, **SIZES}
    result = study(out=tmp_path / "out", **options)
    assert "1/1 none, rate 0.002, seed 0: finished at step 6/6, validation loss" in capsys.readouterr().err
    assert result.directory == tmp_path / "out"
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == result.summary
    assert StudyResult.read(tmp_path / "out").table().rows == result.table().rows
    assert result.save(tmp_path / "page.html").read_text() == (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(ek.StudyError, match="already holds a study"):
        study(out=tmp_path / "out", **options)
    again = study(out=tmp_path / "out", resume=True, progress=False)
    assert again.summary["settings"] == result.summary["settings"]
    assert study(out=tmp_path / "out", **options | {"steps": 2}, force=True).summary["settings"]["steps"] == 2


def test_an_experiment_from_python_is_that_of_the_command(tmp_path, capsys):
    result = experiment("padding", out=tmp_path / "out", **PADDING)
    assert "padding: 2 trials" in capsys.readouterr().err
    assert len(result.records) == 2
    assert result.table().columns == ["claim", "source", "measured", "verdict"]
    assert isinstance(result.figure("padding"), go.Figure)
    assert ExperimentResult.read(tmp_path / "out" / "padding").summary == result.summary
    assert result.save(tmp_path / "page.html").stat().st_size > 10_000
    with pytest.raises(ek.StudyError, match="already holds"):
        experiment("padding", out=tmp_path / "out", **PADDING)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: study(dpeth=3), "no setting 'dpeth'; did you mean depth, "),
        (lambda folder: study(resume=True), "resume needs out"),
        (lambda folder: study(arms=["pre-lyer"]), "unknown arm 'pre-lyer'"),
        (lambda folder: experiment("pading"), "no experiment is called 'pading'; did you mean padding, "),
        (lambda folder: experiment("padding", lenghts=3), "no option lenghts; did you mean lengths, "),
        (lambda folder: StudyResult.read(folder), "cannot read .*give the directory of a study"),
        (lambda folder: ExperimentResult.read(folder), "holds no summary of an experiment"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(call, message, tmp_path):
    with pytest.raises(ek.StudyError, match=message) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_summary_is_one_line(tmp_path):
    for damage in ("{", "[]", '{"format": 1, "arms": [3]}', '{"format": 9}'):
        (tmp_path / "summary.json").write_text(damage)
        with pytest.raises(ek.StudyError):
            StudyResult.read(tmp_path)


def test_the_lab_comes_with_its_first_use():
    assert ek.lab is lab
    assert isinstance(DriftReport(features=()), DriftReport)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FRAMED)
def test_frames_work_in_a_browser(kind, results, browser, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{results[kind]._repr_html_()}")
    page = browser.new_page()
    wrong, asked = [], []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    inner = page.frame_locator("iframe")
    inner.locator("h1").first.wait_for()
    if kind == "explanation":
        field = inner.locator("input[type=number], input[inputmode]").first
        field.fill("7")
        field.press("Enter")
        inner.locator("html[data-updates='2'], html[data-updates='3']").first.wait_for(state="attached")
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    page.close()
