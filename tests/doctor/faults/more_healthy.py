"""Sound programs beside which the rules of data, depth, quantization and processes have to stay silent."""

from doctor.faults.averages import averaged, by_torch, kept, with_its_model
from doctor.faults.edits import HALF, after
from doctor.faults.families import Cnn, Mlp, Resnet, Rnn, Tcn, Unet, Vit, encoder, none, norms_of, program, rms
from doctor.faults.more_edits import (
    Unscaled,
    keeping_scale,
    massive,
    quantized,
    regression,
    replicas,
    scaled_inside,
    self_normalizing,
    served,
    torch_encoder,
    warmed,
    with_affine,
)
from torch import nn

__all__ = ["MORE"]


def sigmoid_loss(y, target):
    """Classes by the sign of the number."""
    return nn.functional.binary_cross_entropy_with_logits(y, (target > 0).float())


def fine_tuned(depth):
    """A post-norm model whose gains have moved before."""
    made = encoder(41, post=True, depth=depth).trained(20)
    return made.watched()


def raw(factor, shift):
    return lambda x: x * factor + shift


def same(x):
    return x


class MovesAxes(nn.LayerNorm):
    """A norm of channels that moves them to the last axis and back."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def few_steps(made, steps, lr):
    """A model at the beginning of its training, in evaluation."""
    return made.trained(steps, lr=lr).examine(training=False)


def counted_anew(made):
    """Trained, loaded from a file without counters, trained on for three steps."""
    made.trained()
    for norm in norms_of(made.model):
        norm.num_batches_tracked.zero_()
    return made.trained(3).examine(training=False)


MORE = {
    "int8 without massive values": lambda: quantized(encoder(31)),
    "int8 weights alone, massive values": lambda: quantized(encoder(32, norm=rms), massive, inputs=False),
    "float16, massive values, wide norms": lambda: after(encoder(33, dtype=HALF), massive).examine(backward=False),
    "int8 after training": lambda: quantized(program(Mlp, 34).trained(20)),
    "deep, kaiming": lambda: after(program(Mlp, 35, norm=none, depth=10), keeping_scale).examine(),
    "deep convolutions, kaiming": lambda: after(program(Cnn, 36, norm=none, depth=10), keeping_scale).examine(),
    "deep, selu": lambda: after(program(Mlp, 37, norm=none, depth=10, activation=nn.SELU), self_normalizing).examine(),
    "residual without norms": lambda: program(Resnet, 38, norm=none, depth=8, bias=True).examine(),
    "residual transformer without norms": lambda: encoder(39, norm=none).examine(),
    "post-norm with warm-up": lambda: encoder(40, post=True, depth=6).watched(optimizer=warmed(20)),
    "post-norm after training": lambda: fine_tuned(6),
    "post-norm of torch with warm-up": lambda: torch_encoder(42, depth=7).watched(optimizer=warmed(20)),
    "post-norm of three blocks": lambda: encoder(43, post=True).watched(),
    "pre-norm of torch": lambda: torch_encoder(44, norm_first=True).watched(),
    "regression": lambda: regression(Mlp, 45),
    "regression, distance": lambda: regression(Cnn, 46, loss=nn.functional.l1_loss),
    "regression from 0 to 1": lambda: regression(Rnn, 47, 0.2, 0.5),
    "regression in its own units": lambda: regression(Vit, 48, 8e4, 2e5, edit=lambda m: Unscaled(m, 2e5, 8e4)),
    "regression, huber": lambda: regression(Tcn, 49, loss=nn.functional.huber_loss),
    "two classes": lambda: regression(Mlp, 50, loss=sigmoid_loss),
    "raw table, scaled inside": lambda: with_affine(program(Mlp, 51, change=raw(15.0, 40.0)), 40.0, 15.0),
    "bytes, scaled inside": lambda: scaled_inside(program(Cnn, 52, change=raw(60.0, 120.0)), 120.0, 60.0),
    "images from 0 to 1, constants inside": lambda: scaled_inside(
        program(Vit, 53, change=lambda x: (x * 0.2 + 0.5).clamp(0, 1)), 0.45, 0.225
    ),
    "raw series, scaled inside": lambda: with_affine(program(Rnn, 54, change=raw(100.0, 0.0)), 0.0, 100.0),
    "served as fitted, table": lambda: served(program(Mlp, 55), same),
    "served as fitted, images": lambda: served(program(Cnn, 56), same, axis=1),
    "served as fitted, series": lambda: served(program(Rnn, 57), same),
    "served as fitted, 16 rows": lambda: served(program(Mlp, 58, rows=16), same),
    "replicas under ddp": lambda: replicas("sound", 5),
    "replicas by hand": lambda: replicas("images by hand", 6),
    "an average, buffers copied": lambda: averaged(program(Cnn, 59), buffers="copied"),
    "an average, buffers averaged": lambda: averaged(program(Mlp, 60, norm=nn.BatchNorm1d), buffers="averaged"),
    "an average, floats averaged": lambda: averaged(program(Resnet, 61), buffers="floats"),
    "an average, statistics recomputed": lambda: averaged(program(Unet, 62, norm=nn.BatchNorm2d), recomputed=True),
    "an average, buffers averaged, with its model": lambda: with_its_model(program(Cnn, 63), buffers="averaged"),
    "an average, floats averaged, with its model": lambda: with_its_model(program(Resnet, 64), buffers="floats"),
    "an average, statistics recomputed, with its model": lambda: with_its_model(
        program(Unet, 65, norm=nn.BatchNorm2d), recomputed=True
    ),
    "an average, buffers copied, watched": lambda: kept(program(Mlp, 66, norm=nn.BatchNorm1d), buffers="copied"),
    "an average, buffers averaged, watched": lambda: kept(program(Tcn, 67, norm=nn.BatchNorm1d), buffers="averaged"),
    "an average, statistics recomputed, watched": lambda: kept(program(Cnn, 68), recomputed=True),
    "an average of torch, ema": lambda: by_torch(program(Resnet, 69), recomputed=False),
    "an average of torch, swa": lambda: by_torch(program(Cnn, 70), "swa"),
    "an average of torch, swa, with its model": lambda: by_torch(
        program(Unet, 71, norm=nn.BatchNorm2d), "swa", checkpoint=True
    ),
    "three steps at a high rate": lambda: few_steps(program(Cnn, 72), 3, 0.1),
    "a norm that moves axes": lambda: program(Tcn, 76, norm=MovesAxes).trained().examine(),
    "a norm that moves axes, as many positions as channels": lambda: (
        program(Tcn, 77, norm=MovesAxes, change=lambda x: x[..., :8]).trained().examine()
    ),
    "waveforms": lambda: program(Tcn, 78, norm=nn.BatchNorm1d, change=lambda x: 0.05 * x).trained(120).examine(),
    "three steps": lambda: few_steps(program(Cnn, 73), 3, 1e-2),
    "three steps, checkpoint": lambda: program(Mlp, 74, norm=nn.BatchNorm1d).trained(3, lr=1e-2).checkpoint(),
    "fine-tuned, counters at zero": lambda: counted_anew(program(Resnet, 75)),
}
