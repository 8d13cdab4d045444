"""Names of models: each means one thing to every command, and a model listed as here loads."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

import bitnet as package
from bitnet.base.errors import NotFound, UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.orders import order_of
from bitnet.hub.project import Project
from bitnet.hub.ref import Ref, parse
from bitnet.sources import Source
from bitnet.store import tree


def facts(ref):
    """Repository, revision and file of *ref*."""
    return (ref.repo, ref.revision, ref.file)


@pytest.mark.parametrize(
    ("text", "expected"),  # expected: repository, revision, file
    [
        ("org/one", ("org/one", "main", "")),
        ("hf:org/one", ("org/one", "main", "")),
        ("hf:org/one:m.gguf", ("org/one", "main", "m.gguf")),
        ("hf:org/one:sub/m.gguf@v1", ("org/one", "v1", "sub/m.gguf")),
        ("hf:org/one@v1:*Q4*", ("org/one", "v1", "*Q4*")),
        ("hf:org/one@v1", ("org/one", "v1", "")),
        ("hf://org/one@v1/sub/m.gguf", ("org/one", "v1", "sub/m.gguf")),
        ("https://huggingface.co/org/one", ("org/one", "main", "")),
        ("https://huggingface.co/org/one/", ("org/one", "main", "")),
        ("https://hf.co/org/one/tree/v1", ("org/one", "v1", "")),
        ("https://huggingface.co/org/one/blob/main/a%20b.gguf", ("org/one", "main", "a b.gguf")),
        ("https://huggingface.co/org/one/resolve/main/m.gguf?download=true",
         ("org/one", "main", "m.gguf")),
        ("https://huggingface.co/org/one/resolve/refs%2Fpr%2F1/m.gguf",
         ("org/one", "refs/pr/1", "m.gguf")),
        ("https://huggingface.co/org/one/tree/refs%2Fpr%2F1", ("org/one", "refs/pr/1", "")),
        ("https://huggingface.co/org/one/blob/a%252Fb/50%25/c%2520d.gguf",
         ("org/one", "a%2Fb", "50%/c%20d.gguf")),
        ("bitnet-2b-4t", ("microsoft/bitnet-b1.58-2B-4T-gguf", "main", "ggml-model-i2_s.gguf")),
    ],
)  # fmt: skip
def test_a_name_or_address_of_the_hub_is_read_as_repository_revision_and_file(text, expected):
    assert facts(parse(text)) == expected


@pytest.mark.parametrize("text", ["m.gguf", "a/b.gguf", "./org/one", "/org/one", "a/b/c", "tinny"])
def test_a_text_in_the_form_of_a_path_is_read_as_a_path(text):
    assert parse(text) == Ref(text, path=Path(text))


@pytest.mark.parametrize("repo", ["org/one", "hf:org/one", "hf.co/org/one",
                                  "www.huggingface.co/org/one", "HuggingFace.co/org/one",
                                  "https://huggingface.co/org/one"])  # fmt: skip
@pytest.mark.parametrize("tag", ["Q4_K_M", "q8_0", "UD-Q4_K_XL", "typo"])
def test_a_word_after_the_colon_is_read_as_a_quantization(repo, tag):
    ref = parse(f"{repo}:{tag}")
    assert (facts(ref), ref.tag) == (("org/one", "main", ""), tag)
    assert parse(ref.command.split()[-1]).tag == tag  # the command in hints ends with the name


@pytest.mark.parametrize("text", ["hf:org/one:Q4_0@v1", "hf:org/one@v1:Q4_0"])
def test_a_quantization_may_stand_before_or_after_the_revision(text):
    ref = parse(text)
    assert (facts(ref), ref.tag) == (("org/one", "v1", ""), "Q4_0")


@pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/1", "a b"])
@pytest.mark.parametrize("file", ["m.gguf", "sub/m $1.gguf", "*Q4*", "Q4_K_M"])
def test_a_name_made_for_a_hint_is_read_as_the_same_file_of_the_same_revision(revision, file):
    (name,) = shlex.split(Ref("", repo="org/one", revision=revision).name_of(file))
    ref = parse(name)
    assert (ref.repo, ref.revision, ref.file or ref.tag) == ("org/one", revision, file)


@pytest.mark.parametrize("revision", ["main", "v1", "a b"])
def test_the_command_for_a_file_names_its_revision(revision, tmp_path):
    project = Project(tmp_path, tmp_path / "cache", FetchOptions(), "none")
    command = order_of(Source("m", "org/one", "a b.gguf", revision), project).command
    expected = ["--rev", revision] if revision != "main" else []
    # After the words `bitnet download-model`.
    assert shlex.split(command)[2:] == ["org/one", *expected, "--file", "a b.gguf"]


@pytest.mark.parametrize("text", ["hf.co/org/one:latest", "org/one:latest", "hf:org/one"])
def test_the_tag_latest_means_no_particular_quantization(text):
    assert (facts(parse(text)), parse(text).tag) == (("org/one", "main", ""), "")


@pytest.mark.parametrize(
    ("page", "file", "tag"),
    [
        ("", "", ""),
        ("/", "", ""),
        ("?show_file_info=sub%2Fm-Q4_0.gguf", "sub/m-Q4_0.gguf", ""),
        ("/tree/main", "", ""),
        ("/tree/main/Q4_K_M", "", "Q4_K_M"),
        ("/blob/main/LICENSE", "LICENSE", ""),
        ("/blob/main/m.gguf", "m.gguf", ""),
        ("/resolve/main/m.gguf?download=true", "m.gguf", ""),
    ],
)
@pytest.mark.parametrize("hub", ["https://huggingface.co", "https://hf.co", "{endpoint}"])
@pytest.mark.parametrize("endpoint", ["https://mirror.example", "http://mirror.example/deep/hf"])
def test_a_page_of_the_hub_means_its_repository_at_every_endpoint(
    hub, page, file, tag, endpoint, monkeypatch
):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    ref = parse(f"{hub.format(endpoint=endpoint)}/org/one{page}")
    assert (facts(ref), ref.tag) == (("org/one", "main", file), tag)


def test_an_address_outside_the_path_of_the_endpoint_is_not_a_page_of_the_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hf")
    assert parse("https://mirror.example/org/one/m.gguf").url


def test_a_path_that_exists_is_meant_before_any_other_reading(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("smollm2-135m", "org/one", "hf:org/one", "hf.co/org/one"):
        Path(text).mkdir(parents=True)
        assert parse(text).path == Path(text)


@pytest.mark.parametrize(
    "text", ["hf:", "hf:org", "hf:/x", "https://", "https://h", "http://[x", "https://u:sesame@"]
)
def test_an_incomplete_address_is_refused_without_showing_its_password(text):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["a" * 300, "a" * 300 + "/b", "b/" + "a" * 5000, "a/" * 3000, "a\0/b"]
)
def test_a_name_too_long_or_invalid_for_any_file_system_is_parsed(text):
    assert parse(text).text == text
    ref = parse(f"hf:org/one:{text}")
    assert text in (ref.file, ref.tag)


@pytest.fixture
def model(tmp_path, hub, monkeypatch):
    """Bytes of the tiny model that the hub has as ``tiny.gguf`` in ``org/one``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    content = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    hub.add("org/one", "tiny.gguf", content)
    (tmp_path / "made.gguf").unlink()
    return content


