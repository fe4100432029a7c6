"""Panels: what is drawn from which data, on which axis, and what the table beside it holds."""

import math
import sys

import pytest

from evenkeel import EvenkeelError
from evenkeel.report import (
    MUTED,
    Axis,
    Cell,
    Figure,
    Histogram,
    Panel,
    Row,
    Series,
    Style,
    Table,
    assign_styles,
    bars,
    dots,
    format_number,
    histograms,
    join_words,
    lines,
    plotly_figure,
)


def curves(panel: Panel) -> list[dict]:
    return [trace for trace in panel.spec["data"] if trace.get("mode") == "lines+markers"]


def test_every_series_looks_different_without_colour():
    styles = assign_styles(f"arm {index}" for index in range(40))
    assert len({(style.dash, style.marker) for style in styles.values()}) == 18  # all pairs that 6 and 9 allow
    assert len({(style.colour, style.dash, style.marker) for style in styles.values()}) == 40
    assert MUTED.colour not in {style.colour for style in styles.values()}
    assert all(isinstance(style, Style) for style in styles.values())


def test_a_name_keeps_its_style_in_every_panel():
    styles = assign_styles(["a", "b", "c"])
    alone = lines([Series("c", [0, 1], [1.0, 2.0])], x=Axis("x"), y=Axis("y"), styles=styles)
    assert curves(alone)[0]["line"]["color"] == styles["c"].colour
    assert curves(alone)[0]["line"]["dash"] == styles["c"].dash
    assert alone.labels[0]["color"] == styles["c"].colour


@pytest.mark.parametrize(
    ("values", "log", "expected"),
    [
        ([1.0, 7.9], None, "linear"),
        ([1.0, 8.0], None, "log"),
        ([0.0, 1000.0], None, "linear"),
        ([-1.0, 1000.0], None, "linear"),
        ([1.0, 2.0], True, "log"),
        ([1.0, 1000.0], False, "linear"),
        ([0.0, 0.0], True, "linear"),
    ],
)
def test_the_axis_is_logarithmic_where_values_span_decades(values, log, expected):
    panel = lines([Series("a", [0, 1], values)], x=Axis("x"), y=Axis("y", log=log))
    assert panel.spec["layout"]["yaxis"]["type"] == expected


def test_values_without_a_place_on_the_axis_are_gaps_and_stay_in_the_table():
    panel = lines([Series("a", [0, 1, 2, 3], [0.0, 1.0, math.nan, 100.0])], x=Axis("x"), y=Axis("y", log=True))
    assert curves(panel)[0]["y"] == [None, 1.0, None, 100.0]
    assert panel.table.rows == [[0, 0.0], [1, 1.0], [2, None], [3, 100.0]]


def test_values_below_the_floor_are_drawn_at_it_and_stay_in_the_table():
    panel = lines([Series("a", [0, 1], [1e-15, 0.1])], x=Axis("x"), y=Axis("share", floor=1e-6))
    assert curves(panel)[0]["y"] == [1e-6, 0.1]
    assert panel.table.rows[0] == [0, 1e-15]


def test_the_label_stands_at_the_last_drawable_point_in_axis_coordinates():
    panel = lines([Series("a", [0, 10, 20], [1.0, 100.0, None], note="x")], x=Axis("x"), y=Axis("y"))
    assert (panel.labels[0]["x"], panel.labels[0]["y"], panel.labels[0]["note"]) == (10, 2.0, ["x"])


def test_a_broken_curve_ends_in_a_cross():
    panel = lines([Series("a", [0, 5, 9], [1.0, 2.0, None], broken=True)], x=Axis("x"), y=Axis("y"))
    cross = panel.spec["data"][-1]
    assert (cross["marker"]["symbol"], cross["x"], cross["y"]) == ("x", [5], [2.0])


def test_a_range_is_drawn_as_a_band_around_the_curve():
    panel = lines([Series("a", [0, 1], [2.0, 3.0], low=[1.0, 2.5], high=[4.0, 3.5])], x=Axis("x"), y=Axis("y"))
    band = panel.spec["data"][0]
    assert band["fill"] == "toself"
    assert list(zip(band["x"], band["y"], strict=True)) == [(0, 4.0), (1, 3.5), (1, 2.5), (0, 1.0)]
    assert panel.table.columns == ["x", "a", "a lowest", "a highest"]


