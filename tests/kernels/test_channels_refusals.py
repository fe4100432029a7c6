"""What the operators refuse when called directly, rather than read memory that is not theirs."""

import pytest
import torch

operators = torch.ops.evenkeel
CHANNELS = {"batch": (4, 6, 5, 7), "last": (4, 6, 5, 7), "columns": (40, 6, 1), "groups": (4, 6, 3)}
every_walk = pytest.mark.parametrize("walk", CHANNELS)
ROWS = (0, 1, 2)  # rms, moments, l2
every_statistic = pytest.mark.parametrize("statistic", ROWS)

SPOILT = {
    "fewer": lambda s: s[:1].clone(),
    "none": lambda s: s[:0],
    "flat": lambda s: s.flatten()[:-1],
    "float64": torch.Tensor.double,
    "narrower": lambda s: s[:, :-1].clone(),
}
every_spoilt = pytest.mark.parametrize("spoilt", SPOILT)


def channels_input(walk):
    x = torch.randn(CHANNELS[walk])
    return x.contiguous(memory_format=torch.channels_last) if walk == "last" else x


def channels_options(walk, eps_mode=0):
    return (3 if walk == "groups" else 0, 1e-5, eps_mode, 0.0, 0)


def channels_backward(dy, x, statistics, options, remembered=False):
    arguments = (dy, x, None, None, statistics, None, remembered, *options)
    return operators.channels_backward(*arguments, True, False, False)[0]


@every_walk
@every_spoilt
def test_channels_refuse_other_statistics(walk, spoilt):
    x, options = channels_input(walk), channels_options(walk)
    _, statistics, _ = operators.channels_forward(x, None, None, None, None, None, *options)
    dy = torch.randn(x.shape)
    assert channels_backward(dy, x, statistics, options).isfinite().all()
    with pytest.raises(RuntimeError, match="statistics must be those that channels_forward returned"):
        channels_backward(dy, x, SPOILT[spoilt](statistics), options)


@every_walk
def test_channels_refuse_statistics_of_other_options(walk):
    x = channels_input(walk)
    _, inside, _ = operators.channels_forward(x, None, None, None, None, None, *channels_options(walk))
    with pytest.raises(RuntimeError, match="statistics must be"):
        channels_backward(torch.randn(x.shape), x, inside, channels_options(walk, eps_mode=1))


def test_channels_refuse_groups_statistics_for_given_ones():
    x = torch.randn(4, 6, 5, 7)
    _, statistics, _ = operators.channels_forward(x, None, None, None, None, None, 3, 1e-5, 0, 0.0, 0)
    with pytest.raises(RuntimeError, match="statistics must be"):
        channels_backward(torch.randn(x.shape), x, statistics, (0, 1e-5, 0, 0.0, 0), remembered=True)


@every_walk
def test_channels_refuse_another_shape_of_dy(walk):
    x, options = channels_input(walk), channels_options(walk)
    _, statistics, _ = operators.channels_forward(x, None, None, None, None, None, *options)
    for dy in (torch.randn(x.shape).transpose(0, 1), torch.randn(x.numel()), torch.randn(x.shape)[:1]):
        with pytest.raises(RuntimeError, match="dy must have x's dtype and shape"):
            channels_backward(dy, x, statistics, options)


@every_walk
@pytest.mark.parametrize("eps_mode", [-1, 3, 9])
def test_channels_refuse_unknown_eps_modes(walk, eps_mode):
    x = channels_input(walk)
    options = channels_options(walk, eps_mode)
    with pytest.raises(RuntimeError, match="eps_mode must be 0"):
        operators.channels_forward(x, None, None, None, None, None, *options)
    with pytest.raises(RuntimeError, match="eps_mode must be 0"):
        channels_backward(x, x, torch.zeros(6, 5), options)


def rows_forward(x, residual=None, statistic=1, eps_mode=0, early=False):
    return operators.rows_forward(x, residual, None, None, 1, statistic, 1e-5, eps_mode, 0.0, early, False, False)


def rows_backward(dy, x, statistics, statistic=1, dsum=None, residual=None):
    options = (1, statistic, 1e-5, 0, 0.0, False, False)
    return operators.rows_backward(
        dy, dsum, x, residual, None, None, statistics, *options, True, False, False, False, False
    )


@every_statistic
@every_spoilt
def test_rows_refuse_other_statistics(spoilt, statistic):
    x = torch.randn(5, 33)
    _, _, statistics = rows_forward(x, statistic=statistic)
    assert rows_backward(torch.randn(x.shape), x, statistics, statistic)[0].isfinite().all()
    with pytest.raises(RuntimeError, match="statistics must be those that the forward returned"):
        rows_backward(torch.randn(x.shape), x, SPOILT[spoilt](statistics), statistic)


def test_rows_refuse_other_shapes():
    x = torch.randn(5, 33)
    _, _, statistics = rows_forward(x)
    for dy in (torch.randn(33, 5), torch.randn(165), torch.randn(4, 33)):
        with pytest.raises(RuntimeError, match="dy must have x's shape"):
            rows_backward(dy, x, statistics)


@pytest.mark.parametrize("name", ["dsum", "residual"])
def test_added_rows_refuse_other_shapes(name):
    x = torch.randn(5, 33)
    _, _, statistics = rows_forward(x)
    for other in (torch.randn(33, 5), torch.randn(1, 33)):
        with pytest.raises(RuntimeError, match=f"{name} must have x's shape"):
            rows_backward(x, x, statistics, **{name: other})


@pytest.mark.parametrize(
    "residual", [torch.ones(33, 5), torch.ones(1, 33), torch.ones(5, 33).double()], ids=["turned", "one row", "float64"]
)
def test_rows_refuse_residuals_that_do_not_fit(residual):
    with pytest.raises(RuntimeError, match="x and residual must have one shape"):
        rows_forward(torch.randn(5, 33), residual)


def test_rows_refuse_to_round_a_sum_early():
    x = torch.randn(5, 33).bfloat16()
    with pytest.raises(RuntimeError, match="not rounded early"):
        rows_forward(x, x, statistic=0, early=True)


@pytest.mark.parametrize("mode", [-1, 3, 9, 2**32])
def test_rows_refuse_unknown_options(mode):
    x = torch.randn(5, 33)
    with pytest.raises(RuntimeError, match="eps_mode must be 0"):
        rows_forward(x, eps_mode=mode)
    with pytest.raises(RuntimeError, match="statistic must be 0"):
        operators.rows_inference(x, None, None, 1, mode, 1e-5, 0, 0.0, False, False)
