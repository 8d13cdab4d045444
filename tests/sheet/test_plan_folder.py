"""The plan of a model that is a folder."""

import shutil

import pytest
from hf_folders import tiny_folder
from tiny_models import tiny_gguf

from bitnet.base.errors import NotFound
from bitnet.sheet import plan
from bitnet.sheet.plan import Resources, plan_path
from bitnet.tokenizer.export import export_tokenizer
from bitnet.tokenizer.load import load_spec

ROOMY = Resources(free_disk=10**12, free_memory=10**12)


@pytest.fixture
def folder(tmp_path):
    """A folder that is a whole model, with its tokenizer."""
    path = tmp_path / "model"
    tiny_folder(path, "llama")
    export_tokenizer(load_spec(tiny_gguf(tmp_path / "same.gguf")), path)
    return path


def test_a_folder_is_planned_with_its_weights_its_cache_and_its_tokenizer(folder):
    planned = plan_path(folder, ROOMY)
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert (planned.architecture, planned.has_tokenizer, planned.local) == ("llama", True, True)
    assert planned.size_bytes == weights
    # A loose lower bound: `weights` is the size of the files, with their headers.
    assert planned.memory_bytes > weights // 2 + plan.OVERHEAD_BYTES
    assert sum(planned.encodings.values()) == pytest.approx(1.0)
    assert planned.runs
    text = "\n".join(planned.lines())
    assert "(a folder)" in text
    assert "runs here      yes" in text


def test_a_safetensors_file_has_the_plan_of_its_folder(folder):
    assert plan_path(folder / "model.safetensors", ROOMY) == plan_path(folder, ROOMY)


def test_a_folder_without_a_tokenizer_does_not_run(folder):
    (folder / "tokenizer.json").unlink()
    planned = plan_path(folder, ROOMY)
    assert not planned.runs
    assert [finding.subject for finding in planned.findings] == ["tokenizer"]


def test_a_folder_that_does_not_fit_in_memory_has_a_finding(folder):
    planned = plan_path(folder, Resources(free_disk=10**12, free_memory=1000))
    assert [finding.subject for finding in planned.findings] == ["memory"]


def test_a_folder_with_a_gguf_file_names_it(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf")
    with pytest.raises(NotFound, match="a folder with 1 GGUF file") as caught:
        plan_path(tmp_path, ROOMY)
    assert f"name the file itself: {path}" in caught.value.hint


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(NotFound, match="no model in"):
        plan_path(tmp_path, ROOMY)
    shutil.rmtree(tmp_path)
    with pytest.raises(NotFound, match="no such file or folder"):
        plan_path(tmp_path, ROOMY)


def test_weights_that_are_not_loaded_do_not_count_in_the_size(folder):
    size = plan_path(folder, ROOMY).size_bytes
    for name in ("consolidated.safetensors", "old/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "model.safetensors", folder / name)
    assert plan_path(folder, ROOMY).size_bytes == size
