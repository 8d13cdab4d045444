"""Tokenizers and models of a project: fetched, checked, pinned, and restored from a lock file."""

import json
import logging
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from hub_server import Rule

from bitnet import sources
from bitnet.base.errors import (
    NotFound,
    Offline,
    PermissionDenied,
    TokenMissing,
    UpstreamChanged,
    UsageError,
    VocabMismatch,
)
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.orders import order_from_lock, tokenizer_entry
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source, provide
from bitnet.sources import Source
from bitnet.store import records
from bitnet.store.records import Pin
from bitnet.tokenizer.tokenizer_json import check_vocabulary

MIRRORED = Source("open", "mirror/tiny", vocab_size=3, cache_key="tiny", licence="MIT")
GATED = Source("gated", "owner/tiny", vocab_size=3, cache_key="tiny", gated=True)
WEIGHTS = Source("weights", "org/model", "model.gguf")
CONTENT = b"GGUF" + bytes(range(256)) * 20


def tokenizer_json(size=3, note=""):
    """Bytes of a ``tokenizer.json`` with *size* tokens; *note* makes files differ."""
    vocab = {f"t{number}": number for number in range(size)}
    return json.dumps({"note": note, "model": {"type": "BPE", "vocab": vocab}}).encode()


@pytest.fixture
def project(hub, tmp_path, monkeypatch):
    """A working folder with a cache beside it, and a hub that has everything."""
    hub.add("mirror/tiny", "tokenizer.json", tokenizer_json(note="mirror"))
    hub.add("owner/tiny", "tokenizer.json", tokenizer_json(note="official"))
    hub.add("org/model", "model.gguf", CONTENT)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setitem(sources.TOKENIZERS, "open", MIRRORED)
    monkeypatch.setattr(logging.getLogger("bitnet"), "propagate", True)
    return Project(folder, tmp_path / "cache", FetchOptions(base_url=hub.url), "none")


# Fetches a source into a project; the vocabulary of a tokenizer must have its size.
fetch_checked = partial(fetch_source, check=check_vocabulary)


def offline(project):
    """*project* without a connection."""
    return replace(project, options=replace(project.options, offline=True))


# --- tokenizers ------------------------------------------------------------------------------


def test_a_tokenizer_is_fetched_into_the_cache_and_put_where_it_is_requested(project, hub):
    target = project.folder / "out" / "official" / "tokenizer.json"
    result = fetch_checked(MIRRORED, project, target=target)
    assert target.read_bytes() == tokenizer_json(note="mirror")
    assert tokenizer_entry(MIRRORED, project.cache).read_bytes() == target.read_bytes()
    assert (result.path, result.cached) == (target, False)
    assert result.pin.commit == hub.repos["mirror/tiny"].revisions["main"]


def test_fetching_a_tokenizer_again_opens_no_connection(project, monkeypatch):
    fetch_checked(MIRRORED, project)

    def bomb(*args):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", bomb)
    assert fetch_checked(MIRRORED, project).cached
    assert fetch_checked(MIRRORED, offline(project)).cached


def test_a_mirrored_tokenizer_is_never_used_for_the_gated_original(project, monkeypatch):
    fetch_checked(MIRRORED, project)
    with pytest.raises(TokenMissing):
        fetch_checked(GATED, project)
    with pytest.raises(Offline, match="is not what was asked for"):
        fetch_checked(GATED, offline(project))
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    result = fetch_checked(GATED, project, target=project.folder / "tokenizer.json")
    assert not result.cached
    assert result.path.read_bytes() == tokenizer_json(note="official")


def test_a_gated_source_without_a_token_opens_no_connection(project, hub):
    with pytest.raises(TokenMissing):
        fetch_checked(GATED, project)
    assert hub.requests() == []


def test_offline_names_the_cache_path_and_the_command(project):
    with pytest.raises(Offline, match=r"tiny/tokenizer\.json does not exist") as caught:
        fetch_checked(MIRRORED, offline(project))
    assert "bitnet tokenizer --source open" in caught.value.hint


def test_a_cached_file_with_a_wrong_vocabulary_is_replaced_with_a_warning(project, caplog):
    fetch_checked(MIRRORED, project)
    entry = tokenizer_entry(MIRRORED, project.cache)
    entry.unlink()
    entry.write_bytes(tokenizer_json(5))
    result = fetch_checked(MIRRORED, project)
    assert result.path == entry
    assert entry.read_bytes() == tokenizer_json(note="mirror")
    assert "Vocabulary size mismatch: expected 3, got 5" in caplog.text


