"""Synthetic records of the experiments on the transformer, and the verdicts that follow from them."""

from lab.experiments.spreads import AGREES, DISAGREES, PARTLY, UNDECIDED, both_signs, near, wide

from evenkeel.lab.experiments import EXPERIMENTS


def gradients(post, pre, stream, before_last, by_width, first, spread=near):
    """The last gradient's exponents in depth (Post-LN, Pre-LN) and width, and the first gradient over the last one."""

    def measure(trial):
        depth, wide_by = trial["depth"], trial["width"] / 8
        arm_exponent = post if trial["arm"] == "post-layer" else pre
        last = spread((1 + depth / 2) ** arm_exponent * wide_by**by_width, trial)
        return {
            "stream": [1 + stream * layer for layer in range(depth + 1)],
            "before_last_norm": spread(before_last, trial),
            "gradients": [last * spread(first, trial), *[last] * (depth - 1)],
        }

    return measure


LINEAR = [1.0 + layer for layer in range(9)]
EXPONENTIAL = [1.5**layer for layer in range(9)]
FLAT = [1.0] * 9
GROWTH_ARMS = EXPERIMENTS["residual-growth"].options().arms
NEITHER = [1.0] * 4 + [1000.0] * 5


def growth(start, end, damped=1.0, spread=near):
    """Profiles by arm, before training and after it; the others are flat."""

    def profile(shapes, trial):
        *first, last = shapes.get(trial["arm"], FLAT)
        return [*first, spread(last * (damped if trial["arm"] == "damped-layer" else 1.0), trial)]

    return lambda trial: {"start": profile(start, trial), "end": profile(end, trial), "loss": 2.0, "steps": 3}


def rates(highest):
    """The highest rate that trains, by arm, with warm-up and without."""

    def measure(trial):
        failed = trial["rate"] > highest[trial["arm"]][0 if trial["warmup"] else 1]
        return {"loss": 5.0 if failed else 2.0, "failed": failed, "steps": 4}

    return measure


def depths(learned):
    """The greatest depth that learns, by remedy; the others reach the last."""

    def measure(trial):
        failed = trial["depth"] > learned.get(trial["remedy"], 4)
        return {"loss": None if failed else 2.0, "failed": failed}

    return measure


def centring(shares, spread=near):
    def measure(trial):
        norms = [{"share": spread(share, trial), "difference": spread(share, trial)} for share in shares]
        return {"start": norms, "end": norms, "loss": 2.0}

    return measure


def biases(loss, seconds, spread=near):
    """How much the loss and the time of a step are larger without biases."""

    def measure(trial):
        with_ = {"losses": [3.0, 2.0], "validation": 2.0, "parameters": 110, "step_seconds": 1.0}
        without = {
            "losses": [3.0, 2.0],
            "validation": 2.0 + spread(loss, trial),
            "parameters": 100,
            "step_seconds": 1.0 + spread(seconds, trial),
        }
        return {"with biases": with_, "without biases": without}

    return measure


def cost(step, alone, memory, spread=near):
    """The share of time and memory that RMSNorm saves."""

    def both(saved, trial):
        return {"LayerNorm": 1.0, "RMSNorm": 1.0 - spread(saved, trial)}

    def measure(trial):
        shares = {"LayerNorm": 0.2, "RMSNorm": 0.1}
        contenders = both(alone, trial) | {"torch LayerNorm": 2.0, "torch RMSNorm": 3.0}
        kept = {"kept_alone": contenders, "kept_step": both(memory, trial)}
        return {"alone": contenders, "step": both(step, trial), "share": shares, **kept}

    return measure


TRAINED = {"depth": 1, "width": 8, "heads": 1}

