"""The list of models.

Exit codes: 19 not found.
"""

import json

import pytest
from tiny_models import tiny_gguf

from bitnet.hub.ref import names
from bitnet.sheet.plan import OVERHEAD_BYTES


def rows(bitnet):
    """Facts about each model in the list, by name."""
    done = bitnet("models", "--json")
    assert done.code == 0, done.err
    return {row["name"]: row for row in json.loads(done.out)}


def test_the_registry_is_listed_with_facts_known_before_a_download(bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = rows(bitnet)
    assert list(models) == names()
    smol = models["smollm2-135m"]
    # Bytes of its file, as the registry pins it.
    assert (smol["size_bytes"], smol["family"], smol["licence"]) == (
        98362432,
        "llama",
        "Apache-2.0",
    )
    assert (smol["here"], smol["path"]) == (False, None)
    assert all(row["size_bytes"] for row in models.values())
    assert all(row["runs"] in (True, False) for row in models.values())
    about = models["bitnet-2b-4t"]
    assert (about["size_is_exact"], smol["size_is_exact"]) == (False, True)
    assert list(tmp_path.iterdir()) == []


def test_what_was_fetched_is_listed_by_a_name_that_runs(hub, bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    content = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    hub.add("org/one", "tiny.gguf", content)
    hub.add("org/one", "bad.gguf", b"GGUF" + bytes(2000))
    assert bitnet("run", "hf:org/one:tiny.gguf", "a", "--max-tokens", 1).code == 0
    assert bitnet("download-model", "--id", "org/one", "--file", "bad.gguf").code == 0
    models = rows(bitnet)
    mine = models["hf:org/one:tiny.gguf"]
    assert (mine["here"], mine["family"], mine["runs"]) == (True, "llama", True)
    assert mine["size_bytes"] == len(content)
    damaged = models["hf:org/one:bad.gguf"]
    assert (damaged["here"], damaged["runs"]) == (True, False)
    assert damaged["why_not"]
    assert bitnet("run", mine["name"], "a", "--max-tokens", 1, "--offline").code == 0


def test_of_the_files_of_a_ternary_model_one_that_fits_the_memory_is_chosen(
    hub, bitnet, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    for encoding in ("PTQ1_0", "PQ2_0"):
        path = tmp_path / f"{encoding}.gguf"
        assert bitnet("convert", "bitnet-tiny", "--output", path, "--type", encoding).code == 0
        hub.add("org/ternary", f"Ternary-Tiny-{encoding}.gguf", path.read_bytes())
    done = bitnet("run", "hf:org/ternary", "a", "--max-tokens", 1)
    assert done.code == 0
    assert "PQ2_0, PTQ1_0 hold the same weights; Ternary-Tiny-PQ2_0.gguf" in done.err
    room = (tmp_path / "PTQ1_0.gguf").stat().st_size + OVERHEAD_BYTES
    monkeypatch.setattr("bitnet.base.machine.free_memory", lambda: room)
    done = bitnet("download-model", "--id", "org/ternary")
    assert done.code == 0
    assert "Ternary-Tiny-PTQ1_0.gguf" in done.err


def test_the_table_has_a_line_for_each(bitnet):
    lines = bitnet("models").out.splitlines()
    assert lines[0].split() == ["name", "here", "size", "family", "runs", "here", "licence"]
    assert [line.split()[0] for line in lines[1:]] == names()


#: Names of the models in the registry whose family begins with qwen3.
QWEN3 = ["bonsai-1.7b", "bonsai-4b", "bonsai-8b", "bonsai-27b", "ternary-bonsai-1.7b",
         "ternary-bonsai-4b", "ternary-bonsai-8b", "ternary-bonsai-27b",
         "ternary-bonsai-2-27b"]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qwen3", QWEN3),
        ("Qwen-3", QWEN3),
        ("qwen35", [name for name in QWEN3 if "27b" in name]),
        ("bonsai 4b", ["bonsai-4b", "ternary-bonsai-4b"]),
        ("gemma", ["gemma3-270m"]),
        ("SmolLM2", ["smollm2-135m"]),
    ],
)
def test_models_are_found_by_family_and_by_part_of_a_name(text, expected, bitnet):
    done = bitnet("list", text, "--json")
    assert [row["name"] for row in json.loads(done.out)] == expected


def test_installed_models_are_found_by_the_family_of_their_file(hub, bitnet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.add("org/one", "Llama-3.2-1B.gguf", tiny_gguf(tmp_path / "made.gguf").read_bytes())
    assert bitnet("run", "hf:org/one", "a", "--max-tokens", 1).code == 0
    for text in ("llama3.2", "llama"):
        names_found = [row["name"] for row in json.loads(bitnet("models", text, "--json").out)]
        assert "hf:org/one:Llama-3.2-1B.gguf" in names_found


def test_a_family_without_a_model_leads_to_the_hub(bitnet):
    done = bitnet("models", "llama3.2")
    assert done.code == 19
    assert "bitnet search llama3.2" in done.err


def test_approximate_sizes_are_marked(bitnet):
    line = next(line for line in bitnet("models").out.splitlines() if line.startswith("bonsai-4b"))
    assert "~566 MB" in line
