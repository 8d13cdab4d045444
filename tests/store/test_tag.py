"""CACHEDIR.TAG: a cache of bitnet is marked, and only from a marked folder files are removed."""

import pytest

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.cache import Selection
from bitnet.cache.prune import plan, prune
from bitnet.store import Pin, Store
from bitnet.store.root import has_tag, keep_in_cache, make_cache

ALL = Selection(models=True)


def put(path, content=b"x"):
    """Write *content* to *path*, whose folders are created, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_new_cache_and_an_empty_folder_are_marked(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new/cache", "empty"):
        make_cache(tmp_path / name)
        assert has_tag(tmp_path / name)


def test_the_folder_of_a_project_is_not_marked(tmp_path):
    put(tmp_path / "models/mine.gguf")
    make_cache(tmp_path)
    assert not has_tag(tmp_path)


def test_the_default_cache_is_marked_although_it_holds_files():
    root = settings.cache_dir()
    put(root / "tokenizers/my-own/tokenizer.json")
    make_cache(root)
    assert has_tag(root)


@pytest.mark.parametrize("folder", ["models", "tokenizers", "exact-heads", "store"])
def test_nothing_is_removed_from_a_folder_that_is_not_marked(tmp_path, folder):
    precious = put(tmp_path / folder / "own/precious.gguf")
    ours = put(tmp_path / "exact-heads" / f"{'cd' * 16}.copy")
    with pytest.raises(UsageError, match=r"has no CACHEDIR\.TAG of bitnet"):
        plan(tmp_path, ALL)
    assert precious.exists()
    assert ours.exists()


def test_the_tag_of_another_program_does_not_make_a_folder_ours(tmp_path):
    # The signature of every cache (https://bford.info/cachedir/), and a line of another program.
    put(tmp_path / "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n# pip\n")
    put(tmp_path / "models/mine.gguf")
    with pytest.raises(UsageError, match=r"has no CACHEDIR\.TAG of bitnet"):
        plan(tmp_path, ALL)


def test_a_tag_copied_into_a_project_does_not_make_it_a_cache(tmp_path):
    make_cache(tmp_path / "cache")
    project = tmp_path / "project"
    put(project / "models/mine.gguf")
    put(project / "src/main.py")
    put(project / "CACHEDIR.TAG", (tmp_path / "cache/CACHEDIR.TAG").read_bytes())
    with pytest.raises(UsageError, match="also holds 'src'"):
        plan(project, ALL)


def test_links_to_files_in_a_cache_are_removed_and_those_to_folders_stay(tmp_path):
    root = tmp_path / "cache"
    make_cache(root)
    users_file = put(tmp_path / "home/mine.gguf")
    (root / "models").mkdir()
    (root / "models/link.gguf").symlink_to(users_file)
    (root / "models/hard.gguf").hardlink_to(users_file)
    (root / "models/folder").symlink_to(users_file.parent)
    (root / "exact-heads").symlink_to(users_file.parent)
    prune(plan(root, ALL))
    assert users_file.read_bytes() == b"x"
    assert users_file.stat().st_nlink == 1
    assert not (root / "models/link.gguf").is_symlink()
    assert (root / "models/folder").is_symlink()
    assert (root / "exact-heads").is_symlink()


def test_the_first_write_of_any_kind_marks_a_new_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "cache"))
    assert keep_in_cache(tmp_path / "cache/exact-heads" / f"{'0' * 32}.copy", b"x") == ""
    assert has_tag(tmp_path / "cache")
    assert len(plan(tmp_path / "cache", ALL).remove) == 1


def test_the_first_record_marks_a_new_cache(tmp_path):
    record = Pin("model", "org/a", "main", "a.gguf", sha256="0" * 64)
    Store(tmp_path / "cache").index.write(record, *record.index_name)
    assert has_tag(tmp_path / "cache")