def test_panels_share_a_scale_through_included_values():
    spans = [
        lines([Series("a", [0, 1], values)], x=Axis("x"), y=Axis("y", include=[1.0, 5.0])).spec["layout"]["yaxis"]
        for values in ([1.0, 2.0], [2.0, 5.0])
    ]
    assert spans[0]["range"] == spans[1]["range"]


def test_nothing_to_draw_is_said():
    panel = lines([Series("a", [0, 1], [None, None])], x=Axis("x"), y=Axis("y"))
    assert panel.spec["data"] == []
    assert panel.spec["layout"]["annotations"][0]["text"] == "no values to draw"


def test_rows_without_a_value_keep_their_remark():
    for build in (bars, dots):
        panel = build([Row("a", 2.0), Row("b", None, note="diverged at step 3")], x=Axis("loss"), unit=" nats")
        texts = [annotation["text"] for annotation in panel.spec["layout"]["annotations"]]
        assert "2.0" in texts[0]
        assert texts[0].endswith(" nats")
        assert texts[1].endswith("diverged at step 3")
        assert [row[1] for row in panel.table.rows] == [2.0, None]


def test_bars_start_at_zero_and_dots_do_not():
    rows = [Row("a", 100.0), Row("b", 101.0)]
    assert bars(rows, x=Axis("x")).spec["layout"]["xaxis"]["range"][0] == 0
    assert dots(rows, x=Axis("x")).spec["layout"]["xaxis"]["range"][0] > 99


def test_whiskers_reach_from_low_to_high():
    panel = dots([Row("a", 2.0, low=1.5, high=4.0, points=(1.5, 4.0))], x=Axis("x"))
    whisker = panel.spec["data"][-1]["error_x"]
    assert (whisker["arrayminus"], whisker["array"]) == ([0.5], [2.0])
    assert panel.spec["data"][0]["x"] == [1.5, 4.0]


def test_a_value_to_compare_with_stands_beside_and_small_values_at_the_floor():
    rows = [Row("a", 2.0, beside=3.0), Row("b", 0.0, beside=0.5)]
    panel = dots(rows, x=Axis("error", log=True, floor=0.01))
    assert [trace["x"] for trace in panel.spec["data"] if trace["x"]] == [[3.0], [2.0], [0.5], [0.01]]
    assert panel.table.columns == ["name", "error", "lowest", "highest", "beside", "remark"]
    assert [row[1] for row in panel.table.rows] == [2.0, 0.0]


def test_a_density_integrates_to_one_and_knows_its_spread():
    histogram = Histogram("h", [-2.0, -1.0, 0.0, 2.0], [1, 1, 2])
    widths = [1.0, 1.0, 2.0]
    assert math.fsum(d * w for d, w in zip(histogram.density(), widths, strict=True)) == pytest.approx(1.0)
    # Middles -1.5, -0.5, 1, 1: mean 0, mean square (2.25 + 0.25 + 2) / 4.
    assert histogram.spread() == pytest.approx((0.0, math.sqrt(1.125)))
    assert all(math.isnan(value) for value in Histogram("empty", [0.0, 1.0], [0]).spread())


@pytest.mark.parametrize(("width", "expected"), [(2.0, "linear"), (50.0, "log")])
def test_the_density_axis_is_logarithmic_where_peaks_differ_tenfold(width, expected):
    pair = [Histogram("before", [-width, 0.0, width], [1, 1]), Histogram("after", [-1.0, 0.0, 1.0], [1, 1])]
    assert histograms(pair, x=Axis("value")).spec["layout"]["yaxis"]["type"] == expected


def test_far_tails_do_not_stretch_a_histogram():
    edges = [float(edge) for edge in range(-1000, 1001, 100)]
    counts = [1] + [0] * 8 + [100_000, 100_000] + [0] * 8 + [1]
    panel = histograms([Histogram("h", edges, counts)], x=Axis("value"))
    assert panel.spec["layout"]["xaxis"]["range"] == [-100.0, 100.0]
    assert len(panel.table.rows) == 20


