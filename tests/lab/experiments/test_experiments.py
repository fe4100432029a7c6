"""Every experiment at a tiny size: its records, claims and figures; runs that stop and go on; bad input."""

import json
import math

import pytest
from lab.experiments.tiny import TINY

from evenkeel._errors import StudyError
from evenkeel._options.experiments import ACTIVATION_NAMES, EXPERIMENT_OPTIONS, HIDDEN_NORM_NAMES
from evenkeel._options.names import EXPERIMENT_NAMES
from evenkeel.lab.experiments import (
    EXPERIMENTS,
    VERDICTS,
    Claim,
    Experiment,
    ExperimentObserver,
    Options,
    read_experiment,
    run_experiments,
)
from evenkeel.lab.experiments._digits import ACTIVATIONS, HIDDEN_NORMS


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """One run of every experiment, and its summaries by name."""
    out = tmp_path_factory.mktemp("experiments") / "run"
    summaries = run_experiments(list(EXPERIMENTS.values()), out, options=TINY)
    return out, {summary["name"]: summary for summary in summaries}


def records_of(out, name):
    return [json.loads(line) for line in (out / name / "records.jsonl").read_text().splitlines()]


def numbers_in(value):
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers_in(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers_in(item)]
    return [value] if isinstance(value, (int, float)) else []


def test_every_experiment_has_a_tiny_size():
    assert set(TINY) == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_trial_is_measured_once(name, whole_run):
    out, summaries = whole_run
    experiment = EXPERIMENTS[name]
    trials = experiment.trials(experiment.read_options(TINY[name]))
    records = records_of(out, name)
    assert [record["trial"] for record in records] == trials
    assert summaries[name]["complete"]
    assert summaries[name]["trials"] == len(trials) == len({json.dumps(t, sort_keys=True) for t in trials})
    assert all(len(numbers_in(record["measured"])) > 0 for record in records)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_have_source_measurement_and_verdict(name, whole_run):
    claims = whole_run[1][name]["claims"]
    assert claims
    for claim in claims:
        assert claim["verdict"] in VERDICTS
        assert claim["source"]
        assert any(character.isdigit() for character in claim["measured"]), claim
        assert "nan" not in claim["measured"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figures_draw_what_was_recorded(name, whole_run):
    out, _ = whole_run
    experiment = EXPERIMENTS[name]
    records = [{**r["trial"], **r["measured"]} for r in records_of(out, name)]
    figures = experiment.draw(experiment.read_options(TINY[name]), records)
    assert figures
    for figure in figures:
        assert figure.title
        assert figure.caption
        assert any(cell is not None for panel in figure.panels for row in panel.table.rows for cell in row[1:])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_without_records_claims_nothing(name):
    experiment = EXPERIMENTS[name]
    options = experiment.options()
    assert experiment.judge(options, []) == []
    assert experiment.draw(options, []) == []


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if not EXPERIMENTS[name].timed])
def test_measurements_are_repeatable(name):
    experiment = EXPERIMENTS[name]
    options = experiment.read_options(TINY[name])
    trial = experiment.trials(options)[-1]
    assert repr(experiment.measure(options, trial)) == repr(experiment.measure(options, trial))


def test_names_and_titles_are_unique():
    assert len({experiment.title for experiment in EXPERIMENTS.values()}) == len(EXPERIMENTS)
    assert all(isinstance(e, Experiment) and e.question.endswith("?") for e in EXPERIMENTS.values())


def test_options_are_found_by_name_before_torch():
    assert {name: experiment.options for name, experiment in EXPERIMENTS.items()} == EXPERIMENT_OPTIONS
    assert tuple(EXPERIMENT_OPTIONS) == EXPERIMENT_NAMES
    assert (tuple(ACTIVATIONS), tuple(HIDDEN_NORMS)) == (ACTIVATION_NAMES, HIDDEN_NORM_NAMES)


class StopAfter(ExperimentObserver):
    """Interrupts after some trials, as Ctrl-C would."""

    def __init__(self, trials: int) -> None:
        self.left = trials

    def trial_done(self, trial, done, total):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def without_seconds(out):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records_of(out, "padding")]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    experiments, options = [EXPERIMENTS["padding"]], {"padding": TINY["padding"]}
    run_experiments(experiments, tmp_path / "whole", options=options)
    with pytest.raises(KeyboardInterrupt):
        run_experiments(experiments, tmp_path / "parts", options=options, observer=StopAfter(2))
    path = tmp_path / "parts" / "padding" / "records.jsonl"
    assert len(path.read_text().splitlines()) == 2
    with path.open("a") as file:
        file.write('{"kind": "trial", "unfin')  # a line that a kill cut short
    with pytest.raises(StudyError, match="--resume"):
        run_experiments(experiments, tmp_path / "parts", options=options)
    run_experiments(experiments, tmp_path / "parts", options=options, resume=True)
    assert without_seconds(tmp_path / "parts") == without_seconds(tmp_path / "whole")
    assert (tmp_path / "parts" / "report.html").stat().st_size > 1000


def test_a_finished_run_measures_nothing_again(tmp_path):
    options = {"padding": TINY["padding"]}
    for _ in range(2):
        run_experiments([EXPERIMENTS["padding"]], tmp_path, options=options, resume=True)
    assert len(records_of(tmp_path, "padding")) == 4


