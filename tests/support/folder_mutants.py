"""Tiny folders of every form, each with one wrong value in a file or one wrong tensor."""

import copy
import json
import math
import struct
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from adapter_files import factors, peft_folder
from config_mutants import MODELS, VALUES, paths_of
from hf_folders import save_tensors
from quantized_folders import pack_groups, pack_rows
from stored_weights import stored_weight

from bitnet.base.errors import BitnetError, Unsupported
from bitnet.formats.adapters import read_adapter
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import read_generation_settings
from bitnet.formats.gguf_write import encode_value
from bitnet.formats.safetensors import SINGLE
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.sheet.model_sheet import describe_model
from bitnet.sheet.plan import plan_path, this_machine

LLAMA = MODELS["llama-tied"]
#: Of ``config.json`` only these keys are changed here; ``config_mutants.py`` has the others.
KEYS_OF_CONFIG = {
    *("architectures", "dtype", "id2label", "problem_type", "quantization", "quantization_config"),
    *("sbert_ce_default_activation_function", "sentence_transformers"),
}
REMOVED = object()  # in place of a value: its key is removed
#: An array in an array, deeper than any reader may follow.
DEEP = "[" * 2000 + "]" * 2000
_DEEP_MARK = "a deep value is here"
#: Texts that are not names, files, patterns or types.
TEXTS = (
    *("\0", "\ud800", "a" * 300, "../x", "/x", "x/", "(", "a{99999999999999999999}", "(" * 5000),
    *("²", "9" * 5000, "1x", "0x0", "8x8", _DEEP_MARK),
)
# Bytes of a number of each type of safetensors.
TYPES = {"F32": 4, "F16": 2, "U8": 1, "I8": 1, "I32": 4, "U32": 4, "I64": 8, "F8_E4M3": 1}
TYPES |= {"C64": 8, "BF16": 2, "F8_E8M0": 1}
# Names that tensors should not have.
NAMES = (
    *("blk", "blk.weight", "blk.x.weight", "blk.0", "blk.0.weight", "blk.x.bias"),
    *("layers.x.mlp.up_proj.weight", f"model.layers.{'9' * 5000}.mlp.up_proj.weight"),
    *(f"blk.{'9' * 5000}.ffn_up.weight", "model.layers.².mlp.up_proj.weight", "", "\ud800"),
)


def numbers(shape, seed=0):
    """Small random numbers of a *shape*."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * 0.05).astype("<f4")


def tensors_of(model):
    """Random tensors of the *model*, by name."""
    return {name: numbers(shape) for name, shape in model["tensors"].items()}


def write_json(path, content):
    """*content* as JSON in the file *path*, with :data:`DEEP` where its mark is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content).replace(f'"{_DEEP_MARK}"', DEEP))


def save_folder(folder, config, tensors, **files):
    """A folder with *config*, *tensors*, and other *files* as JSON by name."""
    write_json(folder / "config.json", config)
    save_tensors(folder / SINGLE, tensors)
    for name, content in files.items():
        write_json(folder / name, content)
    return folder


