"""ImageStatistics: mean and deviation of each channel by both definitions in use."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

import numpy as np
import torch

from evenkeel._errors import InvalidArgumentError, InvalidInputError
from evenkeel.data._arrays import dtype_name, values_of
from evenkeel.data.statistics._encoding import State, joined, refuse_rest
from evenkeel.data.statistics._moments import from_column_moments
from evenkeel.data.statistics._statistics import Statistics, restore, state_of
from evenkeel.data.statistics._tables import table_moments
from evenkeel.functional import ColumnMoments, image_moments

Layout = Literal["HWC", "CHW"]
Definition = Literal["pooled", "per-image"]


class ImageStatistics:
    """Per-channel statistics of images by both definitions at once, merged without loss.

    *pooled*: mean and deviation of all pixels. *per-image*: the mean over images of each one's mean and deviation; the
    well-known 0.229 of ImageNet is of this kind, and its pooled deviation is about 0.28.

    Attributes:
        pooled: `Statistics` of the pixels of each channel, in the images' own unit (0 to 255 for bytes).
        per_image: `Statistics` of each image's means, then deviations: (2 * channels,).

    Example:
        >>> import numpy as np
        >>> from evenkeel.data import ImageStatistics
        >>> pictures = np.array([[[[0], [255]]], [[[100], [100]]]], dtype=np.uint8)  # two of 1 x 2 pixels
        >>> found = ImageStatistics().update(pictures, layout="HWC")
        >>> found.std("pooled").round(3), found.std("per-image")
        (array([91.199]), array([63.75]))
    """

    def __init__(self) -> None:
        self.pooled, self.per_image = Statistics(), Statistics()

    @property
    def images(self) -> int:
        """The number of images seen."""
        return self.per_image.rows

    def update(self, images: Any, *, layout: Layout) -> Self:
        """Add one image or a batch of one size, and return this object.

        Args:
            images: (..., height, width, channels) for ``HWC``, (..., channels, height, width) for ``CHW``.
            layout: ``HWC`` or ``CHW``.

        Raises:
            InvalidInputError: there are no pixels, or no values (a meta tensor).
        """
        x = values_of(images)
        moments = image_moments(x, layout=layout)
        channels = moments.mean.shape[-1]
        flat = ColumnMoments(*(part.reshape(-1, channels) for part in moments))
        if not flat.mean.shape[0] or not (flat.count > 0).all():
            raise InvalidInputError(f"expected images with pixels, but got the shape {tuple(x.shape)}")
        dtype, each = dtype_name(images), torch.cat([flat.mean, (flat.m2 / flat.count).sqrt()], 1)
        for index in range(flat.mean.shape[0]):
            block = from_column_moments(ColumnMoments(*(part[index] for part in flat)))
            rows = int(flat.count[index].max())
            if block.out_of_range().any():
                pixels = x if layout == "HWC" else x.movedim(-3, -1)
                block = table_moments(pixels.reshape(flat.mean.shape[0], -1, channels)[index])
                one = Statistics().add_moments(block, rows=rows)
                each[index] = torch.from_numpy(np.concatenate([one.mean, one.std()]))
            self.pooled.add_moments(block, rows=rows, dtypes=(dtype,))
        self.per_image.update(each)
        return self

    def merge(self, other: ImageStatistics) -> Self:
        """Add what another object has seen, and return this one; the other stays as it is."""
        self.pooled.merge(other.pooled)
        self.per_image.merge(other.per_image)
        return self

    def mean(self, definition: Definition) -> np.ndarray[Any, Any]:
        """Mean of each channel by a definition, in the images' own unit."""
        check_definition(definition)
        return self.pooled.mean if definition == "pooled" else np.split(self.per_image.mean, 2)[0]

    def std(self, definition: Definition) -> np.ndarray[Any, Any]:
        """Deviation of each channel by a definition, in the images' own unit."""
        check_definition(definition)
        return self.pooled.std() if definition == "pooled" else np.split(self.per_image.mean, 2)[1]


def check_definition(definition: str) -> None:
    """Raise `InvalidArgumentError` unless a definition is one of the two."""
    if definition not in get_args(Definition):
        raise InvalidArgumentError(f"definition must be pooled or per-image, but got {definition!r}")


def image_state(statistics: ImageStatistics) -> State:
    """The state from which `restore_images` makes an equal object."""
    states = {name: state_of(getattr(statistics, name)) for name in ("pooled", "per_image")}
    return State({name: state.settings for name, state in states.items()}, joined(states))


def restore_images(state: State, channels: int) -> ImageStatistics:
    """The statistics that `image_state` described, of so many channels."""
    statistics, parts = ImageStatistics(), state.parts()
    for name, features in (("pooled", channels), ("per_image", 2 * channels)):
        restored = restore(Statistics, State(state.settings[name], parts.pop(name, {})))
        if restored.features != features or restored.axis != (-1,):
            raise ValueError(f"{name}: expected {features} features, but got {restored!r}")
        setattr(statistics, name, restored)
    refuse_rest(parts)
    return statistics
