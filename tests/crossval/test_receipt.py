"""The compute path is `real` if the compiled kernels ran, and no mistake in a backend makes it so.

`reference` is the NumPy backend, `mock` a mock tokenizer, and `none` means that nothing which is
known was counted.
"""

import dataclasses

import numpy as np
import pytest
from tiny_models import tiny, tiny_gguf

from bitnet import load
from bitnet.base import native
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.judge import judge
from bitnet.crossval.ours import compute_path, kernels_since, read_counters
from bitnet.crossval.references import choose
from bitnet.crossval.report import as_markdown
from bitnet.crossval.run import cross_validate
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.tokenizer.load import mock_tokenizer

needs_native = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)


class Tokenizer:
    """A stand-in for a real tokenizer, which has a fingerprint."""

    fingerprint = "ab" * 32


def run(model):
    return model.forward([1, 2, 3], KVCache(model.config, 8))


class Receipt:
    """Kernels that ran since the receipt was made, and the compute path that follows from them."""

    def __init__(self, model, tokenizer=None):
        self.model = model
        self.tokenizer = tokenizer or Tokenizer()
        self.before = read_counters(model)

    @property
    def kernels(self):
        return kernels_since(self.model, self.before)

    @property
    def compute_path(self):
        return compute_path(self.model, self.tokenizer, self.kernels)


@needs_native
def test_the_compiled_kernels_make_it_real():
    model = load_model(tiny("llama"), ops=NativeOps(threads=1))
    run(model)
    receipt = Receipt(model)
    assert (receipt.compute_path, receipt.kernels) == ("none", {})  # what ran before does not count
    run(model)
    assert receipt.compute_path == "real"
    # At least one product for each of the two layers.
    assert sum(n for name, n in receipt.kernels.items() if name.startswith("linear/")) >= 2


def test_the_numpy_backend_is_called_by_its_name():
    model = load_model(tiny("llama"), ops=ReferenceOps())
    receipt = Receipt(model)
    run(model)
    assert receipt.compute_path == "reference"


@needs_native
def test_bytes_taken_for_tokens_are_a_mock():
    model = load_model(tiny("llama"), ops=NativeOps(threads=1))
    receipt = Receipt(model, mock_tokenizer())
    run(model)
    assert receipt.compute_path == "mock"


class StubOps(ReferenceOps):
    """A backend that claims to be the compiled one."""

    name = "native (avx512_vnni)"

    def linear(self, x, weight, bias=None):
        return np.zeros((len(x), len(weight)), dtype=np.float32)

    def counters(self):
        return {"linear/I2_S/avx512_vnni": 10**9}


class NativeStub(NativeOps):
    """A backend derived from the compiled one that computes something else."""

    def linear(self, x, weight, bias=None):
        return np.zeros((len(x), weight.rows), dtype=np.float32)


def test_a_backend_that_only_claims_is_none():
    model = load_model(tiny("llama"), ops=StubOps())
    receipt = Receipt(model)
    run(model)
    assert (receipt.compute_path, receipt.kernels) == ("none", {})


@needs_native
def test_a_backend_derived_from_the_compiled_one_is_none():
    model = load_model(tiny("llama"), ops=NativeStub(threads=1))
    receipt = Receipt(model)
    run(model)
    assert receipt.compute_path == "none"


@needs_native
def test_fewer_products_than_layers_make_it_none():
    model = load_model(tiny("llama"), ops=NativeOps(threads=1))
    receipt = Receipt(model)
    # The product of the head alone; the model has two layers.
    model.head(np.zeros((1, model.config.dim), dtype=np.float32))
    assert receipt.compute_path == "none"


@needs_native
def test_another_kind_of_model_is_none():
    model = load_model(tiny("llama"), ops=NativeOps(threads=1))

    class Canned(type(model)):
        def run(self, segments):
            super().run(segments)
            return [np.zeros((1, self.config.vocab_size), dtype=np.float32)]

    model.__class__ = Canned
    receipt = Receipt(model)
    run(model)
    assert receipt.compute_path == "none"


def evidence_of(path, text, **options):
    """Evidence on the model at *path* with the prompt *text*, against the float64 pass."""
    requested = CrossvalOptions(against="float64", greedy=2, max_positions=6)
    checkpoint = open_checkpoint(path)
    reference = choose("float64", checkpoint)
    with load(path, threads=1, **options) as model:
        return cross_validate(model, checkpoint, reference, requested, texts=[text])[0]


@needs_native
def test_a_report_has_the_compute_path_that_was_counted(tmp_path):
    evidence = evidence_of(tiny_gguf(tmp_path / "model.gguf"), "abc")
    assert evidence.compute_path == "real"
    assert len(evidence.ours.library_sha256) == 64
    assert sum(evidence.kernels.values()) > 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        evidence.compute_path = "mock"


def test_a_report_with_a_mock_tokenizer_is_never_real(tmp_path):
    model = tiny_gguf(tmp_path / "model.gguf", tokenizer=False)
    evidence = evidence_of(model, "!#%", allow_mock=True)
    assert evidence.compute_path == "mock"
    assert judge(evidence).status == "not run"
    assert as_markdown(evidence, judge(evidence)).splitlines()[-1] == "NOT CHECKED: compute path"
