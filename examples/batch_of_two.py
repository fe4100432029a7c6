"""A fine-tune with BatchNorm and two images a batch: training looks fine, evaluation collapses.

Two images taken in the same light make a batch, so its statistics are those of that light; evaluation normalizes by the
average over all lights. Kept statistics do not depend on the batch. The program writes doctor.html.
"""

import copy

import torch
from torch import nn

import evenkeel as ek


def build():
    torch.manual_seed(0)
    blocks = [[nn.Conv2d(a, 16, 3, 2, 1, bias=False), ek.nn.BatchNorm2d(16), nn.ReLU()] for a in (1, 16)]
    return nn.Sequential(*blocks[0], *blocks[1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def images(number, rows, light=1):
    """Stripes in four directions; so many images in a row were taken in the same light."""
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(0, 4, (rows,), generator=generator)
    bright, contrast = torch.rand(2, rows // light, 1, 1, generator=generator).repeat_interleave(light, 1)
    phase, noise = (torch.rand(rows, *size, generator=generator) for size in ((1, 1), (16, 16)))
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    ways = torch.stack([down, across, (down + across) * 0.7, (down - across) * 0.7])[labels]
    x = 6 * bright - 3 + 0.25 * 16**contrast * (ways * 1.6 + 6.3 * phase).sin()
    return (x + 0.3 * noise).unsqueeze(1), labels


def train(model, steps, rows, light, keep=False):
    optimizer = torch.optim.AdamW(model.train(not keep).parameters(), lr=3e-3)
    for step in range(steps):
        x, labels = images(1000 * rows + step, rows, light)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()


def accuracy(model, evaluation):
    model = copy.deepcopy(model).train(not evaluation)
    with torch.no_grad():
        return (
            sum((model(x).argmax(1) == y).float().mean().item() for x, y in (images(n, 2, 2) for n in range(200))) / 200
        )


for name, keep in (("two images a batch", False), ("the same, statistics kept", True)):
    model = build()
    train(model, 150, rows=64, light=1)
    before = accuracy(model, evaluation=True)
    train(model, 300, rows=2, light=2, keep=keep)
    print(f"{name}: {before:.0%} right before the fine-tune; after it", end=" ")
    print(
        f"{accuracy(model, evaluation=keep):.0%} as in training, {accuracy(model, evaluation=True):.0%} in evaluation"
    )
    report = ek.doctor.examine(model, images(8, 2, 2)[0])
    print(f"  {', '.join(f'{finding.rule} at {finding.site}' for finding in report.findings) or 'nothing found'}")
    if report.findings:
        report.save("doctor.html")
