"""Maps of columns: bits, layouts, given memory, derivatives, compiled graphs."""

import pytest
import torch
from column_tables import FLOATS, every_dtype, every_shape, misaligned, sample, strided
from torch._subclasses import FakeTensorMode

from evenkeel import InvalidArgumentError, InvalidInputError
from evenkeel import functional as F
from evenkeel import nn as evenkeel_nn


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


@pytest.mark.parametrize("to", FLOATS, ids=str)
def test_large_maps_into_misaligned_memory(to):
    rows, columns = (16 << 20) // to.itemsize // 8 + 1, 8
    x, (shift, scale) = torch.randn(rows, columns), torch.randn(2, columns)
    out = misaligned(rows * columns, to).view(rows, columns)
    F.column_affine(x, shift, scale, out=out, backend="cpu")
    assert torch.equal(out, F.column_affine_reference(x, shift, scale, dtype=to))


@pytest.mark.parametrize("part", [(1, 5), (7, 1), (1, 1), (0, 5), (7, 0)], ids=str)
@pytest.mark.parametrize("by_columns", [False, True])
def test_parts_of_tables_that_may_be_single(by_columns, part):
    table = torch.randn(5, 7).t() if by_columns else torch.randn(7, 5)
    x = table[: part[0], : part[1]]
    shift, scale = torch.randn(2, part[1])
    wanted = F.column_affine_reference(x, shift, scale)
    y = F.column_affine(x, shift, scale, backend="cpu")
    assert torch.equal(y, wanted)
    assert torch.equal(evenkeel_nn.FeatureAffine(shift, scale)(x), wanted)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        arguments = (mode.from_tensor(t) for t in (x, shift.double(), scale.double()))
        fake = torch.ops.evenkeel.column_affine(*arguments, None, None, None, x.dtype)
    assert fake.stride() == y.stride()
    for memory in (torch.zeros(7, 5), torch.zeros(5, 7).t()):
        out = memory[: part[0], : part[1]]
        F.column_affine(x, shift, scale, out=out, backend="cpu")
        assert torch.equal(out, wanted)
        assert memory.count_nonzero() <= out.numel()
    rest = table.clone()
    rest[: part[0], : part[1]] = wanted
    F.column_affine(x, shift, scale, out=x, backend="cpu")
    assert torch.equal(table, rest)


@every_dtype
def test_short_rows_of_wide_tables(dtype):
    # packed into chunks of 2048 elements, of which there are whole and partial ones
    for rows, columns in ((5000, 1), (2049, 2), (700, 3), (40, 192), (40, 193)):
        x = sample((rows, columns + 5), dtype)[:, 2 : 2 + columns]
        shift, scale = torch.randn(2, columns, dtype=torch.float64)
        for to in FLOATS:
            wanted = F.column_affine_reference(x, shift, scale, dtype=to)
            wide = torch.full((rows, columns + 3), torch.nan, dtype=to)
            F.column_affine(x, shift, scale, out=wide[:, 1:-2], backend="cpu")
            assert torch.equal(wide[:, 1:-2], wanted)
            assert wide[:, [0, -2, -1]].isnan().all()
            assert torch.equal(F.column_affine(x, shift, scale, dtype=to, backend="cpu"), wanted)


@pytest.mark.parametrize("columns", [3, 300])
def test_infinities_of_a_slice_are_its_own(columns):
    table, parameter = torch.full((500, columns + 2), torch.inf), torch.ones(columns, dtype=torch.float64)
    x = table[:, 1:-1]
    x.zero_()
    for row in (None, 0, 499):
        if row is not None:
            x[row, columns // 2] = -torch.inf
        infinite = torch.zeros(1, dtype=torch.bool)
        arguments = (x, parameter, parameter, None, None, None)
        torch.ops.evenkeel.column_affine_out(*arguments, torch.empty(500, columns), infinite)
        assert infinite.item() == (row is not None)
        x.zero_()


@pytest.mark.parametrize("clip", [(None, 0.5), (-0.5, None), (None, None)], ids=str)
def test_clipping_at_one_side(clip):
    x, (shift, scale) = torch.randn(50, 7), torch.randn(2, 7, dtype=torch.float64)
    x[3, 3] = torch.nan
    low, high = (torch.inf * sign if side is None else side for side, sign in zip(clip, (-1, 1), strict=True))
    wanted = F.column_affine(x, shift, scale).clamp(low, high)
    for backend in ("cpu", "reference"):
        y = F.column_affine(x, shift, scale, clip=clip, backend=backend)
        torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    y = torch.ops.evenkeel.column_affine(x, shift, scale, None, *clip, torch.float32)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)
    y = evenkeel_nn.FeatureAffine(shift, scale, clip=clip)(x)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)


def test_memory_that_is_read_with_its_sign_changed():
    x, (shift, scale) = torch.randn(4, 3), torch.randn(2, 3)
    out = torch.zeros(4, 3, dtype=torch.complex64).conj().imag
    assert out.is_neg()
    assert F.column_affine(x, shift, scale, out=out, backend="cpu") is out
    wanted = F.column_affine_reference(x, shift, scale)
    assert torch.equal(out, wanted)
    assert torch.equal(
        F.column_affine(out, shift, scale, backend="cpu"), F.column_affine_reference(wanted, shift, scale)
    )


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


@pytest.mark.parametrize("infinity", [float("inf"), float("-inf")])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_infinity_is_noticed_and_kept_where_it_is(infinity, in_place):
    x, shift, scale = torch.arange(12.0).reshape(4, 3), torch.ones(3), torch.full((3,), 0.5)
    expected = F.column_affine(x, shift, scale)
    assert torch.equal(F.finite_column_affine(x, shift, scale), expected)
    assert not F.has_infinity(x)
    x[2, 1] = infinity
    before = x.clone()
    assert F.has_infinity(x)
    assert F.finite_column_affine(x, shift, scale, out=x if in_place else None) is None
    assert torch.equal(x, before)
    x[2, 1], x[0, 0] = 7.0, float("nan")
    assert not F.has_infinity(x)
    assert F.finite_column_affine(x, shift, scale, out=x if in_place else None)[0, 0].isnan()
