"""Whether `package.module:name` names something, told from the files: importing them takes torch's seconds."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel._options.names import nearest

__all__ = ["check_factory", "check_module", "present_directory"]

# What may give a module names that its text does not show.
UNSEEN = re.compile(r"import \*|__getattr__|__dict__|\b(globals|locals|vars|setattr|exec|eval)\(|sys\.modules")


@contextmanager
def present_directory() -> Iterator[None]:
    """Let modules of the present directory be found inside."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def check_factory(name: str) -> None:
    """Raise unless a word can name something in a module."""
    module, _, path = name.partition(":")
    if not (all(module.split(".")) and all(path.split("."))):
        raise InvalidArgumentError(f"{name!r} does not name a model; write package.module:factory")


def check_module(name: str) -> None:
    """Raise where there is no such module, or nothing of that name in it."""
    module, _, path = name.partition(":")
    if module in sys.modules:
        return
    stem, suffix = os.path.splitext(module)
    if suffix == ".py" and os.path.isfile(module):
        dotted = os.path.relpath(stem).replace(os.sep, ".")
        raise InvalidInputError(f"cannot load {name}: a module is named, not its file; write {dotted}:{path}")
    with present_directory():
        spec = find_module(name, module)
    if spec is None:
        where = "it must be in the present directory, or installed"
        raise InvalidInputError(f"cannot load {name}: there is no module {module}; {where}")
    tree, first = read_source(spec), path.partition(".")[0]
    if tree is not None and first not in names_in(tree):
        made = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        raise InvalidInputError(f"cannot load {name}: {module} has no {first}; did you mean {nearest(first, made)}?")


def find_module(name: str, module: str) -> ModuleSpec | None:
    """Return where a module is; packages are imported only if their files do not tell."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
        for part in rest:
            if spec is not None and spec.submodule_search_locations is None and spec.name not in sys.modules:
                return None  # a module, no package
            places = spec and spec.submodule_search_locations
            spec = PathFinder.find_spec(f"{spec.name}.{part}", places) if spec and places else None
        return spec or find_spec(module)
    except Exception as error:  # of a package, which is the user's own code
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            return None
        raise InvalidInputError(f"cannot load {name}: {type(error).__name__}: {error}") from error


def read_source(spec: ModuleSpec) -> ast.Module | None:
    """Return a module's text as a tree, or None where it may have other names than its text shows."""
    if spec.submodule_search_locations is not None or not (spec.origin or "").endswith(".py"):
        return None
    try:
        text = Path(spec.origin or "").read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python says them again when it imports the module
            return None if UNSEEN.search(text) else ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None  # importing it tells


def names_in(tree: ast.Module) -> set[str]:
    """Return every name that a module may have: all that its text binds anywhere, and its own."""
    names = {"__name__", "__doc__", "__file__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        else:
            names.add(getattr(node, "name", None) or "")
    return names
