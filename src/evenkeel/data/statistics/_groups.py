"""GroupStatistics: statistics for each value of a key, such as each store, sensor or subject."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeVar

import numpy as np
import torch

from evenkeel._errors import InvalidInputError
from evenkeel.data._arrays import as_tensor, column_names
from evenkeel.data.statistics._encoding import State, StateFormat, joined, refuse_rest, take_array
from evenkeel.data.statistics._statistics import Statistics, restore, state_of

FORMAT = StateFormat("evenkeel/group-statistics", 1)
Key = str | int
G = TypeVar("G", bound="GroupStatistics")


class GroupStatistics:
    """A `Statistics` for each value of a key.

    Args:
        **options: the arguments of each `Statistics`: quantiles, nan_policy, axis, names, sketch_size.

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import GroupStatistics
        >>> table = np.array([[1.0], [2.0], [10.0], [30.0]])
        >>> groups = GroupStatistics().update(table, ["a", "a", "b", "b"])
        >>> {key: groups[key].mean.tolist() for key in groups}
        {'a': [1.5], 'b': [20.0]}
    """

    def __init__(self, **options: Any) -> None:
        Statistics(**options)  # an unknown option shows here rather than at the first batch
        self.options = options
        self._groups: dict[Key, Statistics] = {}

    def update(self, batch: Any, keys: Any, *, weight: Any = None, mask: Any = None) -> Self:
        """Add a batch and return this object.

        Args:
            batch: as for `Statistics.update`; its first axis goes with the keys.
            keys: one text or integer for each index of the first axis.
            weight: as for `Statistics.update`, with one number for each index of the first axis.
            mask: as for `Statistics.update`.

        Raises:
            InvalidInputError: there are not as many keys, or they are neither text nor integers.
        """
        names = self.options.get("names") or column_names(batch)
        x, labels = as_tensor(batch), np.asarray(as_tensor(keys) if isinstance(keys, torch.Tensor) else keys)
        if labels.dtype.kind == "O":
            labels = labels.astype(str)
        if labels.shape != tuple(x.shape[:1]) or labels.dtype.kind not in "iuU":
            raise InvalidInputError(
                f"keys: expected a text or integer for each of the {len(x) if x.ndim else 0} rows, but got "
                f"{labels.dtype} of shape {labels.shape}"
            )
        # The groups in the order of their keys, each with its rows in their order: nothing depends on hashing.
        groups, inverse = np.unique(labels, return_inverse=True)
        order, ends = np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse, minlength=groups.size))
        options = {**self.options, "names": names}
        fresh = {}
        for key, positions in zip(groups.tolist(), np.split(order, ends[:-1]), strict=False):
            rows = torch.from_numpy(positions).to(x.device)
            own_weight, own_mask = (None if part is None else as_tensor(part)[rows] for part in (weight, mask))
            fresh[key] = Statistics(**options).update(x[rows], weight=own_weight, mask=own_mask)
        for key, statistics in fresh.items():  # only now: a refused batch changes nothing
            self._add(key, statistics)
        return self

    def merge(self, other: GroupStatistics) -> Self:
        """Add what another object has seen, and return this one; the other stays as it is."""
        for key, statistics in other._groups.items():
            self._add(key, Statistics.from_bytes(statistics.to_bytes()))
        return self

    def _add(self, key: Key, statistics: Statistics) -> None:
        if key in self._groups:
            self._groups[key].merge(statistics)
        else:
            self._groups[key] = statistics

    def __getitem__(self, key: Key) -> Statistics:
        """The statistics of one group."""
        return self._groups[key]

    def __iter__(self) -> Iterator[Key]:
        """The keys, sorted."""
        return iter(sorted(self._groups, key=lambda key: (isinstance(key, str), key)))

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def to_bytes(self) -> bytes:
        """All groups as a safetensors container with versioned JSON metadata."""
        keys = list(self)
        blobs = {str(i): np.frombuffer(self[key].to_bytes(), np.uint8) for i, key in enumerate(keys)}
        return FORMAT.to_bytes(State({"keys": keys, "options": self.options}, blobs))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            StateError: the bytes are truncated, foreign or of a newer version.
        """
        settings, arrays = FORMAT.from_bytes(data)
        with FORMAT.decoding():
            blobs = (take_array(arrays, str(index), "u1", (None,)) for index in range(len(arrays)))
            return rebuilt(cls, settings, (Statistics.from_bytes(blob.tobytes()) for blob in blobs))


def group_state(groups: GroupStatistics) -> State:
    """The state from which `restore_groups` makes an equal object."""
    states = {str(index): state_of(groups[key]) for index, key in enumerate(groups)}
    parts = [state.settings for state in states.values()]
    return State({"options": groups.options, "keys": list(groups), "groups": parts}, joined(states))


def restore_groups(state: State) -> GroupStatistics:
    """The groups that `group_state` described."""
    with FORMAT.decoding():
        return rebuilt(GroupStatistics, state.settings, restore_parts(state))


def restore_parts(state: State) -> Iterator[Statistics]:
    """Yield each group's statistics, once the settings are known to be sound."""
    parts = state.parts()
    for index, settings in enumerate(state.settings.get("groups", ())):
        yield restore(Statistics, State(settings, parts.pop(str(index), {})))
    refuse_rest(parts)


def rebuilt(cls: type[G], settings: dict[str, Any], parts: Iterable[Statistics]) -> G:
    """Groups with the options and keys of a state; ValueError where these are damaged, or not as many as the parts."""
    from msgspec import convert

    from evenkeel.data.statistics._schemas import GroupSettings

    keys = convert(settings, GroupSettings).keys
    groups = cls(**settings["options"])
    groups._groups = dict(zip(keys, parts, strict=True))
    if len(groups._groups) != len(keys):
        raise ValueError("a key comes twice")
    return groups
