"""mask=: a padded batch gives what the unpadded sequences give."""

import pytest
import torch

from evenkeel import EvenkeelError, nn
from evenkeel import functional as F

LENGTHS = (7, 3, 5, 2)
TIME, CHANNELS = 7, 6


@pytest.fixture(params=[0.0, float("nan"), float("inf")], ids=str)
def padded(request):
    """(batch, channels, time) in float64, its mask (batch, time), and the unpadded (channels, time) sequences."""
    x = torch.randn(len(LENGTHS), CHANNELS, TIME, dtype=torch.float64)
    mask = torch.arange(TIME) < torch.tensor(LENGTHS)[:, None]
    x = torch.where(mask[:, None], x, request.param)
    return x, mask, [x[i, :, :n] for i, n in enumerate(LENGTHS)]


def pad(sequences):
    out = torch.zeros(len(LENGTHS), CHANNELS, TIME, dtype=torch.float64)
    for i, sequence in enumerate(sequences):
        out[i, :, : sequence.shape[-1]] = sequence
    return out


def affine():
    return torch.randn(CHANNELS, dtype=torch.float64), torch.randn(CHANNELS, dtype=torch.float64)


def gradients(y, leaves):
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return torch.autograd.grad(y, leaves, cotangent)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_batch_norm_equals_the_concatenated_sequences(padded, training):
    x, mask, sequences = padded
    weight, bias = affine()
    mine = [torch.zeros(CHANNELS).double(), torch.ones(CHANNELS).double()]
    theirs = [t.clone() for t in mine]
    y = F.batch_norm(x, *mine, weight, bias, training=training, mask=mask)
    joined = torch.cat(sequences, 1).T.contiguous()  # (positions, channels)
    expected = torch.nn.functional.batch_norm(joined, *theirs, weight, bias, training=training).T
    torch.testing.assert_close(y, pad(expected.split(LENGTHS, 1)))
    torch.testing.assert_close(mine, theirs)


def test_instance_norm_equals_each_sequence_alone(padded):
    x, mask, sequences = padded
    weight, bias = affine()
    running = [torch.zeros(CHANNELS).double(), torch.ones(CHANNELS).double()]
    y = F.instance_norm(x, *running, weight, bias, mask=mask, momentum=1.0)
    alone = [torch.nn.functional.instance_norm(s[None], weight=weight, bias=bias)[0] for s in sequences]
    torch.testing.assert_close(y, pad(alone))
    torch.testing.assert_close(running[0], torch.stack([s.mean(1) for s in sequences]).mean(0))
    torch.testing.assert_close(running[1], torch.stack([s.var(1) for s in sequences]).mean(0))


def test_group_norm_equals_each_sequence_alone(padded):
    x, mask, sequences = padded
    weight, bias = affine()
    y = F.group_norm(x, 3, weight, bias, mask=mask)
    torch.testing.assert_close(y, pad([torch.nn.functional.group_norm(s[None], 3, weight, bias)[0] for s in sequences]))


@pytest.mark.parametrize("norm", ["batch", "batch inference", "instance", "group"])
def test_gradients_are_zero_in_the_padding_and_finite(padded, norm):
    x, mask, _ = padded
    x.requires_grad_()
    weight, bias = (p.requires_grad_() for p in affine())
    if norm.startswith("batch"):
        statistics = torch.zeros(CHANNELS).double(), torch.ones(CHANNELS).double()
        y = F.batch_norm(x, *statistics, weight, bias, training=norm == "batch", mask=mask)
    elif norm == "instance":
        y = F.instance_norm(x, weight=weight, bias=bias, mask=mask)
    else:
        y = F.group_norm(x, 2, weight, bias, mask=mask)
    dx, dweight, dbias = gradients(y, [x, weight, bias])
    assert (dx.transpose(1, 2)[~mask] == 0).all()
    assert dx.isfinite().all()
    assert dweight.isfinite().all()
    assert dbias.isfinite().all()


