"""Fetching tokenizers from Python code, against a real hub on loopback."""

import asyncio
import json
from pathlib import Path

import pytest

from bitnet import SmartTokenizerDownload, TokenizerDownloadInfo
from bitnet.base.errors import InvalidFormat, Offline, TokenizerNotFound, UsageError, VocabMismatch
from bitnet.hub.fetch_options import FetchOptions

SENTENCEPIECE = Path(__file__).parent / "fixtures" / "spm" / "tiny.model"
WORDS = {f"t{id}": id for id in range(5)}
CONTENT = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": WORDS, "merges": []}})
INFO = TokenizerDownloadInfo("org/name", ("tokenizer.json",), "five", 5)


@pytest.fixture
def download(hub, tmp_path):
    """A downloader whose hub has one tokenizer, of five tokens."""
    hub.add("org/name", "tokenizer.json", CONTENT.encode())
    return SmartTokenizerDownload(tmp_path / "cache", options=FetchOptions(base_url=hub.url))


def test_a_tokenizer_is_fetched_once_and_then_found(download, hub, tmp_path):
    path = asyncio.run(download.download_tokenizer(INFO))
    assert path == tmp_path / "cache" / "tokenizers" / "five" / "tokenizer.json"
    assert path.read_text() == CONTENT
    n_requests = len(hub.requests())
    assert download.download_tokenizer_sync(INFO) == path
    assert len(hub.requests()) == n_requests


def test_what_is_cached_needs_no_network(download, tmp_path):
    path = download.download_tokenizer_sync(INFO)
    cut_off = SmartTokenizerDownload(tmp_path / "cache", options=FetchOptions(offline=True))
    assert cut_off.download_tokenizer_sync(INFO) == path
    with pytest.raises(Offline):
        cut_off.download_tokenizer_sync(TokenizerDownloadInfo("org/x", INFO.files, "x", 5))


def test_a_cache_may_be_named_by_a_text(download, hub, tmp_path):
    named = SmartTokenizerDownload(str(tmp_path / "b"), options=FetchOptions(base_url=hub.url))
    assert named.download_tokenizer_sync(INFO).is_relative_to(tmp_path / "b")


@pytest.mark.parametrize(
    ("repo", "file", "hint"),
    [
        ("o/r", "tok.json", "the same call, or copy the file to {0}"),
        ("openai-community/gpt2", "vocab.json", "the same call, or copy the file to {0}"),
        ("openai-community/gpt2", "tokenizer.json", "bitnet tokenizer --source gpt2-50k"),
    ],
)
def test_a_hint_for_a_missing_tokenizer_names_a_way_to_it(repo, file, hint, tmp_path):
    cut_off = SmartTokenizerDownload(tmp_path, options=FetchOptions(offline=True))
    with pytest.raises(Offline) as refused:
        cut_off.download_tokenizer_sync(TokenizerDownloadInfo(repo, (file,), "k", 5))
    place = tmp_path / "tokenizers" / "k" / file
    assert refused.value.hint == f"with a connection: {hint.format(place)}"


def test_another_vocabulary_is_not_accepted(download, tmp_path):
    with pytest.raises(VocabMismatch, match="expected 6, got 5"):
        download.download_tokenizer_sync(TokenizerDownloadInfo("org/name", INFO.files, "six", 6))
    assert not (tmp_path / "cache" / "tokenizers" / "six" / "tokenizer.json").exists()


def test_a_further_file_that_is_not_there_is_not_needed(download):
    both = TokenizerDownloadInfo("org/name", ("tokenizer.json", "tokenizer.model"), "five", 5)
    assert download.download_tokenizer_sync(both).name == "tokenizer.json"


def test_a_further_file_that_is_there_has_to_fit(download, hub):
    hub.add("org/name", "tokenizer.model", b"YQ== 0\nYg== 1\n")  # tiktoken's form, of two tokens
    both = TokenizerDownloadInfo("org/name", ("tokenizer.json", "tokenizer.model"), "five", 5)
    with pytest.raises(TokenizerNotFound, match=r"tokenizer\.model"):
        download.download_tokenizer_sync(both)


def test_a_tokenizer_without_files_is_refused(download):
    with pytest.raises(UsageError, match=r"info\.files is empty"):
        download.download_tokenizer_sync(TokenizerDownloadInfo("org/name", (), "five", 5))


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("tokenizer.model", SENTENCEPIECE.read_bytes(), VocabMismatch),
        ("tokenizer.json", CONTENT.encode(), VocabMismatch),
        ("tokenizer.json", b"{", InvalidFormat),
    ],
)
def test_the_hint_for_another_tokenizer_is_not_about_llama_3(download, hub, name, content, kind):
    hub.add("org/other", name, content)
    with pytest.raises(kind) as refused:
        download.download_tokenizer_sync(TokenizerDownloadInfo("org/other", (name,), "six", 6))
    assert "another tokenizer" in refused.value.hint
    assert "mirror" not in refused.value.hint
