"""Write docs/api.md: every public name with its signature and docstring.

Usage: python docs/build_api.py [FILE]
"""

import dataclasses
import importlib
import inspect
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenkeel"
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Note", "Example", "Examples", "Source", "References")
INTRODUCTION = """# API reference

Written by `make docs` from the docstrings; edit those, not this file. Every example runs as a test.
"""


class Verbatim:
    """An annotation or default shown as it is written, where `inspect` would put quotes or an address."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def public_packages() -> list[str]:
    """Return the public packages, whose docstrings do not begin with "Private:", and evenkeel.testing."""
    files = (path for path in SOURCE.rglob("__init__.py") if not path.read_text().startswith('"""Private:'))
    packages = (".".join(("evenkeel", *path.parent.relative_to(SOURCE).parts)) for path in files)
    return sorted([*packages, "evenkeel.testing"])


def signature(name: str, item: Any) -> str:
    """Return a signature as code, one parameter a line when it is long."""
    try:
        full = inspect.signature(item)
    except (TypeError, ValueError):
        return name
    parameters = [plain(parameter) for parameter in full.parameters.values() if parameter.name not in ("self", "cls")]
    returns = full.return_annotation
    if isinstance(returns, str):
        returns = Verbatim(returns)
    public = full.replace(parameters=parameters, return_annotation=returns)
    if inspect.isclass(item):
        public = public.replace(return_annotation=inspect.Signature.empty)
    line = f"{name}{public}"
    if len(line) > 100 and parameters:
        line = split_signature(name, parameters, public)
    return re.sub(r"\b(?:collections\.abc|typing|pathlib)\.", "", line)


def plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter without quotes around its annotation and without addresses in its default."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(annotation, str):
        annotation = Verbatim(annotation)
    if " object at 0x" in repr(default) or inspect.isfunction(default):
        default = Verbatim(getattr(default, "__name__", "..."))
    return parameter.replace(annotation=annotation, default=default)


def split_signature(name: str, parameters: list[inspect.Parameter], shown: inspect.Signature) -> str:
    """Return a signature with one parameter a line and the marker of keyword-only parameters where it belongs."""
    lines = []
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        lines.append(str(parameter))
    result = "" if shown.return_annotation is inspect.Signature.empty else str(shown).rpartition(" -> ")[2]
    body = "".join(f"    {line},\n" for line in lines)
    return f"{name}(\n{body})" + (f" -> {result}" if result else "")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: sections become bold headings, arguments lists, examples code."""
    blocks: list[str] = []
    section = ""
    for block in split_sections(docstring):
        first, _, rest = block.partition("\n")
        section = first.rstrip(":") if first.rstrip(":") in SECTIONS and first.endswith(":") else ""
        if not section:
            blocks.append(prose(block))
        elif section.startswith("Example"):
            blocks.append(f"**{section}**\n\n{prose(inspect.cleandoc(rest))}")
        elif section in ("Args", "Attributes", "Raises"):
            blocks.append(f"**{section}**\n\n" + "\n".join(entries(inspect.cleandoc(rest))))
        else:
            blocks.append(f"**{section}**\n\n{prose(inspect.cleandoc(rest))}")
    return "\n\n".join(blocks)


def split_sections(docstring: str) -> Iterator[str]:
    """Yield the text before the first section, then each section with its heading line."""
    pattern = rf"^(?=(?:{'|'.join(SECTIONS)}):$)"
    yield from (part.strip("\n") for part in re.split(pattern, docstring, flags=re.MULTILINE) if part.strip())


def entries(text: str) -> Iterator[str]:
    """Yield one list item for each `name: description` entry, its continuation lines joined."""
    for entry in re.split(r"\n(?=\S)", text):
        joined = " ".join(line.strip() for line in entry.splitlines()).replace("``", "`")
        name, colon, description = joined.partition(": ")
        yield f"- `{name}`: {description}" if colon else f"- {joined}"


def prose(text: str) -> str:
    """Return text with its interactive examples as code blocks and double backticks as single ones."""
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", text.strip()):
        if paragraph.lstrip().startswith(">>>"):
            paragraphs.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
        elif paragraph.startswith(".. math::"):
            paragraphs.append(f"$$ {inspect.cleandoc(paragraph.removeprefix('.. math::')).strip()} $$")
        else:
            paragraphs.append(paragraph.replace("``", "`"))
    return "\n\n".join(paragraphs)


def describe(package: str, name: str, item: Any) -> str:
    """Return the entry of one public name."""
    if isinstance(item, types.ModuleType):
        return f"A package: see [`{item.__name__}`](#{item.__name__.replace('.', '')})."
    module = getattr(item, "__module__", "") or ""
    if not (inspect.isroutine(item) or inspect.isclass(item)):
        return constant(name, item)
    if not module.startswith("evenkeel"):
        return f"`{module}.{item.__qualname__}`, re-exported unchanged."
    home = documented_home(item)
    if home != package:
        return f"The same as [`{home}.{name}`](#{home.replace('.', '')}{name.lower()})."
    parts = [] if is_exception(item) else [f"```python\n{signature(name, item)}\n```"]
    parts.append(markdown(inspect.getdoc(item) or ""))
    if inspect.isclass(item) and not is_exception(item):
        parts.extend(methods(name, item))
    return "\n\n".join(part for part in parts if part)


def constant(name: str, item: Any) -> str:
    """Return the entry of a constant: a table's keys, or the value."""
    if isinstance(item, dict):
        return f"A table with the entries {', '.join(f'`{key}`' for key in item)}."
    return f"```python\n{name} = {item!r}\n```"


def is_exception(item: Any) -> bool:
    """Return whether the item is an exception class, whose signature says nothing."""
    return inspect.isclass(item) and issubclass(item, BaseException)


def documented_home(item: Any) -> str:
    """Return the deepest public package that exports the item: it is documented there and referred to elsewhere."""
    exporters = [
        package
        for package in public_packages()
        if any(getattr(importlib.import_module(package), name) is item for name in names_of(package))
    ]
    return max(exporters, key=lambda package: package.count("."))


def names_of(package: str) -> list[str]:
    """Return the public names of a package."""
    return list(importlib.import_module(package).__all__)


def methods(owner: str, item: type) -> Iterator[str]:
    """Yield the entries of the public methods and properties that a class itself defines and documents."""
    generated = {field.name for field in dataclasses.fields(item)} if dataclasses.is_dataclass(item) else set()
    for name, member in vars(item).items():
        if name.startswith("_") or name in generated or not inspect.getdoc(member):
            continue
        function = getattr(member, "__func__", member)
        if isinstance(member, property):
            yield f"#### `{owner}.{name}`\n\n{markdown(inspect.getdoc(member) or '')}"
        elif inspect.isfunction(function):
            text = markdown(inspect.getdoc(function) or "")
            yield f"#### `{owner}.{name}`\n\n```python\n{signature(name, function)}\n```\n\n{text}"


def build() -> str:
    """Return the whole reference."""
    parts = [INTRODUCTION]
    for package in public_packages():
        module = importlib.import_module(package)
        parts.append(f"## `{package}`\n\n{markdown(inspect.getdoc(module) or '')}\n")
        parts.extend(
            f"### `{package}.{name}`\n\n{describe(package, name, getattr(module, name))}\n"
            for name in sorted(names_of(package), key=str.lower)
        )
    return "\n".join(parts)


def main() -> None:
    """Write the reference to the file named on the command line, docs/api.md by default."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "api.md"
    temporary = target.with_suffix(".tmp")
    temporary.write_text(build(), encoding="utf-8")
    os.replace(temporary, target)


if __name__ == "__main__":
    main()
