"""The sheet of a model: its files, tokenizer, sampling, memory and licence."""

import json

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from tiny_models import TOKENS, tiny_gguf

from bitnet.sheet.model_sheet import describe_model
from bitnet.sheet.plan import Resources

# Of a machine whose resources are unknown, nothing is said to fit or not.
MACHINE = Resources(free_disk=None, free_memory=None)


@pytest.fixture
def folder(tmp_path):
    """A folder with a tiny Llama, its tokenizer, sampling settings and a page with a licence."""
    path = tiny_folder(tmp_path / "model", "llama", transformers_version="4.46.3")
    tokenizer_folder(path, TOKENS)
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "suppress_tokens": [3, 5]}
    (path / "generation_config.json").write_text(json.dumps(settings))
    (path / "README.md").write_text("---\nlicense: apache-2.0\ntags: []\n---\n# A model")
    return path


def test_the_sheet_of_a_folder_lists_its_files_and_the_source_of_each_value(folder):
    sheet = describe_model(folder, MACHINE)
    assert sheet.writer == "4.46.3"
    assert sheet.plan.licence == "apache-2.0"
    sampling = sheet.facts()["generation"]["sampling"]
    assert sampling["temperature"] == {
        "value": 0.6,
        "source": "generation_config.json: temperature",
    }
    assert sheet.facts()["generation"]["suppressed"] == [3, 5]
    uses = {use.name: use.is_read for use in sheet.files}
    assert uses["tokenizer.json"]
    assert not uses["README.md"]


def test_a_safetensors_file_has_the_sheet_of_its_folder(folder):
    describe_model(folder, MACHINE)  # the first time compiles the tokenizer
    page = list(describe_model(folder / "model.safetensors", MACHINE).lines())
    assert page == list(describe_model(folder, MACHINE).lines())


def test_with_a_compiled_tokenizer_from_the_cache_the_same_files_count_as_read(folder):
    first = describe_model(folder, MACHINE)
    second = describe_model(folder, MACHINE)
    assert second.files == first.files
    assert {use.name: use.is_read for use in second.files}["generation_config.json"]
    assert not any(use.reason for use in second.files if use.is_read)


def test_the_lines_of_a_sheet_name_special_tokens_templates_and_sources(folder):
    text = "\n".join(describe_model(folder, MACHINE).lines())
    for part in (
        "architecture",
        "context",
        "memory",
        f"bos_token       0       {TOKENS[0]!r}",
        "chat templates  default",
        "temperature         0.6     generation_config.json: temperature",
        "never generated     2 tokens",
        "written by transformers 4.46.3",
        "README.md: not read: text for people",
    ):
        assert part in text


def test_a_gguf_file_is_described_by_its_keys(tmp_path):
    keys = {"general.sampling.temp": 0.5, "tokenizer.chat_template": "{{ messages[0].content }}"}
    path = tiny_gguf(tmp_path / "tiny.gguf", **keys)
    sheet = describe_model(path, MACHINE)
    assert sheet.tokenizer.place == "embedded"
    assert sheet.tokenizer.templates == ["default"]
    origin = sheet.generation.sampling["temperature"]
    assert (origin.value, origin.source) == (0.5, "general.sampling.temp")
    json.dumps(sheet.facts())


def test_a_model_without_a_tokenizer_is_described_with_the_reason(tmp_path):
    sheet = describe_model(tiny_folder(tmp_path / "model", "llama"), MACHINE)
    assert sheet.tokenizer is None
    assert sheet.findings[0].subject == "tokenizer"
    assert any("none that fits" in line for line in sheet.lines())


def test_the_packaged_models_have_special_tokens_and_a_context_of_at_least_8192(test_models):
    paths = sorted(test_models.glob("*.gguf"))
    assert len(paths) >= 2
    for path in paths:
        sheet = describe_model(path, MACHINE)
        assert sheet.tokenizer.special
        assert sheet.plan.context_length >= 8192


@pytest.mark.parametrize(
    ("head", "licence"),  # YAML at the head of README.md
    [
        ("license: mit", "mit"),
        ('license: "llama3.2" # a comment', "llama3.2"),
        ("license: [mit, 'apache-2.0']", "mit, apache-2.0"),
        ("license:\n- mit\n- apache-2.0\nlanguage: en", "mit, apache-2.0"),
        ("license:\n  - mit", "mit"),
        ("license:\nlanguage: en", ""),
        ("license: []", ""),
        ("tags:\n- mit\nlicense: other\nlanguage:\n- en", "other"),
        ("language: en", ""),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_licence_of_a_page_is_read_in_every_form_of_yaml(folder, head, licence, line_end):
    page = f"---\n{head}\n---\nlicense: none of this\n"
    (folder / "README.md").write_bytes(page.replace("\n", line_end).encode())
    assert describe_model(folder, MACHINE).plan.licence == licence
