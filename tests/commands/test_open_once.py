"""A command opens a model once, and what it opened is handed on."""

import pytest
from tiny_models import tiny_gguf

from bitnet.base.errors import TokenizerNotFound
from bitnet.formats.gguf import GGUF
from bitnet.verify import verify_model


@pytest.fixture
def opened(monkeypatch):
    """The files that were opened as GGUF, in order."""
    paths = []
    real = GGUF.open.__func__

    def counting(cls, path, **options):
        paths.append(path)
        return real(cls, path, **options)

    monkeypatch.setattr(GGUF, "open", classmethod(counting))
    return paths


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf")


def test_infer_opens_the_file_once(bitnet, model, opened):
    assert bitnet("infer", "--model", model, "--prompt", "ab", "--max-tokens", 2).code == 0
    assert opened == [model]


def test_infer_opens_a_file_without_tokenizer_once(bitnet, tmp_path, opened):
    path = tiny_gguf(tmp_path / "bare.gguf", tokenizer=False)
    words = ("--model", path, "--prompt", "ab", "--auto-download", "--offline")
    assert bitnet("infer", *words).code == TokenizerNotFound.exit_code
    assert opened == [path]


def test_serve_opens_the_file_once(bitnet, model, opened, monkeypatch):
    served = []
    monkeypatch.setattr(
        "bitnet.server.run.run",
        lambda models, *_rest, **_more: served.append(models.default.model.path),
    )
    assert bitnet("serve", "--model", model, "--port", 0).code == 0
    assert served == opened == [model]


def test_verify_opens_the_file_once(model, opened):
    assert all(check.severity != "failed" for check in verify_model(model))
    assert opened == [model]
