"""A tiny model on each backend, drafts without a price, and files of short prompts."""

import pytest
from stored_prompts import model_of, opened
from tiny_models import in_encoding, tiny

from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime import prompt_cache
from bitnet.runtime.pass_times import PassTimes


@pytest.fixture(scope="module", params=["reference", "native"])
def model(request):
    """A tiny Llama: F32 weights on the reference backend, Q8_0 on the compiled one."""
    if request.param == "native":
        pytest.importorskip("bitnet._native")
        return load_model(in_encoding(tiny("llama"), "Q8_0"), ops=NativeOps(threads=2))
    return load_model(tiny("llama"), ops=ReferenceOps())


@pytest.fixture
def free_drafts(monkeypatch):
    """Drafts whose measured price is always 0, so that the load of the machine decides nothing."""
    monkeypatch.setattr(PassTimes, "observe", lambda *_: 0.0)
    monkeypatch.setattr(PassTimes, "has_undrafted", lambda *_: True)


@pytest.fixture
def short_prompts(monkeypatch, tmp_path):
    """Store prompts from 32 positions on instead of 256: those of the tests are short.

    Caches that a test left open are closed before its folder is removed: their threads write there.
    """
    monkeypatch.setattr(prompt_cache, "SHORTEST", 32)
    yield tmp_path
    while opened:
        opened.pop().close()


@pytest.fixture(scope="module")
def llama():
    """A compiled tiny Llama whose context is several pages long."""
    pytest.importorskip("bitnet._native")
    return model_of("llama")
