"""Models in folders: which files are models, their names, and folders that cannot be read."""

import json
import os
from pathlib import Path

import pytest

from bitnet.base.errors import NotFound, PermissionDenied
from bitnet.formats.mapped_file import folder_without_model
from bitnet.formats.model_files import find_models, model_name, models_below, only_model


@pytest.fixture
def folder(tmp_path):
    """Files of models, and files and folders that only look like some."""
    for name in (
        "b.gguf", "a/c.gguf", ".hidden/d.gguf", ".e.gguf", "mmproj-b.gguf", "notes.txt",
        "big-00001-of-00002.gguf", "big-00002-of-00002.gguf",
        "index/config.json", "index/model.safetensors.index.json",
        "shards/config.json", "shards/model-00001-of-00002.safetensors",
        "shards/model-00002-of-00002.safetensors", "weights/model.safetensors",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "f.gguf").mkdir()
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nothing")
    return tmp_path


def test_each_model_is_listed_once_and_those_of_a_folder_before_its_subfolders(folder):
    paths = [str(path.relative_to(folder)) for path in models_below(folder)]
    assert paths == ["b.gguf", "big-00001-of-00002.gguf", "a/c.gguf", "index", "shards"]


def test_the_modules_of_a_model_are_not_listed_as_models(tmp_path):
    for name in ("", "2_Dense/", "variant/"):
        (tmp_path / "m" / name).mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            (tmp_path / "m" / name / file).touch()
    modules = [{"path": "", "type": "a.Transformer"}, {"path": "2_Dense/", "type": "a.Dense"}]
    (tmp_path / "m/modules.json").write_text(json.dumps(modules))
    assert find_models(tmp_path) == [tmp_path / "m", tmp_path / "m/variant"]
    assert find_models(tmp_path, broken=True) == [tmp_path / "m", tmp_path / "m/variant"]
    (tmp_path / "m/modules.json").write_text("{")
    assert len(find_models(tmp_path)) == 3


def test_a_folder_that_cannot_be_read_is_an_error(folder, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patched:  # the folder is removed with the true function
        patched.setattr(os, "scandir", refuse)
        with pytest.raises(PermissionDenied, match=r"/a\b"):
            list(models_below(folder))


@pytest.mark.parametrize("place", ["index/config.json", "a/c.gguf"])
def test_a_folder_that_can_be_listed_but_not_searched_is_an_error(folder, place, monkeypatch):
    """Unix has two rights: one to list a folder, and one to look at the files in it."""
    look = Path.stat

    def refuse(path, **options):
        if path == folder / place:
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(PermissionDenied, match=place):
        list(models_below(folder))
    with pytest.raises(PermissionDenied, match=place):
        find_models(folder)


@pytest.mark.parametrize(
    ("path", "name"),
    [("models/tiny.gguf", "tiny"), ("models/folder", "folder"), ("v1.5", "v1.5")],
)
def test_a_model_is_called_like_its_file_or_folder(path, name):
    assert model_name(Path(path)) == name


def test_a_model_in_this_folder_has_the_name_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_name(Path()) == tmp_path.name


def test_a_name_in_capitals_is_that_of_a_model_in_every_list(tmp_path):
    (tmp_path / "A.GGUF").touch()
    for broken in (False, True):
        assert find_models(tmp_path, broken=broken) == [tmp_path / "A.GGUF"]
    assert model_name(tmp_path / "A.GGUF") == "A"


# Files of a folder, and the model among them; empty if it is not the only one.
@pytest.mark.parametrize(
    ("names", "model"),
    [
        (["m.gguf"], "m.gguf"),
        (["M.GGUF"], "M.GGUF"),
        (["m.gguf", "mmproj-m.gguf"], "m.gguf"),
        (["m.gguf", "m-mmproj-f16.gguf", "._m.gguf"], "m.gguf"),
        (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], "m-00001-of-00002.gguf"),
        (
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf"],
            "m-00001-of-00002.gguf",
        ),
        (["m.gguf", "n.gguf"], ""),
        (["m.gguf", "config.json"], ""),
        (["mmproj-m.gguf"], ""),
    ],
)
def test_the_only_model_of_a_folder_is_taken(names, model, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    assert only_model(tmp_path) == tmp_path / model  # the folder itself without an only model


@pytest.mark.parametrize(
    ("names", "words", "hint"),
    [
        (["m.gguf", "n.gguf", "a-mmproj.gguf"], "a folder with 2 GGUF files", "m.gguf"),
        (["mmproj-m.gguf"], "mmproj-m.gguf belongs to a model and is not one", "download-model"),
        (["notes.txt"], "neither *.gguf nor", "download-model"),
    ],
)
def test_the_error_for_a_folder_names_models_only(names, words, hint, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    failure = folder_without_model(tmp_path)
    assert isinstance(failure, NotFound)
    assert words in failure.message
    assert hint in failure.hint
