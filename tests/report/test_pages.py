"""Pages, tables and files: self-contained, escaped, whole."""

import base64
import gzip
import io
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from page_elements import Elements
from rich.cells import cell_len

from evenkeel import EvenkeelError, InvalidArgumentError
from evenkeel.report import (
    COLOURS,
    Axis,
    Figure,
    Finding,
    Intervals,
    Key,
    Page,
    Section,
    Series,
    Sparkline,
    Style,
    Table,
    embed_json,
    lines,
    print_table,
    render_document,
    render_page,
    write_page,
    write_text_atomically,
)

HOSTILE = "</script><img src=x onerror=alert(1)> & <b>\"bold\"</b> '[red]'"


def example_page(name: str = "a") -> Page:
    panel = lines([Series(name, [0, 1], [2.0, 1.0], note=name)], x=Axis(name), y=Axis(name), heading=name)
    figure = Figure(name="curve", title=name, caption=name, panels=[panel])
    section = Section(name, [name], [Table([name], [[name]], title=name)], [figure])
    return Page(name, [name], [Finding(name, name)], [section], name)


def opening_page(name: str = "a") -> Page:
    """The example with a picture that it opens with, and a legend."""
    panels = [lines([Series(name, [0, 1], [2.0, 1.0])], x=Axis(name), y=Axis(name), heading=name) for _ in range(2)]
    picture = Figure(name="picture", title=name, caption=name, panels=panels)
    style = Style(colour=COLOURS[0], dash="solid", marker="circle", glyph="●")
    keys = [Key(name, name, style, '<svg role="img"></svg>'), Key(name, name)]
    findings = [Finding(f"{name}{number}", name) for number in range(4)]
    page = example_page(name)
    return Page(page.title, page.lead, findings, page.sections, page.footer, picture, keys)


def test_a_page_with_a_picture_opens_with_its_message_and_three_findings():
    html = render_page(opening_page("m"))
    elements = Elements(html)
    assert [tag for tag, _ in elements.found].count("svg") == 1
    plots = [attrs for _, attrs in elements.found if attrs.get("class") == "plot"]
    assert [plot["data-panel"] for plot in plots] == ["0", "1", "2"]
    top = re.search(r'<ol class="top">(.*?)</ol>', html, flags=re.DOTALL).group(1)
    assert re.findall(r"<li>(.*?)</li>", top) == ["m0.", "m1.", "m2."]
    assert html.index("<h1") < html.index('class="opening"') < html.index('class="keys"') < html.index('id="findings"')
    # black is the colour that needs a partner on the dark ground
    assert 'style="color: var(--series0)"' in html


def test_a_headline_keeps_its_words_and_breaks_at_no_hyphen():
    html = render_page(opening_page("without norm peri-rms learns"))
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", html, flags=re.DOTALL).group(1)
    assert heading == 'without norm <span class="word">peri-rms</span> learns'


