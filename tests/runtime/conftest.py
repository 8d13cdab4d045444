"""A tiny model, once on each backend."""

import pytest
from stored_prompts import model_of
from tiny_models import in_encoding, tiny

from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime import prompt_cache
from bitnet.runtime.pass_times import PassTimes


@pytest.fixture(scope="module", params=["reference", "native"])
def model(request):
    """On the reference in F32, on the compiled backend in Q8_0."""
    if request.param == "native":
        pytest.importorskip("bitnet._native")
        return load_model(in_encoding(tiny("llama"), "Q8_0"), ops=NativeOps(threads=2))
    return load_model(tiny("llama"), ops=ReferenceOps())


@pytest.fixture
def free_drafts(monkeypatch):
    """Drafts that take no time, however busy the machine is."""
    monkeypatch.setattr(PassTimes, "observe", lambda *_: 0.0)
    monkeypatch.setattr(PassTimes, "knows_plain", lambda *_: True)


@pytest.fixture
def short_prompts(monkeypatch):
    """A few positions are worth a file, as 256 are for larger models."""
    monkeypatch.setattr(prompt_cache, "SHORTEST", 32)


@pytest.fixture(scope="module")
def llama():
    pytest.importorskip("bitnet._native")
    return model_of("llama")
