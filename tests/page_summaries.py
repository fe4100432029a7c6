"""Summaries for the tests of the study page: synthetic curves, computed by formula so that answers are known."""

import itertools
import math
import random

LAYOUT = {
    # name: (norm, placement, final loss, residual growth a block, gradient decay a block, share of norms)
    "none": ("none", "none", 2.20, 1.15, 1.05, 0.0),
    "post-layer": ("layer", "post", 1.62, 1.00, 0.80, 0.11),
    "pre-layer": ("layer", "pre", 1.46, 1.30, 1.10, 0.11),
    "pre-rms": ("rms", "pre", 1.45, 1.31, 1.10, 0.07),
    "peri-rms": ("rms", "peri", 1.43, 1.22, 1.02, 0.13),
    "pre-batch": ("batch", "pre", 1.10, 1.25, 1.40, 0.24),
}


def histogram(deviation, bins=40):
    edges = [(-5 + 10 * i / bins) * deviation for i in range(bins + 1)]
    middles = [(a + b) / 2 / deviation for a, b in itertools.pairwise(edges)]
    return {"edges": edges, "counts": [round(1e5 * math.exp(-(m**2) / 2)) for m in middles]}


def probe(step, depth, norm, growth, decay):
    trained = 1 + step / 200
    rms = [0.9 * trained * growth**layer for layer in range(depth + 1)]
    record = {
        "kind": "probe",
        "step": step,
        "residual": [
            {"layer": i, "rms": value, "mean2_over_rms2": 0.002 * (i + 1) * trained / growth}
            for i, value in enumerate(rms)
        ],
        "gradients": [{"group": "embedding", "block": None, "norm": 0.3}],
        "norms": [],
        "widest": None,
    }
    for block in range(depth):
        for kind, size in (("attention", 3.0), ("feed_forward", 4.0), ("norm", 0.1)):
            if kind == "norm" and norm == "none":
                continue
            record["gradients"].append(
                {"group": f"blocks.{block}.{kind}", "block": block, "norm": size * decay**-block}
            )
        if norm != "none":
            for which in ("norm1", "norm2"):
                place = {"norm": f"blocks.{block}.{which}", "block": block}
                record["norms"].append(place | {"before": rms[block], "after": 1.0})
                record["widest"] = place | {"before": histogram(rms[block]), "after": histogram(1.0)}
    return record


def run(name, seed, *, steps=300, depth=4, status="finished", lr=0.002):
    """A run; at ten times the rate or a tenth of it the loss is higher by 0.1."""
    norm, placement, final, growth, decay, _ = LAYOUT.get(name, LAYOUT["pre-rms"])
    noise = random.Random(f"{name} {seed}")
    shift = 0.02 * (seed - 1) + 0.1 * abs(math.log10(lr / 0.002))
    end = {"finished": steps, "running": steps // 2, "diverged": steps // 5}[status]
    train_steps = list(range(1, end + 1))
    loss = [final + shift + (5.55 - final) * math.exp(-6 * s / steps) + noise.gauss(0, 0.05) for s in train_steps]
    validation_steps = list(range(0, end + 1, 20))
    validation = [final + shift + (5.55 - final) * math.exp(-6 * s / steps) for s in validation_steps]
    if status == "diverged":
        loss[-1] = validation[-1] = None
    if status == "finished":
        validation[-1] = final + shift
    return {
        "name": name,
        "lr": lr,
        "warmup": steps // 10,
        "seed": seed,
        "status": status,
        "parameters": 812_544,
        "norm": norm,
        "placement": placement,
        "feed_forward": "gelu",
        "bias": True,
        "qk_norm": False,
        "leaks": norm == "batch",
        "train": {
            "step": train_steps,
            "loss": loss,
            "gradient_norm": [1.0] * end,
            "learning_rate": [1e-3] * end,
        },
        "validation": {"step": validation_steps, "loss": validation},
        "probes": [probe(s, depth, norm, growth, decay) for s in (0, steps) if s <= end],
        "final_validation_loss": validation[-1] if status == "finished" else None,
        "leak": None if status != "finished" else 0.05 if norm == "batch" else 0.0,
    }


def cost(name):
    """Nine rounds around the layout's share of a step that takes 50 ms without norm; they differ by 2 %."""
    share = LAYOUT.get(name, LAYOUT["pre-rms"])[-1]
    step = 0.05 / (1 - share)
    rounds = [1 + 0.005 * (index - 4) for index in range(9)]
    return {"step_seconds": [step * r for r in rounds], "norm_seconds": [share * step * r for r in rounds]}


def summary(names=tuple(LAYOUT), *, seeds=1, statuses=None, steps=300, depth=4, findings=(), rates=(0.002,)):
    """A whole summary; `statuses` maps an arm's name, or its name and rate, to a status other than finished."""
    statuses = statuses or {}

    def status(name, lr):
        return statuses.get((name, lr), statuses.get(name, "finished"))

    return {
        "format": 2,
        "evenkeel": "0.1.0",
        "torch": "2.13.0",
        "created": "2026-01-02T03:04:05+00:00",
        "machine": {"processor": "a processor", "threads": 2, "system": "Linux"},
        "settings": {"text": None, "arms": list(names), "depth": depth, "width": 128, "steps": steps, "seeds": seeds}
        | {"lr": list(rates)},
        "corpus": {
            "source": "the Python standard library",
            "train_files": 700,
            "validation_files": 70,
            "train_bytes": 11_000_000,
            "validation_bytes": 1_100_000,
        },
        "arms": [
            run(name, seed, lr=lr, steps=steps, depth=depth, status=status(name, lr))
            for name in names
            for lr in rates
            for seed in range(seeds)
        ],
        "costs": {name: cost(name) for name in names},
        "findings": list(findings),
    }
