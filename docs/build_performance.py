"""Write docs/performance.md, its charts and the README's from the benchmarks' JSON: `make performance`.

Usage: python docs/build_performance.py results.json sweep.json [more sweeps] [--page docs/performance.md]

The first sweep is drawn. Of all of them measurements/sweeps.json beside the page keeps the summary, in place of that of
the same processor, SIMD level and number of threads: a page has more processors than one machine. Beside the folder of
the page lies the README, whose chart and caption stand between its markers. A run on a GPU, measurements/gpu.json
beside the page, gets a section of its own.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from build_readme import write_speed
from charts import dot_chart, scatter_chart, write_chart
from measured_gpu import gpu_section

from benchmarks import timing
from benchmarks.timing import MODEL_OWNERS, OURS
from evenkeel.report import write_text_atomically

DOCS = Path(__file__).parent
YARDSTICK = "copy"
SUITES = {
    "rows": "LayerNorm, RMSNorm and their relatives over the last axis",
    "channels": "BatchNorm, GroupNorm and InstanceNorm",
    "columns": "Statistics and scaling of tables",
    "images": "Pictures",
    "parquet": "Parquet directories",
    "stores": "Object stores",
    "compiled": "Inside torch.compile",
    "watching": "Training under the doctor's watch",
}
NOTES = {
    "columns": (
        "A copy is here one read of the table: torch's sum of the same elements, which runs at the speed of memory."
    ),
    "parquet": "*scan* is PyArrow reading the same directory and doing nothing with it.",
    "stores": "*scan* is PyArrow reading the same columns from the same server, which is on this machine too.",
    "compiled": (
        "An operator of ours is opaque to Inductor: it does not fuse with its neighbours. *operator* is that, *traced* "
        'lets Inductor see plain PyTorch code (`backend="reference"`) and fuse it, *torch* is torch.nn\'s module, '
        'compiled. **The rule: `backend="auto"` runs the operator while compiling, as without a compiler**: it '
        "was faster forward and about as fast forward + backward even between neighbours that fuse ([log](log.md)), "
        "and it keeps the bits of the uncompiled model where Inductor keeps the tensors' layout. Where a profile says "
        "otherwise, a module's "
        '`backend="reference"` chooses the other. torch.nn\'s LayerNorm and RMSNorm, fused with an addition and a GELU '
        "and nothing else, take less time forward than ours; with the backward, or beside a matrix product, they are "
        "even."
        " Exported programs (`torch.export`, ONNX) always hold torch's own operators."
    ),
}
Result = dict[str, Any]


def contenders(results: Iterable[Result]) -> list[str]:
    """Who is compared with us, in the order they appear."""
    return list(dict.fromkeys(by for result in results for by in result["seconds"] if by not in (OURS, YARDSTICK)))


def share(result: Result, contender: str) -> float | None:
    """Our time as a share of a contender's, or None where it has none."""
    seconds = result["seconds"]
    return seconds[OURS] / seconds[contender] if contender in seconds else None


def cell(result: Result, contender: str) -> str:
    """A share, with the project's limit for it; bold where it misses."""
    value = share(result, contender)
    if value is None:
        return ""
    limit = result["limits"].get(contender)
    shown = f"{value:.2f}"
    if limit is None:
        return shown
    return f"{shown} (≤ {limit:g})" if value <= limit else f"**{shown}** (≤ {limit:g})"


def table(results: list[Result]) -> list[str]:
    """A row for each case."""
    others = contenders(results)
    copies = any(YARDSTICK in result["seconds"] for result in results)
    heads = ["case", *(["copies"] if copies else []), *(f"of {by}" for by in others)]
    return markdown(
        heads,
        (
            [result["name"], *([cell(result, YARDSTICK)] if copies else []), *(cell(result, by) for by in others)]
            for result in results
        ),
    )


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def chart(suite: str, results: list[Result], threads: int, folder: Path) -> str:
    """Our share of each contender's time."""
    others = contenders(results)
    rows = {
        result["name"]: {f"of {by}": value for by in others if (value := share(result, by)) is not None}
        for result in results
    }
    drawn = dot_chart(
        f"{suite}, {count(threads)}: our time as a share of theirs",
        "left of the line: ours is faster",
        {name: values for name, values in rows.items() if values},
        line=1.0,
        said="as fast",
    )
    return write_chart(folder / "images" / f"performance-{suite}-{threads}.svg", drawn)


