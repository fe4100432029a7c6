"""Write what the course takes from measurements: the marked parts of docs/lessons, docs/why-it-matters.md, figures.

Everything comes from docs/measurements/<experiment>/records.jsonl. Figures are the ones of the experiments' page, drawn
by Chromium; only those whose data changed are drawn anew.

Usage: python docs/build_lessons.py [--check]

With --check nothing is written: what is out of date is listed, and the exit code is 1 if anything is.
"""

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from concepts import fill_concepts, stale_concepts, take_concepts
from pictures import chromium

from evenkeel.lab.experiments import EXPERIMENTS
from evenkeel.lab.experiments._page import (
    Measured,
    claim_picture,
    draw,
    experiments_page,
    option_text,
    tally,
    verdict_text,
)
from evenkeel.lab.experiments._run import flat_records, read_experiment, summarize
from evenkeel.lab.runner import json_text
from evenkeel.report import join_words, write_page, write_text_atomically
from evenkeel.report._cells import standalone_svg
from evenkeel.report._page import browser_panel, figure_file, script_json
from evenkeel.report._style import LIGHT

DOCS = Path(__file__).parent
# The verdicts after "read" are those that the words around the marker were written for.
MARKED = re.compile(r"<!-- measured: ([^;\n]*); read: ([^\n]*) -->\n.*?<!-- end -->", flags=re.DOTALL)
STAMP = "<!-- drawn from {} -->"
WINDOW = 640  # pixels: wide enough for labels beside the curves, narrow enough to be read on a phone
LARGEST = 120_000  # bytes of a figure
COLUMNS = ("claim", "measured", "source")
CLAIMS = "figures/claims"  # beside the lessons: a picture for each claim, and one of all verdicts
COUNTED = ("agrees", "partly", "undecided", "disagrees")
SHADES = dict(zip(COUNTED, ("series3", "series2", "grid", "series5"), strict=True))
WHY = """# Why it matters: claims and measurements

Written by `make docs` from `docs/measurements`; edit neither. Each claim of the literature stands beside what
this repository measured, under the lesson that tells of it: dots with 95 % intervals where there are repetitions, and
shaded what the claim allows. The experiments are small, so a disagreement says that the effect did not show at this
size, not that the paper is wrong; an undecided claim needs more seeds or a larger size than were run. Run them
yourself: `evenkeel study --experiment all`.
"""


def stamps(run: Measured) -> dict[str, str]:
    """Return each figure file's name and a digest of what it shows."""
    return {
        f"{figure_file(figure, panel)}.svg": hashlib.sha256(script_json(browser_panel(panel)).encode()).hexdigest()
        for figure in run.figures
        for panel in figure.panels
    }


def read_measurements(docs: Path) -> dict[str, Measured]:
    """Return the experiments that were measured, in the order of the course."""
    measured = {}
    for name, experiment in EXPERIMENTS.items():
        directory = docs / "measurements" / name
        frozen, records = read_experiment(directory), flat_records(directory)
        if frozen is not None and records:
            summary = summarize(experiment, experiment.read_options(frozen["options"]), directory)
            measured[name] = draw(experiment, summary, records)
    return measured


def generated_texts(docs: Path, measured: Mapping[str, Measured]) -> dict[Path, str]:
    """Return every file whose text depends on the measurements, as it should be."""
    lessons = {path: path.read_text(encoding="utf-8") for path in sorted((docs / "lessons").glob("*.md"))}
    summaries = {
        docs / "measurements" / name / "summary.json": json_text(run.summary) for name, run in measured.items()
    }
    filled = {path: fill_concepts(fill(text, measured, path.name), path.name) for path, text in lessons.items()}
    pictures = {docs / "lessons" / CLAIMS / name: svg for name, svg in claim_pictures(measured).items()}
    return summaries | filled | pictures | {docs / "why-it-matters.md": why_it_matters(measured, lessons)}


def claim_pictures(measured: Mapping[str, Measured]) -> dict[str, str]:
    """Return each picture of a claim's intervals and the one of all verdicts, by file name."""
    drawn = {
        f"claim-{name}-{number}.svg": picture.svg(alone=True)
        for name, run in measured.items()
        for number, claim in enumerate(run.summary["claims"], start=1)
        if (picture := claim_picture(claim))
    }
    return drawn | {"verdicts.svg": verdicts_svg([c for run in measured.values() for c in run.summary["claims"]])}


