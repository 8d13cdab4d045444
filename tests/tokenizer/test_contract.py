"""Tests whose names and variables other tools rely on, with promises of every tokenizer."""

import lzma
import os
from pathlib import Path

import pytest

from bitnet.formats.gguf import GGUF
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.library import open_engine

TESTS = Path(__file__).parents[1]
# Read at import: every test runs without the caller's variables.
SPM_MODEL = os.environ.get("SPM_MODEL", str(TESTS / "fixtures" / "spm" / "tiny.model"))
TEXTS = ["", "Hello world", "  two  spaces ", "naïve café", "日本語", "a\n\nb\t", "\U0001f600"]


@pytest.fixture(scope="module", params=["gpt-2", "starcoder"])
def packed(request, tmp_path_factory):
    """Path of the recorded texts and ids without their suffix, and the engine of the vocabulary."""
    source = TESTS / "data" / "vocab" / f"ggml-vocab-{request.param}.gguf.xz"
    path = tmp_path_factory.mktemp("vocab") / source.stem
    path.write_bytes(lzma.decompress(source.read_bytes()))
    with GGUF.open(path) as gguf:
        yield source.with_suffix(""), open_engine(spec_from_gguf(gguf))[0]


def test_ids_are_those_of_the_recorded_files(packed):
    path, engine = packed
    joined_texts = path.with_name(path.name + ".inp").read_bytes().decode()
    lines = path.with_name(path.name + ".out").read_text().split("\n")
    assert len(lines) > 40
    for text, line in zip(joined_texts.split("\n__ggml_vocab_test__\n"), lines, strict=True):
        assert engine.encode(text) == [int(id) for id in line.split()], text
    for text in TEXTS:
        ids = engine.encode(text)
        assert ids == engine.encode(text)
        assert all(0 <= id < len(engine) for id in ids)
    assert engine.encode("") == []


def test_sentencepiece_tokenizer_contract():
    sentencepiece = pytest.importorskip("sentencepiece")
    path = Path(SPM_MODEL)
    path = path if path.is_absolute() else TESTS.parent / path
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
    spec = spec_from_file(path)
    engine = open_engine(spec)[0]
    assert spec.vocab_size == oracle.vocab_size()
    assert spec.bos_id == (oracle.bos_id() if oracle.bos_id() >= 0 else None)
    for text in TEXTS:
        assert engine.encode(text, parse_special=False) == oracle.encode(text), text
