"""The table of file formats. A format is a file beside this one, which makes its record, and a row here."""

from __future__ import annotations

from evenkeel.data.sources._arrow import ARROW
from evenkeel.data.sources._csv import CSV
from evenkeel.data.sources._format import Format
from evenkeel.data.sources._images import IMAGES
from evenkeel.data.sources._lance import LANCE
from evenkeel.data.sources._numpy import NUMPY
from evenkeel.data.sources._parquet import PARQUET

FORMATS: tuple[Format, ...] = (PARQUET, CSV, ARROW, NUMPY, IMAGES, LANCE)
