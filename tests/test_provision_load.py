"""``bitnet.load`` takes every name and path that commands take as MODEL."""

from pathlib import Path

import pytest
from locked_folders import lock_folder
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


@pytest.mark.parametrize("argument", ["model", "tokenizer", "draft_model"])
def test_an_empty_text_is_not_the_current_folder(argument, tmp_path, monkeypatch):
    model = tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bitnet.UsageError, match=f"^{argument} is an empty text") as refused:
        bitnet.load(**{"model": model, argument: ""}, fetch=False)
    assert refused.value.field == argument


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A folder that this user may not search, also if it is root."""
    folder = tmp_path / "locked"
    folder.mkdir()
    lock_folder(monkeypatch, folder)
    return folder


# Names that are too long for a file or a path, a NUL, and paths in a locked folder.
PATHS = ("a" * 300, f"{'a' * 300}.gguf", f"x/{'a' * 300}", "a\0b", "{locked}/x.gguf", "{locked}/x",
         "{locked}", "x" * 5000)  # fmt: skip


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("argument", ["model", "tokenizer", "draft_model", "lora"])
@pytest.mark.parametrize("text", PATHS)
def test_a_path_that_cannot_be_looked_up_is_refused(text, argument, kind, locked, tmp_path):
    value = kind(text.format(locked=locked))
    options = {argument: [value] if argument == "lora" else value}
    if argument != "model":
        options["model"] = tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(bitnet.BitnetError) as refused:
        bitnet.load(**options, fetch=False)
    assert "internal error" not in refused.value.message
    assert refused.value.hint
