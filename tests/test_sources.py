"""The registered sources of tokenizers and models: which model has which, and their licences."""

from pathlib import Path

import pytest

from bitnet import sources
from bitnet.base.errors import TokenMissing
from bitnet.hub.orders import FileOrder, Obtained
from bitnet.sources import Source
from bitnet.store.records import Blob, Pin


@pytest.mark.parametrize(
    ("architecture", "size", "name"),
    [
        ("llama", 128_256, "mirror"),
        ("bitnet-b1.58", 128_256, "mirror"),
        ("llama", 32_000, "llama2-32k"),
        ("gpt2", 50_257, "gpt2-50k"),
    ],
)
def test_a_known_vocabulary_has_its_source(architecture, size, name):
    assert sources.for_model(architecture, size).name == name


@pytest.mark.parametrize(
    ("architecture", "size"),
    [("llama", 128_255), ("llama", 99_999), ("mistral", 32_000), ("phi3", 32_064), ("", 32_000)],
)
def test_a_vocabulary_that_merely_comes_close_has_none(architecture, size):
    assert sources.for_model(architecture, size) is None


def test_a_gated_source_without_a_token_explains_three_steps():
    with pytest.raises(TokenMissing) as caught:
        sources.require_token(sources.TOKENIZERS["official"])
    text = str(caught.value)
    assert "HF_TOKEN environment variable required for official source" in text
    assert all(f"  {step}. " in text for step in (1, 2, 3))
    assert "--source mirror" in caught.value.hint


def test_an_empty_token_is_not_a_token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", " ")
    with pytest.raises(TokenMissing):
        sources.require_token(sources.TOKENIZERS["llama2-32k"])


def test_a_token_or_an_open_source_passes(monkeypatch):
    sources.require_token(sources.TOKENIZERS["mirror"])
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    sources.require_token(sources.TOKENIZERS["official"])


def test_each_registered_source_has_its_repository_cache_key_and_size():
    facts = {name: (s.repo, s.cache_key, s.vocab_size) for name, s in sources.TOKENIZERS.items()}
    assert facts == {
        "mirror": ("baseten/Meta-Llama-3-tokenizer", "llama3-128k", 128_256),
        "official": ("meta-llama/Meta-Llama-3-8B", "llama3-128k", 128_256),
        "llama2-32k": ("meta-llama/Llama-2-7b-hf", "llama2-32k", 32_000),
        "gpt2-50k": ("openai-community/gpt2", "gpt2-50k", 50_257),
    }


def test_a_repository_leads_to_its_source():
    bitnet = sources.model_source("microsoft/bitnet-b1.58-2B-4T-gguf")
    assert bitnet is sources.MODELS["bitnet-2b-4t"]
    assert sources.model_source("o/unknown") is None
    assert bitnet.file == "ggml-model-i2_s.gguf"


def test_the_licence_line_names_terms_and_place():
    source = Source("m", "o/m")
    blob = Blob("0" * 64, 1, Path("m"))
    named = Obtained(
        FileOrder(source), blob, Pin(repo="o/m", licence="MIT"), licence_url="https://mit.example"
    )
    assert named.licence_line.startswith("Licence: MIT, https://mit.example ")
    unknown = Obtained(FileOrder(source), blob, Pin(repo="o/m"))
    assert "huggingface.co/o/m" in unknown.licence_line
