"""Finding a model's tokenizer: the order of the places, what is rejected, what the errors say."""

import json
import logging

import pytest
from builders import Tensor, write_gguf
from hf_folders import tiny_folder
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from bitnet.base.errors import NotFound, TokenizerNotFound, VocabMismatch
from bitnet.tokenizer.discover import (
    TokenizerDiscovery,
    TokenizerStrategy,
    model_facts,
    resolve_tokenizer,
    search,
)

TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"]
WORDS = ["<unk>", "a", "b", "ab"]
F32 = 0  # type of a tensor in GGUF


def embedded():
    """Metadata of a little SentencePiece vocabulary of 262 tokens."""
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": [2, 3, 3, *([6] * 256), 1, 1, 1],
    }


def embedding(rows):
    """An embedding of *rows* rows, all of a model's tensors that count here."""
    return [Tensor("token_embd.weight", (rows, 1), F32, bytes(4 * rows))]


@pytest.fixture
def folder(tmp_path):
    """A model folder two levels down, so that its parent is ours too."""
    path = tmp_path / "models" / "one"
    path.mkdir(parents=True)
    return path


def write_words(path, words=WORDS):
    """Write a ``tokenizer.json`` whose tokens are *words*, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: id for id, word in enumerate(words)}
    merges = [("a", "b")] if "ab" in words else []
    Library(BPE(vocabulary, merges, unk_token="<unk>")).save(str(path))
    return path


def bare_model(folder, rows, architecture="llama"):
    """A model without a tokenizer and with *rows* embedding rows."""
    return write_gguf(folder / "m.gguf", {"general.architecture": architecture}, embedding(rows))


def test_the_embedded_tokenizer_comes_first(folder):
    model = write_gguf(folder / "m.gguf", embedded(), embedding(len(TOKENS)))
    write_words(folder / "tokenizer.json", TOKENS)
    strategy = TokenizerDiscovery.from_gguf(model).discover_tokenizer_strategy()
    match strategy:
        case TokenizerStrategy.EmbeddedGguf(tokenizer):
            assert tokenizer.vocab_size == len(TOKENS)
        case _:
            pytest.fail(f"found {strategy}")
    assert TokenizerDiscovery(model).discover() == model


def test_without_an_embedded_one_the_sibling_comes_before_the_parent(folder):
    model = bare_model(folder, rows=4)
    above = write_words(folder.parent / "tokenizer.json")
    assert TokenizerDiscovery(model).discover() == above
    beside = write_words(folder / "tokenizer.json")
    assert TokenizerDiscovery(model).discover() == beside
    strategy = TokenizerDiscovery(model).discover_tokenizer_strategy()
    assert strategy == TokenizerStrategy.Discovered(beside)
    assert strategy.description() == f"auto-discovered tokenizer: {beside}"


def test_a_file_named_after_the_model_is_a_sibling_too(folder):
    model = bare_model(folder, rows=4)
    named = write_words(folder / "m.tokenizer.json")
    assert TokenizerDiscovery(model).discover() == named


def test_a_tokenizer_two_folders_above_is_not_found(folder):
    model = bare_model(folder, rows=4)
    write_words(folder.parent.parent / "tokenizer.json")
    with pytest.raises(TokenizerNotFound):
        resolve_tokenizer(model)


def test_a_sibling_with_another_vocabulary_is_passed_over(folder):
    model = bare_model(folder, rows=4)
    write_words(folder / "tokenizer.json", [*WORDS, "c", "d"])
    above = write_words(folder.parent / "tokenizer.json")
    outcome = search(model_facts(model))
    assert [(entry.place, entry.verdict) for entry in outcome.candidates] == [
        ("embedded", "absent"),
        ("sibling", "rejected"),
        ("sibling", "absent"),
        ("sibling", "absent"),
        ("parent", "chosen"),
    ]
    rejected = next(entry for entry in outcome.candidates if entry.verdict == "rejected")
    assert "Vocabulary size mismatch: expected 4, got 6" in rejected.reason
    assert outcome.candidates[-1].path == above


def test_an_explicit_tokenizer_wins_and_is_the_only_candidate(folder):
    model = bare_model(folder, rows=4)
    write_words(folder / "tokenizer.json")
    mine = write_words(folder / "mine" / "tokenizer.json")
    outcome = search(model_facts(model), explicit=mine)
    assert [(entry.place, entry.path) for entry in outcome.candidates] == [("explicit", mine)]
    assert resolve_tokenizer(model, mine).encode("ab", add_special=False) == [3]


def test_an_explicit_tokenizer_that_does_not_fit_is_refused(folder):
    model = bare_model(folder, rows=4)
    wrong = write_words(folder / "wrong.json", [*WORDS, "c"])
    with pytest.raises(VocabMismatch, match=r"Model: 4, Tokenizer: 5"):
        resolve_tokenizer(model, wrong)


def test_without_strict_mode_an_explicit_tokenizer_that_does_not_fit_is_a_warning(
    folder, monkeypatch, caplog
):
    monkeypatch.setenv("BITNET_STRICT_TOKENIZERS", "0")
    model = bare_model(folder, rows=4)
    wrong = write_words(folder / "wrong.json", [*WORDS, "c"])
    assert resolve_tokenizer(model, wrong).vocab_size == 5
    assert "Vocabulary size mismatch: expected 4, got 5" in caplog.text


def test_a_missing_explicit_tokenizer_says_where_it_was_expected(folder):
    model = bare_model(folder, rows=4)
    with pytest.raises(TokenizerNotFound, match=r'No tokenizer found at ".*nowhere.json"'):
        resolve_tokenizer(model, folder / "nowhere.json")


def test_padded_embedding_rows_are_allowed_and_counted_in_the_reason(folder):
    model = bare_model(folder, rows=64)
    write_words(folder / "tokenizer.json")
    outcome = search(model_facts(model))
    assert outcome.candidates[-1].reason == "4 tokens, as the model needs, 60 padded embedding rows"


def test_too_many_spare_rows_are_another_vocabulary(folder):
    model = bare_model(folder, rows=4 + 1024)
    write_words(folder / "tokenizer.json")
    with pytest.raises(TokenizerNotFound, match="expected 1028, got 4"):
        resolve_tokenizer(model)


def test_filler_tokens_at_the_end_of_the_list_do_not_count(folder):
    tokens = [*WORDS, "[PAD4]", "[PAD5]"]
    metadata = {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
    }
    model = write_gguf(folder / "m.gguf", metadata, embedding(6))
    facts = model_facts(model)
    assert (facts.token_count, facts.filler_tokens) == (6, 2)
    beside = write_words(folder / "tokenizer.json")
    # The embedded one cannot be used: nothing says how it cuts text.
    assert TokenizerDiscovery(model).discover() == beside


def test_an_unknown_vocabulary_is_refused_with_the_way_out(folder):
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": WORDS,
        "tokenizer.ggml.merges": ["a b"],
    }
    model = write_gguf(folder / "m.gguf", metadata, embedding(4))
    with pytest.raises(TokenizerNotFound) as refused:
        resolve_tokenizer(model)
    assert "No compatible tokenizer found for llama model with vocab_size 4 (strict mode)" in str(
        refused.value
    )
    assert "--pre NAME" in refused.value.hint
    assert resolve_tokenizer(model, pre="gpt-2").encode("ab", add_special=False) == [3]


def test_the_error_lists_every_place(folder):
    model = bare_model(folder, rows=99_999)
    with pytest.raises(TokenizerNotFound) as missing:
        TokenizerDiscovery(model).discover()
    text = str(missing.value)
    assert "vocab_size 99999 (strict mode)" in text
    assert f"sibling: {folder / 'tokenizer.json'}: no such file" in text
    assert f"parent: {folder.parent / 'tokenizer.json'}: no such file" in text


@pytest.mark.parametrize(
    ("architecture", "rows", "repo", "key"),
    [
        ("llama", 32_000, "meta-llama/Llama-2-7b-hf", "llama2-32k"),
        ("llama", 128_256, "baseten/Meta-Llama-3-tokenizer", "llama3-128k"),
        ("bitnet-b1.58", 128_256, "baseten/Meta-Llama-3-tokenizer", "llama3-128k"),
        ("gpt2", 50_257, "openai-community/gpt2", "gpt2-50k"),
    ],
)
def test_known_vocabularies_can_be_fetched(folder, caplog, architecture, rows, repo, key):
    caplog.set_level(logging.DEBUG, "bitnet")
    discovery = TokenizerDiscovery(bare_model(folder, rows, architecture))
    match discovery.discover_tokenizer_strategy():
        case TokenizerStrategy.NeedsDownload(info):
            assert (info.repo, info.cache_key, info.expected_vocab) == (repo, key, rows)
        case other:
            pytest.fail(f"found {other}")
    family = architecture.split("-")[0]
    assert f"Discovering tokenizer strategy for {family} model (vocab_size: {rows})" in caplog.text
    assert f"Can download compatible tokenizer from: {repo}" in caplog.text
    assert f"model type: {family}" in caplog.text


def test_the_download_for_a_bitnet_model_has_both_tokenizer_files(folder):
    model = bare_model(folder, 128_256, "bitnet-b1.58")
    strategy = TokenizerDiscovery(model).discover_tokenizer_strategy()
    assert strategy.info.files == ("tokenizer.json", "tokenizer.model")


def test_a_vocabulary_a_little_larger_than_llamas_is_not_guessed(folder):
    with pytest.raises(TokenizerNotFound):
        TokenizerDiscovery(bare_model(folder, 32_064, "phi3")).discover_tokenizer_strategy()


def test_the_cache_is_used_before_a_download(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "cache"))
    cached = tmp_path / "cache" / "tokenizers" / "gpt2-50k" / "tokenizer.json"
    write_words(cached, ["<unk>", *(f"t{id}" for id in range(50_256))])
    model = bare_model(folder, 50_257, "gpt2")
    assert TokenizerDiscovery(model).discover() == cached


def test_the_hugging_face_cache_of_the_models_own_repository_counts(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    found = write_words(snapshot / "tokenizer.json")
    metadata = {
        "general.architecture": "llama",
        "general.source.url": "https://huggingface.co/org/name",
    }
    model = write_gguf(folder / "m.gguf", metadata, embedding(4))
    assert TokenizerDiscovery(model).discover() == found


def test_a_mock_needs_permission_and_strict_mode_beats_it(folder, monkeypatch, caplog):
    model = bare_model(folder, rows=400)
    with pytest.raises(TokenizerNotFound):
        resolve_tokenizer(model)
    mock = resolve_tokenizer(model, allow_mock=True)
    assert mock.source.startswith("MOCK")
    assert "MOCK" in caplog.text
    assert mock.encode("é", add_special=False) == [0xC3, 0xA9]
    monkeypatch.setenv("BITNET_STRICT_TOKENIZERS", "1")
    with pytest.raises(TokenizerNotFound):
        resolve_tokenizer(model, allow_mock=True)


def test_a_tokenizer_in_a_safetensors_folder_is_found(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 4}))
    found = write_words(folder / "tokenizer.json")
    assert TokenizerDiscovery(folder).discover() == found


def test_a_safetensors_file_is_the_model_of_its_folder(folder):
    tiny_folder(folder, "llama")
    facts = model_facts(folder / "model.safetensors")
    assert (facts.path, facts.architecture) == (folder, "llama")
    assert facts.vocab_size == model_facts(folder).vocab_size


def test_a_folder_without_a_model_is_refused(folder):
    with pytest.raises(NotFound, match=r"no model in .*: neither \*\.gguf nor"):
        model_facts(folder)


def test_an_exhaustive_search_warns_of_a_different_neighbour(folder, caplog):
    model = write_gguf(folder / "m.gguf", embedded(), embedding(len(TOKENS)))
    write_words(folder / "tokenizer.json", [*TOKENS[:-1], "other"])
    outcome = search(model_facts(model), exhaustive=True)
    sibling = next(entry for entry in outcome.candidates if entry.path.name == "tokenizer.json")
    assert (sibling.verdict, outcome.place) == ("not needed", "embedded")
    assert "is another tokenizer than" in caplog.text


def test_a_search_opens_no_socket(folder, monkeypatch):
    import socket

    def refuse(*arguments, **options):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(TokenizerNotFound, match="Looked for"):
        resolve_tokenizer(bare_model(folder, 32_000))
