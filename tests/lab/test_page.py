"""The page of a study says what its numbers say, for every outcome that a study can have."""

import json
import re

import pytest
from page_summaries import LAYOUT, histogram, run, summary

from evenkeel import StudyError
from evenkeel.lab.studies import find, ranking_table, study_page, write_report
from evenkeel.report import Figure, Page, render_page

FIGURES = ["map", "ranking", "loss", "residual", "around-norms", "distribution", "centring", "cost"]
STATUSES = ["finished", "diverged", "running"]
RATES = (0.0002, 0.002, 0.02)


def figures(page: Page) -> dict[str, Figure]:
    return {figure.name: figure for figure in page.figures()}


def words(page: Page) -> str:
    """Everything that the page claims in words."""
    parts = [*page.lead, *(text for finding in page.findings for text in (finding.title, finding.text))]
    parts += [text for section in page.sections for text in section.paragraphs]
    parts += [text for figure in page.figures() for text in (figure.title, figure.caption)]
    return "\n".join(parts)


def test_a_full_study_has_every_figure():
    page = study_page(summary())
    assert list(figures(page)) == FIGURES
    assert [key.name for key in page.keys] == list(LAYOUT)
    assert "An arm is one variant" in page.lead[0]
    assert "was trained in 6 arms at the rate 0.002 with one seed, 300 steps each" in page.lead[0]
    assert "11.0 MB for training" in page.lead[0]


def test_the_picture_is_a_map_of_rates_with_diverged_trainings_marked():
    data = summary(rates=RATES, seeds=2, statuses={("none", 0.02): "diverged", ("pre-rms", 0.0002): "running"})
    page = study_page(data)
    headings = [panel.heading for panel in page.picture.panels]
    assert headings[0] == "Final validation loss at learning rates from 0.0002 to 0.02"
    assert headings[2].startswith("Residual stream before training: grows 1.7-fold without norm")
    spec = page.picture.panels[0].spec
    assert spec["layout"]["xaxis"]["type"] == "log"
    assert spec["layout"]["xaxis"]["ticktext"] == ["0.0002", "0.002", "0.02"]
    crosses = [(trace["name"], trace["x"]) for trace in spec["data"] if trace.get("marker", {}).get("symbol") == "x"]
    assert crosses == [("none", [0.02])]
    row = dict(zip(page.picture.panels[0].table.columns, page.picture.panels[0].table.rows[0], strict=True))
    assert row["peri-rms"] == pytest.approx(1.43 + 0.1 - 0.01)
    assert row["pre-rms"] is None
    notes = {label["name"]: " ".join(label["note"]) for label in page.picture.panels[0].labels}
    assert notes["none"] == "ends at 2.190; diverges at 0.02"


def test_losses_far_above_byte_frequencies_are_arrows_at_the_top():
    data = summary(("none", "pre-rms"), rates=RATES)
    data["corpus"]["frequency_loss"] = 2.0
    for arm in data["arms"]:
        if arm["name"] == "none":
            arm["final_validation_loss"] = 188.0
    (panel, *_) = study_page(data).picture.panels
    assert panel.spec["layout"]["yaxis"]["range"][1] < 2.7
    (arrows,) = [trace for trace in panel.spec["data"] if trace.get("marker", {}).get("symbol") == "triangle-up-open"]
    assert (arrows["name"], arrows["x"]) == ("none", list(RATES))
    assert panel.table.rows[0][1] == 188.0
    assert panel.spec["layout"]["shapes"][0]["y0"] == 2.0


def test_the_details_are_those_of_each_arm_s_best_rate():
    found = figures(study_page(summary(("none", "pre-rms"), rates=RATES)))
    assert found["loss"].title == "pre-rms ends at the lowest validation loss, 1.430 nats per byte"
    (table, by_rate) = study_page(summary(("none", "pre-rms"), rates=RATES)).sections[0].tables
    assert [row[1:4] for row in table.rows] == [["pre-rms", "0.002", "1.430"], ["none", "0.002", "2.180"]]
    assert by_rate.columns == ["arm", "0.0002", "0.002", "0.02"]
    assert by_rate.rows[1] == ["pre-rms", "1.530", "1.430", "1.530"]