def test_a_cached_file_that_was_altered_is_fetched_once_more(project, caplog):
    fetch_checked(MIRRORED, project)
    entry = tokenizer_entry(MIRRORED, project.cache)
    entry.chmod(0o644)
    entry.write_bytes(tokenizer_json(note="altered"))
    assert fetch_checked(MIRRORED, project).path.read_bytes() == tokenizer_json(note="mirror")
    assert "has changed since it was checked" in caplog.text


def test_a_file_put_into_the_cache_by_hand_is_used_if_its_vocabulary_is_right(project, hub):
    entry = tokenizer_entry(MIRRORED, project.cache)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(tokenizer_json(note="by hand"))
    assert fetch_checked(MIRRORED, project).cached
    assert hub.requests() == []
    assert not project.lock_path.exists()


def test_a_wrong_vocabulary_on_the_server_never_reaches_the_cache(project, hub):
    hub.add("mirror/tiny", "tokenizer.json", tokenizer_json(4))
    with pytest.raises(VocabMismatch, match="expected 3, got 4"):
        fetch_checked(MIRRORED, project)
    assert not tokenizer_entry(MIRRORED, project.cache).exists()
    assert not project.lock_path.exists()


def test_another_revision_is_requested_and_pinned_on_its_own(project, hub):
    first = fetch_checked(MIRRORED, project)
    hub.add("mirror/tiny", "tokenizer.json", tokenizer_json(note="newer"))
    hub.repos["mirror/tiny"].revisions["v1"] = first.pin.commit
    assert fetch_checked(MIRRORED, project).path.read_bytes() == tokenizer_json(note="mirror")
    hub.forget()
    result = fetch_checked(replace(MIRRORED, revision="v1"), project)
    # The bytes are the same as those of main before: none is transferred.
    assert (result.cached, result.pin.commit) == (
        True,
        first.pin.commit,
    )
    assert [seen.method for seen in hub.requests()] == ["HEAD"]
    assert [entry.revision for entry in records.read_lock(project.lock_path)] == ["main", "v1"]


def test_force_fetches_a_file_that_is_there_again(project):
    fetch_checked(MIRRORED, project)
    assert not fetch_checked(MIRRORED, replace(project, force=True)).cached


def test_a_deleted_folder_of_the_cache_is_filled_again(project):
    fetch_checked(MIRRORED, project)
    shutil.rmtree(tokenizer_entry(MIRRORED, project.cache).parent)
    assert fetch_checked(MIRRORED, project).path.read_bytes() == tokenizer_json(note="mirror")
    shutil.rmtree(project.cache)
    assert not fetch_checked(MIRRORED, project).cached


def test_the_check_of_the_cache_finds_an_altered_tokenizer_by_its_digest(project, bitnet):
    fetch_checked(MIRRORED, project)
    assert bitnet("cache.verify", "--cache-dir", project.cache).code == 0
    entry = tokenizer_entry(MIRRORED, project.cache)
    entry.chmod(0o644)
    entry.write_bytes(tokenizer_json(note="altered"))
    done = bitnet("cache.verify", "--cache-dir", project.cache)
    assert done.code == 13  # damaged files
    assert "SHA-256" in done.out


# --- models ----------------------------------------------------------------------------------


def test_a_model_is_placed_in_the_models_folder_and_pinned(project, hub):
    result = fetch_checked(WEIGHTS, project)
    assert result.path == project.folder / "models" / "org-model" / "model.gguf"
    assert result.path.read_bytes() == CONTENT
    (pinned,) = records.read_lock(project.lock_path)
    assert pinned.place == "models/org-model/model.gguf"
    assert (pinned.sha256, pinned.size) == (result.pin.sha256, len(CONTENT))
    assert pinned.commit == hub.repos["org/model"].revisions["main"]


def test_the_licence_that_the_models_page_names_is_returned_and_pinned(project, hub):
    hub.repo("org/model", licence="bsd-3-clause")
    assert "bsd-3-clause" in fetch_checked(WEIGHTS, project).pin.licence
    assert records.read_lock(project.lock_path)[0].licence == "bsd-3-clause"
    (synchronized,) = sync(project)
    assert "bsd-3-clause" in synchronized.pin.licence
    assert "bsd-3-clause" in fetch_checked(WEIGHTS, project).pin.licence
    assert records.read_lock(project.lock_path)[0].licence == "bsd-3-clause"


def test_from_a_mirror_without_pages_of_models_the_file_is_fetched_without_a_licence(project, hub):
    hub.rules.append(Rule(where="hub", path="/api/", status=404))
    assert fetch_checked(WEIGHTS, project).path.exists()
    assert records.read_lock(project.lock_path)[0].licence == ""