def test_other_options_do_not_resume(tmp_path):
    run_experiments([EXPERIMENTS["padding"]], tmp_path, options={"padding": TINY["padding"]})
    other = {"padding": TINY["padding"] | {"batch": 9}}
    with pytest.raises(StudyError, match="batch was 8, now 9"):
        run_experiments([EXPERIMENTS["padding"]], tmp_path, options=other, resume=True)


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StudyError, match=r"thesis\.txt, which is not an experiment's"):
        run_experiments([EXPERIMENTS["padding"]], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1', '{"format": 1}', '{"format": 99}'])
def test_a_damaged_run_is_named(tmp_path, content):
    (tmp_path / "padding").mkdir()
    (tmp_path / "padding" / "experiment.json").write_text(content)
    with pytest.raises(StudyError, match=r"experiment\.json"):
        read_experiment(tmp_path / "padding")


@pytest.mark.parametrize("path_to", ["measured.layer", "trial.length", "trial", "measured", "seconds"])
def test_a_record_that_lacks_an_entry_is_named(tmp_path, path_to):
    options = {"padding": TINY["padding"]}
    run_experiments([EXPERIMENTS["padding"]], tmp_path, options=options)
    path = tmp_path / "padding" / "records.jsonl"
    first, *others = map(json.loads, path.read_text().splitlines())
    entry, _, inner = path_to.partition(".")
    del (first[entry] if inner else first)[inner or entry]
    path.write_text("".join(json.dumps(record) + "\n" for record in [first, *others]))
    with pytest.raises(
        StudyError, match=rf"a record of .*padding/records\.jsonl lacks '{inner or entry}'; delete the directory"
    ):
        run_experiments([EXPERIMENTS["padding"]], tmp_path, options=options, resume=True)


def test_a_list_that_differs_is_named(tmp_path):
    run_experiments([EXPERIMENTS["padding"]], tmp_path, options={"padding": TINY["padding"]})
    other = {"padding": TINY["padding"] | {"lengths": (16, 4)}}
    with pytest.raises(StudyError, match="lengths was 16,8, now 16,4"):
        run_experiments([EXPERIMENTS["padding"]], tmp_path, options=other, resume=True)


@pytest.mark.parametrize(
    ("name", "typed", "message"),
    [
        ("padding", {"lenghts": "3"}, "no option lenghts; did you mean lengths, "),
        ("padding", {"batch": "many"}, "batch must be a whole number, but is 'many'"),
        ("padding", {"batch": "2.5"}, "batch must be a whole number"),
        ("padding", {"batch": 0}, "batch must be positive"),
        ("padding", {"mean": "nan"}, "mean must be positive"),
        ("padding", {"lengths": ""}, "lengths is empty"),
        ("padding", {"lengths": "99999"}, "at most longest"),
        ("padding", {"seed": -1}, "seed must be zero or more"),
        ("padding", {"threads": 10**9}, "threads must be a whole number from 1 to 1024"),
        ("gradients-at-init", {"arms": "pre-layr"}, "did you mean pre-layer"),
        ("gradients-at-init", {"depths": "4"}, "two different values"),
        ("learning-rate", {"rates": "0.1,0.01"}, "must ascend"),
        ("batchnorm-noise", {"batches": "1"}, "at least 2"),
        ("batchnorm-convergence", {"target": "1.5"}, "below 1"),
        ("feature-scaling", {"table": "irs"}, "wine, breast_cancer"),
        ("recurrent", {"cells": "rnn"}, "gru, lstm"),
        ("centring", {"arms": "pre-batch"}, "has neither"),
        ("norm-before-activation", {"activations": "tanh"}, "sigmoid, relu"),
    ],
)
def test_impossible_options_are_one_clear_line(name, typed, message):
    with pytest.raises(StudyError, match=message) as caught:
        EXPERIMENTS[name].read_options(typed)
    assert "\n" not in str(caught.value)


def test_options_are_read_from_text():
    options = EXPERIMENTS["learning-rate"].read_options({"rates": "1e-3, 1e-2", "seeds": "2", "arms": "none"})
    assert (options.rates, options.seeds, options.arms) == ((1e-3, 1e-2), 2, ("none",))
    assert list(Options(seed=3, seeds=2).seed_range()) == [3, 4]


def test_a_verdict_is_one_of_four():
    with pytest.raises(StudyError, match="agrees, partly, disagrees, undecided"):
        Claim(claim="a", source="b", measured="c", verdict="true")


def test_padding_error_is_what_the_definition_gives():
    experiment = EXPERIMENTS["padding"]
    options = experiment.read_options({"lengths": (4,), "longest": 8, "features": 1, "batch": 512, "mean": 2.0})
    measured = experiment.measure(options, {"length": 4, "seed": 0})
    # a share p of zeros beside N(2, 1): mean 2 (1 - p), variance (1 - p) (1 + 4 p)
    p = measured["padding"]
    scale = 1 / math.sqrt((1 - p) * (1 + 4 * p))
    expected = math.hypot(scale - 1, 2 * p * scale)
    assert measured["polluted"] == pytest.approx(expected, rel=0.02)
    assert measured["masked"] < 1e-6
    assert measured["layer"] == 0
