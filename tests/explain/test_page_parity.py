"""The page's arithmetic and words against Python's, in a JavaScript engine without a browser."""

import io
import itertools
import json
import re
import shlex
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import quickjs
from explain_pages import CASES, compare, compare_explanations, config_of

from evenkeel._options.explain import EPS_MODES
from evenkeel._spec import EpsMode
from evenkeel.cli import main
from evenkeel.explain import _words, print_explanation, walk
from evenkeel.explain._mathtext import plain_text
from evenkeel.explain._norms import NORMS, read_norm

SHAPES = [(1,), (6,), (9,), (4, 3), (3, 1), (2, 3, 5), (2, 4, 3, 2)]
NUMBERS = {"eps": (1e-5, 0.1, 3.0), "eps_mode": ("inside", "outside", "clamp"), "weight_offset": (0.5, 1.0)}
NUMBERS |= {"correction": (0, 1), "feature_range": ((-1.0, 2.0),), "scale": (1.0, 50.0)}
NUMBERS |= {"alpha": (0.05, 0.2)}  # not where tanh is flat: 1 - tanh² magnifies the last bit there


def random_case(norm, shape, seed):
    """An input and options drawn at random."""
    draw = np.random.default_rng([seed, len(norm.key), *map(ord, norm.key), *shape])
    case = {"x": (draw.normal(draw.choice([0.0, 5.0]), 2.0, shape)).round(4).tolist(), "norm": norm.key}
    taken = [name for name in norm.options if draw.random() < 0.6]
    case |= {name: choices[draw.integers(len(choices))] for name, choices in NUMBERS.items() if name in taken}
    if "axis" in taken:
        case["axis"] = tuple(draw.permutation(len(shape))[: draw.integers(1, len(shape) + 1)].tolist())
    if "channel_axis" in taken or norm.key == "image":
        case["channel_axis"] = int(draw.integers(len(shape)))
    if "mask" in taken and draw.random() < 0.5:
        case["mask"] = (draw.random(shape) > 0.3).tolist()
    if norm.key == "image":
        case |= {"mean": 0.4, "std": 0.3}
    elif "variance" in taken and draw.random() < 0.3:
        case |= {"mean": 0.5, "variance": 2.0}
    if "groups" in taken:
        channels = shape[case.get("channel_axis", 1 if len(shape) > 1 else 0)]
        case["groups"] = int(draw.choice([n for n in range(1, channels + 1) if channels % n == 0]))
    sizes = [shape[axis] for axis in walk(**case).options["parameter_axes"]]
    case |= {name: draw.normal(size=sizes).round(4).tolist() for name in ("weight", "bias") if name in taken}
    if draw.random() < 0.3:
        case |= {"upstream": draw.normal(size=shape).round(4).tolist(), "dtype": "float32"}
    return case


ALL = CASES | {
    f"{norm.key} {shape} {seed}": random_case(norm, shape, seed)
    for norm, shape, seed in itertools.product(NORMS, SHAPES, range(4))
}
EVERY = pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@EVERY
def test_the_page_computes_and_tells_what_python_does(engine, case, backward):
    explanation = walk(**case, backward=backward)
    compare_explanations(engine("evenkeel.walk", config_of(explanation)), explanation.to_dict())


@EVERY
def test_the_page_chooses_the_axes_and_options_that_python_does(engine, case):
    config = config_of(walk(**case, backward=True))
    again = engine("(seed) => evenkeel.state.toConfig(evenkeel.state.fromSeed(seed))", config)
    assert again["options"] == config["options"]


OWN = """(seed, view) => {
    const { list } = evenkeel.tensor.panels(evenkeel.state.fromSeed(seed), view);
    const own = list.filter((one) => one.own);
    const { tensor, norm, groups, value } = own[0];
    const cells = tensor.index.map((at, i) => [at, tensor.values[i], value(i), groups[i]].map(String));
    return { count: own.length, made: tensor.made || false, norm, cells }; }"""


@pytest.mark.parametrize("view", [{"channelLast": False, "whole": False}, {"channelLast": True, "whole": True}])
@EVERY
def test_who_shares_has_the_values_and_the_groups_of_the_steps(engine, case, view):
    explanation = walk(**case)
    found = engine(OWN, config_of(explanation), view)
    x, output = (explanation.step(name).value.reshape(-1) for name in ("input", "output"))
    cells = [[float(number) for number in cell] for cell in found["cells"]]
    assert (found["count"], found["norm"]) == (1, explanation.norm)
    if found["made"]:  # of a tensor made of a vector, the first position of sample 0 is the vector
        assert (x.size, len(cells)) == (explanation.step("input").value.size, 6 * x.size)
        cells = cells[: 3 * x.size : 3]
    assert sorted(int(cell[0]) for cell in cells) == list(range(x.size))
    at = [int(cell[0]) for cell in cells]
    compare([cell[1] for cell in cells], x[at], 0.0, "input")
    compare([cell[2] for cell in cells], output[at], 1e-12, "output")
    if explanation.norm != "dyt" and not found["made"]:
        groups = explanation.step("groups").value.reshape(-1)
        assert [int(cell[3]) for cell in cells] == groups[at].tolist()


