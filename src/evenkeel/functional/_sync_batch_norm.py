"""BatchNorm whose statistics come from every process of a group: counts, means and squares are merged exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.overrides import has_torch_function_variadic

from evenkeel._errors import InvalidArgumentError
from evenkeel.functional._channel_checks import (
    check_channels,
    check_pair,
    check_values_per_channel,
    check_vectors,
    expand_mask,
)
from evenkeel.functional._channels import (
    affine_per_channel,
    batch_and_positions,
    in_format_of,
    per_channel,
    update_running,
)
from evenkeel.functional._common import (
    compute_dtype,
    effective_weight,
    overridden,
    reciprocal_scale,
    reference_gradients,
)
from evenkeel.functional._specs import channel_spec
from evenkeel.kernels import composite_required, runs_kernel

if TYPE_CHECKING:
    from torch import Tensor

    from evenkeel._spec import Cast, ChannelNormOptions, EpsMode, NormSpec


class Gather(torch.autograd.Function):
    """Stack the tensors of all processes by rank; every process gets the same bits, and so the same results."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, local.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # what the loss of each process says about this process's part
        about_mine = Gather.apply(gradients[0], ctx.group)[:, distributed.get_rank(ctx.group)]
        return about_mine.sum(0), None


def valid_only(x: Tensor, valid: Tensor | None) -> Tensor:
    """Set what is not valid to 0; no product does, since inf or NaN may lie there."""
    return x if valid is None else torch.where(valid, x, 0.0)


