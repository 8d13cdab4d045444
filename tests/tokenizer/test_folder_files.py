"""Each file of a folder is named with its purpose and whether it counts."""

import json
import shutil
from pathlib import Path

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from tiny_models import TOKENS

import bitnet
from bitnet.base.errors import TokenizerNotFound, Unsupported, UsageError
from bitnet.formats.containers import open_checkpoint
from bitnet.tokenizer import load_tokenizer, resolve_tokenizer
from bitnet.tokenizer.comparison import compatibility
from bitnet.tokenizer.folder_files import compare_tokenizer_files, find_unknown_stops, list_files
from bitnet.verify import verify_model

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def folder(tmp_path):
    """A model folder with a tokenizer, side files and files that do not count."""
    path = tiny_folder(tmp_path / "model", "llama")
    tokenizer_folder(path, ["<s>", "</s>", "a", "b"])
    settings = {"added_tokens_decoder": {}, "chat_template": "x"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "special_tokens_map.json").write_text("{}")
    (path / "README.md").write_text("# A model")
    (path / "chat_template.json").write_text('{"chat_template": "y"}')
    (path / "pytorch_model.bin").write_bytes(b"x")
    (path / "notes.xyz").write_text("x")
    return path


def uses(path):
    """Files of the folder *path* by name, with their use."""
    return {use.name: use for use in list_files(open_checkpoint(path))}


def test_files_that_count_are_named_with_their_purpose(folder):
    lines = [str(use) for use in list_files(open_checkpoint(folder))]
    assert "tokenizer.json: tokenizer; read" in lines
    assert "model.safetensors: weights; read" in lines
    assert "config.json: architecture and sizes; read" in lines


def test_files_that_do_not_count_are_named_with_the_reason(folder):
    by_name = uses(folder)
    for name, reason in (
        ("special_tokens_map.json", "added_tokens_decoder"),
        ("chat_template.json", "another file has the chat template"),
        ("README.md", "text for people"),
        ("pytorch_model.bin", "other weights"),
        ("notes.xyz", "no reader knows it"),
    ):
        assert not by_name[name].is_read
        assert reason in str(by_name[name])
    assert {use.name for use in by_name.values()} == {path.name for path in folder.iterdir()}


def test_only_jinja_files_count_in_the_folder_of_templates(folder):
    (folder / "tokenizer_config.json").write_text('{"chat_template": []}')
    templates = folder / "additional_chat_templates"
    templates.mkdir()
    (templates / "README.md").write_text("# Templates")
    by_name = uses(folder)
    assert not by_name["additional_chat_templates/README.md"].is_read
    assert by_name["chat_template.json"].is_read
    (templates / "tools.jinja").write_text("x")
    by_name = uses(folder)
    assert by_name["additional_chat_templates/tools.jinja"].is_read
    assert not by_name["chat_template.json"].is_read


def test_a_second_tokenizer_is_compared_and_its_difference_named(folder):
    shutil.copy(FIXTURES / "spm" / "tiny.model", folder / "tokenizer.model")
    checkpoint = open_checkpoint(folder)
    differences = compare_tokenizer_files(checkpoint, load_tokenizer(folder / "tokenizer.json"))
    assert [*differences] == ["tokenizer.model"]
    assert differences["tokenizer.model"]
    assert uses(folder)["tokenizer.model"].reason == "transformers reads tokenizer.json"


def test_a_tokenizer_of_another_folder_is_compared_with_every_file(folder):
    shutil.copy(FIXTURES / "spm" / "tiny.model", folder / "tokenizer.model")
    shutil.copy(folder / "tokenizer.json", folder.parent)
    (folder / "tokenizer.json").write_text("{}")  # so the search chooses that of the parent
    chosen = folder.parent / "tokenizer.json"
    assert resolve_tokenizer(folder).source == str(chosen)
    (finding,) = [check for check in verify_model(folder) if check.subject == "files"]
    assert finding.severity == "warning"
    assert f"not the tokenizer of {chosen}: tokenizer.json: it cannot be read" in finding.text
    assert "tokenizer.model: 1,000 tokens, not 4" in finding.text


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_an_end_of_answers_that_is_not_a_token_is_named(folder, name, monkeypatch):
    values = json.loads((folder / "config.json").read_text())
    (folder / name).write_text(json.dumps(values | {"eos_token_id": [1, 9, -1]}))
    monkeypatch.chdir(folder)
    for path in (folder, Path()):
        checkpoint = open_checkpoint(path)
        tokenizer = resolve_tokenizer(checkpoint)
        assert find_unknown_stops(checkpoint, tokenizer) == [9, -1]
    assert tokenizer.stop_ids == {1}
    (finding,) = [check for check in verify_model(folder) if check.subject == "stop ids"]
    assert finding.severity == "warning"
    assert finding.text.startswith("no token has the id 9,")
    (folder / name).write_text(json.dumps(values | {"eos_token_id": 1}))
    (finding,) = [check for check in verify_model(folder) if check.subject == "stop ids"]
    assert (finding.severity, finding.text) == ("ok", "1 </s>")


def test_a_tokenizer_from_elsewhere_has_its_own_ends_of_answers(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"eos_token_id": 9}))
    elsewhere = shutil.copy(folder / "tokenizer.json", folder.parent)
    assert find_unknown_stops(open_checkpoint(folder), load_tokenizer(Path(elsewhere))) == []


def test_two_kinds_of_tokenizers_that_nothing_chooses_between_are_refused(tmp_path):
    path = tiny_folder(tmp_path / "model", "llama")
    shutil.copy(FIXTURES / "spm" / "tiny.model", path / "tokenizer.model")
    (path / "vocab.json").write_text("{}")
    (path / "merges.txt").write_text("")
    for read in (load_tokenizer, resolve_tokenizer):
        with pytest.raises(Unsupported, match=r"tokenizer\.model and vocab\.json"):
            read(path)


def test_added_tokens_without_a_row_are_refused_when_they_occur_and_only_then(tmp_path):
    path = tiny_folder(tmp_path / "model", "llama")
    tokenizer_folder(path, TOKENS)
    rows = json.loads((path / "config.json").read_text())["vocab_size"]
    document = json.loads((path / "tokenizer.json").read_text())
    for id in range(len(TOKENS), rows + 1):
        entry = {**document["added_tokens"][0], "id": id, "content": f"<more{id}>"}
        document["added_tokens"].append(entry)
    (path / "tokenizer.json").write_text(json.dumps(document))
    model = bitnet.load(path)
    assert model.tokenizer.vocab_size == rows + 1
    # Constraints on the tokens, which have more ids than the model has logits.
    assert set(model.generate("ab", max_tokens=4, regex="[ab]+")) <= {"a", "b"}
    assert model.generate("ab", max_tokens=4, min_tokens=4)
    with pytest.raises(UsageError, match="outside the model's vocabulary"):
        model.generate(f"ab<more{rows}>", max_tokens=1)
    assert compatibility(path, model.tokenizer).compatible


def test_ordinary_tokens_without_a_row_are_another_vocabulary(tmp_path):
    path = tiny_folder(tmp_path / "model", "llama", vocab_size=len(TOKENS) - 2)
    tokenizer_folder(path, TOKENS)
    with pytest.raises(TokenizerNotFound, match="Vocabulary size mismatch"):
        resolve_tokenizer(path)
