"""The frame of every page: one self-contained HTML document with the palette, in light and dark."""

import html
import json
import string
from collections.abc import Mapping
from importlib import resources
from typing import Any

from evenkeel.report._style import DARK, FONT_FAMILY, LIGHT


def render_document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """Frame a page's body as one HTML document that needs nothing else.

    The document carries the palette as CSS variables (light, dark, and the choice of a button with the id `theme`)
    and a content security policy that forbids every connection.

    Args:
        title: the title of the window; escaped.
        body: HTML, with a button whose id is `theme`.
        style: CSS that follows the common style.
        script: JavaScript that follows the common script.

    Returns:
        The HTML.

    Example:
        >>> page = render_document("a < b", '<main><button id="theme">Dark</button></main>')
        >>> "<title>a &lt; b</title>" in page
        True
    """
    return string.Template(read_asset("document.html")).substitute(
        title=html.escape(title),
        body=body,
        font=FONT_FAMILY,
        light=_variables(LIGHT),
        dark=_variables(DARK),
        styles=read_asset("page.css") + style,
        script=read_asset("theme.js") + script,
    )


def embed_json(value: Any) -> str:
    r"""Write JSON that is safe inside a script element: nothing in it can end the element or open a comment.

    Args:
        value: plain data without NaN and infinity, which JSON cannot hold.

    Returns:
        The text.

    Example:
        >>> embed_json({"name": "</script>"})
        '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def read_asset(name: str) -> str:
    return resources.files("evenkeel.report").joinpath("assets", name).read_text(encoding="utf-8")