def count(threads: int) -> str:
    """A number of threads in words."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def section(suite: str, results: list[Result], folder: Path) -> list[str]:
    """The heading, the note, and per thread count the chart and the table."""
    lines = [f"## {SUITES.get(suite, suite)}", ""]
    if suite in NOTES:
        lines += [NOTES[suite], ""]
    for threads in dict.fromkeys(result["threads"] for result in results):
        found = [result for result in results if result["threads"] == threads]
        lines += [f"### {count(threads)}", "", chart(suite, found, threads, folder), "", *table(found), ""]
    return lines


def whole_models(results: list[Result], folder: Path) -> list[str]:
    """The section of the whole models: the picture, who the owners are, and the table."""
    threads = count(results[0]["threads"])
    drawn = dot_chart(
        f"Whole models, {threads}: time by owner of the norms as a share of torch's",
        "left of the line: faster than with torch's norms; the lines are 90 % intervals of the median",
        {r["name"]: {by: r["ratios"][by][0] for by in (OURS, *MODEL_OWNERS) if by in r["ratios"]} for r in results},
        line=1.0,
        said="as fast",
        intervals={r["name"]: {by: (low, high) for by, (_, low, high) in r["ratios"].items()} for r in results},
    )
    rows = (row for result in results for row in timing.model_rows(timing.Result(**result)))
    return [
        "## Whole models",
        "",
        write_chart(folder / "images" / "performance-model.svg", drawn),
        "",
        "Each model of `benchmarks/networks.py` has the same weights for every owner of its norms. A step is forward, "
        "backward and SGD; *saved* are the bytes that the forward keeps for the backward, without parameters. "
        "*evenkeel* has its modules in torch's place, *fused* norms that add the residual (`AddRMSNorm`, "
        "`AddLayerNorm`) or apply the activation that follows, *lean* `memory_efficient=True`; *no norms* has "
        "identities: what norms that cost nothing would leave. fp32 and bf16 are the dtype of parameters and data; "
        "*compiled* is torch.compile, in bf16 alone, of the transformers by block. **≈1: the times cannot be told "
        "apart** because the 90 % interval of the median ratio holds 1. Where tensors lie decides some percent of a "
        "model's time, so parameters and buffers move to other memory before every round. Before all that, outputs and "
        f"gradients were compared with those of torch's norms; {threads}.",
        "",
        *markdown(["case", "torch", *MODEL_OWNERS], rows),
        "",
    ]


def conversions(results: list[Result]) -> list[str]:
    """The section of the models before and after `ek.convert`; nothing where none was measured."""
    if not results:
        return []
    rows = ([*row[:2], row[3]] for r in results for row in timing.model_rows(timing.Result(**r)))
    return [
        "## Models before and after `ek.convert`",
        "",
        "Each model of `benchmarks/convert.py` was converted and proved, then both ran in turn. In brackets: how many "
        "places were changed. Folded models are in evaluation. ≈1 as above.",
        "",
        *markdown(["case", "before", "after, share of it"], rows),
        "",
    ]


def add_sweeps(sweeps: Iterable[Result], record: Path) -> list[Result]:
    """Write sweeps' summaries into a record, in place of those of the same kind, and return all."""
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else []
    new = [
        {key: sweep[key] for key in ("date", "processor", "simd", "torch's simd", "threads", "seed")}
        | {"calls": len(sweep["cases"])}
        | {key: sweep["summary"][key] for key in ("mean", "slower than 1.02", "slower than 1.10")}
        for sweep in sweeps
    ]
    kinds = {(one["processor"], one["simd"], -one["threads"]): one for one in [*known, *new]}
    kept = [kinds[kind] for kind in sorted(kinds)]
    record.parent.mkdir(exist_ok=True)
    write_text_atomically(record, json.dumps(kept, indent=1) + "\n")
    return kept


def processors_table(sweeps: Iterable[Result]) -> list[str]:
    """A row for each processor, SIMD level and number of threads."""
    heads = ["processor", "kernels", "torch's", "threads", "calls", "mean share", "above 1.02", "above 1.10", "date"]
    return markdown(
        heads,
        (
            [
                *(str(one[key]) for key in ("processor", "simd", "torch's simd", "threads", "calls")),
                f"{one['mean']:.2f}",
                f"{one['slower than 1.02']:.1%}",
                f"{one['slower than 1.10']:.1%}",
                one["date"],
            ]
            for one in sweeps
        ),
    )


