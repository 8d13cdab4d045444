"""GGUF files that leave out a key: refused, or computed as llama.cpp computes them."""

import importlib.util

import numpy as np
import pytest
from edited_files import llama_cpp_logits, without_each_key
from engine_logits import distance
from llama_cpp_models import CASES, IDS, OF_EXPERTS, OF_STATES, written
from tiny_keys import ENCODERS

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.family import of_gguf
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

# Of the range of the logits. A default that is not llama.cpp's changes some by a tenth and more.
SAME = 5e-3
# Models whose vectors are compared instead, in test_encoders.py.
_VECTORS = (*ENCODERS, "gemma-embedding", "llama-embed")
_DECODERS = {
    name: case
    for name, case in (CASES | OF_EXPERTS | OF_STATES).items()
    if case[0] not in _VECTORS and of_gguf(case[0]).llama_cpp
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason="xllamacpp is not installed: an extra of crossval",
    ),
]


def ours(path):
    """Logits for all of IDS; ``None`` if the file is refused."""
    try:
        model = load_model(open_checkpoint(path), ops=ReferenceOps())
    except (InvalidFormat, Unsupported):
        return None
    cache = KVCache(model.config, len(IDS), dtype=np.float32)
    return model.forward(list(IDS), cache, all_positions=True)


@pytest.mark.parametrize("case", _DECODERS)
def test_a_key_that_is_left_out_means_what_it_means_to_llama_cpp(case, tmp_path):
    written(tmp_path / "tiny.gguf", *_DECODERS[case])
    files = dict(without_each_key(tmp_path / "tiny.gguf", tmp_path))
    assert len(files) > 5
    theirs = llama_cpp_logits(list(files.values()), IDS, tmp_path)
    compared = 0
    for (key, path), expected in zip(files.items(), theirs, strict=True):
        found = ours(path)
        if found is None or isinstance(expected, str):  # one of both refuses it
            continue
        compared += 1
        assert distance(found, expected) < SAME, key
    assert compared
