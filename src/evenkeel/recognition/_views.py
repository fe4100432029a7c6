"""What `evenkeel._display.Summarised` shows of recognitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenkeel._spec import NormSpec
    from evenkeel.recognition._recognition import Recognition
    from evenkeel.report import Table

__all__ = ["lead", "spec_line", "table"]

# the answers of a spec that a line tells where they are not these
USUAL: dict[str, Any] = {
    "eps_mode": "inside",
    "weight_offset": 0.0,
    "cast": "late",
    "groups": None,
    "activation": None,
    "gating": None,
    "memory": "batch",
}


def lead(found: Recognition) -> str:
    """Return what is to know in one line."""
    return spec_line(found) if found.spec is not None else f"no norm that a spec describes: {found.reason}"


def table(found: Recognition) -> Table:
    """Return the evidence."""
    from evenkeel.report import Table

    return Table(["seen"], [[line] for line in found.evidence or ("nothing",)])


def spec_line(found: Recognition) -> str:
    """Tell a spec in a line."""
    spec = found.spec
    if spec is None:
        return ""
    eps = "None" if spec.eps is None else format(spec.eps, ".4g")
    parts = [
        f"{spec.statistic} over {spec.shares}, eps {eps}",
        *(words for words in map(told_of, changed(spec)) if words),
    ]
    if not spec.weight:
        parts.append("no weight")
    elif spec.center and not spec.bias:
        parts.append("no bias")
    if found.layout is not None and spec.shares == "token" and found.layout.channel_axis == 1:
        parts.append("channels first")
    return ", ".join([*parts, "frozen"] if found.frozen else parts)


def told_of(answer: tuple[str, Any]) -> str:
    """An unusual answer in words."""
    name, value = answer
    words = {"eps_mode": f"eps {value}", "weight_offset": f"{value:g} + weight" if name == "weight_offset" else ""}
    words |= {"gating": f"gated by {str(value).replace('_', ' ')}"}
    words |= {"cast": f"{value} cast", "groups": f"{value} groups", "activation": str(value), "memory": "remembered"}
    return words[name]


def changed(spec: NormSpec) -> list[tuple[str, Any]]:
    """The answers that are not the usual ones."""
    return [(name, getattr(spec, name)) for name, usual in USUAL.items() if getattr(spec, name) != usual]
