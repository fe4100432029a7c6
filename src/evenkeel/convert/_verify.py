"""Whether a changed model computes what it did: each site in its place, and the whole, beside a run in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from evenkeel._errors import ConversionError
from evenkeel.convert._wrapped import copied, inside, unwrapped
from evenkeel.recognition import (
    Call,
    CannotCopyError,
    bare_copy,
    distance,
    isolated,
    random_values,
    tensors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

    from evenkeel.convert._site import Site

__all__ = ["WHOLE", "Check", "Verification", "verify_changes"]

# A result may be so many times as far from float64 as the original's, and so many ulps further: two roundings of the
# same sums in another order are a draw.
TIMES, MORE = 2.0, 4.0
WHOLE = ("", "")
MOST_ELEMENTS = 2**20  # of a norm's input that is compared


@dataclass(frozen=True)
class Check:
    """How far from float64 a result is, in units of the last place of the largest value.

    Attributes:
        what: the result.
        ours: the distance after the swap.
        theirs: the original's.

    Example:
        >>> from evenkeel.convert import Check
        >>> Check("the result", 2.5, 1.0).passed, Check("the result", 250.0, 1.0).passed
        (True, False)
    """

    what: str
    ours: float
    theirs: float

    @property
    def passed(self) -> bool:
        """Whether ours is as close as the original, but for the order of sums."""
        return self.ours <= TIMES * self.theirs + MORE


class Run(NamedTuple):
    """What a call gave: its results, the gradients of its inputs and parameters, and the results of some modules."""

    results: list[Tensor]
    gradients: dict[str, Tensor | None]
    inner: dict[str, list[Tensor]]


@dataclass
class Verification:
    """The original's runs, kept until the swapped model has run.

    Attributes:
        call: the call.
        cotangents: of the results.
        theirs: the original's run.
        exact: its run in float64; in float32 where an operator of the model has no float64.
        reference: the dtype of that run.
        inputs: what each norm that is swapped was given, by its name.
        originals: a copy of each of these norms, by its name.
        watched: the names of the modules whose results have to stay, in the model and inside of its wrappers.
    """

    call: Call
    cotangents: list[Tensor]
    theirs: Run
    exact: Run
    reference: torch.dtype
    inputs: dict[str, tuple[Tensor, ...]]
    originals: dict[str, nn.Module]
    watched: dict[str, str]

    @classmethod
    def before(cls, model: nn.Module, sites: Sequence[Site], call: Call, tell: Callable[[str], None]) -> Verification:
        """Run copies of the original.

        Raises:
            ConversionError: the model cannot be copied, or does not run on the call.
        """
        inputs: dict[str, tuple[Tensor, ...]] = {}
        original = copied(model)
        rescaled = {name for site in sites for name in site.rescaled}
        watched = inside(model, [name for site in sites for name in site.watched if name not in rescaled])
        swaps = [site for site in sites if site.is_swap]
        for name, own in inside(model, [site.name for site in swaps]).items():
            original.get_submodule(own).register_forward_pre_hook(noting(inputs, name), with_kwargs=True)
        with isolated():
            cotangents = [random_like(y, seed) for seed, y in enumerate(results_of(original, call))]
            inputs = dict(inputs)
            tell("running the original, forward and backward")
            theirs = run(original, call, cotangents, watched)
            try:
                reference = torch.float64
                tell("running it in float64")
                exact = run(copied(model).double(), call.changed(torch.Tensor.double), cotangents, watched)
            except ConversionError:
                reference = torch.float32
                exact = run(copied(model).float(), call.changed(torch.Tensor.float), cotangents, watched)
                if is_single(original):  # its own error cannot be seen there: what the last bits of its weights do
                    theirs = run(nudged(original), call, cotangents, watched)
            originals = {}
            for site in swaps:
                try:
                    originals[site.name] = bare_copy(site.module)
                except CannotCopyError as error:
                    raise ConversionError(f"{site.name} cannot be verified: {error}; leave verify out") from error
        return cls(call, cotangents, theirs, exact, reference, inputs, originals, watched)


def is_single(model: nn.Module) -> bool:
    """Whether a model computes in float32."""
    return all(p.dtype == torch.float32 for p in model.parameters() if p.is_floating_point())


def nudged(model: nn.Module) -> nn.Module:
    """Change every weight by at most half a unit in the last place, as its rounding did."""
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            change = 1 + 2.0**-24 * random_values(parameter.shape, 3000 + seed).clamp(-1, 1)
            parameter.copy_(parameter.double() * change.to(parameter.device))
    return model


def noting(inputs: dict[str, tuple[Tensor, ...]], name: str) -> Any:
    """A hook that keeps the first input of a module, and its gate."""

    def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        found = [value for value in (*given, *named.values()) if isinstance(value, torch.Tensor)]
        if found and given and found[0] is given[0]:
            inputs.setdefault(name, tuple(tensor.detach().clone() for tensor in found))

    return note


def results_of(model: nn.Module, call: Call) -> list[Tensor]:
    """The floating tensors that a call gives."""
    try:
        return list(tensors_of(call(model)))
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConversionError(f"the model does not run on the inputs to verify it on: {line}") from error


def random_like(y: Tensor, seed: int) -> Tensor:
    """A random cotangent in float64."""
    return random_values(y.shape, 1000 + seed).to(y.device)


def run(model: nn.Module, call: Call, cotangents: Sequence[Tensor], watched: Mapping[str, str]) -> Run:
    """Call a model on the same random numbers as every other, and take the gradients."""
    torch.manual_seed(0)
    inner: dict[str, list[Tensor]] = {name: [] for name in watched}
    for name, kept in inner.items():
        model.get_submodule(watched[name]).register_forward_hook(keeping(kept))
    with torch.enable_grad():
        leaves = call.changed(lambda t: t.detach().clone().requires_grad_())
        results = results_of(model, leaves)
        named = {f"input {k}": leaf for k, leaf in enumerate(leaves.floating())}
        named |= {name: p for name, p in model.named_parameters() if p.requires_grad}
        pairs = [(y, c.to(y.dtype)) for y, c in zip(results, cotangents, strict=True) if y.requires_grad]
        gradients: Sequence[Tensor | None] = [None] * len(named)
        if pairs and named:
            ys, cs = zip(*pairs, strict=True)
            gradients = torch.autograd.grad(ys, list(named.values()), cs, allow_unused=True)
    return Run([y.detach() for y in results], dict(zip(named, gradients, strict=True)), inner)


def keeping(kept: list[Tensor]) -> Any:
    """A hook that keeps the results of a module."""

    def keep(module: nn.Module, given: Any, result: Any) -> None:
        kept.extend(tensor.detach().clone() for tensor in tensors_of(result))

    return keep


def verify_changes(
    before: Verification,
    model: nn.Module,
    sites: Sequence[Site],
    touched: set[int],
    tell: Callable[[str], None],
) -> dict[tuple[str, str], list[Check]]:
    """Compare the changed model with the original, site by site and as a whole.

    Args:
        before: the original's runs.
        model: the changed model.
        sites: where it was changed.
        touched: the ids of the parameters with other values, whose gradients are others too.
        tell: called with what comes next.

    Returns:
        The checks by the key of the site; those of the model under `WHOLE`.

    Raises:
        ConversionError: a site, or the model, is too far from the run in float64.
    """
    checks: dict[tuple[str, str], list[Check]] = {}
    with isolated():
        for site in sites:
            if site.is_swap and site.name in before.inputs:
                tell(f"comparing {site.name or 'the model'}")
                original = with_weights_of(before.originals[site.name], site.module, touched)
                checks[site.key] = check_site(site, original, before.inputs[site.name])
                demand(site.name, checks[site.key])
        tell("running the changed model, forward and backward")
        ours = run(copied(model), before.call, before.cotangents, before.watched)
        for site in sites:
            names = [name for name in site.watched if name in ours.inner]
            if any(before.exact.inner[name] for name in names):
                found = compare_inner(names, ours, before)
                checks[site.key] = [*checks.get(site.key, []), found]
                demand(site.name, [found], before.reference)
        named = unwrapped(model).named_parameters(remove_duplicate=False)
        changed = {name for name, p in named if id(p) in touched}
        checks[WHOLE] = compare(ours, before.theirs, before.exact, changed)
        demand("the model", checks[WHOLE], before.reference)
    return checks


def with_weights_of(original: nn.Module, module: nn.Module, touched: set[int]) -> nn.Module:
    """A copy of a norm with the weights that a fold left in it."""
    for name, tensor in module.named_parameters():
        if id(tensor) in touched:
            original.get_parameter(name).copy_(tensor)
    return original


def compare_inner(names: Sequence[str], ours: Run, before: Verification) -> Check:
    """Compare the results of modules in their places, as one vector."""
    mine, other, right = (
        [result for name in names for result in run.inner[name]] for run in (ours, before.theirs, before.exact)
    )
    return Check("the result", relative(mine, right), relative(other, right))


def demand(name: str, checks: Sequence[Check], reference: torch.dtype = torch.float64) -> None:
    """Raise unless all checks pass."""
    exact = str(reference).removeprefix("torch.")
    for check in checks:
        if not check.passed:
            raise ConversionError(
                f"{name}: {check.what} is {check.ours:.3g} ulps from {exact}, the original's {check.theirs:.3g}; "
                "nothing was changed; leave it out with where="
            )


def compare(ours: Run, theirs: Run, exact: Run, changed: Collection[str] = ()) -> list[Check]:
    """Compare runs of the whole model: each result, and the gradients of what was not changed as one vector."""
    checks = []
    for index, (mine, other, right) in enumerate(zip(ours.results, theirs.results, exact.results, strict=True)):
        if right.numel():
            what = "the result" if len(exact.results) == 1 else f"result {index}"
            checks.append(Check(what, relative([mine], [right]), relative([other], [right])))
    held = [name for name, right in exact.gradients.items() if right is not None and name not in changed]
    missing = [name for name in held if ours.gradients.get(name) is None and theirs.gradients[name] is not None]
    if missing:
        raise ConversionError(f"{len(missing)} parameters have no gradient after the change; nothing was changed")
    if held:
        wanted = [exact.gradients[name] for name in held]
        errors = [relative([run.gradients.get(name) for name in held], wanted) for run in (ours, theirs)]
        checks.append(Check("the gradients", *errors))
    return checks


def relative(found: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> float:
    """The relative error of tensors as one vector, in ulps of their dtype; infinite where one alone is finite."""
    error = size = 0.0
    eps = 2.0**-52
    for mine, right in zip(found, exact, strict=True):
        if mine is None or right is None:
            continue
        eps = max(eps, torch.finfo(mine.dtype).eps)
        wide, right = mine.double(), right.double()
        fine = wide.isfinite() & right.isfinite()
        error += float((wide - right)[fine].square().sum())
        size += float(right[fine].square().sum())
        if bool((wide.isfinite() != right.isfinite()).any()):
            return float("inf")
    return (error / size) ** 0.5 / eps if size else (0.0 if error == 0 else float("inf"))


def check_site(site: Site, original: nn.Module, given: tuple[Tensor, ...]) -> list[Check]:
    """Compare a norm with a residual around it: a backward that writes into the stream's gradient shows there."""
    x = given[0]
    if x.numel() > MOST_ELEMENTS and x.shape[0] > 1:
        given = tuple(tensor[: max(1, MOST_ELEMENTS * x.shape[0] // x.numel())] for tensor in given)
        x = given[0]
    mine = bare_copy(site.module)
    cotangent = random_values(x.shape, 2000).to(x.device).to(x.dtype)
    device = x.device
    modules = [mine.to(device), copy.deepcopy(original).to(device), copy.deepcopy(original).to(device).double()]
    inputs = [given, given, tuple(map(torch.Tensor.double, given))]
    ours, theirs, exact = (residual(m, tensors, cotangent) for m, tensors in zip(modules, inputs, strict=True))
    gates = ["the gradient of the gate"] * (len(given) - 1)
    labels = [
        "the result",
        "the gradient of the stream",
        *gates,
        *(f"the gradient of {name}" for name in learned(mine)),
    ]
    return [
        Check(what, far(a, right), far(b, right))
        for what, a, b, right in zip(labels, ours, theirs, exact, strict=True)
        if right is not None and right.numel()
    ]


def learned(module: nn.Module) -> list[str]:
    """The names of the parameters with gradients."""
    return [name for name, p in module.named_parameters() if p.requires_grad]


def residual(module: nn.Module, given: tuple[Tensor, ...], cotangent: Tensor) -> list[Tensor | None]:
    """The result of a module, and the gradients of ``x + module(x)`` in the inputs and the parameters."""
    with torch.enable_grad():
        stream, *gates = (tensor.detach().clone().requires_grad_() for tensor in given)
        y = module(stream.clone(), *gates)
        total = stream + y
        wanted = [stream, *gates, *(p for p in module.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(total, wanted, cotangent.clone().to(total.dtype), allow_unused=True)
    return [y.detach(), *gradients]


def far(found: Tensor | None, exact: Tensor | None) -> float:
    """The largest difference from float64, in ulps of the largest value."""
    if found is None or exact is None:
        return 0.0 if found is exact else float("inf")
    return distance(found, exact) / torch.finfo(found.dtype).eps
