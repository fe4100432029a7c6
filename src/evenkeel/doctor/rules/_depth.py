"""Readings along the depth of a model, and of the size of its steps."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from evenkeel.doctor._finding import Reading, pattern_of
from evenkeel.doctor.rules._rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenkeel.doctor.probes import Depth, Layer, Measurements, Signal

__all__ = ["RULES"]

GROUP = "Depth"

FEWEST_BLOCKS = 6
FEWEST_LAYERS = 6
FEWEST_WITHOUT = 6  # layers in a row without a norm
FEWEST_POST = 11  # post-norms of six blocks: the first norm gets the embedding
FEWEST_STEPS = 20  # in which a warm-up would show


def growing_stream(measured: Measurements) -> Iterator[Reading]:
    """By how much the stream before the norms of like blocks grows from one to the next, in its second half."""
    groups: dict[str, list[Signal]] = {}
    for s in measured.signals:
        if s.shares == "token":
            groups.setdefault(pattern_of(s.site), []).append(s)
    for pattern, some in groups.items():
        sizes = [s.values["rms"] for s in some]
        if len(sizes) < FEWEST_BLOCKS or min(sizes) <= 0 or not all(map(math.isfinite, sizes)):
            continue
        # linear growth slows down to a few percent a block; exponential growth does not
        late = [b / a for a, b in pairwise(sizes)][len(sizes) // 2 - 1 :]
        total = sizes[-1] / sizes[0]
        evidence = {"total": total, "blocks": len(sizes), "last": sizes[-1]}
        yield Reading(site=pattern, value=min(median(late), total ** (1 / (len(sizes) - 1))), evidence=evidence)


def per_layer(measured: Measurements) -> tuple[float, list[Depth]] | None:
    """The factor from one layer's gradient to that of the layer before it: a line through the logarithms."""
    some = [depth for depth in measured.depths if depth.gradient > 0 and math.isfinite(depth.gradient)]
    if len(some) < FEWEST_LAYERS:
        return None
    # without the ends: a head or an embedding has another scale
    logs = [math.log(depth.gradient) for depth in some[1:-1]]
    third = max(1, len(logs) // 3)
    first, last = median(logs[:third]), median(logs[-third:])
    return math.exp((first - last) / max(1, len(logs) - third)), some


def vanishing_gradients(measured: Measurements) -> Iterator[Reading]:
    """The factor by which gradients shrink from a layer to the one before."""
    yield from gradient_reading(measured)


def exploding_gradients(measured: Measurements) -> Iterator[Reading]:
    """The factor by which gradients grow from a layer to the one before."""
    yield from gradient_reading(measured)


def gradient_reading(measured: Measurements) -> Iterator[Reading]:
    """One reading over the depth of a model, whose whole span has to be large too."""
    found = per_layer(measured)
    if found is not None:
        factor, some = found
        span = factor ** len(some)
        evidence = {"span": span, "layers": len(some)}
        yield Reading(site=f"{some[0].site} … {some[-1].site}", value=factor, evidence=evidence)


def large_updates(measured: Measurements) -> Iterator[Reading]:
    """The largest over steps of the median step of a weight matrix, in parts of the weight."""
    updates = [step.update for step in measured.steps if math.isfinite(step.update)]
    if updates:
        yield Reading(site="weights", value=max(updates), evidence={"steps": measured.steps[-1].step})


def unnormalized_depth(measured: Measurements) -> Iterator[Reading]:
    """How much the differences between samples grow or shrink along layers that no norm stands between."""
    weighted = [layer for layer in measured.layers if layer.kind == "weights"]
    stretches: list[list[Layer]] = [[]]
    for layer in measured.layers:
        if layer.kind == "norm":
            stretches.append([])
        elif (
            layer.kind == "weights" and layer is not weighted[-1] and layer.spread > 0
        ):  # a head has a scale of its own
            stretches[-1].append(layer)
    longest = max(stretches, key=len)
    spreads = [layer.spread for layer in longest]
    if len(longest) >= FEWEST_WITHOUT and all(map(math.isfinite, spreads)):
        third = len(spreads) // 3
        logs = [math.log(spread) for spread in spreads]
        change = (median(logs[-third:]) - median(logs[:third])) * (len(logs) - 1) / (len(logs) - third)
        evidence = {"layers": len(longest), "way": "grow" if change > 0 else "shrink"}
        site = f"{longest[0].site} … {longest[-1].site}"
        yield Reading(site=site, value=math.exp(abs(change)), evidence=evidence)


def no_warmup(measured: Measurements) -> Iterator[Reading]:
    """The learning rate of the first step in parts of the largest, in a deep stack of post-norms that starts anew."""
    post = [s for s in measured.signals if s.post]
    rows = sum(s.shares == "token" for s in measured.signals)
    rates = [step.rate for step in measured.steps]
    enough = len(post) >= FEWEST_POST and 2 * len(post) >= rows
    if enough and measured.fresh and measured.steps and measured.steps[-1].step >= FEWEST_STEPS and max(rates) > 0:
        evidence = {"norms": len(post), "rate": max(rates), "steps": measured.steps[-1].step}
        yield Reading(site=pattern_of(post[0].site), value=rates[0] / max(rates), evidence=evidence)


RULES: tuple[Rule, ...] = (
    Rule(
        id="stream-grows",
        group=GROUP,
        severity="warning",
        quantity="growth of the stream a block",
        threshold=1.3,
        applies="{blocks} norms of like blocks stand on one stream",
        message="the stream before {site} grows by a factor of {value:.2f} a block, to its end: {total:,.0f} times in "
        "{blocks} blocks",
        remedy="for name, p in model.named_parameters():  # scale what each block adds\n"
        "    if name.endswith('proj.weight'):\n        p.data /= (2 * blocks) ** 0.5",
        source="Sun et al. 2025, The Curse of Depth: exponential growth makes deep blocks identities; linear growth is "
        "sound and grows less than this from the fifth block on",
        read=growing_stream,
    ),
    Rule(
        id="gradients-vanish",
        group=GROUP,
        severity="warning",
        quantity="gradient of a layer in parts of the next one's",
        threshold=0.4,
        above=False,
        applies="gradients reach {layers} layers",
        message="gradients shrink to {value:.2g} of themselves from a layer to the one before: {span:.1g} over "
        "{layers} "
        "layers ({site})",
        remedy="x = x + block(norm(x))  # residual connections with a norm before each block",
        source="Glorot and Bengio 2010: a factor apart from 1 a layer is exponential in depth",
        read=vanishing_gradients,
    ),
    Rule(
        id="gradients-explode",
        group=GROUP,
        severity="warning",
        quantity="gradient of a layer in parts of the next one's",
        threshold=1.5,
        applies="gradients reach {layers} layers",
        message="gradients grow {value:.2g}-fold from a layer to the one before: {span:.1g}-fold over {layers} "
        "layers ({site})",
        remedy="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and a norm before each block",
        source="Pascanu et al. 2013: a factor apart from 1 a layer is exponential in depth",
        read=exploding_gradients,
    ),
    Rule(
        id="update-ratio",
        group=GROUP,
        severity="warning",
        quantity="step in parts of the weight",
        threshold=0.5,
        applies="{steps} steps were watched",
        message="half of the weight matrices change by more than {value:.1%} of their length in one step",
        remedy="for group in optimizer.param_groups:\n    group['lr'] /= 10",
        source="Karpathy's rule of thumb is 1e-3; a step of half a weight leaves little of what was learned",
        read=large_updates,
    ),
    Rule(
        id="unnormalized-depth",
        group=GROUP,
        severity="warning",
        quantity="change of the differences between samples",
        threshold=100.0,
        applies="{layers} layers follow each other without a norm, {site}",
        message="the differences between samples {way} {value:,.0f}-fold over {layers} layers without a norm ({site})",
        remedy="block = torch.nn.Sequential(linear, torch.nn.LayerNorm(features), activation)  # for each layer\n"
        "# or weights that keep the scale: torch.nn.init.kaiming_normal_(linear.weight)",
        source="He et al. 2015, Delving Deep into Rectifiers, section 2.2: a factor a layer is exponential in depth; "
        "networks that keep their scale without norms are sound",
        read=unnormalized_depth,
    ),
    Rule(
        id="post-norm-without-warmup",
        group=GROUP,
        severity="note",
        quantity="learning rate of the first step in parts of the largest",
        threshold=0.5,
        applies="{norms} norms stand on the stream itself, all gains began at their start, {steps} steps were watched",
        message="{norms} post-norms ({site}, …) began with {value:.0%} of the largest learning rate, {rate:g}: near "
        "the output their first gradients are large",
        remedy="schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=1000)  # schedule.step()\n"
        "# or norms before the blocks: x = x + block(norm(x))",
        source="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, section 3: post-norms need "
        "warm-up, measured with 6 blocks in encoder and decoder",
        read=no_warmup,
    ),
)
