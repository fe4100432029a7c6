"""Pictures of pages as PNG in few colours, each with the digest of what it shows, so that only stale ones are taken."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, PngImagePlugin

COLOURS = 48  # of a picture with few; more cannot be seen and double its size


def stamp(path: Path) -> str | None:
    """Return the digest of what a picture shows, or None."""
    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.info.get("page")


def write_picture(
    path: Path, png: bytes, digest: str, *, colours: int = COLOURS, edge: str = "", border: int = 0
) -> None:
    """Write a picture in few colours, with the digest of what it shows and, with an edge's colour, a frame."""
    facts = PngImagePlugin.PngInfo()
    facts.add_text("page", digest)
    with Image.open(BytesIO(png)) as picture:
        framed = ImageOps.expand(picture.convert("RGB"), border=border, fill=edge) if edge else picture.convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    framed.quantize(colours, Image.Quantize.MAXCOVERAGE).save(path, optimize=True, pnginfo=facts)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium without a window; one line where it is missing."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise SystemExit("pictures are taken by Chromium; install it, for example with: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
