"""``out=`` of the last-axis norms: what torch's out= does, and memory that meets the input's."""

import re

import pytest
import torch

from evenkeel import EvenkeelError
from evenkeel import functional as F

NORMS = {
    "layer_norm": lambda x, **o: F.layer_norm(x, x.shape[-1:], **o),
    "rms_norm": lambda x, **o: F.rms_norm(x, x.shape[-1:], eps=1e-6, **o),
    "normalize": lambda x, **o: F.normalize(x, dim=-1, **o),
    "normalize over the first axis": lambda x, **o: F.normalize(x, dim=0, **o),
}
every_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)


@every_dtype
@every_norm
def test_out_gets_the_bits_of_the_result(norm, dtype):
    x = torch.randn(70, 33).to(dtype)
    expected = norm(x)
    wide = torch.zeros(70, 99, dtype=dtype)
    transposed = torch.zeros(33, 70, dtype=dtype).T
    for out in (torch.empty_like(x), wide[:, 33:66], transposed, torch.zeros(140, 33, dtype=dtype)[::2]):
        assert norm(x, out=out) is out
        assert torch.equal(out, expected)
    assert (wide[:, :33] == 0).all()
    assert (wide[:, 66:] == 0).all()


@every_dtype
@every_norm
def test_in_place(norm, dtype):
    x = torch.randn(70, 33).to(dtype)
    expected = norm(x)
    fused = torch.randn(70, 66).to(dtype)
    sliced, kept = fused[:, 33:], fused[:, :33].clone()
    expected_slice = norm(sliced)
    norm(x, out=x)
    norm(sliced, out=sliced)
    assert torch.equal(x, expected)
    assert torch.equal(sliced, expected_slice)
    assert torch.equal(fused[:, :33], kept)


@every_norm
def test_interleaved_slices_are_not_an_overlap(norm):
    fused = torch.randn(20, 66)
    expected = norm(fused[:, :33].clone())
    assert torch.equal(norm(fused[:, :33], out=fused[:, 33:]), expected)


@every_norm
def test_interleaved_memory_that_does_overlap_gives_the_right_result(norm):
    fused = torch.randn(20, 66)
    expected = norm(fused[:, :33].clone())
    assert torch.equal(norm(fused[:, :33], out=fused[:, 5:38]), expected)


@every_norm
def test_partial_overlap_is_refused_as_in_torch(norm):
    memory = torch.randn(100)
    x, out = memory[:60].view(4, 15), memory[15:75].view(4, 15)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor refer to"):
        torch.exp(x, out=out)
    with pytest.raises(EvenkeelError, match="some elements of the input tensor and the written-to tensor refer to"):
        norm(x, out=out)
    with pytest.raises(EvenkeelError, match="more than one element of the written-to tensor refer to a single"):
        norm(x, out=torch.zeros(15).expand(4, 15))


def test_out_may_be_a_parameters_memory():
    x, weight = torch.randn(1, 33), torch.randn(1, 33)
    expected = F.rms_norm(x, (33,), weight[0], eps=1e-6)
    assert torch.equal(F.rms_norm(x, (33,), weight[0], eps=1e-6, out=weight), expected)


@every_norm
def test_out_is_resized_with_torchs_warning(norm):
    x = torch.randn(4, 5)
    assert torch.equal(norm(x, out=torch.empty(0)), norm(x))
    with pytest.warns(UserWarning, match=re.escape("was resized since it had shape [3]")):
        out = norm(x, out=torch.empty(3))
    assert out.shape == x.shape


@every_norm
def test_out_is_cast_as_in_torch(norm):
    x = torch.randn(4, 5)
    out = norm(x, out=torch.empty(4, 5, dtype=torch.float64))
    assert torch.equal(out, norm(x).double())
    with pytest.raises(EvenkeelError, match=r"result type torch.float32 can't be cast to the desired output type"):
        norm(x, out=torch.empty(4, 5, dtype=torch.int64))
    with pytest.raises(EvenkeelError, match="Expected out tensor to have device cpu, but got meta"):
        norm(x, out=torch.empty(4, 5, device="meta"))


@every_norm
def test_out_refuses_gradients_as_in_torch(norm):
    message = "functions with out=... arguments don't support automatic differentiation"
    x = torch.randn(4, 5, requires_grad=True)
    with pytest.raises(RuntimeError, match=message):
        torch.exp(x, out=torch.empty(4, 5))
    for tensor, out in ((x, torch.empty(4, 5)), (x.detach(), torch.empty(4, 5, requires_grad=True))):
        with pytest.raises(EvenkeelError, match=message):
            norm(tensor, out=out)
    with torch.no_grad():
        assert torch.equal(norm(x, out=torch.empty(4, 5)), norm(x))


@pytest.mark.parametrize("backend", ["reference", "auto"])
@every_norm
def test_out_without_a_kernel(norm, backend):
    x = torch.randn(4, 5)
    assert torch.equal(norm(x, backend=backend, out=torch.empty(4, 5)), norm(x, backend=backend))
    assert norm(x.to("meta"), out=torch.empty(4, 5, device="meta")).shape == x.shape


@every_norm
def test_out_under_compile(norm):
    torch._dynamo.reset()
    x, out = torch.randn(4, 33), torch.zeros(4, 33)
    torch.compile(lambda a, b: norm(a, out=b), backend="aot_eager", fullgraph=True)(x, out)
    assert torch.equal(out, norm(x))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (1,)], ids=str)
@every_norm
def test_out_of_edge_shapes(norm, shape):
    x = torch.randn(shape)
    assert norm(x, out=torch.empty(shape)).shape == x.shape


def test_the_operator_passes_opcheck():
    x, weight = torch.randn(5, 33), torch.randn(33)
    for out in (torch.empty(5, 33), torch.empty(5, 66)[:, 33:]):
        torch.library.opcheck(torch.ops.evenkeel.rows_out, (x, weight, None, 1, 0, 1e-5, 0, 0.0, False, False, out))
