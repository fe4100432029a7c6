"""The rules of the code base that a machine can check: who imports whom, what is public, how long things get."""

import ast
import functools
import graphlib
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
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

Finding = tuple[int, str]  # a line, and what stands there
Function = ast.FunctionDef | ast.AsyncFunctionDef
parse = functools.cache(ast.parse)


def names_found(findings: Iterable[Finding]) -> list[str]:
    return sorted({what for _, what in findings})


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


def imported_modules(source: str, path: Path) -> Iterator[Finding]:
    """Every module that a file imports anywhere in it; a string that names one of ours counts, however it is used."""
    yield from ((line, text) for line, text in code_strings(source) if re.match(r"evenkeel\.\w", text))
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_name(node, path)
            names = (f"{module}.{alias.name}" if module == "evenkeel" else module for alias in node.names)
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and called_name(node).endswith(("import_module", "require_package")):
            values = (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
            yield from ((node.lineno, value) for value in values)


def called_name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def hidden_imports(source: str, path: Path) -> Iterator[Finding]:
    """What imports past `imported_modules`: `__import__`, and `import_module` renamed or with a relative name."""
    nodes = list(ast.walk(parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(node.func) for node in calls}
    yield from ((line, text) for line, text in code_strings(source) if text == "__import__")
    for node in nodes:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name == "__import__" or (name == "import_module" and id(node) not in called):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            renamed = (alias for alias in node.names if alias.name in ("import_module", "__import__") and alias.asname)
            yield from ((node.lineno, ast.unparse(alias)) for alias in renamed)
    for call in calls:
        if called_name(call).endswith("import_module") and len(call.args) + len(call.keywords) != 1:
            yield call.lineno, ast.unparse(call)  # only a relative name needs the package


def imported_layers(source: str, path: Path) -> Iterator[Finding]:
    """The layers a file imports: `from evenkeel import x` is the layer x, or the package's __init__ for a name."""
    for line, module in imported_modules(source, path):
        head, _, rest = module.partition(".")
        if head == "evenkeel":
            first = rest.partition(".")[0]
            yield line, first if first in LAYERS else "evenkeel"


def upward_imports(source: str, path: Path) -> Iterator[Finding]:
    """The layers that a file imports and must not."""
    own = package_of(path)
    if own not in LAYERS:
        yield 1, "the table of CONTRIBUTING.md gives its package no layer"
        return
    for line, layer in imported_layers(source, path):
        if layer != own and LAYERS[layer] >= LAYERS[own]:
            yield line, layer


def code_strings(source: str) -> Iterator[Finding]:
    """The string constants of a file without its docstrings."""
    tree = parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose)
    return ((node.lineno, node.value) for node in constants if isinstance(node.value, str))


def functions(source: str) -> Iterator[Function]:
    return (node for node in ast.walk(parse(source)) if isinstance(node, Function))


def module_name(path: Path) -> str:
    parts = ("evenkeel", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_packages() -> list[str]:
    """The packages whose docstrings do not begin with "Private:", and evenkeel.testing."""
    files = (path for path in SOURCE.rglob("__init__.py") if not path.read_text().startswith('"""Private:'))
    return sorted([*map(module_name, files), "evenkeel.testing"])


@functools.cache
def public_names() -> list[str]:
    return [f"{package}.{name}" for package in public_packages() for name in importlib.import_module(package).__all__]


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
    assert names_found(upward_imports(source, SOURCE / path)) == expected


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
    assert names_found(hidden_imports(source, SOURCE / "x.py")) == expected


def kernel_imports(source: str, path: Path) -> list[Finding]:
    """Only functional imports kernels."""
    allowed = package_of(path) in ("functional", "kernels")
    return [found for found in imported_layers(source, path) if found[1] == "kernels" and not allowed]


def several_backends(source: str, path: Path) -> list[Finding]:
    """Only one file knows more than one backend."""
    found = [(line, text) for line, text in code_strings(source) if text in BACKENDS]
    return found if len(names_found(found)) > 1 and path != SOURCE / "kernels" / "_backends.py" else []


def foreign_imports(source: str, path: Path) -> Iterator[Finding]:
    """What a file of report imports and must not, since report knows nothing of norms."""
    for line, module in imported_modules(source, path):
        if module.partition(".")[0] not in REPORT_MAY_IMPORT:
            yield line, module
    for line, layer in imported_layers(source, path):
        if layer not in {"_errors", "_files", "_packages", "report"}:
            yield line, layer


def test_public_packages_list_their_names() -> None:
    assert len(set(public_names())) == len(public_names()) > 0
    split = [name.rpartition(".") for name in public_names()]
    missing = [name for package, _, name in split if not hasattr(importlib.import_module(package), name)]
    assert missing == []


def test_every_public_package_has_a_page() -> None:
    assert sorted(re.findall(r"^   (evenkeel.*)$", API.read_text(), flags=re.MULTILINE)) == public_packages()


def test_public_names_have_an_example() -> None:
    def lacks_example(name: str) -> bool:
        package, _, short = name.removesuffix("_reference").rpartition(".")  # a reference has that of its function
        item = getattr(importlib.import_module(package), short)
        is_exception = inspect.isclass(item) and issubclass(item, Exception)
        own = (inspect.isclass(item) or inspect.isroutine(item)) and item.__module__.startswith("evenkeel")
        return own and not is_exception and ">>> " not in (inspect.getdoc(item) or "")

    without = list(filter(lacks_example, public_names()))
    assert not without, "\n".join(["", *without])


def test_public_names_are_tested() -> None:
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    words = {word for text in tests for word in re.findall(r"\w+", text)}
    untested = [name for name in public_names() if name.rpartition(".")[2] not in words]
    assert not untested, "\n".join(["", *untested])


def long_parts(source: str, path: Path) -> Iterator[Finding]:
    if (lines := len(source.splitlines())) > FILE_LINES:
        yield lines, f"more than {FILE_LINES} lines"
    for function in functions(source):
        if (lines := body_lines(function, source)) > FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {lines} lines, more than {FUNCTION_LINES}"


def body_lines(function: Function, source: str) -> int:
    """The lines of a function's body, its docstring and empty lines left out."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    lines = source.splitlines()[body[0].lineno - 1 : function.end_lineno] if body else []
    return sum(bool(line.strip()) for line in lines)


def test_length_check_counts_lines() -> None:
    source = 'def f(a):\n    """Say."""\n    g(\n        a,\n        b=a,\n    )\n\n    return a\n'
    (function,) = functions(source)
    assert body_lines(function, source) == 5


def imported_names(source: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """The line, the module and the name of every import from evenkeel."""
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name.startswith("evenkeel"))
        elif isinstance(node, ast.ImportFrom):
            module = absolute_name(node, path)
            if module.partition(".")[0] == "evenkeel":
                yield from ((node.lineno, module, alias.name) for alias in node.names)


def private_imports(source: str, path: Path) -> Iterator[Finding]:
    """The imports of a private module or name of a package by a file that lies outside of it."""
    own = ("evenkeel", *path.relative_to(SOURCE).parts[:-1])
    for line, module, name in imported_names(source, path):
        parts = (*module.split("."), *([name] if name else []))
        if any(PRIVATE.fullmatch(part) and own[:depth] != parts[:depth] for depth, part in enumerate(parts)):
            yield line, ".".join(parts)


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
    assert names_found(private_imports(source, SOURCE / path)) == expected


def import_circle(sources: dict[Path, str]) -> list[str]:
    """The modules of an import circle, if there is one; what is imported for its types alone counts too."""
    modules = {module_name(path): path for path in sources}
    graph = {
        name: {
            target
            for _, module, imported in imported_names(sources[path], path)
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


def imported_rooms(source: str, path: Path) -> Iterator[Finding]:
    """The rooms that a file imports and must not."""
    package, room = path.relative_to(SOURCE).parts[:2]
    for line, module, _ in imported_names(source, path):
        other = module.removeprefix(f"evenkeel.{package}.").partition(".")[0]
        if f"{package}.{other}" in ROOMS and other not in {room, *ROOMS[f"{package}.{room}"]}:
            yield line, other


def test_the_rooms_are_there_and_told() -> None:
    folders = [SOURCE.joinpath(*room.split(".")) for room in ROOMS]
    assert [folder for folder in folders if not folder.is_dir() or f"`{folder.name}`" not in CONTRIBUTING] == []


def test_circle_check_finds_circles() -> None:
    sources = {"a.py": "from evenkeel import b", "b.py": "def f():\n    from evenkeel.a import g", "__init__.py": ""}
    assert set(import_circle({SOURCE / name: text for name, text in sources.items()})) == {"evenkeel.a", "evenkeel.b"}
    sources["b.py"] = ""
    assert import_circle({SOURCE / name: text for name, text in sources.items()}) == []


def many_parameters(source: str, path: Path) -> Iterator[Finding]:
    """Only public functions, constructors, commands and GPU kernels have many parameters."""
    public = {name.rpartition(".")[2] for name in public_names()} | {"__init__"}
    for function in functions(source):
        free = function.name in public or any("triton.jit" in ast.unparse(d) for d in function.decorator_list)
        if not free and package_of(path) != "cli" and (count := parameters(function)) > MOST_PARAMETERS:
            yield function.lineno, f"{function.name} has {count} parameters, more than {MOST_PARAMETERS}"


def parameters(function: Function) -> int:
    """How many parameters a function has, self and cls left out."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(a.arg not in ("self", "cls") for a in named) + bool(arguments.vararg) + bool(arguments.kwarg)


def forbidden_words(source: str, path: Path) -> list[Finding]:
    """Nothing is unpickled or postponed."""
    words = r"(?i)\bc?pickle\b|\bunpickl|\btorch\.load\b|\bTODO\b|\bFIXME\b|\bXXX\b"
    lines = enumerate(source.splitlines(), start=1)
    return [(number, word) for number, line in lines for word in re.findall(words, line)]


def test_import_leaves_optional_packages_alone() -> None:
    heavy = ["msgspec", "triton", "plotly", "jinja2", "typer", "rich", "scipy"]
    heavy += [f"evenkeel.{layer}" for layer in ("lab", "cli", "report")]
    code = f"import torch, sys; before = set(sys.modules); import evenkeel; loaded = set(sys.modules) - before; \
print(*(name for name in {heavy!r} if name in loaded))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def foreign_includes(source: str, path: Path) -> Iterator[Finding]:
    """A pattern of kernels includes the core and itself; torch/ includes all."""
    lines = source.splitlines()
    if len(lines) > FILE_LINES:
        yield len(lines), f"more than {FILE_LINES} lines"
    for number, line in enumerate(lines, start=1):
        folder = re.search(r'#include "([^"/]+)/[^"]+"', line)
        if folder and folder[1] not in (path.parent.name, "core") and path.parent.name != "torch":
            yield number, folder[1]


RULES = {
    **dict.fromkeys((upward_imports, hidden_imports, kernel_imports, several_backends, private_imports), MODULES),
    **dict.fromkeys((long_parts, many_parameters, forbidden_words), MODULES),
    foreign_imports: sorted(SOURCE.glob("report/**/*.py")),
    imported_rooms: [path for path in MODULES if ".".join(path.relative_to(SOURCE).parts[:2]) in ROOMS],
    foreign_includes: [path for path in sorted(KERNELS.glob("*/*")) if path.is_file()],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_file_has(rule: Callable[[str, Path], Iterable[Finding]]) -> None:
    assert RULES[rule]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in RULES[rule]
        for line, what in sorted(set(rule(path.read_text(), path)))
    ]
    assert not found, "\n".join(["", *found])