def test_hostile_names_are_text_everywhere():
    elements = Elements(render_page(opening_page(HOSTILE)))
    tags = [tag for tag, _ in elements.found]
    assert "img" not in tags
    assert "b" not in tags
    assert tags.count("script") == 3
    panel = json.loads(elements.scripts["payload"])["panels"][0]
    # Plotly reads tags in labels, so there a name arrives escaped once.
    assert panel["labels"][0]["name"].startswith("&lt;/script&gt;&lt;img")
    assert panel["spec"]["data"][0]["name"] == HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def test_nothing_is_loaded_from_outside():
    html = render_page(example_page())
    elements = Elements(html)
    addresses = [attrs[key] for _, attrs in elements.found for key in ("src", "href") if key in attrs]
    assert len(addresses) == 2  # the empty icon and one download
    assert all(address.startswith("data:") for address in addresses)
    assert not re.search(r"@import|url\(", html)
    policy = next(attrs["content"] for tag, attrs in elements.found if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_a_document_frames_what_it_is_given():
    body = f'<main><button id="theme"></button></main><script id="seed">{embed_json({"name": HOSTILE})}</script>'
    html = render_document(HOSTILE, body, style=".own {}", script="own();")
    elements = Elements(html)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert "img" not in [tag for tag, _ in elements.found]
    assert json.loads(elements.scripts["seed"]) == {"name": HOSTILE}
    assert html.index("--surface") < html.index(".own {}") < html.index("evenkeelTheme = ") < html.index("own();")


def test_the_download_is_the_table():
    elements = Elements(render_page(example_page()))
    link = next(attrs for tag, attrs in elements.found if tag == "a")
    assert link["download"] == "curve-a.csv"
    assert base64.b64decode(link["href"].partition("base64,")[2]).decode() == "a,a\n0,2.0\n1,1.0\n"


def test_the_drawing_library_is_embedded_whole_and_the_page_stays_small():
    html = render_page(example_page())
    source = gzip.decompress(base64.b64decode(Elements(html).scripts["plotly"])).decode()
    assert "plotly.js" in source[:200]
    assert 1e6 < len(html.encode()) < 5e6
    assert html == render_page(example_page())


def test_a_page_without_figures_carries_no_drawing_library():
    assert len(render_page(Page("t", [], [], [Section("s", ["p"])]))) < 100_000


def test_a_reader_without_sight_or_script_gets_everything():
    elements = Elements(render_page(example_page()))
    found = elements.found
    assert next(attrs for tag, attrs in found if tag == "html")["lang"] == "en"
    plot = next(attrs for _, attrs in found if attrs.get("class") == "plot")
    assert plot["role"] == "img"
    assert plot["aria-label"] == "a: a"
    ids = {attrs["id"] for _, attrs in found if attrs.get("id")}
    assert plot["aria-describedby"] in ids
    tags = [tag for tag, _ in found]
    assert [tags.count(tag) for tag in ("h1", "noscript", "details", "table")] == [1, 2, 1, 2]


def test_long_tables_are_cut_on_the_page_only():
    panel = lines([Series("a", range(500), [1.0] * 500)], x=Axis("x"), y=Axis("y"))
    html = render_page(Page("t", [], [], [Section("s", figures=[Figure("f", "t", "c", [panel])])]))
    assert "The first 200 of 500 rows" in html
    assert html.count("<tr>") == 201
    link = next(attrs for tag, attrs in Elements(html).found if tag == "a")
    assert base64.b64decode(link["href"].partition("base64,")[2]).count(b"\n") == 501


def test_non_finite_numbers_become_null():
    panel = lines([Series("a", [0, 1], [float("nan"), 1.0])], x=Axis("x"), y=Axis("y"))
    panel.hints["loose"] = float("inf")
    html = render_page(Page("t", [], [], [Section("s", figures=[Figure("f", "t", "c", [panel])])]))
    assert json.loads(Elements(html).scripts["payload"])["panels"][0]["hints"]["loose"] is None


def test_a_written_page_is_the_rendered_page(tmp_path):
    path = write_page(example_page(), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == render_page(example_page())
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    write_text_atomically(target, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EvenkeelError, match="No space left on device") as caught:
        write_text_atomically(target, "new")
    assert isinstance(caught.value.__cause__, OSError)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


KILLED = """
import os, sys
from evenkeel.report import write_text_atomically
os.fsync = lambda descriptor: os._exit(9)
write_text_atomically(sys.argv[1], "cut off")
"""


def test_the_next_write_replaces_what_a_killed_one_left(tmp_path):
    target = tmp_path / "report.html"
    assert subprocess.run([sys.executable, "-c", KILLED, target], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    write_text_atomically(target, "whole")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report.html", "whole")]


@pytest.mark.parametrize("place", ["absent/report.html", "file/report.html"])
def test_an_impossible_place_is_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(EvenkeelError, match="choose a directory") as caught:
        write_text_atomically(tmp_path / place, "text")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["", "/"])
def test_a_path_without_a_name_is_an_error_of_ours(place):
    with pytest.raises(InvalidArgumentError, match=r"cannot write '/?': expected the path of a file"):
        write_text_atomically(place, "text")


def test_terminal_tables_fit_and_carry_no_markup():
    stream = io.StringIO()
    wide = Table(["arm", "remark"], [["[bold]x[/bold]", "word " * 60], ["y", HOSTILE]], title="[red]title")
    print_table(wide, file=stream)
    text = stream.getvalue()
    assert max(cell_len(line) for line in text.splitlines()) <= 100
    assert "[bold]x[/bold]" in text
    assert "[red]title" in text
    assert "\x1b" not in text


def test_redirected_tables_have_the_full_width_and_whole_names(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    name = "a-name-of-an-arm with spaces"
    print_table(Table(["rank", "arm", "range", "remark"], [["–", name, "1 to 2", "word " * 60]]), file=stream)
    lengths = [cell_len(line) for line in stream.getvalue().splitlines()]
    assert max(lengths) == 100
    assert sum(name in line for line in stream.getvalue().splitlines()) == 1


def test_a_name_wider_than_the_table_is_folded_not_cut():
    stream = io.StringIO()
    print_table(Table(["arm", "remark"], [["x" * 300, "y"]]), file=stream)
    assert stream.getvalue().count("x") == 300


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (1700000000.25, math.nan, "1.700e+09"),
        (1700000000.25, 1e-3, "1,700,000,000.25"),
        (1700000000.123456, 1e-3, "1,700,000,000.123"),
        (-1700000000.123456, 0.05, "-1,700,000,000.12"),
        (1700000000.25, 0, "1,700,000,000.25"),
        (3.0, 0, "3.000"),
        (0.0, 1e-9, "0"),
        (170.123456, 0.01, "170.12"),
        (1.23456e-12, 0.01, "1.235e-12"),
        (1.23456789e-7, 1e-13, "1.234568e-07"),
        (1e300 / 3, 5e-324, "3.33333333333333e+299"),
    ],
)
def test_numbers_are_shown_to_the_step_of_their_row(value, step, text):
    assert Table(["n"], [[value]], steps=[step]).texts() == [[text]]


def test_steps_are_one_a_row():
    with pytest.raises(InvalidArgumentError, match="2 rows, but 1 steps; give one for every row"):
        Table(["n"], [[1.0], [2.0]], steps=[0.1])


@pytest.mark.parametrize("columns", [12, 40])
def test_numbers_too_wide_for_one_table_stand_in_several_each_with_the_names(columns):
    texts = [[f"{10.0 ** (9 + row) + column:,.1f}" for column in range(columns)] for row in range(2)]
    stream = io.StringIO()
    print_table(
        Table(["name", *(f"c{i}" for i in range(columns))], [["one", *texts[0]], ["two", *texts[1]]]), file=stream
    )
    printed = stream.getvalue()
    assert max(cell_len(line) for line in printed.splitlines()) <= 100
    words = printed.split()
    assert words.count("one") == words.count("two") == words.count("name") > 1
    for row, name in enumerate(("one", "two")):
        found = [word for line in printed.splitlines() if line.split()[:1] == [name] for word in line.split()[1:]]
        assert found == texts[row]


def test_one_number_wider_than_the_terminal_is_printed_all_the_same():
    stream = io.StringIO()
    print_table(Table(["n", "m"], [["1" * 150, "2" * 150]]), file=stream)
    assert (stream.getvalue().count("1"), stream.getvalue().count("2")) == (150, 150)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([["1", "–", "a", "b"]], 2), ([["–", "", "1 to 2", 0]], 2), ([[1, 2, None, "3"]], None), ([], None)],
)
def test_the_column_that_names_the_rows(rows, expected):
    assert Table(["w", "x", "y", "z"], rows).name_column() == expected


