"""Tokenizers named by repository or address: one download, then the cache."""

import json
from functools import partial
from pathlib import Path

import pytest
from tekken_files import write

from bitnet.base.errors import InvalidFormat, NotFound, Offline, Unsupported, UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.models import locate_tokenizer
from bitnet.hub.project import Project
from bitnet.hub.ref import parse
from bitnet.tokenizer.from_files import TOKENIZER_FILES, order_names, spec_from_folder
from bitnet.tokenizer.load import load_tokenizer
from bitnet.tokenizer.side_files import SIDE_FILES

CONTENT = json.dumps({"model": {"type": "BPE"}}).encode()
REPO = "org/words"


@pytest.fixture
def project(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.add(REPO, "README.md", b"words")
    hub.add(REPO, "tokenizer.json", CONTENT)
    hub.add(REPO, "tokenizer_config.json", b"{}")
    hub.add(REPO, "old/vocab.txt", b"a\nb\n")
    hub.add(REPO, "old/added_tokens.json", b"{}")
    return Project(tmp_path, tmp_path, FetchOptions(retries=1), "none")


def read(path):
    """Bytes of the file at *path*: as a check, this accepts every file."""
    return path.read_bytes()


# Path of a tokenizer that a command names, with the files beside it that a tokenizer reads.
provide = partial(
    locate_tokenizer,
    names=TOKENIZER_FILES,
    beside=SIDE_FILES,
    order_names=order_names,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h.example/a/tokenizer.json?x=1", {"url": "https://h.example/a/tokenizer.json?x=1"}),
        ("hf://org/words", {"repo": "org/words"}),
        ("hf://org/words@v1", {"repo": "org/words", "revision": "v1"}),
        ("hf://org/words@v1/old/vocab.txt",
         {"repo": "org/words", "revision": "v1", "file": "old/vocab.txt"}),
        ("org/words", {"repo": "org/words"}),
    ],
)  # fmt: skip
def test_addresses_and_names_of_repositories_are_not_read_as_paths(text, expected):
    ref = parse(text)
    assert {name: getattr(ref, name) for name in expected} == expected
    assert ref.path is None


@pytest.mark.parametrize(
    "text", ["words", "./org/words", "/org/words", "org/words.json", "a/b/c", "tests", "~/words"]
)
def test_any_other_text_is_read_as_a_path(text):
    assert parse(text).path == Path(text)


def test_a_mistyped_path_in_an_existing_folder_is_not_read_as_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert parse("models/wrods").path == Path("models/wrods")


@pytest.mark.parametrize(
    "text", ["https://", "https://host", "hf://org", "hf://", "hf:///x", "hf://o/r/model.gguf"]
)
def test_an_incomplete_address_or_one_of_a_model_is_refused_as_a_tokenizer(text, project):
    with pytest.raises(UsageError):
        provide(parse(text), project, check=read)


def test_a_tokenizer_with_files_beside_it_is_reported_once(project, caplog):
    caplog.set_level("INFO", "bitnet")
    path = provide(parse(REPO), project, check=read)
    assert (path.parent / "tokenizer_config.json").exists()
    assert caplog.text.count("Successfully downloaded tokenizer") == 1
    assert f"Successfully downloaded tokenizer: {path}\n" in caplog.text
    caplog.clear()
    path.unlink()
    assert provide(parse(REPO), project, check=read) == path  # from the store
    assert "Successfully downloaded" not in caplog.text


def test_of_a_repository_of_mistral_its_own_tekken_file_is_fetched(project, hub, tmp_path):
    hub.add("mistral/words", "tokenizer.json", CONTENT)
    hub.add("mistral/words", "tekken.json", write(tmp_path / "any.json").read_bytes())
    hub.add("mistral/words", "config.json", b'{"model_type": "ministral3"}')
    path = provide(parse("mistral/words"), project, check=load_tokenizer)
    assert load_tokenizer(path).pre == "tekken"
    names = sorted(entry.name for entry in path.parent.glob("*.json"))
    assert names == ["config.json", "tekken.json"]


@pytest.mark.parametrize("config", [None, b'{"model_type": "qwen2"}', b"[]"])
def test_a_tekken_file_of_another_models_repository_is_not_preferred(
    project, hub, tmp_path, config
):
    hub.add("org/both", "tokenizer.json", CONTENT)
    hub.add("org/both", "tekken.json", write(tmp_path / "any.json").read_bytes())
    if config is not None:
        hub.add("org/both", "config.json", config)
    assert provide(parse("org/both"), project, check=read).name == "tokenizer.json"


@pytest.mark.parametrize("second", ["tekken.json", "vocab.json"])
def test_two_tokenizers_of_a_repository_are_refused_like_those_of_a_folder(
    project, hub, tmp_path, second
):
    """The rule is that of folders: one function answers for both."""
    files = {"tokenizer.model": b"model", second: b"{}", "merges.txt": b"a b"}
    for name, content in files.items():
        hub.add("org/undecided", name, content)
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    with pytest.raises(Unsupported, match="nothing says which one"):
        spec_from_folder(tmp_path / "folder")
    with pytest.raises(Unsupported, match="nothing says which one"):
        provide(parse("org/undecided"), project, check=read)


