"""Faults of data, of depth, of quantization, and of processes that train apart."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from doctor.faults.families import SHIFT, Mlp, Program, program, tokens
from torch import nn

import evenkeel as ek
from evenkeel import doctor

WORKER = Path(__file__).parents[1] / "replicas_worker.py"


def outlying(factor, channel=3):
    """One gain of every norm out of line."""

    def edit(model):
        for norm in (m for m in model.modules() if getattr(getattr(m, "weight", None), "ndim", 0) == 1):
            norm.weight[channel] *= factor

    return edit


def centred(model):
    """What goes into norms has the mean zero in every row."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module is not getattr(model, "head", None):
            module.weight -= module.weight.mean(0, keepdim=True)
            if module.bias is not None:
                module.bias -= module.bias.mean()
    if hasattr(model, "places"):
        model.places -= model.places.mean(-1, keepdim=True)
    if hasattr(model, "embed"):
        model.embed.weight -= model.embed.weight.mean(-1, keepdim=True)


def massive(model):
    """One feature of the stream a thousand times as large as the others."""
    model.places[:, 3] = 800.0


class Int8Linear(nn.Module):
    """Weights in 8 bits, and inputs too where `inputs` says so."""

    def __init__(self, linear, inputs=True):
        super().__init__()
        scale = linear.weight.detach().abs().amax() / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias, self.inputs = linear.bias, inputs

    def forward(self, x):
        if self.inputs:
            step = x.abs().amax().clamp(min=1e-12) / 127
            x = (x / step).round() * step
        return nn.functional.linear(x, self.weight * self.scale, self.bias)


def in_int8(model, inputs=True):
    """Put layers with weights in 8 bits in the place of all linear ones."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(module, inputs))
    return model


def quantized(made, edit=None, inputs=True):
    """A program after training, with 8 bits."""
    with torch.no_grad():
        if edit is not None:
            edit(made.model)
    in_int8(made.model, inputs)
    return made.examine(backward=False)


def keeping_scale(model):
    """Weights of networks without norms that keep their scale."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module is not model.head:
            nn.init.kaiming_normal_(module.weight)


def self_normalizing(model):
    """LeCun's weights, for SELU."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")


def warmed(steps):
    """Adam with a learning rate that grows linearly, by hand."""

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 / steps, weight_decay=0.0)
        plain, count = optimizer.step, [1]

        def step():
            optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, count[0] / steps)
            count[0] += 1
            return plain()

        optimizer.step = step
        return optimizer

    return make


class TorchEncoder(nn.Module):
    """torch.nn's own layers."""

    def __init__(self, depth=6, norm_first=False):
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(16, 24)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


def torch_encoder(seed, **options):
    torch.manual_seed(seed + SHIFT[0])
    return Program(TorchEncoder(**options), tokens, seed=seed + SHIFT[0])


def regression(kind, seed, size=1.0, shift=0.0, loss=nn.functional.mse_loss, edit=None, **options):
    """Predict a number for each sample: the mean of its values, standardized and then in units of its own."""
    made = program(kind, seed, **options)
    if edit is not None:
        made.model = edit(made.model)
    x = made.batch()
    mean = x.flatten(1).mean(1)
    target = (mean - mean.mean()) / mean.std() * size + shift

    def of(y):
        return loss(y.flatten(1).mean(1), target)

    return doctor.examine(made.model, x, loss=of)


class Scaled(nn.Module):
    """A model that scales its own input."""

    def __init__(self, model, mean, std):
        super().__init__()
        self.model, self.mean, self.std = model, mean, std

    def forward(self, x):
        return self.model((x - self.mean) / self.std)


class Unscaled(Scaled):
    """A model that gives its output in the units of the targets."""

    def forward(self, x):
        return self.model(x) * self.std + self.mean


def scaled_inside(made, mean, std):
    made.model = Scaled(made.model, mean, std)
    return made.examine()


def with_affine(made, mean, std):
    """A fitted scaler as the first layer."""
    width = made.batch().shape[-1]
    layer = ek.nn.FeatureAffine(torch.full((width,), float(mean)), torch.full((width,), 1 / std))
    made.model = nn.Sequential(layer, made.model)
    return made.examine()


def served(made, change, axis=-1):
    """A batch of other data than that of the fit."""
    statistics = ek.data.Statistics(axis=axis)
    for number in range(8):
        statistics.update(made.batch(number + 1))
    return doctor.examine(made.model, change(made.batch()), statistics=statistics)


def replicas(fault, seed=0):
    """Two processes that train a model; what they left for each other, judged."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ek.__file__).parents[1])}
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "replicas.json"
        commands = [
            [sys.executable, "-W", "ignore", WORKER, fault, str(seed + SHIFT[0]), str(rank), f"{folder}/meeting", said]
            for rank in range(2)
        ]
        processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for command in commands]
        for process in processes:
            _, error = process.communicate(timeout=120)
            assert process.returncode == 0, error.decode()
        found = [
            doctor.probes.Replica(**{**row, "digest": tuple(row["digest"])}) for row in json.loads(said.read_text())
        ]
    return doctor.Report.of("two processes", doctor.probes.Measurements(replicas=tuple(found)))


def mlp(seed, **options):
    return program(Mlp, seed, **options)
