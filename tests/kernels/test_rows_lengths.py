"""The row kernels at every short length, in mixed company, past the caches; and what calls without gradients refuse."""

import pytest
import torch

from evenkeel import functional as F

NORMS = ("layer_norm", "rms_norm")
every_norm = pytest.mark.parametrize("norm", NORMS)
# bounds on errors of single steps: far above rounding, far below a misplaced element
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float64: 1e-9}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def run(norm, x, weight, cotangent, backend="cpu"):
    """y, dx and dweight."""
    leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
    y = getattr(F, norm)(leaves[0], x.shape[-1:], leaves[1], eps=1e-3, backend=backend)
    return (y.detach(), *torch.autograd.grad(y, leaves, cotangent))


def exact(norm, *tensors):
    return run(norm, *(t.double() for t in tensors), backend="reference")


@every_norm
@every_dtype
def test_every_short_length(norm, dtype):
    for features in range(1, 71):  # two vectors of bfloat16, and some
        x, cotangent = (torch.randn(21, features).to(dtype) for _ in range(2))
        weight = torch.randn(features).to(dtype)
        found, wanted = run(norm, x, weight, cotangent), exact(norm, x, weight, cotangent)
        for mine, theirs in zip(found, wanted, strict=True):
            scale = theirs.abs().max() + 1
            assert ((mine.double() - theirs).abs() <= TOLERANCES[dtype] * scale).all(), features


@every_norm
@every_dtype
@pytest.mark.parametrize("features", [33, 768])
def test_rows_of_every_kind_side_by_side(norm, dtype, features):
    # usual rows, means that need both their parts, and scales that are done in double
    scales = torch.tensor([1.0, 1.0, 1e-3, 1e30 if dtype in (torch.float32, torch.bfloat16) else 1e3])
    shifts = torch.tensor([0.0, 1e3, 0.0, 0.0])
    kinds = torch.arange(50) % 7 % 4
    x = (shifts[kinds][:, None] + scales[kinds][:, None] * torch.randn(50, features)).to(dtype)
    cotangent, weight = torch.randn(50, features).to(dtype), torch.randn(features).to(dtype)
    y, dx, dweight = run(norm, x, weight, cotangent)
    for row in range(50):
        alone = run(norm, x[row : row + 1], weight, cotangent[row : row + 1])
        assert torch.equal(y[row], alone[0][0])
        assert torch.equal(dx[row], alone[1][0])
    wanted = exact(norm, x, weight, cotangent)[2]
    assert ((dweight.double() - wanted).abs() <= TOLERANCES[dtype] * (wanted.abs().max() + 1)).all()


def past_the_caches(dtype, features):
    """Enough rows, one of them too large for squares in float, if the dtype has such: it parts what goes together."""
    rows = (12 << 20) // features // dtype.itemsize
    x = torch.randn(rows, features)
    x[rows // 3] *= 1e30 if dtype != torch.float16 else 1.0
    parts = [slice(begin, begin + 50) for begin in (0, rows // 3 - 20, rows - 50)]
    return x.to(dtype), [torch.randn(rows, features).to(dtype) for _ in range(3)], parts


past_caches = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
rows_on_lines = pytest.mark.parametrize("features", [1024, 1023, 257, 96])  # rows on cache lines, and not; short ones


@past_caches
@rows_on_lines
def test_a_sum_past_the_caches(dtype, features):
    x, (residual, *cotangents), parts = past_the_caches(dtype, features)
    weight = torch.randn(features).to(dtype)

    def passes(part):
        leaf = x[part].clone().requires_grad_()
        found = F.add_rms_norm(leaf, residual[part], (features,), weight, backend="cpu")
        return (*found, *torch.autograd.grad(found, leaf, [dy[part] for dy in cotangents]))

    whole = passes(slice(None))
    assert torch.equal(whole[1], x + residual)
    for part in parts:
        assert all(torch.equal(mine[part], few) for mine, few in zip(whole, passes(part), strict=True))


@past_caches
@rows_on_lines
def test_gradients_from_the_output_past_the_caches(dtype, features):
    x, (cotangent, *_), parts = past_the_caches(dtype, features)
    weight = 1 + torch.rand(features).to(dtype)

    def gradient(part):
        leaf = x[part].clone().requires_grad_()
        y = F.layer_norm(leaf, (features,), weight, backend="cpu", memory_efficient=True)
        return torch.autograd.grad(y, leaf, cotangent[part])[0]

    whole = gradient(slice(None))
    assert all(torch.equal(whole[part], gradient(part)) for part in parts)


ONES = torch.ones(4)
REFUSED = {
    "other sizes": ((torch.ones(3, 5), (4,), ONES), {}),
    "no sizes": ((torch.ones(3, 4), (), None), {}),
    "too many sizes": ((ONES, (1, 4), None), {}),
    "a weight of another shape": ((torch.ones(3, 2, 4), (2, 4), torch.ones(8)), {}),
    "a number": ((torch.tensor(1.0), (1,), None), {}),
    "a number and no sizes": ((torch.tensor(1.0), (), None), {}),
    "a weight without memory": ((torch.ones(3, 4), (4,), torch.ones(4, device="meta")), {}),
    "integers": ((torch.ones(3, 4, dtype=torch.int32), (4,), ONES), {}),
    "an integer weight": ((torch.ones(3, 4), (4,), torch.ones(4, dtype=torch.int32)), {}),
    "an unknown eps_mode": ((torch.ones(3, 4), (4,), ONES), {"eps_mode": "above"}),
    "a list for eps_mode": ((torch.ones(3, 4), (4,), ONES), {"eps_mode": []}),
    "an unknown cast": ((torch.ones(3, 4), (4,), ONES), {"cast": "never"}),
    "an unknown backend": ((torch.ones(3, 4), (4,), ONES), {"backend": "tpu"}),
}


@every_norm
@pytest.mark.parametrize("case", REFUSED)
def test_a_call_without_gradients_refuses_the_same(norm, case):
    arguments, options = REFUSED[case]
    errors = []
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), pytest.raises((ValueError, RuntimeError, TypeError)) as caught:
            getattr(F, norm)(*arguments, **options)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


@every_norm
def test_a_call_without_gradients_gives_the_same_bits(norm):
    x, weight = torch.randn(3, 5, 33), torch.randn(5, 33)
    with_gradients = getattr(F, norm)(x.clone().requires_grad_(), (5, 33), weight)
    with torch.no_grad():
        for shape in ((5, 33), [5, 33], torch.Size([5, 33])):
            assert torch.equal(getattr(F, norm)(x, shape, weight), with_gradients)
