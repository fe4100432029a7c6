"""Studies joined: differences paired by seed, with their intervals, and what differs between the studies."""

import json
import statistics

import pytest
from study_runs import TINY

import evenkeel as ek
from evenkeel.lab import Comparison, StudySettings, compare_studies, run_study
from evenkeel.lab.studies import _comparison
from evenkeel.lab.training import t95
from evenkeel.report import render_page


def entry(study, arm, losses, *, leaks=False, rate=0.01):
    loss = statistics.fmean(losses.values()) if losses else None
    return {"study": study, "arm": arm, "rate": rate, "losses": losses, "loss": loss, "leaks": leaks, "remark": ""}


def test_a_difference_is_taken_seed_by_seed():
    one, other = entry("a", "x", {0: 1.0, 1: 3.0, 2: 8.0}), entry("b", "x", {2: 8.2, 0: 1.1, 1: 3.3, 7: 99.0})
    pair = _comparison.paired(other, one)
    half = t95(2) * statistics.stdev([0.1, 0.3, 0.2]) / 3**0.5
    assert pair["difference"] == pytest.approx(0.2)
    assert (pair["low"], pair["high"]) == pytest.approx((0.2 - half, 0.2 + half))
    assert (pair["seeds"], pair["reference"]) == (3, "a")
    assert pair["seen"] == "no difference seen"  # 0.2 and 0.25 to either side of it


@pytest.mark.parametrize(
    ("losses", "seen"),
    [
        ({0: 1.5, 1: 2.5, 2: 3.5}, "higher"),
        ({0: 0.5, 1: 1.51, 2: 2.5}, "lower"),
        ({0: 1.0, 1: 2.0, 2: 3.0}, "no difference seen"),
        ({0: 1.0, 1: 2.5, 2: 2.5}, "no difference seen"),
        ({1: 9.0}, "one seed, no interval"),
        ({5: 9.0}, "no seed in common"),
        ({}, "no seed in common"),
    ],
)
def test_what_is_seen_of_a_difference(losses, seen):
    assert _comparison.paired(entry("b", "x", losses), entry("a", "x", {0: 1.0, 1: 2.0, 2: 3.0}))["seen"] == seen


def test_arms_are_ranked_against_the_best_and_paired_with_the_first_study_that_has_them():
    standing = [
        entry("a", "x", {0: 2.0, 1: 2.1}),
        entry("a", "leaky", {0: 0.1, 1: 0.1}, leaks=True),
        entry("b", "x", {0: 1.0, 1: 1.1}),
        entry("b", "y", {}),
        entry("c", "x", {0: 3.0, 1: 3.1}),
        entry("c", "y", {0: 5.0}),
    ]
    ranked = _comparison.against_best(standing)
    assert [(e["study"], e["arm"]) for e in ranked] == [
        ("b", "x"), ("a", "x"), ("c", "x"), ("c", "y"), ("a", "leaky"), ("b", "y")
    ]  # fmt: skip
    assert [e.get("difference") for e in ranked] == [0.0, 1.0, 2.0, 4.0, None, None]
    pairs = _comparison.same_arms(standing)
    assert [(p["study"], p["arm"], p["reference"]) for p in pairs] == [
        ("b", "x", "a"), ("c", "x", "a"), ("c", "y", "b")
    ]  # fmt: skip


@pytest.fixture
def studies(tmp_path, text):
    for name, options in {
        "plain": {"arms": ("none", "pre-rms"), "seeds": 3},
        "biased": {"arms": ("pre-rms",), "seeds": 3, "bias": False, "lr": (0.002, 0.02)},
        "other": {"arms": ("llama",), "seeds": 2},
    }.items():
        run_study(StudySettings(**TINY | options), tmp_path / name, text=text)
    return tmp_path