def test_number_columns_are_flush_right():
    table = Table(["n", "s", "mixed", "odd"], [[1, "+0.020", "a", "nan"], [None, "–", 2.0, "-inf"]])
    assert table.numeric_columns() == [True, True, False, True]


def test_every_panel_offers_its_picture():
    elements = Elements(render_page(example_page(HOSTILE)))
    offers = [attrs for tag, attrs in elements.found if tag == "button" and "data-file" in attrs]
    panels = json.loads(elements.scripts["payload"])["panels"]
    tables = [attrs["download"].removesuffix(".csv") for tag, attrs in elements.found if tag == "a"]
    assert [offer["data-file"] for offer in offers] == [f"{name}.{kind}" for name in tables for kind in ("svg", "png")]
    assert len(offers) == 2 * len(panels)
    assert all(offer["type"] == "button" and offer["data-file"] in offer["aria-label"] for offer in offers)
    spans = [attrs for tag, attrs in elements.found if attrs.get("class") == "pictures"]
    assert len(spans) == len(panels)
    assert all("hidden" in attrs for attrs in spans)  # without JavaScript nothing could be drawn


def test_a_histogram_in_a_cell_is_drawn_on_a_page_and_written_in_blocks_elsewhere():
    spark = Sparkline([0, 1, 4, 2], before=[4, 0, 0, 0], name='"<of a>')
    table = Table(["feature", "histogram"], [["a", spark], ["b", ""]])
    assert table.csv() == "feature,histogram\na, ▂█▄\nb,\n"
    assert "▂█▄" in str(table)
    assert table.numeric_columns() == [False, False]
    assert spark.outline().startswith("0.000,0.000 0.250,0.000 0.250,1.000")
    assert spark.bars().count("M") == 3  # an empty bin has no bar
    elements = Elements(render_page(Page("t", [], [], [Section("s", tables=[table])])))
    drawn = [attrs for tag, attrs in elements.found if tag == "svg"]
    assert [attrs["aria-label"] for attrs in drawn] == ['"<of a>']
    assert str(Sparkline([])) == ""


