"""Programs without a fault, among them what must stay silent by name."""

import importlib
import itertools

import torch
from doctor.faults.families import (
    SHIFT,
    Cnn,
    Mlp,
    Program,
    Resnet,
    Rnn,
    Tcn,
    Unet,
    Vit,
    decoder,
    encoder,
    layer,
    norms_of,
    program,
    rms,
    tokens,
)
from doctor.faults.more_healthy import MORE
from torch import nn

from evenkeel import doctor

CHANNEL = {"batch": nn.BatchNorm2d, "group": lambda w: nn.GroupNorm(4, w), "instance": nn.InstanceNorm2d}
ROW = {"layer": layer, "rms": rms}
TABLE = {**ROW, "batch": nn.BatchNorm1d}


def adam(model):
    """As it should be: no decay of vectors."""
    vectors, matrices = ([p for p in model.parameters() if (p.ndim < 2) == few] for few in (True, False))
    groups = [{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.01}]
    return torch.optim.AdamW(groups, lr=3e-3)


FAMILIES = {
    **{f"mlp-{n}": (lambda s, n=n: program(Mlp, s, norm=TABLE[n], bias=n != "batch")) for n in TABLE},
    **{
        f"{kind.__name__.lower()}-{n}": (lambda s, kind=kind, n=n: program(kind, s, norm=CHANNEL[n]))
        for kind, n in itertools.product((Cnn, Unet, Resnet), CHANNEL)
    },
    **{f"rnn-{n}": (lambda s, n=n: program(Rnn, s, norm=ROW[n])) for n in ROW},
    **{f"encoder-{n}": (lambda s, n=n: encoder(s, norm=ROW[n])) for n in ROW},
    **{f"decoder-{n}": (lambda s, n=n: decoder(s, norm=ROW[n])) for n in ROW},
    **{f"vit-{n}": (lambda s, n=n: program(Vit, s, norm=ROW[n])) for n in ROW},
    "tcn-batch": lambda s: program(Tcn, s, norm=nn.BatchNorm1d),
}


def frozen_batch_norms():
    """Statistics and parameters kept on purpose: evaluation inside of training."""
    made = program(Cnn, 3).trained()
    made.model.train()
    for norm in norms_of(made.model):
        norm.eval().requires_grad_(False)
    return made.examine(adam)


class FrozenBatchNorm2d(nn.Module):
    """As torchvision's."""

    def __init__(self, n):
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((n,), value))

    def forward(self, x):
        shape = (1, -1, 1, 1)
        scale = self.weight.reshape(shape) * (self.running_var.reshape(shape) + 1e-5).rsqrt()
        return x * scale + self.bias.reshape(shape) - self.running_mean.reshape(shape) * scale


def large_gains():
    """Post-norms whose gain is large by design."""
    made = encoder(4, post=True)
    for norm in norms_of(made.model):
        norm.weight.data.mul_(40.0)
    return made.examine()


def massive_activations():
    """Single features a thousand times as large as the others, in bfloat16."""
    made = decoder(5, dtype=torch.bfloat16)
    made.model.places.data[:, 3] = 800.0
    return made.examine()


def shared_norm():
    made = encoder(6)
    for block in made.model.blocks:
        block.norm1 = block.norm2 = made.model.norm
    return made.trained(20).examine(adam)


