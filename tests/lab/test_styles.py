"""One table of how norms and placements are drawn."""

import pytest

from evenkeel.lab import DEFAULT_ARMS, arm_names
from evenkeel.lab.transformer import norm_styles
from evenkeel.report import COLOURS


def test_every_arm_has_a_style_of_its_own_whatever_it_is_drawn_beside():
    every = norm_styles([*arm_names(), *DEFAULT_ARMS])
    assert len({(style.colour, style.dash, style.marker) for style in every.values()}) == len(every)
    for name in DEFAULT_ARMS:
        assert norm_styles([name])[name] == every[name]
        assert norm_styles(["another", name, "one more"])[name] == every[name]


def test_the_colour_says_the_norm_and_the_mark_the_place():
    styles = norm_styles(["none", "pre-layer", "post-layer", "pre-rms", "peri-rms", "post-layer+warmup"])
    assert styles["none"].colour == COLOURS[0]
    assert styles["pre-layer"].colour == styles["post-layer"].colour != styles["pre-rms"].colour
    assert styles["pre-layer"].marker == styles["pre-rms"].marker != styles["peri-rms"].marker
    assert styles["post-layer+warmup"].marker == f"{styles['post-layer'].marker}-open"


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (("LayerNorm", "layer", "layer norm"), "pre-layer"),
        (("RMSNorm", "rms"), "pre-rms"),
        (("BatchNorm", "batch", "BatchNorm, masked"), "pre-batch"),
        (("no norm", "without norm"), "none"),
    ],
)
def test_a_norm_has_one_colour_by_every_name(names, same):
    colour = norm_styles([same])[same].colour
    assert {norm_styles([name])[name].colour for name in names} == {colour}


def test_names_with_one_style_get_other_marks_and_others_other_colours():
    styles = norm_styles(["BatchNorm x1", "BatchNorm x5", "BatchNorm x30", "raw", "standardized"])
    assert len({style.marker for style in list(styles.values())[:3]}) == 3
    assert len({styles[name].colour for name in ("BatchNorm x1", "raw", "standardized")}) == 3
