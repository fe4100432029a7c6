"""The page of a study says what its numbers say, for every outcome that a study can have."""

import json
import re

import pytest
from page_summaries import LAYOUT, histogram, run, summary

from evenkeel import StudyError
from evenkeel.lab.studies import ranking_table, study_page, write_report
from evenkeel.report import Figure, Page, render_page

FIGURES = ["ranking", "loss", "gradients", "residual", "distribution", "centring", "updates", "cost"]
STATUSES = ["finished", "diverged", "running"]


def figures(page: Page) -> dict[str, Figure]:
    return {figure.name: figure for section in page.sections for figure in section.figures}


def words(page: Page) -> str:
    """Everything that the page claims in words."""
    parts = [*page.lead, *(text for finding in page.findings for text in (finding.title, finding.text))]
    for section in page.sections:
        parts += [*section.paragraphs, *(text for figure in section.figures for text in (figure.title, figure.caption))]
    return "\n".join(parts)


def test_a_full_study_has_every_figure():
    page = study_page(summary())
    assert list(figures(page)) == FIGURES
    assert "6 arms: none, post-layer, pre-layer, pre-rms, peri-rms and pre-batch" in page.lead[0]
    assert "11.0 MB for training" in page.lead[0]


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


@pytest.mark.parametrize(("shift", "said"), [(0.0, "overlap, so these runs do not tell"), (0.5, "do not overlap")])
def test_several_seeds_are_judged_by_their_ranges(shift, said):
    data = summary(("pre-rms", "peri-rms"), seeds=3)  # ranges 1.43 to 1.47 and 1.41 to 1.45
    for arm in data["arms"]:
        if arm["name"] == "pre-rms":
            arm["final_validation_loss"] += shift
    assert said in figures(study_page(data))["ranking"].caption


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
    assert found["loss"].title == "pre-layer and pre-rms end at the lowest validation loss, 1.500 nats per byte"
    assert found["ranking"].title == "pre-layer and pre-rms share the first place to three decimals"


def test_a_difference_is_that_of_the_numbers_shown():
    data = summary(("pre-layer", "pre-rms"))
    for arm, loss in zip(data["arms"], (1.4104, 1.4106), strict=True):
        arm["final_validation_loss"] = loss
    title = figures(study_page(data))["ranking"].title
    assert title == "pre-layer ranks first, 0.001 nats per byte below pre-rms"


def test_gradients_are_summed_over_a_block_and_their_unevenness_is_measured():
    # Block b (from 0) has norm sqrt(3² + 4²) × decay^-b: 5 in block 1; pre-batch decays fastest, 1.4³ over 4 blocks.
    figure = figures(study_page(summary()))["gradients"]
    first = dict(zip(figure.panels[0].table.columns, figure.panels[0].table.rows[0], strict=True))
    assert first["pre-rms"] == pytest.approx(5.0)
    assert figure.title == "pre-batch has the most uneven gradient at initialization: block 1's is 2.74 times block 4's"
    assert "The most even is peri-rms, where block 1's gradient is 1.06 times block 4's." in figure.caption
    assert figure.panels[0].spec["layout"]["yaxis"]["type"] == "log"


def test_even_gradients_are_called_even():
    data = summary(("pre-layer", "pre-rms"))
    for arm in data["arms"]:
        for row in arm["probes"][0]["gradients"]:
            row["norm"] = 1.0
    title = figures(study_page(data))["gradients"].title
    assert title == "The gradient is nearly even across blocks in every arm, at initialization"


def test_zero_gradients_are_named_where_the_axis_cannot_show_them():
    data = summary(("none", "pre-rms"))
    for row in data["arms"][0]["probes"][0]["gradients"]:
        row["norm"] = 0.0
    caption = figures(study_page(data))["gradients"].caption
    assert "Exactly zero gradients, which a logarithmic axis cannot show, occur in the arm without norm." in caption


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


