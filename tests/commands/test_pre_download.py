"""Fetching the tokenizers that the models of a folder lack, from a hub on loopback.

Exit codes: 13 damaged or malformed data, 19 not found, 23 offline.
"""

import json

import pytest
from builders import f32, llama_metadata, vocabulary, write_gguf
from hub_server import HubServer

from bitnet.sources import TOKENIZERS

GPT2 = TOKENIZERS["gpt2-50k"]


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder with a model that has a tokenizer, and a GPT-2 without one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models"
    folder.mkdir()
    pieces = vocabulary(["<unk>", "a"], model="llama", scores=[0.0, 0.0], token_types=[2, 1])
    write_gguf(folder / "complete.gguf", {**llama_metadata(), **pieces})
    tensors = [f32("token_embd.weight", (GPT2.vocab_size, 1))]
    write_gguf(folder / "lacking.gguf", llama_metadata("gpt2"), tensors)
    return folder


@pytest.fixture
def hub(monkeypatch):
    """A hub with a tokenizer of GPT-2's size."""
    vocab = {f"t{number}": number for number in range(GPT2.vocab_size)}
    with HubServer() as server:
        document = {"model": {"type": "BPE", "vocab": vocab}}
        server.add(GPT2.repo, "tokenizer.json", json.dumps(document).encode())
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_only_what_is_missing_is_fetched_and_only_once(hub, models, bitnet):
    done = bitnet("pre-download-tokenizers", "--model-dir", "models", "-v")
    assert done.code == 0
    complete, lacking = done.out.splitlines()
    assert complete == "✓ models/complete.gguf: embedded, 2 tokens"
    assert lacking.startswith("✓ models/lacking.gguf: fetched from openai-community/gpt2")
    assert "Discovering tokenizer strategy for gpt2 model (vocab_size: 50257)" in done.err
    assert "Downloading tokenizer for repo: openai-community/gpt2" in done.err
    hub.forget()
    rows = json.loads(bitnet("pre-download-tokenizers", "--json", "--offline").out)
    assert [row["ok"] for row in rows] == [True, True]
    assert "in the cache" in rows[1]["state"]
    assert hub.requests() == []


def test_one_failure_is_reported_beside_the_successes(hub, models, bitnet):
    unknown = [f32("token_embd.weight", (99_999, 1))]
    write_gguf(models / "unknown.gguf", llama_metadata("transformer"), unknown)
    (models / "damaged.gguf").write_bytes(b"GGUF")
    done = bitnet("pre-download-tokenizers")
    assert done.code == 13
    # In order of names: complete, damaged, lacking, unknown.
    assert [line[0] for line in done.out.splitlines()] == ["✓", "✗", "✓", "✗"]
    assert (
        "No compatible tokenizer found for transformer model with vocab_size 99999 (strict mode)"
        in done.out
    )
    assert "Traceback" not in done.err


def test_offline_is_the_exit_code_when_a_tokenizer_is_missing(models, bitnet):
    done = bitnet("pre-download-tokenizers", "--offline")
    assert done.code == 23
    assert "bitnet tokenizer --source gpt2-50k" in done.err


def test_a_folder_without_models_is_not_found(bitnet, tmp_path):
    assert bitnet("pre-download-tokenizers", "--model-dir", tmp_path / "none").code == 19
