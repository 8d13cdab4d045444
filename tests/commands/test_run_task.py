"""Models by their name: ``run``, and ``--model`` of every command.

Exit codes: 2 wrong usage, 19 not found, 23 offline.
"""

import json
from dataclasses import replace

import pytest
from hf_folders import hf_name, tiny_folder, tokenizer_folder
from hub_server import Rule
from tiny_models import TOKENS, tiny, tiny_gguf

from bitnet import sources
from bitnet.base import settings
from bitnet.base.quantities import human_size
from bitnet.sources import PACKAGED
from bitnet.store import Store

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
#: Words of commands that end with a model and do not download it.
READERS = [
    ("infer", "--prompt", "a", "--max-tokens", 1),
    ("bench", "--tests", "pp4", "--repetitions", 1),
    ("verify",),
    ("attest", "--no-trace"),
    ("inspect-gguf",),
    ("explain-tokenizer",),
    ("compat-check",),
    ("convert", "--output", "made/c.gguf", "--type", "F16"),
    ("fix-gguf", "--output", "made/f.gguf", "--set", "general.name:string=x"),
    ("export-tokenizer", "--into", "made/out"),
    ("verify-tokenizer", "--against", "hf:org/one"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "made.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def named(hub, model, folder, monkeypatch):
    """A hub with a model that the registry knows as ``tiny``."""
    hub.add("org/one", "tiny.gguf", model.read_bytes())
    hub.add("org/one", "README.md", b"# one")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    source = sources.Source("tiny", "org/one", "tiny.gguf", licence="MIT", family="llama")
    monkeypatch.setitem(sources.MODELS, "tiny", source)
    return hub


@pytest.mark.parametrize(
    "name", ["tiny", "hf:org/one", "hf:org/one:tiny.gguf", "hf:org/one:*.gguf"]
)
def test_run_fetches_what_is_missing_and_writes_nothing_here(named, bitnet, folder, model, name):
    done = bitnet("run", name, "a", "--max-tokens", 2)
    assert done.code == 0
    assert "Fetching org/one: tiny.gguf" in done.err
    assert human_size(model.stat().st_size) in done.err
    assert list(folder.iterdir()) == []
    named.forget()
    again = bitnet("run", name, "a", "--max-tokens", 2)
    assert (again.code, again.out) == (0, done.out)
    assert "Fetching" not in again.err
    assert named.requests() == []
    assert bitnet("run", name, "a", "--offline").code == 0


def test_a_download_is_announced_before_its_first_byte(named, bitnet):
    named.rules.append(Rule(where="cdn", method="GET", status=404))
    done = bitnet("run", "tiny", "a")
    assert done.code == 19
    assert done.err.startswith("Fetching org/one: tiny.gguf (4.9 MB, MIT) from http://127.0.0.1")


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
def test_every_command_takes_a_name_and_does_not_fetch_it(named, bitnet, folder, words):
    (folder / "made").mkdir()
    refused = bitnet(*words, "tiny")
    assert refused.code == 19, refused.err
    assert "is not on this machine" in refused.err
    assert "bitnet download-model org/one --file tiny.gguf" in refused.err
    assert named.requests() == []
    assert bitnet("run", "hf:org/one", "a", "--max-tokens", 1).code == 0
    named.forget()
    for name in ("tiny", "hf:org/one", "hf:org/one:tiny.gguf"):
        for made in ("made/c.gguf", "made/f.gguf"):
            (folder / made).unlink(missing_ok=True)
        done = bitnet(*words, name, *(["--force"] if words[0] == "export-tokenizer" else []))
        assert done.code == 0, done.err
    assert named.requests() == []
    assert [path.name for path in folder.iterdir()] == ["made"]


def test_auto_download_is_consent_for_a_name(named, bitnet, folder):
    words = ("infer", "--prompt", "a", "--max-tokens", 1, "--model", "hf:org/one")
    assert bitnet(*words).code == 19
    assert bitnet(*words, "--auto-download", "--offline").code == 23
    assert bitnet(*words, "--auto-download").code == 0
    assert list(folder.iterdir()) == []


def test_a_model_that_was_downloaded_into_the_project_is_not_fetched_again(
    named, bitnet, folder, monkeypatch, tmp_path
):
    assert bitnet("download-model", "--id", "org/one", "--file", "tiny.gguf").code == 0
    named.forget()
    words = ("infer", "--prompt", "a", "--max-tokens", 1, "--model", "tiny")
    assert bitnet(*words).code == 0
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "emptied"))
    assert bitnet(*words).code == 0  # the file in the project is added to the cache
    assert named.requests() == []


def test_a_name_means_the_file_that_the_lock_file_pins(
    named, bitnet, folder, monkeypatch, tmp_path
):
    assert bitnet("download-model", "--id", "org/one", "--file", "tiny.gguf").code == 0
    locked = (folder / "bitnet.lock.json").read_bytes()
    (folder / "models/org-one/tiny.gguf").unlink()
    named.add("org/one", "tiny.gguf", tiny_gguf(tmp_path / "other.gguf").read_bytes())
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "emptied"))
    assert bitnet("run", "tiny", "a", "--max-tokens", 1).code == 0
    entry = json.loads(locked)["files"][0]
    assert Store(tmp_path / "emptied").find(entry["sha256"]) is not None
    assert (folder / "bitnet.lock.json").read_bytes() == locked


