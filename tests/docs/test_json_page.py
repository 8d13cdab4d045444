"""docs/reference/json.md names the fields that commands print, all of them."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

PAGE = Path(__file__).parents[2] / "docs/reference/json.md"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def documented(command):
    """Fields of *command*, in the order of the page."""
    section = re.search(rf"## {command}\n(.*?)(?=\n## |\Z)", PAGE.read_text(), re.DOTALL)[1]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


def test_the_page_has_every_field_of_infer(bitnet, model):
    words = ("--prompt", "ab", "--max-tokens", 2, "--dump-ids", "--logprobs", 1, "--stats")
    done = bitnet("infer", "--model", model, *words, "--json")
    assert sorted(json.loads(done.out)) == sorted(documented("infer"))


def test_the_page_has_every_field_of_chat(bitnet, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\n")))
    done = bitnet("chat", "--model", model, "--max-tokens", 2, "--json")
    assert sorted(json.loads(done.out)) == sorted(documented("chat"))


def test_the_page_has_every_field_of_embed(bitnet, model, tmp_path):
    (tmp_path / "texts.txt").write_text("ab")
    words = ("embed", "--model", model, "--input", tmp_path / "texts.txt", "--json")
    here = json.loads(bitnet(*words).out)
    there = json.loads(bitnet(*words, "--output", tmp_path / "vectors.npy").out)
    assert sorted({**here, **there}) == sorted(documented("embed"))


def test_the_page_has_every_field_of_bench(bitnet, model, tmp_path):
    words = ("bench", "--model", model, "--tests", "tg2", "--repetitions", 1, "--json")
    earlier = tmp_path / "earlier.json"
    earlier.write_text(bitnet(*words).out)
    found = json.loads(bitnet(*words, "--compare", earlier).out)
    assert sorted(found) == sorted(documented("bench"))
    told = PAGE.read_text()
    for part in (found["machine"], found["model"], found["load_s"], found["results"][0]):
        assert all(f"`{field}`" in told for field in part)


def test_the_page_has_every_field_of_convert(bitnet, model, tmp_path):
    words = ("--model", model, "--output", tmp_path / "out.gguf", "--type", "F16", "--json")
    found = json.loads(bitnet("convert", *words).out)
    assert sorted(found) == sorted(documented("convert"))
    assert all(f"`{field}`" in PAGE.read_text() for field in found["tensors"][0])


def test_the_page_has_every_field_of_bundles(bitnet, hub, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.add("org/one", "tiny.gguf", model.read_bytes())
    assert bitnet("download-model", "--id", "org/one", "--file", "tiny.gguf").code == 0
    made = json.loads(bitnet("bundle.export", "--output", "made.tar", "--json").out)
    assert sorted(made) == sorted(documented("bundle export"))
    told = json.loads(bitnet("bundle.import", "made.tar", "--json").out)
    assert sorted(told) == sorted(documented("bundle import"))
    assert all(f"`{field}`" in PAGE.read_text() for field in told["files"][0])


def test_the_page_has_every_field_of_a_checked_report(bitnet):
    report = PAGE.parents[2] / "benchmarks/results/crossval/smollm2/report.json"
    found = json.loads(bitnet("crossval", "--check", report, "--json").out)
    assert sorted(found) == sorted(documented("crossval"))
    assert found["holds"] is True
    assert set(found["findings"][0]) == {"severity", "subject", "text", "hint", "duration_s"}


def test_the_page_has_every_field_of_sync(bitnet, hub, model, tmp_path, monkeypatch):
    hub.add("org/tiny", "tiny.gguf", model.read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(tmp_path)
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    told = PAGE.read_text().partition("## sync")[2].partition("## ")[0]
    (pinned,) = json.loads(bitnet("sync", "--json").out)
    assert all(f"`{field}`" in told for field in pinned)
    (found,) = json.loads(bitnet("sync", "--check", "--json").out)
    assert (found["severity"], found["subject"]) == ("ok", "org/tiny/tiny.gguf")


def test_a_failure_is_one_document_too(bitnet, model):
    done = bitnet("infer", "--model", model, "--prompt", "", "--json")
    error = json.loads(done.out)["error"]
    assert sorted(error) == ["exit_code", "hint", "message", "type"]
    assert error["exit_code"] == done.code == 2
