"""Time evenkeel against a plain memory copy and its peers, in one process, as ratios of medians.

Usage: python -m benchmarks [SUITE ...] [--case TEXT] [--threads 1,2] [--repeats N] [--out results.json]

A line per case and contender: evenkeel's time in copies of the same data, its share of the contender's time, and the
limit where the project has set itself one. Absolute times mean nothing on a shared machine.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import columns, images, parquet, rows
from benchmarks.timing import Case, Result, median_seconds

SUITES: dict[str, Callable[[], Iterator[Case]]] = {
    "rows": rows.cases,
    "columns": columns.cases,
    "images": images.cases,
    "parquet": parquet.cases,
}


def measure(suite: str, case: Case, threads: int, repeats: int) -> Result:
    """Time one case."""
    seconds = median_seconds(case.calls, repeats)
    return Result(suite=suite, name=case.name, threads=threads, seconds=seconds, limits=dict(case.limits))


def describe(result: Result) -> str:
    """Return the line of a result."""
    parts = []
    for contender, share, limit in result.shares():
        verdict = "" if limit is None else f" ({'within' if share <= limit else 'MISSES'} {limit:g})"
        parts.append(f"{share:.2f} {'copies' if contender == 'copy' else f'of {contender}'}{verdict}")
    return f"{result.name}: {'; '.join(parts)}"


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

    results = []
    for threads in (int(n) for n in options.threads.split(",")):
        torch.set_num_threads(threads)
        for suite in options.suites or SUITES:
            print(f"\n{suite}, {threads} thread{'s' if threads > 1 else ''}")
            for case in SUITES[suite]():
                if options.case in case.name:
                    results.append(measure(suite, case, threads, options.repeats))
                    print(describe(results[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
