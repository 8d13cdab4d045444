"""``bundle.export`` and ``bundle.import``: one file that carries models to another machine.

Exit codes: 2 wrong usage, 10 no space, 13 damaged or malformed data, 19 not found, 20 unsupported.
"""

import hashlib
import io
import json
import os
import socket
import tarfile
from functools import cache

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from tiny_models import TOKENS, tiny_gguf

from bitnet import sources
from bitnet.base import files, settings
from bitnet.base.locks import hold
from bitnet.hub.bundles import MANIFEST
from bitnet.store import Store

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
MIRROR = "baseten/Meta-Llama-3-tokenizer"
#: Words after a model: answer one token without the network.
ASK = ("a", "--max-tokens", 1, "--offline")


@cache
def llama3():
    """A tokenizer.json with the number of tokens that Llama 3 has."""
    vocab = {f"t{number}": number for number in range(128_256)}
    return json.dumps({"model": {"vocab": vocab}}).encode()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that changes to the working folder and the cache of the machine *name*."""

    def go(name):
        folder = tmp_path / name / "work"
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / name / "cache"))
        return folder

    return go


@pytest.fixture
def model(hub, tmp_path, monkeypatch):
    """A model that the registry knows as ``tiny``; its hub also has the tokenizer of MIRROR."""
    path = tiny_gguf(tmp_path / "made.gguf", **{"tokenizer.chat_template": TEMPLATE})
    hub.add("org/one", "tiny.gguf", path.read_bytes())
    hub.add(MIRROR, "tokenizer.json", llama3())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    source = sources.Source("tiny", "org/one", "tiny.gguf", licence="MIT", family="llama")
    monkeypatch.setitem(sources.MODELS, "tiny", source)
    return path


@pytest.fixture
def bundle(model, machine, bitnet, tmp_path):
    """A bundle of a project with a model."""
    machine("here")
    assert bitnet("download-model", "--id", "org/one", "--file", "tiny.gguf").code == 0
    path = tmp_path / "carried.tar"
    done = bitnet("bundle.export", "--output", path)
    assert done.code == 0, done.err
    return path


@pytest.fixture
def no_network(monkeypatch):
    def bomb(*args, **options):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", bomb)
    monkeypatch.setattr(socket, "getaddrinfo", bomb)


def digests_in(cache):
    """SHA-256 of all files in the store of *cache*."""
    return {blob.sha256 for blob in Store(cache).blobs()}


def everything(folder):
    """All files below *folder*."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- there and back ------------------------------------------------------------------------------


def test_a_name_means_on_the_other_machine_what_it_meant_here(
    bundle, model, machine, bitnet, no_network
):
    folder = machine("there")
    done = bitnet("bundle", "import", bundle)
    assert done.code == 0, done.err
    assert "bitnet run tiny --offline" in done.err
    assert list(folder.iterdir()) == []  # only the cache was written
    for name in ("tiny", "hf:org/one", "hf:org/one:tiny.gguf"):
        assert bitnet("run", name, *ASK).code == 0
    listed = {row["name"]: row for row in json.loads(bitnet("models", "--json").out)}
    assert listed["tiny"]["here"]
    attested = json.loads(bitnet("verify", "--model", "tiny", "--json").out)
    assert attested["pinned"]


def test_an_import_into_a_project_writes_lock_file_and_files(
    bundle, model, machine, bitnet, no_network
):
    here = machine("here")
    folder = machine("there")
    done = bitnet("bundle.import", bundle, "--into", ".", "--json")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (folder / "models/org-one/tiny.gguf").read_bytes() == model.read_bytes()
    assert (folder / "models/org-one/tiny.gguf.attestation.json").is_file()
    lock_name = "bitnet.lock.json"
    assert json.loads((folder / lock_name).read_text()) == json.loads(
        (here / lock_name).read_text()
    )
    assert {entry["fresh"] for entry in facts["files"]} == {True}
    assert bitnet("sync", "--offline").code == 0
    assert bitnet("sync", "--check").code == 0
    again = json.loads(bitnet("bundle.import", bundle, "--into", ".", "--json").out)
    assert {entry["fresh"] for entry in again["files"]} == {False}


