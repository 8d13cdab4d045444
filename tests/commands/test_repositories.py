"""Repositories, as users of other programs expect them: by file or whole, listed, and checked.

Exit codes: 15 a check failed, 19 not found.
"""

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import tiny_gguf

from bitnet.base import settings


@pytest.fixture
def work(hub, tmp_path, monkeypatch):
    """A working folder, and a hub with a repository of two models and one without any."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    content = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
        hub.add("org/two", name, content)
    hub.add("org/two", "README.md", b"# two")
    hub.add("org/two", "sub/notes.txt", b"notes")
    for name in ("README.md", "onnx/model.onnx", "tokenizer.json"):
        hub.add("org/other", name, name.encode() * 200)
    return tmp_path / "work"


def below(folder):
    """Paths of the files in *folder* that came from the hub."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in paths if not path.endswith(".attestation.json"))


def test_several_names_and_patterns_are_fetched_by_one_command(work, bitnet):
    done = bitnet("download-model", "org/two", "*Q4*", "README.md", "sub/notes.txt", "--json")
    assert done.code == 0, done.err
    assert [Path(row["path"]).name for row in json.loads(done.out)] == [
        "m-Q4_0.gguf",
        "README.md",
        "notes.txt",
    ]
    locked = json.loads((work / "bitnet.lock.json").read_text())["files"]
    assert [row["file"] for row in locked] == ["README.md", "m-Q4_0.gguf", "sub/notes.txt"]
    flags = ("--file", "*Q8*", "--file", "README.md", "--output", "elsewhere")
    assert bitnet("download-model", "org/two", *flags).code == 0
    assert {"README.md", "m-Q8_0.gguf"} <= {*below(work / "elsewhere")}


def test_another_name_of_a_command_takes_the_same_words(work, bitnet):
    done = bitnet("pull", "org/two", "*Q4*", "README.md", "--json")
    assert done.code == 0, done.err
    assert [Path(row["path"]).name for row in json.loads(done.out)] == ["m-Q4_0.gguf", "README.md"]


def test_a_name_that_is_missing_fetches_none_of_them(work, bitnet):
    done = bitnet("download-model", "org/two", "README.md", "absent.gguf")
    assert done.code == 19, done.err
    assert below(work) == []


def test_a_repository_without_a_model_that_runs_is_fetched_whole(work, bitnet):
    done = bitnet("download-model", "org/other")
    assert done.code == 0, done.err
    assert below(work / "models/org-other") == ["README.md", "onnx/model.onnx", "tokenizer.json"]
    assert bitnet("sync", "--check").code == 0


#: Files that are not placed in a project.
NOT_PLACED = (".gitattributes", "modeling.py")  # every repository has the first


def test_download_fetches_a_repository_whole_except_hidden_files_and_code_in_a_project(
    work, hub, bitnet, tmp_path
):
    for name in NOT_PLACED:
        hub.add("org/two", name, b"*.gguf filter=lfs")
    done = bitnet("download", "org/two")
    assert done.code == 0, done.err
    placed = ["README.md", "m-Q4_0.gguf", "m-Q8_0.gguf", "sub/notes.txt"]
    assert below(work / "models/org-two") == placed
    assert ".gitattributes (it is hidden), modeling.py" in done.err
    pinned = json.loads((work / "bitnet.lock.json").read_text())["files"]
    assert [entry["file"] for entry in pinned] == placed
    shutil.rmtree(work / "models")
    assert bitnet("sync").code == 0
    assert below(work / "models/org-two") == placed
    elsewhere = tmp_path / "elsewhere"
    assert bitnet("download", "org/two", "--local-dir", elsewhere).code == 0
    assert below(elsewhere) == sorted([*NOT_PLACED, *placed])
    assert bitnet("sync").code == 0  # what it could not place is not pinned
    assert bitnet("download", "org/two", "modeling.py").code != 0  # an error if it is named


