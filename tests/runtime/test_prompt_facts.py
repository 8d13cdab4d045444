"""The facts that a stored prompt is bound to, such as the digests of weights and program."""

from dataclasses import replace

import pytest
from stored_prompts import folder_at
from tiny_models import in_encoding, tiny, tiny_gguf

from bitnet.base import native
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.native import NativeOps
from bitnet.models.load import load_model
from bitnet.runtime.prompt_facts import PromptFacts, open_prompt_cache

pytestmark = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)


def facts_of(checkpoint, tokenizer="t", ops=None):
    """Facts of a model of *checkpoint*, whose tokenizer has the digest *tokenizer*."""
    model = load_model(checkpoint, ops=ops or NativeOps(threads=1))
    return PromptFacts(model, checkpoint, tokenizer).values


def test_facts_are_the_same_for_the_same_model_loaded_twice():
    first = facts_of(in_encoding(tiny("gemma4"), "Q8_0"))
    assert first == facts_of(in_encoding(tiny("gemma4"), "Q8_0"))
    assert set(first) == {
        *("weights", "tokenizer", "adapters", "version", "kv_type", "kernels", "program")
    }


def test_each_thing_that_bits_depend_on_changes_a_fact(tmp_path):
    checkpoint = in_encoding(tiny("llama"), "Q8_0")
    facts = facts_of(checkpoint)

    def differing(other):
        return {name for name in facts if other[name] != facts[name]}

    assert differing(facts_of(in_encoding(tiny("llama", seed=1), "Q8_0"))) == {"weights"}
    assert differing(facts_of(in_encoding(tiny("llama"), "Q4_0"))) == {"weights"}
    assert differing(facts_of(checkpoint, "another")) == {"tokenizer"}
    assert "kv_type" in differing(facts_of(replace(checkpoint, kv_type="q8")))
    keys = {**checkpoint.metadata, "llama.rope.freq_base": 5000.0}
    assert differing(facts_of(replace(checkpoint, metadata=keys))) == {"program"}


def test_facts_of_a_file_are_those_of_its_bytes(tmp_path):
    first = facts_of(open_checkpoint(tiny_gguf(tmp_path / "a.gguf")))
    copy = facts_of(open_checkpoint(tiny_gguf(tmp_path / "b.gguf")))
    changed = bytearray((tmp_path / "a.gguf").read_bytes())
    changed[-1] ^= 1  # the last byte of the last tensor
    (tmp_path / "c.gguf").write_bytes(changed)
    assert first == copy
    assert facts_of(open_checkpoint(tmp_path / "c.gguf"))["weights"] != first["weights"]


def test_a_model_replaced_since_it_was_loaded_has_the_facts_of_its_own_bytes(tmp_path):
    path = tiny_gguf(tmp_path / "a.gguf")
    expected = facts_of(open_checkpoint(path))
    checkpoint = open_checkpoint(path)
    model = load_model(checkpoint, ops=NativeOps(threads=1))
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "new").write_bytes(changed)
    (tmp_path / "new").replace(path)
    assert PromptFacts(model, checkpoint, "t").values == expected


def test_a_backend_whose_bits_depend_on_chunks_stores_nothing(tmp_path):
    checkpoint = tiny("llama")
    model = load_model(checkpoint)
    assert open_prompt_cache(folder_at(tmp_path), {"": (model, checkpoint)}, "t") is None
