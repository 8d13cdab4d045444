"""plan, as a user types it: facts about a model from its header, before it is downloaded.

Exit codes: 2 wrong usage, 11 access refused, 19 not found.
"""

import json
from dataclasses import replace

import pytest
from builders import f32, gguf_bytes, llama_metadata, vocabulary
from hub_server import HubServer

from bitnet.sources import PACKAGED

#: A model of 4.6 MB with a short header, so that the header alone is a small part of it.
MODEL = gguf_bytes(
    {
        **llama_metadata(width=128),
        **vocabulary(["<unk>", "a"], model="llama", scores=[0.0, 0.0], token_types=[2, 1]),
    },
    [f32("token_embd.weight", (9000, 128))],
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a model, and with one that needs the token hf_good."""
    with HubServer() as server:
        server.add("org/model", "m.gguf", MODEL)
        server.repo("org/model", licence="apache-2.0")
        server.add("org/gated", "m.gguf", MODEL)
        server.repo("org/gated", gated=True)
        server.tokens["hf_good"] = {"org/gated"}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.chdir(tmp_path)
        yield server


def test_a_remote_model_is_planned_from_its_header_alone(hub, bitnet):
    done = bitnet("plan", "--id", "org/model", "--json")
    facts = json.loads(done.out)
    assert done.code == 0
    assert (facts["architecture"], facts["licence"], facts["gated"]) == (
        "llama",
        "apache-2.0",
        False,
    )
    assert facts["size_bytes"] == len(MODEL)
    assert facts["header_bytes"] < len(MODEL) / 2
    assert hub.sent("cdn") < len(MODEL) / 2
    assert facts["has_tokenizer"]


def test_a_gated_model_needs_a_token_and_the_plan_says_so(hub, bitnet, monkeypatch):
    assert bitnet("plan", "--id", "org/gated", "--file", "m.gguf").code == 11
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    done = bitnet("plan", "--id", "org/gated", "--file", "m.gguf")
    assert "gated: needs HF_TOKEN" in done.out


def test_a_model_that_was_fetched_is_read_from_disk(hub, bitnet):
    bitnet("download-model", "--id", "org/model")
    hub.forget()
    done = bitnet("plan", "--id", "org/model", "--file", "m.gguf", "--offline")
    assert "already here" in done.out
    assert hub.requests() == []


def test_a_local_file_is_planned(bitnet, tmp_path):
    (tmp_path / "m.gguf").write_bytes(MODEL)
    assert "architecture   llama" in bitnet("plan", "--model", tmp_path / "m.gguf").out
    assert bitnet("plan", "--model", tmp_path / "none.gguf").code == 19


def test_a_packaged_model_is_planned_by_its_size_before_a_download_and_its_header_after(
    hub, bitnet, monkeypatch, tmp_path
):
    model = replace(PACKAGED["smollm2-135m"], size=len(MODEL))
    monkeypatch.setitem(PACKAGED, "smollm2-135m", model)
    done = bitnet("plan", "--id", "smollm2-135m", "--offline")
    assert done.code == 0
    assert "Apache-2.0" in done.out
    assert "architecture" not in done.out
    path = tmp_path / "models" / model.name / model.file
    path.parent.mkdir(parents=True)
    path.write_bytes(MODEL)
    assert "architecture   llama" in bitnet("plan", "--id", "smollm2-135m", "--offline").out


@pytest.mark.parametrize("words", [(), ("--id", "a/b", "--model", "c")])
def test_plan_needs_exactly_one_model(bitnet, words):
    assert bitnet("plan", *words).code == 2
