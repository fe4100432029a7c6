"""A table in a directory of Parquet files, and how one of them breaks."""

import pyarrow as pa
import pyarrow.parquet as pq

PARTS = 5


def write_part(path, number, part):
    pq.write_table(pa.table(dict(zip("abc", part.T, strict=True))), path / f"part-{number}.parquet", row_group_size=64)


def break_part(folder, number):
    path = folder / f"part-{number}.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    return path