def test_a_pinned_model_that_is_there_needs_no_connection(project, hub):
    fetch_checked(WEIGHTS, project)
    hub.forget()
    assert fetch_checked(WEIGHTS, offline(project)).cached
    assert hub.requests() == []


def test_a_model_that_is_there_keeps_the_licence_it_was_pinned_with(project):
    first = fetch_checked(WEIGHTS, project)
    assert "apache-2.0" in first.pin.licence
    assert fetch_checked(WEIGHTS, offline(project)).pin.licence == first.pin.licence


@pytest.mark.parametrize("change", [{"force": True}, {"update": True}])
def test_force_or_update_offline_is_refused_with_the_reason(project, change):
    fetch_checked(WEIGHTS, project)
    with pytest.raises(Offline, match="would be fetched again"):
        fetch_checked(WEIGHTS, replace(offline(project), **change))


def test_the_offline_hint_for_a_model_names_its_file(project):
    with pytest.raises(Offline) as caught:
        fetch_checked(WEIGHTS, offline(project))
    assert "bitnet download-model org/model --file model.gguf" in caught.value.hint


def test_a_damaged_model_is_not_used_offline_and_replaced_only_with_force(project):
    path = fetch_checked(WEIGHTS, project).path
    path.chmod(0o644)
    path.write_bytes(CONTENT[:-1])
    shutil.rmtree(project.cache)
    with pytest.raises(Offline, match="is not what was asked for"):
        fetch_checked(WEIGHTS, offline(project))
    with pytest.raises(UsageError, match="it stays"):  # the lock file alone does not permit it
        fetch_checked(WEIGHTS, project)
    assert not fetch_checked(WEIGHTS, replace(project, force=True)).cached
    assert path.read_bytes() == CONTENT


def test_a_model_without_a_known_digest_is_used_offline_with_a_warning(project, caplog):
    path = fetch_checked(WEIGHTS, project).path
    project.lock_path.unlink()
    assert fetch_checked(WEIGHTS, offline(project)).path == path
    assert "unchecked" not in caplog.text  # its digest is recorded in the cache
    shutil.rmtree(project.cache)
    project.lock_path.unlink()
    assert fetch_checked(WEIGHTS, offline(project)).path == path
    assert "unchecked" in caplog.text


def test_a_file_that_was_there_is_pinned_only_if_the_server_has_the_same_bytes(project, hub):
    path = project.folder / "models" / "org-model" / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    result = fetch_checked(WEIGHTS, project)
    assert (result.cached, hub.sent("cdn")) == (True, 0)
    assert result.pin.commit == hub.repos["org/model"].revisions["main"]
    project.lock_path.unlink()
    path.write_bytes(CONTENT[:100])
    with pytest.raises(UsageError, match="it stays"):
        fetch_checked(WEIGHTS, project)
    assert path.read_bytes() == CONTENT[:100]
    fetch_checked(WEIGHTS, replace(project, force=True))
    assert path.read_bytes() == CONTENT


def test_a_pin_keeps_its_commit_when_another_server_does_not_know_it(project):
    fetch_checked(WEIGHTS, project)
    (pinned,) = records.read_lock(project.lock_path)
    project.pin(replace(pinned, commit=None))
    assert records.read_lock(project.lock_path) == [pinned]


def test_a_project_whose_lock_file_cannot_be_written_gets_its_file_with_a_warning(
    project, monkeypatch, caplog
):
    def refuse(*args):
        raise PermissionDenied("Permission denied (os error 13): bitnet.lock.json")

    monkeypatch.setattr(records, "write_lock", refuse)
    assert fetch_checked(MIRRORED, project).path.exists()
    assert "is not pinned: Permission denied (os error 13)" in caplog.text


def test_threads_that_ask_at_the_same_time_fetch_once_and_pin_the_commit(project, hub):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: fetch_checked(MIRRORED, project), range(8)))
    assert sorted(result.cached for result in results) == [False] + [True] * 7
    assert len([seen for seen in hub.requests(method="GET") if "tokenizer.json" in seen.path]) == 1
    commit = hub.repos["mirror/tiny"].revisions["main"]
    assert records.read_lock(project.lock_path)[0].commit == commit
    assert (
        project.store.index.find(MIRRORED.repo, MIRRORED.revision, MIRRORED.file).commit == commit
    )


def test_a_digest_that_contradicts_the_lock_file_is_refused(project):
    fetch_checked(WEIGHTS, project)
    with pytest.raises(UsageError, match="--sha256"):
        fetch_checked(replace(WEIGHTS, sha256="0" * 64), project)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a//b", "."])
