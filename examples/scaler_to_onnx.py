"""Fit a scaler, make it the model's first layer, and export both as one ONNX file: nothing is left to forget."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from evenkeel.data import StandardScaler

warnings.simplefilter("ignore")  # torch's exporter warns of its own deprecations
random = np.random.default_rng(0)
torch.manual_seed(0)

# A year and a price: large next to their spread, as raw columns often are.
table = np.column_stack([random.normal(2020, 2, 2000), random.normal(1e5, 300, 2000)])
target = torch.tensor((table[:, :1] - 2020) / 2 - (table[:, 1:] - 1e5) / 300, dtype=torch.float32)

scaler = StandardScaler().fit(table)
model = torch.nn.Sequential(scaler.to_module(), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
rows = torch.tensor(table, dtype=torch.float32)  # raw: the model scales them
for _ in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(rows), target)
    loss.backward()
    optimizer.step()
print(f"loss after 30 steps on raw columns: {float(loss):.1e}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "model.onnx")
    batch = ({0: torch.export.Dim("rows")},)
    torch.onnx.export(model.eval(), (rows[:2],), path, dynamo=True, dynamic_shapes=batch, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (served,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})

difference = np.abs(served - model(rows).detach().numpy()).max()
print(f"onnxruntime and torch differ by at most {difference:.1e}, from raw columns to the result")
assert difference < 1e-4

# Where means are not large, the scaler can disappear into the layer that follows it.
folded = model[0].fold_into(model[1])
print(f"folded into {folded}: the result differs by at most {float((folded(rows) - model(rows)).abs().max()):.1e}")