@pytest.mark.parametrize("shape", [(3,), (4, 3), (3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("norm", [norm.key for norm in NORMS])
def test_another_norm_on_the_page_has_its_own_axes_and_defaults(engine, norm, shape):
    x = np.arange(np.prod(shape), dtype=float).reshape(shape)
    change = """(seed, norm) => {
        const state = evenkeel.state.fromSeed(seed);
        evenkeel.state.changeNorm(state, norm);
        return evenkeel.state.toConfig(state).options; }"""
    page = engine(change, config_of(walk(x)), norm)
    groups = {"groups": page["num_groups"]} if norm == "group" else {}
    python = walk(x, norm, **groups).options
    assert {name: page[name] for name in page if name != "eps"} == {
        name: python[name] for name in page if name != "eps"
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_command_repeats_its_state(engine, case, capsys, monkeypatch):
    explanation = walk(**case, backward=True)
    data = explanation.to_dict()
    line = engine("(seed) => evenkeel.state.command(evenkeel.state.fromSeed(seed))", config_of(explanation))
    words = shlex.split(line)
    if words[0] == "echo":
        monkeypatch.setattr("sys.stdin", io.StringIO(words[1]))
        words = words[3:]
    assert words[:2] == ["evenkeel", "explain"]
    assert main([*words[1:], "--format", "json", "--full"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["title"], again["options"], again["shown"]) == (data["title"], data["options"], data["shown"])
    for mine, theirs in zip(again["steps"], data["steps"], strict=True):
        compare(mine["value"], theirs["value"], 1e-12, theirs["id"])


FILE = json.loads(_words.read_asset("explain.json"))


def texts(template):
    return (
        {template} if isinstance(template, str) else {part if isinstance(part, str) else part[1] for part in template}
    )


def every_text():
    templates = [t for step in _words.STEPS.values() for t in (step.formula, step.numbers, step.meaning)]
    templates += [check.note for check in _words.CHECKS.values()]
    templates += [*_words.NOTES.values(), *_words.PHRASES.values()]
    return set().union(*map(texts, templates)) - {""}


def test_every_text_is_told_on_both_sides(engine, monkeypatch):
    python, choose = set(), _words.choose

    def record(*arguments):
        python.add(choose(*arguments))
        return choose(*arguments)

    monkeypatch.setattr(_words, "choose", record)
    engine(
        """() => {
        const { telling } = evenkeel, choose = telling.choose;
        window.told = new Set();
        telling.choose = (...a) => { const text = choose(...a); told.add(text); return text; };
        return null; }"""
    )
    for case in ALL.values():
        engine("evenkeel.walk", config_of(walk(**case, backward=True)))
    for members in (1, 2):
        print_explanation(walk([1.0] * members), full=True, file=io.StringIO())
        engine(
            "(members) => evenkeel.telling.tell(evenkeel.words.phrases.one_group, evenkeel.from({ members }))", members
        )
    assert every_text() - python == set()
    assert every_text() - set(engine("() => [...told]")) == set()


def test_the_modes_are_those_of_a_spec():
    assert get_args(EpsMode) == EPS_MODES


def test_every_formula_is_known_to_both_renderings(engine):
    for case in CASES.values():
        for step in walk(**case, backward=True).steps:
            for formula in {step.formula, step.substituted}:
                assert not re.search(r"[\\\\{}]", plain_text(formula))
                assert "unknown" not in engine("evenkeel.mathml", formula)


@pytest.mark.parametrize(
    ("path", "refuse"),
    [
        ((), lambda data: _words.sections(**data)),
        (("forward", "mean"), lambda data: _words.sections(**data)),
        (("backward", "dx"), lambda data: _words.sections(**data)),
        (("checks", "std_one"), lambda data: _words.sections(**data)),
        (("norms", "rms"), lambda data: read_norm("rms", data["norms"]["rms"])),
        (("norms", "rms", "axes"), lambda data: read_norm("rms", data["norms"]["rms"])),
    ],
)
def test_both_sides_refuse_a_key_that_nobody_knows(path, refuse, start):
    data = json.loads(json.dumps(FILE))
    entry = data
    for key in path:
        entry = entry[key]
    refuse(json.loads(json.dumps(data)))
    entry["surprise"] = "x"
    with pytest.raises(TypeError, match="surprise"):
        refuse(data)
    with pytest.raises(quickjs.JSException, match="nobody knows the key surprise"):
        start(data)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("<num nothing>", "may ask for"),
        ("<nothing>", "may ask for"),
        ([["nothing > 1", "x"], "y"], "may ask for"),
        ("<num sum_at_max>", "nothing to fill in"),
        ("<loud mean>", "loud|not a function"),
    ],
)
def test_both_sides_refuse_a_placeholder_that_nobody_fills(template, message, engine, monkeypatch):
    explanation = walk([1.0, 2.0])
    monkeypatch.setitem(_words.STEPS, "mean", replace(_words.STEPS["mean"], numbers=template))
    with pytest.raises(KeyError, match=message):
        walk([1.0, 2.0])
    tell = """(config, template) => {
        const p = evenkeel.arithmetic.prepare(config);
        return evenkeel.viewOf(p, evenkeel.arithmetic.forward(p)).tell(template); }"""
    with pytest.raises(quickjs.JSException, match=message):
        engine(tell, config_of(explanation), template)