def verdicts_svg(claims: Sequence[Mapping[str, str]]) -> str:
    """Return how many claims have each verdict, as one bar."""
    width, height, x, parts = 640, 78, 0.0, []
    counts = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in COUNTED}
    for place, (verdict, count) in enumerate((verdict, count) for verdict, count in counts.items() if count):
        share = width * count / len(claims)
        parts.append(f'<rect x="{x:.1f}" y="24" width="{share:.1f}" height="30" fill="{LIGHT[SHADES[verdict]]}"/>')
        y, last = 70 if place % 2 else 16, x + share > width - 1  # every other label stands below the bar
        at, anchor = (width - 2, "end") if last else (x + 2, "start")
        text = f"{count} {verdict_text(verdict)}"
        place_of = f'x="{at:.1f}" y="{y}" text-anchor="{anchor}" font-size="13" fill="{LIGHT["ink"]}"'
        parts.append(f"<text {place_of}>{text}</text>")
        x += share
    frame = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
    return standalone_svg(frame, f"<title>{tally(claims)}</title>" + "".join(parts))


def fill(text: str, measured: Mapping[str, Measured], file: str) -> str:
    """Return a lesson with what was measured between its markers."""
    names = [name for name, _ in MARKED.findall(text)]
    if not len(names) == text.count("<!-- measured") == text.count("<!-- end -->"):
        raise SystemExit(f"{file}: write markers as '<!-- measured: EXPERIMENT; read: VERDICTS -->' … '<!-- end -->'")
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise SystemExit(f"{file}: no experiment {join_words(unknown)}; there are {join_words(list(EXPERIMENTS))}")
    return MARKED.sub(lambda marker: block(marker[0].partition("\n")[0], marker[1], measured), text)


def block(marker: str, name: str, measured: Mapping[str, Measured]) -> str:
    """Return the text between an experiment's markers, markers included."""
    body = list(measured_paragraphs(measured[name])) if name in measured else [not_measured(name)]
    return "\n\n".join([marker, *body, "<!-- end -->"])


def not_measured(name: str) -> str:
    """Return what stands where nothing was measured."""
    return f"*Not measured yet. `evenkeel study --experiment {name}` measures it.*"


def measured_paragraphs(run: Measured) -> Iterator[str]:
    """Yield an experiment's figures with title and caption, its claims, and how it was measured."""
    for figure in run.figures:
        yield f"**{escape(figure.title)}.**"
        yield escape(figure.caption)
        for panel in figure.panels:
            alt = escape(f"{figure.title}: {panel.heading}" if panel.heading else figure.title)
            picture = f"![{alt}](figures/{figure_file(figure, panel)}.svg)"
            yield f"{escape(panel.heading)}:\n\n{picture}" if panel.heading else picture
    yield table(COLUMNS, list(claim_rows(run)))
    summary, name = run.summary, run.experiment.name
    partial = "" if summary["complete"] else f" Only {len(run.records)} of {summary['trials']} trials have run."
    options = ", ".join(f"{key.replace('_', ' ')} {option_text(value)}" for key, value in summary["options"].items())
    yield (
        f"<details><summary>How it was measured</summary>\n\n{escape(run.experiment.method)}{partial}\n\n"
        f"Options: {escape(options)}. {escape(summary['machine'])}; torch {summary['torch']}. "
        f"[Records](../measurements/{name}/records.jsonl). Again: `evenkeel study --experiment {name}`.\n\n</details>"
    )


def claim_rows(run: Measured, folder: str = "") -> Iterator[list[str]]:
    """Yield an experiment's claims as cells of Markdown; the folder leads from the page to the lessons."""
    for number, claim in enumerate(run.summary["claims"], start=1):
        picture = claim_picture(claim)
        alt = escape(str(picture)) if picture else ""
        drawn = f"![{alt}]({folder}{CLAIMS}/claim-{run.experiment.name}-{number}.svg)<br>" if picture else ""
        yield [
            f"**{verdict_text(claim['verdict'])}**: {escape(claim['claim'])}",
            drawn + escape(claim["measured"]),
            escape(claim["source"]),
        ]


def why_it_matters(measured: Mapping[str, Measured], lessons: Mapping[Path, str]) -> str:
    """Return the page of all claims, by lesson."""
    claims = [claim for run in measured.values() for claim in run.summary["claims"]]
    parts = [WHY.rstrip(), f"Of {len(claims)} claims {tally(claims)}.", f"![Verdicts](lessons/{CLAIMS}/verdicts.svg)"]
    for path, text in lessons.items():
        runs = [measured[name] for name, _ in MARKED.findall(text) if name in measured]
        if rows := [row for run in runs for row in claim_rows(run, "lessons/")]:
            parts += [f"## [{text.splitlines()[0].removeprefix('# ')}](lessons/{path.name})", table(COLUMNS, rows)]
    if missing := [f"`{name}`" for name in EXPERIMENTS if name not in measured]:
        parts.append(f"Not measured yet: {join_words(missing)}.")
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def escape(text: str) -> str:
    """Return plain text as Markdown that shows the same."""
    return re.sub(r"([\\`*_\[\]<>|$~])", r"\\\1", text)


