"""What went wrong in other libraries that patch norms, case by case, beside the tests of plans."""

import functools

import pytest
import torch
from norm_models import ChannelsFirst, Gemma, Llama, shaken
from torch import nn

import evenkeel as ek
from evenkeel.convert import plan, swap


class PostNorm(nn.Module):
    """A block whose norms' results are added to the stream, as in OLMo 2, GLM 4 and EXAONE 4."""

    def __init__(self, kind, size=24):
        super().__init__()
        self.mix, self.feed = nn.Linear(size, size), nn.Linear(size, size)
        self.norm1, self.norm2 = kind(size), kind(size)

    def forward(self, x):
        x = x + self.norm1(self.mix(x))
        return x + self.norm2(self.feed(x).tanh())


@pytest.mark.parametrize("kind", [Llama, Gemma, nn.LayerNorm, nn.RMSNorm])
def test_backward_leaves_the_gradient_of_the_residual_alone(kind):
    model = shaken(nn.Sequential(PostNorm(kind), PostNorm(kind)))
    x, cotangent = torch.randn(5, 24), torch.randn(5, 24)

    def gradients():
        leaf, given = x.clone().requires_grad_(), cotangent.clone()
        found = torch.autograd.grad(model(leaf), [leaf, *model.parameters()], given)
        assert torch.equal(given, cotangent)
        return found

    wanted = gradients()
    assert swap(model, verify=x, quiet=True).swapped == 4
    for mine, right in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)  # sums in another order


def test_classes_that_partial_makes_are_instances_still():
    kinds = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm2d, ChannelsFirst)
    made = [functools.partial(kind, eps=1e-6)(8) for kind in kinds] + [functools.partial(nn.GroupNorm, 2)(8)]
    model = nn.ModuleList(made)
    assert swap(model, quiet=True).swapped == 5
    for norm, kind in zip(model, (*kinds, nn.GroupNorm), strict=True):
        assert isinstance(norm, kind)
        assert type(norm).__name__ == kind.__name__
    # what the library makes of its own class does not change what torch's is
    assert not isinstance(nn.LayerNorm(8), ek.nn.LayerNorm)


@pytest.mark.parametrize("kind", [Llama, Gemma, nn.LayerNorm, nn.RMSNorm, ChannelsFirst, nn.BatchNorm2d])
def test_every_weight_of_a_norm_learns_after_the_swap(kind):
    images = kind in (ChannelsFirst, nn.BatchNorm2d)
    model = shaken(nn.Sequential(nn.Conv2d(3, 8, 1) if images else nn.Linear(3, 8), kind(8), nn.Tanh()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swap(model, quiet=True)
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(4, 3, 5, 5) if images else torch.randn(4, 3)
    (model(x) * torch.randn(())).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model[1].parameters())
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before[2:], list(model.parameters())[2:], strict=True))


@pytest.mark.parametrize("kind", [Llama, Gemma, nn.LayerNorm])
def test_last_partial_blocks_of_rows_and_columns(kind):
    generator = torch.Generator().manual_seed(3)
    for size in (3, 7, 8, 15, 17, 31, 33, 64, 65, 257, 1025):
        norm = shaken(kind(size))
        inputs = [torch.randn(shape, generator=generator) for shape in ((1, size), (3, size), (2, 3, size), (33, size))]
        wanted = [norm(x) for x in inputs]
        assert plan(norm).apply().swapped == 1
        for x, right in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(norm(x), right, rtol=2e-5, atol=2e-5)