def random_shapes(run: Result, known: Iterable[Result], folder: Path) -> list[str]:
    """The section of the sweeps: the picture, all processors, the shares of norms and the slowest cases."""
    cases, numbers = run["cases"], run["summary"]
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for case in cases:
        said = f"{case['name']}: {case['ratio']:.2f}"
        norm = case["case"]["norm"].removeprefix("add ")  # a norm has one colour, of a sum too
        groups.setdefault(norm, []).append((case["theirs"] * 1e6, case["ratio"], said))
    title = f"{len(cases)} calls on shapes drawn at random: {numbers['mean']:.2f} of torch's time in the mean"
    drawn = scatter_chart(
        title, ("torch's time, µs", "evenkeel's share of it; below the line is faster"), groups, line=1.0
    )
    worst = sorted(cases, key=lambda case: case["ratio"], reverse=True)[:15]
    return [
        "## Shapes drawn at random",
        "",
        f"`make bench-sweep` draws shapes, dtypes, layouts and passes anew in each run (here: seed {run['seed']}, "
        f"{count(run['threads'])}). {numbers['ratio above 1']:.1%} of the calls take longer than torch's; "
        f"{numbers['slower than 1.10']:.1%} take more than 1.10 of its time, not counting calls of less than 100 µs "
        "that take at most 10 µs more (25 with gradients).",
        "",
        write_chart(folder / "images" / "performance-sweep.svg", drawn),
        "",
        "Sweeps by processor, counted in the same way:",
        "",
        *processors_table(known),
        "",
        "The norms in the run drawn above:",
        "",
        *markdown(
            ["norm", "mean share of torch's time"], ([kind, f"{mean:.2f}"] for kind, mean in numbers["kinds"].items())
        ),
        "",
        "The slowest against torch:",
        "",
        *markdown(
            ["share", "µs", "torch's µs", "case"],
            ([f"{c['ratio']:.2f}", f"{c['ours'] * 1e6:.0f}", f"{c['theirs'] * 1e6:.0f}", c["name"]] for c in worst),
        ),
        "",
    ]


def main() -> None:
    """Read the results and write the page."""
    parser = argparse.ArgumentParser(description="Write the page of performance; `make performance` makes all.")
    parser.add_argument("results", type=Path)
    parser.add_argument("sweeps", type=Path, nargs="+", metavar="sweep")
    parser.add_argument("--page", type=Path, default=DOCS / "performance.md")
    options = parser.parse_args()
    run, *sweeps = (json.loads(path.read_text(encoding="utf-8")) for path in (options.results, *options.sweeps))
    machine, versions = run["machine"], run["versions"]
    results: list[Result] = run["results"]
    limited = [(share(r, by), limit) for r in results for by, limit in r["limits"].items() if by in r["seconds"]]
    missed = sum(value is not None and value > limit for value, limit in limited)
    processors = machine["threads"].rpartition(", ")[2]  # each section says how many threads torch used
    lines = [
        "# Performance",
        "",
        "Written by `make performance`; edit `docs/build_performance.py` or `benchmarks/`, not this page.",
        "",
        "All contenders of a case run in turn in one process; figures are ratios of medians. *copies* is our time in "
        "plain memory copies of the same tensor, *of X* our time as a share of X's: below 1 ours is faster. A limit in "
        "brackets is the project's own target; bold misses it. Fresh large outputs cost page faults: cases say where "
        "outputs are reused (`out=`).",
        "",
        f"{len(limited) - missed} of {len(limited)} targets are met; the machine is shared, so that figures near a "
        "limit change sides from run to run.",
        "",
        f"{run['date']}; {machine['processor']}, {machine['system']}, {processors}; "
        f"evenkeel {versions['evenkeel']} ({run['simd']}), torch {versions['torch']}, Python {versions['python']}; "
        f"{run['repeats']} repeats.",
        "",
    ]
    suites: dict[str, list[Result]] = {}
    for result in results:
        suites.setdefault(result["suite"], []).append(result)
    if models := suites.pop("model", []):
        lines += whole_models(models, options.page.parent)
    lines += conversions(suites.pop("convert", []))
    known = add_sweeps(sweeps, options.page.parent / "measurements" / "sweeps.json")
    lines += random_shapes(sweeps[0], known, options.page.parent)
    for suite, found in suites.items():
        lines += section(suite, found, options.page.parent)
    on_gpu = options.page.parent / "measurements" / "gpu.json"
    if on_gpu.exists():
        lines += gpu_section(json.loads(on_gpu.read_text(encoding="utf-8")), options.page.parent)
    write_text_atomically(options.page, "\n".join(lines))
    write_speed(run, sweeps[0], options.page.parents[1] / "README.md")
    print(f"wrote {options.page}: {len(results)} cases, {missed} targets missed")


if __name__ == "__main__":
    main()
