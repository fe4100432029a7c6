"""Small studies for the tests: their settings, what they wrote, and observers that stop them or listen."""

import json

from evenkeel.lab import Observer

RATE = 0.002
TINY = {
    "depth": 1,
    "width": 8,
    "heads": 2,
    "context": 8,
    "batch": 2,
    "steps": 12,
    "threads": 1,
    "lr": (RATE,),
    "seeds": 1,
}


def folder(out, arm, seed=0):
    """Where a run of TINY writes."""
    return out / "arms" / f"{arm}-lr{RATE:g}-seed{seed}"


def records(out, arm, kind, seed=0):
    lines = (folder(out, arm, seed) / "records.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def measured(out):
    """The bytes of every record of a study, by run; nothing in them depends on the clock."""
    return {path.parent.name: path.read_bytes() for path in sorted(out.glob("arms/*/records.jsonl"))}


class InterruptAfter(Observer):
    """Raises what Ctrl-C raises, after this many steps."""

    def __init__(self, steps):
        self.left = steps

    def step_done(self, run, step, loss, tokens_per_second):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Names(Observer):
    """Remembers the names of the arms it is told of, and what processes were lost."""

    def __init__(self):
        self.skipped, self.ended, self.lost = [], [], []

    def run_skipped(self, run):
        self.skipped.append(run.arm.name)

    def run_ended(self, run, status):
        self.ended.append(run.arm.name)

    def worker_lost(self, run, reason):
        self.lost.append((run.arm.name, reason))
