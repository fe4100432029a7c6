"""The rules of the code base that a machine can check: who imports whom, what is public, how long things get."""

import ast
import graphlib
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenkeel"
MODULES = sorted(SOURCE.rglob("*.py"))
API = ROOT / "docs" / "api.md"

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
# Imports point down only: a module may import its own package and packages of a lower layer, as CONTRIBUTING.md draws
# them. "evenkeel" is the package's own __init__, which hands out the public names and is therefore itself a layer.
LAYERS = {
    name.removesuffix("/").removesuffix(".py").replace("__init__", "evenkeel"): int(number)
    for number, names in re.findall(r"^\| (\d+) \| (.+?) \|", CONTRIBUTING, flags=re.MULTILINE)
    for name in re.findall(r"`(.+?)`", names)
}
REPORT_MAY_IMPORT = {*sys.stdlib_module_names, "evenkeel", "plotly", "jinja2", "markupsafe", "rich"}
BACKENDS = {"reference", "cpu", "triton"}
FILE_LINES = 420  # about 400
FUNCTION_LINES = 42  # about 40, without the docstring
MOST_PARAMETERS = 9  # of a function that is neither public nor a constructor nor a command nor a GPU kernel
PRIVATE = re.compile(r"_[a-z]\w*")


KERNELS = ROOT / "csrc"


def identify(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def package_of(path: Path) -> str:
    """The layer a file belongs to: the first part of its path, or "evenkeel" for the package's own __init__."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "evenkeel" if first == "__init__" else first


def absolute_name(node: ast.ImportFrom, path: Path) -> str:
    """The module an import statement names, with the dots of a relative import resolved."""
    if node.level == 0:
        return node.module or ""
    parents = ("evenkeel", *path.relative_to(SOURCE).parts[:-1])
    base = parents[: len(parents) - node.level + 1]
    return ".".join((*base, node.module) if node.module else base)


def imported_modules(source: str, path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere in it; a string that names one of ours counts, however it is used."""
    yield from (text for text in code_strings(source) if re.match(r"evenkeel\.\w", text))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_name(node, path)
            yield from (f"{module}.{alias.name}" if module == "evenkeel" else module for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "require_package")):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def hidden_imports(source: str) -> list[str]:
    """What imports past `imported_modules`: `__import__`, and `import_module` renamed or with a relative name."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(node.func) for node in calls}
    found = {"__import__"} & code_strings(source)
    for node in nodes:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name == "__import__" or (name == "import_module" and id(node) not in called):
            found.add(ast.unparse(node))
        if isinstance(node, ast.ImportFrom):
            renamed = (alias for alias in node.names if alias.name in ("import_module", "__import__") and alias.asname)
            found |= {ast.unparse(alias) for alias in renamed}
    for call in calls:
        if ast.unparse(call.func).endswith("import_module") and len(call.args) + len(call.keywords) != 1:
            found.add(ast.unparse(call))  # only a relative name needs the package
    return sorted(found)


def imported_layers(source: str, path: Path) -> set[str]:
    """The layers a file imports: `from evenkeel import x` is the layer x, or the package's __init__ for a name."""
    layers = set()
    for module in imported_modules(source, path):
        head, _, rest = module.partition(".")
        if head == "evenkeel":
            first = rest.partition(".")[0]
            layers.add(first if first in LAYERS else "evenkeel")
    return layers


def violations(source: str, path: Path) -> list[str]:
    """The layers that a file imports and must not."""
    own = package_of(path)
    others = imported_layers(source, path) - {own}
    return sorted(layer for layer in others if LAYERS[layer] >= LAYERS[own])


def code_strings(source: str) -> set[str]:
    """The string constants of a file without its docstrings."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose)
    return {node.value for node in constants if isinstance(node.value, str)}


def module_name(path: Path) -> str:
    parts = ("evenkeel", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_packages() -> list[str]:
    """The packages whose docstrings do not begin with "Private:", and evenkeel.testing."""
    files = (path for path in SOURCE.rglob("__init__.py") if not path.read_text().startswith('"""Private:'))
    return sorted([*map(module_name, files), "evenkeel.testing"])