def test_a_folder_made_by_download_model_is_accepted_as_a_model(bitnet, model):
    assert bitnet("download-model", "org/one").code == 0
    done = bitnet("infer", "models/org-one", "--prompt", "a", "--max-tokens", 1, "--offline")
    assert done.code == 0, done.err


def test_a_model_listed_as_here_loads_by_each_of_its_names_without_the_hub(bitnet, model, hub):
    assert bitnet("download-model", f"{hub.url}/org/one/blob/main/tiny.gguf").code == 0
    names = [row["name"] for row in json.loads(bitnet("models", "--json").out) if row["here"]]
    hub.close()
    for name in [*names, "org/one", "hf:org/one", f"{hub.url}/org/one"]:
        done = bitnet("infer", name, "--prompt", "a", "--max-tokens", 1, "--offline")
        assert done.code == 0, (name, done.err)
        with package.load(name, fetch=False) as loaded:
            assert loaded.path.is_file()


def test_the_error_for_a_model_that_is_not_here_names_a_command_that_fetches_it(bitnet, model):
    with pytest.raises(NotFound) as caught:
        package.load("hf:org/one:tiny.gguf", fetch=False)
    command = re.search(r"bitnet (.+)$", caught.value.hint)[1]
    assert bitnet(*command.split()).code == 0
    with package.load("hf:org/one:tiny.gguf") as loaded:
        assert loaded.path.is_file()


def test_a_model_at_an_address_is_fetched_once(bitnet, model, hub):
    import hashlib

    url = f"{hub.cdn_url}/{hashlib.sha256(model).hexdigest()}"
    first = bitnet("run", url, "a", "--max-tokens", 1, "-v")
    assert first.code == 0
    assert "downloaded tokenizer" not in first.err  # it is a model
    hub.forget()
    assert bitnet("run", url, "a", "--max-tokens", 1).code == 0
    assert hub.requests() == []


def test_different_tokenizers_have_different_folders_also_where_case_is_ignored(tmp_path):
    repositories = ["org/a", "org/a--b", "org--a/b", "org/A", "org/a-", "org/a.", "gpt2"]
    revisions = ["main", "main-", "main.", "Main", "a/b", "a--b", "a-b", "é", "e", "x" * 300]
    files = ["", "tokenizer.json", "tokenizer.model", "a/b.json", "a--b.json", "b.json", "é" * 200]
    refs = [
        Ref("", repo=repository, revision=revision, file=file)
        for repository in repositories
        for revision in revisions
        for file in files
    ]
    refs += [Ref("", url=f"https://h.example/{file}?x=1") for file in files]
    folders = [ref.tokenizer_folder(tmp_path) for ref in refs]
    assert len({str(folder).casefold() for folder in folders}) == len(refs)
    for folder in folders:
        assert folder.parent == tmp_path / "tokenizers"
        assert len(folder.name) < 150  # far below the 255 bytes of a file name
        assert folder.name.isascii()
        assert folder.name != tree.COMPILED


def test_the_name_of_a_tokenizers_folder_holds_repository_revision_and_file(tmp_path):
    ref = parse("hf:org/words@v1:old/vocab.txt")
    name = ref.tokenizer_folder(tmp_path).name
    assert re.fullmatch("hub-org--words@v1--old--vocab.txt-[0-9a-f]{16}", name)
