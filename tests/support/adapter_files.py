"""Low-rank adapters as PEFT and llama.cpp store them."""

import json

import gguf
import numpy as np
from hf_folders import save_tensors

CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": "tiny",
    "task_type": "CAUSAL_LM",
    "r": 4,
    "lora_alpha": 6,
    "use_rslora": False,
    "use_dora": False,
    "bias": "none",
    "init_lora_weights": True,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def factors(rows, columns, rank=4, seed=0):
    """Random float32 factors A, ``(rank, columns)``, and B, ``(rows, rank)``, of a matrix."""
    rng = np.random.default_rng([seed, rows, columns])
    a = rng.standard_normal((rank, columns)) * 0.1
    return a.astype("f4"), (rng.standard_normal((rows, rank)) * 0.1).astype("f4")


def peft_folder(folder, pairs, tensors=None, **config):
    """A PEFT folder with the *pairs* of factors by module, and other *tensors*.

    *config* are further keys of adapter_config.json.
    """
    folder.mkdir()
    stored = dict(tensors or {})
    for module, (a, b) in pairs.items():
        stored[f"base_model.model.{module}.lora_A.weight"] = a
        stored[f"base_model.model.{module}.lora_B.weight"] = b
    save_tensors(folder / "adapter_model.safetensors", stored)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return folder


def adapter_file(path, pairs, *, alpha=6.0, architecture="llama", kind="lora", tensors=None):
    """A GGUF file of llama.cpp with the *pairs* of factors by the name of a matrix."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
