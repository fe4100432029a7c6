"""Models of transformers, small and with random weights: their norms are found, swapped, proved and given back."""

import itertools

import pytest
import torch
from hugging_face import ENCODER, GROUPED, MODELS, PICTURE, TEXT, Model, pictures

from evenkeel.convert import plan

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own making

DECODERS = """
Apertus Arcee AriaText BioGpt BitNet Bloom Cohere2 Cwm DiffLlama Doge Emu3 Ernie4_5 Exaone4 FalconMamba
FlexOlmo Fuyu Glm Glm4 GPTBigCode GPTNeoXJapanese GptOss Granite GraniteMoe Helium HunYuanDenseV1 JetMoe Lfm2 Mamba
MiniMax Ministral Mixtral ModernBertDecoder Mpt NanoChat Nemotron Olmo Olmo3 OPT Persimmon Phi Qwen3 SeedOss
SmolLM3 StableLm Starcoder2 VaultGemma XGLM"""
ENCODERS = """Albert ConvBert Deberta DebertaV2 Electra Esm EuroBert LayoutLM MegatronBert ModernBert MPNet
Nystromformer RemBert Roberta RobertaPreLayerNorm RoFormer XLMRoberta"""
CLASSIFIERS = "Beit DeiT Dinov2 MobileNetV2 ViTMSN"
STATES = {"d_ssm": 64, "n_heads": 8, "d_state": 8, "chunk_size": 16}  # its own take seconds
EVERY = {
    **MODELS,
    "FalconH1": Model("FalconH1ForCausalLM", GROUPED | {f"mamba_{name}": size for name, size in STATES.items()}),
    **{f"{name}, decoder": Model(f"{name}ForCausalLM", GROUPED) for name in DECODERS.split()},
    **{f"{name}, encoder": Model(f"{name}ForMaskedLM", TEXT) for name in ENCODERS.split()},
    **{
        f"{name}, images": Model(f"{name}ForImageClassification", ENCODER | PICTURE, pictures)
        for name in CLASSIFIERS.split()
    },
}
FAST = ("Llama", "Gemma2", "T5v1.1", "ConvNext")
DTYPES = (torch.float32, torch.bfloat16)
# why a norm may be left
LEFT = (
    "its forward takes further inputs: ",
    "its statistics are those of a part of the last axis",
    "in bfloat16 it rounds in other places than any spec",
)


def in_turn(names):
    """Each model in one dtype, and those of the fast tests in both."""
    cases = [(name, DTYPES[number % 2]) for number, name in enumerate(names) if name not in FAST]
    cases += itertools.product(FAST, DTYPES)
    return [
        pytest.param(*case, marks=() if case[0] in FAST else pytest.mark.slow, id=f"{case[0]}-{case[1]}")
        for case in cases
    ]


def inputs_of(model, dtype):
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in model.inputs().items()}


def test_there_are_many_models():
    assert len({model.kind for model in EVERY.values()}) >= 100


@pytest.mark.parametrize(("name", "dtype"), in_turn(EVERY))
def test_norms_are_swapped_proved_and_given_back(name, dtype):
    torch.manual_seed(0)
    model = EVERY[name].build(dtype)
    inputs = inputs_of(EVERY[name], dtype)
    kinds, state = [type(module) for module in model.modules()], model.state_dict(keep_vars=True)
    found = plan(model, inputs)
    left = [site.reason for site in found.sites if site.action == "leave"]
    assert [reason for reason in left if not reason.startswith(LEFT)] == []
    certificate = found.apply(verify=inputs)
    assert certificate.verified
    if dtype == torch.float32:
        assert certificate.swapped >= max(1, len(left))
    assert all(value is state[key] for key, value in model.state_dict(keep_vars=True).items())
    found.revert()
    assert [type(module) for module in model.modules()] == kinds
