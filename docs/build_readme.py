"""What the README takes from runs: the picture of a page of `evenkeel explain`, and the chart of measured speed.

Usage: python docs/build_readme.py

The picture is taken by Chromium, light and dark, and again only when the page has changed. The chart and its caption
are written by `make performance` (build_performance.py) from the JSON of the benchmarks.
"""

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from charts import dot_chart, write_chart
from pictures import COLOURS, chromium, stamp, write_picture

import evenkeel as ek
from benchmarks.timing import OURS
from evenkeel.report import write_text_atomically

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1000, 720  # of the picture in pixels of the page, drawn with four each
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
FIRST_STEP = "Mean"  # the picture is taken when the steps are there
MEASURED = re.compile(r"<!-- measured: speed -->\n.*?<!-- end -->", flags=re.DOTALL)
MODEL = re.compile(r"(?P<model>[^,]+), fp32, step")
TABLE = re.compile(r"(?P<work>[^,]+)(?:, (?:output )?(?P<how>[^,]+))?, float32, \d+x(?P<columns>\d+)")
NORMS = {
    "batch": "BatchNorm",
    "group": "GroupNorm",
    "instance": "InstanceNorm",
    "layer": "LayerNorm",
    "rms": "RMSNorm",
    "add layer": "AddLayerNorm",
    "add rms": "AddRMSNorm",
}
EDGE = "#9aa0a6"  # around the picture, on white and on dark pages
Result = Mapping[str, Any]


def take_pictures(folder: Path) -> list[Scheme]:
    """Write the pictures that are missing or show another page, and return their names."""
    explanation = ek.explain.walk([1.0, 2.0, 3.0, 4.0], "layer", backward=True)
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "explain.html"
        ek.explain.write_page(explanation, page)
        digest = hashlib.sha256(
            page.read_bytes() + repr((WIDTH, HEIGHT, FIRST_STEP, COLOURS, EDGE)).encode()
        ).hexdigest()
        stale = [scheme for scheme in SCHEMES if stamp(folder / f"explain-{scheme}.png") != digest]
        for scheme, png in photograph(page, stale).items():
            write_picture(folder / f"explain-{scheme}.png", png, digest, edge=EDGE, border=2)
    return stale


def photograph(page: Path, schemes: list[Scheme]) -> dict[Scheme, bytes]:
    """Return what Chromium shows of a page of explain, by colour scheme."""
    if not schemes:
        return {}
    taken: dict[Scheme, bytes] = {}
    with chromium() as browser:
        for scheme in schemes:
            tab = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, device_scale_factor=2
            )
            tab.goto(page.as_uri())
            tab.get_by_role("heading", name=FIRST_STEP, exact=True).wait_for()
            taken[scheme] = tab.screenshot()
    return taken


def write_speed(run: Result, sweep: Result, readme: Path) -> None:
    """Write the chart of measured speed beside a README, and its caption between the README's markers."""
    threads = max(result["threads"] for result in run["results"])
    rows = speed_rows([result for result in run["results"] if result["threads"] == threads], sweep)
    chart = dot_chart(
        "evenkeel's time as a share of torch's and scikit-learn's",
        "left of the line evenkeel takes less time; 0.5 is half of it",
        rows,
        line=1.0,
        said="as fast",
        size=(0, 470),  # narrow, so that a phone can show it,
    )
    shown = write_chart(readme.parent / "docs" / "images" / "speed.svg", chart).replace("(images/", "(docs/images/")
    fill(readme, f"<!-- measured: speed -->\n{shown}\n\n{caption(run, sweep, threads)}\n<!-- end -->")


def fill(readme: Path, block: str) -> None:
    """Write the block between a README's markers."""
    text, count = MEASURED.subn(lambda _: block, readme.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{readme}: write the place of the chart as '<!-- measured: speed -->' … '<!-- end -->'")
    write_text_atomically(readme, text)


def caption(run: Result, sweep: Result, threads: int) -> str:
    """Return when, where and on what the speeds of the chart were measured."""
    versions, used = run["versions"], f"{threads} thread{'s' * (threads > 1)}"
    return (
        f"Measured {run['date']} on {run['machine']['processor']}, {used}: evenkeel {versions['evenkeel']} "
        f"({run['simd']}), torch {versions['torch']}, scikit-learn {versions['scikit-learn']}.\n"
        f"Whole models in float32; norms on {len(sweep['cases'])} calls drawn at random (means); tables of 128 MB.\n"
        "[All cases, also those where evenkeel is slower](docs/performance.md); `make performance` measures yours."
    )


def speed_rows(results: Sequence[Result], sweep: Result) -> dict[str, dict[str, float]]:
    """Return what the README compares: each row's name, and our time as a share of who is compared with us.

    Nothing is chosen by its result: every whole model's training step in float32, every norm of the sweep, and every
    case of tables that scikit-learn has too.
    """
    rows: dict[str, dict[str, float]] = {}
    for result in results:
        if result["suite"] == "model" and (found := MODEL.fullmatch(result["name"])):
            rows[f"{found['model']}, training step"] = {"of torch's": result["ratios"][OURS][0]}
    for norm, mean in norm_means(sweep).items():
        rows[f"{NORMS[norm]}, random shapes"] = {"of torch's": mean}
    for result in results:
        seconds = result["seconds"]
        if "scikit-learn" in seconds and (found := TABLE.fullmatch(result["name"])):
            how = f", {found['how']}" if found["how"] else ""
            name = f"{found['work'].replace('StandardScaler.', '')}{how}, {found['columns']} columns"
            rows[name] = {"of scikit-learn's": seconds[OURS] / seconds["scikit-learn"]}
    return rows


def norm_means(sweep: Result) -> dict[str, float]:
    """Return the mean share of torch's time that each norm's calls in the sweep take."""
    shares: dict[str, list[float]] = {}
    for case in sweep["cases"]:
        shares.setdefault(case["case"]["norm"], []).append(case["ratio"])
    return {norm: sum(values) / len(values) for norm, values in sorted(shares.items())}


def main() -> None:
    """Take the pictures."""
    taken = take_pictures(DOCS / "images")
    print(f"took {', '.join(taken)}" if taken else "the README's pictures show the page as it is")


if __name__ == "__main__":
    main()
