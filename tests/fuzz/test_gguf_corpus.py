"""Committed inputs of the target of ``inv fuzz`` that reads GGUF files."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from exercise_gguf import exercise
from make_gguf_corpus import seeds

CORPUS = sorted((Path(__file__).parent / "corpus" / "gguf").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_every_input_of_the_corpus_is_read_or_refused(path):
    exercise(path.read_bytes())


def test_the_corpus_holds_the_seeds_as_they_are_made():
    stored = {path.stem: path.read_bytes() for path in CORPUS}
    for name, raw in seeds():
        assert stored[name] == raw


def test_the_seeds_reach_every_stage_of_the_reader():
    readable = {name for name, raw in seeds() if exercise(raw) is not None}
    assert readable >= {"model", "every-type", "every-array", "unknown-encoding", "model-cut"}
    assert not readable & {"many-keys", "array-of-arrays", "key-twice", "version-1", "alignment-0"}
