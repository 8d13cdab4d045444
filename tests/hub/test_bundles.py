"""Bundles: the place of each file in the cache follows from its name, and no other is written."""

import hashlib
from dataclasses import replace

import pytest
from cache_places import every_place
from tiny_packages import TINY, WHOLE

from bitnet import sources
from bitnet.base.errors import InvalidFormat, NotFound, Unsupported
from bitnet.base.outputs import OutputFile
from bitnet.hub.bundles import (
    ARCHIVE,
    Bundle,
    collect,
    find_tokenizer,
    import_bundle,
    list_pinned,
    tokenizer_file,
    write_bundle,
)
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.store import tree
from bitnet.store.records import Pin

MIRROR = sources.TOKENIZERS["mirror"]
MODEL = Pin("model", "org/one", "main", "x.gguf")
TOKENIZER = Pin("tokenizer", MIRROR.repo, "main", "tokenizer.json")
PACKAGE = Pin("package", "tiny", "1.0", "tiny.gguf")

# By the name of a file: its place in a record, and the path of its link in the cache.
PLACES_AND_PATHS = {
    MODEL: (None, "models/hf/org/one@main/x.gguf"),
    replace(MODEL, revision="a/b", file="c/x.gguf"): (None, "models/hf/org/one@a%2Fb/c/x.gguf"),
    replace(MODEL, repo="gpt2"): (None, "models/hf/gpt2@main/x.gguf"),
    TOKENIZER: ("tokenizers/llama3-128k/tokenizer.json",) * 2,
    PACKAGE: (None, "models/tiny/tiny.gguf"),
    replace(PACKAGE, file="NOTICE.md"): (None, "models/tiny/NOTICE.md"),
}
# Files that are not registered, and names that would lead into the folder of something else.
REFUSED_PINS = [
    replace(MODEL, repo="org/..", file="x.gguf"),
    replace(MODEL, repo="../tokenizers", file="x.gguf"),
    replace(MODEL, kind="version"),
    replace(TOKENIZER, repo="org/one"),
    replace(TOKENIZER, file="x.tok"),
    replace(TOKENIZER, file="compiled/tokenizer.json"),
    replace(PACKAGE, repo="hf", file="org/one@main/x.gguf"),
    replace(PACKAGE, repo="../tokenizers/compiled", file="x.tok"),
    replace(PACKAGE, repo="..", file="exact-heads/x.copy"),
    replace(PACKAGE, repo="../store/names", file="x.json"),
    replace(PACKAGE, repo="url-0123456789abcdef", file="x.gguf"),
    replace(PACKAGE, revision="2.0"),
    replace(PACKAGE, file="x.gguf"),
]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Function that makes a project on another machine; the packaged model TINY is registered."""
    monkeypatch.setitem(sources.PACKAGED, "tiny", TINY)

    def make(name):
        folder = tmp_path / name
        (folder / "work").mkdir(parents=True)
        return Project(folder / "work", folder / "cache", FetchOptions(offline=True), "none")

    return make


@pytest.fixture
def carry(machine, tmp_path):
    """Function that writes a bundle of pins, all with the bytes WHOLE, and imports it elsewhere."""
    content = tmp_path / "content"
    content.write_bytes(WHOLE)
    digest = hashlib.sha256(WHOLE).hexdigest()

    def go(name, *pins):
        pins = tuple(replace(pin, sha256=digest, size=len(WHOLE)) for pin in pins)
        path = tmp_path / f"{name}.tar"
        write_bundle(Bundle(pins, places={digest: content}), OutputFile(path, ARCHIVE))
        project = machine(name)
        import_bundle(
            path, project, check=lambda *_: None, into=None, report=lambda _done, _total: None
        )
        return project

    return go


def files_outside_of_the_store(cache):
    """Paths of the files in *cache*, relative to it, but for the store and the tag."""
    paths = (path.relative_to(cache) for path in cache.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if path.parts[0] not in ("store", "CACHEDIR.TAG")}


def test_an_imported_file_is_placed_where_its_name_belongs(carry):
    pins = [replace(pin, place=place) for pin, (place, _) in PLACES_AND_PATHS.items()]
    project = carry("there", *pins)
    expected = {path for _, path in PLACES_AND_PATHS.values()}
    assert files_outside_of_the_store(project.cache) == expected
    names = tree.names_folder(project.store.folder)
    assert {*names.iterdir()} == {project.store.index.file_for(*pin.index_name) for pin in pins}


@pytest.mark.parametrize(
    "pin", [*PLACES_AND_PATHS, *REFUSED_PINS], ids=lambda pin: f"{pin.kind} {pin.index_name}"
)
def test_no_other_place_is_written_whatever_a_record_names(carry, tmp_path, pin):
    usual, _ = PLACES_AND_PATHS.get(pin, ("nowhere", ""))
    places = {None, *every_place()} - {usual}
    assert len(places) > 20  # the functions that make paths were found
    for number, place in enumerate(places):
        with pytest.raises((InvalidFormat, Unsupported)):
            carry(f"there{number}", replace(pin, place=place))
        assert not (tmp_path / f"there{number}" / "cache").exists()


@pytest.mark.parametrize("pin", PLACES_AND_PATHS, ids=lambda pin: f"{pin.kind} {pin.file}")
def test_two_records_with_one_name_and_place_are_refused(carry, tmp_path, pin):
    pin = replace(pin, place=PLACES_AND_PATHS[pin][0])
    with pytest.raises(InvalidFormat, match="two files"):
        carry("there", pin, replace(pin, licence="MIT"))


def test_two_different_tokenizers_with_one_place_are_refused(machine, tmp_path):
    official = Pin("tokenizer", "meta-llama/Meta-Llama-3-8B", "main", "tokenizer.json")
    pins = []
    paths = {}  # by digest; the two files hold the digits 0 and 1
    for number, pin in enumerate((TOKENIZER, official)):
        path = tmp_path / str(number)
        path.write_text(str(number))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        pins.append(replace(pin, sha256=digest, size=1, place=PLACES_AND_PATHS[TOKENIZER][0]))
        paths[digest] = path
    write_bundle(Bundle(tuple(pins), places=paths), OutputFile(tmp_path / "b.tar", ARCHIVE))
    with pytest.raises(InvalidFormat, match="two files for tokenizers/llama3-128k"):
        import_bundle(
            tmp_path / "b.tar", machine("there"), check=print, into=None, report=lambda *_: None
        )


def test_other_bytes_of_a_packaged_model_are_refused(machine, tmp_path):
    path = tmp_path / "forged"
    path.write_bytes(b"forged")
    digest = hashlib.sha256(b"forged").hexdigest()
    pin = replace(PACKAGE, sha256=digest, size=6)
    write_bundle(Bundle((pin,), places={digest: path}), OutputFile(tmp_path / "b.tar", ARCHIVE))
    with pytest.raises(InvalidFormat, match=f"expected {TINY.sha256}"):
        import_bundle(
            tmp_path / "b.tar", machine("there"), check=print, into=None, report=lambda *_: None
        )


@pytest.mark.parametrize("lock", [0, False, [], {}])
def test_a_lock_file_that_is_not_a_text_is_refused(machine, tmp_path, lock):
    path = tmp_path / "b.tar"
    write_bundle(Bundle((), lock, places={}), OutputFile(path, ARCHIVE))
    project = machine("there")
    with pytest.raises(InvalidFormat, match="its manifest is damaged: not a text"):
        import_bundle(path, project, check=print, into=project.folder, report=lambda *_: None)


def test_an_export_refuses_what_an_import_would_refuse(machine):
    project = machine("here")
    content = b"of another version"
    digest = hashlib.sha256(content).hexdigest()
    path = project.store.path_of(digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for pin in (replace(TOKENIZER, repo="org/one"), replace(PACKAGE, revision="0.9")):
        project.lock_path.unlink(missing_ok=True)  # each pin alone must be refused
        project.pin(replace(pin, sha256=digest, size=len(content)))
        with pytest.raises(Unsupported, match=r"bitnet\.lock\.json pins"):
            list_pinned(project)


def test_a_registered_tokenizer_is_exported_from_its_place_and_no_other_file_there(machine, caplog):
    project = machine("here")
    path = tree.tokenizer_path(project.cache, MIRROR.cache_key, MIRROR.file)
    with pytest.raises(NotFound):
        tokenizer_file(MIRROR, project)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    (member,) = collect([tokenizer_file(MIRROR, project)], {}, project).files
    assert member.place == PLACES_AND_PATHS[TOKENIZER][0]
    assert find_tokenizer(path, project) == []  # its origin is not recorded
    assert "where it is from is not known" in caplog.text
    pin = replace(TOKENIZER, sha256=project.store.digest_of(path), size=2, place=member.place)
    project.store.index.write(replace(pin, repo="org/one"), "org/one", "main", "tokenizer.json")
    assert find_tokenizer(path, project) == []  # nor is that repository registered for the place
    project.store.index.write(pin, *pin.index_name)
    (exported,) = find_tokenizer(path, project)
    assert exported.pin == pin
    # The origin of a compiled tokenizer is not recorded either.
    compiled = tree.tok_path(project.cache, "a" * 64)
    compiled.parent.mkdir()
    compiled.write_bytes(b"")
    assert find_tokenizer(compiled, project) == []
