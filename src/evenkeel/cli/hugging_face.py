"""Models of transformers in directories: read from safetensors alone, written back as they were; their inputs."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import torch

from evenkeel._errors import EvenkeelError, InvalidInputError
from evenkeel._packages import require_package

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

WEIGHTS = (".safetensors", ".safetensors.index.json")
FOREIGN = (".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".onnx", ".gguf")
# of random inputs: sequences, their lengths
EXAMPLES, LENGTH = 2, 16


def transformers() -> Any:
    """Import transformers, offline and quiet."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    package = require_package("transformers")
    package.logging.set_verbosity_error()
    package.logging.disable_progress_bar()
    return package


def read_directory(directory: Path) -> nn.Module:
    """Read a model: the class that its configuration names, every weight from safetensors.

    Raises:
        EvenkeelError: transformers is not installed.
        InvalidInputError: it cannot be read, or lacks weights.
    """
    package = transformers()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = package.AutoConfig.from_pretrained(directory, **options)
        names = getattr(config, "architectures", None) or ["AutoModel"]
        kind = getattr(package, names[0], None)
        if kind is None:
            raise InvalidInputError(f"transformers {package.__version__} has no {names[0]}")
        model, loading = kind.from_pretrained(
            directory, config=config, dtype="auto", use_safetensors=True, output_loading_info=True, **options
        )
    except Exception as error:  # the package has many kinds for what it cannot read
        raise InvalidInputError(f"cannot read the model in {directory}: {error}") from error
    missing = sorted(loading["missing_keys"])
    if missing:
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InvalidInputError(f"{directory} lacks weights of {type(model).__name__}: {', '.join(missing[:3])}{rest}")
    found: nn.Module = model.eval()
    return found


def write_directory(model: Any, source: Path, out: Path) -> None:
    """Write a model as it was read, with the other files of its directory: into a new directory, then into place.

    Raises:
        EvenkeelError: it cannot be written.
    """
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # what a killed run left
        temporary.mkdir()
        model.save_pretrained(temporary)
        for file in source.iterdir():
            if file.is_file() and not file.name.endswith(WEIGHTS + FOREIGN) and not (temporary / file.name).exists():
                shutil.copyfile(file, temporary / file.name)
        if not out.exists():
            temporary.replace(out)
            return
        for file in out.iterdir():
            if file.name.endswith(WEIGHTS) and not (temporary / file.name).exists():
                file.unlink()
        for file in sorted(temporary.iterdir()):
            file.replace(out / file.name)
    except OSError as error:
        raise EvenkeelError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def random_inputs(model: Any) -> dict[str, Tensor]:
    """Return random inputs that fit a model's configuration: tokens, pictures or sounds.

    Raises:
        InvalidInputError: it takes something else.
    """
    config, name = model.config, model.main_input_name
    text = config.get_text_config(decoder=False) if hasattr(config, "get_text_config") else config
    generator = torch.Generator().manual_seed(0)
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    sizes = shape_of(name, config)
    if name == "input_ids":
        vocabulary = getattr(text, "vocab_size", None)
        if not vocabulary:
            raise InvalidInputError("the configuration has no vocab_size; give inputs with --input x.npz")
        inputs = {name: torch.randint(vocabulary, sizes, generator=generator)}
    else:
        inputs = {name: torch.randn(sizes, generator=generator).to(first.dtype)}
    if getattr(config, "is_encoder_decoder", False):
        tokens = torch.randint(config.get_text_config(decoder=True).vocab_size, (EXAMPLES, LENGTH), generator=generator)
        inputs["decoder_input_ids"] = tokens
    return {key: value.to(first.device) for key, value in inputs.items()}


def shape_of(name: str, config: Any) -> tuple[int, ...]:
    """Return the shape of an input by its name.

    Raises:
        InvalidInputError: the name is none of those whose shape a configuration tells.
    """
    if name == "input_ids":
        positions = getattr(config, "max_position_embeddings", None) or LENGTH
        return EXAMPLES, min(LENGTH, positions)
    if name == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else size
        return EXAMPLES, getattr(vision, "num_channels", 3), height, width
    if name == "input_features" and hasattr(config, "max_source_positions"):
        return EXAMPLES, config.num_mel_bins, 2 * config.max_source_positions
    if name == "input_values":
        return EXAMPLES, 16000
    raise InvalidInputError(f"inputs called {name} cannot be made from a configuration; give them with --input x.npz")
