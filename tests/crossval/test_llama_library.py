"""The library of llama.cpp: what a call answers that a first buffer does not hold."""

import pytest
from builders import UINT8, Typed, llama_metadata, write_gguf
from charsmaps import charsmap
from compared_models import HAS_ENGINE
from engine_ids import tokenize


@pytest.mark.skipif(not HAS_ENGINE, reason="the extra `crossval` is not installed")
def test_a_text_of_more_tokens_than_bytes_is_tokenized(tmp_path):
    """Normalization makes 18 letters of a ligature's three bytes."""
    letters = "abcdefghijklmnopqr"
    ligature = "\ufdfa"
    table = charsmap({ligature.encode(): letters.encode()})
    tokens = ["<pad>", "</s>", "<unk>", "\u2581", *letters]
    metadata = llama_metadata() | {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *[-1.0] * (len(tokens) - 3)],
        "tokenizer.ggml.token_type": [3, 3, 2, *[1] * (len(tokens) - 3)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.precompiled_charsmap": Typed(UINT8, list(table)),
    }
    path = write_gguf(tmp_path / "t5.gguf", metadata)
    [[ids]] = tokenize([str(path)], [ligature * 10], tmp_path)
    assert ids == [3, *[tokens.index(letter) for letter in letters] * 10]
