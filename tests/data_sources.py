"""One table as every kind of source, and whether statistics are those of the table."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import torch

NAMES = ["a", "b", "c"]
ROWS = 1000


def as_arrow(x):
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in zip(NAMES, x.T, strict=True)})


def chunks(x):
    return np.array_split(x, 7)


MEMORY = {
    "array": lambda x: x,
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1],
    "list": lambda x: x.tolist(),
    "tensor": lambda x: torch.from_numpy(x).requires_grad_(),
    "pandas": lambda x: pd.DataFrame(x, columns=NAMES),
    "pandas mixed": lambda x: pd.DataFrame(x, columns=NAMES).astype({"a": "float64", "b": "Float64"}),
    "polars": lambda x: pl.DataFrame(x, schema=NAMES),
    "arrow": as_arrow,
    "arrow chunks": lambda x: pa.concat_tables([as_arrow(part) for part in chunks(x)]),
    "record batch": lambda x: as_arrow(x).to_batches()[0],
    "structured": lambda x: np.rec.fromarrays(x.T, names=NAMES),
}
STREAMS = {
    "generator": lambda x: iter(chunks(x)),
    "list of arrays": chunks,
    "loader": lambda x: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(x)), batch_size=64),
    "loader with targets": lambda x: torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.arange(len(x))), batch_size=64
    ),
    "tuples": lambda x: ((part, np.zeros(len(part))) for part in chunks(x)),
    "dicts": lambda x: (dict(zip(NAMES, part.T, strict=True)) for part in chunks(x)),
    "dict of a table": lambda x: ({"x": torch.from_numpy(part)} for part in chunks(x)),
    "frames": lambda x: (pd.DataFrame(part, columns=NAMES) for part in chunks(x)),
    "reader": lambda x: iter(as_arrow(x).to_reader(max_chunksize=100)),
}
FILES = {
    "x.npy": lambda path, x: np.save(path, x),
    "fortran.npy": lambda path, x: np.save(path, np.asfortranarray(x)),
    "x.npz": lambda path, x: np.savez(path, x=x),
    "packed.npz": lambda path, x: np.savez_compressed(path, x=x),
    "x.parquet": lambda path, x: pq.write_table(as_arrow(x), path, row_group_size=300),
    "x.csv": lambda path, x: pa.csv.write_csv(as_arrow(x), path),
    "x.feather": lambda path, x: pa.feather.write_feather(as_arrow(x), path, chunksize=100),
    "plain.arrow": lambda path, x: pa.feather.write_feather(as_arrow(x), path, compression="uncompressed"),
    "stream.arrows": lambda path, x: write_stream(path, as_arrow(x)),
    "x.tsv": lambda path, x: pd.DataFrame(x, columns=NAMES).to_csv(path, sep="\t", index=False),
    "semicolon.csv": lambda path, x: pd.DataFrame(x, columns=NAMES).to_csv(path, sep=";", index=False),
    "x.csv.gz": lambda path, x: pd.DataFrame(x, columns=NAMES).to_csv(path, index=False),
    "headless.csv": lambda path, x: pd.DataFrame(x).to_csv(path, index=False, header=False),
}


def write_stream(path, table):
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def agree(found, x):
    """The two-pass float64 answer, to the last digits; text formats keep 17 of them."""
    np.testing.assert_array_equal(found.count, (~np.isnan(x)).sum(0))
    np.testing.assert_array_equal(found.missing, np.isnan(x).sum(0))
    np.testing.assert_allclose(found.mean, np.nanmean(x, 0), rtol=1e-13)
    np.testing.assert_allclose(found.variance(), np.nanvar(x, 0), rtol=1e-12)
    np.testing.assert_array_equal(found.minimum, np.nanmin(x, 0))
    np.testing.assert_array_equal(found.maximum, np.nanmax(x, 0))
    assert found.rows == len(x)
