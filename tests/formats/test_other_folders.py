"""Folders as people download them: read without a silent change, or refused by what they are."""

import json
import logging
import shutil

import numpy as np
import pytest
from adapter_files import factors, peft_folder
from hf_folders import save_tensors, tiny_folder

from bitnet.base.errors import Unsupported
from bitnet.formats.containers import open_checkpoint
from bitnet.tokenizer.folder_files import list_files


def adapter(folder):
    """Write a PEFT adapter of one matrix to *folder*, and return *folder*."""
    return peft_folder(folder, {"model.layers.0.mlp.up_proj": factors(8, 6)})


def test_an_adapter_alone_is_refused_with_the_option_that_runs_it(tmp_path):
    folder = adapter(tmp_path / "style")
    with pytest.raises(Unsupported, match="an adapter of 'tiny' alone") as raised:
        open_checkpoint(folder)
    assert f"--lora {folder}" in raised.value.hint
    shutil.copy(tiny_folder(tmp_path / "model", "llama") / "config.json", folder)
    with pytest.raises(Unsupported, match="an adapter of 'tiny' alone"):
        open_checkpoint(folder)


def test_an_adapter_without_a_readable_configuration_is_refused_all_the_same(tmp_path):
    folder = adapter(tmp_path / "style")
    (folder / "adapter_config.json").write_text("[")
    with pytest.raises(Unsupported, match="is an adapter alone"):
        open_checkpoint(folder)


def test_a_model_with_an_adapter_beside_it_says_that_the_adapter_does_not_count(tmp_path, caplog):
    folder = tiny_folder(tmp_path / "model", "llama")
    for path in adapter(tmp_path / "style").iterdir():
        shutil.copy(path, folder)
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(folder)
    assert "transformers would run the model with this adapter" in caplog.text
    uses = {use.name: str(use) for use in list_files(checkpoint)}
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert uses[name].endswith("not read: an adapter counts with --lora")


def test_a_weights_file_of_another_name_is_found_beside_an_adapter(tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    shutil.copy(adapter(tmp_path / "style") / "adapter_model.safetensors", folder)
    assert "token_embd.weight" in open_checkpoint(folder).weights


def test_mistrals_own_form_is_refused_by_name(tmp_path):
    folder = tiny_folder(tmp_path / "mistral", "llama")
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    (folder / "config.json").unlink()
    (folder / "params.json").write_text("{}")
    with pytest.raises(Unsupported, match=r"Mistral's own form \(params\.json\)"):
        open_checkpoint(folder)


def test_both_forms_of_mistral_in_one_folder_are_told_apart(tmp_path):
    folder = tiny_folder(tmp_path / "mistral", "llama")
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    (folder / "params.json").write_text("{}")
    uses = {use.name: use for use in list_files(open_checkpoint(folder))}
    assert uses["model.safetensors"].is_read
    assert uses["consolidated.safetensors"].reason == "another file has the weights"
    assert uses["params.json"].reason == "Mistral's own form of config.json; config.json counts"


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "tf_model.h5", "onnx/model.onnx"],
)
def test_weights_in_another_form_alone_are_refused_by_their_file(name, tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(Unsupported, match=rf"has its weights in {name} .*none in \*\.safetensors"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "original/consolidated.00.pth", "x.gguf"])
def test_weights_in_another_form_beside_safetensors_change_nothing(name, tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    before = open_checkpoint(folder).weights.keys()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"GGUF")
    assert open_checkpoint(folder).weights.keys() == before


def test_a_folder_around_a_model_names_the_model(tmp_path):
    folder = tiny_folder(tmp_path / "download" / "model", "llama")
    with pytest.raises(
        Unsupported, match="download is not a model, and model in it is one"
    ) as raised:
        open_checkpoint(folder.parent)
    assert str(folder) in raised.value.hint


@pytest.mark.parametrize("name", ["hf_quant_config.json"])
def test_codes_that_only_another_file_describes_are_refused_by_it(name, tmp_path):
    folder = tiny_folder(tmp_path / "model", "llama")
    codes = {"model.layers.0.self_attn.q_proj.qweight": np.zeros((4, 4), "f4")}
    save_tensors(folder / "model.safetensors", codes)
    (folder / name).write_text(json.dumps({"bits": 4}))
    with pytest.raises(Unsupported, match=rf"quantized as {name} says, which is not read"):
        open_checkpoint(folder)
