"""Small models of transformers with random weights, the exchange of their norms for evenkeel's, and their gradients."""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from evenkeel import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
MAMBA = TEXT | {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 16}
LINEAR_HEADS = {f"linear_{name}": 4 for name in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")}
HYBRID = {"layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [0, 1]}
TOWER = {"hidden_size": 32, "num_heads": 4, "d_kv": 8, "d_ff": 48, "dropout_rate": 0.0}
T5 = {"vocab_size": 64, "d_model": 32, "num_layers": 2, "decoder_start_token_id": 0, "pad_token_id": 0} | TOWER
GATED = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SWITCH = {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_decoder_layers": 2}
PIX2STRUCT = {
    "text_config": {"vocab_size": 64, "num_layers": 2, "decoder_start_token_id": 0, "pad_token_id": 0} | TOWER,
    "vision_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "patch_embed_hidden_size": 12} | TOWER,
}
DISTILBERT = {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
PICTURE = {"image_size": 32, "patch_size": 8, "num_labels": 5}
ENCODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
CLIP = {"text_config": TEXT, "vision_config": ENCODER | PICTURE, "projection_dim": 16}
SWIN = PICTURE | {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic", "num_labels": 5}
WAVES = {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2}
POSITIONS = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
WHISPER = {"vocab_size": 64, "d_model": 32, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WHISPER |= {"suppress_tokens": None, "begin_suppress_tokens": None}
for part in ("encoder", "decoder"):
    WHISPER |= {f"{part}_layers": 2, f"{part}_attention_heads": 4, f"{part}_ffn_dim": 48}


def tokens():
    return {"input_ids": torch.randint(3, 64, (2, 9))}


def answer():
    return {"decoder_input_ids": torch.randint(3, 64, (2, 7))}


def dialogue():
    return tokens() | answer()


def pictures(count=4):
    return {"pixel_values": torch.randn(count, 3, 32, 32)}


def patches():
    places = torch.cartesian_prod(torch.arange(1.0, 4.0), torch.arange(1.0, 4.0)).expand(2, 9, 2)
    return {"flattened_patches": torch.cat([places, torch.randn(2, 9, 12)], -1)}


@dataclass(frozen=True)
class Model:
    """A class of transformers, the options of its configuration, random inputs, and the name of the result."""

    kind: str
    options: dict = field(repr=False)
    inputs: Callable[[], dict] = tokens
    output: str = "logits"
    training: bool = False

    def build(self, dtype=torch.float32):
        """A model with random weights, the norms' among them."""
        import transformers

        transformers.logging.set_verbosity_error()
        kind = getattr(transformers, self.kind)
        model = kind(kind.config_class(**copy.deepcopy(self.options)))
        for module in model.modules():
            if is_norm(module):
                for parameter in module.parameters(recurse=False):
                    parameter.data += 0.2 * torch.randn_like(parameter)
        return model.to(dtype).train(self.training)


MODELS = {
    "Llama": Model("LlamaForCausalLM", GROUPED),
    "Mistral": Model("MistralForCausalLM", GROUPED),
    "Qwen2": Model("Qwen2ForCausalLM", GROUPED),
    "Qwen3": Model("Qwen3ForCausalLM", GROUPED),
    "Qwen3Next": Model("Qwen3NextForCausalLM", GROUPED | LINEAR_HEADS | HYBRID),
    "Phi3": Model("Phi3ForCausalLM", GROUPED),
    "Llama4": Model("Llama4ForCausalLM", GROUPED | {"intermediate_size_mlp": 48, "num_local_experts": 2}),
    "Olmo2": Model("Olmo2ForCausalLM", GROUPED),
    "Gemma": Model("GemmaForCausalLM", GROUPED),
    "Gemma2": Model("Gemma2ForCausalLM", GROUPED),
    "Gemma3": Model("Gemma3ForCausalLM", GROUPED),
    "Gemma4": Model("Gemma4ForCausalLM", GROUPED | {"hidden_size_per_layer_input": 0, "global_head_dim": 8}),
    "Cohere": Model("CohereForCausalLM", GROUPED),
    "Mamba2": Model("Mamba2ForCausalLM", MAMBA),
    "GPT2": Model("GPT2LMHeadModel", GPT2),
    "GPTNeoX": Model("GPTNeoXForCausalLM", TEXT),
    "T5": Model("T5ForConditionalGeneration", T5, dialogue),
    "T5v1.1": Model("T5ForConditionalGeneration", GATED, dialogue),
    "MT5": Model("MT5ForConditionalGeneration", GATED, dialogue),
    "UMT5": Model("UMT5ForConditionalGeneration", GATED, dialogue),
    "LongT5": Model("LongT5ForConditionalGeneration", T5, dialogue),
    "Switch": Model("SwitchTransformersForConditionalGeneration", T5 | SWITCH, dialogue),
    "Pix2Struct": Model("Pix2StructForConditionalGeneration", PIX2STRUCT, lambda: answer() | patches()),
    "Whisper": Model(
        "WhisperForConditionalGeneration",
        WHISPER,
        lambda: answer() | {"input_features": torch.randn(2, 8, 20)},
    ),
    "BERT": Model("BertForMaskedLM", TEXT),
    "DistilBERT": Model("DistilBertForMaskedLM", DISTILBERT),
    "CLIP": Model("CLIPModel", CLIP, lambda: tokens() | pictures(2), "logits_per_image"),
    "ViT": Model("ViTForImageClassification", ENCODER | PICTURE, pictures),
    "ConvNext": Model(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 5},
        pictures,
    ),
    "Swin": Model("SwinForImageClassification", SWIN, pictures),
    "ResNet": Model("ResNetForImageClassification", RESNET, lambda: pictures(8), training=True),
    "Wav2Vec2": Model("Wav2Vec2ForCTC", TEXT | WAVES | POSITIONS, lambda: {"input_values": torch.randn(2, 400)}),
}
# By the names of their classes: norms with one rounding, at the end (the others round before the weight); those that
# add 1 to the weight; those that subtract the mean, though they are no torch.nn.LayerNorm.
LATE = ("Gemma", "Qwen3Next", "Olmo2")
OFFSET = ("GemmaRMSNorm", "Gemma2", "Gemma3", "Qwen3Next")
CENTRED = ("Cohere",)


def is_norm(module):
    name = type(module).__name__
    named = name.endswith(("RMSNorm", "LayerNorm", "RMSNormGated"))
    return named or isinstance(module, TORCH_NORMS)


TORCH_NORMS = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


def trio(model, dtype):
    """A model, the same with evenkeel's norms, that in float64, inputs, and a cotangent of the result."""
    original = model.build(dtype)
    mine = copy.deepcopy(original)
    assert exchange(mine) > 0
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in model.inputs().items()}
    exact = copy.deepcopy(mine).double()
    with torch.no_grad():
        cotangent = torch.randn_like(result(exact, inputs, model.output))
    return original, mine, exact, inputs, cotangent.to(dtype)


def exchange(model):
    """Make evenkeel's modules of all norms of a model that have a weight, with the same parameters; how many."""
    places = [(parent, name, norm) for parent in model.modules() for name, norm in parent.named_children()]
    places = [place for place in places if is_norm(place[2]) and hasattr(place[2], "weight")]
    for parent, name, norm in places:
        setattr(parent, name, exchanged(norm).train(norm.training))
    return len(places)


def exchanged(norm):
    """One of evenkeel's modules with the parameters and the arithmetic of another's."""
    kind = type(norm)
    for base in TORCH_NORMS:
        if isinstance(norm, base):
            mine = getattr(nn, base.__name__)
            if kind is not base:  # its own forward calls that of evenkeel
                new = copy.copy(norm)
                new.__class__ = type(kind.__name__, (kind, mine), {})
                return new
            return with_state_of(norm, mine(**{name: getattr(norm, name) for name in norm.__constants__}))
    name, size = kind.__name__, norm.weight.shape
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    if name.startswith(CENTRED):
        return with_state_of(norm, nn.LayerNorm(size, eps, bias=False))
    if name.endswith("Gated"):
        groups = size.numel() // norm.group_size if hasattr(norm, "group_size") else None
        gating = "silu_after" if groups is None else "silu_before"
        return with_state_of(norm, nn.GatedRMSNorm(size, eps, cast="early", gating=gating, groups=groups))
    cast = "weight" if name.endswith("LayerNorm") else "late" if name.startswith(LATE) else "early"
    return with_state_of(norm, nn.RMSNorm(size, eps, cast=cast, weight_offset=float(name.startswith(OFFSET))))


def with_state_of(norm, new):
    """The new module, with the very parameters and buffers of the old one."""
    for name, parameter in new.named_parameters():
        setattr(new, name, getattr(norm, name, parameter))
    new._buffers.update(norm._buffers)
    return new


def result(model, inputs, output="logits"):
    dtype = next(model.parameters()).dtype
    return model(**{name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()})[output]


def value_and_gradients(model, inputs, cotangent, output="logits"):
    """The result, and what each parameter's gradient is."""
    model.zero_grad()
    y = result(model, inputs, output)
    y.backward(cotangent.to(y.dtype))
    return y.detach(), {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
