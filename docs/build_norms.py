"""Recognise every norm class of the installed transformers, timm and diffusers: writes docs/norms-in-the-wild.md."""

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import evenkeel as ek

os.environ.setdefault("HF_HUB_OFFLINE", "1")
PACKAGES = ("transformers", "timm", "diffusers")
NAMED = re.compile(r"Norm(?!al|ing)|norm$|BatchNorm|NormAct")
# what the arithmetic of a norm looks like
MARKED = re.compile(r"rsqrt|layer_norm\(|rms_norm\(|batch_norm\(|group_norm\(|F\.normalize\(|\.var\(|\.std\(|pow\(2\)\.mean")
# what a block holds and a norm does not
HEAVY = re.compile(r"Linear|Conv\d|Embedding|Attention|MLP|Dropout|post_init|PreTrainedModel|from_config|from_pretrained")
NOT_MODULES = re.compile(r"Config|Output|Mixin|Processor|Tokenizer|PreTrainedModel|Enum|Function|ABC$|Protocol|Dataset")
SIZE, GROUPS, GROUP_SIZE = 16, 4, 8
SIZES = re.compile(r"size|shape|dim$|features$|channels$|width$")
ARGUMENTS: dict[str, Any] = {
    "eps": 1e-6,
    "epsilon": 1e-6,
    "num_groups": GROUPS,
    "n_groups": GROUPS,
    "groups": GROUPS,
    "num_heads": 4,
    "group_size": GROUP_SIZE,
    "bias": True,
    "output_dim": SIZE,
    "feature_dims": (4,),
    "act_layer": nn.ReLU,
}
# arguments with a default that make another norm of a class
VARIANTS: dict[str, Any] = {"data_format": "channels_first", "with_scale": False, "elementwise_affine": False}


class AnyConfig:
    """A configuration that knows every field."""

    def __getattr__(self, name: str) -> Any:
        """A plausible value for a field."""
        if name.startswith("__"):
            raise AttributeError(name)
        if "eps" in name:
            return 1e-6
        if "bias" in name or "affine" in name:
            return True
        if "act" in name:
            return "relu"
        if "norm_mlp" in name:
            return "LayerNorm"
        return 4 if re.search("heads|groups|layers", name) else SIZE


@dataclass
class Found:
    """A class, and what it is."""

    name: str
    body: str
    variant: str = ""
    recognition: ek.convert.Recognition | None = None
    problem: str = ""
    inputs: int = 1
    block: bool = False
    notes: list[str] = field(default_factory=list)


def source_of(cls: ast.ClassDef) -> str:
    """The code of a class that computes: without its constructor, documentation and annotations."""
    parts = []
    for function in cls.body:
        if isinstance(function, ast.FunctionDef) and function.name not in ("__init__", "extra_repr"):
            function = ast.parse(ast.unparse(function)).body[0]
            assert isinstance(function, ast.FunctionDef)
            function.returns, function.decorator_list = None, []
            for argument in function.args.args:
                argument.annotation = None
            if ast.get_docstring(function):
                function.body = function.body[1:]
            parts.append(ast.unparse(function))
    return "\n".join(parts)


def candidates(package: str) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (module, class, body, is a block) for every class that looks like a norm in a package's files."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        if path.name.startswith(("modular_", "convert_")) or "testing" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if "Norm" not in text and not MARKED.search(text):
            continue
        for cls in ast.parse(text).body:
            if not isinstance(cls, ast.ClassDef) or not cls.bases:
                continue
            bases = " ".join(map(ast.unparse, cls.bases))
            forwards = [f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name in ("forward", "_norm")]
            marked = any(MARKED.search(ast.unparse(f)) and len(ast.unparse(f)) < 3000 for f in forwards)
            if NOT_MODULES.search(bases + " " + cls.name) or not (NAMED.search(cls.name) or (marked and forwards)):
                continue
            yield (
                ".".join((package, *path.relative_to(root).with_suffix("").parts)),
                cls.name,
                source_of(cls) or f"inherits {bases}",
                bool(HEAVY.search(ast.unparse(cls))),
            )


def arguments_of(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The named arguments of a class, those that it hands on to its bases among them."""
    named: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is nn.Module:
            continue
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        hands_on = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named = {p.name: p for p in parameters if p not in hands_on} | named
        if not hands_on:
            break
    return named


def build(kind: type[nn.Module], **changed: Any) -> nn.Module:
    """An instance with plausible arguments, and random parameters."""
    own = set(inspect.signature(kind.__init__).parameters)
    arguments = dict(changed)
    for name, parameter in arguments_of(kind).items():
        unset = parameter.default is inspect.Parameter.empty or (parameter.default is None and SIZES.search(name))
        if unset and name not in changed:
            arguments[name] = AnyConfig() if "config" in name else ARGUMENTS.get(name, SIZE)
    few = {name: value for name, value in arguments.items() if name in own}
    shaped = [{name: (SIZE,) if value == SIZE else value for name, value in given.items()} for given in (arguments, few)]
    errors: list[Exception] = []
    for given in (arguments, few, *shaped):
        try:
            module = kind(**given)
            break
        except TypeError as error:  # a size that has to be a shape, or that the class gives its base itself
            errors.append(error)
    else:
        raise errors[0]
    with torch.no_grad():
        for tensor in [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]:
            tensor.copy_(1.0 + 0.2 * torch.rand_like(tensor))
    return module


def examine(module_name: str, name: str, body: str, block: bool) -> Iterator[Found]:
    """Recognise a class and its variants."""
    short = ".".join(module_name.split(".")[-2:]) if module_name.startswith("timm") else module_name.split(".")[-2]
    found = Found(f"{module_name.split('.')[0]}:{short}.{name}", body, block=block)
    if block:
        yield found
        return
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            kind = getattr(importlib.import_module(module_name), name)
            if not issubclass(kind, nn.Module):
                return
            known = arguments_of(kind)
            versions: list[dict[str, Any]] = [{}, *({k: v} for k, v in VARIANTS.items() if k in known)]
            for change in versions:
                one = Found(found.name, body, ", ".join(f"{k}={v}" for k, v in change.items()))
                module = build(kind, **change)
                one.block = any(isinstance(m, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd) for m in module.modules())
                if not one.block:
                    one.recognition = ek.convert.recognize(module)
                yield one
    except Exception as error:
        found.problem = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        yield found


def define_missing_operators() -> Any:
    """Let torchvision import where it has no library for the installed torch; nothing of it is called."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    with contextlib.suppress(RuntimeError):
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


if __name__ == "__main__":
    library = define_missing_operators()
    rows = []
    for package in sys.argv[1:] or PACKAGES:
        for entry in candidates(package):
            rows += list(examine(*entry))
    groups = defaultdict(list)
    for r in rows:
        rec = r.recognition
        what = "BLOCK" if r.block else r.problem or (repr(rec.spec) + f" {rec.layout} frozen={rec.frozen}" if rec.spec else "REFUSED " + rec.reason)
        groups[(what, hashlib.sha256(r.body.encode()).hexdigest()[:8] if not r.block else '')].append(r)
    for (what, h), rs in sorted(groups.items(), key=lambda kv: (kv[0][0][:7], -len(kv[1]))):
        print(len(rs), h, what, "|", " ".join(f"{r.name.split(':')[1]}({r.variant})" for r in rs[:400 if r.block else 5]))
        rec = rs[0].recognition
        if rec and rec.spec:
            print("      ", [(k, round(v.equal, 3), round(v.ulps, 2), v.exact) for k, v in rec.agreement.items()], rec.ranks)
