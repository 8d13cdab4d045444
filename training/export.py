"""A trained model in the published formats: ``python -m training.export OUT MODEL``.

    MODEL/        config.json, tokenizer.json, model.safetensors, as BitNet b1.58 2B-4T is published
    MODEL.gguf    the same as I2_S with an embedding in float16

Both hold the same numbers, so that they give the same logits: norms, embedding and scales are
rounded to float16 before anything is written.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from bitnet.base.errors import BitnetError
from bitnet.convert.convert_options import ConvertOptions
from bitnet.convert.run import plan_conversion
from bitnet.formats.gguf_write import encode_value
from bitnet.quants.ternary import pack_u8
from training.model import Shape, TinyBitNet, ternary
from training.text import BEGIN, END, read_tokenizer
from training.train import read_checkpoint

__all__ = ["load", "main", "to_folder", "to_gguf"]

LICENCE = "CC0-1.0"
# Names in the folder of the matrices of a block, by the attribute of Block that holds them.
_LINEARS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_NORMS = {  # likewise
    "attn_norm": "input_layernorm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}


def load(out: Path) -> TinyBitNet:
    """The model as the last checkpoint in *out* has it.

    Raises:
        ValueError: there is no checkpoint, or it is damaged.
    """
    state = read_checkpoint(out)
    model = TinyBitNet(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model.eval()


def to_folder(model: TinyBitNet, tokenizer: Path, folder: Path) -> None:
    """Write *model* with the tokenizer.json *tokenizer* as a folder with packed ternary weights.

    Raises:
        ValueError: *tokenizer* is missing or damaged.
        FileExistsError: *folder* exists.
    """
    vocabulary = read_tokenizer(tokenizer)
    folder.mkdir(parents=True)
    save_file(_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    begin = vocabulary.token_to_id(BEGIN)
    end = vocabulary.token_to_id(END)
    shape = model.shape
    config = {
        "architectures": ["BitNetForCausalLM"],
        "bos_token_id": begin,
        "dtype": "float16",
        "eos_token_id": end,
        "hidden_act": "relu2",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "model_type": "bitnet",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "pad_token_id": end,
        "quantization_config": {
            "linear_class": "autobitlinear",
            "quant_method": "bitnet",
            "quantization_mode": "offline",
        },
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "vocab_size": shape.vocab_size,
    }
    tokenizer_facts = {
        "add_bos_token": True,
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": shape.max_position_embeddings,
        "pad_token": END,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", tokenizer_facts)
    _write(folder / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end})
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())


def to_gguf(folder: Path, output: Path) -> None:
    """Write the model in *folder* as the I2_S file *output*."""
    plan = plan_conversion(folder, ConvertOptions("I2_S", pre="llama-bpe"))
    facts = {"general.name": output.stem, "general.license": LICENCE}
    added_keys = {key: encode_value(value) for key, value in facts.items()}
    replace(plan, metadata={**plan.metadata, **added_keys}).write(output)


def _tensors(model: TinyBitNet) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of *model* in their stored form, by their names in the folder."""
    tensors = {
        "model.embed_tokens.weight": _half(model.embedding),
        "model.norm.weight": _half(model.output_norm),
    }
    for number, block in enumerate(model.blocks):
        prefix = f"model.layers.{number}."
        for ours, name in _NORMS.items():
            tensors[f"{prefix}{name}.weight"] = _half(getattr(block, ours))
        for ours, names in _LINEARS.items():
            for name, weight in zip(names, getattr(block, ours).weights, strict=True):
                codes, scale = ternary(weight.detach())
                tensors[f"{prefix}{name}.weight"] = pack_u8(codes.numpy().astype(np.int8))
                tensors[f"{prefix}{name}.weight_scale"] = _half(scale.reshape(1))
    return tensors


def _half(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """*values* in float16, as an array."""
    return values.detach().to(torch.float16).numpy()


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("out", type=Path, help="folder that training.train wrote")
    parser.add_argument("model", type=Path, help="folder to write; MODEL.gguf is written beside it")
    options = parser.parse_args()
    gguf = options.model.with_name(f"{options.model.name}.gguf")
    for path in (options.model, gguf):
        if path.exists():
            parser.error(f"{path} exists; remove it, or name another MODEL")
    try:
        to_folder(load(options.out), options.out / "tokenizer.json", options.model)
        to_gguf(options.model, gguf)
    except (OSError, ValueError, BitnetError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