def embedding(folder):
    """A model of vectors with a pooling, a projection and prompts."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "models.Dense"},
    ]
    dense = {"in_features": 64, "out_features": 8, "bias": True}
    dense["activation_function"] = "torch.nn.modules.activation.Tanh"
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"embedding_dimension": 64, "pooling_mode_mean_tokens": True},
        "2_Dense/config.json": dense,
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "tokenizer_config.json": {"model_max_length": 32},
        "config_sentence_transformers.json": {
            "prompts": {"query": "q: "},
            "default_prompt_name": "query",
        },
    }
    config = LLAMA["config"] | {"architectures": ["LlamaModel"]}
    save_folder(folder, config, tensors_of(LLAMA), **files)
    projection = {"linear.weight": numbers((8, 64)), "linear.bias": numbers((8,))}
    save_tensors(folder / "2_Dense" / SINGLE, projection)


def reranker(folder):
    """A model whose logits of two tokens score documents."""
    modules = [
        {"path": "", "type": "Transformer"},
        {"path": "1_LogitScore", "type": "models.LogitScore"},
    ]
    files = {
        "modules.json": modules,
        "1_LogitScore/config.json": {"true_token_id": 3, "false_token_id": 4},
        "sentence_bert_config.json": {"processing_kwargs": {}},
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "activation_fn": "torch.nn.modules.linear.Identity",
        },
    }
    save_folder(folder, LLAMA["config"], tensors_of(LLAMA), **files)


def classifier(folder):
    """A model that scores three labels."""
    config = LLAMA["config"] | {
        "architectures": ["LlamaForSequenceClassification"],
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "problem_type": "multi_label_classification",
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
        "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid",
    }
    save_folder(folder, config, tensors_of(LLAMA) | {"score.weight": numbers((3, 64))})


def text(folder):
    """A model that generates text, with recommended settings, and an index of its tensors."""
    settings = {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "max_new_tokens": 9,
        "max_length": 99,
        "suppress_tokens": [1, 2],
        "begin_suppress_tokens": [3],
        "bad_words_ids": [],
        "num_beams": 1,
        "other": 1,
    }
    save_folder(folder, LLAMA["config"], tensors_of(LLAMA), **{"generation_config.json": settings})
    shard = "model-00001-of-00001.safetensors"
    (folder / SINGLE).rename(folder / shard)
    index = {"weight_map": dict.fromkeys(LLAMA["tensors"], shard)}
    write_json(folder / "model.safetensors.index.json", index)


def packed(folder, quantization, pack, **files):
    """A folder whose products are codes, made by the function *pack* of their numbers."""
    tensors = {}
    for name, values in tensors_of(LLAMA).items():
        if name.endswith("_proj.weight"):
            stem = name.removesuffix(".weight")
            tensors |= {f"{stem}.{part}": stored for part, stored in pack(values).items()}
        else:
            tensors[name] = values
    save_folder(folder, LLAMA["config"] | quantization, tensors, **files)


def fp8(folder):
    """8-bit floats, with a scale for each block."""
    described = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}

    def pack(values):
        codes = np.full(values.shape, 56, np.uint8)  # each is 1.0
        grid = np.full((values.shape[0] // 32, values.shape[1] // 32), 0.1, "<f4")
        return {"weight": ("F8_E4M3", codes), "weight_scale_inv": grid}

    packed(folder, {"quantization_config": described}, pack)


def compressed_rows(folder):
    """compressed-tensors: 8-bit integers with a scale for each row."""
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    described = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"weights": weights, "format": None}},
    }
    packed(folder, {"quantization_config": described}, lambda values: pack_rows(values)[0])


def compressed_words(folder):
    """compressed-tensors: 4-bit integers in words, with zero points, in blocks."""
    weights = {"num_bits": 4, "type": "int", "block_structure": [32, 32], "symmetric": False}
    described = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }

    def pack(values):
        rows, columns = values.shape
        grid = rows // 32, columns // 32
        return {
            "weight_packed": ("I32", np.zeros((rows, columns // 8), "<i4")),
            "weight_shape": ("I64", np.array([rows, columns], "<i8")),
            "weight_scale": np.full(grid, 0.1, "<f4"),
            "weight_zero_point": ("I32", np.zeros((-(-grid[0] // 8), grid[1]), "<i4")),
        }

    packed(folder, {"quantization_config": described}, pack)


def gptq(folder):
    """GPTQ, described in a file of auto-gptq."""
    settings = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False, "dynamic": {}}
    files = {"quantize_config.json": settings}
    packed(folder, {}, lambda values: pack_groups(values, "gptq")[0], **files)


def awq(folder):
    """AWQ, described in a file of AutoAWQ."""
    settings = {"w_bit": 4, "q_group_size": 32, "version": "GEMM", "zero_point": True}
    files = {"quant_config.json": settings}
    packed(folder, {}, lambda values: pack_groups(values, "awq")[0], **files)


# Description of a matrix of bitsandbytes with double quantization.
STATE = {
    "shape": [64, 64],
    "blocksize": 64,
    "dtype": "float32",
    "quant_type": "nf4",
    "nested_blocksize": 256,
    "nested_offset": 0.5,
    "nested_dtype": "float32",
}


BITSANDBYTES = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
}


def pack_bitsandbytes(shape, state):
    """Tensors of a matrix of *shape* with double quantization, which *state* describes."""
    count = math.prod(shape)
    text = json.dumps(state).replace(f'"{_DEEP_MARK}"', DEEP).encode()
    return {
        "weight": ("U8", np.full((count // 2, 1), 17, np.uint8)),
        "weight.absmax": ("U8", np.zeros(count // 64, np.uint8)),
        "weight.quant_map": numbers((16,)),
        "weight.nested_absmax": numbers((-(-count // 64 // 256),)),
        "weight.nested_quant_map": numbers((256,)),
        "weight.quant_state.bitsandbytes__nf4": ("U8", np.frombuffer(text, np.uint8)),
    }


def codes_of_bitsandbytes(state):
    """Tensors of one matrix ``w.weight`` that *state* describes, and ``quantization_config``."""
    tensors = {}
    for part, stored in pack_bitsandbytes((64, 64), state).items():
        dtype, values = stored if isinstance(stored, tuple) else ("F32", stored)
        tensors[f"w.{part}"] = stored_weight(f"w.{part}", values, dtype)
    return tensors, BITSANDBYTES


def bitsandbytes(folder):
    """bitsandbytes with double quantization."""

    def pack(values):
        return pack_bitsandbytes(values.shape, STATE | {"shape": list(values.shape)})

    packed(folder, {"quantization_config": BITSANDBYTES}, pack)


def mlx(folder):
    """MLX's matrices of 2 bits."""
    # Twice as wide as LLAMA: a row must have whole groups of 128.
    sizes = {"hidden_size": 128, "head_dim": 32}
    tensors = {}
    for name, shape in LLAMA["tensors"].items():
        rows, *columns = (128 if size == 64 else 64 if size == 32 else size for size in shape)
        if columns:
            stem = name.removesuffix(".weight")
            tensors[name] = ("U32", np.zeros((rows, columns[0] // 16), "<u4"))
            tensors[f"{stem}.scales"] = ("F16", np.ones((rows, columns[0] // 128), "<f2"))
            tensors[f"{stem}.biases"] = ("F16", -np.ones((rows, columns[0] // 128), "<f2"))
        else:
            tensors[name] = numbers((rows,))
    form = {"group_size": 128, "bits": 2}
    config = LLAMA["config"] | sizes | {"quantization": form, "quantization_config": form}
    save_folder(folder, config, tensors)


def bitnet(folder):
    """A BitNet whose matrices are packed, four weights in a byte."""
    described = {"quant_method": "bitnet", "linear_class": "bitlinear"}
    described |= {"quantization_mode": "offline", "modules_to_not_convert": ["lm_head"]}
    model = MODELS["bitnet"]
    tensors = {}
    for name, values in tensors_of(model).items():
        if name.endswith("_proj.weight"):
            rows, columns = values.shape
            tensors[name] = ("U8", np.zeros((rows // 4, columns), np.uint8))
            tensors[f"{name}_scale"] = np.ones(1, "<f4")
        else:
            tensors[name] = values
    save_folder(folder, model["config"] | {"quantization_config": described}, tensors)


def gpt_oss(folder):
    """gpt-oss with its experts in MXFP4."""
    model = MODELS["gpt-oss-without-biases"]
    tensors = {}
    for name, values in tensors_of(model).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = values.shape
            grid = experts, outputs, inputs // 32
            tensors[f"{name}_blocks"] = ("U8", np.zeros((*grid, 16), np.uint8))
            tensors[f"{name}_scales"] = ("U8", np.full(grid, 120, np.uint8))  # 2**-7
        else:
            tensors[name] = values
    described = {"quant_method": "mxfp4", "modules_to_not_convert": ["x"]}
    save_folder(folder, model["config"] | {"quantization_config": described}, tensors)


def adapter(folder):
    """A low-rank adapter of PEFT, with an embedding, magnitudes, and a whole matrix."""
    pairs = {"model.layers.0.self_attn.q_proj": factors(64, 64)}
    a, b = factors(96, 64)
    base = "base_model.model.model"
    tensors = {
        f"{base}.embed_tokens.lora_embedding_A": np.ascontiguousarray(b.T),
        f"{base}.embed_tokens.lora_embedding_B": np.ascontiguousarray(a.T),
        f"{base}.layers.0.self_attn.q_proj.lora_magnitude_vector": np.ones(64, "<f4"),
        f"{base}.norm.weight": np.ones(64, "<f4"),
    }
    patterns = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"embed_tokens": 8}}
    peft_folder(folder, pairs, tensors, **patterns, use_rslora=True)


#: Functions that write a folder of each form.
FORMS = {
    form.__name__: form
    for form in (
        *(embedding, reranker, classifier, text, fp8, compressed_rows, compressed_words, gptq),
        *(awq, bitsandbytes, mlx, bitnet, gpt_oss, adapter),
    )
}
#: Parts of the names of the tensors that are changed: of many, a few show every fault.
_SOME = ("layers.0.", "embed_tokens", "model.norm", "linear.", "score.")


def use(folder):
    """Read everything in the *folder*, and compute every number; return the checkpoint or adapter.

    A folder that is refused raises an error of the project.
    """
    if (folder / "adapter_config.json").exists():
        return read_adapter(folder)
    checkpoint = open_checkpoint(folder)
    read_generation_settings(checkpoint)
    load_model(checkpoint)
    for weight in checkpoint.weights.values():
        registry.dequantize(weight)
    for value in checkpoint.metadata.values():
        with suppress(Unsupported):
            encode_value(value)
    return checkpoint


@lru_cache
def machine():
    """This machine, for the sheets of models."""
    return this_machine(Path(__file__).parent)


def opens(folder):
    """True if the *folder* can be used, False if it is refused by an error of the project."""
    with suppress(BitnetError):
        describe_model(folder, machine())
    with suppress(BitnetError):
        plan_path(folder, machine()).facts()
    try:
        use(folder)
    except BitnetError:
        return False
    return True


def set_value(document, path, value):
    """A copy of *document* with *value* at *path*, or without it."""
    changed = copy.deepcopy(document)
    table = changed
    for key in path[:-1]:
        table = table[key]
    if value is REMOVED:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    return changed


def values_in(document):
    """Each path in *document* with each wrong value."""
    for path in paths_of(document):
        for value in (*VALUES, *TEXTS, REMOVED):
            yield path, value


def json_mutants(folder):
    """Yield file, path in it, and value, for every wrong value in every JSON file of *folder*."""
    for file in sorted(folder.rglob("*.json")):
        document = json.loads(file.read_text())
        for path, value in values_in(document):
            if file.name != "config.json" or file.parent != folder or path[0] in KEYS_OF_CONFIG:
                yield file.relative_to(folder).as_posix(), path, value


def load_tensors(path):
    """Type, shape and bytes of each tensor of a safetensors file, by name."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    data = content[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in json.loads(content[8 : 8 + length]).items()
    }


def dump_tensors(path, tensors):
    """Write what :func:`load_tensors` returns."""
    directory = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        directory[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    header = json.dumps(directory).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def shapes_like(shape):
    """Shapes that a tensor of *shape* should not have, some with as many numbers."""
    yield from ([], [0], [1], [0, 8], [8, 0], [2, 3, 0], [1, 1], [math.prod(shape)])
    yield from (shape[::-1], [1, *shape], [*shape, 1], shape[:-1])
    yield [*shape[:-1], shape[-1] * 2]
    yield [*shape[:-1], max(shape[-1] // 2, 1)]
    yield [shape[0] * 2, *shape[1:]]


def tensor_mutants(folder):
    """Yield file, name, and type and shape of every wrong tensor in every file of the *folder*.

    None instead of type and shape: the tensor is removed.
    """
    for file in sorted(folder.rglob("*.safetensors")):
        stored = load_tensors(file)
        place = file.relative_to(folder).as_posix()
        for name, (dtype, shape, _) in stored.items():
            if not any(part in name for part in _SOME):
                continue
            yield place, name, None
            for wrong in shapes_like(shape):
                yield place, name, (dtype, wrong)
            for other in TYPES:
                yield place, name, (other, shape)
        first = next(iter(stored))
        for name in NAMES:
            yield place, name, (stored[first][0], [2, 2])


def change_tensor(path, name, instead):
    """Replace the tensor *name* in the file *path*, or remove it if *instead* is None.

    *instead* is a type and a shape. The bytes are those of the tensor before, repeated or cut, or
    zeros if it was not there.
    """
    tensors = load_tensors(path)
    if instead is None:
        del tensors[name]
    else:
        dtype, shape = instead
        size = math.prod(shape) * TYPES.get(dtype, 1)
        before = tensors.get(name, ("", [], b""))[2]
        content = (before * (size // max(len(before), 1) + 1))[:size] if before else bytes(size)
        tensors[name] = dtype, shape, content
    dump_tensors(path, tensors)
