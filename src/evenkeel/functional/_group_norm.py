"""GroupNorm: one mean and variance per sample and group of channels, over the group and all positions."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_variadic

from evenkeel._errors import InvalidInputError, InvalidTypeError
from evenkeel._spec import ChannelNormOptions
from evenkeel.functional._channel_checks import check_values_per_channel, expand_mask
from evenkeel.functional._channel_kernels import channels, direct_channels, effective_cast, runs_channel_kernel
from evenkeel.functional._channels import in_format_of, normalize_groups
from evenkeel.functional._common import check_floating, overridden
from evenkeel.functional._specs import channel_spec, keyword_options

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor

    from evenkeel._spec import Activation, Cast, EpsMode


@keyword_options(ChannelNormOptions)
def group_norm_reference(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    **options: Unpack[ChannelNormOptions],
) -> Tensor:
    """`group_norm` in plain PyTorch, for any floating dtype: the definition (no argument checks)."""
    spec = channel_spec("group_norm", "sample_group", eps, **options, groups=num_groups)
    valid = expand_mask("group_norm", mask, input)
    return in_format_of(normalize_groups(input, num_groups, weight, bias, valid, spec), input)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    eps_mode: EpsMode = "inside",
    weight_offset: float = 0.0,
    cast: Cast = "late",
    activation: Activation | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Normalize each group of channels of each sample over the group and its positions, then scale and shift.

    .. math:: y = \frac{x - \mu_{ng}}{\sqrt{\sigma_{ng}^2 + \epsilon}} \, (\text{weight\_offset} + \gamma_c) + \beta_c

    Positionally compatible with `torch.nn.functional.group_norm`.

    Args:
        input: (batch, channels, \*positions), any floating dtype.
        num_groups: how many groups the channels are divided into, in order; it divides the channels.
        weight: γ, (channels,).
        bias: β, (channels,).
        eps: ε, added to the variance (or as ``eps_mode`` says).
        mask: boolean, True where valid; (batch,), (batch, time), or the input's shape without its channel axis.
        eps_mode: ``inside`` the root, ``outside`` it, or ``clamp``: x/max(σ, ε).
        weight_offset: added to the weight before use, in float32 at least.
        cast: ``late`` rounds once at the end; ``early`` rounds the normalized value first.
        activation: ``relu`` or ``silu``, applied to the result before it is rounded, or None.
        backend: ``auto``, ``reference``, ``cpu`` or ``triton``; it chooses the kernels of the value and the first
            derivative.

    Returns:
        A tensor of the input's shape and dtype (``early``: the promoted dtype).

    Raises:
        InvalidInputError: shapes, dtypes or the mask do not fit, or a single value per group.
        InvalidArgumentError: an unknown option, or num_groups is not positive.
        BackendError: the backend cannot run this.

    Example:
        >>> import torch, evenkeel.functional as F
        >>> F.group_norm(torch.tensor([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0)
        tensor([[-1.,  1., -1.,  1.]])

    Source: Wu, He, "Group Normalization", 2018.
    """
    if has_torch_function_variadic(input, weight, bias, mask):
        more: dict[str, Any] = {"weight": weight, "bias": bias, "eps": eps, "mask": mask, "eps_mode": eps_mode}
        more |= {"weight_offset": weight_offset, "cast": cast, "activation": activation, "backend": backend}
        return overridden(group_norm, (input, weight, bias, mask), input, num_groups, **more)
    spec = channel_spec("group_norm", "sample_group", eps, eps_mode, weight_offset, cast, activation, num_groups)
    if backend == "auto" and mask is None and type(num_groups) is int and num_groups > 0:
        y = direct_channels(spec, input, weight, bias, (None, None))
        if y is not None:
            return y
    check_group_norm(input, num_groups, weight, bias)
    valid = expand_mask("group_norm", mask, input)
    spec = effective_cast(spec, input, weight, bias)
    if not runs_channel_kernel(backend, spec, input, (weight, bias), (), valid):
        return in_format_of(normalize_groups(input, num_groups, weight, bias, valid, spec), input)
    return channels(spec, input, weight, bias, (None, None), valid)[0]


def check_group_norm(input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise, in torch's words, unless the groups divide the channels and the affine fits them."""
    check_floating("group_norm", "input", input)
    if input.ndim < 2:
        raise InvalidInputError(
            f"group_norm: Expected at least 2 dimensions for input tensor but received {input.ndim}; "
            "the layout is (batch, channels, ...)"
        )
    if not isinstance(num_groups, numbers.Integral | torch.SymInt):
        raise InvalidTypeError(f"group_norm(): argument 'num_groups' must be int, not {type(num_groups).__name__}")
    if num_groups <= 0:
        raise InvalidInputError(f"group_norm: Expected num groups to be greater than 0, but got {num_groups}")
    if input.shape[1] % num_groups:
        raise InvalidInputError(
            "group_norm: Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={num_groups}"
        )
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is None:
            continue
        check_floating("group_norm", label, parameter)
        if tuple(parameter.shape) != (input.shape[1],):
            raise InvalidInputError(
                f"group_norm: Expected {label} to be a vector of size equal to the number of channels in input, but "
                f"got {label} of shape {list(parameter.shape)} and input of shape {list(input.shape)}"
            )
    check_values_per_channel((input.shape[0] * input.shape[1] // num_groups, num_groups, *input.shape[2:]))