def test_a_word_that_is_an_existing_path_is_not_a_name(named, bitnet, folder, model):
    (folder / "tiny").write_bytes(model.read_bytes())
    assert bitnet("infer", "--model", "tiny", "--prompt", "a", "--max-tokens", 1).code == 0
    assert named.requests() == []


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("tinny", 19, "did you mean tiny?"),
        ("hf:org", 2, "write hf:ORG/REPO"),
        ("hf:org/one:no.gguf", 19, "no.gguf"),
        ("hf:org/none", 19, "does not exist"),
        ("models/tiny.gguf", 19, "no such file or folder"),
    ],
)
def test_a_name_that_means_nothing_is_refused(named, bitnet, folder, name, code, text):
    done = bitnet("run", name, "a")
    assert done.code == code, done.err
    assert text in done.err
    assert list(folder.iterdir()) == []


def test_several_models_of_a_repository_are_listed_with_their_sizes(named, bitnet, model):
    named.add("org/one", "tiny-Q6_K.gguf", model.read_bytes() + bytes(1000))
    done = bitnet("run", "hf:org/one", "a")
    assert done.code == 2
    assert "tiny-Q6_K.gguf" in done.err
    assert "4.9 MB" in done.err
    assert "hint: name one: hf:org/one:tiny-Q6_K.gguf" in done.err
    assert named.sent("cdn") == 0
    assert bitnet("run", "hf:org/one:*Q6_K*", "a", "--max-tokens", 1).code == 0


def test_a_revision_is_part_of_a_name(named, bitnet, tmp_path):
    old = named.repo("org/one").revisions["main"]
    named.add("org/one", "tiny.gguf", tiny_gguf(tmp_path / "other.gguf", seed=7).read_bytes())
    first = bitnet("run", f"hf:org/one@{old}", "a", "--max-tokens", 3, "--json")
    second = bitnet("run", "hf:org/one", "a", "--max-tokens", 3, "--json")
    assert (first.code, second.code) == (0, 0)
    cache = Store(settings.cache_dir())
    assert len({blob.sha256 for blob in cache.blobs()}) == 2


def test_a_model_without_a_template_continues_a_text_and_does_not_chat(
    named, bitnet, monkeypatch, tmp_path
):
    named.add("org/base", "base.gguf", tiny_gguf(tmp_path / "base.gguf").read_bytes())
    plain = bitnet("run", "hf:org/base", "a", "--max-tokens", 1, "--json")
    assert plain.code == 0
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    done = bitnet("run", "hf:org/base")
    assert done.code == 2
    assert "no chat template" in done.err


def test_run_without_prompt_pipe_or_terminal_says_what_it_needs(named, bitnet):
    assert "needs a prompt" in bitnet("run", "tiny").err


def test_the_default_model_is_placed_in_the_cache(model, bitnet, folder, monkeypatch):
    default = PACKAGED["smollm2-135m"]
    cache = Store(settings.cache_dir())
    mine = cache.adopt(model, cache.digest_of(model))
    monkeypatch.setitem(
        PACKAGED, default.name, replace(default, sha256=mine.sha256, size=mine.size)
    )
    done = bitnet("infer", "--prompt", "a", "--max-tokens", 1, "--offline")
    assert done.code == 0, done.err
    assert list(folder.iterdir()) == []
    assert (cache.root / "models" / default.name / default.file).read_bytes() == model.read_bytes()


@pytest.fixture
def whole(hub, folder, tmp_path, monkeypatch):
    """A repository with a folder of safetensors and files that running it does not need."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    made = tokenizer_folder(tiny_folder(tmp_path / "whole", "llama"), TOKENS)
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        hub.add("org/whole", file, (made / file).read_bytes())
    names = {}
    weights = [*tiny("llama").weights.items()]
    for shard, part in enumerate((weights[:5], weights[5:]), 1):
        tiny_folder(made, "llama", weights=dict(part))
        file = f"model-0000{shard}-of-00002.safetensors"
        hub.add("org/whole", file, (made / "model.safetensors").read_bytes())
        names |= {hf_name(name, "llama"): file for name, _ in part}
    index = json.dumps({"weight_map": names})
    hub.add("org/whole", "model.safetensors.index.json", index.encode())
    hub.add("org/whole", "README.md", b"# whole")
    hub.add("org/whole", "original/consolidated.00.pth", bytes(3000))
    return hub


#: Files of that repository that running it needs.
RUNS = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


def files_in(folder):
    """Relative paths of the files below *folder*."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_of_a_folder_of_safetensors_the_files_that_running_needs_are_downloaded(
    whole, bitnet, folder
):
    assert bitnet("download-model", "--id", "org/whole", "--out", "got").code == 0
    assert files_in(folder / "got") == RUNS
    whole.forget()
    done = bitnet("run", "hf:org/whole", "a", "--auto-download", "--max-tokens", 1)
    assert done.code == 0, done.err
    assert whole.sent("cdn") == 0  # the store has all that is large


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--include", "*.md", "--include", "original/*"), ["README.md", "consolidated.00.pth"]),
        (("--exclude", "*.safetensors", "--exclude", "*.pth", "--exclude", "t*"),
         ["README.md", "config.json", "model.safetensors.index.json"]),
    ],
)  # fmt: skip
def test_globs_choose_files(whole, bitnet, folder, words, expected):
    done = bitnet("download-model", "--id", "org/whole", "--out", "got", *words)
    assert done.code == 0, done.err
    names = files_in(folder / "got")
    assert sorted(name.rpartition("/")[2] for name in names) == expected
    assert all(name.startswith("original/") for name in names if name.endswith(".pth"))


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--include", "none*"), 19), (("--include", "*", "--file", "config.json"), 2)],
)
def test_globs_that_choose_nothing_or_stand_beside_a_file_are_refused(
    whole, bitnet, folder, words, code
):
    assert bitnet("download-model", "--id", "org/whole", *words).code == code
    assert list(folder.iterdir()) == []
