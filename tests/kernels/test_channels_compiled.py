"""Channel norms in compiled models whose convolutions Inductor lays out by itself."""

import re

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import evenkeel as ek

STRIDES = re.compile(r"assert_size_stride\(\w+, \([\d, ]+\), \(\d+, (\d+), .*evenkeel\.channels_forward\.default")


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm", [ek.nn.BatchNorm2d(16), ek.nn.GroupNorm(4, 16)], ids=["batch", "group"])
@torch._inductor.config.patch(fx_graph_cache=False)  # whose keys know no layouts
def test_a_compiled_norm_keeps_the_layout_of_the_convolution_before_it(norm, training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), norm, nn.ReLU(), nn.Conv2d(16, 8, 3)).train(training)
    x = torch.randn(2, 3, 20, 20)
    y, code = run_and_get_code(torch.compile(model), x)
    strides = [stride for part in code for stride in STRIDES.findall(part)]
    assert strides
    assert set(strides) == {"1"}  # the channels are innermost
    torch.testing.assert_close(y, model(x))
    gradients, expected = (
        torch.autograd.grad(call(x).square().sum(), list(model.parameters())) for call in (torch.compile(model), model)
    )
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
