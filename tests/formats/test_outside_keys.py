"""Keys that do not belong to an architecture: each is in a table, named as unknown, or refused."""

import json
import os

import llama_cpp_keys
import pytest
from gguf import constants
from tiny_models import tiny_gguf

from bitnet.base.errors import Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_audit import audit
from bitnet.formats.outside_keys import PREFIXES, find_unknown_keys
from bitnet.models.load import load_model


def keys_of_gguf_py():
    """The keys that gguf-py knows below the prefixes, with a number or a name where one belongs."""
    for table in vars(constants.Keys).values():
        for value in vars(table).values() if isinstance(table, type) else ():
            if isinstance(value, str) and value.startswith(PREFIXES):
                yield value.replace("{id}", "0").replace("{name}", "tool_use")


def test_every_key_of_gguf_py_is_decided():
    keys = dict.fromkeys(keys_of_gguf_py(), 1)
    assert len(keys) > 80
    assert find_unknown_keys(keys) == []


def test_every_key_of_llama_cpp_is_decided():
    keys = json.loads(llama_cpp_keys.TABLE.read_text())["keys"]
    assert len(keys) > 70
    assert all(key.startswith(PREFIXES) for key in keys)
    assert find_unknown_keys(dict.fromkeys(keys, 1)) == []


def test_the_list_of_keys_is_that_of_llama_cpps_source():
    source = os.environ.get("BITNET_LLAMA_CPP")
    if source is None:
        pytest.skip("BITNET_LLAMA_CPP does not name the source tree of llama.cpp")
    keys = json.loads(llama_cpp_keys.TABLE.read_text())["keys"]
    assert llama_cpp_keys.read_keys(source) == keys


@pytest.mark.parametrize("key", ["tokenizer.ggml.suppres_tokens", "general.sampling.dry"])
def test_an_unknown_key_is_named_by_the_audit(tmp_path, key):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{key: 1})
    findings = [it for it in audit(open_checkpoint(path).gguf) if it.subject == "unknown-key"]
    assert len(findings) == 1
    assert key in findings[0].text


def test_a_sampler_that_is_not_followed_is_named_by_the_audit(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"general.sampling.sequence": "top_k;infill"})
    subjects = [finding.subject for finding in audit(open_checkpoint(path).gguf)]
    assert "sampling-not-followed" in subjects


def test_products_with_fewer_bits_are_refused_by_the_name_of_their_key(tmp_path):
    """The key lists tensors whose products llama.cpp computes with fewer bits."""
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"general.tensor_extra.name": ["output.weight"]})
    with pytest.raises(Unsupported, match=r"general\.tensor_extra\.name"):
        load_model(open_checkpoint(path))