# experiment -> its options, and for each case what a trial measures and the verdicts, in the order of the claims
TRANSFORMER_CASES = {
    "gradients-at-init": (
        {"depths": (2, 4, 8), "widths": (8, 16, 32), "width": 8, "depth": 2},
        {
            "agree": (gradients(0.0, -0.5, 0.5, 1.5, 0.5, 0.01), [AGREES] * 7),
            "disagree": (gradients(1.0, 1.0, 5.0, 3.0, 4.0, 1.0), [DISAGREES] * 7),
            "undecided": (
                gradients(0.0, -0.5, 0.5, 1.5, 0.5, 0.1, spread=wide),
                [UNDECIDED, UNDECIDED, AGREES, UNDECIDED, UNDECIDED, UNDECIDED, UNDECIDED],
            ),
        },
    ),
    "residual-growth": (
        {**TRAINED, "depth": 8},
        {
            "agree": (
                growth(
                    {"none": EXPONENTIAL, "pre-layer": LINEAR, "output-only-layer": LINEAR},
                    {"pre-layer": EXPONENTIAL, "peri-layer": LINEAR},
                ),
                [AGREES] * 8,
            ),
            "disagree": (
                growth(
                    {"none": LINEAR, "pre-layer": EXPONENTIAL, "output-only-layer": EXPONENTIAL},
                    {"pre-layer": LINEAR, **dict.fromkeys(("post-layer", "peri-layer", "deepnorm-layer"), EXPONENTIAL)},
                    damped=100.0,
                ),
                [DISAGREES] * 8,
            ),
            "neither shape": (
                growth(dict.fromkeys(GROWTH_ARMS, NEITHER), dict.fromkeys(GROWTH_ARMS, NEITHER), spread=wide),
                [*[DISAGREES] * 7, UNDECIDED],
            ),
        },
    ),
    "learning-rate": (
        {**TRAINED, "rates": (1e-3, 1e-2, 1e-1)},
        {
            "agree": (
                rates({"none": (1e-3, 1e-3), "post-layer": (1e-1, 1e-2), "pre-layer": (1e-2, 1e-2)}),
                [AGREES, AGREES, AGREES],
            ),
            "disagree": (
                rates({"none": (1e-1, 1e-1), "post-layer": (1e-2, 1e-2), "pre-layer": (1e-1, 1e-2)}),
                [DISAGREES, DISAGREES, DISAGREES],
            ),
            "one norm of two": (
                rates({"none": (1e-2, 1e-2), "post-layer": (1e-2, 0.0), "pre-layer": (1e-1, 1e-1)}),
                [PARTLY, AGREES, AGREES],
            ),
            "no rate without norm": (
                rates({"none": (0.0, 0.0), "post-layer": (1e-3, 0.0), "pre-layer": (1e-3, 1e-3)}),
                [AGREES, AGREES, AGREES],
            ),
        },
    ),
    "without-norm": (
        {"depths": (2, 4), "width": 8, "heads": 1},
        {
            "agree": (depths({"no norm": 2}), [AGREES] * 4),
            "disagree": (
                depths({"LayerNorm": 2, "no norm, 1/sqrt(2L) init": 2, "no norm, zero init": 0, "DyT": 0}),
                [DISAGREES] * 4,
            ),
            "some way": (
                depths({"no norm": 0, "no norm, 1/sqrt(2L) init": 2, "no norm, zero init": 2, "DyT": 2}),
                [AGREES, PARTLY, PARTLY, PARTLY],
            ),
        },
    ),
    "centring": (
        {**TRAINED, "arms": ("pre-rms",)},
        {
            "agree": (centring([1e-3, 2e-3]), [AGREES]),
            "disagree": (centring([0.5, 0.6]), [DISAGREES]),
            "undecided": (centring([0.01, 0.01], spread=wide), [UNDECIDED]),
            "one norm above": (centring([1e-3, 0.011]), [PARTLY]),
        },
    ),
    "bias-terms": (
        TRAINED,
        {
            "agree": (biases(0.0, -0.1), [AGREES, AGREES]),
            "disagree": (biases(0.5, 0.1), [DISAGREES, DISAGREES]),
            "undecided": (biases(0.05, 0.1, spread=both_signs), [UNDECIDED, UNDECIDED]),
        },
    ),
    "cost": (
        {"widths": (8, 16), "heads": 1},
        {
            "agree": (cost(0.2, 0.2, 0.3), [AGREES, AGREES, AGREES]),
            "disagree": (cost(0.01, -0.2, 0.0), [DISAGREES, DISAGREES, DISAGREES]),
            "undecided": (cost(0.2, 0.1, 0.1, spread=both_signs), [UNDECIDED, UNDECIDED, UNDECIDED]),
        },
    ),
}
