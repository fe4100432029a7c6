"""States of statistics: what survives bytes, JSON and copies, and how damaged, foreign and newer ones are refused."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel import EvenkeelError, InvalidInputError, StateError
from evenkeel.data import GroupStatistics, Statistics


@pytest.mark.parametrize("quantiles", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_states_survive_bytes_json_and_copies(dtype, quantiles):
    x = np.random.default_rng(0).integers(0, 99, (3000, 3)).astype(dtype)
    names = ["a", "b", "c"]
    statistics = Statistics(names=names, quantiles=quantiles, nan_policy="propagate").update(x)
    data = statistics.to_bytes()
    assert data == statistics.to_bytes()
    plain = json.loads(json.dumps(statistics.to_dict(), allow_nan=False))
    for restored in (Statistics.from_bytes(data), Statistics.from_dict(plain), copy.deepcopy(statistics)):
        assert restored.to_bytes() == data
        assert restored.names == ("a", "b", "c")
        assert (restored.mean == statistics.mean).all()
        more = restored.update(x)  # a restored state goes on like the original
        assert more.rows == 6000
        if quantiles:
            assert np.allclose(more.quantile(0.5), np.median(x, axis=0), atol=2)


def test_states_without_values_survive_too():
    for statistics in (Statistics(), Statistics(2, quantiles=True), Statistics(0)):
        assert Statistics.from_bytes(statistics.to_bytes()).to_bytes() == statistics.to_bytes()
        plain = json.loads(json.dumps(statistics.to_dict(), allow_nan=False))
        assert Statistics.from_dict(plain).to_bytes() == statistics.to_bytes()
    empty = Statistics(2)
    assert np.isnan(empty.mean).all()
    assert np.isnan(empty.variance()).all()
    assert empty.merge(Statistics().update(np.ones((2, 2)))).mean.tolist() == [1, 1]
    with pytest.raises(InvalidInputError, match="call update first"):
        _ = Statistics().mean


@pytest.mark.parametrize("end", [0, 4, 8, 60, -1])
@pytest.mark.parametrize("kind", [Statistics, GroupStatistics])
def test_truncated_bytes_give_one_clear_error(kind, end):
    x = np.ones((4, 2))
    statistics = (
        Statistics(quantiles=True).update(x) if kind is Statistics else GroupStatistics().update(x, [1, 2, 1, 2])
    )
    with pytest.raises(StateError) as caught:
        kind.from_bytes(statistics.to_bytes()[:end])
    assert len(str(caught.value).splitlines()) == 1


def test_foreign_and_newer_states_give_one_clear_error():
    good = Statistics(quantiles=True).update(np.ones((4, 2)))
    with pytest.raises(StateError, match="check the file"):
        Statistics.from_bytes(GroupStatistics().to_bytes())
    with pytest.raises(StateError, match="not a whole"):
        Statistics.from_bytes(b"\x93NUMPY" + bytes(200))
    newer = good.to_bytes().replace(rb"\"version\": 1", rb"\"version\": 2")
    with pytest.raises(StateError, match=r"version 2.*upgrade evenkeel"):
        Statistics.from_bytes(newer)
    plain = good.to_dict()
    for damage in (
        {"format": "other"},
        {"version": 9},
        {"version": None},
        {"state": {}},
        {"state": plain["state"] | {"m2": [1.0]}},
        {"state": plain["state"] | {"m2": [-1.0, 1.0]}},
        {"state": plain["state"] | {"sketch": "AAAA"}},
        {"settings": plain["settings"] | {"names": ["a"]}},
        {"settings": {}},
    ):
        with pytest.raises(StateError):
            Statistics.from_dict(plain | damage)
    with pytest.raises(StateError):
        Statistics.from_dict([1])


@given(st.binary(max_size=400))
def test_no_bytes_give_another_error(data):
    with pytest.raises(StateError):
        Statistics.from_bytes(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(position, value):
    data = bytearray(Statistics(quantiles=True).update(np.arange(6.0).reshape(3, 2)).to_bytes())
    data[position % len(data)] = value
    try:
        Statistics.from_bytes(bytes(data))
    except EvenkeelError as error:
        assert isinstance(error, StateError)  # noqa: PT017
