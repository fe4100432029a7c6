"""Synthetic records of the experiments about data, batches and sequences, and the verdicts that follow from them."""

from lab.experiments.spreads import AGREES, DISAGREES, PARTLY, UNDECIDED, both_signs, near, wide


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


ALL_REACHED, NONE_REACHED = (40, 40, 40), (None, None, None)
QUICK, SLOW, MIXED = (20, 20, 20), (60, 60, 60), (20, None, 60)
NORM_FREE = {"layer": 1.0, "rms": 1.0, "none": 1.0}
EXACT = {"batch": 0.01, "layer": 0.0, "rms": 0.0, "none": 0.0}

# experiment -> its options, and for each case what a trial measures and the verdicts, in the order of the claims
DATA_CASES = {
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
}
