"""The picture that a lesson opens with: a part of a page of `evenkeel explain`, and the link to that page.

A lesson has a marker: '<!-- concept: SECTION; COMMAND -->' … '<!-- end of concept -->'.
"""

import hashlib
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pictures import chromium, stamp, write_picture

from evenkeel.cli import main

CONCEPT = re.compile(r"<!-- concept: (\w+); ([^\n]*) -->\n.*?<!-- end of concept -->", flags=re.DOTALL)
COLOURS = 200  # tints of cells, which fewer merge
WIDTH = 560  # pixels of the page, drawn with two each: readable on a phone
# The part of the page, and what it shows.
SECTIONS = {
    "line": ("#line-body", "The numbers on a line, before and after each operation"),
    "sharing": ("#sharing-body", "Cells of one colour and letter share statistics"),
    "flow": ("#flow-body", "A residual stream with the norm before each sublayer, and after each sum"),
    "against": ("#against-body", "RMSNorm and LayerNorm of the same numbers"),
}


# Room around the part; what a pointer would change is not shown.
STYLE = "{ padding: 8px; .readout { display: none; } }"


@dataclass(frozen=True)
class Concept:
    """A lesson's picture: the part of the page, and the command that makes the page."""

    lesson: str
    section: str
    command: str

    @property
    def file(self) -> str:
        """The picture's path beside the lesson."""
        return f"figures/concepts/concept-{self.lesson}.png"

    def digest(self) -> str:
        """Return a digest of what decides the picture: the command, the part, and what draws the page."""
        assets = resources.files("evenkeel.explain").joinpath("assets")
        drawn = [part.read_bytes() for part in sorted(assets.iterdir(), key=lambda part: part.name)]
        key = repr((self.command, SECTIONS[self.section], WIDTH, STYLE, COLOURS)).encode()
        return hashlib.sha256(b"".join([key, *drawn])).hexdigest()


def concepts(texts: Mapping[str, str]) -> Iterator[Concept]:
    """Yield the concepts of lessons, by their files' names."""
    for lesson, text in texts.items():
        for section, command in CONCEPT.findall(text):
            if section not in SECTIONS or not command.startswith("evenkeel explain "):
                raise SystemExit(f"{lesson}: a concept is one of {', '.join(SECTIONS)}, then '; evenkeel explain …'")
            yield Concept(lesson.removesuffix(".md"), section, command)


def fill_concepts(text: str, lesson: str) -> str:
    """Return a lesson with the picture and the link between its markers."""

    def block(marker: re.Match[str]) -> str:
        (one,) = concepts({lesson: marker[0]})
        what = SECTIONS[one.section][1]
        quoted = one.command.replace("&", "&amp;").replace('"', "&quot;")
        link = f'<a href="live/{one.lesson}.html" title="{quoted}">the page made for this lesson</a>'
        return "\n\n".join(
            [
                marker[0].partition("\n")[0],
                f"![{what}]({one.file})",
                f"{what}. Change the numbers yourself: {link}, or `{one.command}`.",
                "<!-- end of concept -->",
            ]
        )

    return CONCEPT.sub(block, text)


def stale_concepts(folder: Path, texts: Mapping[str, str]) -> list[Concept]:
    """Return the pictures that are missing or show another page."""
    return [one for one in concepts(texts) if stamp(folder / one.file) != one.digest()]


def take_concepts(folder: Path, stale: list[Concept]) -> None:
    """Take the pictures."""
    if not stale:
        return
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        for one in stale:
            page = Path(place) / f"{one.lesson}.html"
            if main([*shlex.split(one.command)[1:], "--html", str(page)]):
                raise SystemExit(f"{one.lesson}: {one.command!r} failed")
            tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=2)
            tab.goto(page.as_uri())
            shown = tab.locator(SECTIONS[one.section][0])
            tab.add_style_tag(content=f"{SECTIONS[one.section][0]} {STYLE}")
            write_picture(folder / one.file, shown.screenshot(), one.digest(), colours=COLOURS)
            tab.close()