def test_a_vocabulary_without_merges_is_not_a_tokenizer(project, hub):
    hub.add("org/speech", "vocab.json", b"{}")
    with pytest.raises(NotFound, match="has no tokenizer"):
        provide(parse("org/speech"), project, check=read)


def test_named_chat_templates_are_fetched_with_a_tokenizer(project, hub):
    hub.add(REPO, "additional_chat_templates/tool_use.jinja", b"for tools")
    hub.add(REPO, "additional_chat_templates/notes.txt", b"no template")
    folder = provide(parse(REPO), project, check=read).parent
    (template,) = (folder / "additional_chat_templates").iterdir()
    assert template.read_bytes() == b"for tools"


def test_a_tokenizer_of_a_repository_is_fetched_once_with_its_configuration_only(project, hub):
    path = provide(parse(REPO), project, check=read)
    assert path.read_bytes() == CONTENT
    (folder,) = (project.cache / "tokenizers").glob("hub-org--words@main-*")
    assert path == folder / "tokenizer.json"
    assert (path.parent / "tokenizer_config.json").exists()
    assert not (path.parent / "README.md").exists()
    hub.forget()
    assert provide(parse(f"hf://{REPO}"), project, check=read) == path
    assert hub.requests() == []


def test_a_file_by_its_name_does_not_become_the_tokenizer_of_its_repository(
    project, hub, monkeypatch
):
    hub.add(REPO, "tokenizer.model", b"sentencepiece")
    named = provide(parse(f"hf:{REPO}:tokenizer.model"), project, check=read)
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    with pytest.raises(Offline):  # which file is the repository's tokenizer is not known yet
        provide(parse(REPO), project, check=read)
    monkeypatch.delenv("BITNET_OFFLINE")
    path = provide(parse(REPO), project, check=read)
    assert path.read_bytes() == CONTENT
    assert named.read_bytes() == b"sentencepiece"
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    assert provide(parse(f"hf:{REPO}:tokenizer.model"), project, check=read) == named
    assert provide(parse(REPO), project, check=read) == path


def test_a_file_of_a_revision_is_fetched_with_the_files_in_its_own_folder(project, hub):
    commit = hub.repos[REPO].revisions["main"]
    path = provide(parse(f"hf://{REPO}@{commit}/old/vocab.txt"), project, check=read)
    assert path.read_bytes() == b"a\nb\n"
    assert (path.parent / "added_tokens.json").exists()
    assert not (path.parent / "tokenizer.json").exists()


def test_a_tokenizer_at_an_address_is_recorded_with_its_etag_and_fetched_again_if_changed(
    project, hub
):
    # A host that the user has not named as the hub.
    elsewhere = hub.url.replace("127.0.0.1", "localhost")
    url = f"{elsewhere}/{REPO}/resolve/main/tokenizer.json"
    path = provide(parse(url), project, check=read)
    record = project.store.index.find(url)
    assert record.repo == url
    assert record.revision
    hub.forget()
    assert provide(parse(url), project, check=read) == path
    assert hub.requests() == []
    path.unlink()
    path.write_bytes(b"changed")
    assert provide(parse(url), project, check=read).read_bytes() == CONTENT


def test_no_file_of_the_cache_holds_the_secret_of_an_address(project, hub):
    url = f"{hub.url}/{REPO}/resolve/main/tokenizer.json?token=geheim"
    provide(parse(url), project, check=read)
    assert "geheim" not in "".join(
        file.read_text() + str(file) for file in project.cache.rglob("*") if file.is_file()
    )


def test_offline_a_tokenizer_is_used_if_it_is_there_and_not_fetched(project, hub, monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    for text in (REPO, f"{hub.url}/{REPO}/resolve/main/tokenizer.json"):
        with pytest.raises(Offline):
            provide(parse(text), project, check=read)
    assert hub.requests() == []
    monkeypatch.delenv("BITNET_OFFLINE")
    path = provide(parse(REPO), project, check=read)
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    assert provide(parse(REPO), project, check=read) == path


def test_a_file_that_the_check_refuses_is_fetched_again_the_next_time(project):
    def refuse(path):
        raise InvalidFormat(f"{path} is no tokenizer")

    with pytest.raises(InvalidFormat):
        provide(parse(REPO), project, check=refuse)
    assert provide(parse(REPO), project, check=read).read_bytes() == CONTENT


def test_the_error_for_a_repository_without_a_tokenizer_lists_its_files(project, hub):
    hub.add("org/bare", "model.safetensors", b"x")
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        provide(parse("org/bare"), project, check=read)
    with pytest.raises(NotFound):
        provide(parse(f"hf://{REPO}/none.json"), project, check=read)
    with pytest.raises(NotFound):
        provide(parse("org/absent"), project, check=read)
