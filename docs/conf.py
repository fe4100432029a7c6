"""Sphinx configuration of the site: `make site`.

The sources are the repository's Markdown files and, for the API, its docstrings. Nothing is fetched: neither when the
site is built nor when it is read.
"""

import ast
import contextlib
import html
import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxTranslator
from sphinx.util.nodes import make_refnode

import evenkeel
import evenkeel.testing
from evenkeel.cli import main as run_command
from evenkeel.lab.experiments import ExperimentResult

ROOT = Path(__file__).parents[1]
INVENTORIES = ROOT / "docs" / "inventories"
# What the sidebar lists: page -> caption -> pages, each with a short title where its own is a sentence.
NAVIGATION = {
    "docs/index": {
        "Use": [
            "Install </docs/install>",
            "Layers and functions </docs/layers>",
            "Convert </docs/convert>",
            "Data </docs/data>",
            "Doctor </docs/doctor>",
            "Explain </docs/explain>",
            "Study </docs/study>",
            "Limits </docs/limits>",
        ],
        "Learn": [
            "Eight lessons </docs/lessons/README>",
            "Misconceptions </docs/misconceptions>",
            "Claims and measurements </docs/why-it-matters>",
        ],
        "Look up": [
            "API </docs/api>",
            "Numerics </docs/numerics>",
            "Performance </docs/performance>",
            "Norms in the wild </docs/norms-in-the-wild>",
        ],
        "Develop": [
            "Contributing </CONTRIBUTING>",
            "Kernels </docs/kernels>",
            "GPU kernels </docs/kernels-gpu>",
            "Changelog </CHANGELOG>",
            "Log of measurements </docs/log>",
        ],
    },
    "docs/lessons/README": {"Lessons": ["/docs/lessons/0*"]},
}
# Frames, and links from a lesson's text, to pages that the build writes.
FRAME = re.compile(r'(?:^<iframe src|: <a href)="(live/[^"]+)" title="([^"]+)"', flags=re.MULTILINE)

project = "evenkeel"
project_copyright = "the authors of evenkeel"
version = release = evenkeel.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "docs/api/*.rst", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "runs"]
templates_path = [str(ROOT / "docs" / "_templates")]  # autosummary takes relative ones from the root
myst_heading_anchors = 3

default_role = "code"
autosummary_ignore_module_all = False
autosummary_context = {
    "loaded": [name for name in sys.modules if name.startswith("evenkeel")],
    "same": {"evenkeel.kernels_available": "evenkeel.functional.kernels_available"},
}
autodoc_default_options = {"exclude-members": "extra_repr, reset_parameters"}  # torch.nn's, of every module
autodoc_typehints = "signature"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore = [
    # in signatures that are put together while the module is imported, so that they are text
    *(("py:class", name) for name in ("Activation", "Cast", "EpsMode", "Gating", "Path", "Tensor")),
    # private bases
    ("py:class", "evenkeel.data.scalers._base.Scaler"),
    ("py:class", "evenkeel.data.statistics._moments.Moments"),
    # what is kept for the package itself
    ("py:class", "evenkeel.convert._site.Change"),
    ("py:class", "evenkeel.doctor.probes._records.Measurements"),
    # of a field whose default a factory makes, which no signature can say
    ("py:class", "dict[str"),
]
# Inventories of the names that signatures and docstrings mention, so that a build without a network has every link.
intersphinx_mapping = {
    "numpy": ("https://numpy.org/doc/stable", str(INVENTORIES / "numpy.txt")),
    "python": ("https://docs.python.org/3", str(INVENTORIES / "python.txt")),
    "sklearn": ("https://scikit-learn.org/stable", str(INVENTORIES / "sklearn.txt")),
    "torch": ("https://docs.pytorch.org/docs/stable", str(INVENTORIES / "torch.txt")),
}

html_theme = "furo"
html_title = "evenkeel"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
html_copy_source = False
html_additional_pages = {"index": "start.html"}
html_math_renderer = "mathml"