def test_the_same_files_make_the_same_bundle_bit_by_bit(bundle, machine, bitnet, tmp_path):
    machine("there")
    assert bitnet("bundle.import", bundle, "--into", ".").code == 0
    again = tmp_path / "again.tar"
    facts = json.loads(bitnet("bundle.export", "--output", again, "--json").out)
    assert again.read_bytes() == bundle.read_bytes()
    assert facts["sha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()
    assert facts["size"] == bundle.stat().st_size


def test_a_bundle_is_a_plain_tar_without_times_users_or_paths_of_the_machine(bundle, tmp_path):
    with tarfile.open(bundle) as archive:
        members = archive.getmembers()
    assert members[0].name == MANIFEST
    assert {(one.mtime, one.uid, one.gid, one.uname, one.type) for one in members} == {
        (0, 0, 0, "", tarfile.REGTYPE)
    }
    assert os.fsencode(tmp_path) not in bundle.read_bytes()


def test_models_and_tokenizers_are_chosen_by_name(hub, model, machine, bitnet, tmp_path):
    source = tmp_path / "made"
    tiny_folder(source, "llama")
    tokenizer_folder(source, TOKENS)
    for path in source.iterdir():
        hub.add("org/whole", path.name, path.read_bytes())
    machine("here")
    assert bitnet("run", "hf:org/whole", "a", "--max-tokens", 1).code == 0
    assert bitnet("run", "tiny", "a", "--max-tokens", 1).code == 0
    assert bitnet("tokenizer").code == 0
    path = tmp_path / "three.tar"
    words = ("--model", "hf:org/whole", "--model", "tiny", "--tokenizer", "mirror")
    done = bitnet("bundle.export", "--output", path, *words)
    assert done.code == 0, done.err
    machine("there")
    hub.close()
    assert bitnet("bundle.import", path).code == 0
    for name in ("hf:org/whole", "tiny"):
        done = bitnet("run", name, *ASK)
        assert done.code == 0, done.err
    assert bitnet("tokenizer", "--into", "models", "--offline").code == 0
    cached = settings.cache_dir() / "tokenizers/llama3-128k/tokenizer.json"
    assert cached.is_file()


@pytest.fixture
def hub_with_bare_model(hub, tmp_path):
    """A hub with the model ``org/bare``, which has no tokenizer."""
    bare = tiny_gguf(tmp_path / "bare.gguf", tokenizer=False)
    hub.add("org/bare", "bare.gguf", bare.read_bytes())
    return hub


def test_a_model_whose_tokenizer_is_not_here_is_not_exported(
    hub_with_bare_model, model, machine, bitnet, tmp_path
):
    machine("here")
    assert bitnet("download-model", "--id", "org/bare", "--file", "bare.gguf").code == 0
    done = bitnet("bundle.export", "--output", tmp_path / "bare.tar")
    assert done.code == 19  # it could not be run on the other machine either
    assert "No compatible tokenizer" in done.err
    assert not (tmp_path / "bare.tar").exists()


def test_the_tokenizer_that_a_model_needs_is_in_its_bundle(
    hub_with_bare_model, model, machine, bitnet, tmp_path, monkeypatch
):
    made = tmp_path / "made"
    made.mkdir()
    tokenizer = tokenizer_folder(made, TOKENS) / "tokenizer.json"
    hub_with_bare_model.add("org/tokens", "tokenizer.json", tokenizer.read_bytes())
    source = sources.Source(
        "tiny", "org/tokens", family="llama", vocab_size=len(TOKENS), cache_key="tiny"
    )
    monkeypatch.setitem(sources.TOKENIZERS, "tiny", source)
    machine("here")
    written = bitnet("run", "hf:org/bare", "a", "--max-tokens", 1, "--auto-download")
    assert written.code == 0, written.err
    path = tmp_path / "bare.tar"
    done = bitnet("bundle.export", "--output", path, "--model", "hf:org/bare")
    assert done.code == 0, done.err
    machine("there")
    hub_with_bare_model.close()
    assert bitnet("bundle.import", path).code == 0
    cached = settings.cache_dir() / "tokenizers/tiny/tokenizer.json"
    assert cached.read_bytes() == tokenizer.read_bytes()
    answered = bitnet("run", "hf:org/bare", *ASK)
    assert (answered.code, answered.out) == (0, written.out), answered.err


def test_what_is_not_here_is_refused_with_the_command_that_downloads_it(
    hub, model, machine, bitnet, tmp_path
):
    machine("here")
    hub.forget()
    path = tmp_path / "none.tar"
    for words, hint in (
        (("--model", "tiny"), "bitnet download-model org/one --file tiny.gguf"),
        (("--model", "smollm2-135m"), "bitnet download-model smollm2-135m"),
        (("--tokenizer", "mirror"), "bitnet tokenizer --source mirror"),
        ((), "bitnet models"),
    ):
        done = bitnet("bundle.export", "--output", path, *words)
        assert done.code == 19, done.err
        assert hint in done.err
    assert bitnet("bundle.export", "--output", path, "--model", model).code == 2
    assert bitnet("bundle.export", "--output", path, "--tokenizer", "no").code == 2
    assert not path.exists()
    assert hub.requests() == []


def test_an_existing_file_is_replaced_by_a_bundle_only_with_force(bundle, machine, bitnet):
    machine("here")
    before = bundle.read_bytes()
    assert bitnet("bundle.export", "--output", bundle).code == 2
    bundle.write_bytes(b"mine")
    assert bitnet("bundle.export", "--output", bundle, "--force").code == 0
    assert bundle.read_bytes() == before


def test_a_bundle_never_replaces_a_file_that_it_is_made_of(bundle, machine, bitnet):
    folder = machine("here")
    (blob,) = Store(settings.cache_dir()).blobs()
    (model,) = folder.rglob("tiny.gguf")
    before = {path: path.read_bytes() for path in (blob.path, model, folder / "bitnet.lock.json")}
    for path in before:
        done = bitnet("bundle.export", "--output", path, "--force")
        assert (done.code, "is an input of this command" in done.err) == (2, True), done.err
    assert {path: path.read_bytes() for path in before} == before


def test_an_export_removes_an_abandoned_draft_and_none_that_is_being_written(
    bundle, machine, bitnet
):
    machine("here")
    draft = bundle.with_name(f".{bundle.name}.4711.partial")
    draft.write_bytes(b"half of it")
    with hold(bundle.with_name(f".{bundle.name}.lock"), timeout_s=0, leave=False, shared=True):
        assert bitnet("bundle.export", "--output", bundle, "--force").code == 0
    assert draft.read_bytes() == b"half of it"

    # Its lock is free: the process that wrote it has ended.
    assert bitnet("bundle.export", "--output", bundle, "--force").code == 0
    assert not draft.exists()


def test_a_stored_file_that_was_changed_is_not_exported(bundle, machine, bitnet, tmp_path):
    machine("here")
    (blob,) = Store(settings.cache_dir()).blobs()
    blob.path.chmod(0o644)
    with blob.path.open("r+b") as file:
        file.write(b"edit")
    done = bitnet("bundle.export", "--output", tmp_path / "second.tar")
    assert (done.code, "has been changed" in done.err) == (19, True)
    assert not (tmp_path / "second.tar").exists()


def test_an_import_changes_the_file_of_a_name_only_with_force(
    hub, bundle, machine, bitnet, tmp_path
):
    other = tiny_gguf(tmp_path / "other.gguf", seed=7)
    hub.add("org/one", "tiny.gguf", other.read_bytes())
    machine("there")
    assert bitnet("run", "tiny", "a", "--max-tokens", 1).code == 0
    entry = Store(settings.cache_dir()).index.find("org/one", "main", "tiny.gguf")
    done = bitnet("bundle.import", bundle)
    assert (done.code, "which is kept without --force" in done.err) == (0, True)
    names = Store(settings.cache_dir()).index
    assert names.find("org/one", "main", "tiny.gguf") == entry
    assert bitnet("bundle.import", bundle, "--force").code == 0
    assert names.find("org/one", "main", "tiny.gguf").sha256 != entry.sha256


def test_an_import_refuses_to_replace_a_lock_file_with_other_pins(bundle, machine, bitnet):
    folder = machine("there")
    lock_file = folder / "bitnet.lock.json"
    entry = {"kind": "model", "repo": "org/x", "revision": "main", "file": "x.gguf"}
    entry |= {"commit": None, "sha256": "0" * 64, "size": 1}
    lock_file.write_text(json.dumps({"version": 1, "files": [entry]}))
    before = lock_file.read_bytes()
    done = bitnet("bundle.import", bundle, "--into", ".")
    assert (done.code, lock_file.read_bytes()) == (2, before)
    assert digests_in(settings.cache_dir()) == set()


# --- hostile -------------------------------------------------------------------------------------


def _parts(bundle):
    """Name and content of each member of a bundle, in order; the first is its list."""
    with tarfile.open(bundle) as archive:
        return [(one.name, archive.extractfile(one).read()) for one in archive.getmembers()]


def _packed(parts, change=lambda entry: None):
    """Bytes of a tar with the members *parts*; *change* alters each entry."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in parts:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            change(entry)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _rewritten(bundle, change):
    """Bytes of *bundle* after *change* has altered its list."""
    (name, text), *others = _parts(bundle)
    document = json.loads(text)
    change(document)
    text = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    return _packed([(name, text), *others])


def _named(**facts):
    """A change of the list that sets these fields of its first file."""
    return lambda document: document["files"][0].update(facts)


def _linked(kind):
    """A change of an entry that makes the content of a file a link or device of *kind*."""

    def change(entry):
        if entry.name.startswith("sha256/"):
            entry.type = kind
            entry.linkname = "/etc/passwd"

    return change


#: By kind: a function for the bytes of a hostile file, from the path of a good bundle.
HOSTILE = {
    "empty": lambda path: b"",
    "no tar": lambda path: b"GGUF" * 1000,
    "another tar": lambda path: _packed([("a", b"b")]),
    "cut": lambda path: path.read_bytes()[:-20_000],
    "cut in the list": lambda path: path.read_bytes()[:700],
    "longer": lambda path: path.read_bytes() + b"x" * 10_240,
    "a wrong byte": lambda path: path.read_bytes()[:-100_000] + b"?" + path.read_bytes()[-99_999:],
    "something at the end": lambda path: path.read_bytes()[:-1] + b"x",
    "a symbolic link": lambda path: _packed(_parts(path), _linked(tarfile.SYMTYPE)),
    "a hard link": lambda path: _packed(_parts(path), _linked(tarfile.LNKTYPE)),
    "a device": lambda path: _packed(_parts(path), _linked(tarfile.CHRTYPE)),
    "a member twice": lambda path: _packed([*_parts(path), _parts(path)[-1]]),
    "another order": lambda path: _packed(_parts(path)[::-1]),
    "an absolute path": lambda path: _packed([*_parts(path), ("/tmp/evil", b"x")]),
    "a path upwards": lambda path: _packed([*_parts(path)[:-1], ("../../evil", b"x")]),
    "a huge file": lambda path: _rewritten(path, _named(size=1 << 59)),
    "a negative size": lambda path: _rewritten(path, _named(size=-1)),
    "two sizes of one file": lambda path: _rewritten(
        path, lambda document: document["files"].append(document["files"][0] | {"size": 1})
    ),
    "a digest that is none": lambda path: _rewritten(path, _named(sha256="../x")),
    "an attestation upwards": lambda path: _rewritten(
        path, lambda document: document["attestations"].update({"../../x": "{}"})
    ),
    "more in the list": lambda path: _rewritten(path, lambda document: document.update(evil=1)),
    "another spelling": lambda path: _packed(
        [(MANIFEST, _parts(path)[0][1].replace(b"\n ", b"\n")), *_parts(path)[1:]]
    ),
    "a file upwards": lambda path: _rewritten(path, _named(file="../../../evil")),
    "an absolute file": lambda path: _rewritten(path, _named(file="/etc/evil")),
    "a repository upwards": lambda path: _rewritten(path, _named(repo="../..")),
    "a key upwards": lambda path: _rewritten(path, _named(kind="tokenizer", path="../../evil")),
    "a place elsewhere": lambda path: _rewritten(
        path,
        _named(
            kind="tokenizer",
            repo=MIRROR,
            file="tokenizer.json",
            path="models/evil/tokenizer.json",
        ),
    ),
    "a place of a model": lambda path: _rewritten(path, _named(path="exact-heads/evil.copy")),
    "a name that steers": lambda path: _rewritten(path, _named(file="\x1b[2Jx")),
    "a kind that is none": lambda path: _rewritten(path, _named(kind="version")),
    "a name without a file": lambda path: _rewritten(path, _named(sha256="0" * 64)),
    "names that are none": lambda path: _rewritten(
        path, lambda document: document.update(files=[{"repo": 1}])
    ),
    "a model upwards": lambda path: _rewritten(
        path,
        lambda document: document.update(
            models=[{"repo": "a/b", "revision": "main", "asked": "", "files": ["../../evil"]}]
        ),
    ),
    "a list that is none": lambda path: _packed([(MANIFEST, b"[1, 2]")]),
    "a deep list": lambda path: _packed([(MANIFEST, b"[" * 100_000)]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_bundle_is_refused_and_nothing_of_it_is_kept(
    bundle, machine, bitnet, tmp_path, kind
):
    content = HOSTILE[kind](bundle)
    path = tmp_path / "hostile.tar"
    path.write_bytes(content)
    folder = machine("there")
    before = set(everything(tmp_path))
    done = bitnet("bundle.import", path, "--into", ".")
    assert done.code == 13, done.err
    assert "Traceback" not in done.err
    assert "\x1b" not in done.err
    assert list(folder.iterdir()) == []
    cache = settings.cache_dir()
    new_files = {item for item in everything(tmp_path) if item not in before}
    assert all(item.name == "CACHEDIR.TAG" or item.suffix == ".lock" for item in new_files), (
        new_files
    )
    assert digests_in(cache) == set()
    assert bitnet("bundle.import", bundle).code == 0


def test_a_sound_file_under_a_wrong_digest_is_refused(bundle, machine, bitnet, tmp_path):
    """The digest in the list and in the member's name is the same, but not that of the bytes."""
    parts = _parts(bundle)
    name, content = parts[-1]
    parts[-1] = (name, content[:-1] + bytes([content[-1] ^ 1]))
    path = tmp_path / "hostile.tar"
    path.write_bytes(_packed(parts))
    machine("there")
    done = bitnet("bundle.import", path)
    assert (done.code, name[7:] in done.err) == (13, True)  # the name without sha256/
    assert digests_in(settings.cache_dir()) == set()


def test_a_bundle_of_an_unknown_version_is_unsupported_and_a_missing_one_not_found(
    bundle, machine, bitnet, tmp_path
):
    path = tmp_path / "next.tar"
    path.write_bytes(_rewritten(bundle, lambda document: document.update(version=2)))
    machine("there")
    assert bitnet("bundle.import", path).code == 20
    assert bitnet("bundle.import", tmp_path / "none.tar").code == 19


def test_a_disk_without_space_is_reported_before_anything_is_written(
    bundle, machine, bitnet, monkeypatch
):
    machine("there")
    monkeypatch.setattr(files, "free_space", lambda folder: 1000)
    done = bitnet("bundle.import", bundle)
    assert (done.code, "--cache-dir" in done.err) == (10, True)
    # Without a network, what a user removes from the cache cannot be fetched again.
    assert "cache clean" not in done.err
    assert digests_in(settings.cache_dir()) == set()


def test_a_wrong_attestation_is_refused(bundle, machine, bitnet, tmp_path):
    def empty(document):
        document["attestations"] = dict.fromkeys(document["attestations"], "{}")
        assert document["attestations"]  # there was one to change

    path = tmp_path / "hostile.tar"
    path.write_bytes(_rewritten(bundle, empty))
    machine("there")
    assert bitnet("bundle.import", path).code == 13
    assert digests_in(settings.cache_dir()) == set()