def test_a_key_says_and_draws_what_an_arm_is():
    keys = {key.name: key for key in study_page(summary(("none", "post-layer", "peri-rms"))).keys}
    assert keys["peri-rms"].text == "RMSNorm before and after each sublayer (Peri)"
    assert [key.drawing.count(">N<") for key in keys.values()] == [0, 1, 2]
    assert keys["none"].text == "no norm anywhere"


def test_the_lowest_comparable_arm_is_named_and_the_leaking_one_never():
    # The last validation of seed 0 is the table's value minus 0.02; pre-batch ends at 1.08 but leaks.
    found = figures(study_page(summary()))
    assert found["loss"].title == "peri-rms ends at the lowest validation loss, 1.410 nats per byte"
    assert found["ranking"].title == "peri-rms ranks first, 0.020 nats per byte below pre-rms"
    assert "from peri-rms to the arm without norm the final loss rises by 0.770" in found["loss"].caption


def test_the_leak_is_said_beside_the_curve_in_the_ranking_and_in_the_table():
    data = summary()
    found = figures(study_page(data))
    for panel in found["loss"].panels:
        notes = {label["name"]: " ".join(label["note"]) for label in panel.labels}
        assert [name for name, note in notes.items() if "leaks: not comparable" in note] == ["pre-batch"]
    rows = [row["text"] for row in found["ranking"].panels[0].spec["layout"]["annotations"]]
    assert [row for row in rows if "leaks: not comparable" in row] == [row for row in rows if "pre-batch" in row]
    for name in ("loss", "ranking"):
        assert "leaks information across positions and examples" in found[name].caption
    assert ["–", "pre-batch", "1.080", "–", "leaks: not comparable"] in ranking_table(data).rows


def test_the_ranking_table_is_in_order_with_the_unranked_last():
    rows = ranking_table(summary(statuses={"none": "diverged", "pre-rms": "running"})).rows
    assert [(row[0], row[1]) for row in rows] == [
        ("1", "peri-rms"),
        ("2", "pre-layer"),
        ("3", "post-layer"),
        ("–", "pre-batch"),
        ("–", "none"),
        ("–", "pre-rms"),
    ]
    assert [row[-1] for row in rows[3:]] == ["leaks: not comparable", "diverged at step 60", "unfinished: step 150"]


def test_one_seed_is_said_to_give_no_uncertainty():
    assert "One seed an arm gives no uncertainty" in figures(study_page(summary()))["ranking"].caption


@pytest.mark.parametrize(("shift", "said"), [(0.0, "is no difference seen"), (0.5, "is more than the")])
def test_several_seeds_are_judged_by_their_spread(shift, said):
    data = summary(("pre-rms", "peri-rms"), seeds=3)  # 1.43 to 1.47 and 1.41 to 1.45
    for arm in data["arms"]:
        if arm["name"] == "pre-rms":
            arm["final_validation_loss"] += shift
    caption = figures(study_page(data))["ranking"].caption
    assert "differ by a standard deviation of 0.020" in caption
    assert said in caption


def test_several_seeds_are_drawn_as_mean_and_range():
    panel = figures(study_page(summary(("pre-rms",), seeds=3)))["loss"].panels[0]
    last = panel.table.rows[-1]
    assert panel.table.columns == ["training step", "pre-rms", "pre-rms lowest", "pre-rms highest"]
    assert last == pytest.approx([300, 1.45, 1.43, 1.47])


def test_a_tie_is_a_tie():
    data = summary(("pre-layer", "pre-rms"))
    for arm in data["arms"]:
        arm["final_validation_loss"] = 1.5
    found = figures(study_page(data))
    assert found["loss"].title == "No difference seen between pre-layer and pre-rms, which end lowest"
    assert found["ranking"].title == "2 arms share the first place: no difference seen between them"
    assert [row[0] for row in ranking_table(data).rows] == ["1", "1"]


def test_a_difference_is_that_of_the_numbers_shown():
    data = summary(("pre-layer", "pre-rms"))
    for arm, loss in zip(data["arms"], (1.4104, 1.4106), strict=True):
        arm["final_validation_loss"] = loss
    title = figures(study_page(data))["ranking"].title
    assert title == "pre-layer ranks first, 0.001 nats per byte below pre-rms"


