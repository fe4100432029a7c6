"""Preprocessing faults of Stack Overflow questions, ported to PyTorch from DeepFD's published table of subjects.

The table (https://github.com/ArabelaTso/DeepFD) has each subject's fault and patch. The programs are written anew from
those and from what is known of the questions; their data is gone, and what stands here is synthetic. Where nothing says
what the data was like, it is drawn so that UMLAUT's published verdict agrees: it speaks of inputs beyond -1 and 1.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import evenkeel as ek
from evenkeel import doctor

ROWS = 128


@dataclass(frozen=True)
class Case:
    """What is examined."""

    model: nn.Module
    x: Tensor
    loss: Callable[[Any], Tensor]
    statistics: Any = None

    def report(self) -> doctor.Report:
        return doctor.examine(self.model, self.x, loss=self.loss, statistics=self.statistics)


@dataclass(frozen=True)
class Port:
    """A subject: its fault, what is known of it, UMLAUT's published verdict on its input, and the program."""

    subject: int
    fault: str
    known: str
    umlaut: bool
    make: Callable[[bool], Case]


def dense(*widths, activation=nn.ReLU, last=None):
    """Linear layers with an activation between them."""
    parts = []
    for inside, outside in itertools.pairwise(widths):
        parts += [nn.Linear(inside, outside), activation()]
    return nn.Sequential(*parts[:-1], *([] if last is None else [last]))


def scaled(x: Tensor) -> Tensor:
    """As StandardScaler."""
    return (x - x.mean(0)) / x.std(0)


def ranged(x: Tensor) -> Tensor:
    """As MinMaxScaler over the whole."""
    return (x - x.min()) / (x.max() - x.min())


def binary(y: Tensor, labels: Tensor) -> Tensor:
    """Keras clips probabilities before it takes their logarithm."""
    return nn.functional.binary_cross_entropy(y[:, 0].clamp(1e-7, 1 - 1e-7), labels)


def table_of_units(patched: bool) -> Case:
    x = torch.rand(ROWS, 6) * torch.tensor([900.0, 60.0, 5.0, 300.0, 80.0, 1500.0])
    labels = (x[:, 0] / 900 + x[:, 3] / 300 > 1).float()
    model = dense(6, 32, 32, 16, 1, last=nn.ReLU())
    return Case(model, scaled(x) if patched else x, lambda y: binary(y, labels))


def numbers_within_one(patched: bool) -> Case:
    x = torch.rand(ROWS, 1)
    target = (x[:, 0] * 3).sin() * 0.8
    model = dense(1, 16, 1, last=nn.Sigmoid())
    if patched:
        x, target = ranged(x), ranged(target)
    return Case(model, x, lambda y: nn.functional.mse_loss(y[:, 0], target))


class Series(nn.Module):
    """An LSTM and a linear layer for every step."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0])


def lagged_series(patched: bool) -> Case:
    series = torch.randn(ROWS * 8, 4)
    target = torch.stack([series[:, 0].roll(2), series[:, 1].roll(1) * series[:, 2].roll(2), series[:, 3].roll(3)], 1)
    steps = 64 if patched else 1  # a step alone has no past
    x, target = (t.reshape(-1, steps, t.shape[1]) for t in (series, target))
    return Case(Series(), x, lambda y: nn.functional.mse_loss(y, target))


def fourth_power(patched: bool) -> Case:
    x = torch.linspace(-100, 100, 200)[:, None]
    target = x**4
    model = nn.Sequential(
        nn.Linear(1, 50), nn.Sigmoid(), nn.Linear(50, 50), nn.Sigmoid(), nn.Linear(50, 50), nn.ELU(), nn.Linear(50, 1)
    )
    if patched:
        x, target = scaled(x), scaled(target)
    return Case(model, x, lambda y: nn.functional.mse_loss(y, target))


def digits(n: int) -> tuple[Tensor, Tensor]:
    """Images of 784 bytes, most of them 0, and their classes."""
    labels = torch.randint(0, 10, (n,))
    shapes = (torch.rand(10, 784, generator=torch.Generator().manual_seed(0)) > 0.8).float()
    return (shapes[labels] * torch.rand(n, 784)).mul(255).round(), labels


def bytes_of_images(patched: bool) -> Case:
    x, labels = digits(ROWS)
    model = dense(784, 64, 10, last=nn.Identity() if patched else nn.Sigmoid())

    def loss(y):
        scores = y if patched else (y / y.sum(1, keepdim=True)).clamp(1e-7, 1).log()
        return nn.functional.cross_entropy(scores, labels)

    return Case(model, x / 255 if patched else x, loss)


def three_columns(patched: bool) -> Case:
    x = torch.rand(ROWS, 3) * torch.tensor([200.0, 40.0, 1000.0])
    labels = (x[:, 0] > 100).float()
    model = dense(3, 12, 3, 1, last=nn.Sigmoid())
    return Case(model, scaled(x) if patched else x, lambda y: binary(y, labels))


def classes_within_one(patched: bool) -> Case:
    x = torch.rand(ROWS, 8) * 2 - 1
    labels = (x[:, :3].argmax(1)).long()
    return Case(dense(8, 16, 3), scaled(x) if patched else x, lambda y: nn.functional.cross_entropy(y, labels))


def served_as_bytes(patched: bool) -> Case:
    x, _ = digits(ROWS)
    test, labels = digits(ROWS)
    statistics = ek.data.Statistics().update(x / 255)
    model = dense(784, 64, 10)
    if patched:
        return Case(model, test / 255, lambda y: nn.functional.cross_entropy(y, labels), statistics)
    return Case(model, test, lambda y: nn.functional.cross_entropy(y, (labels / 255).long()), statistics)


PORTS = (
    Port(44066044, "raw columns into a binary classifier", "patch; columns assumed", True, table_of_units),
    Port(
        47932589,
        "input and target not brought to 0…1",
        "patch; data within ±1, as UMLAUT says",
        False,
        numbers_within_one,
    ),
    Port(41947039, "series cut into single steps for an LSTM", "title alone; no published patch", False, lagged_series),
    Port(52800582, "x from -100 to 100, target x⁴", "question and patch", True, fourth_power),
    Port(55328966, "pixels from 0 to 255", "patch; images synthetic", True, bytes_of_images),
    Port(39525358, "three raw columns", "question and patch; columns assumed", True, three_columns),
    Port(47724077, "columns not standardized", "patch; data within ±1, as UMLAUT says", False, classes_within_one),
    Port(59325381, "labels divided by 255, and test images not", "patch; images synthetic", False, served_as_bytes),
)
DATA_RULES = {rule.id for rule in doctor.RULES if rule.group == "Data"}


def judged(port: Port, seed: int) -> dict[str, Any]:
    """Whether the fault is named, the patched program's warnings, and whether the inputs are beyond UMLAUT's bound."""
    torch.manual_seed(seed)
    faulty = port.make(False)
    named = any(f.rule in DATA_RULES and f.severity != "note" for f in faulty.report().findings)
    torch.manual_seed(seed)
    patched = port.make(True)
    alarms = [f.rule for f in patched.report().findings if f.severity != "note"]
    beyond = [bool((case.x < -1).any() or (case.x > 1).any()) for case in (faulty, patched)]
    return {"named": named, "alarms": alarms, "beyond": beyond}