def test_the_widest_input_of_each_kind_of_norm_is_shown():
    # RMS 0.9 × 2.5 × growth³ before the last block's norm; the histogram is cut at five deviations.
    figure = figures(study_page(summary()))["distribution"]
    assert [panel.heading.partition(",")[0] for panel in figure.panels] == ["pre-layer", "pre-rms", "pre-batch"]
    assert figure.title.startswith("The widest input of a norm has standard deviation 5.06, its output 1.00 (pre-rms")


def test_cost_is_relative_to_the_arm_without_norm():
    # A step takes 50 ms without norm; a share of 24 % in norms makes it 1 / 0.76 times as long.
    figure = figures(study_page(summary()))["cost"]
    assert figure.title == (
        "A step takes up to 1.32 times that of the arm without norm (pre-batch), "
        "and norms take up to 24.0 % of a step (pre-batch)"
    )
    assert "The shortest step is that of the arm without norm: 50.0 ms." in figure.caption
    assert "differ" not in figure.caption


def test_unlike_arms_and_disturbed_timings_are_said():
    data = summary(("pre-layer", "pre-rms"))
    data["arms"][1] |= {"feed_forward": "swiglu", "parameters": 1}
    data["arms"][0]["cost"]["norm_share"] = 5.3
    caption = figures(study_page(data))["cost"].caption
    assert "The arms also differ in feed-forward and number of parameters" in caption
    assert "A share above 100 % (pre-layer) means that timing was disturbed" in caption


def test_the_extreme_updates_are_named():
    # 0.002 × (1 + index % 3) × growth^block / 2.5: largest for pre-rms' last attention, index 11, 3 × 0.0008 × 1.31³.
    figure = figures(study_page(summary()))["updates"]
    assert figure.title.startswith("Updates after step 300 are at most 0.00540 of the weights")
    assert figure.title.endswith("(attention of block 4 in pre-rms)")
    headings = ["Attention", "Feed-forward", "Norms", "Outside the blocks"]
    assert [panel.heading for panel in figure.panels] == headings


def test_the_training_curve_is_thinned_by_means():
    data = summary(("pre-rms",), steps=800)
    losses = data["arms"][0]["train"]["loss"]
    panel = figures(study_page(data))["loss"].panels[1]
    assert panel.heading == "Training loss, means of 5 points"
    assert len(panel.table.rows) == 160
    assert panel.table.rows[0] == [5, pytest.approx(sum(losses[:5]) / 5)]


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
        "pre-rms": "1 of 3 seeds diverged",
    }
    assert panel.table.rows[-1][2] == pytest.approx((1.43 + 1.47) / 2)


def test_an_arm_without_the_last_probe_is_named():
    caption = figures(study_page(summary(statuses={"none": "diverged"})))["residual"].caption
    assert "The arm without norm has no measurement after step 300." in caption


def test_missing_measurements_leave_out_their_figures_and_name_them():
    data = summary(("pre-rms",))
    data["arms"][0] |= {"probes": [], "cost": None}
    page = study_page(data)
    assert list(figures(page)) == ["ranking", "loss"]
    assert "without a figure: gradient norms, residual growth" in page.sections[-1].paragraphs[0]


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
        probe["histograms"] = [{"norm": "n", "block": 0, "before": histogram(1.0) | {"counts": [0] * 40}}]
        probe["histograms"][0]["after"] = probe["histograms"][0]["before"]
    page = study_page(json.loads(json.dumps(data)))
    assert list(figures(page)) == ["ranking", "loss", "updates", "cost"]


def test_another_format_is_refused():
    with pytest.raises(StudyError, match="format 2"):
        study_page({"format": 2})


def test_a_large_study_stays_under_five_megabytes(tmp_path):
    names = [f"arm-{index}" for index in range(20)]
    path = write_report(summary((*LAYOUT, *names), seeds=3, steps=2000, depth=24), tmp_path / "report.html")
    assert path.stat().st_size < 5e6
