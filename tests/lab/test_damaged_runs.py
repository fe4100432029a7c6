"""Damaged files of studies and experiments: one line says which and what to delete, or the run goes on."""

import json
import random
import sys

import pytest
import torch
from damaged_states import ODD, assert_one_line, damaged_bytes, replace_part
from lab.experiments.tiny import TINY as TINY_EXPERIMENTS
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from study_runs import TINY, folder

from evenkeel import EvenkeelError, StudyError
from evenkeel.lab import StudySettings, read_study, run_study
from evenkeel.lab.experiments import EXPERIMENTS, run_experiments
from evenkeel.lab.experiments._run import read_experiment, write_report
from evenkeel.lab.studies import study_page
from evenkeel.lab.studies._summary import summarize
from evenkeel.lab.training import load_checkpoint, save_checkpoint

SEEDS = 120


def damaged(data, seed):
    """Bytes of JSON, or of lines of it, with some bytes changed or a part of one line replaced."""
    rng = random.Random(seed)
    if seed % 2:
        return damaged_bytes(data, seed)
    lines = data.splitlines() if data.startswith(b'{"kind"') else [data]
    index = rng.randrange(len(lines))
    lines[index] = json.dumps(replace_part(json.loads(lines[index]), rng)).encode()
    return b"\n".join([*lines, b""])


def check(path, work, seeds=SEEDS):
    """Do work on many damaged versions of a file, each of which is refused in one line or harmless."""
    data = path.read_bytes()
    refused = 0
    for seed in range(seeds):
        try:
            path.write_bytes(damaged(data, seed))
            work()
        except EvenkeelError as error:
            refused += 1
            assert_one_line(error)
        finally:
            path.write_bytes(data)
    work()
    assert refused


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "text.txt").write_text("".join(f"line {i} of a small text\n" for i in range(200)))
    run_study(StudySettings(arms=("pre-rms", "none"), **TINY), folder / "out", text=folder / "text.txt")
    return folder / "out"


def test_a_damaged_study_is_refused_in_one_line(study):
    def work():
        frozen = read_study(study)
        StudySettings.from_options({**frozen["settings"], "steps": 12})
        study_page(summarize(study, frozen))

    check(study / "study.json", work)


def test_damaged_records_of_a_study_are_refused_in_one_line(study):
    frozen = read_study(study)
    check(folder(study, "pre-rms") / "records.jsonl", lambda: study_page(summarize(study, frozen)))


@pytest.mark.parametrize("name", ["padding", "centring", "cost", "learning-rate"])
def test_damaged_experiments_are_refused_in_one_line(name, tmp_path):
    run_experiments([EXPERIMENTS[name]], tmp_path, options={name: TINY_EXPERIMENTS[name]})
    check(tmp_path / name / "experiment.json", lambda: read_experiment(tmp_path / name))
    for file in ("summary.json", "records.jsonl"):
        check(tmp_path / name / file, lambda: write_report(tmp_path), seeds=40)


@pytest.mark.parametrize("value", [value for value in ODD if value != 2], ids=repr)
@pytest.mark.parametrize("setting", ["arms", "width", "lr", "clip", "seeds", "bias", "feed_forward", "unknown"])
def test_settings_of_any_type_are_read_or_refused(setting, value):
    options = {**TINY, "arms": ["none"]}
    try:
        settings = StudySettings.from_options(options | {setting: value})
    except StudyError as error:
        assert_one_line(error)
    else:
        assert type(getattr(settings, setting)) in (tuple, int, float, bool, str, type(None))
        assert setting != "unknown"


def optimizer_of(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


def test_the_bytes_of_a_checkpoint_are_those_of_its_content(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = optimizer_of(model)
    for number in range(20):
        save_checkpoint(tmp_path / str(number), model, optimizer, step=3, size=70)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("change", ["step", "shape", "index", "name", "missing", "bytes"])
def test_a_damaged_checkpoint_is_refused_in_one_line(change, tmp_path):
    model = torch.nn.Linear(2, 2)
    save_checkpoint(tmp_path / "good", model, optimizer_of(model), step=3, size=70)
    data, path = (tmp_path / "good").read_bytes(), tmp_path / "bad"

    def load():
        other = torch.nn.Linear(2, 2)
        optimizer = optimizer_of(other)
        found = load_checkpoint(path, other, optimizer, step=12, size=sys.maxsize)
        optimizer.step()  # what is loaded can be used
        return found

    def refuse():
        with pytest.raises(StudyError, match="is damaged; delete the directory") as caught:
            load()
        assert_one_line(caught.value)

    path.write_bytes(data)
    assert load() == (3, 70)
    arrays = load_arrays(data)
    if change == "bytes":
        for seed in range(200):
            path.write_bytes(damaged_bytes(data, seed))
            try:
                load()
            except StudyError as error:
                assert_one_line(error)
        return
    moment = "optimizer.0.exp_avg"
    changes = {
        "shape": {moment: arrays[moment][:1]},
        "index": {"optimizer.7.exp_avg": arrays[moment]},
        "name": {"optimizer.x.exp_avg": arrays[moment]},
    }
    if change == "missing":
        del arrays[moment]
    arrays |= changes.get(change, {})
    for step in ("-1", "13", "x", "9" * 5000) if change == "step" else ("3",):
        path.write_bytes(save_arrays(arrays, {"numbers": json.dumps({"step": step, "size": 70})}))
        refuse()
