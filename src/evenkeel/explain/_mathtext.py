"""LaTeX as a line of plain text, for terminals: the small part of LaTeX that the steps use."""

from __future__ import annotations

import re

__all__ = ["plain_text"]

SYMBOLS = {
    r"\mu": "μ",
    r"\sigma": "σ",
    r"\epsilon": "ε",
    r"\gamma": "γ",
    r"\beta": "β",
    r"\alpha": "α",
    r"\partial ": "∂",
    r"\sum": "Σ",
    r"\cdot": "·",
    r"\times": "·",
    r"\dots": "…",
    r"\infty": "∞",
    r"\approx": "≈",
    r"\quad": "  ",
    r"\left": "",
    r"\right": "",
    r"\,": " ",
    r"\;": " ",
    r"\%": "%",
}
COMMAND = re.compile(r"\\partial |\\[a-zA-Z]+|\\[,;%]")
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
SUBSCRIPTS = str.maketrans("ij", "ᵢⱼ")
CIRCUMFLEX = "\u0302"
# One thing, which needs no brackets around it: a word with its marks, or something in brackets.
SINGLE = re.compile(r"[^\s+\-/·(\[]+|-?[\w.]+|\[[^\[\]]*\]|\([^()]*\)|√\([^()]*\)|∂\w+")


def plain_text(latex: str) -> str:
    """Return a formula as text; fractions become divisions, with brackets where they need them."""
    text, rest = "", latex
    while rest:
        command = COMMAND.match(rest)
        if command:
            piece, rest = convert(command[0], rest[command.end() :])
        elif rest[0] == "^":
            body, rest = argument(rest[1:])
            piece = body.translate(SUPERSCRIPTS)
        elif rest[0] == "_":
            body, rest = argument(rest[1:])
            piece = body.translate(SUBSCRIPTS)
        else:
            piece, rest = rest[0].strip("{}"), rest[1:]
        text += piece
    return re.sub(r"\s+", " ", text).strip()


def convert(command: str, rest: str) -> tuple[str, str]:
    """Return the text of a command with its arguments, and the rest of the formula."""
    if command == r"\frac":
        top, rest = argument(rest)
        bottom, rest = argument(rest)
        return f"{bracket(top)}/{bracket(bottom)}", rest
    if command == r"\sqrt":
        body, rest = argument(rest)
        return f"√{bracket(body)}", rest
    if command == r"\hat":
        body, rest = argument(rest)
        return body + CIRCUMFLEX, rest
    if command in (r"\text", r"\mathrm"):
        return argument(rest)
    return SYMBOLS.get(command, command[1:]), rest


def argument(rest: str) -> tuple[str, str]:
    """Return the next argument as text, and the rest of the formula."""
    if not rest.startswith("{"):
        return rest[:1], rest[1:]
    depth, end = 1, 0
    while depth:
        end += 1
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
    return plain_text(rest[1:end]), rest[end + 1 :]


def bracket(text: str) -> str:
    """Put text in brackets, unless it is one thing already."""
    return text if SINGLE.fullmatch(text) else f"({text})"
