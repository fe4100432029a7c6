"""The tables of norms, placements and presets, and how names are looked up."""

import pytest
import torch

import evenkeel as ek
from evenkeel.lab import (
    DEFAULT_ARMS,
    FEED_FORWARDS,
    NORMS,
    PLACEMENTS,
    PRESETS,
    Arm,
    Placement,
    TokenBatchNorm,
    Transformer,
    arm_names,
    find_arm,
)


def test_every_norm_stands_at_every_placement():
    crossed = {f"{place}-{norm}" for place in PLACEMENTS for norm in NORMS if "none" not in (place, norm)}
    assert set(arm_names()) == crossed | {"none"} | set(PRESETS)
    assert {name.removesuffix("+warmup") for name in DEFAULT_ARMS} <= set(arm_names())


@pytest.mark.parametrize(
    ("name", "placement", "norm"),
    [
        ("none", "none", "none"),
        ("pre-rms", "pre", "rms"),
        ("output-only-layer", "output-only", "layer"),
        ("peri-dyt", "peri", "dyt"),
        ("post-batch", "post", "batch"),
    ],
)
def test_a_name_is_placement_and_norm(name, placement, norm):
    assert (find_arm(name).placement, find_arm(name).norm) == (placement, norm)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("gpt2", ("pre", "layer", "gelu", True, False, 0.0)),
        ("bert", ("post", "layer", "gelu", True, False, 0.0)),
        ("llama", ("pre", "rms", "swiglu", False, False, 0.0)),
        ("gemma2", ("peri", "rms", "geglu", False, False, 1.0)),
        ("olmo2", ("output-only", "rms", "swiglu", False, True, 0.0)),
    ],
)
def test_presets_keep_their_family_s_choices(name, choices):
    arm = find_arm(name, feed_forward="relu", bias=True, qk_norm=False)
    assert (arm.placement, arm.norm, arm.feed_forward, arm.bias, arm.qk_norm, arm.weight_offset) == choices


def test_options_apply_to_arms_that_are_no_presets():
    arm = find_arm("pre-layer", feed_forward="swiglu", bias=False, qk_norm=True)
    assert arm == Arm(name="pre-layer", feed_forward="swiglu", bias=False, qk_norm=True)


@pytest.mark.parametrize(("typed", "nearest"), [("pre-lyer", "pre-layer"), ("lama", "llama"), ("per-rms", "peri-rms")])
def test_an_unknown_arm_names_the_nearest_three(typed, nearest):
    with pytest.raises(ek.StudyError) as caught:
        find_arm(typed)
    assert f"did you mean {nearest}, " in str(caught.value)
    assert (
        sum(
            name in str(caught.value).split()
            for name in (f"{arm}{end}" for arm in arm_names() for end in ("", ",", "?"))
        )
        == 3
    )


@pytest.mark.parametrize(("name", "leaks"), [("pre-batch", True), ("pre-layer", False), ("none", False)])
def test_leaks_are_real(name, leaks):
    """The output at a position changes with a later byte exactly in the arms that are marked."""
    model = Transformer(find_arm(name), depth=1, width=8, heads=2, context=6)
    tokens = torch.randint(256, (2, 6))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    earlier = slice(None, -1)
    assert torch.equal(model(tokens)[:, earlier], model(changed)[:, earlier]) is not leaks
    assert find_arm(name).leaks is leaks


def test_token_batch_norm_leaves_padding_out():
    norm, x = TokenBatchNorm(3, eps=1e-12), torch.randn(2, 4, 3)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    y = norm(x, mask)
    valid = x[mask]
    expected = (valid - valid.mean(0)) / valid.std(0, unbiased=False)
    torch.testing.assert_close(y[mask], expected)
    assert (y[~mask] == 0).all()


def test_feed_forwards_have_about_the_same_number_of_parameters():
    def size(feed_forward):
        arm = find_arm("pre-rms", feed_forward=feed_forward)
        return sum(p.numel() for p in Transformer(arm, depth=2, width=96, heads=2, context=8).parameters())

    sizes = [size(feed_forward) for feed_forward in FEED_FORWARDS]
    assert max(sizes) < 1.02 * min(sizes)


def test_placement_is_plain_data():
    assert PLACEMENTS["peri"] == Placement(before=True, after=True, final=True)
