"""What every experiment concludes from records whose answer is known: agree, disagree, undecided, and missing data."""

import pytest

from evenkeel.lab.experiments import EXPERIMENTS, VERDICTS

AGREES, PARTLY, DISAGREES, UNDECIDED = VERDICTS


def near(value, trial):
    """Almost the same value for every seed: a narrow interval."""
    return value * (1 + 1e-3 * trial["seed"])


def wide(value, trial):
    """A value so different from seed to seed that its interval covers both sides of any threshold below it."""
    return value * (0.01, 1.0, 1.99)[trial["seed"]]


def scaling(final, condition, moved, spread=near):
    def measure(trial):
        which = trial["preparation"] == "standardized"
        end = spread(final[which], trial)
        return {
            "steps": [0, 10],
            "losses": [2.0, end],
            "final": end,
            "accuracy": 0.9,
            "condition": condition[which],
            "moved": [1.0] * 12 + [spread(moved[which], trial)],
        }

    return measure


def convergence(plain, norm):
    """The steps of each seed to the target, at x1 and at x5, without norm and with BatchNorm."""

    def measure(trial):
        reached = (norm if trial["norm"] == "batch" else plain)[trial["factor"] > 1][trial["seed"]]
        return {"steps": [0, 20], "accuracy": [0.1, 0.9], "reached": reached, "finite": True}

    return measure


def noise(gap, mode, spread=near):
    """Gap and difference of the modes at the small batch, by norm; both are 1 and 0.01 at the large batch."""

    def measure(trial):
        small = trial["batch"] == 4
        own, difference = gap[trial["norm"]], mode[trial["norm"]]
        return {
            "train_accuracy": 1.0,
            "test_accuracy": 0.9,
            "gap": spread(own, trial) if small else 1.0,
            "test_loss": 0.5,
            "mode_difference": difference if not small else near(difference, trial) * (4 if own < 1 else 0.25),
        }

    return measure


def shift(drift, accuracy, spread=near):
    def measure(trial):
        network = trial["network"]
        ways = [[spread(drift[network], trial)] * 2] * 2
        return {"steps": [0, 20, 40], "accuracy": [0.1] + [spread(accuracy[network], trial)] * 2, "drift": ways}

    return measure


def order(before, after, spread=near):
    def measure(trial):
        value = spread(before if trial["order"] == "before" else after, trial)
        return {"steps": [0, 20], "accuracy": [0.1, value], "loss": 0.5}

    return measure


def padding(polluted, masked, layer, share=0.5):
    return lambda trial: {"padding": share, "polluted": polluted, "masked": masked, "layer": layer}


def recurrent(loss, beyond, spread=near):
    """Training losses by norm, and the validation loss at the longest length less that at the others."""

    def measure(trial):
        norm = trial["norm"]
        longer = spread(beyond[norm], trial) if norm in beyond else 0.0
        lengths = {"6": 3.0, "12": 2.0, "24": 2.0 + longer}
        return {"losses": [spread(loss[norm], trial)] * 3, "lengths": lengths}

    return measure


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


def both_signs(value, trial):
    """Positive for one seed and negative for another."""
    return value * (-1, 1, 0.5)[trial["seed"]]


ALL_REACHED, NONE_REACHED = (40, 40, 40), (None, None, None)
QUICK, SLOW, MIXED = (20, 20, 20), (60, 60, 60), (20, None, 60)
NORM_FREE = {"layer": 1.0, "rms": 1.0, "none": 1.0}
EXACT = {"batch": 0.01, "layer": 0.0, "rms": 0.0, "none": 0.0}
TRAINED = {"depth": 1, "width": 8, "heads": 1}

