"""A layer repository for Hugging Face's `kernels`: layers with a forward alone, which serve what they recognise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from evenkeel._errors import InvalidArgumentError
from evenkeel._files import write_text_atomically
from evenkeel.convert._site import refusal
from evenkeel.recognition import Recognition, Tensors, apply_norm, recognize

if TYPE_CHECKING:
    import os

    from torch import Tensor

__all__ = ["kernel_repository", "serve"]

# the names under which models offer their norms to `kernelize`
KEYS = ("RMSNorm", "RMSNormZeroCentered", "LayerNorm")
GATED_KEYS = ("RMSNormGated",)
PACKAGE, VARIANT = "evenkeel_norms", "torch-universal"
LAYER = '''

class {key}(nn.Module):
    """Serves what the module computes by evenkeel's kernels; what is not recognised runs as before."""

    def forward(self, hidden_states{gate}):
        return serve(self, hidden_states{given})
'''
_known: WeakKeyDictionary[nn.Module, dict[torch.dtype, Recognition | None]] = WeakKeyDictionary()


def serve(module: nn.Module, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """Compute a norm whose forward `kernelize` replaced: by our kernels where it is recognised, or as its class does.

    Args:
        module: the norm, with its own class, parameters and attributes.
        x: its input.
        gate: its second input, where it has one.

    Returns:
        Its result.

    Example:
        >>> import torch, evenkeel as ek
        >>> ek.convert.serve(torch.nn.RMSNorm(2, eps=0.0), torch.tensor([[3.0, 3.0]])).tolist()
        [[1.0, 1.0]]
    """
    found = recognized(module, x.dtype)
    given = (x,) if gate is None else (x, gate)
    roles = None if found is None or x.ndim not in found.ranks else found.roles
    if roles is not None and gate is not None and roles.gate is None:  # what it is given besides is no gate
        roles = None
    if found is None or found.spec is None or found.layout is None or roles is None:
        result: Tensor = type(module).forward(module, *given)
        return result
    names = (roles.weight, roles.bias, roles.mean, roles.variance)
    tensors = Tensors(*(None if name is None else getattr(module, name) for name in names))
    return apply_norm(found.spec, found.layout, x, tensors, gate=gate, backend="auto")


def recognized(module: nn.Module, dtype: torch.dtype) -> Recognition | None:
    """Recognise a module once for each dtype of its inputs; None where it is left as it is."""
    known = _known.setdefault(module, {})
    if dtype not in known:
        replaced = vars(module).pop("forward", None)  # a copy would call it, and with it the original
        try:
            found = recognize(module)
            left = refusal(module, found, "exact", dtype)
        finally:
            if replaced is not None:
                module.forward = replaced
        served = found.spec is not None and not left and found.spec.memory == "batch"
        known[dtype] = found if served else None
    return known[dtype]


def kernel_repository(path: str | os.PathLike[str]) -> Path:
    """Write a layer repository for `kernelize` of the package kernels: a layer for each name that models offer.

    A layer recognises the module that it is put into at its first call, by what it computes, and serves it where the
    roundings are the same; modules of one name that compute different things stay what they are.

    Args:
        path: the directory to write, which must not hold other files; its parent must exist.

    Returns:
        The path written, for ``kernels.LocalLayerRepository(path, layer_name="RMSNorm")``.

    Raises:
        InvalidArgumentError: the directory holds other files.
        EvenkeelError: a file cannot be written.

    Example:
        >>> import tempfile, evenkeel as ek
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = ek.convert.kernel_repository(folder)
        ...     sorted(str(file.relative_to(path)) for file in path.rglob("*.py"))
        ['build/torch-universal/__init__.py', 'build/torch-universal/layers.py']
    """
    root = Path(path)
    if root.exists() and (not root.is_dir() or any(item.name != "build" for item in root.iterdir())):
        raise InvalidArgumentError(f"kernel_repository: {root} holds other files; name a new directory")
    variant = root / "build" / VARIANT
    variant.mkdir(parents=True, exist_ok=True)
    layers = "".join(LAYER.format(key=key, gate="", given="") for key in KEYS)
    layers += "".join(LAYER.format(key=key, gate=", gate=None", given=", gate") for key in GATED_KEYS)
    head = "from evenkeel.convert import serve\nfrom torch import nn\n"
    write_text_atomically(variant / "layers.py", head + layers)
    write_text_atomically(variant / "__init__.py", "from . import layers\n\n__all__ = ['layers']\n")
    write_text_atomically(variant / "metadata.json", json.dumps(metadata(), indent=1) + "\n")
    return root


def metadata() -> dict[str, Any]:
    """What kernels reads of a repository."""
    return {
        "id": f"_{PACKAGE}",
        "name": PACKAGE.replace("_", "-"),
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
