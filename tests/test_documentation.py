"""The course: its figures and tables are those of the measured records."""

import importlib.util
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from evenkeel.lab.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LESSONS = sorted((DOCS / "lessons").glob("0*.md"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def builder():
    sys.path.insert(0, str(DOCS))
    spec = importlib.util.spec_from_file_location("build_lessons", DOCS / "build_lessons.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_lessons"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["build_lessons"]
    sys.path.remove(str(DOCS))


@pytest.fixture
def small(tmp_path):
    """A course of one lesson and one experiment, to change at will."""
    names = ("lessons/04-masks-and-padding.md", "lessons/figures/padding.svg", "measurements/padding")
    names += ("lessons/figures/concepts/concept-04-masks-and-padding.png",)
    names += tuple(f"lessons/figures/claims/claim-padding-{number}.svg" for number in (1, 2, 3))
    for name in names:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (DOCS / name).is_dir() else shutil.copyfile)(DOCS / name, target)
    return tmp_path


def test_every_lesson_opens_with_a_picture_and_a_page_of_its_own(builder):
    for path in LESSONS:
        opening = path.read_text().partition("\n## ")[0]
        assert f"](figures/concepts/concept-{path.stem}.png)" in opening
        assert f'<a href="live/{path.stem}.html" title="evenkeel explain ' in opening
    with pytest.raises(SystemExit, match="a concept is one of"):
        builder.fill_concepts("<!-- concept: line; rm -r -->\n<!-- end of concept -->", "lesson.md")


def test_every_misconception_is_computed():
    sections = re.split(r"^### ", (DOCS / "misconceptions.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 17
    assert [section.splitlines()[0] for section in sections if ">>> " not in section] == []


def test_every_experiment_is_in_one_lesson(builder):
    found = [name for path in LESSONS for name, _ in builder.MARKED.findall(path.read_text())]
    assert sorted(found) == sorted(EXPERIMENTS)


def test_every_panel_has_a_file_of_its_own(builder):
    for found in builder.read_measurements(DOCS).values():
        assert len(builder.stamps(found)) == sum(len(figure.panels) for figure in found.figures) > 0


def test_what_is_generated_is_up_to_date(builder):
    assert builder.stale(DOCS) == []


def test_a_small_course_is_built_and_then_up_to_date(builder, small):
    assert builder.stale(small) == [
        f"{name} is not what the measurements say"
        for name in ("lessons/figures/claims/verdicts.svg", "why-it-matters.md")
    ]
    builder.build(small)  # the figure is there, so nothing is drawn
    assert builder.stale(small) == []
    lines = (small / "why-it-matters.md").read_text().splitlines()
    (row,) = [line for line in lines if "A mask keeps" in line]
    assert row.startswith("| **✓ agrees**: A mask keeps padding out of BatchNorm's statistics | ![RMS error")
    assert "](lessons/figures/claims/claim-padding-2.svg)<br>largest RMS error" in row
    assert "## [Masks and padding](lessons/04-masks-and-padding.md)" in lines
    assert "![Verdicts](lessons/figures/claims/verdicts.svg)" in lines
    assert "`cost`" in lines[-1]
    assert "3 ✓ agrees" in (small / "lessons/figures/claims/verdicts.svg").read_text()


def test_the_check_finds_what_is_out_of_date(builder, small):
    builder.build(small)
    lesson, records = small / "lessons/04-masks-and-padding.md", small / "measurements/padding/records.jsonl"
    text = lesson.read_text()
    lesson.write_text(text.replace("**✓ agrees**", "**✗ disagrees**", 1))
    assert builder.stale(small) == ["lessons/04-masks-and-padding.md is not what the measurements say"]
    lesson.write_text(text.replace("read: agrees", "read: disagrees"))
    (wrong,) = builder.stale(small)
    assert "was written when padding said: disagrees, agrees, agrees; it says: agrees, agrees, agrees" in wrong
    lesson.write_text(text)
    (small / "lessons/figures/old.svg").write_text("")
    assert builder.stale(small) == ["lessons/figures/old.svg belongs to no measurement"]
    (small / "lessons/figures/old.svg").unlink()
    (small / "lessons/figures/claims/old-1.svg").write_text("")
    assert builder.stale(small) == ["lessons/figures/claims/old-1.svg belongs to no measurement"]
    builder.build(small)
    assert builder.stale(small) == []
    lesson.write_text(text.replace("--norm batch --mask", "--norm batch --eps 1 --mask"))
    assert builder.stale(small)[-1] == (
        "lessons/figures/concepts/concept-04-masks-and-padding.png is missing or shows another page"
    )
    lesson.write_text(text)
    first, *rest = records.read_text().splitlines(keepends=True)
    record = json.loads(first)
    record["measured"]["masked"] = 0.5
    records.write_text("".join([json.dumps(record) + "\n", *rest]))
    wrong = " ".join(builder.stale(small))
    for part in ("summary.json", "04-masks", "why-it-matters.md", "padding.svg is missing or shows other data"):
        assert part in wrong


def test_what_was_not_measured_is_said(builder, small):
    shutil.rmtree(small / "measurements")
    (small / "lessons/figures/padding.svg").unlink()
    builder.build(small)
    text = (small / "lessons/04-masks-and-padding.md").read_text()
    assert "*Not measured yet. `evenkeel study --experiment padding` measures it.*" in text
    assert "figures/padding.svg" not in text


@pytest.mark.parametrize(
    "text",
    [
        "<!-- measured: padding; read: agrees -->\nno end",
        "<!-- measured: padding -->\n<!-- end -->",
        "<!-- measured: pading; read: agrees -->\n<!-- end -->",
        "<!-- end -->",
    ],
)
def test_a_wrong_marker_is_one_line(builder, text):
    with pytest.raises(SystemExit) as caught:
        builder.fill(text, {}, "lesson.md")
    assert str(caught.value).startswith("lesson.md: ")
    assert "\n" not in str(caught.value)


def test_signs_of_markdown_are_shown_as_they_are(builder):
    assert builder.escape("E ||x_l||^2 < 1*2 $") == r"E \|\|x\_l\|\|^2 \< 1\*2 \$"


def test_figures_are_small_and_stand_on_white():
    figures = sorted((DOCS / "lessons" / "figures").glob("*.svg"))
    assert len(figures) >= 20
    for path in figures:
        assert path.stat().st_size < 120_000
        root = ElementTree.parse(path).getroot()
        ground = root.find(f"{SVG}rect")
        assert ground.get("width") == root.get("width")
        assert "fill: rgb(255, 255, 255)" in ground.get("style")


@pytest.mark.slow
def test_figures_can_be_drawn_again(builder, tmp_path):
    measured = builder.read_measurements(DOCS)
    names = [name for found in measured.values() for name in builder.stamps(found)]
    builder.draw_figures(measured, names, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        drawn = ElementTree.parse(tmp_path / name).getroot()
        kept = ElementTree.parse(DOCS / "lessons" / "figures" / name).getroot()
        assert labels(drawn) == labels(kept)  # ticks depend on the machine's fonts
        assert len(list(drawn.iter(f"{SVG}path"))) > 5


def labels(root):
    """What a figure says beside its curves and above its axis."""
    texts = [text for text in root.iter(f"{SVG}text") if "annotation-text" in text.get("class", "")]
    return sorted("".join(text.itertext()) for text in texts)