def stale_figures(docs: Path, measured: Mapping[str, Measured]) -> list[str]:
    """Return the figure files that are missing or show other data."""
    return [
        name
        for run in measured.values()
        for name, digest in stamps(run).items()
        if not (path := docs / "lessons" / "figures" / name).exists()
        or STAMP.format(digest) not in path.read_text(encoding="utf-8")
    ]


def unread_verdicts(docs: Path, measured: Mapping[str, Measured]) -> Iterator[str]:
    """Yield where a lesson's own words were written for other verdicts than those measured."""
    for path in sorted((docs / "lessons").glob("*.md")):
        for name, read in MARKED.findall(path.read_text(encoding="utf-8")):
            claims = measured[name].summary["claims"] if name in measured else []
            if (verdicts := ", ".join(claim["verdict"] for claim in claims) or "nothing") != read:
                yield (
                    f"lessons/{path.name} was written when {name} said: {read}; it says: {verdicts}; "
                    "read the lesson's words again and write that into its marker"
                )


def stale(docs: Path) -> list[str]:
    """Return what is out of date, each with what is wrong."""
    measured = read_measurements(docs)
    wrong = [
        f"{path.relative_to(docs)} is not what the measurements say"
        for path, text in generated_texts(docs, measured).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    wrong += [f"lessons/figures/{name} is missing or shows other data" for name in stale_figures(docs, measured)]
    wrong += [f"lessons/{one.file} is missing or shows another page" for one in stale_concepts(*lesson_texts(docs))]
    extra = extra_pictures(docs, measured)
    wrong += unread_verdicts(docs, measured)
    return wrong + [f"{path.relative_to(docs)} belongs to no measurement" for path in sorted(extra)]


def lesson_texts(docs: Path) -> tuple[Path, dict[str, str]]:
    """Return the lessons' folder, and their texts by file name."""
    folder = docs / "lessons"
    return folder, {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


def extra_pictures(docs: Path, measured: Mapping[str, Measured]) -> list[Path]:
    """Return the figures and the pictures of claims that belong to no measurement."""
    figures = docs / "lessons" / "figures"
    known = {figures / name for run in measured.values() for name in stamps(run)}
    known |= {docs / "lessons" / CLAIMS / name for name in claim_pictures(measured)}
    return [path for path in (*figures.glob("*.svg"), *(docs / "lessons" / CLAIMS).glob("*.svg")) if path not in known]


def draw_figures(measured: Mapping[str, Measured], names: Sequence[str], folder: Path) -> None:
    """Draw figures on the experiments' page in Chromium, and keep what its SVG links download."""
    digests = {name: digest for run in measured.values() for name, digest in stamps(run).items()}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        report = Path(place) / "report.html"
        write_page(experiments_page(list(measured.values())), report)
        page = browser.new_page(viewport={"width": WINDOW, "height": 900}, color_scheme="light")
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=120_000)
        page.evaluate("document.querySelectorAll('details.menu').forEach((menu) => { menu.open = true; })")
        for name in names:
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Download {name}", exact=True).click()
            drawn = steady(Path(download.value.path()).read_text(encoding="utf-8"))
            write_text_atomically(folder / name, drawn.replace("</svg>", f"{STAMP.format(digests[name])}</svg>\n"))


def steady(svg: str) -> str:
    """Return a figure with the same identifiers each time, where Plotly makes up new ones."""
    for number, identifier in enumerate(dict.fromkeys(re.findall(r"\b(?:top)?defs-([0-9a-f]{6})\b", svg))):
        svg = svg.replace(identifier, f"figure{number}")
    return svg


def build(docs: Path) -> None:
    """Write everything that is out of date."""
    measured = read_measurements(docs)
    for path, text in generated_texts(docs, measured).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(path, text)
    folder, texts = lesson_texts(docs)
    take_concepts(folder, stale_concepts(folder, texts))
    figures = docs / "lessons" / "figures"
    if names := stale_figures(docs, measured):
        draw_figures(measured, names, figures)
    for path in extra_pictures(docs, measured):
        path.unlink()
    for path in figures.glob("*.svg"):
        if path.stat().st_size > LARGEST:
            raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}; draw fewer points")


def main() -> None:
    """Build, or check."""
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit("usage: python docs/build_lessons.py [--check]")
    if not sys.argv[1:]:
        build(DOCS)
    elif wrong := stale(DOCS):
        raise SystemExit("\n".join([*wrong, "`make docs` writes what can be generated"]))


if __name__ == "__main__":
    main()
