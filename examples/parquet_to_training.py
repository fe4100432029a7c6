"""From Parquet files to a trained model: statistics in one pass, then a first layer that applies them."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import torch

from evenkeel import data

FEATURES = ["height", "weight", "age"]


def write_files(folder):
    """Write four files of measurements, with gaps; yours are there already."""
    random = np.random.default_rng(0)
    for part in range(4):
        height, weight, age = random.normal(170, 10, 2500), random.normal(70, 12, 2500), random.uniform(20, 80, 2500)
        target = 0.02 * height - 0.05 * weight + 0.01 * age + random.normal(0, 0.1, 2500)
        weight[random.random(2500) < 0.01] = np.nan  # not measured
        table = pa.table({"height": height, "weight": weight, "age": age, "target": target})
        pa.parquet.write_table(table, folder / f"part-{part}.parquet")


def batches(folder, size=250):
    """Yield (features, target) in pieces that fit in memory."""
    for batch in pa.dataset.dataset(folder).to_batches(batch_size=size, columns=[*FEATURES, "target"]):
        table = np.column_stack([batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names])
        table = torch.tensor(table, dtype=torch.float32)
        yield table[:, :-1], table[:, -1:]


def train(first_layer, folder):
    """Train a linear model behind a first layer, and return its last losses' mean."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(len(FEATURES), 1)
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        for x, target in batches(folder):
            optimizer.zero_grad()
            filled = torch.nan_to_num(first_layer(x))  # a gap becomes 0: the mean, once x is scaled
            loss = torch.nn.functional.mse_loss(linear(filled), target)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return np.mean(losses[-40:])


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_files(folder)
    scaler = data.fit(folder, columns=FEATURES)  # one pass, bounded memory; `evenkeel data fit` does the same
    for feature, mean, deviation in zip(FEATURES, scaler.mean_, scaler.scale_, strict=True):
        print(f"{feature}: mean {mean:.2f}, deviation {deviation:.2f}")
    print(f"missing: {int(scaler.statistics_.missing.sum())} values, left out of the statistics")
    raw, scaled = train(torch.nn.Identity(), folder), train(scaler.to_module(), folder)
print(f"loss on raw features {raw:.3f}, on scaled ones {scaled:.3f}")
assert scaled < raw