def test_the_files_of_a_repository_are_named_or_matched(work, hub, bitnet, tmp_path):
    there = tmp_path / "there"
    done = bitnet("download", "org/two", "*.gguf", "sub/notes.txt", "--output", there, "--json")
    assert done.code == 0, done.err
    assert [Path(row["path"]).name for row in json.loads(done.out)] == [
        "m-Q4_0.gguf",
        "m-Q8_0.gguf",
        "notes.txt",
    ]
    assert below(there) == ["m-Q4_0.gguf", "m-Q8_0.gguf", "sub/notes.txt"]  # paths are kept
    assert bitnet("download", "org/two", "--exclude", "*.gguf").code == 0
    assert below(work / "models/org-two") == ["README.md", "sub/notes.txt"]
    missing = bitnet("download", "org/two", "README.md", "*.onnx")
    assert (missing.code, "no file of org/two matches '*.onnx'" in missing.err) == (19, True)
    hub.close()
    assert bitnet("download", "org/two", "README.md", "--offline").code == 0


def test_download_model_fetches_the_model_and_download_the_whole_repository(work, hub, bitnet):
    hub.add("org/one", "README.md", b"# one")
    hub.add("org/one", "tiny.gguf", tiny_gguf(work.parent / "one.gguf").read_bytes())
    assert bitnet("download-model", "org/one").code == 0
    assert below(work / "models/org-one") == ["tiny.gguf"]
    assert bitnet("download", "org/one").code == 0
    assert below(work / "models/org-one") == ["README.md", "tiny.gguf"]


def test_a_plan_lists_the_files_that_would_be_fetched(work, hub, bitnet):
    done = bitnet("plan", "org/two", "--include", "*.gguf", "--exclude", "*Q8*", "--json")
    facts = json.loads(done.out)
    assert [row["file"] for row in facts["files"]] == ["m-Q4_0.gguf"]
    assert facts["size_bytes"] == facts["files"][0]["size"] > 0
    assert hub.sent("cdn") == 0
    text = bitnet("plan", "org/two", "--include", "*.gguf", "--exclude", "*Q8*").out
    assert "1 file of org/two" in text
    text = bitnet("plan", "org/two", "--include", "*").out
    assert "sub/notes.txt" in text
    assert "4 files of org/two" in text
    assert below(work) == []


def test_the_cache_is_listed_by_repository_with_what_holds_each_file(work, bitnet):
    assert bitnet("download-model", "org/two", "m-Q4_0.gguf").code == 0
    assert bitnet("run", "hf:org/two:m-Q8_0.gguf", "a", "--max-tokens", 1).code == 0
    lines = bitnet("cache", "list").out.splitlines()
    where = next(number for number, line in enumerate(lines) if line.startswith("hf:org/two "))
    assert "1 file" in lines[where]  # the two have the same content
    assert str(work / "models/org-two/m-Q4_0.gguf") in lines[where + 1]
    assert str(Path("models/hf/org/two@main/m-Q8_0.gguf")) in lines[where + 1]
    rows = json.loads(bitnet("cache", "list", "--json").out)["entries"]
    assert {row["repository"] for row in rows} >= {"hf:org/two"}


def test_files_of_a_repository_are_compared_with_the_hubs_digests(work, hub, bitnet):
    assert bitnet("download-model", "org/two", "m-Q4_0.gguf", "README.md").code == 0
    done = bitnet("cache", "verify", "org/two", "--json")
    assert done.code == 0, done.err
    assert {row["subject"]: row["severity"] for row in json.loads(done.out)} == {
        "README.md": "ok",  # by git's digest
        "m-Q4_0.gguf": "ok",
    }
    blob = next((settings.cache_dir() / "store/sha256").glob("*/*"))
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    done = bitnet("cache", "verify", "org/two")
    assert done.code == 15
    assert "✗" in done.out
    assert bitnet("cache", "verify", "org/absent").code == 19


def test_a_hub_that_names_no_digest_checks_nothing(work, hub, bitnet):
    from hub_server import Rule

    assert bitnet("download-model", "org/two", "README.md").code == 0
    hub.rules.append(Rule(where="hub", method="HEAD", drop_headers=("ETag", "X-Linked-Etag")))
    done = bitnet("cache", "verify", "org/two")
    assert done.code == 15
    assert "NOT CHECKED" in done.err
