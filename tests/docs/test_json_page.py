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


def documented_fields(command):
    """Fields that the page lists for *command*, in its order."""
    section = re.search(rf"## {command}\n(.*?)(?=\n## |\Z)", PAGE.read_text(), re.DOTALL)[1]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


def test_the_page_has_every_field_of_infer(bitnet, model):
    words = ("--prompt", "ab", "--max-tokens", 2, "--dump-ids", "--logprobs", 1, "--stats")
    done = bitnet("infer", "--model", model, *words, "--json")
    assert sorted(json.loads(done.out)) == sorted(documented_fields("infer"))


def test_the_page_has_every_field_of_chat(bitnet, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\n")))
    done = bitnet("chat", "--model", model, "--max-tokens", 2, "--json")
    assert sorted(json.loads(done.out)) == sorted(documented_fields("chat"))


def test_the_page_has_every_field_of_embed(bitnet, model, tmp_path):
    (tmp_path / "texts.txt").write_text("ab")
    words = ("embed", "--model", model, "--input", tmp_path / "texts.txt", "--json")
    here = json.loads(bitnet(*words).out)
    there = json.loads(bitnet(*words, "--output", tmp_path / "vectors.npy").out)
    assert sorted({**here, **there}) == sorted(documented_fields("embed"))


def test_the_page_has_every_field_of_bench(bitnet, model, tmp_path):
    words = ("bench", "--model", model, "--tests", "tg2", "--repetitions", 1, "--json")
    earlier = tmp_path / "earlier.json"
    earlier.write_text(bitnet(*words).out)
    result = json.loads(bitnet(*words, "--compare", earlier).out)
    assert sorted(result) == sorted(documented_fields("bench"))
    page = PAGE.read_text()
    for part in (result["machine"], result["model"], result["load_s"], result["results"][0]):
        assert all(f"`{field}`" in page for field in part)


def test_the_page_has_every_field_of_convert(bitnet, model, tmp_path):
    words = ("--model", model, "--output", tmp_path / "out.gguf", "--type", "F16", "--json")
    result = json.loads(bitnet("convert", *words).out)
    assert sorted(result) == sorted(documented_fields("convert"))
    assert all(f"`{field}`" in PAGE.read_text() for field in result["tensors"][0])


def test_the_page_has_every_field_of_bundles(bitnet, hub, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.add("org/one", "tiny.gguf", model.read_bytes())
    assert bitnet("download-model", "--id", "org/one", "--file", "tiny.gguf").code == 0
    exported = json.loads(bitnet("bundle.export", "--output", "made.tar", "--json").out)
    assert sorted(exported) == sorted(documented_fields("bundle export"))
    imported = json.loads(bitnet("bundle.import", "made.tar", "--json").out)
    assert sorted(imported) == sorted(documented_fields("bundle import"))
    assert all(f"`{field}`" in PAGE.read_text() for field in imported["files"][0])


def test_the_page_has_every_field_of_a_checked_report(bitnet):
    report = PAGE.parents[2] / "benchmarks/results/crossval/smollm2/report.json"
    result = json.loads(bitnet("crossval", "--check", report, "--json").out)
    assert sorted(result) == sorted(documented_fields("crossval"))
    assert result["holds"] is True
    assert set(result["findings"][0]) == {"severity", "subject", "text", "hint", "duration_s"}


def test_the_page_has_every_field_of_sync(bitnet, hub, model, tmp_path, monkeypatch):
    hub.add("org/tiny", "tiny.gguf", model.read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(tmp_path)
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    section = PAGE.read_text().partition("## sync")[2].partition("## ")[0]
    (pinned,) = json.loads(bitnet("sync", "--json").out)
    assert all(f"`{field}`" in section for field in pinned)
    (finding,) = json.loads(bitnet("sync", "--check", "--json").out)
    assert (finding["severity"], finding["subject"]) == ("ok", "org/tiny/tiny.gguf")


def test_a_failure_is_one_document_too(bitnet, model):
    done = bitnet("infer", "--model", model, "--prompt", "", "--json")
    error = json.loads(done.out)["error"]
    assert sorted(error) == ["exit_code", "hint", "message", "type"]
    assert error["exit_code"] == done.code == 2
