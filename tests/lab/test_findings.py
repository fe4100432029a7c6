"""Findings on constructed summaries, where the answers are known."""

import copy
import re

import pytest

from evenkeel.lab.studies import find


def run(name, final, *, seed=0, norm="layer", validation=None, leaks=False, status="finished", **probes):
    curve = validation if validation is not None else [5.0, 4.0, final]
    residual = probes.get("residual", [1.0, 2.0])
    gradients = probes.get("gradients", [1.0, 1.0])
    probe = {
        "step": 0,
        "residual": [{"layer": i, "rms": rms, "mean2_over_rms2": 0.01 * i} for i, rms in enumerate(residual)],
        "gradients": [
            {"group": f"blocks.{i}.feed_forward", "block": i, "norm": norm} for i, norm in enumerate(gradients)
        ],
    }
    return {
        "name": name,
        "seed": seed,
        "norm": norm,
        "leaks": leaks,
        "status": status,
        "train": {"step": [0, 50, 99], "loss": [5.5, 4.0, probes.get("train", final)]},
        "validation": {"step": [0, 50, 100], "loss": curve},
        "probes": [probe],
        "cost": {"step_seconds": 0.1, "norm_seconds": 0.01, "norm_share": probes.get("share", 0.1)},
        "final_validation_loss": final,
    }


def summary(*runs):
    settings = {"steps": 100, "depth": 1, "width": 20, "lr": 0.001}
    return {"format": 1, "settings": settings, "corpus": {"frequency_loss": 3.2}, "arms": list(runs)}


def texts(*runs):
    return [f"{finding['title']}. {finding['text']}" for finding in find(summary(*runs))]


def only(texts, words):
    (found,) = [text for text in texts if words in text]
    return found


def test_the_best_arm_comes_first_with_gap_and_uncertainty():
    found = texts(run("pre-rms", 2.5), run("post-layer", 2.75), run("pre-batch", 1.0, norm="batch", leaks=True))
    assert found[0].startswith("pre-rms ends at the lowest validation loss, 2.500 nats per byte. ")
    assert "The next is 0.250 above pre-rms. The others: post-layer 2.750." in found[0]
    assert "One seed an arm gives no uncertainty" in found[0]


def test_a_gap_too_small_to_print_is_not_called_zero():
    found = texts(run("pre-rms", 2.5), run("pre-layer", 2.5004))
    assert "The next is less than 0.001 above pre-rms." in found[0]


@pytest.mark.parametrize(("others", "verdict"), [((2.75, 2.7), "do not overlap"), ((2.75, 2.52), "overlap, so")])
def test_seeds_decide_whether_a_gap_can_be_told_from_chance(others, verdict):
    best = [run("pre-rms", 2.5), run("pre-rms", 2.55, seed=1)]
    found = texts(*best, *(run("post-layer", loss, seed=seed) for seed, loss in enumerate(others)))
    assert verdict in found[0]


def test_steps_to_reach_the_loss_without_norm():
    found = texts(run("none", 4.2, norm="none", share=None), run("pre-rms", 2.5))
    assert "pre-rms reaches the final loss of the arm without norm after 50 of 100 steps" in found[1]
    assert "ends 1.700 lower" in found[1]


def test_norms_that_do_not_help():
    found = texts(run("none", 2.0, norm="none"), run("pre-rms", 2.5))
    assert "No comparable normalized arm reaches the loss without norm, 2.000" in found[1]
    assert "pre-rms, is 0.500 nats per byte above" in found[1]


def test_divergence_comes_first():
    found = texts(run("pre-rms", 2.5), run("none", None, norm="none", status="diverged"))
    assert found[0].startswith("The arm without norm diverged. ")
    assert "the arm without norm diverged at step 100" in found[0]
    assert "pre-rms finished" in found[0]


def test_leaking_arms_are_set_apart():
    found = texts(run("pre-rms", 2.5, train=2.4), run("pre-batch", 2.9, norm="batch", leaks=True, train=1.9))
    text = only(found, "BatchNorm leaks")
    assert "pre-batch ends at 1.900 in training and 2.900 in validation" in text
    assert "In the other arms validation minus training is +0.100" in text


def test_growth_and_gradients_name_the_extremes():
    found = texts(
        run("none", 4.0, norm="none", residual=[1.0, 8.0], gradients=[6.0, 1.0]),
        run("post-layer", 3.0, residual=[1.0, 1.0], gradients=[1.0, 2.0]),
    )
    assert "factor of 8.00 in the arm without norm and 1.00 in post-layer" in only(
        found, "residual stream's RMS changes"
    )
    gradients = only(found, "Gradient norms of the blocks")
    assert "factor of 6.00 in the arm without norm and 2.00 in post-layer" in gradients
    assert "the arm without norm 6.00 and post-layer 2.00" in gradients


