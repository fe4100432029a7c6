"""The pages that the tests in a browser open."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from explain_pages import Opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("explain")


@pytest.fixture(scope="module")
def plain_page(browser, folder) -> Iterator[Opened]:
    with Opened(browser, folder, [1.0, 2.0, 3.0, 4.0]) as opened:
        yield opened
