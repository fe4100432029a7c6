"""`recurrent`: a character GRU and LSTM with LayerNorm, BatchNorm and none, on sequences of different lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenkeel.nn as ek_nn
from evenkeel._options.experiments import CELLS, RecurrentOptions
from evenkeel._options.study import BYTES
from evenkeel.lab.experiments._estimates import Estimate, below, curves, intervals, mean_of
from evenkeel.lab.experiments._experiment import Claim, Experiment, Record, Trial, grouped, select
from evenkeel.lab.experiments._transformer import standard_text
from evenkeel.lab.training import even_windows, sample_windows
from evenkeel.lab.transformer import derive_seed, norm_styles
from evenkeel.report import Axis, Figure, format_number, join_words, lines

NORMS = ("none", "layer", "batch")
BA = "Ba et al. 2016"


class StepNorms(nn.Module):
    """A norm for every time step: LayerNorm shares one; BatchNorm has statistics for each step it was trained on.

    Beyond the longest training sequence, BatchNorm has only the last step's statistics to offer.
    """

    def __init__(self, norm: str, features: int, length: int) -> None:
        super().__init__()
        makers: dict[str, tuple[int, Callable[[], nn.Module]]] = {
            "none": (1, nn.Identity),
            "layer": (1, lambda: ek_nn.LayerNorm(features)),
            "batch": (length, lambda: ek_nn.BatchNorm1d(features)),
        }
        count, make = makers[norm]
        self.norms = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor, step: int) -> Tensor:  # (batch, features)
        return self.norms[min(step, len(self.norms) - 1)](x)


class Recurrent(nn.Module):
    """A byte-level recurrent network whose input and recurrent projections are normalized before the gates."""

    def __init__(self, cell: str, norm: str, width: int, length: int, seed: int) -> None:
        super().__init__()
        self.cell, self.width = cell, width
        gates = CELLS[cell]
        self.bytes = nn.Embedding(BYTES, width)
        self.input_map = nn.Linear(width, gates * width, bias=False)
        self.state_map = nn.Linear(width, gates * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(gates * width))
        self.input_norms = StepNorms(norm, gates * width, length)
        self.state_norms = StepNorms(norm, gates * width, length)
        self.head = nn.Linear(width, BYTES)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                generator = torch.Generator().manual_seed(derive_seed(seed, "recurrent", cell, name))
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # (batch, time)
        """Return the logits (batch, time, 256) and the states (batch, time, width)."""
        inputs = self.input_map(self.bytes(tokens))
        state = memory = inputs.new_zeros(len(tokens), self.width)
        states = []
        for step in range(tokens.shape[1]):
            x = self.input_norms(inputs[:, step], step) + self.bias
            h = self.state_norms(self.state_map(state), step)
            if self.cell == "gru":
                state = gru_step(x, h, state)
            else:
                state, memory = lstm_step(x + h, memory)
            states.append(state)
        stacked = torch.stack(states, dim=1)
        return self.head(stacked), stacked


def gru_step(x: Tensor, h: Tensor, state: Tensor) -> Tensor:
    """Return the next state of a gated recurrent unit."""
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = x.chunk(3, -1), h.chunk(3, -1)
    reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
    return torch.lerp(torch.tanh(new_x + reset * new_h), state, update)


def lstm_step(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next state and memory of a long short-term memory."""
    admit, forget, new, show = gates.chunk(4, -1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(admit) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(memory), memory


def measure(options: RecurrentOptions, trial: Trial) -> dict[str, Any]:
    """Train; return the loss along the way, and the validation loss at each length."""
    network = Recurrent(trial["cell"], trial["norm"], options.width, options.length, trial["seed"])
    corpus = standard_text(max(options.length, *options.lengths))
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr, fused=True)
    losses = []
    for step in range(options.steps):
        windows = sample_windows(corpus, trial["seed"], step, batch=options.batch, context=options.length)
        optimizer.zero_grad()
        loss = next_loss(network, windows)
        loss.backward()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return {"losses": losses, "lengths": {str(n): validation(network, options, n) for n in options.lengths}}