def test_arms_that_are_level_are_called_level():
    found = texts(run("pre-rms", 2.5), run("pre-layer", 2.6))
    assert "by a factor of about 2.00 through the blocks in pre-rms and pre-layer" in only(found, "RMS changes")


def test_arms_that_learned_only_frequencies():
    found = texts(run("pre-rms", 2.5), run("post-layer", 3.3))
    assert "post-layer did no better than byte frequencies" in only(found, "byte frequencies. Guessing")
    assert not any("pre-rms did" in text for text in found)


def test_centring_and_layer_against_rms():
    text = only(texts(run("pre-rms", 2.5), run("pre-layer", 2.6)), "The mean is at most")
    assert "1.00% of the residual stream's power after the last block" in text
    assert "independent elements with mean 0 would give 5.00%" in text
    assert "pre-rms ends 0.100 nats per byte below pre-layer." in text


def test_cost_names_the_cheapest_and_the_dearest():
    text = only(texts(run("pre-rms", 2.5, share=0.05), run("pre-layer", 2.6, share=0.12)), "of a training step")
    assert text.startswith("Norms take 5.0% (pre-rms) to 12.0% (pre-layer) of a training step")


def incomplete():
    running = run("pre-rms", None, status="running")
    bare = copy.deepcopy(running)
    bare["train"] = {"step": [], "loss": []}
    bare["validation"] = {"step": [], "loss": []}
    bare |= {"probes": [], "cost": {"step_seconds": None, "norm_seconds": None, "norm_share": None}}
    blown = run("none", None, norm="none", status="diverged", residual=[1.0, None], gradients=[None, None])
    return {
        "nothing": [],
        "running": [running],
        "bare": [bare],
        "one arm": [run("pre-rms", 2.5)],
        "one block": [run("pre-rms", 2.5, gradients=[1.0])],
        "all diverged": [blown],
        "leaking only": [run("pre-batch", 2.0, norm="batch", leaks=True)],
        "tie": [run("pre-rms", 2.5), run("pre-layer", 2.5)],
        "one seed diverged": [run("pre-rms", 2.5), run("pre-rms", None, seed=1, status="diverged")],
    }


@pytest.mark.parametrize("case", incomplete())
def test_findings_hold_for_any_outcome(case):
    for finding in find(summary(*incomplete()[case])):
        assert finding["title"]
        assert finding["text"].endswith(".")
        assert "nan" not in (finding["title"] + finding["text"]).lower()


def test_an_arm_called_none_never_reads_as_nobody():
    for final, status in ((2.0, "finished"), (9.0, "finished"), (None, "diverged")):
        found = texts(run("none", final, norm="none", status=status), run("pre-rms", 2.5), run("post-layer", 2.6))
        assert not [text for text in found if re.search(r"(?<!-)\bnone\b", text)]


def test_an_arm_that_reaches_the_target_and_rises_again():
    rising = run("pre-layer", 2.9, validation=[5.0, 2.7, 2.9])
    (text,) = [t for t in texts(run("none", 2.8, norm="none"), rising) if "reaches the final loss" in t]
    assert "pre-layer reaches the final loss of the arm without norm after 50 of 100 steps" in text
    assert text.endswith("and ends 0.100 above it.")


def test_the_first_arm_to_reach_the_target_is_named_even_if_another_ends_lower():
    late, early = run("pre-rms", 2.5, validation=[5.0, 3.5, 2.5]), run("peri-rms", 2.6, validation=[5.0, 2.8, 2.6])
    (text,) = [t for t in texts(run("none", 3.0, norm="none"), late, early) if "reaches the final loss" in t]
    assert text.startswith("peri-rms reaches the final loss of the arm without norm after 50 of 100 steps")


def test_findings_are_means_over_all_seeds():
    found = texts(
        run("pre-rms", 2.5, residual=[1.0, 2.0], gradients=[1.0, 2.0], share=0.1),
        run("pre-rms", 2.5, seed=1, residual=[1.0, 4.0], gradients=[1.0, 4.0], share=0.3),
    )
    assert "pre-rms 3.00" in only(found, "residual stream's RMS changes")
    assert "pre-rms 3.00" in only(found, "Gradient norms of the blocks")
    assert "20.0%" in only(found, "Norms take")


def test_survivors_of_divergence_are_called_so():
    found = texts(
        run("pre-rms", 2.4),
        run("pre-rms", None, seed=1, status="diverged"),
        run("pre-layer", 2.5),
        run("pre-layer", 2.5, seed=1),
    )
    assert "Only 1 of 2 seeds of pre-rms finished, the others diverged" in only(found, "lowest validation loss")
