"""Names that users and files give are text in every page, figure and terminal table, whatever they look like."""

import json
import re

import numpy as np
import pytest
import torch
from page_elements import Elements
from page_summaries import summary

from evenkeel import explain
from evenkeel.data import StandardScaler, Statistics, compare
from evenkeel.data.views import describe, drift_page, drift_table, show_page, statistics_table
from evenkeel.explain._page import render_page as render_explanation
from evenkeel.lab.experiments import EXPERIMENTS, Claim
from evenkeel.lab.experiments._page import Measured, experiments_page
from evenkeel.lab.studies import ranking_table, study_page
from evenkeel.report import Axis, Figure, Row, Series, Table, bars, dots, lines, print_table, render_page

NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><svg onload=alert(1)>",
    "'onmouseover='alert(1)",
    "[bold]x[/]",
    "<b>x</b><a href='javascript:alert(1)'>y</a>",
    "%{x}<!--${style}",
]
# What figures hold of Plotly's own language: tags, and places for numbers.
PLOTLY = re.compile(r"</?b>|<br>|<extra></extra>|%\{(fullData\.name|x:\.4~g|y:\.4~g)\}")
MARKS = re.compile(r"[<>]|%\{")
each_name = pytest.mark.parametrize("name", NAMES)


def data_item(name):
    x = np.random.default_rng(0).normal(size=(200, 2)).round(2)
    x[:, 1] = 1
    statistics = Statistics(names=[name, f"{name}2"], quantiles=True, sketch_size=64).update(x)
    scaler = StandardScaler.from_statistics(statistics)
    return scaler.annotate(units=name, source={"description": name, "skipped": [name], name: name})


def data_pages(name):
    item = data_item(name)
    yield show_page(item, name)
    now = Statistics(names=item.statistics_.names, quantiles=True, sketch_size=64).update(np.full((50, 2), 9.0))
    yield drift_page(compare(item.statistics_, now), item.statistics_, now, name, name)


def study_pages(name):
    data = summary((name, f"{name}2", "pre-batch"), seeds=2, statuses={f"{name}2": "diverged"})
    data["corpus"]["source"] = data["evenkeel"] = data["torch"] = data["created"] = name
    data["machine"] = {"processor": name, "threads": 1, "system": name}
    data["settings"] |= {"text": name, "feed_forward": name}
    for arm in data["arms"]:
        arm |= {"feed_forward": name, "placement": name}
        for probe in arm["probes"]:
            for row in (*probe["norms"], probe["widest"]):
                row["norm"] = name
    yield study_page(data)
    yield study_page(data | {"findings": [{"title": name, "text": name}]})


def experiment_pages(name):
    experiment = EXPERIMENTS["padding"]
    claim = Claim(claim=name, source=name, measured=name, verdict="agrees")
    panels = [lines([Series(name, [0, 1], [1.0, 2.0], note=name)], x=Axis(name, ticks=[name, name]), y=Axis(name))]
    panels += [chart([Row(name, 1.0, note=name)], x=Axis(name), unit=name, heading=name) for chart in (bars, dots)]
    figure = Figure("figure", name, name, panels)
    told = {"evenkeel": name, "torch": name, "created": name, "machine": name, "options": {"arms": [name], name: name}}
    numbers = {"complete": False, "trials": 2, "seconds": 1.0}
    run = Measured(experiment, told | numbers | {"claims": [vars(claim)]}, [{}], [figure])
    yield experiments_page([run])


def explanation(name):
    model = torch.nn.ModuleDict({name: torch.nn.LayerNorm(4)})
    model.forward = lambda x: model[name](x)
    return explain.walk_layer(model, name, torch.arange(4.0)[None])


PAGES = {
    "data": lambda name: map(render_page, data_pages(name)),
    "study": lambda name: map(render_page, study_pages(name)),
    "experiments": lambda name: map(render_page, experiment_pages(name)),
    "explain": lambda name: [render_explanation(explanation(name))],
}


def texts_of(value):
    """Yield every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from texts_of(part)


@pytest.mark.parametrize("kind", PAGES)
@each_name
def test_a_name_adds_no_element_and_no_attribute(kind, name):
    for page, plain in zip(PAGES[kind](name), PAGES[kind]("x" * len(name)), strict=True):
        elements, usual = Elements(page), Elements(plain)
        assert [(tag, [*attributes]) for tag, attributes in elements.found] == [
            (tag, [*attributes]) for tag, attributes in usual.found
        ]
        assert name in " ".join(elements.texts)
        # What the scripts read is whole JSON, and in labels, where Plotly reads tags, the name has none.
        for identity in {"payload", "seed"} & elements.scripts.keys():
            drawn = json.loads(elements.scripts[identity])
            marks = [text for text in texts_of(drawn.get("panels")) if MARKS.search(PLOTLY.sub("", text))]
            assert not marks


@each_name
def test_a_name_is_printed_as_it_is(name, capsys):
    item = data_item(name)
    print_table(statistics_table(item.statistics_))
    print_table(drift_table(compare(item.statistics_, item.statistics_)))
    print_table(ranking_table(summary((name,))))
    print_table(Table([name], [[name]], title=name))
    printed = "".join(capsys.readouterr().out.split())
    assert printed.count("".join(name.split())) >= 6
    assert name in describe(item)


def test_an_explanation_in_markdown_takes_names_for_text():
    name = "<img src=x onerror=alert(1)>|`"
    written = explain.to_markdown(explanation(name))
    assert "<img" not in written
    assert all(line.count(" | ") in (0, 4) for line in written.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("source", ["words", ["a"], 3, {"skipped": 3}, {"description": ["x"]}, None])
def test_notes_of_any_kind_are_described(source):
    item = StandardScaler().fit(np.arange(6.0).reshape(3, 2)).annotate(source=source)
    assert describe(item).startswith("StandardScaler: 3 rows, 2 features")
