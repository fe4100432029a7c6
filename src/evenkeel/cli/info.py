"""The work of `evenkeel info`: what is installed, how it was built and what runs here."""

import os
import platform
from importlib import metadata

import torch

import evenkeel
from evenkeel import functional
from evenkeel.cli import interrupts
from evenkeel.cli.output import print_json
from evenkeel.lab.runner import processor

WIDTH = 100
OPTIONAL = ("plotly", "jinja2", "triton")


@interrupts.raising()
def show_info(*, as_json: bool) -> None:
    """Print the facts as a table or JSON."""
    facts = collect_info()
    if as_json:
        print_json(facts)
    else:
        print_info(facts)


def collect_info() -> dict[str, dict[str, str]]:
    """Return the facts of `evenkeel info`: section -> name -> value."""
    return {
        "versions": versions(),
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "processor": processor(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "threads": f"{torch.get_num_threads()} used by torch, {os.cpu_count()} logical processors",
        },
        "backends": evenkeel.kernels_available(),
        "compiled": functional.backend_info() or {"kernels": "none"},
    }


def versions() -> dict[str, str]:
    """Return the versions of evenkeel, Python and the packages evenkeel builds on."""
    installed = {"evenkeel": evenkeel.__version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in ("numpy", *OPTIONAL):
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def print_info(facts: dict[str, dict[str, str]]) -> None:
    """Print the facts as one table, at most 100 columns wide."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.width = min(console.width, WIDTH)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section, entries in facts.items():
        for number, (name, value) in enumerate(entries.items()):
            # Text: brackets in a value are no markup.
            table.add_row(section if number == 0 else "", name, Text(value))
    console.print(table)
