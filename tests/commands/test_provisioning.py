"""tokenizer, download-model and sync, as a user types them.

Exit codes: 2 wrong usage, 10 no space, 11 access refused, 13 damaged or malformed data, 15 a check
failed, 19 not found, 23 offline.
"""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from hub_server import HubServer, Rule
from tiny_models import tiny_gguf

from bitnet.base import files, settings
from bitnet.store import records

MIRROR = "baseten/Meta-Llama-3-tokenizer"
OFFICIAL = "meta-llama/Meta-Llama-3-8B"


@cache
def llama3(note, size=128_256):
    """A tokenizer.json with *size* tokens, whose bytes differ with the length of *note*."""
    vocab = {f"t{number}": number for number in range(size)}
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    return json.dumps(content).encode() + b" " * len(note)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with the registered repositories; commands run in an empty folder."""
    with HubServer() as server:
        server.add(MIRROR, "tokenizer.json", llama3("mirror"))
        server.add(OFFICIAL, "tokenizer.json", llama3("official"))
        server.repo(OFFICIAL, gated=True)
        server.tokens["hf_good"] = {OFFICIAL}
        for name, size in (("small-Q4_K_M.gguf", 1500), ("big-F16.gguf", 5000), ("x.txt", 10)):
            server.add("org/model", name, b"GGUF" + b"x" * size)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        folder = tmp_path / "work"
        folder.mkdir()
        monkeypatch.chdir(folder)
        yield server


def test_tokenizer_prints_the_path_and_says_what_happened(hub, bitnet, tmp_path):
    done = bitnet("tokenizer", "--into", "out/new", "--source", "mirror")
    assert (done.code, done.out) == (0, "out/new/tokenizer.json\n")
    assert "✓ Downloaded tokenizer to: out/new/tokenizer.json" in done.err
    assert "Meta Llama 3 Community License" in done.err
    assert (tmp_path / "work/out/new/tokenizer.json").read_bytes() == llama3("mirror")
    hub.forget()
    again = bitnet("tokenizer", "--json")
    assert json.loads(again.out)["cached"]
    assert "from the cache" in again.err
    assert hub.requests() == []


def test_the_official_source_needs_a_token_and_the_two_can_be_compared(hub, bitnet, monkeypatch):
    assert bitnet("tokenizer", "--into", "mirror").code == 0
    hub.forget()
    refused = bitnet("tokenizer", "--into", "official", "--source", "official")
    assert refused.code == 11
    assert "HF_TOKEN environment variable required for official source" in refused.err
    assert hub.requests() == []
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert bitnet("tokenizer", "--into", "official", "--source", "official").code == 0
    same = bitnet(
        "tokenizer", "--compare", "official/tokenizer.json", "--with", "mirror/tokenizer.json"
    )
    assert (same.code, same.out) == (0, "no difference\n")


def test_a_comparison_of_different_tokenizers_ends_with_15(bitnet, tmp_path):
    for name, size in (("a", 2), ("b", 3)):
        (tmp_path / name).write_bytes(llama3("", size))
    done = bitnet("tokenizer", "--compare", tmp_path / "a", "--against", tmp_path / "b", "--json")
    assert done.code == 15
    facts = json.loads(done.out)
    assert [entry["part"] for entry in facts["differences"]] == ["vocabulary"]
    assert bitnet("tokenizer", "--compare", tmp_path / "a").code == 2


def test_a_reply_that_is_not_json_is_not_stored_as_a_tokenizer(hub, bitnet, tmp_path):
    hub.add(MIRROR, "tokenizer.json", b'{"model": {} "x"}')
    done = bitnet("tokenizer")
    assert done.code == 13
    assert "Invalid JSON in downloaded tokenizer" in done.err
    assert "at line 1 column 14" in done.err
    assert not (tmp_path / "work/models/tokenizer.json").exists()


def test_download_model_puts_the_file_where_the_tutorial_says(hub, bitnet, tmp_path):
    hub.add("microsoft/bitnet-b1.58-2B-4T-gguf", "ggml-model-i2_s.gguf", b"GGUF...")
    for words in (("--file", "ggml-model-i2_s.gguf"), ()):
        done = bitnet("download-model", "--id", "microsoft/bitnet-b1.58-2B-4T-gguf", *words)
        expected = "models/microsoft-bitnet-b1.58-2B-4T-gguf/ggml-model-i2_s.gguf"
        assert (done.code, done.out) == (0, f"{expected}\n")
        assert (tmp_path / "work" / expected).read_bytes() == b"GGUF..."
        assert "Licence: MIT" in done.err


def test_a_fetched_model_is_attested_beside_it_and_then_pinned(hub, bitnet, tmp_path):
    content = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    hub.add("org/tiny", "tiny.gguf", content)
    words = ("download-model", "--id", "org/tiny", "--file", "tiny.gguf", "--out", "here")
    assert bitnet(*words).code == 0
    model = tmp_path / "work/here/tiny.gguf"
    (tmp_path / "work" / records.LOCK_FILE).unlink()
    report = json.loads(bitnet("verify", "--model", model, "--json").out)
    assert (report["passed"], report["pinned"]) == (True, True)
    model.unlink()  # the store keeps its own copy
    tiny_gguf(model, **{"llama.rope.freq_base": 3e4})
    done = bitnet("verify", "--model", model)
    assert done.code == 15
    assert "key llama.rope.freq_base is not attested" in done.out


def test_a_split_model_is_attested_once(hub, bitnet, tmp_path):
    for number in (1, 2):
        hub.add("org/split", f"m-Q8_0-0000{number}-of-00002.gguf", b"GGUF" + bytes(number))
    done = bitnet("download-model", "--id", "org/split")
    assert done.err.count("is not attested") == 1


def test_several_matches_are_listed_and_nothing_is_fetched(hub, bitnet):
    done = bitnet("download-model", "--id", "org/model", "--file", "*.gguf")
    assert done.code == 2
    assert "small-Q4_K_M.gguf  1.5 kB  Q4_K_M  fits in RAM" in done.err
    assert "big-F16.gguf  5.0 kB  F16" in done.err
    assert "x.txt" not in done.err
    assert hub.sent("cdn") == 0


def test_one_match_is_fetched_into_the_folder_asked_for(hub, bitnet, tmp_path):
    done = bitnet("download-model", "--id", "org/model", "--file", "*q4*", "--out", "here")
    assert done.code == 19  # patterns are exact about case, as file names are
    done = bitnet(
        "download-model", "--id", "org/model", "--file", "*Q4*", "--out", "here", "--json"
    )
    assert json.loads(done.out)["path"] == "here/small-Q4_K_M.gguf"
    (pinned,) = records.read_lock(tmp_path / "work" / records.LOCK_FILE)
    assert pinned.place == "here/small-Q4_K_M.gguf"


def test_all_parts_of_a_split_model_are_fetched(hub, bitnet):
    for number in (1, 2):
        hub.add("org/split", f"m-Q8_0-0000{number}-of-00002.gguf", b"GGUF" + bytes(number))
    done = bitnet("download-model", "--id", "org/split")
    assert done.code == 0
    assert done.out.splitlines() == [
        f"models/org-split/m-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)
    ]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--id", "nothing"), 2, "expected ORG/REPO"),
        (("--id", "org/model", "--file", "small.gguf"), 19, "small-Q4_K_M.gguf"),
        (("--id", "org/none", "--file", "x"), 19, "org/none"),
        (("--id", "org/model", "--file", "x.txt", "--sha256", "12"), 2, "64 hexadecimal"),
        (("--id", "org/model", "--file", "x.txt", "--sha256", "0" * 64), 13, "0" * 64),
        (("--id", "org/model", "--offline"), 23, "offline"),
        (("--id", "org/model", "--file", "x.txt", "--offline"), 23, "does not exist"),
        (("--id", "smollm2-135m", "--file", "y.gguf"), 2, "is pinned to"),
        (("--id", "smollm2-135m", "--sha256", "0" * 64), 2, "is pinned to"),
        (("--id", "smollm2-135m", "--rev", "next"), 2, "is pinned to"),
        (("--id", "org/model", "--file", "*.zip"), 19, "it has "),
        (("--id", "smollm2-135m", "--offline"), 23, "is switched off"),
        ((), 2, "needs MODEL"),
    ],
)
def test_what_cannot_be_fetched_is_one_error_with_its_exit_code(hub, bitnet, words, code, said):
    done = bitnet("download-model", *words)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_a_digest_is_blamed_only_where_one_was_given(hub, bitnet, digest):
    hub.add("org/large", "large.gguf", b"GGUF" + bytes(4000))
    hub.rules.append(Rule(where="cdn", flip_at=2000))  # one byte is damaged on its way
    more = ("--sha256", digest) if digest else ()
    done = bitnet("download-model", "org/large", "--file", "large.gguf", *more)
    assert done.code == 13, done.err
    assert ("--sha256" in done.err) is bool(digest)


def test_a_revision_is_fetched_by_any_of_its_names(hub, bitnet, tmp_path):
    old = hub.repos["org/model"].revisions["main"]
    hub.add("org/model", "x.txt", b"newer")
    for flag in ("--rev", "--ref", "--revision"):
        done = bitnet(
            "download-model", "--id", "org/model", "--file", "x.txt", flag, old, "--out", flag[2:]
        )
        assert done.code == 0
        assert (tmp_path / "work" / flag[2:] / "x.txt").read_bytes() == b"GGUF" + b"x" * 10


def test_sync_fetches_what_was_pinned_and_nothing_twice(hub, bitnet, tmp_path):
    assert bitnet("sync").code == 19
    bitnet("download-model", "--id", "org/model", "--file", "x.txt")
    bitnet("tokenizer")
    (tmp_path / "work/models/org-model/x.txt").unlink()
    shutil.rmtree(settings.cache_dir())
    done = bitnet("sync")
    assert done.code == 0
    assert "✓ org/model/x.txt: fetched" in done.err
    assert f"✓ {MIRROR}/tokenizer.json: already there" in done.err
    assert (tmp_path / "work/models/org-model/x.txt").exists()
    facts = json.loads(bitnet("sync", "--json", "--offline").out)
    assert [entry["cached"] for entry in facts] == [True, True]


def test_the_mirror_of_the_project_file_is_asked(hub, bitnet, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT")
    (tmp_path / "work/bitnet.toml").write_text(f'[mirrors]\ndefault = "{hub.url}"\n')
    assert bitnet("tokenizer").code == 0


def test_the_token_is_in_no_output(hub, bitnet, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    done = bitnet("tokenizer", "--source", "official", "-v", "-v", "--json")
    assert done.code == 11
    assert "hf_secret_value" not in done.out + done.err


@pytest.mark.parametrize(
    ("written", "code"), [(b"hf_good\n", 0), (b"", 11), (b"two words", 11), (b"\xff\xfe", 11)]
)
def test_the_token_of_hf_auth_login_is_used(hub, bitnet, tmp_path, monkeypatch, written, code):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/token").write_bytes(written)
    assert bitnet("tokenizer", "--source", "official").code == code
    assert any("Authorization" in seen.headers for seen in hub.requests("hub")) == (code == 0)
    # The token is for the hub, never for the servers to which it redirects.
    assert not any("Authorization" in seen.headers for seen in hub.requests("cdn"))


def test_a_check_of_pins_that_name_no_file_of_the_project_is_not_a_success(
    bitnet, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pin = records.Pin("model", "org/tiny", "main", "tiny.gguf", None, "0" * 64, 5, "", None)
    records.write_lock(Path("bitnet.lock.json"), [pin])
    done = bitnet("sync", "--check")
    assert done.code == 15
    assert "NOT CHECKED: 1 of 1 pins have no file in this project" in done.err
    assert "org/tiny/tiny.gguf: it is pinned for the cache" in done.out


def test_the_token_may_be_in_a_file_of_another_name(hub, bitnet, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("hf_good\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "secret"))
    assert bitnet("tokenizer", "--source", "official").code == 0
    assert any("Authorization" in seen.headers for seen in hub.requests("hub"))


def test_a_full_disk_names_what_may_help(hub, bitnet, monkeypatch):
    monkeypatch.setattr(files, "free_space", lambda folder: 1000)
    done = bitnet("download-model", "--id", "org/model", "--file", "big-F16.gguf")
    assert done.code == 10
    hint = done.err.partition("hint: ")[2]
    assert "cache clean --models --dry-run" in hint
    assert "--cache-dir DIR" in hint
