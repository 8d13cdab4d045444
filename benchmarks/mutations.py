"""Count the damages of tests/support/damages.py that each stage of verify catches on a real model.

    python benchmarks/mutations.py models/SmolLM2-135M-Instruct.Q4_1.gguf

The test tests/verify/test_mutation_gate.py does the same with small models in a few seconds; this
takes some minutes, and writes one damaged copy of the model at a time.
"""

import argparse
import copy
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
sys.path.append(str(Path(__file__).parents[1] / "tests"))  # last: it has names of other packages

from builders import INT32, STRING, Tensor, Typed, write_gguf
from damages import DAMAGES, FILE_DAMAGES, Model, Stored
from verify.test_mutation_gate import ALL, STAGES, stages_that_catch

from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_header import Array
from bitnet.verify.attest import attest

TYPES = {"string": STRING, "int32": INT32}
PREFIX = "tokenizer.ggml."
LISTS = {f"{PREFIX}tokens": "tokens", f"{PREFIX}merges": "merges", f"{PREFIX}token_type": "types"}


def keys_of_values(architecture):
    """Metadata key of each value that damages change, by the name that they use."""
    return {
        "rope_theta": f"{architecture}.rope.freq_base",
        "eps": f"{architecture}.attention.layer_norm_rms_epsilon",
        "kv_heads": f"{architecture}.attention.head_count_kv",
        "context": f"{architecture}.context_length",
        "bos": f"{PREFIX}bos_token_id",
        "eos": f"{PREFIX}eos_token_id",
        "add_bos": f"{PREFIX}add_bos_token",
        "pre": f"{PREFIX}pre",
        "template": "tokenizer.chat_template",
    }


def load(path):
    """The model at *path* in the form that damages change, and its checkpoint.

    Its tensors are views into the file.
    """
    checkpoint = open_checkpoint(path)
    keys = {key: value for key, value in checkpoint.metadata.items() if key not in LISTS}
    for key, value in keys.items():
        if isinstance(value, Array):
            keys[key] = Typed(TYPES[value.item_type], list(value))
    names = keys_of_values(checkpoint.architecture)
    values = {name: keys.pop(key, None) for name, key in names.items()}
    values["add_bos"] = bool(values["add_bos"])
    tensors = {
        name: Stored(weight.shape, weight.quant.name, np.asarray(weight.data))
        for name, weight in checkpoint.weights.items()
    }
    lists = {field: list(checkpoint.metadata[key]) for key, field in LISTS.items()}
    return Model(checkpoint.architecture, tensors, values, keys=keys, **lists), checkpoint


def write(model, ids, folder):
    """Path of *model*, written as a GGUF file to *folder*.

    *ids* has the number of each encoding in GGUF files, by its name.
    """
    keys = dict(model.keys)
    keys |= {key: model.values[name] for name, key in keys_of_values(model.architecture).items()}
    keys |= {
        key: Typed(INT32 if field == "types" else STRING, getattr(model, field))
        for key, field in LISTS.items()
    }
    tensors = [
        Tensor(name, tensor.shape, ids[tensor.encoding], tensor.raw.tobytes())
        for name, tensor in model.tensors.items()
    ]
    keys = {key: value for key, value in keys.items() if value is not None}
    return write_gguf(folder / "model.gguf", keys, tensors)


def write_damaged(model, ids, folder):
    """Yield the name of every damage, and the path of a file with it; each replaces the last."""
    for name, damage in DAMAGES.items():
        damaged = copy.copy(model)
        damaged.tensors = {
            key: Stored(tensor.shape, tensor.encoding, tensor.raw)
            for key, tensor in model.tensors.items()
        }
        for key, tensor in damaged.tensors.items():  # damages write only to these
            if key.startswith(("blk.2.", "blk.3.")) or not key.startswith("blk."):
                tensor.raw = tensor.raw.copy()
        for part in ("values", "tokens", "merges", "types"):
            setattr(damaged, part, copy.copy(getattr(model, part)))
        damage(damaged)
        yield name, write(damaged, ids, folder)
    for name, damage in FILE_DAMAGES.items():
        path = write(model, ids, folder)
        path.write_bytes(damage(path.read_bytes()))
        yield name, path


def main():
    """Print the damages that each stage catches, and their number.

    "alone" counts those that a stage without an attestation catches, "against" the one with it.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file of a LLaMA")
    model, checkpoint = load(parser.parse_args().model)
    ids = {weight.quant.name: weight.quant.ggml_id for weight in checkpoint.weights.values()}
    counts = dict.fromkeys((*STAGES, "alone", "against"), 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        attestation = attest(open_checkpoint(write(model, ids, folder)), trace=False)
        for damage, path in write_damaged(model, ids, folder):
            started = time.perf_counter()
            stages = stages_that_catch(path, attestation)
            for stage in stages:
                counts[stage] += 1
            listed = ", ".join(sorted(stages - {"alone"}))
            print(f"{damage}: {listed} ({time.perf_counter() - started:.0f} s)", flush=True)
    for stage, count in counts.items():
        print(f"{stage} caught {count} of {ALL}")


if __name__ == "__main__":
    main()
