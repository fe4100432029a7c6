"""The transformer against hand computation: every intermediate of Xiong et al. 2020, initialization, masks."""

import math

import pytest
import torch
import torch.nn.functional as F

import evenkeel as ek
from evenkeel.lab import PRESETS, Transformer, arm_names, find_arm

SIZES = {"depth": 2, "width": 12, "heads": 3, "context": 7}


def make(name, **changes):
    model = Transformer(find_arm(name, feed_forward=changes.pop("feed_forward", "relu")), **{**SIZES, **changes})
    with torch.no_grad():  # biases and norm weights away from 0 and 1, so that a missing one shows
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.double()


def attention_by_hand(attention, x):
    """Softmax attention written out, head by head."""
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    size = x.shape[-1] // attention.heads
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    mixed = []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[..., part] @ key[..., part].mT / math.sqrt(size)
        mixed.append(scores.masked_fill(future, -math.inf).softmax(-1) @ value[..., part])
    return attention.output(torch.cat(mixed, -1))


def feed_forward_by_hand(ffn, x):
    return F.relu(x @ ffn.up.weight.T + ffn.up.bias) @ ffn.down.weight.T + ffn.down.bias


def layer_norm_by_hand(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def test_pre_ln_exposes_every_intermediate():
    model, tokens = make("pre-layer"), torch.randint(256, (2, 7))
    trace = model.trace(tokens)
    x = model.bytes(tokens) + model.positions.weight
    for layer, block in enumerate(model.blocks):
        attention, ffn = block.attention, block.feed_forward
        step_1 = layer_norm_by_hand(attention.before, x)
        step_2 = attention_by_hand(attention.function, step_1)
        step_3 = x + step_2
        step_4 = layer_norm_by_hand(ffn.before, step_3)
        step_5 = feed_forward_by_hand(ffn.function, step_4)
        torch.testing.assert_close(trace[f"blocks.{layer}.x"], x)
        for number, step in enumerate((step_1, step_2, step_3, step_4, step_5), start=1):
            torch.testing.assert_close(trace[f"blocks.{layer}.x_pre_{number}"], step)
        x = step_3 + step_5
    torch.testing.assert_close(trace["x"], x)
    torch.testing.assert_close(trace["x_pre_final"], layer_norm_by_hand(model.final_norm, x))
    assert len(trace) == 2 * 6 + 2


def test_post_ln_exposes_every_intermediate():
    model, tokens = make("post-layer"), torch.randint(256, (2, 7))
    trace = model.trace(tokens)
    x = model.bytes(tokens) + model.positions.weight
    for layer, block in enumerate(model.blocks):
        attention, ffn = block.attention, block.feed_forward
        step_1 = attention_by_hand(attention.function, x)
        step_2 = x + step_1
        step_3 = layer_norm_by_hand(attention.after_sum, step_2)
        step_4 = feed_forward_by_hand(ffn.function, step_3)
        step_5 = step_3 + step_4
        torch.testing.assert_close(trace[f"blocks.{layer}.x"], x)
        for number, step in enumerate((step_1, step_2, step_3, step_4, step_5), start=1):
            torch.testing.assert_close(trace[f"blocks.{layer}.x_post_{number}"], step)
        x = layer_norm_by_hand(ffn.after_sum, step_5)
    torch.testing.assert_close(trace["x"], x)
    assert len(trace) == 2 * 6 + 1
    torch.testing.assert_close(model(tokens), x @ model.head.weight.T)


@pytest.mark.parametrize(
    ("name", "norms_in_a_block", "has_final"),
    [
        ("none", 0, False),
        ("post-rms", 2, False),
        ("pre-rms", 2, True),
        ("peri-rms", 4, True),
        ("output-only-rms", 2, True),
    ],
)
def test_placements_have_their_norms(name, norms_in_a_block, has_final):
    model = make(name)
    assert len(model.norms()) == 2 * norms_in_a_block + has_final
    assert ("final_norm" in model.norms()) is has_final


@pytest.mark.parametrize(("name", "step"), [("peri-rms", "x_peri_4"), ("output-only-rms", "x_output_only_3")])
def test_output_norms_stand_before_the_addition(name, step):
    model, tokens = make(name), torch.randint(256, (1, 7))
    trace, sublayer = model.trace(tokens), model.blocks[0].attention
    x = trace["blocks.0.x"]
    inside = sublayer.before(x) if name == "peri-rms" else x
    torch.testing.assert_close(trace[f"blocks.0.{step}"], x + sublayer.after(sublayer.function(inside)))


@pytest.mark.parametrize("name", arm_names())
def test_every_arm_learns_one_batch(name):
    """A few steps on one batch bring the loss down, and every parameter takes part."""
    model, tokens = Transformer(find_arm(name), depth=1, width=24, heads=2, context=9), torch.randint(256, (4, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == []


@pytest.mark.parametrize("name", ["pre-layer", "llama", "olmo2"])
def test_no_position_sees_a_later_one(name):
    model, tokens = make(name), torch.randint(256, (1, 7))
    changed = tokens.clone()
    changed[0, 4:] = (changed[0, 4:] + 1) % 256
    assert torch.equal(model(tokens)[0, :4], model(changed)[0, :4])
    assert not torch.equal(model(tokens)[0, 4], model(changed)[0, 4])


def test_arms_with_one_seed_share_the_values_of_the_parameters_they_share():
    one, other = (Transformer(find_arm(name), **SIZES, seed=3) for name in ("pre-layer", "gemma2"))
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    shared = [
        name for name in mine if name in theirs and mine[name].shape == theirs[name].shape and mine[name].ndim > 1
    ]
    assert len(shared) == 2 + 4 * SIZES["depth"] + 1
    assert all(torch.equal(mine[name], theirs[name]) for name in shared)
    anew = dict(Transformer(find_arm("pre-layer"), **SIZES, seed=4).named_parameters())
    assert not any(torch.equal(mine[name], anew[name]) for name in shared)


def test_initialization_depends_on_its_seed_alone():
    torch.manual_seed(5)
    one = Transformer(find_arm("llama"), **SIZES).state_dict()
    torch.manual_seed(6)
    two = Transformer(find_arm("llama"), **SIZES).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_gemma_scale_starts_at_one():
    model = Transformer(PRESETS["gemma2"], **SIZES)
    norm = model.blocks[0].attention.before
    x = torch.randn(3, SIZES["width"])
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())


@pytest.mark.parametrize("depth", [2, 8])
def test_pre_ln_residual_grows_as_xiong_et_al_predict(depth):
    """Their lemma: with ReLU, E|x_l|^2 lies between (1 + l/2) d and (1 + 3l/2) d; 15 % is for one random draw."""
    model = Transformer(find_arm("pre-layer", feed_forward="relu"), depth=depth, width=128, heads=4, context=32)
    trace = model.trace(torch.randint(256, (4, 32)))
    for layer in range(depth + 1):
        power = trace[f"blocks.{layer}.x" if layer < depth else "x"].square().mean().item()
        assert 0.85 * (1 + layer / 2) < power < 1.15 * (1 + 3 * layer / 2)


@pytest.mark.parametrize("name", ["pre-batch", "peri-batch", "pre-layer"])
def test_padding_changes_nothing(name):
    """Two sequences of different length give, in one padded batch, what they give without the padding."""
    model, tokens = make(name), torch.randint(256, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    other_padding = tokens.masked_fill(~mask, 9)
    torch.testing.assert_close(model(tokens, mask)[mask], model(other_padding, mask)[mask])
    if name == "pre-layer":
        torch.testing.assert_close(model(tokens, mask)[1, :4], model(tokens[1:, :4])[0])


def test_qk_norm_bounds_the_attention_logits():
    model = Transformer(PRESETS["olmo2"], depth=1, width=16, heads=1, context=4)
    attention = model.blocks[0].attention.function
    with torch.no_grad():
        attention.query.weight.mul_(1e4)
    trace = {}
    attention.query_norm.register_forward_hook(lambda _, inputs, output: trace.update(query=output))
    model(torch.randint(256, (1, 4)))
    torch.testing.assert_close(trace["query"].square().mean(-1), torch.ones(1, 4))


def test_width_must_be_a_multiple_of_heads():
    with pytest.raises(ek.StudyError, match="width 10 is not a multiple of heads 3"):
        Transformer(find_arm("pre-rms"), depth=1, width=10, heads=3, context=4)
