"""Programs with one fault each, by the rule that has to find it."""

import torch
from doctor.faults.averages import kept, with_its_model
from doctor.faults.edits import (
    BF16,
    HALF,
    CausalSum,
    HandNorm,
    Sequence,
    TimeNorm,
    Twice,
    after,
    all_decay,
    average,
    brightness,
    constant,
    constant_result,
    forgotten_statistics,
    freeze_norms,
    growing,
    louder,
    matrices_alone,
    moved_data,
    of_scales,
    of_weights,
    pooled,
    quiet_layers,
    replaced,
    scaled,
    set_momentum,
    slow,
    strange,
    untracked,
    with_nan,
    with_padding,
    wrong_axis,
)
from doctor.faults.families import (
    Cnn,
    Mlp,
    Resnet,
    Rnn,
    Tcn,
    Unet,
    Vit,
    decoder,
    encoder,
    layer,
    none,
    program,
    rms,
)
from doctor.faults.more_edits import (
    centred,
    massive,
    outlying,
    quantized,
    regression,
    replicas,
    scaled_inside,
    served,
    torch_encoder,
    with_affine,
)
from torch import nn

FAULTY = {
    "gamma-frozen": {
        "encoder watched": lambda: encoder(1, dtype=BF16).watched(lr=1e-4),
        "decoder watched": lambda: decoder(2, dtype=BF16).watched(lr=2e-4),
        "vit watched": lambda: program(Vit, 3, dtype=BF16).watched(lr=1e-4),
        "mlp watched": lambda: program(Mlp, 4, dtype=BF16).watched(lr=1e-4),
        "unet, one step": lambda: program(Unet, 5, dtype=BF16).examine(slow),
        "rnn, one step": lambda: program(Rnn, 6, dtype=BF16, norm=rms).examine(slow),
        "encoder, checkpoint": lambda: encoder(7, dtype=BF16).trained(lr=1e-4).checkpoint(),
        "vit, checkpoint": lambda: program(Vit, 8, dtype=BF16).trained(lr=1e-4).checkpoint(),
    },
    "gamma-dead": {
        "mlp": lambda: after(program(Mlp, 1, norm=nn.BatchNorm1d).trained(20), of_weights(0.75)).examine(),
        "cnn": lambda: after(program(Cnn, 2).trained(20), of_weights(0.75, 1e-8)).examine(),
        "encoder": lambda: after(encoder(3).trained(20), of_weights(0.7)).examine(),
        "resnet, checkpoint": lambda: after(program(Resnet, 4).trained(20), of_weights(0.9)).checkpoint(),
        "vit, checkpoint": lambda: after(program(Vit, 5).trained(20), of_weights(0.8, 1e-6)).checkpoint(),
        "unet": lambda: after(program(Unet, 6).trained(20), of_weights(0.75)).examine(),
    },
    "affine-not-optimized": {
        "mlp": lambda: program(Mlp, 1).examine(matrices_alone),
        "cnn": lambda: program(Cnn, 2).examine(matrices_alone),
        "decoder": lambda: decoder(3).examine(matrices_alone),
        "vit watched": lambda: program(Vit, 4).watched(optimizer=matrices_alone),
        "rnn": lambda: program(Rnn, 5).examine(matrices_alone),
        "unet watched": lambda: program(Unet, 6).watched(optimizer=matrices_alone),
    },
    "weight-decay-on-norm": {
        "mlp": lambda: program(Mlp, 1).examine(all_decay),
        "cnn": lambda: program(Cnn, 2).examine(all_decay),
        "encoder": lambda: encoder(3).examine(all_decay),
        "vit watched": lambda: program(Vit, 4).watched(optimizer=all_decay),
    },
    "redundant-bias": {
        "mlp": lambda: program(Mlp, 1, norm=nn.BatchNorm1d).examine(),
        "cnn": lambda: program(Cnn, 2, bias=True).examine(),
        "unet": lambda: program(Unet, 3, norm=nn.InstanceNorm2d, bias=True).examine(),
        "unet, batch": lambda: program(Unet, 4, norm=nn.BatchNorm2d, bias=True).examine(),
    },
    "statistics-not-finite": {
        "mlp": lambda: after(
            program(Mlp, 1, norm=nn.BatchNorm1d).trained(5), strange("running_mean", torch.nan)
        ).examine(),
        "cnn": lambda: after(program(Cnn, 2).trained(5), strange("running_var", torch.inf)).examine(training=False),
        "resnet, checkpoint": lambda: after(program(Resnet, 3).trained(5), strange("running_var", -1.0)).checkpoint(),
        "encoder, checkpoint": lambda: after(encoder(4).trained(5), strange("weight", torch.nan)).checkpoint(),
        "decoder": lambda: after(decoder(5).trained(5), strange("bias", torch.inf)).examine(),
    },
    "statistics-unset": {
        "mlp": lambda: after(program(Mlp, 1, norm=nn.BatchNorm1d).trained(), forgotten_statistics).examine(
            training=False
        ),
        "cnn": lambda: after(program(Cnn, 2).trained(), forgotten_statistics).examine(training=False),
        "resnet, checkpoint": lambda: after(program(Resnet, 3).trained(), forgotten_statistics).checkpoint(),
        "unet, checkpoint": lambda: after(
            program(Unet, 4, norm=nn.BatchNorm2d).trained(), forgotten_statistics
        ).checkpoint(),
        "mlp, average": lambda: average(program(Mlp, 5, norm=nn.BatchNorm1d)).checkpoint(),
        "cnn, average": lambda: average(program(Cnn, 6)).examine(training=False),
    },
    "statistics-lag": {
        "mlp": lambda: (
            after(program(Mlp, 1, norm=nn.BatchNorm1d, change=scaled(4, 3)), set_momentum(1e-3)).trained().examine()
        ),
        "cnn": lambda: after(program(Cnn, 2, change=scaled(6, 4)), set_momentum(1e-3)).trained().examine(),
        "resnet, other data": lambda: moved_data(program(Resnet, 3).trained(), scaled(5, 5)),
        "unet, other data": lambda: moved_data(program(Unet, 4, norm=nn.BatchNorm2d).trained(), scaled(8)),
        "cnn, in evaluation": lambda: moved_data(program(Cnn, 5).trained(), scaled(6), training=False),
        "tcn": lambda: (
            after(program(Tcn, 6, norm=nn.BatchNorm1d, change=scaled(6)), set_momentum(1e-4)).trained().examine()
        ),
    },
    "statistics-not-averaged": {
        "tcn, checkpoint of both": lambda: with_its_model(program(Tcn, 5, norm=nn.BatchNorm1d), at=4),
        "cnn, checkpoint of both": lambda: with_its_model(program(Cnn, 6), 20, names=("net", "swa_net.module")),
        "mlp, checkpoint of both": lambda: with_its_model(program(Mlp, 2, norm=nn.BatchNorm1d), at=8),
        "resnet, checkpoint of both": lambda: with_its_model(program(Resnet, 4), at=2, names=("net", "shadow")),
        "unet watched": lambda: kept(program(Unet, 7, norm=nn.BatchNorm2d)),
        "resnet watched, from the middle": lambda: kept(program(Resnet, 8), at=20),
        "mlp watched": lambda: kept(program(Mlp, 9, norm=nn.BatchNorm1d)),
        "cnn watched, from the middle": lambda: kept(program(Cnn, 10), at=20),
    },
    "statistics-tiny-variance": {
        "mlp": lambda: after(program(Mlp, 1, norm=nn.BatchNorm1d), quiet_layers).trained(200, lr=1e-9).examine(),
        "cnn": lambda: after(program(Cnn, 2), quiet_layers).trained(200, lr=1e-9).checkpoint(),
        "unet": lambda: (
            after(program(Unet, 3, norm=nn.BatchNorm2d, scale=1e-5), quiet_layers).trained(200, lr=1e-9).examine()
        ),
        "resnet": lambda: after(program(Resnet, 4), quiet_layers).trained(200, lr=1e-9).checkpoint(),
    },
    "frozen-but-updating": {
        "cnn": lambda: after(program(Cnn, 1).trained(20), freeze_norms).examine(),
        "resnet": lambda: after(program(Resnet, 2).trained(20), freeze_norms).examine(slow),
        "mlp watched": lambda: after(program(Mlp, 3, norm=nn.BatchNorm1d), freeze_norms).watched(),
        "unet": lambda: after(program(Unet, 4, norm=nn.BatchNorm2d).trained(20), freeze_norms).examine(),
    },
    "batch-too-small": {
        "mlp, 2": lambda: program(Mlp, 1, norm=nn.BatchNorm1d, rows=2).examine(),
        "mlp, 4": lambda: program(Mlp, 2, norm=nn.BatchNorm1d, rows=4).examine(),
        "pooled, 2": lambda: pooled(3, 2),
        "pooled, 4": lambda: pooled(4, 4),
        "cnn, 2": lambda: program(Cnn, 5, rows=2, change=brightness(3.0)).examine(),
        "unet, 2": lambda: program(Unet, 6, norm=nn.BatchNorm2d, rows=2, change=brightness(3.0)).examine(),
        "resnet watched, 2": lambda: program(Resnet, 7, rows=2, change=brightness(3.0)).watched(),
    },
    "eps-dominates": {
        "encoder": lambda: encoder(1, scale=1e-3).examine(),
        "decoder, rms": lambda: decoder(2, norm=rms, scale=5e-4).examine(),
        "mlp": lambda: program(Mlp, 3, scale=1e-3, bias=False).examine(),
        "cnn": lambda: program(Cnn, 4, scale=1e-3).examine(),
        "unet": lambda: program(Unet, 5, scale=1e-3).examine(),
        "vit, a large eps": lambda: program(Vit, 6, norm=lambda w: nn.LayerNorm(w, eps=0.09), scale=0.05).examine(),
    },
    "eps-vanishes-in-half": {
        "mlp": lambda: program(Mlp, 1, norm=HandNorm, dtype=HALF).examine(backward=False),
        "encoder": lambda: encoder(2, norm=lambda w: HandNorm(w, 1e-12, False), dtype=HALF).examine(backward=False),
        "rnn": lambda: program(Rnn, 3, norm=lambda w: HandNorm(w, 1e-9), dtype=HALF).examine(backward=False),
        "vit": lambda: program(Vit, 4, norm=lambda w: HandNorm(w, 1e-8, False), dtype=HALF).examine(backward=False),
    },
    "mean-dominates": {
        "encoder": lambda: encoder(1, norm=rms, shift=4.0).examine(),
        "decoder": lambda: decoder(2, norm=rms, shift=6.0).examine(),
        "vit": lambda: program(Vit, 3, norm=rms, shift=3.0).examine(),
        "mlp": lambda: after(program(Mlp, 4, norm=rms), lambda m: m.body[3].bias.add_(5.0)).examine(),
    },
    "collapsed-channels": {
        "mlp": lambda: after(program(Mlp, 1, norm=nn.BatchNorm1d), constant_result).examine(),
        "cnn": lambda: after(program(Cnn, 2), constant_result).examine(),
        "unet": lambda: after(program(Unet, 3, norm=nn.BatchNorm2d), constant_result).examine(),
        "resnet watched": lambda: after(program(Resnet, 4), constant_result).watched(lr=0.0),
    },
    "overflow-near": {
        "mlp": lambda: after(program(Mlp, 1, dtype=HALF), louder(2e4)).examine(backward=False),
        "cnn": lambda: after(program(Cnn, 2, dtype=HALF), louder(8e3)).examine(backward=False),
        "vit": lambda: after(program(Vit, 3, dtype=HALF), louder(8e3)).examine(backward=False),
        "rnn": lambda: after(program(Rnn, 4, dtype=HALF), louder(1e4)).examine(backward=False),
    },
    "not-finite": {
        "mlp, overflow": lambda: after(program(Mlp, 1, dtype=HALF), louder(1e5)).examine(backward=False),
        "cnn, input": lambda: program(Cnn, 2, change=with_nan).examine(),
        "encoder, weight": lambda: after(encoder(3), lambda m: m.blocks[1].out.weight.fill_(torch.inf)).examine(),
        "decoder watched": lambda: decoder(4).watched(
            lr=1e6, optimizer=lambda m: torch.optim.SGD(m.parameters(), 1e12)
        ),
        "rnn, overflow": lambda: after(program(Rnn, 5, dtype=HALF), louder(1e5)).examine(backward=False),
    },
    "double-norm": {
        "mlp": lambda: program(Mlp, 1, norm=lambda w: Twice(layer, w)).examine(),
        "cnn": lambda: program(Cnn, 2, norm=lambda w: Twice(nn.BatchNorm2d, w)).examine(),
        "encoder": lambda: encoder(3, norm=lambda w: Twice(rms, w)).examine(),
        "vit": lambda: program(Vit, 4, norm=lambda w: Twice(layer, w)).examine(),
    },
    "wrong-axis": {
        "linear, batch": lambda: wrong_axis(nn.Linear(8, 16), nn.BatchNorm1d(12), Rnn, 1),
        "convolution, row": lambda: wrong_axis(nn.Conv1d(8, 16, 1), nn.LayerNorm(12), Tcn, 2),
        "image, row": lambda: wrong_axis(nn.Conv2d(3, 4, 1), nn.LayerNorm(12), Cnn, 3),
        "image, rms": lambda: wrong_axis(nn.Conv2d(3, 4, 3, padding=1), rms(12), Cnn, 4),
        "equal sizes": lambda: wrong_axis(nn.Linear(8, 12), nn.BatchNorm1d(12), Rnn, 5),
    },
    "stream-grows": {
        "encoder": lambda: after(encoder(1, depth=8), growing).examine(),
        "decoder": lambda: after(decoder(2, depth=8, norm=rms), growing).examine(),
        "vit": lambda: program(Vit, 3, depth=8, gain=1.7).examine(),
        "encoder, gain": lambda: encoder(4, depth=8, gain=2.0).examine(),
        "decoder watched": lambda: decoder(5, depth=8, gain=1.8).watched(steps=20),
    },
    "gradients-vanish": {
        "mlp": lambda: program(Mlp, 1, norm=none, depth=10, activation=nn.Sigmoid).examine(),
        "cnn": lambda: program(Cnn, 2, norm=none, depth=10, activation=nn.Sigmoid, bias=True).examine(),
        "mlp, small": lambda: program(Mlp, 3, norm=none, depth=10, activation=nn.Tanh, scale=0.3).examine(),
        "cnn, small": lambda: program(Cnn, 4, norm=none, depth=10, activation=nn.Tanh, scale=0.3, bias=True).examine(),
    },
    "gradients-explode": {
        "mlp": lambda: program(Mlp, 1, norm=none, depth=12, activation=nn.Tanh, scale=12.0).examine(),
        "cnn": lambda: program(Cnn, 2, norm=none, depth=12, activation=nn.Tanh, scale=12.0, bias=True).examine(),
        "mlp, longer": lambda: program(Mlp, 3, norm=none, depth=16, activation=nn.Tanh, scale=14.0).examine(),
        "cnn, longer": lambda: program(Cnn, 4, norm=none, depth=16, activation=nn.Tanh, scale=14.0).examine(),
    },
    "update-ratio": {
        "mlp": lambda: program(Mlp, 1).watched(lr=0.5),
        "cnn": lambda: program(Cnn, 2).watched(lr=0.5),
        "decoder": lambda: decoder(3).watched(lr=0.5),
        "vit": lambda: program(Vit, 4).watched(lr=0.3),
    },
    "padding-pollutes": {
        "tcn": lambda: with_padding(program(Tcn, 1, norm=nn.BatchNorm1d), 1),
        "convolution": lambda: with_padding(replaced(program(Tcn, 2), Sequence(nn.BatchNorm1d)), 2),
        "instance": lambda: with_padding(replaced(program(Tcn, 3), Sequence(nn.InstanceNorm1d)), 3),
        "rnn": lambda: with_padding(program(Rnn, 4, norm=lambda w: TimeNorm(w, nn.BatchNorm1d)), 4, channels_last=True),
    },
    "causal-leak": {
        "tcn, instance": lambda: program(Tcn, 1, norm=nn.InstanceNorm1d).examine(),
        "tcn, group": lambda: program(Tcn, 2, norm=lambda w: nn.GroupNorm(2, w)).examine(),
        "decoder, instance": lambda: decoder(3, norm=lambda w: TimeNorm(w, nn.InstanceNorm1d)).examine(),
        "decoder, group": lambda: decoder(4, norm=lambda w: TimeNorm(w, lambda n: nn.GroupNorm(4, n))).examine(),
        "sum": lambda: replaced(program(Tcn, 5), CausalSum(nn.InstanceNorm1d)).examine(),
        "sum, batch": lambda: replaced(program(Tcn, 6), CausalSum(untracked(nn.BatchNorm1d))).examine(),
    },
    "batch-dependence": {
        "mlp": lambda: program(Mlp, 1, norm=untracked(nn.BatchNorm1d)).examine(),
        "cnn": lambda: program(Cnn, 2, norm=untracked(nn.BatchNorm2d)).examine(training=False),
        "unet": lambda: program(Unet, 3, norm=untracked(nn.BatchNorm2d)).examine(),
        "tcn": lambda: program(Tcn, 4, norm=untracked(nn.BatchNorm1d)).examine(),
    },
    "input-not-normalized": {
        "cnn": lambda: program(Cnn, 1, change=lambda x: x * 60 + 120).examine(),
        "unet": lambda: program(Unet, 2, change=lambda x: (x * 60 + 120).clamp(0, 255)).examine(),
        "vit": lambda: program(Vit, 3, change=lambda x: x * 60 + 120).examine(),
        "mlp": lambda: program(Mlp, 4, change=scaled(300)).examine(),
        "rnn, divided twice": lambda: program(Rnn, 5, change=scaled(1 / 255)).examine(),
        "series": lambda: replaced(program(Tcn, 6, change=scaled(1000, 5000)), Sequence(nn.BatchNorm1d)).examine(),
        "cnn, bytes by constants of images from 0 to 1": lambda: scaled_inside(
            program(Cnn, 7, change=lambda x: x * 60 + 120), 0.45, 0.22
        ),
        "mlp, by the constants of other units": lambda: with_affine(program(Mlp, 8, change=scaled(300)), 0.0, 0.3),
    },
    "unequal-scales": {
        "layer": lambda: program(Mlp, 1, change=of_scales(5)).examine(),
        "batch": lambda: program(Mlp, 2, norm=nn.BatchNorm1d, change=of_scales(-5)).examine(),
        "none": lambda: program(Mlp, 3, norm=none, change=of_scales(4)).examine(),
        "deep": lambda: program(Mlp, 4, depth=6, norm=rms, change=of_scales(6)).examine(),
    },
    "constant-input-feature": {
        "layer": lambda: program(Mlp, 1, change=constant(1)).examine(),
        "batch": lambda: program(Mlp, 2, norm=nn.BatchNorm1d, change=constant(3)).examine(),
        "none": lambda: program(Mlp, 3, norm=none, change=constant(2)).examine(),
    },
    "gamma-outlier": {
        "encoder": lambda: after(encoder(1).trained(20), outlying(40)).examine(),
        "mlp": lambda: after(program(Mlp, 2, norm=nn.BatchNorm1d).trained(20), outlying(25)).examine(),
        "decoder, checkpoint": lambda: after(decoder(3, norm=rms).trained(20), outlying(60)).checkpoint(),
        "vit, checkpoint": lambda: after(program(Vit, 4).trained(20), outlying(-30)).checkpoint(),
        "resnet": lambda: after(program(Resnet, 5).trained(20), outlying(50)).examine(),
        "rnn": lambda: after(program(Rnn, 6).trained(20), outlying(100)).examine(),
    },
    "replicas-differ": {
        "around ddp": lambda: replicas("around"),
        "other rates": lambda: replicas("rates"),
        "images around ddp": lambda: replicas("images around", 1),
        "by hand, other rates": lambda: replicas("by hand, rates", 2),
        "images by hand, not averaged": lambda: replicas("images by hand, not averaged", 3),
        "by hand, not averaged": lambda: replicas("by hand, not averaged", 4),
    },
    "centring-idle": {
        "encoder": lambda: after(encoder(1).trained(20), centred).examine(),
        "decoder": lambda: after(decoder(2).trained(20), centred).examine(),
        "vit": lambda: after(program(Vit, 3).trained(20), centred).examine(),
        "mlp": lambda: after(program(Mlp, 4).trained(20), centred).examine(),
        "rnn": lambda: after(program(Rnn, 5).trained(20), centred).examine(),
    },
    "massive-activations": {
        "encoder, float16": lambda: after(encoder(1, dtype=HALF, norm=HandNorm), massive).examine(backward=False),
        "vit, int8": lambda: quantized(program(Vit, 2, norm=rms), massive),
        "decoder, float16": lambda: after(
            decoder(3, dtype=HALF, norm=lambda w: HandNorm(w, 1e-5, center=False)), massive
        ).examine(backward=False),
        "encoder, int8": lambda: quantized(encoder(4, norm=rms), massive),
        "mlp, int8": lambda: quantized(program(Mlp, 5, change=lambda x: x * torch.tensor([3000.0] + [1.0] * 7))),
        "rnn, int8": lambda: quantized(program(Rnn, 6, change=lambda x: x * torch.tensor([3000.0] + [1.0] * 7))),
    },
    "unnormalized-depth": {
        "mlp, sigmoid": lambda: program(Mlp, 1, norm=none, depth=10, activation=nn.Sigmoid).examine(),
        "cnn, small": lambda: program(Cnn, 2, norm=none, depth=10, activation=nn.Tanh, scale=0.3, bias=True).examine(),
        "mlp, relu": lambda: program(Mlp, 3, norm=none, depth=12).examine(),
        "cnn, relu": lambda: program(Cnn, 4, norm=none, depth=12, bias=True).examine(),
        "mlp, large": lambda: program(Mlp, 5, norm=none, depth=10, scale=6.0).examine(),
        "cnn, large": lambda: program(Cnn, 6, norm=none, depth=10, scale=6.0).examine(backward=False),
        "mlp, watched": lambda: program(Mlp, 7, norm=none, depth=12).watched(steps=2, every=1, lr=1e-6),
    },
    "post-norm-without-warmup": {
        "encoder": lambda: encoder(1, post=True, depth=6).watched(),
        "decoder": lambda: decoder(2, post=True, depth=6).watched(),
        "decoder, 8": lambda: decoder(3, post=True, depth=8).watched(),
        "torch.nn": lambda: torch_encoder(4).watched(),
        "encoder, 8": lambda: encoder(5, post=True, depth=8).watched(),
        "torch.nn, 8": lambda: torch_encoder(6, depth=8).watched(),
    },
    "target-not-normalized": {
        "mlp, prices": lambda: regression(Mlp, 1, 8e4, 2e5),
        "cnn, returns": lambda: regression(Cnn, 2, 1e-4),
        "rnn, sum": lambda: regression(Rnn, 3, 300.0, 1000.0, nn.MSELoss(reduction="sum")),
        "vit, distance": lambda: regression(Vit, 4, 5e3, 1e4, nn.functional.l1_loss),
        "mlp, huber": lambda: regression(Mlp, 5, 100.0, 50.0, nn.functional.huber_loss),
        "tcn, years": lambda: regression(Tcn, 6, 10.0, 2000.0),
    },
    "normalized-twice": {
        "mlp, affine": lambda: with_affine(program(Mlp, 1), 40.0, 15.0),
        "cnn, constants": lambda: scaled_inside(program(Cnn, 2), 0.45 * 255, 0.22 * 255),
        "vit, bytes": lambda: scaled_inside(program(Vit, 3), 0.0, 255.0),
        "rnn, affine": lambda: with_affine(program(Rnn, 4), 0.0, 100.0),
        "unet, bytes": lambda: scaled_inside(program(Unet, 5), 127.5, 127.5),
        "mlp, small units": lambda: with_affine(program(Mlp, 6), 0.0, 1e-3),
    },
    "train-serve-skew": {
        "mlp, other units": lambda: served(program(Mlp, 1), lambda x: x * 1.8 + 32),
        "cnn, divided": lambda: served(program(Cnn, 2), lambda x: x / 255, axis=1),
        "rnn, one feature": lambda: served(program(Rnn, 3), lambda x: x + torch.tensor([3.0] + [0.0] * 7)),
        "vit, darker": lambda: served(program(Vit, 4), lambda x: x - 2.0, axis=1),
        "mlp, not scaled": lambda: served(program(Mlp, 5), lambda x: x * 12.0),
        "tcn, a channel": lambda: served(
            program(Tcn, 6), lambda x: x * torch.tensor([5.0] + [1.0] * 7)[:, None], axis=1
        ),
    },
}


__all__ = ["FAULTY"]