def import_types() -> None:
    """Import what modules import for type checkers alone, so that signatures show types instead of their names."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("evenkeel") or not getattr(module, "__file__", "").endswith(".py"):
            continue
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for statement in node.body:
                    with contextlib.suppress(ImportError):  # of what exists for type checkers alone
                        exec(compile(ast.Module([statement], []), name, "exec"), module.__dict__)


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the lists of pages, which a code host would show as code."""
    for caption, pages in NAVIGATION.get(page, {}).items():
        source[0] += "\n".join(["\n\n```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```\n"])


def prepare_docstring(_app: Sphinx, what: str, _name: str, item: Any, _options: object, lines: list[str]) -> None:
    """Say what a constant or a re-exported class is; keep napoleon from taking a sentence's start for a type."""
    if what == "class" and not item.__module__.startswith("evenkeel"):
        lines[:] = [f"``{item.__module__.partition('.modules')[0]}.{item.__name__}``, unchanged."]
    elif isinstance(item, dict):
        lines[:] = ["A table with the entries " + ", ".join(f"``{key}``" for key in item) + "."]
    elif what == "data":
        lines[:] = [f"``{item!r}``"]
    starts = [0] if what == "property" else [n + 1 for n, line in enumerate(lines) if line in ("Returns:", "Yields:")]
    for start in starts:
        lines[start] = re.sub(r"(?=\S)", ": ", lines[start], count=1)


def skip_foreign_members(_app: Sphinx, _what: str, _name: str, item: Any, skip: bool, options: object) -> bool:
    """Leave out what classes have from torch, scikit-learn and the standard library."""
    home = getattr(getattr(item, "fget", item), "__module__", None) or "evenkeel"
    return skip or bool(options and not home.startswith("evenkeel"))  # there are none for the members of a package


class LinkNames(SphinxPostTransform):
    """Link names of the library that stand as code in a text to their entries."""

    default_priority = 400

    def run(self, **_: Any) -> None:
        """Look up `ek.…`, `evenkeel.…` and, on a package's page, the names of the package."""
        page = self.env.current_document.docname
        objects = self.env.domains.python_domain.objects
        for node in list(self.document.findall(nodes.literal)):
            name = re.sub(r"^ek\.", "evenkeel.", node.astext()).removesuffix("()")
            full = name if name.startswith("evenkeel.") else f"{page.rpartition('/')[2]}.{name}"
            if full in objects and not isinstance(node.parent, nodes.reference | nodes.title):
                entry = objects[full]
                node.replace_self(make_refnode(self.app.builder, page, entry.docname, entry.node_id, node.deepcopy()))


def visit_math(self: SphinxTranslator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which every browser draws without a script."""
    block = isinstance(node, nodes.math_block)
    element = tex2mathml(node.astext().replace(r"\_", "_"), as_block=block)  # it knows no escapes in \text
    self.body.append(f'<div class="math">{element}</div>' if block else element)
    raise nodes.SkipNode


def write_live_pages(app: Sphinx, failure: Exception | None) -> None:
    """Write the pages that frames show: those of a command, `evenkeel explain …`, and those of kept measurements."""
    frames = {} if failure else {found: page for page in app.env.found_docs for found in FRAME.findall(source(page))}
    for (file, title), page in frames.items():
        target = Path(app.outdir, page).parent / file
        target.parent.mkdir(exist_ok=True)
        if title.startswith("docs/measurements/"):
            ExperimentResult.read(ROOT / title).save(target)
        elif run_command([*shlex.split(html.unescape(title))[1:], "--html", str(target), "--force"]):
            raise SystemExit(f"{page}: {title!r} failed")


def source(page: str) -> str:
    """Return the text of a page written by hand."""
    path = ROOT / f"{page}.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def setup(app: Sphinx) -> None:
    """Add what the extensions lack."""
    import_types()
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.add_post_transform(LinkNames)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_foreign_members)
    app.connect("build-finished", write_live_pages)
