"""A fine-tune in bfloat16 whose norms never move: the loss falls, and a part of what should learn does not.

A weight of 1 has steps of 0.0078 up and 0.0039 down in bfloat16; a step of the optimizer below half of that is rounded
away, every time. With float32 weights and bfloat16 arithmetic the same steps add up. Run it with
`python examples/gamma_never_moves.py`; it writes doctor.html.
"""

import torch
from torch import nn

import evenkeel as ek

WIDTH, WORDS, LENGTH, STEPS = 32, 24, 16, 150


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = ek.nn.RMSNorm(WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return x + self.mix(self.norm(x))[0]


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), ek.nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS))


def sentences(number):
    """Counting up from a random word by 1, 2 or 3."""
    generator = torch.Generator().manual_seed(number)
    start, step = (torch.randint(low, high, (16, 1), generator=generator) for low, high in ((0, WORDS), (1, 4)))
    return (start + step * torch.arange(LENGTH)) % WORDS


def fine_tune(model, arithmetic):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    with ek.doctor.watch(model, optimizer, every=50) as watch:
        for step in range(STEPS):
            words = sentences(step)
            with torch.autocast("cpu", torch.bfloat16, enabled=arithmetic):
                logits = model(words[:, :-1])
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            watch.step(loss)
            optimizer.zero_grad()
    return watch.report()


for dtype in (torch.bfloat16, torch.float32):
    model = build().to(dtype)
    report = fine_tune(model, arithmetic=dtype == torch.float32)
    gains = torch.cat([module.weight for module in model.modules() if isinstance(module, nn.RMSNorm)])
    losses = [step.loss for step in report.measured.steps]
    moved = (gains != 1).float().mean()
    print(f"weights in {dtype}: loss {losses[0]:.2f} to {losses[-1]:.2f}; {moved:.0%} of the gains moved")
    print(f"  {', '.join(f'{finding.rule} at {finding.site}' for finding in report.findings) or 'nothing found'}")
    if report.findings:
        report.save("doctor.html")
