"""Time evenkeel against a plain memory copy and its peers, in one process, as ratios of medians.

Usage: python -m benchmarks [SUITE ...] [--case TEXT] [--threads 1,2] [--repeats N] [--out results.json]

A line per case and contender: evenkeel's time in copies of the same data, its share of the contender's time, and the
limit where the project has set itself one. Absolute times mean nothing on a shared machine.
"""

import argparse
import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks import channels, columns, compiled, images, model, parquet, rows
from benchmarks.timing import OURS, WITHOUT_NORMS, Case, Result, median_seconds
from evenkeel.cli.info import collect_info

SUITES: dict[str, Callable[[], Iterator[Case]]] = {
    "rows": rows.cases,
    "channels": channels.cases,
    "columns": columns.cases,
    "images": images.cases,
    "parquet": parquet.cases,
    "model": model.cases,
    "compiled": compiled.cases,
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
    parts += [f"norms take {share:.0%} of the step with {owner}'s" for owner, share in norm_shares(result).items()]
    return f"{result.name}: {'; '.join(parts)}"


def norm_shares(result: Result) -> dict[str, float]:
    """Return by contender the share of the time that would go if norms cost nothing, where that was measured."""
    seconds = result.seconds
    if WITHOUT_NORMS not in seconds:
        return {}
    return {owner: 1 - seconds[WITHOUT_NORMS] / seconds[owner] for owner in (OURS, "torch")}


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
    for threads in (int(n) for n in options.threads.split(",")):
        torch.set_num_threads(threads)
        for suite in options.suites or SUITES:
            print(f"\n{suite}, {threads} thread{'s' if threads > 1 else ''}")
            for case in SUITES[suite]():
                if options.case in case.name:
                    results.append(measure(suite, case, threads, options.repeats))
                    print(describe(results[-1]), flush=True)
    if options.out:
        run = {
            "date": str(datetime.datetime.now(tz=datetime.UTC).date()),
            "machine": facts["machine"],
            "versions": facts["versions"],
            "simd": facts["compiled"].get("simd level", "none"),
            "repeats": options.repeats,
            "results": [dataclasses.asdict(result) for result in results],
        }
        options.out.write_text(json.dumps(run, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
