"""An explanation as one HTML page that computes every step again while its reader changes the numbers."""

from __future__ import annotations

import json
import math
import string
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenkeel._errors import InvalidInputError
from evenkeel.explain._data import default_upstream, parse, plain, plain_number
from evenkeel.explain._words import read_asset

if TYPE_CHECKING:
    import os

    from evenkeel.explain._data import Explanation

__all__ = ["render_page", "write_page"]

# What a page edits at once: a longer vector, or a larger tensor, is cut to a part.
VECTOR_LIMIT, TENSOR_LIMIT = 64, 256
# What computes and tells needs no document: any JavaScript engine runs it. What draws does.
COMPUTING = ("arithmetic.js", "latex.js", "words.js", "notes.js", "walk.js", "state.js", "tensor.js")
DRAWING = ("draw.js", "editor.js", "sharing.js", "flow.js", "page.js")
OF_GROUPS = ("mean", "variance", "std", "mean_square", "rms", "minimum", "maximum", "denominator")


def write_page(explanation: Explanation, path: str | os.PathLike[str]) -> Path:
    """Write an explanation as one self-contained HTML page, whole or not at all.

    The page starts with the explanation's input and options and repeats its arithmetic in the browser whenever the
    reader changes a number. It loads nothing. Of more than 64 numbers in a vector, or 256 in a tensor, it works on a
    part and says so, with the statistics of the whole.

    Args:
        explanation: what `walk` returned.
        path: the HTML file; its directory must exist.

    Returns:
        The path written.

    Raises:
        EvenkeelError: the file cannot be written.
        InvalidInputError: the path is a directory or empty.

    Example:
        >>> import tempfile
        >>> import evenkeel as ek
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     ek.explain.write_page(ek.explain.walk([1.0, 2.0], "layer"), f"{directory}/page.html").name
        'page.html'
    """
    # Late: the report package is no business of those who import evenkeel for its norms.
    from evenkeel.report import write_text_atomically

    if not Path(path).name or Path(path).is_dir():
        raise InvalidInputError(f"explain: cannot write {str(path)!r}: it names no file; give one such as page.html")
    return write_text_atomically(path, render_page(explanation))


def render_page(explanation: Explanation) -> str:
    """Return the page as HTML."""
    from evenkeel.report import embed_json, render_document

    body = string.Template(read_asset("explain.html")).substitute(seed=embed_json(seed(explanation)))
    return render_document(
        explanation.title, body, style=read_asset("explain.css"), script=script(*COMPUTING, *DRAWING)
    )


def script(*names: str) -> str:
    """Join JavaScript files, after the words that they share with Python."""
    from evenkeel.report import embed_json

    words = embed_json(json.loads(read_asset("explain.json")))
    return f"window.evenkeel = {{ words: {words} }};\n" + "".join(map(read_asset, names))


def seed(explanation: Explanation) -> dict[str, Any]:
    """Return the page's start as data: norm, input, options, group, and the whole's statistics where it is a part."""
    x, options = explanation.step("input").value, explanation.options
    part = choose_part(x.shape, options, explanation.shown)
    start = {"norm": explanation.norm, "input": plain(x), "options": options, "shown": explanation.shown, "whole": None}
    # The browser has no torch: what was compared with the library's functions holds for the numbers it starts with.
    if part is None:
        return start | {
            "checks": [check.to_dict() for check in explanation.checks if check.id in ("library", "autograd")]
        }
    return start | {
        "input": plain(x[np.ix_(*part.indices)]),
        "options": cut_options(options, part),
        "shown": part.shown,
        "whole": describe_whole(explanation, x.shape),
    }


@dataclass(frozen=True, kw_only=True)
class Part:
    """A block of a tensor that a page works on.

    Attributes:
        indices: the indices kept, for each axis.
        groups: the numbers of the groups that the block meets.
        num_groups: of GroupNorm, within the block.
        shown: the number, within the block, of the group that was shown.
    """

    indices: tuple[np.ndarray, ...]
    groups: np.ndarray
    num_groups: int | None
    shown: int


def choose_part(shape: tuple[int, ...], options: dict[str, Any], shown: int) -> Part | None:
    """Choose a block around the shown group that is small enough to edit; None where the whole input is."""
    limit = VECTOR_LIMIT if len(shape) == 1 else TENSOR_LIMIT
    if math.prod(shape) <= limit:
        return None
    groups, channel, sample = (options[name] for name in ("num_groups", "channel_axis", "sample_axis"))
    # The channels of GroupNorm count as an axis of groups and one of the channels within each.
    full = [groups if groups and axis == channel else size for axis, size in enumerate(shape)]
    full.append(shape[channel] // groups if groups else 1)
    sizes = shrink(full, limit)
    kept = [a for a in range(len(shape)) if a not in options["shared"] and (not groups or a in (sample, channel))]
    place = np.unravel_index(shown, [full[a] for a in kept]) if kept else ()
    starts = dict.fromkeys(range(len(shape)), 0)
    starts |= {a: min(int(at), full[a] - sizes[a]) for a, at in zip(kept, place, strict=True)}
    blocks = [np.arange(starts[a], starts[a] + sizes[a]) for a in range(len(shape))]
    numbers = np.arange(math.prod(full[a] for a in kept)).reshape([full[a] for a in kept])
    numbers = numbers[np.ix_(*(blocks[a] for a in kept))].reshape(-1)
    if groups:
        blocks[channel] = (blocks[channel][:, None] * full[-1] + np.arange(sizes[-1])).reshape(-1)
    return Part(
        indices=tuple(blocks),
        groups=numbers,
        num_groups=sizes[channel] if groups else None,
        shown=int(np.flatnonzero(numbers == shown)[0]),
    )


def shrink(sizes: list[int], limit: int) -> list[int]:
    """Halve the largest size until their product is within the limit; a vector is cut to it exactly."""
    sizes = list(sizes)
    if len([n for n in sizes if n > 1]) == 1:
        return [min(n, limit) for n in sizes]
    while math.prod(sizes) > limit:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] = (sizes[largest] + 1) // 2
    return sizes


def cut_options(options: dict[str, Any], part: Part) -> dict[str, Any]:
    """Cut parameters, masks, gradients and given statistics to the block."""
    cut = options | {"shape": [len(kept) for kept in part.indices], "num_groups": part.num_groups}
    for name in ("mask", "upstream"):
        if options[name] is not None:
            cut[name] = plain(parse(options[name])[np.ix_(*part.indices)])
    axes = [part.indices[a] for a in options["parameter_axes"]]
    for name in ("weight", "bias"):
        if options[name] is not None:
            cut[name] = plain(parse(options[name])[np.ix_(*axes)])
    for name in ("mean", "variance", "std"):
        if options[name] is not None:
            cut[name] = plain(parse(options[name])[part.groups])
    if options["backward"] and options["upstream"] is None:
        cut["upstream"] = plain(default_upstream(tuple(options["shape"]))[np.ix_(*part.indices)])
    return cut


def describe_whole(explanation: Explanation, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the whole input's statistics of the shown group, which differ from the block's."""
    steps = [step for step in explanation.steps if step.id in OF_GROUPS]
    statistics = [[step.title, plain_number(float(step.value[explanation.shown]))] for step in steps]
    return {"shape": list(shape), "group": explanation.shown, "statistics": statistics}
