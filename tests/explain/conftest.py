"""The pages that the tests in a browser open, and the page's arithmetic and words in an engine without a browser."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from explain_pages import Opened

from evenkeel.explain._page import COMPUTING, script

Engine = Callable[..., Any]


def start_engine(words: dict[str, Any] | None = None) -> Engine:
    """Run the page's scripts that need no document; the engine calls a function of theirs with JSON-ready arguments."""
    import quickjs

    context = quickjs.Context()
    context.eval("var window = globalThis;")
    source = script(*COMPUTING)
    if words is not None:
        source = f"window.evenkeel = {{ words: {json.dumps(words)} }};" + source[source.index("\n") :]
    context.eval(source)
    context.eval("var call = (name, text) => JSON.stringify(eval(name)(...JSON.parse(text)));")
    return lambda name, *arguments: json.loads(context.get("call")(name, json.dumps(arguments)))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return start_engine()


@pytest.fixture(scope="session")
def start() -> Callable[[dict[str, Any]], Engine]:
    return start_engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("explain")


@pytest.fixture(scope="module")
def plain_page(browser, folder) -> Iterator[Opened]:
    with Opened(browser, folder, [1.0, 2.0, 3.0, 4.0]) as opened:
        yield opened
