"""Time evenkeel against a plain memory copy and its peers, in one process, as ratios of medians.

Usage: python -m benchmarks [SUITE ...] [--case TEXT] [--threads 1,2] [--repeats N] [--out results.json]

First whole models, with the first thread count alone: times of each owner of their norms, and of models that were
converted, as ratios to torch's, with the 90 % interval of the median; "≈1" where that interval holds 1. Then a line per
case and contender: evenkeel's time in copies of the same data, its share of the contender's time, and the limit where
the project has set itself one. Absolute times mean nothing on a shared machine.
"""

from benchmarks.beginning import begin, carry_out

if __name__ == "__main__":
    begin()

import argparse
import dataclasses
import datetime
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks import channels, columns, compiled, convert, images, model, parquet, rows, stores, watching
from benchmarks.timing import MODEL_OWNERS, Measurable, Result, model_rows
from evenkeel.cli.info import collect_info

SUITES: dict[str, Callable[[], Iterator[Measurable]]] = {
    "model": model.cases,
    "convert": convert.cases,
    "rows": rows.cases,
    "channels": channels.cases,
    "columns": columns.cases,
    "images": images.cases,
    "parquet": parquet.cases,
    "stores": stores.cases,
    "compiled": compiled.cases,
    "watching": watching.cases,
}


WHOLE = ("model", "convert")  # suites of whole models


def describe(result: Result) -> str:
    """Return the line of a result; of a whole model, its rows."""
    if result.ratios:
        return "\n".join(map(aligned, model_rows(result)))
    parts = []
    for contender, share, limit in result.shares():
        verdict = "" if limit is None else f" ({'within' if share <= limit else 'MISSES'} {limit:g})"
        parts.append(f"{share:.2f} {'copies' if contender == 'copy' else f'of {contender}'}{verdict}")
    return f"{result.name}: {'; '.join(parts)}"


def aligned(cells: Iterable[str]) -> str:
    """Return a row of the table of whole models, which has 127 columns."""
    name, *rest = cells
    return f"{name:47}" + "".join(f" {cell:>{7 if index == 0 else 14}}" for index, cell in enumerate(rest))


def main() -> None:
    """Run the suites and print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all by default")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--threads", default=f"{torch.get_num_threads()},1", help="comma-separated thread counts")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if unknown := [name for name in options.suites if name not in SUITES]:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(SUITES)}")

    facts = collect_info()  # of the machine as it was found, before the threads are set
    results = []
    counts = [int(n) for n in options.threads.split(",")]
    for threads, suite in itertools.product(counts, options.suites or SUITES):
        if suite in WHOLE and threads != counts[0]:
            continue  # takes minutes
        torch.set_num_threads(threads)
        print(f"\n{suite}, {threads} thread{'s' if threads > 1 else ''}")
        if suite in WHOLE:
            print(aligned(["time and bytes as shares of torch's", "torch", *MODEL_OWNERS]))
        for case in SUITES[suite]():
            if options.case in case.name:
                for result in case.measure(suite, threads, options.repeats):
                    results.append(result)
                    print(describe(result), flush=True)
    if options.out:
        run = {
            "date": str(datetime.datetime.now(tz=datetime.UTC).date()),
            "machine": facts["machine"],
            "versions": {**facts["versions"], "scikit-learn": version("scikit-learn")},
            "simd": facts["compiled"].get("simd level", "none"),
            "repeats": options.repeats,
            "results": [dataclasses.asdict(result) for result in results],
        }
        options.out.write_text(json.dumps(run, indent=1), encoding="utf-8")


if __name__ == "__main__":
    carry_out(main)
