"""Modules with running statistics under modes and with subclasses: the values, states and errors of none."""

import pytest
import torch
from settings import SETTINGS

from evenkeel import nn

every_setting = pytest.mark.parametrize("setting", SETTINGS)
NORMS = {
    "BatchNorm1d": (lambda **options: nn.BatchNorm1d(3, **options), (4, 3, 5)),
    "BatchNorm2d": (lambda **options: nn.BatchNorm2d(3, **options), (4, 3, 5, 2)),
    "LazyBatchNorm1d": (lambda **options: nn.LazyBatchNorm1d(**options), (4, 3, 5)),
    "SyncBatchNorm": (lambda **options: nn.SyncBatchNorm(3, **options), (4, 3, 5)),
    "InstanceNorm1d": (lambda **options: nn.InstanceNorm1d(3, track_running_stats=True, **options), (4, 3, 5)),
    "InstanceNorm1d unbatched": (lambda **options: nn.InstanceNorm1d(3, track_running_stats=True, **options), (3, 5)),
    "InstanceNorm2d unbatched": (lambda **options: nn.InstanceNorm2d(3, affine=True, **options), (3, 5, 2)),
}


@every_setting
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("name", NORMS)
def test_values_and_states_are_those_of_no_mode(setting, name, momentum):
    mode, convert = SETTINGS[setting]
    make, shape = NORMS[name]
    plain, watched = make(momentum=momentum), make(momentum=momentum)
    batches = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    for x in batches:
        expected = plain(x)
        with mode():
            y = watched(convert(x))
        assert torch.equal(y.as_subclass(torch.Tensor), expected)
    assert plain.state_dict().keys() == watched.state_dict().keys()
    for key, value in plain.state_dict().items():
        assert torch.equal(watched.state_dict()[key].as_subclass(torch.Tensor), value), key
    if "Batch" in name:
        assert int(watched.num_batches_tracked) == len(batches)
    with mode():
        assert torch.equal(watched.eval()(convert(batches[0])).as_subclass(torch.Tensor), plain.eval()(batches[0]))


@every_setting
@pytest.mark.parametrize("name", [name for name in NORMS if "Lazy" not in name])
def test_wrong_dimensions_are_refused_as_under_no_mode(setting, name):
    mode, convert = SETTINGS[setting]
    norm, x = NORMS[name][0](), torch.randn(2)
    with pytest.raises(ValueError, match=r"expected \d?.*D") as expected:
        norm(x)
    with mode(), pytest.raises(ValueError, match=r"expected \d?.*D") as raised:
        NORMS[name][0]()(convert(x))
    assert str(raised.value) == str(expected.value)


@every_setting
def test_averaged_weights_update_their_running_statistics(setting):
    mode, convert = SETTINGS[setting]
    model = torch.nn.Sequential(nn.BatchNorm1d(3))
    batches = [torch.randn(8, 3) for _ in range(4)]
    with mode():
        torch.optim.swa_utils.update_bn([convert(x) for x in batches], model)
    expected = torch.stack([x.mean(0) for x in batches]).mean(0)
    torch.testing.assert_close(model[0].running_mean.as_subclass(torch.Tensor), expected)
