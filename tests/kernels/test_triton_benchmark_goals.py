"""The table of goals that ends `benchmarks.gpu --bench`."""

import re

import pytest
import torch

GOALS = {"forward": 0, "backward": 1, "cliff": 2, "torch": 3, "group": 4, "latency": 5}


def measured(goal=None, **changes):
    """Records in which all goals are reached, one of them after some changes to our times."""
    from benchmarks import gpu_goals

    ours = {"forward share": 0.93, "backward share": 0.8, "forward": 1.0, "backward": 1.0, "both": 2.0}
    ours |= {"eager": 1.1, "eager both": 2.2}
    theirs = {"forward": 1.0, "backward": 1.01, "both": 2.0, "eager": 1.0, "eager both": 2.0}
    case = list(gpu_goals.goals())[GOALS[goal]].cases[-1] if goal else None
    return {
        str(c): c.fields()
        | {"evenkeel": ours | (changes if c == case else {}), "torch": theirs, "peer": {"error": "no"}}
        for c in gpu_goals.gpu_times.cases()
        if c.dtype is not None
    }


def rows(records):
    from benchmarks import gpu_goals

    return [gpu_goals.row_of(goal, records) for goal in gpu_goals.goals()]


def test_goals_are_reached_when_all_their_cases_reach_them():
    assert [verdict for _, _, verdict in rows(measured())] == ["reached"] * 6
    assert {(told, verdict) for _, told, verdict in rows({})} == {("-", "not measured")}


@pytest.mark.parametrize(
    ("goal", "changes", "told", "cases"),
    [
        ("forward", {"forward share": 0.919}, "91.9% (rms_norm 32768x32768 bfloat16)", 12),
        ("backward", {"backward share": 0.7}, "70.0% (rms_norm 32768x32768 bfloat16)", 12),
        ("cliff", {"backward share": 0.6}, "75.0% (rms_norm 32768x131072 bfloat16)", 4),
        ("torch", {"forward": 1.04}, "1.04 x (pictures 32x1024x1024x3 uint8)", None),
        ("group", {"backward": 1.02}, "1.01 x (group_norm last 8x2560x8x8 float32)", 16),
        ("latency", {"eager both": 2.6}, "1.30 x (rms_norm 512x4096 float32)", 4),
    ],
)
def test_one_case_misses_a_goal(goal, changes, told, cases):
    shown = rows(measured(goal, **changes))
    assert shown[GOALS[goal]][1] == told
    assert shown[GOALS[goal]][2].startswith(f"missed by 1 of {cases or ''}")
    assert sum(verdict != "reached" for _, _, verdict in shown) == 1


def test_a_goal_with_cases_left_is_not_decided_yet():
    records = measured()
    records["layer_norm 32768x262144 bfloat16"] = {"norm": "layer_norm", "left out": "takes 64.5 GiB of memory"}
    verdicts = [verdict for _, _, verdict in rows(records)]
    assert verdicts[GOALS["cliff"]] == "not decided: 3 of 4 cases measured"
    assert verdicts[GOALS["forward"]] == "reached"


def test_the_table_is_as_wide_as_its_cells():
    from benchmarks import gpu_goals

    lines = gpu_goals.table(measured("latency", eager=1.3))
    assert lines[0].split() == ["goal", "worst", "measured", "verdict"]
    cells = [re.split(r"  +", line) for line in lines]
    assert cells[-1][1:] == ["1.30 x (rms_norm 512x4096 float32)", "missed by 1 of 4 cases"]
    assert len({line.rindex(verdict) for line, (_, _, verdict) in zip(lines, cells, strict=True)}) == 1
    assert len(lines) == 7


def test_latency_is_compared_with_the_fastest_peer():
    from benchmarks import gpu_goals

    case = gpu_goals.Case("layer_norm", (512, 4096), torch.float32)
    records = {str(case): {"evenkeel": {"eager": 3.0}, "torch": {"eager": 4.0}, "quack": {"eager": 2.0}}}
    assert gpu_goals.multiple(("eager", "eager both"), "", records, case) == 1.5
    assert gpu_goals.multiple(("eager",), "torch", records, case) == 0.75
