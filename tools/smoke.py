"""What an installed wheel has to do: find its kernels, and normalize as torch does, forward and backward.

Usage: python tools/smoke.py      (`make release` runs it where neither the sources nor a compiler are)
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import evenkeel
from evenkeel import functional as E

Norm = Callable[[torch.Tensor], torch.Tensor]
FEATURES, GROUPS = 12, 3
# norm -> ours and torch's, of (batch, features, 5, 5) or (batch, features)
PAIRS: dict[str, tuple[Norm, Norm, tuple[int, ...]]] = {
    "layer": (
        lambda x: E.layer_norm(x, (FEATURES,), backend="cpu"),
        lambda x: F.layer_norm(x, (FEATURES,)),
        (7, FEATURES),
    ),
    "rms": (
        lambda x: E.rms_norm(x, (FEATURES,), eps=1e-6, backend="cpu"),
        lambda x: F.rms_norm(x, (FEATURES,), eps=1e-6),
        (7, FEATURES),
    ),
    "batch": (
        lambda x: E.batch_norm(x, None, None, training=True, backend="cpu"),
        lambda x: F.batch_norm(x, None, None, training=True),
        (7, FEATURES, 5, 5),
    ),
    "group": (
        lambda x: E.group_norm(x, GROUPS, backend="cpu"),
        lambda x: F.group_norm(x, GROUPS),
        (7, FEATURES, 5, 5),
    ),
    "instance": (
        lambda x: E.instance_norm(x, backend="cpu"),
        lambda x: F.instance_norm(x),
        (7, FEATURES, 5, 5),
    ),
}


def check_info() -> None:
    """Fail unless `evenkeel info` of this environment finds the kernels."""
    program = Path(sys.executable).with_name("evenkeel")
    facts = json.loads(subprocess.check_output([program, "info", "--json"], text=True))
    assert facts["backends"]["cpu"].startswith("available"), facts
    print(f"kernels: {facts['backends']['cpu']}; gradients of small tensors {facts['compiled']['their gradients']}")


def check_norm(name: str) -> None:
    """Fail unless a norm agrees with torch's in float64, and so does its gradient."""
    ours, theirs, shape = PAIRS[name]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(shape, dtype=torch.float64)
    for ours_found, theirs_found in zip(*(gradients(norm, x, cotangent) for norm in (ours, theirs)), strict=True):
        torch.testing.assert_close(ours_found, theirs_found, rtol=1e-12, atol=1e-12)


def gradients(norm: Norm, x: torch.Tensor, cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a norm gives, and the gradient of its input."""
    y = norm(x)
    return y.detach(), torch.autograd.grad(y, x, cotangent)[0]


def main() -> None:
    """Check everything."""
    location = Path(evenkeel.__file__)
    assert location.is_relative_to(sys.prefix), f"{location} is not what was installed"
    check_info()
    for name in PAIRS:
        check_norm(name)
    print(f"evenkeel {evenkeel.__version__} agrees with torch {torch.__version__}: {', '.join(PAIRS)}")


if __name__ == "__main__":
    main()
