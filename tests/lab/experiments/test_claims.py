"""Claims as they are shown: the numbers behind them, drawn with what the verdict compares them with, and each once."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from evenkeel.lab.experiments import EXPERIMENTS
from evenkeel.lab.experiments._estimates import Estimate, covers, intervals, level, mean_of, spread, verdict
from evenkeel.lab.experiments._page import ICONS, claims_table, draw, experiments_page, verdict_text
from evenkeel.lab.experiments._run import flat_records, read_experiment, summarize
from evenkeel.report import Intervals, Series

MEASUREMENTS = Path(__file__).parents[3] / "docs" / "measurements"


@pytest.fixture(scope="module")
def runs():
    found = []
    for name, experiment in EXPERIMENTS.items():
        directory = MEASUREMENTS / name
        options = experiment.read_options(read_experiment(directory)["options"])
        found.append(draw(experiment, summarize(experiment, options, directory), flat_records(directory)))
    return found


def bounds(row, allowed):
    low, high = (end if end is not None else side for end, side in zip(row[2:], (-math.inf, math.inf), strict=True))
    least, most = (end if end is not None else side for end, side in zip(allowed, (-math.inf, math.inf), strict=True))
    return Estimate(row[1], low, high), least, most


def test_a_verdict_is_what_its_picture_shows(runs):
    compared = 0
    for run in runs:
        for claim in run.summary["claims"]:
            if claim["allowed"] is None or claim["verdict"] == "partly":
                continue
            compared += 1
            assert verdict(*bounds(claim["intervals"][0], claim["allowed"])) == claim["verdict"], claim["claim"]
    assert compared >= 15


def test_most_claims_have_numbers_to_draw(runs):
    claims = [claim for run in runs for claim in run.summary["claims"]]
    drawn = [claim for claim in claims if claim["intervals"]]
    assert len(drawn) >= 0.8 * len(claims)
    for claim in drawn:
        assert 0 < len(claim["quantity"]) <= 48  # as much as the picture has room for
        assert all(low is None or high is None or low <= value <= high for _, value, low, high in claim["intervals"])


def test_percentages_of_all_end_at_100(runs):
    for run in runs:
        for claim in run.summary["claims"]:
            assert "to 102)" not in claim["measured"]
            if "accuracy (%)" in claim["quantity"]:
                assert all(low >= 0 and high <= 100 for _, _, low, high in claim["intervals"])


def test_savings_are_told_as_less_or_more(runs):
    (cost,) = (run for run in runs if run.experiment.name == "cost")
    assert not any("takes -" in claim["measured"] for claim in cost.summary["claims"])
    told = r"torch's RMSNorm takes \d+ \(95 % interval \d+ to \d+\) % more than"
    assert re.search(told, cost.summary["claims"][1]["measured"])


def test_the_page_of_all_has_each_claim_once_under_a_message(runs):
    page = experiments_page(runs)
    assert page.findings == []
    counts, *sections = page.sections
    verdicts = Counter(claim["verdict"] for run in runs for claim in run.summary["claims"])
    message = f"{verdicts['agrees']} of {verdicts.total()} claims agree with what was measured"
    assert counts.title == counts.figures[0].title == message
    assert [row[1] for row in counts.figures[0].panels[0].table.rows] == [
        verdicts[name] for name in ("agrees", "partly", "disagrees", "undecided")
    ]
    assert verdicts["undecided"] <= 5
    cells = [str(cell) for section in sections for table in section.tables for row in table.rows for cell in row]
    for run, section in zip(runs, sections, strict=False):
        assert section.title == run.figures[0].title
        for claim in run.summary["claims"]:
            assert cells.count(claim["claim"]) == 1
        assert any(isinstance(row[2], Intervals) for row in section.tables[0].rows)


def test_what_surprises_comes_first_on_a_page(runs):
    for run in runs:
        verdicts = [str(row[0]) for row in claims_table(run.summary, drawn=True).rows]
        order = [verdict_text(name) for name in ("disagrees", "partly", "undecided", "agrees")]
        assert verdicts == sorted(verdicts, key=order.index)
        assert all(text[0] in ICONS.values() for text in verdicts)


def test_numbers_behind_claims_are_plain():
    assert intervals({"a": mean_of([1.0]), "b": mean_of([])}) == [("a", 1.0, None, None)]
    assert spread({"a": [1.0, 3.0], "b": []}) == [("a", 2.0, 1.0, 3.0)]
    assert mean_of([0.9, 1.0, 1.1], scale=100, within=(0, 100)).high == 100
    assert covers(Estimate(1.0, -1.0, 2.0), 0.0)
    assert not covers(Estimate(1.0, 0.5, 2.0), 0.0)
    assert level("limit", None, [Series("a", [1, 2], [0.0, 1.0])]) == []
    (line,) = level("limit", 0.5, [Series("a", [1, 2], [0.0, 1.0])])
    assert (line.x, line.y) == ([1, 2], [0.5, 0.5])
