"""The synthetic ternary model of ``benchmarks/synthetic.py``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_gguf

from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import registry
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "synthetic.py"


@pytest.fixture(scope="module")
def script():
    """The program as a module."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("synthetic", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    monkeypatch.undo()


@pytest.fixture
def written(script, tmp_path, monkeypatch):
    """A function that runs the script for one encoding and opens the written model."""
    vocabulary = tmp_path / "vocabulary.gguf"
    tiny_gguf(vocabulary)

    def write(kind, shape="tiny", *more):
        out = tmp_path / f"{kind}.gguf"
        words = [out, "--vocabulary", vocabulary, "--type", kind, "--layers", 2, "--shape", shape]
        words += more
        monkeypatch.setattr(sys, "argv", ["synthetic.py", *map(str, words)])
        script.main()
        return open_checkpoint(out)

    return write


@pytest.mark.parametrize("kind", ["I2_S", "TQ1_0", "TQ2_0", "F16", "Q4_0", "Q8_0"])
def test_a_written_model_generates(written, kind):
    model = load_model(written(kind), ops=ReferenceOps())
    pieces = list(Scheduler(model, context=16).generate([3, 4, 5], Request(max_tokens=4)))
    assert len(pieces) == 4


def test_the_ids_of_special_tokens_are_in_the_vocabulary(written):
    metadata = written("I2_S").metadata
    for name in ("bos", "eos", "padding"):
        assert metadata[f"tokenizer.ggml.{name}_token_id"] < len(metadata["tokenizer.ggml.tokens"])


def test_a_hybrid_model_has_attention_in_every_fourth_layer_and_runs(written):
    model = load_model(written("PTQ1_0", "tiny-hybrid", "--layers", 4), ops=ReferenceOps())
    assert [type(block[0].mixers[0]).__name__ for block in model.config.blocks] == [
        *["DeltaNet"] * 3,
        "Attention",
    ]
    pieces = list(Scheduler(model, context=16).generate([3, 4, 5], Request(max_tokens=4)))
    assert len(pieces) == 4


@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen3moe", "Q4_K_M"), ("gpt-oss", "MXFP4"), ("lfm2moe", "Q4_K_M"), ("maple", "TQ2_0")],
)
def test_a_mixture_of_experts_has_the_types_of_published_files_and_runs(written, name, kind):
    checkpoint = written(kind, f"tiny-{name}", "--layers", 4)
    types = {it.quant.name for it in checkpoint.weights.values() if len(it.shape) == 3}
    assert types == {"Q4_K_M": {"Q4_K", "Q6_K"}}.get(kind, {kind})
    model = load_model(checkpoint, ops=ReferenceOps())
    pieces = list(Scheduler(model, context=16).generate([3, 4, 5], Request(max_tokens=4)))
    assert len(pieces) == 4


def test_a_dense_model_in_the_types_of_a_mixture_of_experts_is_refused(written, capsys):
    with pytest.raises(SystemExit):
        written("Q4_K_M")
    assert "Q4_K_M is of mixtures of experts, and tiny is dense" in capsys.readouterr().err


def test_files_of_all_encodings_have_the_same_ternary_weights(written):
    checkpoints = [written(kind) for kind in ("F16", "I2_S", "TQ1_0", "TQ2_0", "Q4_0", "Q8_0")]
    name = "blk.1.ffn_down.weight"
    values = [registry.dequantize(each.weights[name]) for each in checkpoints]
    assert len(np.unique(values[0])) == 3
    for other in values[1:]:
        assert np.array_equal(values[0], other)


def test_an_embedding_model_has_a_norm_before_every_product(written):
    checkpoint = written("I2_S", "tiny-embedding")
    # Two layers of seven matrices.
    assert sum(name.endswith("_norm_in.weight") for name in checkpoint.weights) == 2 * 7
    model = load_model(checkpoint, ops=ReferenceOps())
    assert not model.config.writes


def test_another_architecture_has_the_same_products(written):
    def products(checkpoint):
        return {name for name in checkpoint.weights if "norm" not in name}

    embedding_model = written("I2_S", "tiny-embedding")
    llama_model = written("F16", "tiny-embedding", "--architecture", "llama")
    assert products(embedding_model) == products(llama_model)
    assert llama_model.architecture == "llama"


def test_the_full_shape_is_that_of_2b_4t(script):
    sizes = {
        each.name: each.size
        for each in script.tensors("I2_S", script.SHAPES["2b-4t"], layers=30, vocabulary=128256)
    }
    assert sizes["token_embd.weight"] == 128256 * 2560 * 2
    ternary = [
        size for name, size in sizes.items() if name.startswith("blk") and "norm" not in name
    ]
    assert len(ternary) == 30 * 7
    # Two bits for each of 2.08 billion weights.
    assert sum(ternary) == pytest.approx(521e6, rel=0.001)