def test_gradients_are_summed_over_a_block():
    # Block b (from 0) has norm sqrt(3² + 4²) × decay^-b: 5 in block 1.
    panel = figures(study_page(summary()))["map"].panels[1]
    first = dict(zip(panel.table.columns, panel.table.rows[0], strict=True))
    assert first["pre-rms"] == pytest.approx(5.0)
    assert panel.spec["layout"]["yaxis"]["type"] == "log"


def test_residual_growth_is_the_ratio_over_the_blocks():
    # pre-rms grows by 1.31 a block over 4 blocks; post-layer stays.
    figure = figures(study_page(summary()))["residual"]
    assert figure.title.startswith("pre-rms changes the RMS of the residual stream most, to 2.94 times")
    assert "at initialization the ratio ranges from 1.00 (post-layer) to 2.94 (pre-rms)" in figure.caption
    assert [panel.heading for panel in figure.panels] == ["At initialization", "After step 300"]
    spans = [panel.spec["layout"]["yaxis"]["range"] for panel in figure.panels]
    assert spans[0] == spans[1]


def test_a_residual_stream_that_keeps_its_size_is_said_to():
    figure = figures(study_page(summary(("post-layer",))))["residual"]
    assert figure.title == "The residual stream keeps its RMS through the blocks of every arm, after step 300"


def test_the_share_of_the_mean_is_its_maximum_with_its_place():
    # 0.002 × layer 5 of 5 × 2.5 after training, divided by post-layer's growth of 1.
    figure = figures(study_page(summary()))["centring"]
    assert figure.title == (
        "The mean carries at most 2.50 % of the residual stream's power, after step 300 (post-layer, after block 4)"
    )


def test_every_norm_s_input_and_output_is_shown():
    # two norms a block of four, at RMS 0.9 × 2.5 × growth^block in the last probe
    figure = figures(study_page(summary()))["around-norms"]
    assert figure.title == "Norms bring values of RMS 2.25 to 5.06 to 1.00 to 1.00 (after step 300)"
    before = figure.panels[0].table
    assert before.columns == ["norm, in the order of the forward pass", *list(LAYOUT)[1:]]
    assert len(before.rows) == 8
    assert before.rows[-1][3] == pytest.approx(0.9 * 2.5 * 1.31**3)


def test_the_widest_input_of_each_kind_of_norm_is_shown():
    # RMS 0.9 × 2.5 × growth³ before the last block's norm; the histogram is cut at five deviations.
    figure = figures(study_page(summary()))["distribution"]
    assert [panel.heading.partition(",")[0] for panel in figure.panels] == ["pre-layer", "pre-rms", "pre-batch"]
    assert figure.title.startswith("The widest input of a norm has standard deviation 5.06, its output 1.00 (pre-rms")


def test_cost_is_relative_to_the_arm_without_norm():
    # A step takes 50 ms without norm; a share of 24 % in norms makes it 1 / 0.76 times as long.
    figure = figures(study_page(summary()))["cost"]
    assert figure.title == "Norms take 7.00 to 24.0 % of a training step, most in pre-batch"
    rows = [row["text"] for row in figure.panels[0].spec["layout"]["annotations"]]
    assert rows[0] == "<b>none</b>  50.0 ms"
    assert rows[-1] == "<b>pre-batch</b>  65.8 ms · × 1.32"
    assert figure.panels[0].table.rows[0][2:4] == pytest.approx([1000 * 0.05 * 0.985, 1000 * 0.05 * 1.015])
    assert "differ" not in figure.caption


def test_unlike_arms_are_said():
    data = summary(("pre-layer", "pre-rms"))
    data["arms"][1] |= {"feed_forward": "swiglu"}
    assert "The arms also differ in feed-forward" in figures(study_page(data))["cost"].caption


def test_the_training_curve_is_thinned_by_means():
    data = summary(("pre-rms",), steps=800)
    losses = data["arms"][0]["train"]["loss"]
    panel = figures(study_page(data))["loss"].panels[1]
    assert panel.heading == "Training loss, means of 40 points"
    assert len(panel.table.rows) == 20
    assert panel.table.rows[0] == [40, pytest.approx(sum(losses[:40]) / 40)]