def public_names() -> list[str]:
    return [f"{package}.{name}" for package in public_packages() for name in importlib.import_module(package).__all__]


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_imports_point_down(path: Path) -> None:
    assert package_of(path) in LAYERS, f"{path.name}: give its package a layer in LAYERS"
    assert violations(path.read_text(), path) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("nn/x.py", "from evenkeel.lab import model", ["lab"]),
        ("nn/x.py", "from evenkeel.report import page", ["report"]),
        ("nn/x.py", "import evenkeel", ["evenkeel"]),
        ("nn/x.py", "def f():\n    from ..cli import main", ["cli"]),
        ("convert/x.py", "from evenkeel import data", ["data"]),
        ("report/x.py", 'importlib.import_module("evenkeel.nn")', ["nn"]),
        ("nn/x.py", '__import__("evenkeel.lab")', ["lab"]),
        ("nn/x.py", 'from importlib import import_module as im\nim("evenkeel.lab.model")', ["lab"]),
        ("nn/x.py", 'sys.modules["evenkeel.lab"]', ["lab"]),
        ("nn/x.py", '"""Unlike\n\nevenkeel.lab."""\nx = "see evenkeel.lab"', []),
        ("nn/x.py", '"""evenkeel.lab"""\nresources.files("evenkeel.nn")', []),
        ("functional/x.py", "from . import other\nfrom evenkeel.kernels import runs_kernel", []),
        ("lab/x.py", "import evenkeel\nfrom evenkeel import nn, __version__", []),
        ("__init__.py", "from evenkeel import functional, lab", ["lab"]),
    ],
)
def test_import_check_finds_violations(path: str, source: str, expected: list[str]) -> None:
    assert violations(source, SOURCE / path) == expected


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_no_import_is_hidden(path: Path) -> None:
    assert hidden_imports(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('__import__("evenkeel.lab")', ["__import__"]),
        ('getattr(builtins, "__import__")("numpy")', ["__import__"]),
        ("from importlib import import_module as im\nim(name)", ["import_module as im"]),
        ("im = importlib.import_module", ["importlib.import_module"]),
        ('importlib.import_module("..lab", __package__)', ["importlib.import_module('..lab', __package__)"]),
        ('import_module("..lab", package="evenkeel.nn")', ["import_module('..lab', package='evenkeel.nn')"]),
        ('from importlib import import_module\nimport_module("numpy")', []),
        ("importlib.import_module(module)", []),
    ],
)
def test_import_check_finds_hidden_imports(source: str, expected: list[str]) -> None:
    assert hidden_imports(source) == expected


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_only_functional_imports_kernels(path: Path) -> None:
    if package_of(path) not in ("functional", "kernels"):
        assert "kernels" not in imported_layers(path.read_text(), path)


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_only_one_file_knows_several_backends(path: Path) -> None:
    if path != SOURCE / "kernels" / "_backends.py":
        assert len(BACKENDS & code_strings(path.read_text())) < 2


@pytest.mark.parametrize("path", sorted(SOURCE.glob("report/**/*.py")), ids=lambda path: path.name)
def test_report_knows_nothing_of_norms(path: Path) -> None:
    source = path.read_text()
    assert {module.partition(".")[0] for module in imported_modules(source, path)} <= REPORT_MAY_IMPORT
    assert imported_layers(source, path) <= {"_errors", "_files", "_packages", "report"}


@pytest.mark.parametrize("package", public_packages())
def test_public_package_lists_its_names(package: str) -> None:
    names = importlib.import_module(package).__all__
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if not hasattr(importlib.import_module(package), name)] == []


def test_every_public_package_has_a_page() -> None:
    assert sorted(re.findall(r"^   (evenkeel.*)$", API.read_text(), flags=re.MULTILINE)) == public_packages()


@pytest.mark.parametrize("name", public_names())
def test_public_name_has_an_example(name: str) -> None:
    package, _, short = name.removesuffix("_reference").rpartition(".")  # a reference has that of its function
    item = getattr(importlib.import_module(package), short)
    is_exception = inspect.isclass(item) and issubclass(item, Exception)
    if (inspect.isclass(item) or inspect.isroutine(item)) and item.__module__.startswith("evenkeel"):
        assert is_exception or ">>> " in (inspect.getdoc(item) or "")


@pytest.mark.parametrize("name", public_names())
def test_public_name_is_tested(name: str) -> None:
    short = re.compile(rf"\b{name.rpartition('.')[2]}\b")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert any(short.search(path.read_text()) for path in tests)


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_files_and_functions_stay_short(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= FILE_LINES
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    lengths = {function.name: body_lines(function, source) for function in functions}
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES} == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, source: str) -> int:
    """The lines of a function's body, its docstring and empty lines left out."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    lines = source.splitlines()[body[0].lineno - 1 : function.end_lineno] if body else []
    return sum(bool(line.strip()) for line in lines)


def test_length_check_counts_lines() -> None:
    source = 'def f(a):\n    """Say."""\n    g(\n        a,\n        b=a,\n    )\n\n    return a\n'
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function, source) == 5


def imported_names(source: str, path: Path) -> Iterator[tuple[str, str]]:
    """The module and the name of every import from evenkeel."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("evenkeel"))
        elif isinstance(node, ast.ImportFrom):
            module = absolute_name(node, path)
            if module.partition(".")[0] == "evenkeel":
                yield from ((module, alias.name) for alias in node.names)