def test_batch_norm_gradients_equal_the_concatenated_sequences():
    x = torch.randn(len(LENGTHS), CHANNELS, TIME, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(TIME) < torch.tensor(LENGTHS)[:, None]
    cotangent = torch.randn(x.shape, dtype=torch.float64)
    (dx,) = torch.autograd.grad(F.batch_norm(x, None, None, training=True, mask=mask), x, cotangent)
    joined = x.transpose(1, 2)[mask].detach().requires_grad_()
    y = torch.nn.functional.batch_norm(joined, None, None, training=True)
    (expected,) = torch.autograd.grad(y, joined, cotangent.transpose(1, 2)[mask])
    torch.testing.assert_close(dx.transpose(1, 2)[mask], expected)


def test_layer_norm_never_looks_at_the_padding(padded):
    x, _, sequences = padded
    y = F.layer_norm(x.transpose(1, 2), (CHANNELS,)).transpose(1, 2)
    for i, sequence in enumerate(sequences):
        alone = F.layer_norm(sequence.T.contiguous(), (CHANNELS,)).T
        assert torch.equal(y[i, :, : LENGTHS[i]], alone)


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 5, 3)], ids=str)
def test_mask_shapes(shape):
    x = torch.randn(4, CHANNELS, 5, 3, dtype=torch.float64)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.7
    full = mask.reshape(*shape, *[1] * (3 - len(shape))).expand(4, 5, 3)
    y = F.batch_norm(x, None, None, training=True, mask=mask)
    valid = x.permute(0, 2, 3, 1)[full]
    expected = torch.nn.functional.batch_norm(valid, None, None, training=True)
    torch.testing.assert_close(y.permute(0, 2, 3, 1)[full], expected)
    assert (y.permute(0, 2, 3, 1)[~full] == 0).all()


def test_a_vector_batch_takes_a_mask_per_example():
    x = torch.randn(5, CHANNELS, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False])
    y = nn.BatchNorm1d(CHANNELS, dtype=torch.float64)(x, mask)
    torch.testing.assert_close(y[mask], torch.nn.functional.batch_norm(x[mask], None, None, training=True))


def test_nothing_valid_leaves_the_running_statistics():
    norm = nn.BatchNorm1d(CHANNELS)
    before = {k: v.clone() for k, v in norm.state_dict().items() if k.startswith("running")}
    y = norm(torch.randn(2, CHANNELS, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert (y == 0).all()
    for key, value in before.items():
        assert torch.equal(norm.state_dict()[key], value)


@pytest.mark.parametrize("norm", ["instance", "group"])
def test_a_wholly_padded_sample_leaves_gradients_finite_without_eps(norm):
    x, mask = torch.randn(2, CHANNELS, 5, dtype=torch.float64, requires_grad=True), torch.tensor([True, False])
    weight, bias = (p.requires_grad_() for p in affine())
    if norm == "instance":
        y = F.instance_norm(x, weight=weight, bias=bias, eps=0.0, mask=mask)
    else:
        y = F.group_norm(x, 1, weight, bias, 0.0, mask=mask)
    assert all(g.isfinite().all() for g in gradients(y, [x, weight, bias]))


def test_a_wholly_padded_batch_does_not_count_in_the_plain_average():
    norm, x = nn.BatchNorm1d(CHANNELS, momentum=None), 10 + torch.randn(4, CHANNELS, 5)
    norm(x, torch.zeros(4, 5, dtype=torch.bool))
    norm(x)
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, x.mean((0, 2)))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(4, 6, dtype=torch.bool), r"mask must have the input's shape without its channel axis, \(4, 5\)"),
        (torch.ones(4, 6, 5, dtype=torch.bool), r"but got \(4, 6, 5\)"),
        (torch.ones(4, 5), r"mask must be boolean \(True where valid\), but got torch.float32"),
        (torch.tensor(True), r"but got \(\)"),
    ],
)
def test_wrong_masks(mask, message):
    x = torch.randn(4, 6, 5)
    for call in (
        lambda: F.batch_norm(x, None, None, training=True, mask=mask),
        lambda: F.instance_norm(x, mask=mask),
        lambda: F.group_norm(x, 3, mask=mask),
    ):
        with pytest.raises(EvenkeelError, match=message):
            call()
