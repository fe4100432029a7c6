"""Small studies for the tests: their settings, what they wrote, and observers that stop them or listen."""

import json

from evenkeel.lab import Observer

TINY = {"depth": 1, "width": 8, "heads": 2, "context": 8, "batch": 2, "steps": 12, "threads": 1}


def records(out, arm, kind, seed=0):
    lines = (out / "arms" / f"{arm}-seed{seed}" / "records.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def measured(out, arm):
    """Everything in an arm's records that does not depend on the clock."""
    train = [(r["step"], r["loss"], r["gradient_norm"], r["learning_rate"]) for r in records(out, arm, "train")]
    return train, records(out, arm, "validation"), records(out, arm, "probe"), records(out, arm, "end")


class InterruptAfter(Observer):
    """Raises what Ctrl-C raises, after this many steps."""

    def __init__(self, steps):
        self.left = steps

    def step_done(self, step, loss, tokens_per_second):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Names(Observer):
    """Remembers the names of the arms it is told of."""

    def __init__(self):
        self.skipped, self.ended = [], []

    def arm_skipped(self, arm, seed):
        self.skipped.append(arm.name)

    def arm_ended(self, arm, seed, status):
        self.ended.append(arm.name)
