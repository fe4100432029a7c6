"""Exported programs: standard operators alone, the values of the model, and onnxruntime agrees."""

import pytest
import torch

from evenkeel import functional as F
from evenkeel import nn

STANDARD = {"", "ai.onnx"}  # the names of ONNX's own domain


class Model(torch.nn.Module):
    """Every norm once, with whatever parameters it has away from their initial values."""

    def __init__(self, **options):
        super().__init__()
        self.norms = torch.nn.Sequential(
            nn.BatchNorm2d(4, **options),
            nn.InstanceNorm2d(4, affine=True, **options),
            nn.GroupNorm(2, 4, **options),
            nn.LayerNorm((5, 6), **options),
            nn.RMSNorm(6, eps=1e-6, **options),
            nn.DyT(6),
        )
        generator = torch.Generator().manual_seed(3)
        for tensor in (*self.parameters(), *(b for b in self.buffers() if b.is_floating_point())):
            tensor.data += 0.3 * torch.rand(tensor.shape, generator=generator)

    def forward(self, x):
        return self.norms(x)


def model_of(dtype=torch.float32, **options):
    return Model(**options).to(dtype).eval()


def operators(program):
    return {node.target for node in program.graph.nodes if node.op == "call_function"}


# options, and the names of operators that the exported graph must hold
VARIANTS = {
    "plain": ({}, {"batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm"}),
    "1 + weight": ({"weight_offset": 1.0}, {"batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm"}),
    "early": ({"cast": "early"}, {"batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm"}),
    "outside": ({"eps_mode": "outside"}, {"sqrt", "mean"}),
    "clamp": ({"eps_mode": "clamp"}, {"clamp", "mean"}),
}
# float32 arithmetic in both; what 16 bits round differently is one place of 1 + 7 or 1 + 10 bits, in values up to 8
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2.0**-4, torch.float16: 2.0**-7}


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch's own, in run_decompositions
@pytest.mark.parametrize(
    ("variant", "dtype"),
    [*((variant, torch.float32) for variant in VARIANTS), ("plain", torch.float16), ("early", torch.bfloat16)],
    ids=str,
)
def test_an_exported_program_holds_only_torchs_operators(variant, dtype):
    options, expected = VARIANTS[variant]
    model, x = model_of(dtype, **options), torch.randn(3, 4, 5, 6).to(dtype)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    names = {str(target) for target in operators(program)}
    assert all(name.startswith(("aten.", "<built-in", "<function")) for name in names)
    assert expected <= {name.removeprefix("aten.").partition(".")[0] for name in names}
    more = torch.randn(7, 4, 5, 6).to(dtype)
    wanted = model(more)
    for run in (program.module(), program.run_decompositions().module()):
        torch.testing.assert_close(run(more), wanted, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_masks_and_training_export_too():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x, mask):
            return self.norm(x, mask)

    x, mask = torch.randn(4, 3, 5), torch.arange(5) < torch.tensor([[5], [2], [1], [4]])
    model, other = Masked(), Masked()
    exported = torch.export.export(model, (x, mask), strict=True).module()
    for _ in range(2):
        torch.testing.assert_close(exported(x, mask), other(x, mask))
    running = dict(exported.named_buffers())
    torch.testing.assert_close(running["norm.running_var"], other.norm.running_var)


def test_outside_of_export_the_kernels_run():
    torch.export.export(model_of(), (torch.randn(3, 4, 5, 6),))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        F.layer_norm(torch.randn(3, 4), (4,))
    assert "evenkeel::rows_inference" in {event.key for event in profile.key_averages()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("opset", [18, 21, 23])
@pytest.mark.parametrize("variant", VARIANTS)
def test_onnx(variant, opset, tmp_path):
    import onnxruntime

    model, x = model_of(**VARIANTS[variant][0]), torch.randn(3, 4, 5, 6)
    program = torch.onnx.export(model, (x,), dynamo=True, opset_version=opset, verbose=False)
    kinds = {node.op_type for node in program.model.graph}
    assert {node.domain for node in program.model.graph} <= STANDARD
    assert not list(program.model.functions)
    if variant == "plain":
        named = {"BatchNormalization", "InstanceNormalization", "LayerNormalization"}
        assert named | ({"GroupNormalization"} if opset >= 21 else set()) <= kinds
        assert ("RMSNormalization" in kinds) == (opset >= 23)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=2e-5, atol=2e-5)