class Lora(nn.Module):
    """A frozen linear layer with a step of low rank."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def lora(dtype=torch.float32):
    made = decoder(7).trained(20)
    made.model.requires_grad_(False)
    for block in made.model.blocks:
        block.mix, block.out = Lora(block.mix), Lora(block.out)
    made.model.to(dtype)
    return made.examine(lambda m: torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-4))


def zero_start():
    """Residual branches whose last norm starts at zero."""
    made = program(Resnet, 8)
    for block in made.model.blocks:
        nn.init.zeros_(block[0].weight)
    return made.examine(adam)


def head_alone():
    """The head is trained on features that stay."""
    made = program(Cnn, 9).trained(20)
    made.model.eval()
    return made.examine(lambda m: torch.optim.SGD(m.head.parameters(), lr=0.1))


def float32_master():
    """Low precision by autocast, float32 weights."""
    made = encoder(10)
    with torch.autocast("cpu", torch.bfloat16):
        return made.watched(lr=1e-3)


def bfloat16_that_moves():
    """Weights in bfloat16 with steps that they hold."""
    return encoder(11, dtype=torch.bfloat16).watched(lr=3e-2, steps=40)


def padded_and_masked():
    made = encoder(12)
    mask = torch.arange(12) < torch.randint(6, 13, (32, 1))
    return made.examine(mask=mask)


def float16(kind, seed):
    return program(kind, seed, dtype=torch.float16).examine(backward=False)


def averaged():
    made = program(Cnn, 13)
    average = torch.optim.swa_utils.AveragedModel(made.model, use_buffers=True)
    made.trained(30)
    average.update_parameters(made.model)
    return doctor.checkpoint(average.state_dict())


TRAPS = {
    "frozen batch norms": frozen_batch_norms,
    "FrozenBatchNorm2d": lambda: program(Resnet, 3, norm=FrozenBatchNorm2d).examine(adam),
    "large gains of post-norms": large_gains,
    "massive activations in bfloat16": massive_activations,
    "a shared norm": shared_norm,
    "LoRA": lora,
    "LoRA in bfloat16": lambda: lora(torch.bfloat16),
    "norms that start at zero": zero_start,
    "the head alone": head_alone,
    "float32 weights, bfloat16 arithmetic": float32_master,
    "bfloat16 weights with large steps": bfloat16_that_moves,
    "masked padding": padded_and_masked,
    "float16 mlp": lambda: float16(Mlp, 14),
    "float16 cnn": lambda: float16(Cnn, 15),
    "an average with its statistics": averaged,
    "linear growth over 12 blocks": lambda: encoder(16, depth=12).examine(),
    "batch norm in evaluation": lambda: program(Cnn, 17).trained().examine(training=False),
    "two rows in evaluation": lambda: program(Cnn, 18, rows=2).examine(training=False),
    "post-norm": lambda: encoder(19, post=True).trained().examine(adam),
    "images from 0 to 1": lambda: (
        program(Cnn, 20, change=lambda x: (x * 0.2 + 0.5).clamp(0, 1)).trained().examine(adam)
    ),
    "one-hot features": lambda: program(Mlp, 24, change=lambda x: torch.eye(8)[x.argmax(1)]).examine(adam),
    "sixteen rows": lambda: program(Cnn, 22, rows=16).trained().examine(adam),
    "a deep network with norms": lambda: program(Mlp, 23, norm=nn.BatchNorm1d, bias=False, depth=12).examine(adam),
    "a deep residual network": lambda: program(Resnet, 21, depth=10).trained(20).examine(adam),
}

# class of the model, its configuration, what is given to it
SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = {"vocab_size": 64, "max_position_embeddings": 32}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
CONFIGURATIONS = {
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 32, "vocab_size": 64}),
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, **WORDS, "num_key_value_heads": 2}),
    "BertForMaskedLM": ("BertConfig", {**SMALL, **WORDS}),
    "GemmaForCausalLM": ("GemmaConfig", {**SMALL, **WORDS, **HEADS}),
    "Qwen3ForCausalLM": ("Qwen3Config", {**SMALL, **WORDS, **HEADS}),
    "OPTForCausalLM": ("OPTConfig", {**SMALL, **WORDS, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {**SMALL, **WORDS}),
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 32, "n_layer": 4, "n_head": 4, "vocab_size": 64}),
    "ViTForImageClassification": ("ViTConfig", {**SMALL, "image_size": 12, "patch_size": 4}),
    "Gemma2ForCausalLM": ("Gemma2Config", {**SMALL, **WORDS, **HEADS}),
}


def from_configuration(name):
    """A tiny model of transformers as it is made, judged with its own loss."""
    transformers = importlib.import_module("transformers")
    torch.manual_seed(SHIFT[0])
    configuration, options = CONFIGURATIONS[name]
    model = getattr(transformers, name)(getattr(transformers, configuration)(**options))
    generator = torch.Generator().manual_seed(SHIFT[0])
    if "ViT" in name:
        batch = {"pixel_values": torch.randn(8, 3, 12, 12, generator=generator), "labels": torch.arange(8) % 2}
    else:
        words = tokens(generator, 8)
        batch = {"input_ids": words, "labels": words}
    return doctor.examine(model, batch, optimizer=adam(model))


def healthy():
    """Every program, by its name."""
    found = {}
    for number, (name, make) in enumerate(FAMILIES.items()):
        found[f"{name}, as made"] = lambda make=make, n=number: make(n).examine(adam)
        found[f"{name}, trained"] = lambda make=make, n=number: make(50 + n).trained().examine(adam)
        if number % 3 == 0:
            found[f"{name}, trained, in evaluation"] = lambda make=make, n=number: (
                make(60 + n).trained().examine(training=False)
            )
            found[f"{name}, watched"] = lambda make=make, n=number: make(70 + n).watched()
        if number % 3 == 1:
            found[f"{name}, checkpoint"] = lambda make=make, n=number: make(80 + n).trained().checkpoint()
            found[f"{name}, checkpoint as made"] = lambda make=make, n=number: make(90 + n).checkpoint()
    found |= TRAPS
    found |= {f"transformers {name}": lambda name=name: from_configuration(name) for name in CONFIGURATIONS}
    return found | MORE  # at the end: which half a program is in goes by its place


__all__ = ["Program", "adam", "healthy"]
