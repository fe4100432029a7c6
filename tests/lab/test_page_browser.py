"""The page in a real browser: drawn whole, without a request, on a laptop and a phone, in light and dark."""

import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from page_summaries import summary
from playwright.sync_api import Browser
from playwright.sync_api import Page as BrowserPage

from evenkeel.lab.studies import find, study_page, write_report

pytestmark = pytest.mark.slow

HOSTILE = "<b>x</b></script><img src=x onerror=alert(1)>"
LAPTOP, PHONE = 1280, 390
LABELS = """() => [...document.querySelectorAll('.plot')].map((plot) =>
    [...plot.querySelectorAll('.annotation-text-g')].map((text) => {
        const [box, frame] = [text.getBoundingClientRect(), plot.getBoundingClientRect()];
        return { left: box.left, right: box.right, top: box.top, bottom: box.bottom, end: frame.right };
    }))"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
CAPTIONS = "[...document.querySelectorAll('caption')].map((caption) => caption.getBoundingClientRect().right)"
INK = "document.querySelector('.plot .xtick text').style.fill"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A study with everything that makes drawing hard: several seeds, fates, a leak and a hostile name."""
    names = ("none", "post-layer", "pre-layer", "pre-rms", "peri-rms", "pre-batch", HOSTILE)
    statuses = {("none", 0.02): "diverged", ("post-layer", 0.02): "running"}
    data = summary(names, seeds=2, statuses=statuses, rates=(0.002, 0.02))
    data["corpus"]["frequency_loss"] = 2.0
    data["findings"] = find(data)
    data["panels"] = sum(len(figure.panels) for figure in study_page(data).figures())
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(data, path)
    (path.parent / "panels").write_text(str(data["panels"]))
    return path


def opened(browser: Browser, report: Path, width: int, **options: Any) -> tuple[BrowserPage, list[str]]:
    """The page after drawing, and everything it complained about or asked the outside for."""
    phone = width < 500
    context = browser.new_context(viewport={"width": width, "height": 844}, is_mobile=phone, has_touch=phone, **options)
    page = context.new_page()
    events: list[str] = []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("dialog", lambda dialog: events.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: events.append(request.url))
    page.goto(report.as_uri())
    return page, events


def drawn(browser: Browser, report: Path, width: int, **options: Any) -> tuple[BrowserPage, list[str]]:
    page, events = opened(browser, report, width, **options)
    page.wait_for_selector("html[data-drawn]", timeout=120_000)
    return page, events