def next_loss(network: Recurrent, windows: Tensor) -> Tensor:
    """Return the mean cross-entropy of the byte after each position, in nats."""
    logits, _ = network(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def validation(network: Recurrent, options: RecurrentOptions, length: int) -> float:
    """Return the loss over the second half of validation sequences of a length, in evaluation mode.

    The second half, because the first bytes of any sequence are hard to guess: lengths are then comparable.
    """
    windows = even_windows(standard_text(max(options.length, *options.lengths)), 128, context=length)
    network.eval()
    logits, _ = network(windows[:, :-1])
    half = length // 2
    return F.cross_entropy(logits[:, half:].flatten(0, 1), windows[:, 1 + half :].flatten()).item()


def finals(records: Sequence[Record], cell: str, norm: str, length: int) -> Estimate:
    """Return the validation loss at a length over the seeds, which is unknown where one is lost."""
    losses = [r["lengths"][str(length)] for r in select(records, cell=cell, norm=norm)]
    return mean_of([] if None in losses else losses)


def progress(records: Sequence[Record], cell: str, norm: str) -> Estimate:
    """Return the mean training loss over all steps, low when training is fast; unknown where a seed is lost."""
    losses = [r["losses"] for r in select(records, cell=cell, norm=norm)]
    return mean_of([] if any(None in curve for curve in losses) else (sum(curve) / len(curve) for curve in losses))


def change_beyond(options: RecurrentOptions, records: Sequence[Record], cell: str, norm: str) -> Estimate:
    """Return how the loss changes from the training length to the longest one, over the seeds with every length."""
    longest, trained = str(max(options.lengths)), str(within(options))
    ends = [r["lengths"] for r in select(records, cell=cell, norm=norm)]
    return mean_of(losses[longest] - losses[trained] for losses in ends if None not in losses.values())


def judge(options: RecurrentOptions, records: Sequence[Record]) -> list[Claim]:
    """Compare speed, and what happens beyond the training length."""
    claims = []
    for cell in options.cells:
        speeds = {norm: speed for norm in NORMS if (speed := progress(records, cell, norm))}
        if "layer" in speeds and "none" in speeds:
            losses = join_words([f"{norm} {speed}" for norm, speed in speeds.items()])
            claims.append(
                Claim(
                    claim=f"LayerNorm makes a {cell.upper()} train faster",
                    source=BA,
                    measured=f"Training loss averaged over {options.steps} steps, in nats: {losses}",
                    verdict=below(speeds["layer"], speeds["none"]),
                    intervals=intervals(speeds),
                    quantity="mean training loss (nats)",
                )
            )
        batch, layer = (change_beyond(options, records, cell, norm) for norm in ("batch", "layer"))
        if max(options.lengths) > options.length and batch and layer:
            claims.append(
                Claim(
                    claim=f"Beyond the training length BatchNorm fails and LayerNorm does not ({cell})",
                    source=f"{BA}, section 3.1",
                    measured=f"From length {within(options)} to {max(options.lengths)} the loss changes by {batch} "
                    f"nats with BatchNorm and by {layer} with LayerNorm",
                    verdict="disagrees" if batch.high <= 0 else below(layer, batch),  # a loss that falls is no failure
                    intervals=intervals({"batch": batch, "layer": layer}),
                    quantity="change of the loss (nats)",
                )
            )
    return claims


def within(options: RecurrentOptions) -> int:
    """Return the longest length to evaluate on that is no longer than the training's."""
    return max((n for n in options.lengths if n <= options.length), default=min(options.lengths))


def draw(options: RecurrentOptions, records: Sequence[Record]) -> list[Figure]:
    """Training loss by step, and validation loss by length, for each cell."""
    if not records:
        return []
    y, styles, longest = Axis("loss (nats per byte)", log=False), norm_styles(NORMS), max(options.lengths)
    panels, ends = [], []
    for cell in options.cells:
        trained = grouped(select(records, cell=cell), "norm", NORMS)
        training = curves(trained, lambda r: enumerate(r["losses"]))
        panels.append(lines(training, x=Axis("step"), y=y, styles=styles, heading=f"{cell.upper()}, training"))
        lengths = curves(trained, lambda r: [(int(length), loss) for length, loss in r["lengths"].items()])
        heading = f"{cell.upper()}, validation (trained on {options.length} bytes)"
        panels.append(lines(lengths, x=Axis("bytes of a sequence", integer=True), y=y, styles=styles, heading=heading))
        finals_by_norm = {norm: finals(records, cell, norm, longest) for norm in NORMS}
        losses = [f"{format_number(end.value)} ({norm})" for norm, end in finals_by_norm.items() if end]
        ends += [f"the {cell.upper()} ends at {join_words(losses)}"] if losses else []
    return [
        Figure(
            name="recurrent",
            title=f"On {longest} bytes {join_words(ends)} nats",
            caption="The validation loss is over the second half of each sequence. Bands span the seeds.",
            panels=panels,
        )
    ]


RECURRENT = Experiment(
    name="recurrent",
    title="Norms in recurrent networks",
    question="Do LayerNorm and BatchNorm help a recurrent network, and what happens on longer sequences?",
    method="A byte-level GRU and LSTM whose input and recurrent projections are normalized before the gates, trained "
    "on real text and evaluated on sequences of several lengths. BatchNorm keeps statistics for each time step; beyond "
    "the training length it uses those of the last one.",
    options=RecurrentOptions,
    trials=lambda options: options.grid(cell=options.cells, norm=NORMS),
    measure=measure,
    judge=judge,
    draw=draw,
)
