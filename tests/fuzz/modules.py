"""The modules beside torch.nn's: values in float64, running statistics, states that go over; and maps of elements."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from fuzz.checks import check
from fuzz.numbers import dtypes, lay_out, normals, same, seeds
from fuzz.surroundings import SURROUNDINGS, under
from fuzz.values import within
from hypothesis import strategies as st

from evenkeel import functional as F
from evenkeel import nn

MEMORY = 4 << 30
CHANNELS = 6
FREE = 4.0  # ulps of what has no place in the numerics contract
AXES = {"1d": 1, "2d": 2, "3d": 3}
NAMES = (
    *(f"{kind}{axes}" for kind in ("BatchNorm", "InstanceNorm", "LazyBatchNorm", "LazyInstanceNorm") for axes in AXES),
    "LayerNorm",
    "RMSNorm",
    "GroupNorm",
    "LocalResponseNorm",
)
switches = st.booleans()


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module with torch.nn's options, trained on some batches and then used."""

    name: str = "BatchNorm1d"
    options: dict[str, Any]
    batch: int = 4
    positions: int = 5
    steps: int = 1
    dtype: torch.dtype = torch.float32
    layout: str = "plain"
    seed: int = 0
    mode: str = "none"

    def shape(self):
        axes = AXES.get(self.name[-2:], 1)
        return (self.batch, CHANNELS, *[self.positions, 3, 2][:axes])

    def rows(self, t):
        """(groups, elements that share a statistic)"""
        if "Batch" in self.name:
            return t.transpose(0, 1).flatten(1)
        if self.name == "GroupNorm":
            return t.reshape(self.batch * self.options["num_groups"], -1)
        return t.flatten(0, 1).flatten(1)

    def build(self, package):
        module = getattr(package, self.name)(**self.options)
        if "Lazy" in self.name:
            module(torch.ones(self.shape()))  # which gives it its parameters
        return module

    def input(self, step):
        return lay_out((normals(self.shape(), self.seed + step, torch.float64) * 2 + 3).to(self.dtype), self.layout)


@st.composite
def module_cases(draw):
    name = draw(st.sampled_from(NAMES))
    positions = draw(st.sampled_from([2, 5, 33]))
    options = {"eps": draw(st.sampled_from([1e-5, 1e-2, 1.0]))}
    if "BatchNorm" in name or "InstanceNorm" in name:
        options |= {"momentum": draw(st.sampled_from([0.1, None, 0.0, 1.0, 0.5]))}
        options |= {"affine": draw(switches), "track_running_stats": draw(switches)}
        options |= {} if "Lazy" in name else {"num_features": CHANNELS}
    elif name == "LocalResponseNorm":
        options = {"size": draw(st.integers(1, 7)), "alpha": draw(st.floats(1e-4, 1)), "beta": 0.75, "k": 1.0}
    elif name == "GroupNorm":
        options |= {
            "num_groups": draw(st.sampled_from([1, 2, 3, 6])),
            "num_channels": CHANNELS,
            "affine": draw(switches),
        }
    else:
        options |= {"normalized_shape": positions, "elementwise_affine": draw(switches)}
        options |= {"bias": draw(switches)} if name == "LayerNorm" else {}
    return Module(
        name=name,
        options=options,
        batch=draw(st.integers(2, 5)),
        positions=positions,
        steps=draw(st.integers(0, 3)),
        dtype=draw(dtypes),
        layout=draw(st.sampled_from(["plain", "every second", "transposed", "channels last"])),
        seed=draw(seeds),
        mode=draw(st.sampled_from([name for name in SURROUNDINGS if "elsewhere" not in name])),
    )


def module_is_measuring(module):
    return module.training or not getattr(module, "track_running_stats", False)