def eventually(page: BrowserPage, expression: str) -> None:
    """Wait for something to become true; Playwright's own wait evaluates a string, which the page's policy forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never true: {expression}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_everything_is_drawn_in_the_window_and_nothing_is_requested(browser, report, width, scheme):
    page, events = drawn(browser, report, width, color_scheme=scheme)
    panels = int((report.parent / "panels").read_text())
    assert events == [report.as_uri()]
    assert page.locator("main .plot").count() == page.locator(".plot .cartesianlayer .subplot").count() == panels
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("window.innerWidth") == width
    assert max(page.evaluate(CAPTIONS)) <= width
    page.context.close()


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_labels_overlap_neither_each_other_nor_the_edge(browser, report, width):
    page, _ = drawn(browser, report, width)
    plots = page.evaluate(LABELS)
    assert sum(len(boxes) for boxes in plots) > 50
    for boxes in plots:
        for index, one in enumerate(boxes):
            assert one["right"] <= one["end"] + 1
            for other in boxes[index + 1 :]:
                beside = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
                assert beside or one["bottom"] <= other["top"] + 1.5 or other["bottom"] <= one["top"] + 1.5
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_has_the_message_the_picture_and_three_findings(browser, report, scheme):
    page, _ = drawn(browser, report, LAPTOP, color_scheme=scheme)
    found = page.evaluate(
        "[...document.querySelectorAll('h1, .opening .plot, .top li')].map((e) => e.getBoundingClientRect().bottom)"
    )
    assert len(found) == 5
    assert max(found) <= 844
    page.context.close()


def test_every_axis_of_a_phone_has_two_ticks_at_least(browser, report):
    page, _ = drawn(browser, report, PHONE)
    counts = """[...document.querySelectorAll('.plot')].flatMap((plot) => ['xtick', 'ytick']
        .map((tick) => plot.querySelectorAll(`.${tick} text`).length).filter((count) => count))"""
    found = page.evaluate(counts)
    assert len(found) > 20
    assert min(found) >= 2
    page.context.close()


def test_page_and_figures_follow_the_system_and_the_button(browser, report):
    page, _ = drawn(browser, report, LAPTOP, color_scheme="light")
    light = page.evaluate(BACKGROUND), page.evaluate(INK)
    page.emulate_media(color_scheme="dark")
    eventually(page, f"{INK} !== '{light[1]}'")
    dark = page.evaluate(BACKGROUND), page.evaluate(INK)
    assert dark[0] != light[0]
    page.get_by_role("button", name="Use the light colours").click()
    assert (page.evaluate(BACKGROUND), page.evaluate(INK)) == light
    page.context.close()


def test_a_new_width_is_drawn_anew(browser, report):
    page, _ = drawn(browser, report, LAPTOP)
    page.set_viewport_size({"width": PHONE, "height": 844})
    eventually(page, "document.querySelector('.plot .main-svg').getBoundingClientRect().width < 400")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE
    page.context.close()


def test_without_decompression_the_page_says_so_and_opens_its_tables(browser, report):
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(report.as_uri())
    page.locator("#notice").wait_for(state="visible")
    assert "cannot draw the figures" in page.locator("#notice").inner_text()
    assert page.locator("figure table").first.is_visible()
    context.close()


def test_without_javascript_the_tables_can_be_read(browser, report):
    page, _ = opened(browser, report, PHONE, java_script_enabled=False)
    assert page.locator("noscript p").is_visible()
    assert not page.locator("button[data-file]").first.is_visible()
    assert not page.locator(".plot").first.is_visible()
    page.locator("summary").first.click()
    assert page.locator("figure table").first.is_visible()
    page.context.close()


def test_a_download_holds_the_data(browser, report):
    page, _ = drawn(browser, report, LAPTOP)
    with page.expect_download() as download:
        page.locator("#ranking summary").click()
        page.get_by_role("link", name="Download ranking.csv").click()
    text = Path(download.value.path()).read_text()
    assert text.startswith("name,final validation loss (nats per byte),lowest,highest,remark\n")
    assert HOSTILE in text
    page.context.close()


def saved(page: BrowserPage, name: str) -> Path:
    """The picture that the keyboard saves from its figure's menu."""
    page.evaluate("document.querySelectorAll('details.menu').forEach((menu) => { menu.open = true; })")
    page.get_by_role("button", name=f"Download {name}", exact=True).focus()
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == name
    return Path(download.value.path())


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")])
def test_a_picture_is_the_figure_as_drawn(browser, report, scheme, ground):
    page, events = drawn(browser, report, LAPTOP, color_scheme=scheme)
    name = page.locator("button[data-file$='.svg']").first.get_attribute("data-file")
    root = ElementTree.parse(saved(page, name)).getroot()
    texts = "[...document.querySelector('.plot').querySelectorAll('text')].map((text) => text.textContent)"
    svg = "{http://www.w3.org/2000/svg}"
    assert sorted("".join(text.itertext()) for text in root.iter(f"{svg}text")) == sorted(page.evaluate(texts))
    assert f"fill: {ground}" in root.find(f"{svg}rect").get("style")
    size = page.evaluate("(({ width, height }) => [width, height])(document.querySelector('.plot').layout)")
    assert [float(root.get(side)) for side in ("width", "height")] == size
    image = saved(page, name.replace(".svg", ".png")).read_bytes()
    assert image.startswith(b"\x89PNG")
    assert list(struct.unpack(">II", image[16:24])) == [2 * side for side in size]
    assert page.evaluate("document.activeElement.dataset.file") == name.replace(".svg", ".png")
    assert [event for event in events if not event.startswith(("data:", "blob:"))] == [report.as_uri()]
    page.context.close()


def test_a_picture_that_cannot_be_made_is_said(browser, report):
    page, _ = drawn(browser, report, PHONE)
    page.evaluate("() => { window.Plotly.toImage = () => Promise.reject(new Error('no memory')); }")
    page.locator("details.menu summary").first.click()
    page.locator("button[data-file$='.png']").first.click()
    page.locator("#notice").wait_for(state="visible")
    assert "(no memory)" in page.locator("#notice").inner_text()
    page.context.close()
