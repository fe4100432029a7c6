"""Ports of published preprocessing faults: which are named, and that what they became after the fix is sound."""

import pytest
from doctor.faults.ports import PORTS, judged

NAMED = {44066044, 52800582, 55328966, 39525358, 59325381}


@pytest.mark.parametrize("port", PORTS, ids=lambda port: str(port.subject))
def test_a_port_is_judged_as_the_page_says(port):
    found = judged(port, 0)
    assert found["named"] == (port.subject in NAMED)
    assert found["alarms"] == []


@pytest.mark.parametrize("port", PORTS, ids=lambda port: str(port.subject))
def test_the_data_of_a_port_agrees_with_the_published_verdict(port):
    if port.umlaut:
        assert judged(port, 0)["beyond"][0]
