"""Counting ids of texts and files without holding them."""

import io
import random

import pytest
from vocabularies import PACKED, SMALL, WORDS, spec, text

from bitnet import native
from bitnet.errors import NotFound, UsageError
from bitnet.tokenizer import Tokenizer, counting, engines


@pytest.fixture(scope="module", params=[*PACKED, *SMALL])
def any_spec(request, tmp_path_factory):
    return spec(request.param, tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(params=["native", "reference"])
def tokenizer(request, any_spec, monkeypatch):
    if request.param == "native" and native.module() is None:
        pytest.skip("no native module")
    monkeypatch.setenv("BITNET_BACKEND", request.param)
    return Tokenizer.from_spec(any_spec)


@pytest.fixture
def _small_parts(monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 50)
    monkeypatch.setattr(engines, "_LONG", 60)
    monkeypatch.setattr(engines, "_PART", 30)


@pytest.mark.usefixtures("_small_parts")
def test_a_file_in_parts_counts_as_its_text_as_a_whole(tokenizer, tmp_path, monkeypatch):
    rng = random.Random(3)
    path = tmp_path / "text"
    for _ in range(25):
        whole = text(rng, most=200)
        path.write_bytes(whole.encode())
        monkeypatch.setattr(engines, "_LONG", 1 << 40)
        for options in ({}, {"add_special": False}, {"parse_special": False}):
            wanted = len(tokenizer.encode(whole, **options))
            assert tokenizer.count(whole, **options) == wanted
            assert tokenizer.count(path, **options) == wanted
            assert tokenizer.count(io.BytesIO(whole.encode()), **options) == wanted


@pytest.mark.usefixtures("_small_parts")
def test_a_batch_and_a_long_text_give_the_ids_of_one_thread(tokenizer, monkeypatch):
    rng = random.Random(5)
    texts = [text(rng, most=most) for most in (2, 20, 200, 400) * 10] + [""]
    monkeypatch.setenv("BITNET_THREADS", "1")
    wanted = [tokenizer.encode(one) for one in texts]
    assert tokenizer.encode_batch(texts) == wanted
    for threads in ("2", "3", "7"):
        monkeypatch.setenv("BITNET_THREADS", threads)
        assert [tokenizer.encode(one) for one in texts] == wanted
        assert tokenizer.encode_batch(iter(texts)) == wanted
    assert tokenizer.encode_batch([]) == []


def test_nothing_and_only_special_tokens_count_as_they_encode(tokenizer):
    for whole in ("", " ", "<s>", "</s>", "<s></s>", "[SEP]", "<|endoftext|>"):
        assert tokenizer.count(whole) == len(tokenizer.encode(whole))
        assert tokenizer.count(io.BytesIO(whole.encode())) == len(tokenizer.encode(whole))


def test_only_a_part_of_a_file_is_held(tokenizer, monkeypatch):
    longest = 0
    real = tokenizer._engine.count

    def count(part, **options):
        nonlocal longest
        longest = max(longest, len(part))
        return real(part, **options)

    monkeypatch.setattr(tokenizer._engine, "count", count)
    monkeypatch.setattr(counting, "_BLOCK", 1000)
    monkeypatch.setattr(tokenizer, "_suffix", [])
    words = " ".join(WORDS * 600)
    tokenizer.count(io.BytesIO(words.encode()))
    assert 0 < longest < 3000 < len(words)


def test_bytes_that_are_not_utf8_are_refused_where_they_are(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 7)
    path = tmp_path / "text"
    path.write_bytes("añb".encode() * 10 + b"\xff end")
    with pytest.raises(UsageError, match="byte 40 is 0xFF"):
        tokenizer.count(path)
    path.write_bytes(b"abc \xe6\x97")
    with pytest.raises(UsageError, match="byte 4 is 0xE6"):
        tokenizer.count(path)
    with pytest.raises(NotFound, match="nothing"):
        tokenizer.count(tmp_path / "nothing")


def test_half_of_a_surrogate_pair_is_refused_everywhere(tokenizer):
    for call in (tokenizer.encode, tokenizer.count, tokenizer.spans):
        with pytest.raises(UsageError, match=r"character 2 is U\+D800"):
            call("ab\ud800")
    with pytest.raises(UsageError, match=r"character 2 is U\+D800"):
        tokenizer.encode_batch(["fine", "ab\ud800"])
