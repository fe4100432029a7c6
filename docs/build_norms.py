"""Recognise every norm class of the installed transformers, timm and diffusers: writes docs/norms-in-the-wild.md."""

import ast
import contextlib
import copy
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import itertools
import math
import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import evenkeel as ek
from evenkeel.report import write_text_atomically

os.environ.setdefault("HF_HUB_OFFLINE", "1")
PAGE = Path(__file__).parent / "norms-in-the-wild.md"
INTRODUCTION = """# Norms in the wild: what the libraries' norm classes compute

`ek.convert.recognize` was run on every class of these packages that looks like a norm, by its name or by its
arithmetic, as `python docs/build_norms.py` found them. It looks at results alone, never at names. Classes with the same
code share the fingerprint of their body.

* *float32: ulps*: how far the module that `ek.convert.plan` swaps in is from the class, on other inputs than those that
  recognised it, in units of the last place of the largest value. A recognition counts as wrong beyond 64.
* *equal bits*: the share of elements with the same bits in 16 bits, where inputs and parameters have the same dtype.
  Below 99 % the class rounds in places that no spec names: in that dtype, the mode `exact` leaves it.
"""
SHAPES = ((3, 5, 16), (6, 16), (3, 16, 4, 5), (3, 16, 7), (3, 16, 2, 3, 4))
MOST_ULPS = 64.0
FEW = 4
PACKAGES = ("transformers", "timm", "diffusers")
NAMED = re.compile(r"Norm(?!al|ing)|norm$|BatchNorm|NormAct")
# what the arithmetic of a norm looks like
MARKED = re.compile(
    r"rsqrt|\b(F|functional)\.(layer_norm|rms_norm|batch_norm|group_norm|normalize)\(|pow\(2\)\.mean|\.var\("
)
# what a block holds and a norm does not
HEAVY = re.compile(
    r"Linear|Conv\d|Embedding|Attention|MLP|Dropout|post_init|PreTrainedModel|from_config|from_pretrained"
)
NOT_MODULES = re.compile(
    r"Config|Output|Mixin|Processor|Tokenizer|PreTrainedModel|Enum|Function|ABC$|Protocol|Dataset|Loss$"
)
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
    """A class, and what it is.

    Attributes:
        name: its module and name.
        body: its code.
        variant: the argument that makes this norm of it.
        recognition: what it computes.
        problem: why it could not be built.
        block: whether it holds other layers.
        several: whether it takes further inputs.
        error: how far the swapped module is from it.
    """

    name: str
    body: str
    variant: str = ""
    recognition: ek.convert.Recognition | None = None
    problem: str = ""
    block: bool = False
    several: bool = False
    error: float = math.nan

    @property
    def recognised(self) -> bool:
        """Whether there is a spec."""
        return self.recognition is not None and self.recognition.spec is not None

    @property
    def reason(self) -> str:
        """Why there is no spec."""
        return "" if self.recognition is None else self.recognition.reason

    def spec_text(self) -> str:
        """The spec in a line."""
        return "" if self.recognition is None else str(self.recognition).splitlines()[0]


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


def candidates(package: str, folders: Collection[str] = ()) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (module, class, body, is a block) for every class that looks like a norm in a package's files.

    Where there are folders, only for those in one of them.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        if path.name.startswith(("modular_", "convert_")) or "testing" in path.parts:
            continue
        if folders and path.parent.name not in folders:
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
            block = bool(HEAVY.search(ast.unparse(cls)))
            named = NAMED.search(cls.name)
            if NOT_MODULES.search(bases + " " + cls.name) or not (named or (marked and not block)):
                continue
            yield (
                ".".join((package, *path.relative_to(root).with_suffix("").parts)),
                cls.name,
                source_of(cls) or f"inherits {bases}",
                block,
            )


