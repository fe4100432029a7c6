"""`cost`: time and activation memory of LayerNorm against RMSNorm, alone and as a share of a model's step."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import evenkeel.nn as ek_nn
from evenkeel._options.experiments import CostOptions
from evenkeel.lab.experiments._estimates import Estimate, band, below, covers, exactly, intervals, mean_of, verdict
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, select
from evenkeel.lab.experiments._transformer import standard_text
from evenkeel.lab.training import both_passes, measure_cost, sample_windows, seconds_in_turn, training_step
from evenkeel.lab.transformer import Transformer, find_arm, next_token_loss, norm_styles
from evenkeel.report import Axis, Figure, format_number, join_words, lines

# name -> the norm alone
CONTENDERS: dict[str, Callable[[int], nn.Module]] = {
    "LayerNorm": ek_nn.LayerNorm,
    "RMSNorm": ek_nn.RMSNorm,
    "torch LayerNorm": nn.LayerNorm,
    "torch RMSNorm": nn.RMSNorm,
}
ARMS = {"LayerNorm": "pre-layer", "RMSNorm": "pre-rms"}
ZHANG = "Zhang & Sennrich 2019"


def measure(options: CostOptions, trial: Trial) -> dict[str, Any]:
    """Time the norms alone and whole steps in turn, and count what autograd keeps."""
    width, seed = trial["width"], trial["seed"]
    x = torch.randn(options.batch * options.context, width, generator=torch.Generator().manual_seed(seed))
    norms = {name: make(width) for name, make in CONTENDERS.items()}
    sizes = {"depth": options.depth, "width": width, "heads": options.heads, "context": options.context}
    models = {name: Transformer(find_arm(arm), seed=seed, **sizes) for name, arm in ARMS.items()}
    windows = sample_windows(standard_text(options.context), seed, 0, batch=options.batch, context=options.context)
    return {
        "alone": medians({name: both_passes(norm, x) for name, norm in norms.items()}, options.rounds),
        "step": medians({name: training_step(model, windows) for name, model in models.items()}, options.rounds),
        "share": {
            name: measure_cost(model, windows, rounds=options.rounds)["norm_share"] for name, model in models.items()
        },
        "kept_alone": {
            name: kept_bytes(functools.partial(norm, x.clone().requires_grad_())) for name, norm in norms.items()
        },
        "kept_step": {
            name: kept_bytes(functools.partial(next_token_loss, model, windows)) for name, model in models.items()
        },
    }


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, taken in turn."""
    times = seconds_in_turn(list(calls.values()), rounds)
    return {name: statistics.median(values) for name, values in zip(calls, times, strict=True)}


def kept_bytes(call: Callable[[], object]) -> int:
    """Return the bytes of the tensors that autograd keeps for the backward pass, parameters and repeats left out."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
        total = sum(seen.values())
    del result
    return total


def saving(records: Sequence[Record], key: str, base: str = "LayerNorm", other: str = "RMSNorm") -> Estimate:
    """Return how much less the other takes, in percent."""
    pairs = [(r[key][base], r[key][other]) for r in records]
    return mean_of(100 * (1 - b / a) for a, b in pairs if None not in (a, b))


def less(item: Estimate, digits: int | None = None) -> str:
    """Return a saving in words: so many percent less, or more where it is negative; with digits, without interval."""
    size = item if item.value >= 0 else Estimate(-item.value, -item.high, -item.low)
    shown = str(size) if digits is None else format_number(size.value, digits=digits)
    return f"{shown} % {'less' if size is item else 'more'}"


def share(records: Sequence[Record], name: str) -> list[tuple[float, float]]:
    """Return the percentage of a training step that a norm takes, with the width."""
    return [(r["width"], 100 * r["share"][name]) for r in records if r["share"][name] is not None]


def judge(options: CostOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare the savings with the published range."""
    if not records:
        return []
    by_width = {width: saving(select(records, width=width), "step") for width in options.widths}
    steps = [f"{less(item, digits=2)} at width {width}" for width, item in by_width.items() if item]
    alone, pooled, memory = (saving(records, key) for key in ("alone", "step", "kept_step"))
    torchs = saving(records, "alone", "torch LayerNorm", "torch RMSNorm")
    norms = mean_of(value for _, value in share(records, "LayerNorm"))
    return [
        Claim(
            claim="RMSNorm instead of LayerNorm saves 7 to 41 % of a whole model's time",
            source=f"{ZHANG}, over its models; 64 % is the partial variant",
            measured=f"With RMSNorm a training step takes {less(pooled)}: {join_words(steps)}. Norms take {norms} % of "
            "a step as LayerNorm, which is the most that any norm could save",
            verdict=verdict(pooled, 7, float("inf")),
            intervals=intervals({"a step": pooled, "norms' share": norms}),
            quantity="saved, and at most to save (%)",
            allowed=(7.0, None),
        ),
        Claim(
            claim="RMSNorm itself is faster than LayerNorm",
            source=ZHANG,
            measured=f"Forward and backward alone, ours takes {less(alone)}; torch's RMSNorm takes {less(torchs)} than "
            "torch's LayerNorm",
            verdict=below(exactly(0), alone),
            intervals=intervals({"ours": alone, "torch's": torchs}),
            quantity="time saved (%)",
            allowed=(0.0, None),
        ),
        Claim(
            claim="RMSNorm needs less activation memory than LayerNorm",
            source="the usual account",
            measured=f"What autograd keeps in a step is less by {memory} %",
            verdict=below(exactly(1), memory),
            intervals=intervals({"a step": memory}),
            quantity="memory saved (%)",
            allowed=(1.0, None),
        ),
    ]


def draw(options: CostOptions, records: Sequence[Record]) -> list[Figure]:
    """Nanoseconds an element alone, and the share of a step, by width."""
    if not records:
        return []
    rows = options.batch * options.context
    alone = [
        band(name, [(r["width"], 1e9 * seconds / (rows * r["width"])) for r, seconds in timed])
        for name in CONTENDERS
        if (timed := [(r, r["alone"][name]) for r in records if r["alone"][name] is not None])
    ]
    shares = [band(name, share(records, name)) for name in ARMS]
    x, styles = Axis("width", log=True), norm_styles(CONTENDERS)
    norm, step = saving(records, "alone"), saving(records, "step")
    of_step = "no difference is seen" if covers(step, 0.0) else f"it takes {less(step, digits=2)}"
    return [
        Figure(
            name="cost",
            title=f"Alone, RMSNorm takes {less(norm, digits=2)} time than LayerNorm; of a training step {of_step}",
            caption="Times are medians of calls in turn; bands span the repetitions. The share counts each norm alone, "
            "forward and backward, on the input that reaches it: a lower bound.",
            panels=[
                lines(alone, x=x, y=Axis("ns per element"), styles=styles, heading="Forward and backward alone"),
                lines(shares, x=x, y=Axis("% of a training step"), styles=styles, heading="Share of a training step"),
            ],
        )
    ]


COST = Experiment(
    name="cost",
    title="What the norms cost",
    question="What do LayerNorm and RMSNorm cost, alone and as a share of a model's training step?",
    method="Norms alone, ours and torch's, and whole training steps of the lab's transformer are timed in turn at "
    "growing width; the bytes that autograd keeps for the backward pass are counted through its saved-tensor hooks.",
    options=CostOptions,
    trials=lambda options: options.grid(width=options.widths),
    measure=measure,
    judge=judge,
    draw=draw,
    timed=True,
)
