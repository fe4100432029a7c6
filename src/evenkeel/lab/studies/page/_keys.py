"""The legend of a study: what an arm is, with a small drawing of where its norms stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenkeel._options.arms import PLACEMENTS
from evenkeel.lab.studies.page._arms import Arm
from evenkeel.report import Key, Style

NORM_NAMES = {"layer": "LayerNorm", "rms": "RMSNorm", "batch": "BatchNorm", "dyt": "DyT"}
PLACES = {
    "pre": "before each sublayer (Pre)",
    "post": "on the stream after each sublayer's sum (Post)",
    "peri": "before and after each sublayer (Peri)",
    "output-only": "on each sublayer's output, before the sum",
    "damped": "before each sublayer, weaker in deeper blocks",
    "deepnorm": "on the stream after each sum, with a stronger stream (DeepNorm)",
}


def arm_keys(arms: Sequence[Arm], styles: Mapping[str, Style]) -> list[Key]:
    """A line for each arm, in the study's order."""
    return [Key(arm.name, arm_text(arm), styles[arm.name], drawing(_placement(arm))) for arm in arms]


def _placement(arm: Arm) -> str:
    return str(arm.runs[0].get("placement", "none"))


def arm_text(arm: Arm) -> str:
    """What an arm is, in words."""
    run = arm.runs[0]
    norm, place = NORM_NAMES.get(str(run.get("norm"))), PLACES.get(_placement(arm))
    text = "no norm anywhere" if norm is None or place is None else f"{norm} {place}"
    return f"{text}; warm-up over half of the steps" if arm.name.endswith("+warmup") else text


def drawing(placement: str) -> str:
    """A sublayer with its norms as an SVG element: the stream from left to right, F in the branch, N for a norm."""
    placement = placement if placement in PLACEMENTS else "none"  # nothing of a damaged summary gets into the SVG
    place = PLACEMENTS[placement]
    boxes = [(62, 8, "F", False)]
    boxes += [(34, 8, "N", True)] if place.before else []
    boxes += [(90, 8, "N", True)] if place.after else []
    boxes += [(126, 30, "N", True)] if place.after_sum else []
    parts = [_path("M2 38H148"), _path("M16 38V16H108V32"), '<circle cx="108" cy="38" r="6" fill="var(--surface)"/>']
    parts += [_path("M108 34v8M104 38h8"), '<circle cx="108" cy="38" r="6" fill="none" stroke="currentColor"/>']
    parts += [_box(*box) for box in boxes]
    words = "a sublayer without norm" if placement == "none" else f"a sublayer with its norms, {placement}"
    return f'<svg viewBox="0 0 150 48" role="img" aria-label="{words}">{"".join(parts)}</svg>'


def _path(data: str) -> str:
    return f'<path d="{data}" fill="none" stroke="currentColor"/>'


def _box(x: float, y: float, letter: str, norm: bool) -> str:
    fill, ink = ("var(--link)", "var(--surface)") if norm else ("var(--raised)", "currentColor")
    rectangle = f'<rect x="{x - 9}" y="{y}" width="18" height="16" rx="3" fill="{fill}" stroke="currentColor"/>'
    return f'{rectangle}<text x="{x}" y="{y + 12}" text-anchor="middle" font-size="11" fill="{ink}">{letter}</text>'
