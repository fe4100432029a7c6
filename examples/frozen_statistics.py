"""Train a new head on a frozen backbone: freezing its weights is not enough, BatchNorm's statistics move too."""

import copy

import torch
from sklearn.datasets import load_digits

import evenkeel as ek

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(labels)
grey = 0.5 + 0.5 * images  # the new task: the same digits, white on grey
learn, tune, held_out = slice(0, 1200), slice(1200, 1260), slice(1260, None)

torch.manual_seed(0)
backbone = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1, bias=False),
    ek.nn.BatchNorm2d(16, activation="relu"),  # the ReLU in the same pass
    torch.nn.Conv2d(16, 32, 3, padding=1, bias=False),
    ek.nn.BatchNorm2d(32, activation="relu"),
    torch.nn.Flatten(),
)
first_head, second_head = torch.nn.Linear(32 * 64, 10), torch.nn.Linear(32 * 64, 10)


def train(backbone, head, x, target, *, batch, epochs):
    """Train what requires gradients, with the norms in the mode that they are in."""
    parameters = [p for p in (*backbone.parameters(), *head.parameters()) if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(backbone(x[part])), target[part]).backward()
            optimizer.step()


def accuracy(backbone, head, x):
    """Return the share of held-out digits that are read right."""
    with torch.no_grad():
        return float((head(backbone.eval()(x[held_out])).argmax(1) == labels[held_out]).float().mean())


train(backbone.train(), first_head, images[learn], labels[learn], batch=32, epochs=4)
print(f"{'before':30} old task {accuracy(backbone, first_head, images):.3f}")

backbone.requires_grad_(False)
for name, frozen in (("weights frozen", False), ("weights and statistics frozen", True)):
    tuned, head = copy.deepcopy(backbone).train(), copy.deepcopy(second_head)
    if frozen:
        tuned.eval()  # where a backbone has dropout: only its norms, found by isinstance(m, torch.nn.BatchNorm2d)
    train(tuned, head, grey[tune], labels[tune], batch=4, epochs=5)
    old, new = accuracy(tuned, first_head, images), accuracy(tuned, head, grey)
    print(f"{name:30} old task {old:.3f}, new task {new:.3f}")
