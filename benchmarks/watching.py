"""Training steps under the doctor's watch against the same steps without: 50 at a time, of which one is measured."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.networks import OWNERS, Transformer, resnet
from benchmarks.timing import OURS, Call, Case
from evenkeel.doctor import Watch

EVERY = 50
MOST = 1.02  # of the time of the same steps alone
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Llama, 4 blocks of 256, 512 tokens": (
        lambda: Transformer(OWNERS["torch"], llama=True, width=256, depth=4),
        lambda: torch.randint(0, 1000, (4, 128)),
    ),
    "ResNet, 7 images of 32x32": (lambda: resnet(OWNERS["torch"]), lambda: torch.randn(7, 3, 32, 32)),
}


def training(watched: bool, model: nn.Module, x: Tensor) -> Call:
    """Return a call that trains for as many steps as lie between two measured ones."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    watch = Watch(model, optimizer, every=EVERY).__enter__() if watched else None

    def steps() -> None:
        for _ in range(EVERY):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if watch is not None:
                watch.step(loss)
            optimizer.zero_grad()

    return steps


def cases() -> Iterator[Case]:
    """Yield a transformer and a convolutional network."""
    for name, (build, draw) in MODELS.items():
        torch.manual_seed(0)
        x = draw()
        calls = {}
        for owner, watched in (("alone", False), (OURS, True)):
            torch.manual_seed(0)
            calls[owner] = training(watched, build(), x)
        yield Case(name=f"{EVERY} steps watched, {name}", calls=calls, limits={"alone": MOST})