@pytest.mark.parametrize(
    "build",
    [
        lambda: Series("a", [0, 1], [1.0]),
        lambda: Series("a", [0], [1.0], low=[0.5]),
        lambda: Histogram("h", [0.0, 1.0], [1, 2]),
        lambda: Table(["a", "b"], [["x"]]),
    ],
)
def test_data_that_do_not_fit_are_refused_with_the_remedy(build):
    with pytest.raises(EvenkeelError, match="give one"):
        build()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0995, "0.0995"), (9.999, "10.0"), (-1234.5, "-1,234"), (2e9, "2.00e+09"), (math.inf, "–")],
)
def test_numbers_are_written_with_three_digits(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1234567.8, 6, "1.23457e+06"),
        (1234567.8, 7, "1,234,568"),
        (1234567.8, 9, "1,234,567.80"),
        (1e9, 9, "1.00000000e+09"),
    ],
)
def test_numbers_are_plain_where_that_takes_no_more_digits(value, digits, text):
    assert format_number(value, digits=digits) == text


def test_words_are_joined_as_in_a_sentence():
    assert [join_words("abc"[:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_figure_holds_its_panels_and_a_cell_is_text_number_or_nothing():
    panel = lines([Series("a", [0], [1.0])], x=Axis("x"), y=Axis("y"))
    figure = Figure(name="f", title="t", caption="c", panels=[panel])
    assert figure.panels[0].table.rows == [[0, 1.0]]
    assert all(isinstance(cell, Cell) for cell in ("text", 1.0, None))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(EvenkeelError, match=r"evenkeel\[report\]"):
        lines([Series("a", [0], [1.0])], x=Axis("x"), y=Axis("y"))


def test_points_that_a_logarithmic_axis_lacks_are_left_out():
    panel = dots([Row("a", 1.0, points=(-1.0, 0.5)), Row("b", 100.0)], x=Axis("loss"))
    assert panel.spec["layout"]["xaxis"]["type"] == "log"
    assert panel.spec["data"][0]["x"] == [0.5]


def test_values_above_the_ceiling_are_arrows_and_lost_positions_crosses():
    series = [Series("a", [1, 10], [2.0, 50.0]), Series("b", [1], [1.0], lost=[10])]
    panel = lines(
        series, x=Axis("rate", log=True, at=[1, 10]), y=Axis("loss", log=False, ceiling=3.0, level=("c", 1.5))
    )
    marks = {trace["marker"]["symbol"]: trace for trace in panel.spec["data"] if trace["mode"] == "markers"}
    assert (marks["triangle-up-open"]["x"], marks["triangle-up-open"]["y"]) == ([10], [3.0])
    assert (marks["x"]["x"], marks["x"]["y"]) == ([10], [3.0])
    layout = panel.spec["layout"]
    assert layout["yaxis"]["range"][1] < 3.2
    assert (layout["xaxis"]["type"], layout["xaxis"]["tickvals"], layout["xaxis"]["ticktext"]) == (
        "log",
        [1, 10],
        ["1", "10"],
    )
    assert (layout["shapes"][0]["y0"], layout["annotations"][0]["text"]) == (1.5, "c")
    assert panel.table.rows[1][:2] == [10, 50.0]
    assert [label["x"] for label in panel.labels] == [1, 0]


def test_a_series_that_was_lost_everywhere_keeps_its_label():
    panel = lines([Series("a", [], [], lost=[1, 2]), Series("b", [1, 2], [1.0, 2.0])], x=Axis("x"), y=Axis("y"))
    assert [(label["name"], label["x"], label["y"]) for label in panel.labels] == [("a", 2, 2.0), ("b", 2, 2.0)]


def test_a_level_comes_along_into_a_notebook():
    panel = lines([Series("a", [1, 2], [1.0, 2.0])], x=Axis("x"), y=Axis("y", level=("level", 1.5)))
    figure = plotly_figure(Figure("f", "t", "c", [panel, panel]))
    assert [shape.yref for shape in figure.layout.shapes] == ["y", "y2"]