def arguments_of(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The named arguments of a class, those that it hands on to its bases among them."""
    named: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is nn.Module:
            continue
        parameters = list(inspect.signature(base).parameters.values())
        hands_on = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named = {p.name: p for p in parameters if p not in hands_on} | named
        if not hands_on:
            break
    return named


def build(kind: type[nn.Module], **changed: Any) -> nn.Module:
    """An instance with plausible arguments, and random parameters."""
    own = set(inspect.signature(kind).parameters)
    arguments = dict(changed)
    for name, parameter in arguments_of(kind).items():
        unset = parameter.default is inspect.Parameter.empty or (parameter.default is None and SIZES.search(name))
        unset = unset or name == "num_groups"  # the default may not divide the few channels here
        if unset and name not in changed:
            arguments[name] = AnyConfig() if "config" in name else ARGUMENTS.get(name, SIZE)
    few = {name: value for name, value in arguments.items() if name in own}
    shaped = [
        {name: (SIZE,) if value == SIZE else value for name, value in given.items()} for given in (arguments, few)
    ]
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
    place = module_name.split(".")[-2] if module_name.startswith("transformers.models") else module_name.split(".")[-1]
    found = Found(f"{place}.{name}", body, block=block)
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
            told: set[str] = set()
            for change in versions:
                one = Found(found.name, body, ", ".join(f"{k}={v}" for k, v in change.items()))
                module = build(kind, **change)
                one.block = any(
                    isinstance(m, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd) for m in module.modules()
                )
                if not one.block:
                    one.recognition = ek.convert.recognize(module)
                    roles = one.recognition.roles
                    gated = roles is not None and roles.gate is not None
                    one.several = gated or "further inputs" in one.reason
                    if one.recognised:
                        one.error = compared(module, one.recognition)
                alike = one.spec_text() in told or one.reason.startswith("it raises")  # a variant that is none
                told.add(one.spec_text())
                if not (change and alike):
                    yield one
    except Exception as error:
        found.problem = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        yield found


def compared(module: nn.Module, found: ek.convert.Recognition) -> float:
    """How far the swapped module is from the class, in ulps of float32, on inputs and parameters of its own."""
    assert found.spec is not None
    torch.manual_seed(0)
    mine = nn.Sequential(copy.deepcopy(module).eval())
    certificate = ek.convert.plan(mine).apply()
    if not certificate.swapped:
        return math.nan
    errors = []
    shapes = [shape for shape in SHAPES if len(shape) in found.ranks]
    for scale, shape in itertools.product((0.02, 1.0, 300.0), shapes):
        x = scale * torch.randn(shape)
        given = (x, torch.randn(shape)) if found.roles is not None and found.roles.gate is not None else (x,)
        try:
            theirs = module.eval()(*given)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            continue
        error = (mine[0](*given) - theirs).abs().max() / theirs.abs().max()
        errors.append(float(error) / torch.finfo(torch.float32).eps)
    return max(errors, default=math.nan)


def sections(package: str, found: list[Found]) -> str:
    """The tables of one package."""
    version = importlib.metadata.version(package)
    alone = [one for one in found if one.recognition is not None and not one.several]
    kinds = {one.name for one in found}
    blocks, several = ({one.name for one in found if getattr(one, flag)} for flag in ("block", "several"))
    failed = [one for one in found if one.problem]
    names, served = ({one.name for one in some} for some in (alone, [one for one in alone if one.recognised]))
    gated = {one.name for one in found if one.several and one.recognised}
    wrong = {one.name for one in found if one.recognised and one.error > MOST_ULPS}
    lines = [
        f"## {package} {version}: of {len(names)} norms of one input, {len(served)} are recognised, "
        f"{len(wrong)} wrongly",
        "",
        f"{len(kinds)} classes look like norms. {len(blocks)} of them are blocks with other layers inside, "
        f"{len(several)} take further inputs (gates, masks), of which {len(gated)} are recognised as norms with a "
        f"gate, {len({one.name for one in failed})} could not be built without their model, and {len(names)} are norms "
        "of one input, with "
        f"{len({one.body for one in alone})} different bodies.",
        "",
        "| classes | body | spec | float32: ulps | bfloat16: equal bits | float16: equal bits |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    groups = defaultdict(list)
    for one in [*alone, *(one for one in found if one.name in gated)]:
        groups[one.body, one.spec_text()].append(one)
    ordered = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[1][0].name))
    lines += [row(body, text, some) for (body, text), some in ordered if some[0].recognised]
    lines += [
        "",
        f"### What {package} has besides, and why it is left",
        "",
        "| classes | body | refused |",
        "| --- | --- | --- |",
    ]
    refused = defaultdict(list)
    for one in found:
        if one.recognition is not None and not one.recognised:
            refused[one.body, one.reason].append(one)
    for (body, reason), some in sorted(refused.items(), key=lambda pair: (-len(pair[1]), pair[1][0].name)):
        lines.append(f"| {listed(some)} | `{short(body)}` | {escape(reason)} |")
    lines += [f"| {listed([one])} | `{short(one.body)}` | not built: {escape(one.problem)} |" for one in failed]
    return "\n".join(lines) + "\n"


def row(body: str, text: str, some: list[Found]) -> str:
    """One line of the table of recognised classes."""
    assert some[0].recognition is not None
    agreement = some[0].recognition.agreement
    halves = [f"{agreement[name].equal:.1%}" if name in agreement else "–" for name in ("bfloat16", "float16")]
    errors = [one.error for one in some if not math.isnan(one.error)]
    error = f"{max(errors):.2g}" if errors else "–"
    return f"| {listed(some)} | `{short(body)}` | {text} | {error} | {' | '.join(halves)} |"


def listed(some: list[Found]) -> str:
    """The names of classes: all of a few, the first and the number of many."""
    names = [f"{one.name} ({one.variant})" if one.variant else one.name for one in some]
    if len(names) <= FEW:
        return ", ".join(names)
    return f"<details><summary>{names[0]} and {len(names) - 1} more</summary>{', '.join(names[1:])}</details>"


def escape(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def short(body: str) -> str:
    """The fingerprint of a body."""
    return hashlib.sha256(body.encode()).hexdigest()[:8]


def define_missing_operators() -> Any:
    """Let torchvision import where it has no library for the installed torch; nothing of it is called."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    text = "".join(path.read_text() for path in Path(spec.origin).parent.glob("*.py"))
    for name in set(re.findall(r"torchvision::(\w+)", text)):
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


def survey(package: str) -> list[Found]:
    """Every class of a package that looks like a norm."""
    entries = list(candidates(package))
    found = []
    for done, entry in enumerate(entries):
        print(f"\r{package}: {done + 1} of {len(entries)} classes", end="", file=sys.stderr)
        found += list(examine(*entry))
    print(file=sys.stderr)
    return found


def kept_sections() -> dict[str, str]:
    """The sections of the page as it is, by package: of those that are not installed here they stay."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    return {part.split()[1]: part.rstrip("\n") + "\n" for part in parts}


def main() -> None:
    """Write the page."""
    library = define_missing_operators()
    kept = kept_sections()
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            kept[package] = sections(package, survey(package))
    write_text_atomically(PAGE, "\n".join([INTRODUCTION, *(kept[name] for name in PACKAGES if name in kept)]))
    del library


if __name__ == "__main__":
    main()