def test_intervals_in_a_cell_are_drawn_with_what_is_allowed():
    rows = [("<b>", 0.9, 0.4, 1.4), ("far", 0.1, None, None), ("none", None, None, None)]
    item = Intervals(rows, "loss & more", (None, 0.5))
    assert str(item) == "loss & more: <b> 0.900 (0.400 to 1.40), far 0.100, none –"
    elements = Elements(render_page(Page("t", [], [], [Section("s", tables=[Table(["a", "b"], [["x", item]])])])))
    tags = [tag for tag, _ in elements.found]
    assert "b" not in tags
    assert tags.count("circle") == 2
    (band,) = (attrs for tag, attrs in elements.found if tag == "rect")
    assert float(band["x"]) < float(band["x"]) + float(band["width"]) < 300
    root = ElementTree.fromstring(item.svg(alone=True))
    assert root.get("width") == "300"
    assert "var(" not in item.svg(alone=True)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.500", "1.40", "0.100", "loss & more"} <= set(texts)  # the limit, both ends, the quantity


def test_intervals_that_span_decades_have_a_logarithmic_axis():
    places = [
        float(place)
        for place in re.findall(
            r'circle cx="([\d.]+)"', Intervals([("a", 1, 1, 1), ("b", 10, 10, 10), ("c", 100, 100, 100)], "q").svg()
        )
    ]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


def test_a_logarithmic_horizontal_axis_has_labels_in_decades():
    curve = Series("law", [2, 20, 200], [1.0, 10.0, 100.0])
    panel = lines([curve], x=Axis("blocks", log=True, integer=True), y=Axis("power", log=True))
    assert panel.spec["layout"]["xaxis"]["type"] == "log"
    assert panel.labels[0]["x"] == pytest.approx(math.log10(200))
    assert panel.hints["integer_x"] is False
    flat = lines([Series("law", [0, 2], [1.0, 10.0])], x=Axis("blocks", log=True), y=Axis("power", log=True))
    assert flat.spec["layout"]["xaxis"]["type"] == "linear"  # 0 has no logarithm
