"""The facts that a stored prompt is bound to, such as the digests of weights and program."""

from dataclasses import replace
from pathlib import Path

import pytest
from adapter_files import adapter_file, factors
from stored_prompts import folder_at
from tiny_models import in_encoding, tiny, tiny_gguf

from bitnet.base import native
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.native import NativeOps
from bitnet.models.adapted import with_adapters
from bitnet.models.load import load_model
from bitnet.runtime import prompt_facts
from bitnet.runtime.prompt_facts import PromptFacts, open_prompt_cache

pytestmark = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)


def facts_of(checkpoint, tokenizer="t", ops=None):
    """Facts of a model of *checkpoint*, whose tokenizer has the digest *tokenizer*."""
    model = load_model(checkpoint, ops=ops or NativeOps(threads=1))
    return PromptFacts(model, checkpoint, tokenizer).values


def differing(facts, other):
    """Names of the *facts* that *other* facts do not have."""
    return {name for name in facts if other[name] != facts[name]}


def test_facts_are_the_same_for_the_same_model_loaded_twice():
    first = facts_of(in_encoding(tiny("gemma4"), "Q8_0"))
    assert first == facts_of(in_encoding(tiny("gemma4"), "Q8_0"))
    assert set(first) == {
        *("weights", "tokenizer", "adapters", "version", "kv_type", "kernels", "program")
    }


def test_another_model_tokenizer_cache_or_program_changes_a_fact():
    checkpoint = in_encoding(tiny("llama"), "Q8_0")
    facts = facts_of(checkpoint)
    other_weights = facts_of(in_encoding(tiny("llama", seed=1), "Q8_0"))
    assert differing(facts, other_weights) == {"weights"}
    assert differing(facts, facts_of(in_encoding(tiny("llama"), "Q4_0"))) == {"weights"}
    assert differing(facts, facts_of(checkpoint, "another")) == {"tokenizer"}
    assert "kv_type" in differing(facts, facts_of(replace(checkpoint, kv_type="q8")))
    keys = {**checkpoint.metadata, "llama.rope.freq_base": 5000.0}
    assert differing(facts, facts_of(replace(checkpoint, metadata=keys))) == {"program"}


def test_an_adapter_changes_no_weights_and_another_one_of_its_form_no_program(tmp_path):
    checkpoint = in_encoding(tiny("llama"), "Q8_0")

    def adapted(seed, weight=1.0):
        name = "blk.0.attn_q.weight"
        path = tmp_path / f"{seed}.gguf"
        adapter_file(path, {name: factors(*checkpoint.weights[name].shape, seed=seed)})
        return facts_of(with_adapters(checkpoint, [(path, weight)]))

    first = adapted(seed=0)
    assert first == adapted(seed=0)
    assert differing(first, facts_of(checkpoint)) == {"adapters", "program"}
    assert differing(first, adapted(seed=1)) == {"adapters"}
    assert differing(first, adapted(seed=0, weight=0.5)) == {"adapters"}


def test_another_version_or_other_kernels_change_a_fact(tmp_path, monkeypatch):
    checkpoint = in_encoding(tiny("llama"), "Q8_0")
    facts = facts_of(checkpoint)
    ops = NativeOps(threads=1)
    ops.name = "native (another instruction set)"
    assert differing(facts, facts_of(checkpoint, ops=ops)) == {"kernels"}
    with monkeypatch.context() as changed:
        build = Path(native.module().__file__).read_bytes()
        (tmp_path / "another.so").write_bytes(build + b"\0")
        changed.setattr(native.module(), "__file__", str(tmp_path / "another.so"))
        assert differing(facts, facts_of(checkpoint)) == {"kernels"}
    monkeypatch.setattr(prompt_facts, "__version__", "0.0.1")
    assert differing(facts, facts_of(checkpoint)) == {"version"}


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
