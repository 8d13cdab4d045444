"""Committed inputs of the targets of ``inv fuzz`` that read tokenizers, templates and requests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from make_tokenizer_corpora import SEEDS
from targets import CORPUS, TARGETS, corpus

from bitnet.tokenizer import chat_child

TOKENIZERS = [name for name in TARGETS if name in SEEDS]
INPUTS = [(name, path) for name in TOKENIZERS for path in corpus(name)]


@pytest.mark.parametrize(("name", "path"), INPUTS, ids=lambda part: getattr(part, "name", part))
def test_every_input_of_the_corpora_is_run_or_refused(name, path, monkeypatch):
    # The processor time after which a template is refused: less, as several of the corpus loop.
    monkeypatch.setattr(chat_child, "CPU_MS", 150)
    TARGETS[name].load()(path.read_bytes())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_corpora_hold_the_seeds_as_they_are_made(name):
    stored = {path.name: path.read_bytes() for path in corpus(name)}
    for seed, raw in SEEDS[name]():
        assert stored[seed] == raw


def test_every_target_has_a_corpus_and_every_corpus_a_target():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
