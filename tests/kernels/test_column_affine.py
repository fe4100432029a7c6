"""Maps of columns: bits, layouts, given memory, derivatives, compiled graphs."""

import pytest
import torch
from column_tables import FLOATS, every_dtype, every_shape, sample, strided

from evenkeel import InvalidArgumentError, InvalidInputError
from evenkeel import functional as F


@pytest.mark.parametrize("to", FLOATS, ids=str)
@every_dtype
def test_maps_are_the_references_to_the_bit(dtype, to):
    for shape in ((1, 1), (1, 40), (300, 7), (700, 65)):
        x = sample(shape, dtype)
        shift, scale, offset = torch.randn(3, shape[1], dtype=torch.float64)
        for more, clip in (((), None), ((offset,), None), ((offset,), (-1.0, 0.5))):
            wanted = F.column_affine_reference(x, shift, scale, *more, clip=clip, dtype=to)
            assert torch.equal(F.column_affine(x, shift, scale, *more, clip=clip, dtype=to, backend="cpu"), wanted)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_large_maps_into_given_memory(offset):
    # large enough to be written past the caches, aligned and not
    rows, columns = 700_001, 7
    x, memory = torch.randn(rows, columns), torch.full((rows * columns + 8,), torch.nan)
    out = memory[offset : offset + rows * columns].view(rows, columns)
    shift, scale = torch.randn(2, columns)
    F.column_affine(x, shift, scale, out=out, backend="cpu")
    assert torch.equal(out, F.column_affine_reference(x, shift, scale))
    assert memory[:offset].isnan().all()
    assert memory[offset + rows * columns :].isnan().all()
    F.column_affine(x, shift, scale, out=x, backend="cpu")
    assert torch.equal(x, out)


def test_maps_into_memory_that_an_input_uses():
    memory = torch.randn(700)
    x, shift, scale = memory[:600].view(100, 6), torch.randn(6), torch.rand(6) + 1
    wanted = F.column_affine_reference(x, shift, scale)
    with pytest.raises(InvalidInputError, match="single memory location"):
        F.column_affine(x, shift, scale, out=memory[1:601].view(100, 6), backend="cpu")
    with pytest.raises(InvalidInputError, match="single memory location"):
        F.column_affine(x, shift, scale, out=torch.empty(6).expand(100, 6), backend="cpu")
    square = x[:6].clone()
    # the transpose of the input: every element is read before it is written
    F.column_affine(square, shift, scale, out=square.t(), backend="cpu")
    assert torch.equal(square.t(), wanted[:6])


@every_shape
def test_strided_maps(shape):
    x = sample(shape, torch.float32)
    shift, scale = torch.randn(2, shape[1])
    wanted = F.column_affine_reference(x, shift, scale)
    for view, _ in strided(x):
        assert torch.equal(F.column_affine(view, shift, scale, backend="cpu"), wanted)
        for target, _ in strided(torch.zeros_like(x)):
            F.column_affine(view, shift, scale, out=target, backend="cpu")
            assert torch.equal(target, wanted)
    deep = x.expand(3, *shape)
    assert torch.equal(F.column_affine(deep, shift, scale, backend="cpu")[1], wanted)


def test_float32_keeps_its_digits():
    x = 1e6 + torch.randn(1000, 2)
    y = F.column_affine(x, torch.tensor([1e6 + 1 / 3] * 2, dtype=torch.float64), torch.ones(2))
    exact = x.double() - (1e6 + 1 / 3)
    torch.testing.assert_close(y.double(), exact, rtol=2**-24, atol=0)  # one rounding
    assert F.column_affine(torch.tensor([[0, 5]]), torch.zeros(2), torch.ones(2)).dtype == torch.get_default_dtype()


def test_derivatives_of_maps():
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    shift, scale, offset = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for fixed in (False, True):
        parameters = [p.detach() if fixed else p for p in (shift, scale, offset)]
        for clip in (None, (-1.0, 1.0)):
            call = lambda *t, clip=clip: F.column_affine(*t, clip=clip)  # noqa: E731
            assert torch.autograd.gradcheck(call, (x, *parameters))
            assert torch.autograd.gradgradcheck(call, (x, *parameters))
    tangent = torch.randn(6, 3, dtype=torch.float64)
    _, derivative = torch.func.jvp(lambda t: F.column_affine(t, shift, scale), (x,), (tangent,))
    torch.testing.assert_close(derivative, tangent * scale)
    rows = torch.func.vmap(lambda t: F.column_affine(t, shift, scale))(x)
    torch.testing.assert_close(rows, F.column_affine(x, shift, scale))
    low = x.detach().float().requires_grad_()
    F.column_affine(low, shift.detach(), scale.detach(), dtype=torch.float64).sum().backward()
    assert low.grad.dtype == torch.float32


def test_maps_compile_and_export():
    shift, scale = torch.randn(2, 5)
    call = lambda x: F.column_affine(x, shift, scale, clip=(-2.0, 2.0))  # noqa: E731
    x = torch.randn(8, 5)
    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))

    class Module(torch.nn.Module):
        def forward(self, x):
            return call(x)

    torch.testing.assert_close(torch.export.export(Module(), (x,)).module()(x), call(x))


def test_wrong_inputs_say_what_to_do():
    x = torch.ones(4, 3)
    with pytest.raises(InvalidInputError, match="each of the 3 columns"):
        F.column_affine(x, torch.ones(4), torch.ones(3))
    with pytest.raises(InvalidInputError, match="floating"):
        F.column_affine(x, torch.ones(3), torch.ones(3), dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="lowest, highest"):
        F.column_affine(x, torch.ones(3), torch.ones(3), clip=(1, 0))
    with pytest.raises(InvalidInputError, match="out must be"):
        F.column_affine(x, torch.ones(3), torch.ones(3), out=torch.ones(3, 4))
    with pytest.raises(InvalidInputError, match="not differentiable"):
        F.column_affine(x.requires_grad_(), torch.ones(3), torch.ones(3), out=torch.ones(4, 3))
