"""tiktoken's rank files: recognised by their ranks, with tiktoken's ids, or refused."""

import json
import unicodedata

import pytest
import tiktoken
from rank_files import PUBLISHED, rank_line, read_ranks, write_ranks

from bitnet.base.errors import InvalidFormat, TokenizerNotFound
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import open_engine
from bitnet.tokenizer.load import load_tokenizer
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER


@pytest.fixture(params=sorted(PUBLISHED))
def published(request, test_data):
    """Path of each published rank file."""
    path = test_data / "ranks" / f"{request.param}.tiktoken"
    if not path.exists():
        pytest.skip(f"{path.name} is not among the test data; `inv test-data` fetches it")
    return path


@pytest.mark.slow
def test_published_rank_files_give_tiktokens_ids_and_texts(published):
    pattern, size, ends = PUBLISHED[published.stem]
    tokenizer = load_tokenizer(published)
    ranks = read_ranks(published)
    oracle = tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    texts = probe_texts()
    if published.stem == "qwen":  # its own code normalizes before it calls tiktoken
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    for text in texts:
        ids = oracle.encode_ordinary(text)
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids
        assert tokenizer.decode(ids) == oracle.decode(ids) == text
    assert (tokenizer.vocab_size, tokenizer.stop_ids) == (size, ends)


def test_whispers_file_has_an_empty_token_before_its_special_ones(test_data):
    path = test_data / "ranks" / "whisper.tiktoken"
    if not path.exists():
        pytest.skip(f"{path.name} is not among the test data; `inv test-data` fetches it")
    spec = spec_from_file(path)
    # The last line has no base64: the token is empty.
    assert path.read_bytes().endswith(b"\n= 50256\n")
    assert (spec.tokens[50_256], spec.eos_id) == ("", 50_257)
    assert [spec.tokens.index(text) for text in ("<|startoftranscript|>", "<|en|>", "<|su|>")] == [
        50_258, 50_259, 50_357,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "name"), [(50_257, "Whisper"), (100_256, "cl100k"), (151_643, "Qwen")]
)
def test_unknown_ranks_as_many_as_those_of_a_known_file_are_refused_with_its_name(
    count, name, tmp_path
):
    # StableLM 2's file has as many ranks as cl100k's, but cuts digits one by one.
    path = write_ranks(tmp_path / "tokenizer.model", count)
    with pytest.raises(TokenizerNotFound, match=f"as many as {name}, but other ranks") as refused:
        spec_from_file(path)
    assert "--pre NAME" in refused.value.hint
    assert spec_from_file(path, pre="gpt-2").vocab_size == count


def test_unknown_ranks_are_refused_with_what_is_known_unless_a_pre_tokenizer_is_named(tmp_path):
    path = write_ranks(tmp_path / "tokenizer.model", 256)
    with pytest.raises(TokenizerNotFound, match="LLaMA-3 128,000") as caught:
        spec_from_file(path)
    assert "--pre NAME" in caught.value.hint
    spec = spec_from_file(path, pre="qwen2")
    assert list(spec.tokens) == BYTE_TO_CHARACTER
    assert open_engine(spec)[0].encode("hi") == [104, 105]


def test_a_special_token_may_have_an_id_between_the_ranks(tmp_path):
    texts = [bytes([rank]) for rank in range(256)]
    lines = [*map(rank_line, texts, range(256)), rank_line(b"ab", 257)]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"".join(lines))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|endoftext|>": 256}))
    spec = spec_from_file(path, pre="gpt-2")
    assert (spec.vocab_size, spec.stop_ids) == (258, {256})
    assert open_engine(spec)[0].encode("ab<|endoftext|>") == [257, 256]
    path.write_bytes(b"".join(lines[:100] + lines[101:]))
    with pytest.raises(InvalidFormat, match="some are missing"):
        spec_from_file(path, pre="gpt-2")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        # Lines after the 256 ranks of single bytes.
        (b"!!!! 256\n", "line 257: expected a token in base64"),
        (b"AAA 256\n", "line 257: expected a token in base64"),
        (b"IQ==\n", "line 257: expected a token in base64"),
        (b"YWI= 300\n", "some are missing"),
        (b"YWI= 256\nenp6 97\n", "line 258: the rank 97 is that of an earlier line"),  # the byte a
        (b"YQ== 97\n", "line 257: the rank 97 is that of an earlier line"),
        (b"IQ== 256\n", "line 257: rank 256 has the token of rank 33"),
        (b"= 256\n= 257\n", "line 258: rank 257 has the token of rank 256"),
    ],
)
def test_damaged_ranks_are_refused(damage, text, tmp_path):
    path = write_ranks(tmp_path / "tokenizer.model", 256)
    path.write_bytes(path.read_bytes() + damage)
    with pytest.raises(InvalidFormat, match=text):
        spec_from_file(path, pre="qwen2")