@pytest.mark.parametrize("rates", [RATES, RATES[:1]])
def test_losses_are_in_the_unit_that_is_learned(rates):
    data = summary(rates=rates, seeds=2)
    data["corpus"] |= {"unit": "token", "vocabulary": 50_257, "train_tokens": 2_500_000}
    data["findings"] = find(data)
    page = study_page(data)
    assert "2.5 M tokens for training, a vocabulary of 50,257" in page.lead[0]
    drawn = json.dumps(
        [panel.spec for figure in [page.picture, *page.figures()] for panel in figure.panels], default=str
    )
    titles = [table.title for section in page.sections for table in section.tables]
    assert "nats per token" in drawn
    assert "  " not in words(page)
    assert "byte" not in drawn + words(page) + " ".join(titles)


def test_recorded_findings_come_first_and_unchanged():
    data = summary(findings=[{"title": "First.", "text": "With 1.5."}, {"title": "Second", "text": "More."}])
    assert [(item.title, item.text) for item in study_page(data).findings] == [
        ("First", "With 1.5."),
        ("Second", "More."),
    ]


@pytest.mark.parametrize("first", STATUSES)
@pytest.mark.parametrize("second", STATUSES)
def test_every_pair_of_fates_gives_a_true_page(first, second):
    data = summary(("none", "pre-rms"), statuses={"none": first, "pre-rms": second})
    page = study_page(data)
    text = words(page)
    assert ("The arm without norm diverged at step 60" in text) == (first == "diverged")
    assert ("pre-rms has not finished (step 150)" in text) == (second == "running")
    assert ("Every arm diverged" in text) == (first == second == "diverged")
    assert (" ends at " in text) == ("finished" in (first, second))
    assert ("ranks first" in text) == (first == second == "finished")
    assert "none diverged" not in text
    assert not re.search(r"\bnan\b|\binf\b|None", text)
    assert len(render_page(page)) < 5e6


def test_a_diverged_curve_ends_in_a_cross_and_other_seeds_stand_for_their_arm():
    data = summary(("none", "pre-rms"), statuses={"none": "diverged"})
    data["arms"] += [run("pre-rms", 1, status="diverged"), run("pre-rms", 2)]
    panel = figures(study_page(data))["loss"].panels[0]
    crosses = [trace["name"] for trace in panel.spec["data"] if trace.get("marker", {}).get("symbol") == "x"]
    assert crosses == ["none"]
    assert {label["name"]: " ".join(label["note"]) for label in panel.labels} == {
        "none": "diverged at step 60",
        "pre-rms": "1 of 3 runs diverged",
    }
    assert panel.table.rows[-1][2] == pytest.approx((1.43 + 1.47) / 2)


def test_an_arm_without_the_last_probe_is_named():
    caption = figures(study_page(summary(statuses={"none": "diverged"})))["residual"].caption
    assert "The arm without norm has no measurement after step 300." in caption


def test_missing_measurements_leave_out_their_figures_and_name_them():
    data = summary(("pre-rms",))
    data["arms"][0]["probes"], data["costs"] = [], {}
    page = study_page(data)
    assert list(figures(page)) == ["map", "ranking", "loss"]
    assert len(page.picture.panels) == 1
    assert "without a figure: residual growth, values around the norms" in page.sections[-1].paragraphs[0]


@pytest.mark.parametrize("change", [{"arms": []}, {"arms": [], "settings": {}, "corpus": {}, "machine": {}}])
def test_a_study_without_arms_says_so(change):
    page = study_page(summary() | change)
    assert page.findings[0].title == "Nothing has been measured yet"
    assert figures(page) == {}


def test_null_and_empty_measurements_are_no_values():
    data = summary(("pre-rms",))
    for probe in data["arms"][0]["probes"]:
        for row in probe["residual"]:
            row["rms"] = row["mean2_over_rms2"] = None
        for row in probe["gradients"]:
            row["norm"] = None
        for row in probe["norms"]:
            row["before"] = row["after"] = None
        empty = histogram(1.0) | {"counts": [0] * 40}
        probe["widest"] = {"norm": "n", "block": 0, "before": empty, "after": empty}
    page = study_page(json.loads(json.dumps(data)))
    assert list(figures(page)) == ["map", "ranking", "loss", "cost"]


def test_another_format_is_refused():
    with pytest.raises(StudyError, match="format 1"):
        study_page({"format": 1})


def test_a_large_study_stays_under_five_megabytes(tmp_path):
    names = [f"arm-{index}" for index in range(20)]
    path = write_report(summary((*LAYOUT, *names), seeds=3, steps=2000, depth=24), tmp_path / "report.html")
    assert path.stat().st_size < 5e6