def local_moments(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """How many values each channel has here, (1,); their means and sums of squared differences, (channels,) float64."""
    dims = batch_and_positions(x)
    count = valid.sum() if valid is not None else x.new_tensor(math.prod(x.shape[d] for d in dims), dtype=torch.float64)
    count = count.double().reshape(1)

    # sums and squares of floats may leave the range of floats
    def mean(values: Tensor) -> Tensor:
        total = valid_only(values, valid).sum(dims, keepdim=True, dtype=torch.float64)
        return (total / count.clamp_min(1.0)).to(x.dtype)

    rough = mean(x)
    centred = x - rough
    correction = mean(centred)
    squares = valid_only(centred - correction, valid).double().square().sum(dims)
    return count, (rough.double() + correction.double()).flatten(), squares


def merged_moments(x: Tensor, valid: Tensor | None, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mean and biased variance, (channels,), and count over all processes, in float64.

    .. math:: M = \sum_r M_r + n_r (\mu_r - \mu)^2, \quad \mu = \sum_r n_r \mu_r / \sum_r n_r
    """
    gathered = Gather.apply(torch.cat(local_moments(x, valid)), group)  # (processes, 1 + 2 channels)
    counts, means, squares = gathered.split([1, x.shape[1], x.shape[1]], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total.clamp_min(1.0)
    variance = (squares + counts * (means - mean).square()).sum(0) / total.clamp_min(1.0)
    # with eps = 0, 0/0 would reach dweight
    return mean, torch.where(total > 0, variance, 1.0), total


def standardized(x: Tensor, valid: Tensor | None, mean: Tensor, reciprocal: Tensor) -> Tensor:
    """(x - mean) times reciprocal, the mean in two parts: its rounding may be as large as the spread."""
    rounded = mean.to(x.dtype)
    rest = (mean - rounded).to(x.dtype)
    centred = (x - per_channel(rounded, x.ndim)) - per_channel(rest, x.ndim)
    return valid_only(centred, valid) * per_channel(reciprocal.to(x.dtype), x.ndim)


def normalized_together(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, valid: Tensor | None, group: Any, spec: NormSpec
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The whole computation, differentiable any number of times: y, mean, variance and count."""
    wide = x.to(compute_dtype(x))
    mean, variance, total = merged_moments(wide, valid, group)
    x_hat = standardized(wide, valid, mean, reciprocal_scale(variance, spec.epsilon(x.dtype), spec.eps_mode))
    y = affine_per_channel(x_hat, weight, bias, spec, x.dtype, valid)
    return in_format_of(y, x), mean, variance, total


class SyncBatchNormFunction(torch.autograd.Function):
    """Saves the input and three numbers a channel; a backward that must be differentiable runs everything again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        valid: Tensor | None,
        group: Any,
        spec: NormSpec,
    ) -> tuple[Tensor, ...]:
        y, mean, variance, total = normalized_together(x, weight, bias, valid, group, spec)
        ctx.mark_non_differentiable(mean, variance, total)
        ctx.save_for_backward(x, weight, bias, valid, mean, variance, total)
        ctx.group, ctx.spec = group, spec
        return y, mean, variance, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, valid, *_ = ctx.saved_tensors
        needed: tuple[bool, bool, bool] = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or composite_required():

            def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
                return normalized_together(x, weight, bias, valid, ctx.group, ctx.spec)[0]

            results = reference_gradients(reference, (x, weight, bias), needed, gradients[0])
        else:
            first = first_derivative(gradients[0], ctx.saved_tensors, ctx.group, ctx.spec, needed[0])
            results = [gradient if need else None for gradient, need in zip(first, needed, strict=True)]
        return (*results, None, None, None)


def first_derivative(
    dy: Tensor, saved: tuple[Any, ...], group: Any, spec: NormSpec, need_dx: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, which depends on every process, and this process's part of dweight and dbias."""
    x, weight, bias, valid, mean, variance, total = saved
    wide = x.to(compute_dtype(x))
    dims = batch_and_positions(x)
    eps = spec.epsilon(x.dtype)
    reciprocal = reciprocal_scale(variance, eps, spec.eps_mode)
    x_hat = standardized(wide, valid, mean, reciprocal)
    upstream = valid_only(dy.to(wide.dtype), valid)
    sums = torch.stack([t.sum(dims, dtype=torch.float64) for t in (upstream, upstream * x_hat)])  # (2, channels)
    dbias = None if bias is None else sums[0].to(bias.dtype)
    dweight = None if weight is None else sums[1].to(weight.dtype)
    if not need_dx:
        return None, dweight, dbias
    scale = torch.ones_like(mean) if weight is None else effective_weight(weight.double(), spec)
    along, across = (Gather.apply(sums * scale, group).sum(0) / total.clamp_min(1.0)).to(wide.dtype)
    slope = x_hat * per_channel(across * bend(variance, eps, spec.eps_mode).to(wide.dtype), x.ndim)
    dx = upstream * per_channel(scale.to(wide.dtype), x.ndim) - per_channel(along, x.ndim) - slope
    dx = valid_only(dx, valid) * per_channel(reciprocal.to(wide.dtype), x.ndim)
    return in_format_of(dx.to(x.dtype), x), dweight, dbias


def bend(variance: Tensor, eps: float, eps_mode: str) -> Tensor:
    """How much steeper than the root of the variance the scale is: 1 with eps inside, 0 where it is clamped."""
    root = variance.sqrt()
    if eps_mode == "outside":
        return torch.where(root > 0, (root + eps) / root, 0.0)
    return (root >= eps).to(root.dtype) if eps_mode == "clamp" else torch.ones_like(root)


def sync_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    group: Any = None,
    mask: Tensor | None = None,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    backend: str = "auto",
) -> Tensor:
    r"""`batch_norm` in training with the statistics of all processes of a group, every one of which has to call.

    .. math:: y = \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    Counts, means and sums of squared differences are merged in float64 in the order of the ranks, so that every
    process gets the same bits, however many values it holds itself.

    Args:
        input: (batch, channels, \*positions), this process's part, any floating dtype.
        running_mean: (channels,) or None, updated in place.
        running_var: (channels,) or None, updated in place.
        weight: γ, (channels,).
        bias: β, (channels,).
        momentum: the share of the new statistic in the running one.
        eps: ε, positive, added to the variance (or as ``eps_mode`` says).
        group: the processes whose batches belong together; None for all of them.
        mask: boolean, True where valid; (batch,), (batch, time), or the input's shape without its channel axis.
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 at least.
        cast: ``late`` rounds once at the end; ``early`` rounds the normalized value first.
        backend: ``auto`` or ``reference``: synchronized statistics are plain PyTorch.

    Returns:
        A tensor of the input's shape and dtype (``early``: the promoted dtype).

    Raises:
        InvalidInputError: shapes, dtypes or the mask do not fit, or one value per channel in all processes.
        InvalidArgumentError: an unknown option, or an eps that is not positive.
        BackendError: a compiled backend was asked for.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> def normalize_shard(x):  # in each process of a group that torch.distributed has set up
        ...     return F.sync_batch_norm(x, None, None)

    Source: Ioffe, Szegedy, "Batch Normalization", 2015; merging: Chan, Golub, LeVeque, "Updating Formulae and a
    Pairwise Algorithm for Computing Sample Variances", 1979.
    """
    name = "sync_batch_norm"
    options: ChannelNormOptions = {"eps_mode": eps_mode, "weight_offset": weight_offset, "cast": cast}
    tensors = (input, running_mean, running_var, weight, bias, mask)
    if has_torch_function_variadic(*tensors):
        more = {"group": group, "mask": mask, "backend": backend}
        return overridden(sync_batch_norm, tensors, *tensors[:5], momentum, eps, **more, **options)
    spec = channel_spec(name, "channel", eps, eps_mode, weight_offset, cast)
    check_channels(name, input)
    check_pair(name, running_mean, running_var)
    vectors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    check_vectors(name, input.shape[1], **vectors)
    if eps <= 0.0:
        raise InvalidArgumentError(f"{name} eps must be positive during training, but got {eps}")
    runs_kernel("synchronized channels", backend, spec, input)
    valid = expand_mask(name, mask, input)
    y, mean, variance, total = SyncBatchNormFunction.apply(input, weight, bias, valid, group, spec)
    if mask is None and input[:, :1].numel() <= 1 and int(total) == 1:  # so every process raises, or none
        check_values_per_channel(input.shape if input.numel() else (1, *input.shape[1:2]))
    update_running((running_mean, running_var), momentum, mean, variance, total.expand_as(mean))
    return y
