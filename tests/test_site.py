"""The site: every public name has an entry, links and frames lead somewhere, nothing is loaded from outside, no page
is wider than a phone."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from page_elements import Elements
from test_architecture import public_names

ROOT = Path(__file__).parents[1]
INVENTORIES = sorted((ROOT / "docs" / "inventories").glob("*.txt"))
LOADED = {"img": "src", "iframe": "src", "script": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make site` does: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-c", "docs", "-E", "-W", "--keep-going", "-q", "-d"]
    result = subprocess.run(
        [sys.executable, *words, folder / "trees", ".", folder / "site"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    """The elements of every page by its path."""
    return {path: Elements(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def anchors(elements):
    return {attrs["id"] for _, attrs in elements.found if attrs.get("id")}


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: path.stem)
def test_inventories_name_what_exists(path):
    for line in path.read_text().splitlines()[3:]:
        name, kind, page = line.split()
        module, _, item = name.rpartition(".")
        assert hasattr(importlib.import_module(module), item)
        assert kind in ("class", "exception")
        assert page.endswith(".html")


@pytest.mark.slow
def test_every_public_name_has_an_entry(pages):
    found = set().union(*(anchors(elements) for path, elements in pages.items() if path.parent.name == "api"))
    modules = {f"module-{name}" for name in public_names()}
    missing = [name for name in public_names() if name not in found and f"module-{name}" not in found & modules]
    assert missing == []


@pytest.mark.slow
def test_an_entry_has_signature_formula_and_example(site):
    text = (site / "docs" / "api" / "evenkeel.functional.html").read_text(encoding="utf-8")
    (entry,) = re.findall(r'<dt class="sig[^>]*id="evenkeel.functional.rms_norm">.*?</dd></dl>', text, flags=re.DOTALL)
    assert "weight_offset" in entry
    assert "pytorch.org/docs/stable/tensors.html#torch.Tensor" in entry
    assert '<div class="math"><math' in entry
    assert "[0.0995, 0.9901]" in entry


@pytest.mark.slow
def test_links_lead_somewhere_and_nothing_is_loaded_from_outside(pages, site):
    wrong = []
    for path, elements in pages.items():
        for tag, attrs in elements.found:
            address = attrs.get(LOADED.get(tag, "href" if tag == "a" else "")) or ""
            file, anchor = urldefrag(unquote(address))
            if re.match(r"https?:|mailto:", file):
                wrong += [(path.name, address)] if tag in LOADED else []
            elif file.startswith("data:") or "live" in path.parts:
                continue
            else:
                target = (path.parent / file.partition("?")[0]).resolve() if file else path
                exists = target.exists() and (target in pages or not anchor)
                if not exists or (anchor and anchor not in anchors(pages[target])):
                    wrong.append((str(path.relative_to(site)), address))
    assert wrong == []


@pytest.mark.slow
def test_frames_hold_live_pages(pages, site):
    frames = [(path, attrs) for path, found in pages.items() for tag, attrs in found.found if tag == "iframe"]
    assert len(frames) >= 4
    for path, attrs in frames:
        assert "<h1" in (path.parent / attrs["src"]).read_text(encoding="utf-8")
        assert attrs["title"]


@pytest.mark.slow
def test_every_lesson_links_to_the_page_made_for_it(pages):
    found = {
        path.stem: (path.parent / attrs["href"]).read_text(encoding="utf-8")
        for path, elements in pages.items()
        if path.parent.name == "lessons"
        for tag, attrs in elements.found
        if tag == "a" and attrs.get("href", "").startswith("live/")
    }
    assert len(found) == 8
    assert all('id="sharing-body"' in text for text in found.values())


@pytest.mark.slow
def test_no_page_scrolls_sideways(browser, pages, site):
    page = browser.new_page()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    wide = {}
    for path in pages.keys() - {site / "index.html"}:  # it leads on to docs/index.html
        page.goto(path.as_uri())
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            if (found := page.evaluate("document.documentElement.scrollWidth")) > width:
                wide[str(path.relative_to(site)), width] = found
    assert wide == {}
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    page.close()


@pytest.mark.slow
def test_search_finds_a_name(browser, site):
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=rms_norm")
    page.wait_for_selector("#search-results li a", timeout=30_000)
    assert "evenkeel.functional.rms_norm" in page.inner_text("#search-results")
    page.close()


@pytest.mark.slow
def test_a_live_page_answers(browser, site):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.wait_for_selector("iframe")
    frame = page.frame_locator("iframe")
    frame.get_by_role("heading", name="LayerNorm, step by step").wait_for()
    field = frame.locator("input[type=number], input[type=text]").nth(1)
    field.fill("7")
    frame.get_by_text("mean 4, deviation").first.wait_for()
    page.close()
