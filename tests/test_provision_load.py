"""``bitnet.load`` by name: what commands take as MODEL, a notebook takes, too."""

import pytest
from tiny_models import tiny_gguf

import bitnet


def test_the_model_of_the_package_is_loaded_by_its_name():
    with bitnet.load("bitnet-tiny") as model:
        assert model.generate("It is", max_tokens=2)


def test_a_model_of_the_hub_is_downloaded_once(hub, tmp_path, monkeypatch):
    hub.add("org/tiny", "tiny.gguf", tiny_gguf(tmp_path / "tiny.gguf").read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with bitnet.load("hf:org/tiny") as model:
        assert model.generate("ab", max_tokens=2)
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    with bitnet.load("hf:org/tiny", fetch=False) as model:
        assert model.path.name == "tiny.gguf"


def test_what_is_not_here_is_named_with_the_command_that_helps(monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    with pytest.raises(bitnet.Offline) as refused:
        bitnet.load("hf:org/none")
    assert str(refused.value) == f"{refused.value.message}\nhint: {refused.value.hint}"
    assert "bitnet download-model org/none" in str(refused.value)
