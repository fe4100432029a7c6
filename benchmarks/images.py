"""Pictures from bytes to normalized float planes, against a plain conversion of the same bytes to float."""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch

import evenkeel as ek
from benchmarks.timing import Call, Case

MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)
COPIES = 1.2


def usual_chain(images: torch.Tensor) -> torch.Tensor:
    """Return what the usual steps give: to planes, to [0, 1], minus the mean, by the deviation."""
    planes = images.permute(0, 3, 1, 2).contiguous().float().div(255)
    return planes.sub_(MEAN.float().view(3, 1, 1)).div_(STD.float().view(3, 1, 1))


def cases() -> Iterator[Case]:
    """Yield the cases; the copy writes where it wrote before."""
    images = torch.randint(0, 256, (64, 224, 224, 3), dtype=torch.uint8)
    pictures: dict[Literal["HWC", "CHW"], torch.Tensor] = {
        "HWC": images,
        "CHW": images.permute(0, 3, 1, 2).contiguous(),
    }
    for layout, x in pictures.items():
        target, out = torch.empty(x.shape), torch.empty(64, 3, 224, 224)
        calls: dict[str, Call] = {
            "copy": partial(target.copy_, x),
            "evenkeel": partial(ek.functional.image_normalize, x, MEAN, STD, layout=layout, out=out, backend="cpu"),
        }
        if layout == "HWC":
            calls["torch"] = partial(usual_chain, x)
        yield Case(name=f"uint8 {layout} to float32 planes, 64x224x224x3", calls=calls, limits={"copy": COPIES})
