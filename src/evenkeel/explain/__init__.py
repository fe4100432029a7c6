"""Every step of any normalization on your own numbers, forward and backward."""

from evenkeel.explain._data import Check, Explanation, Step
from evenkeel.explain._inputs import parse_numbers, read_input
from evenkeel.explain._model import norm_layers, walk_layer
from evenkeel.explain._render import print_explanation, to_json, to_markdown, write_page
from evenkeel.explain._walk import walk

__all__ = [
    "Check",
    "Explanation",
    "Step",
    "norm_layers",
    "parse_numbers",
    "print_explanation",
    "read_input",
    "to_json",
    "to_markdown",
    "walk",
    "walk_layer",
    "write_page",
]
