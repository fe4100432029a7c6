"""The worked examples that the texts print, with the right numbers."""

import math

import pytest
import torch

from evenkeel import functional as F
from evenkeel import nn

BACKENDS = pytest.mark.parametrize("backend", ["reference", "cpu"])
VECTOR = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
TABLE = torch.tensor([[1.0, 4, 7], [2, 5, 8], [3, 6, 9], [4, 7, 10], [5, 8, 11]], dtype=torch.float64)
BATCH = torch.tensor([[3.0, 1], [4, 2], [5, 3]], dtype=torch.float64)


def to_six_places(tensor):
    return [round(v, 6) + 0.0 for v in tensor.flatten().tolist()]


@BACKENDS
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [-1.341635, -0.447212, 0.447212, 1.341635]),
        ({"eps_mode": "outside"}, [-1.341629, -0.447210, 0.447210, 1.341629]),
        ({"eps": 0.0}, [-1.341641, -0.447214, 0.447214, 1.341641]),
    ],
)
def test_layer_norm_of_1_2_3_4(backend, options, expected):
    assert to_six_places(F.layer_norm(VECTOR, (4,), backend=backend, **options)) == expected


def test_moments_of_1_2_3_4():
    assert VECTOR.mean() == 2.5
    assert VECTOR.var(correction=0) == 1.25
    assert round(VECTOR.std(correction=0).item(), 6) == 1.118034


def test_column_table():
    y = F.batch_norm(TABLE, None, None, training=True, eps=1e-300)
    for column in range(3):
        assert to_six_places(y[:, column]) == [-1.414214, -0.707107, 0.0, 0.707107, 1.414214]
    running = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    F.batch_norm(TABLE, *running, training=True, momentum=1.0)
    assert to_six_places(running[0]) == [3.0, 6.0, 9.0]
    assert to_six_places(running[1].sqrt()) == [1.581139] * 3  # the sample deviation
    assert to_six_places((running[1] * 4 / 5).sqrt()) == [1.414214] * 3  # the population deviation


def test_batch_norm_example():
    weight, bias = torch.tensor([2.0, 0.5]).double(), torch.tensor([1.0, 0.0]).double()
    plain = F.batch_norm(BATCH, None, None, training=True)
    assert to_six_places(plain[:, 0]) == [-1.224736, 0.0, 1.224736]
    y = F.batch_norm(BATCH, None, None, weight, bias, training=True)
    assert to_six_places(y) == [-1.449471, -0.612368, 1.0, 0.0, 3.449471, 0.612368]


def test_gamma_sigma_and_beta_mu_undo_it_and_gamma_zero_leaves_beta():
    deviation = torch.full((2,), math.sqrt(2 / 3 + 1e-5), dtype=torch.float64)
    assert to_six_places(deviation) == [0.816503] * 2
    mean = torch.tensor([4.0, 2.0]).double()
    assert torch.allclose(F.batch_norm(BATCH, None, None, deviation, mean, training=True), BATCH, atol=1e-12)
    silent = F.batch_norm(BATCH, None, None, torch.zeros(2).double(), mean, training=True)
    assert torch.equal(silent, mean.expand(3, 2))


def test_image_constants():
    pixel = torch.tensor([120, 100, 90], dtype=torch.float64)
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
    std = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)
    image = (pixel / 255).reshape(1, 3, 1, 1)
    y = F.batch_norm(image, mean, std.square(), eps=0.0)
    assert to_six_places(y) == [-0.062933, -0.285014, -0.235817]


def test_padding_pollutes_batch_statistics_and_a_mask_does_not():
    batch = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, 0], [1, 2, 0, 0]]).double()
    mask = torch.arange(4) < torch.tensor([[4], [3], [2]])
    step, valid = batch[:, 2:3], mask[:, 2]  # the third time step: 3, 3 and padding
    polluted = F.batch_norm(step, None, None, training=True)
    assert [round(v, 4) for v in polluted.flatten().tolist()] == [0.7071, 0.7071, -1.4142]
    assert F.batch_norm(step, None, None, training=True, mask=valid).abs().max() == 0


@pytest.mark.parametrize(
    ("eps", "expected"),
    [(1e-5, [0.2289, -0.5618, 1.1860, -0.5202]), (0.0, [0.2294, -0.5630, 1.1885, -0.5213])],
)
def test_elements_of_a_512_wide_vector(eps, expected):
    # the statistics are given, so they enter as remembered ones
    x = torch.tensor([[0.146, 0.108, 0.192, 0.110]], dtype=torch.float64)
    mean, variance = (torch.full((4,), v, dtype=torch.float64) for v in (0.135, 0.0023))
    assert [round(v, 4) for v in F.batch_norm(x, mean, variance, eps=eps).flatten().tolist()] == expected


@BACKENDS
def test_rms_norm_eps_inside_and_outside_differ(backend):
    x = torch.full((8,), 1e-4)
    inside = F.rms_norm(x, (8,), eps=1e-6, backend=backend)
    outside = F.rms_norm(x, (8,), eps=1e-6, eps_mode="outside", backend=backend)
    assert [round(inside[0].item(), 4), round(outside[0].item(), 3)] == [0.0995, 0.990]


@BACKENDS
@pytest.mark.parametrize("features", [2, 4, 64, 1000])
def test_layer_norm_is_bounded_by_the_root_of_the_degrees_of_freedom(backend, features):
    spike = torch.zeros(1, features, dtype=torch.float64)
    spike[0, 0] = 1e6  # the row that reaches the bound
    bound = math.sqrt(features - 1)
    largest = F.layer_norm(spike, (features,), backend=backend).abs().max().item()
    assert largest <= bound * (1 + 1e-12)
    assert math.isclose(largest, bound, rel_tol=1e-6)
    assert F.layer_norm(torch.randn(50, features).double(), (features,), backend=backend).abs().max() <= bound


def test_only_the_affine_is_the_identity_at_start():
    norm = nn.LayerNorm(16)
    x = 3 + 2 * torch.randn(4, 16)
    assert torch.equal(norm(x), F.layer_norm(x, (16,)))
    assert not torch.allclose(norm(x), x, atol=0.1)


def test_the_shape_of_a_row_stays():
    x = torch.randn(1, 64, dtype=torch.float64).exp()  # skewed
    y = F.layer_norm(x, (64,))

    def skewness(v):
        centred = v - v.mean()
        return (centred.pow(3).mean() / centred.square().mean().pow(1.5)).item()

    assert math.isclose(skewness(x), skewness(y), rel_tol=1e-12)
    assert abs(skewness(y)) > 0.5