def check_module(case):
    """Trained and used as torch.nn's in float64; a state goes over and back; no surrounding changes a bit."""
    mine, theirs = case.build(nn), case.build(torch.nn).double()
    for parameter in mine.parameters():
        parameter.data.copy_(normals(parameter.shape, case.seed, torch.float32) / 4 + 1)
    theirs.load_state_dict(mine.state_dict())
    surrounded = copy.deepcopy(mine)
    for step in range(case.steps + 1):
        if step == case.steps:
            for module in (mine, theirs, surrounded):
                module.eval()
        x = case.input(step)
        y, expected = mine(x).detach(), theirs(x.double()).detach()
        check(y.dtype == x.dtype or case.name == "LocalResponseNorm", f"{case.name}: the dtype is {y.dtype}")
        terms = (case.rows(expected).abs().amax(1, keepdim=True) + 4,)  # weights and biases near 1, inputs near 3
        remembered = () if module_is_measuring(mine) else (torch.float32,)  # in which a module keeps its statistics
        limit = FREE if case.name == "LocalResponseNorm" else None
        within(case, case.rows(y), case.rows(expected), "y", x.dtype, *remembered, terms=terms, limit=limit)
        (other,) = under(case.mode, surrounded, x)
        check(same(other.detach(), y), f"{case.name}: other bits under {case.mode}")
    state, exact = mine.state_dict(), theirs.state_dict()
    check(state.keys() == exact.keys(), f"{case.name}: the state's names are {sorted(state)}")
    for key, value in state.items():
        check(torch.allclose(value.double(), exact[key].double(), rtol=1e-5, atol=1e-5), f"{case.name}: other {key}")
        check(same(surrounded.state_dict()[key], value), f"{case.name}: other {key} under {case.mode}")


@dataclass(frozen=True, kw_only=True)
class Map:
    """A function of elements or vectors, which plain code or a kernel computes."""

    name: str
    dtype: torch.dtype
    layout: str
    seed: int
    mode: str
    options: dict[str, Any]

    def call(self, x):
        return getattr(F, self.name)(x, **self.arguments(), **self.options)

    def arguments(self):
        if self.name == "dyt":
            return {
                "alpha": 0.5,
                "weight": normals((4,), self.seed, self.dtype),
                "bias": normals((4,), 1, torch.float32),
            }
        return {"mean": [0.1, 0.2, 0.3, 0.4], "std": [1.0, 2.0, 3.0, 0.5]} if self.name == "image_normalize" else {}


layout_options = st.fixed_dictionaries({"layout": st.just("HWC"), "max_value": st.sampled_from([255.0, 1.0])})
normalize_options = st.fixed_dictionaries(
    {"p": st.sampled_from([2.0, 1.0, 3.0, float("inf")]), "dim": st.sampled_from([-1, 0, 1, (0, 1), (1, 2), None])}
)
maps = st.one_of(
    st.builds(
        Map,
        name=st.just(name),
        dtype=dtypes,
        layout=st.sampled_from(["plain", "offset", "every second", "transposed", "wide rows"]),
        seed=seeds,
        mode=st.sampled_from([name for name in SURROUNDINGS if "elsewhere" not in name]),
        options=options,
    )
    for name, options in (("normalize", normalize_options), ("dyt", st.just({})), ("image_normalize", layout_options))
)


def check_map(case):
    """As in float64, the same in every surrounding, and an input is never modified."""
    x = lay_out(normals((3, 5, 4), case.seed, case.dtype), case.layout)
    before = x.clone()
    y = case.call(x)
    arguments = case.arguments() | case.options
    tensors = {k: torch.tensor(v) if k in ("mean", "std") else v for k, v in arguments.items()}
    wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in tensors.items()}
    if case.name == "image_normalize":
        wide = {**arguments, "mean": torch.tensor(arguments["mean"], dtype=torch.float64), "dtype": torch.float64}
        wide["std"] = torch.tensor(arguments["std"], dtype=torch.float64)
    if wide.get("dim", 0) is None:
        wide["dim"] = (0, 1, 2)
    expected = getattr(F, f"{case.name}_reference")(x.double(), **wide)
    check(y.shape == expected.shape, f"{case.name}: the shape is {tuple(y.shape)}")
    check(y.dtype == (torch.float32 if case.name == "image_normalize" else case.dtype), f"{case.name}: is {y.dtype}")
    limit = FREE if case.name == "normalize" and case.dtype == torch.float32 else None  # plain code, but for p = 2
    within(case, y.reshape(1, -1), expected.reshape(1, -1), "y", limit=limit)
    (other,) = under(case.mode, case.call, x)
    check(same(other, y), f"{case.name}: other bits under {case.mode}")
    check(same(x, before), f"{case.name}: the input was modified")


PROPERTIES = {"modules": (module_cases(), check_module), "maps": (maps, check_map)}