def private_imports(source: str, path: Path) -> list[str]:
    """The imports of a private module or name of a package by a file that lies outside of it."""
    own = ("evenkeel", *path.relative_to(SOURCE).parts[:-1])
    crossing = []
    for module, name in imported_names(source, path):
        parts = (*module.split("."), *([name] if name else []))
        for depth, part in enumerate(parts):
            if PRIVATE.fullmatch(part) and own[:depth] != parts[:depth]:
                crossing.append(".".join(parts))
    return sorted(set(crossing))


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_no_private_name_crosses_a_package(path: Path) -> None:
    assert private_imports(path.read_text(), path) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("nn/x.py", "from evenkeel.functional._rows import rows", ["evenkeel.functional._rows.rows"]),
        ("nn/x.py", "from evenkeel.functional import _rows", ["evenkeel.functional._rows"]),
        ("nn/x.py", "import evenkeel.functional._rows", ["evenkeel.functional._rows"]),
        ("nn/x.py", "from ..functional._rows import rows", ["evenkeel.functional._rows.rows"]),
        ("data/a/x.py", "from evenkeel.data.b._y import z", ["evenkeel.data.b._y.z"]),
        ("data/a/x.py", "from evenkeel.data._y import z\nfrom evenkeel._errors import E", []),
        ("nn/x.py", "from evenkeel import functional as F\nfrom evenkeel.nn._y import z", []),
    ],
)
def test_privacy_check_finds_crossings(path: str, source: str, expected: list[str]) -> None:
    assert private_imports(source, SOURCE / path) == expected


def import_circle(sources: dict[Path, str]) -> list[str]:
    """The modules of an import circle, if there is one; what is imported for its types alone counts too."""
    modules = {module_name(path): path for path in sources}
    graph = {
        name: {
            target
            for module, imported in imported_names(sources[path], path)
            for target in [f"{module}.{imported}" if f"{module}.{imported}" in modules else module]
            if target in modules and target != name
        }
        for name, path in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_imports_go_in_no_circle() -> None:
    assert import_circle({path: path.read_text() for path in MODULES}) == []


# inside a package: what each room may import of the others, as CONTRIBUTING.md says in words
ROOMS = {
    "data.statistics": set(),
    "data.sources": {"statistics"},
    "data.scalers": {"sources", "statistics"},
    "data.fitting": {"scalers", "sources", "statistics"},
    "data.views": {"statistics"},
    "doctor.probes": set(),
    "doctor.rules": {"probes"},
    "lab.runner": set(),
    "lab.transformer": set(),
    "lab.training": {"runner", "transformer"},
    "lab.studies": {"runner", "transformer", "training"},
    "lab.experiments": {"runner", "transformer", "training"},
}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_down(room: str) -> None:
    package, name = room.split(".")
    others = {other.partition(".")[2] for other in ROOMS if other.startswith(package)} - {name}
    imported = {
        module.split(".")[2]
        for path in SOURCE.glob(f"{package}/{name}/**/*.py")
        for module, _ in imported_names(path.read_text(), path)
        if module.startswith(f"evenkeel.{package}.")
    }
    assert imported & others <= ROOMS[room]
    assert f"`{name}`" in CONTRIBUTING


def test_circle_check_finds_circles() -> None:
    sources = {"a.py": "from evenkeel import b", "b.py": "def f():\n    from evenkeel.a import g", "__init__.py": ""}
    assert set(import_circle({SOURCE / name: text for name, text in sources.items()})) == {"evenkeel.a", "evenkeel.b"}
    sources["b.py"] = ""
    assert import_circle({SOURCE / name: text for name, text in sources.items()}) == []


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_only_public_functions_have_many_parameters(path: Path) -> None:
    names = {name.rpartition(".")[2] for name in public_names()} | {"__init__"}
    functions = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef))
    functions = (f for f in functions if not any("triton.jit" in ast.unparse(d) for d in f.decorator_list))
    counts = {f.name: parameters(f) for f in functions if f.name not in names and package_of(path) != "cli"}
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}


def parameters(function: ast.FunctionDef) -> int:
    """How many parameters a function has, self and cls left out."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(a.arg not in ("self", "cls") for a in named) + bool(arguments.vararg) + bool(arguments.kwarg)


@pytest.mark.parametrize("path", MODULES, ids=identify(MODULES))
def test_source_neither_unpickles_nor_postpones(path: Path) -> None:
    assert re.findall(r"(?i)\bc?pickle\b|\bunpickl|\btorch\.load\b|\bTODO\b|\bFIXME\b|\bXXX\b", path.read_text()) == []


def test_import_leaves_optional_packages_alone() -> None:
    heavy = (
        "msgspec",
        "triton",
        "plotly",
        "jinja2",
        "typer",
        "rich",
        "scipy",
        "evenkeel.lab",
        "evenkeel.cli",
        "evenkeel.report",
    )
    code = f"import torch, sys; before = set(sys.modules); import evenkeel; loaded = set(sys.modules) - before; \
print(*(name for name in {heavy!r} if name in loaded))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("folder", sorted(path.name for path in KERNELS.iterdir() if path.is_dir()))
def test_a_pattern_of_kernels_includes_the_core_and_itself(folder: str) -> None:
    allowed = {folder, "core"} if folder != "torch" else {path.name for path in KERNELS.iterdir()}
    for path in sorted(KERNELS.joinpath(folder).iterdir()):
        text = path.read_text()
        included = {name.partition("/")[0] for name in re.findall(r'#include "([^"]+/[^"]+)"', text)}
        assert included <= allowed, path.name
        assert len(text.splitlines()) <= FILE_LINES, path.name