def test_a_file_name_never_leaves_the_models_folder(project, file):
    with pytest.raises(UsageError):
        fetch_checked(replace(WEIGHTS, file=file), project)


# --- sync ------------------------------------------------------------------------------------


def sync(project):
    """The pinned files of *project*, as `bitnet sync` provides them."""
    entries = records.read_lock(project.lock_path)
    orders = [order_from_lock(entry, project, check=check_vocabulary) for entry in entries]
    return provide(orders, project)


def test_another_machine_gets_the_pinned_commit_although_main_has_moved(project, hub, tmp_path):
    fetch_checked(MIRRORED, project)
    fetch_checked(WEIGHTS, project)
    before = project.lock_path.read_bytes()
    hub.add("org/model", "model.gguf", CONTENT + b"newer")
    hub.add("mirror/tiny", "tokenizer.json", tokenizer_json(note="newer"))
    other = replace(project, folder=tmp_path / "other", cache=tmp_path / "other cache")
    other.folder.mkdir()
    shutil.copy(project.lock_path, other.lock_path)
    model, tokenizer = sync(other)
    assert model.path.read_bytes() == CONTENT
    assert tokenizer.path.read_bytes() == tokenizer_json(note="mirror")
    assert other.lock_path.read_bytes() == before


def test_sync_places_a_tokenizer_where_it_was_when_it_was_pinned(project):
    target = fetch_checked(
        MIRRORED, project, target=project.folder / "models" / "tokenizer.json"
    ).path
    fetch_checked(MIRRORED, project)  # this use, without a target, keeps the pinned place
    target.unlink()
    assert sync(project)[0].path == target
    assert target.read_bytes() == tokenizer_json(note="mirror")


def test_a_replaced_file_is_an_error_that_names_both_digests_until_it_is_accepted(project, hub):
    result = fetch_checked(WEIGHTS, project)
    repo = hub.repos["org/model"]
    newer = hub.add("org/model", "model.gguf", CONTENT + b"newer")
    repo.commits[result.pin.commit] = repo.commits[repo.revisions["main"]]  # history rewritten
    result.path.unlink()
    shutil.rmtree(project.cache)
    with pytest.raises(UpstreamChanged) as caught:
        sync(project)
    assert result.pin.sha256 in str(caught.value)
    assert newer.sha256 in str(caught.value)
    (accepted,) = sync(replace(project, update=True))
    assert accepted.pin.sha256 == newer.sha256
    assert records.read_lock(project.lock_path)[0].sha256 == newer.sha256
    hub.forget()
    assert sync(project)[0].cached
    assert hub.requests() == []


def test_a_replaced_small_file_is_an_error_too(project, hub):
    result = fetch_checked(MIRRORED, project)
    repo = hub.repos["mirror/tiny"]
    hub.add("mirror/tiny", "tokenizer.json", tokenizer_json(note="mirroR"))
    repo.commits[result.pin.commit] = repo.commits[repo.revisions["main"]]
    shutil.rmtree(project.cache)
    with pytest.raises(UpstreamChanged, match=result.pin.sha256):
        sync(project)


def test_a_pinned_commit_that_vanished_is_not_found_with_a_hint_to_update(project, hub):
    result = fetch_checked(WEIGHTS, project)
    hub.add("org/model", "model.gguf", CONTENT)
    del hub.repos["org/model"].commits[result.pin.commit]
    result.path.unlink()
    shutil.rmtree(project.cache)
    with pytest.raises(NotFound, match=result.pin.commit) as caught:
        sync(project)
    assert "bitnet sync --update" in caught.value.hint


def test_update_transfers_nothing_when_nothing_has_changed(project, hub):
    fetch_checked(WEIGHTS, project)
    hub.add("org/model", "README.md", b"a new commit")
    hub.forget()
    (result,) = sync(replace(project, update=True))
    assert result.cached
    assert hub.sent() == 0
    assert (
        records.read_lock(project.lock_path)[0].commit == hub.repos["org/model"].revisions["main"]
    )


def test_a_lock_file_that_pins_an_unregistered_tokenizer_or_package_file_is_refused(project):
    unknown = Pin("tokenizer", "o/r", "main", "tokenizer.json", None, "a" * 64, 1)
    package = replace(unknown, kind="package", repo="smollm2-135m", file="x.gguf")
    for entry in (unknown, package):
        records.write_lock(project.lock_path, [entry])
        with pytest.raises(Exception, match=r"bitnet\.lock\.json pins"):
            sync(project)