# experiment -> its options, and for each case what a trial measures and the verdicts, in the order of the claims
CASES = {
    "feature-scaling": (
        {"rates": (1e-3, 1e-1)},
        {
            "agree": (scaling((1.0, 0.1), (1e6, 10.0), (100.0, 2.0)), [AGREES, AGREES, AGREES]),
            "disagree": (scaling((0.1, 1.0), (10.0, 10.0), (2.0, 100.0)), [DISAGREES, DISAGREES, DISAGREES]),
            "undecided": (
                scaling((1.0, 1.1), (1e6, 10.0), (3.0, 3.1), spread=wide),
                [UNDECIDED, AGREES, UNDECIDED],
            ),
            "dependent columns": (scaling((1.0, 0.1), (None, 10.0), (100.0, 2.0)), [AGREES, AGREES, AGREES]),
        },
    ),
    "batchnorm-convergence": (
        {"factors": (1.0, 5.0)},
        {
            "agree": (convergence([SLOW, NONE_REACHED], [ALL_REACHED, QUICK]), [AGREES, AGREES, AGREES]),
            "disagree": (convergence([QUICK, QUICK], [SLOW, NONE_REACHED]), [DISAGREES, DISAGREES, DISAGREES]),
            "undecided": (convergence([ALL_REACHED, MIXED], [MIXED, (10, None, 60)]), [UNDECIDED, UNDECIDED, PARTLY]),
            "trains but not faster": (convergence([SLOW, SLOW], [QUICK, ALL_REACHED]), [AGREES, PARTLY, DISAGREES]),
        },
    ),
    "batchnorm-noise": (
        {"batches": (4, 16)},
        {
            "agree": (noise({"batch": 0.5, **NORM_FREE}, EXACT), [AGREES] * 4),
            "disagree": (noise({"batch": 2.0, **NORM_FREE}, {**EXACT, "rms": 0.1}), [DISAGREES] * 4),
            "undecided": (
                noise({"batch": 1.0, **NORM_FREE}, EXACT, spread=wide),
                [UNDECIDED, UNDECIDED, DISAGREES, AGREES],
            ),
        },
    ),
    "covariate-shift": (
        {},
        {
            "agree": (
                shift({"none": 1.0, "batch": 0.1, "noisy": 3.0}, {"none": 0.5, "batch": 0.9, "noisy": 0.8}),
                [AGREES, AGREES, AGREES],
            ),
            "disagree": (
                shift({"none": 1.0, "batch": 3.0, "noisy": 0.1}, {"none": 0.5, "batch": 0.9, "noisy": 0.2}),
                [DISAGREES, DISAGREES, DISAGREES],
            ),
            "undecided": (
                shift(
                    {"none": 1.0, "batch": 1.1, "noisy": 1.2}, {"none": 0.5, "batch": 0.5, "noisy": 0.5}, spread=wide
                ),
                [UNDECIDED, UNDECIDED, UNDECIDED],
            ),
        },
    ),
    "norm-before-activation": (
        {},
        {
            "agree": (order(0.9, 0.5), [AGREES, AGREES]),
            "disagree": (order(0.5, 0.9), [DISAGREES, DISAGREES]),
            "undecided": (order(0.2, 0.0, spread=both_signs), [UNDECIDED, UNDECIDED]),
        },
    ),
    "padding": (
        {"lengths": (8, 4), "longest": 8},
        {
            "agree": (padding(0.3, 1e-7, 0.0), [AGREES, AGREES, AGREES]),
            "disagree": (padding(1e-7, 0.1, 0.1), [DISAGREES, DISAGREES, DISAGREES]),
            "infinite errors": (padding(None, None, None), [AGREES, DISAGREES, DISAGREES]),
            "nothing padded": (padding(0.0, 0.0, 0.0, share=0.0), [AGREES, AGREES]),
        },
    ),
    "recurrent": (
        {"cells": ("gru",), "length": 12, "lengths": (6, 12, 24)},
        {
            "agree": (
                recurrent({"none": 3.0, "layer": 2.0, "batch": 2.5}, {"batch": 1.0, "layer": 0.1}),
                [AGREES, AGREES],
            ),
            "disagree": (
                recurrent({"none": 2.0, "layer": 3.0, "batch": 2.5}, {"batch": 0.1, "layer": 1.0}),
                [DISAGREES, DISAGREES],
            ),
            "undecided": (
                recurrent({"none": 2.0, "layer": 2.1, "batch": 2.5}, {"batch": 1.0, "layer": 1.1}, spread=wide),
                [UNDECIDED, UNDECIDED],
            ),
            "a loss that falls": (
                recurrent({"none": 3.0, "layer": 2.0, "batch": 2.5}, {"batch": -0.1, "layer": -0.5}),
                [AGREES, DISAGREES],
            ),
        },
    ),
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
NAMED_CASES = [(name, case) for name, (_, cases) in CASES.items() for case in cases]


def synthetic(name, case, seeds=3):
    """The options of an experiment and a record for every trial, with what the case says that it measures."""
    typed, cases = CASES[name]
    options = EXPERIMENTS[name].read_options({**typed, "seeds": seeds})
    return options, [{**trial, **cases[case][0](trial)} for trial in EXPERIMENTS[name].trials(options)]


def conclusions(name, options, records):
    """The claims, after a look at what any page would show of them and of the figures."""
    claims = EXPERIMENTS[name].judge(options, records)
    texts = [text for claim in claims for text in (claim.claim, claim.measured, claim.source)]
    texts += [text for figure in EXPERIMENTS[name].draw(options, records) for text in (figure.title, figure.caption)]
    assert all(claim.verdict in VERDICTS for claim in claims)
    assert not [text for text in texts if "nan" in text.split() or "None" in text]
    return claims


def lost(value):
    """The value with None for every measured number, as JSON keeps what is not finite."""
    if isinstance(value, dict):
        return {key: lost(item) for key, item in value.items()}
    if isinstance(value, list):
        return [lost(item) for item in value]
    return None if isinstance(value, float) else value


def test_every_experiment_is_judged():
    assert list(CASES) == list(EXPERIMENTS)
    assert all({"agree", "disagree"} <= set(cases) for _, cases in CASES.values())


@pytest.mark.parametrize(("name", "case"), NAMED_CASES)
def test_verdicts_follow_from_the_records(name, case):
    verdicts = CASES[name][1][case][1]
    assert [claim.verdict for claim in conclusions(name, *synthetic(name, case))] == verdicts


# What one seed cannot decide: claims about an estimate; the others compare numbers that have no uncertainty.
ONE_SEED = {
    "feature-scaling": [UNDECIDED, AGREES, UNDECIDED],
    "batchnorm-noise": [UNDECIDED, UNDECIDED, UNDECIDED, AGREES],
    "covariate-shift": [UNDECIDED, UNDECIDED, UNDECIDED],
    "norm-before-activation": [UNDECIDED, UNDECIDED],
    "recurrent": [UNDECIDED, UNDECIDED],
    "centring": [UNDECIDED],
    "bias-terms": [UNDECIDED, UNDECIDED],
}


@pytest.mark.parametrize("name", ONE_SEED)
def test_one_seed_decides_no_estimate(name):
    assert [claim.verdict for claim in conclusions(name, *synthetic(name, "agree", seeds=1))] == ONE_SEED[name]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_cut_short_claims_nothing_false(name):
    """With the first records alone, a claim agrees, is undecided or not made: none disagrees for want of data."""
    options, records = synthetic(name, "agree")
    for kept in range(len(records)):
        verdicts = {claim.verdict for claim in conclusions(name, options, records[:kept])}
        assert verdicts <= {AGREES, UNDECIDED}, kept


@pytest.mark.parametrize("name", CASES)
def test_trials_that_are_missing_claim_nothing_false(name):
    options, records = synthetic(name, "agree")
    for axis in EXPERIMENTS[name].trials(options)[0]:
        for value in {record[axis] for record in records}:
            rest = [record for record in records if record[axis] != value]
            assert {claim.verdict for claim in conclusions(name, options, rest)} <= {AGREES, UNDECIDED}, (axis, value)


@pytest.mark.parametrize("name", CASES)
def test_measurements_that_were_lost_leave_a_verdict_or_nothing(name):
    options, records = synthetic(name, "agree")
    trial = EXPERIMENTS[name].trials(options)[0]
    for key in [key for key in records[0] if key not in trial]:
        for stride in (1, 2):
            damaged = [{**r, key: lost(r[key])} if i % stride == 0 else r for i, r in enumerate(records)]
            conclusions(name, options, damaged)
    everything = [{key: value if key in trial else lost(value) for key, value in r.items()} for r in records]
    conclusions(name, options, everything)
