"""The model that is part of the package: it needs no connection, and is what its card says."""

import hashlib
import json
import re

import pytest

from bitnet.base import native
from bitnet.base.errors import NotFound
from bitnet.base.invocation import reinstall_command
from bitnet.formats.containers import open_checkpoint
from bitnet.shipped import SHIPPED, ShippedModel

MODELS = list(SHIPPED.values())
NATIVE = native.module()


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Run a test offline and in an empty folder."""
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id)
def test_file_code_and_card_are_of_one_model(model):
    content = model.path.read_bytes()
    assert len(content) == model.size <= 3_000_000  # bytes that every download of the package has
    assert hashlib.sha256(content).hexdigest() == model.sha256
    card = model.path.with_suffix(".md").read_text(encoding="utf-8")
    assert card.startswith(f"# {model.id}\n")
    assert re.findall(r"SHA-256 \| `([0-9a-f]{64})`", card) == [model.sha256]
    assert f"{model.size:,} bytes" in card
    checkpoint = open_checkpoint(model.path)
    assert checkpoint.architecture == model.family
    assert checkpoint.metadata["general.license"] == model.licence
    assert checkpoint.metadata["general.name"] == model.id
    assert "tokenizer.chat_template" not in checkpoint.metadata


# Kernels of x86 have names such as avx2. Others add in another order and may write another text.
@pytest.mark.skipif(
    not (NATIVE and NATIVE.kernel_level().startswith("a")), reason="no compiled kernels of x86"
)
def test_the_card_shows_what_the_model_writes():
    """After a change of results: ``python -m training.card`` writes the card again."""
    import bitnet

    model = SHIPPED["bitnet-tiny"].path
    card = model.with_suffix(".md").read_text(encoding="utf-8")
    # A numbered list: the seed, the prompt in bold, and the continuation.
    examples = re.findall(r"^(\d+)\. \*\*(.+?)\*\*(.*)$", card, re.MULTILINE)
    assert len(examples) == 10
    with bitnet.load(model) as running:
        for seed, prompt, text in examples:
            sampling = {"temperature": 0.8, "seed": int(seed)}
            written = running.generate(prompt, max_tokens=60, **sampling)
            assert " ".join(written.split()) == text.replace("\\", "").strip()


def test_a_lost_file_is_named_with_what_helps():
    lost = ShippedModel("none", "", 0, "", "")
    with pytest.raises(NotFound, match=r"none\.gguf is missing") as raised:
        _ = lost.path
    assert reinstall_command() in raised.value.hint


@pytest.mark.parametrize(
    "words",
    [
        ("infer", "--model", "bitnet-tiny", "--prompt", "It is", "--max-tokens", 4),
        ("run", "bitnet-tiny", "It is", "--max-tokens", 4),
        ("inspect-gguf", "bitnet-tiny"),
        ("verify", "--model", "bitnet-tiny"),
        ("tokenize", "bitnet-tiny", "Once upon a time"),
        ("plan", "--model", "bitnet-tiny"),
        ("crossval", "--model", "bitnet-tiny", "--reference", "float64", "--max-positions", 16),
    ],
    ids=lambda words: words[0],
)
def test_commands_run_the_shipped_model_without_a_connection(bitnet, words):
    done = bitnet(*words)
    assert done.code == 0, done.err


def test_the_shipped_model_is_listed_and_stays_when_the_cache_is_emptied(bitnet):
    entry = json.loads(bitnet("models", "--json").out)[0]
    assert (entry["name"], entry["here"], entry["runs"]) == ("bitnet-tiny", True, True)
    assert bitnet("clean-cache", "--yes").code == 0
    assert json.loads(bitnet("models", "--json").out)[0] == entry


@pytest.mark.parametrize(
    "words",
    [
        ("download-model", "--id", "bitnet-tiny"),
        ("bundle.export", "--model", "bitnet-tiny", "--output", "bundle.tar"),
    ],
    ids=lambda words: words[0],
)
def test_downloading_or_bundling_the_shipped_model_is_refused(bitnet, words):
    done = bitnet(*words)
    assert done.code == 2
    assert "bitnet-tiny is part of this program" in done.err


def test_the_plan_of_the_shipped_model_needs_no_network(bitnet):
    done = bitnet("plan", "bitnet-tiny", "--offline")
    assert done.code == 0
    assert "already" in done.out


def test_the_shipped_model_predicts_its_author_better_than_shuffled_words():
    import bitnet

    with bitnet.load(SHIPPED["bitnet-tiny"].path) as model:
        surprises = [_surprise(model, text) for text in (AUSTEN, SHUFFLED)]
    assert surprises[0] < 4.5 < surprises[1]  # nats a token


AUSTEN = "She was very sorry to hear it; but she could not help thinking of her sister."
SHUFFLED = "it help not; sister could thinking very to her was of but She sorry hear she."


def _surprise(model, text):
    """Mean negative log-likelihood of the tokens of *text* after the first, in nats."""
    import numpy as np

    ids = model.tokenizer.encode(text)
    logits = model.logits(ids[:-1]).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -logits[np.arange(len(ids) - 1), ids[1:]].mean()