def test_a_comparison_says_what_differs_and_draws_it(studies, tmp_path):
    comparison = compare_studies(studies / "plain", studies / "biased", studies / "other")
    summary = comparison.summary
    assert isinstance(comparison, Comparison)
    assert repr(comparison) == "Comparison(3 studies, 1 pairs)"
    assert summary["differences"] == {
        "arms": [["none", "pre-rms"], ["pre-rms"], ["llama"]],
        "lr": [[0.002], [0.002, 0.02], [0.002]],
        "bias": [True, False, True],
        "seeds": [3, 3, 2],
    }
    assert [study["name"] for study in summary["studies"]] == ["plain", "biased", "other"]
    assert all(study["settings"]["depth"] == 1 and study["python"] for study in summary["studies"])
    (pair,) = summary["pairs"]
    assert (pair["arm"], pair["study"], pair["reference"], pair["seeds"]) == ("pre-rms", "biased", "plain", 3)
    assert len(summary["standing"]) == 4
    assert json.loads(json.dumps(summary))["pairs"][0]["seen"] == pair["seen"]
    assert comparison.table().rows[0][:3] == ["pre-rms", "biased", "plain"]
    assert comparison.findings()
    page = render_page(comparison.page())
    for shown in ("Comparison of studies", "The same arm in another study", "What differs", "none, pre-rms", "biased"):
        assert shown in page
    assert comparison.figures().keys() == {"differences"}
    assert comparison.save(tmp_path / "page.html").stat().st_size > 1000


def test_a_page_counts_the_same_pairs_everywhere():
    """A pair without a common seed has no difference to draw; it counts all the same, and the reason is told."""
    standing = [entry(study, "x", losses) for study, losses in (("a", {0: 1.0, 1: 2.0}), ("b", {0: 1.1, 1: 1.9}))]
    standing.append(entry("c", "x", {7: 1.0}))
    pairs, studies = (
        _comparison.same_arms(standing),
        [{"name": name, **dict.fromkeys(_comparison.STATED)} for name in "abc"],
    )
    ranked = _comparison.against_best(standing)
    comparison = Comparison({"studies": studies, "differences": {}, "standing": ranked, "pairs": pairs})
    level = comparison.findings()[0]
    assert level.title == "No difference seen in 1 of 2 pairs of the same arm"
    assert level.text.endswith("Not told: no seed in common (1).")
    page = render_page(comparison.page())
    assert "is seen in 0 of 2 pairs" in page
    assert "at 0 there is no difference. Not told: no seed in common (1)." in page


def test_studies_without_a_common_arm_are_ranked_together(studies):
    comparison = compare_studies(studies / "biased", studies / "other")
    assert comparison.summary["pairs"] == []
    assert {row[0] for row in comparison.table().rows} == {"pre-rms", "llama"}
    assert comparison.figures().keys() == {"differences"}


def test_studies_of_one_name_keep_their_path(studies):
    twin = studies / "again" / "plain"
    twin.parent.mkdir()
    (studies / "plain").rename(twin)
    run_study(StudySettings(**TINY | {"arms": ("none",)}), studies / "plain", text=studies / "text.txt")
    names = [study["name"] for study in compare_studies(studies / "plain", twin).summary["studies"]]
    assert names == [str(studies / "plain"), str(twin)]


def test_what_cannot_be_compared_is_one_line(studies, tmp_path):
    with pytest.raises(ek.StudyError, match="a comparison needs two studies or more"):
        compare_studies(studies / "plain", tmp_path / ".." / studies.name / "plain")
    with pytest.raises(ek.StudyError, match=r"cannot read .*summary\.json: No such file"):
        compare_studies(studies / "plain", tmp_path)
    text = tmp_path / "poem.txt"
    text.write_text("roses are red\n" * 300)
    run_study(StudySettings(**TINY | {"arms": ("none",)}), tmp_path / "poem", text=text)
    with pytest.raises(ek.StudyError, match=r"plain and poem learned different texts .*cannot be compared"):
        compare_studies(studies / "plain", tmp_path / "poem")


def test_unfinished_arms_are_shown_and_not_compared(studies):
    path = studies / "other" / "summary.json"
    summary = json.loads(path.read_text())
    for run in summary["arms"]:
        run |= {"status": "diverged", "final_validation_loss": None}
    path.write_text(json.dumps(summary))
    comparison = compare_studies(studies / "other", studies / "biased")
    last = comparison.table().rows[-1]
    assert (last[0], last[3]) == ("llama", "–")
    assert "diverged" in last[-1]
