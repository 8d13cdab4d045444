"""One file for several projects: fetched once, stored once, and identified by its digest."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from hub_server import Rule

from bitnet.base import files
from bitnet.base.errors import (
    HashMismatch,
    InvalidFormat,
    NoSpace,
    Offline,
    UpstreamChanged,
    UsageError,
)
from bitnet.hub import fetch
from bitnet.hub import provide as provide_module
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.orders import model_path, order_from_lock, order_of
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source, provide
from bitnet.sources import Source
from bitnet.store import records
from bitnet.tokenizer.tokenizer_json import check_vocabulary

WEIGHTS = Source("weights", "org/model", "model.gguf")
CONTENT = b"GGUF" + os.urandom(2_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def projects(hub, tmp_path):
    """Two projects with one cache, and a hub that has CONTENT as their model."""
    hub.add("org/model", "model.gguf", CONTENT)
    options = FetchOptions(base_url=hub.url, retries=1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return [Project(tmp_path / n, tmp_path / "cache", options, "none") for n in ("one", "two")]


def offline(project):
    """*project* without a connection."""
    return replace(project, options=replace(project.options, offline=True))


def disk_use(*folders):
    """Bytes on the disk below *folders*; a file with several names counts once."""
    files = [path.lstat() for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sum({status.st_ino: status.st_size for status in files}.values())


def sync(project):
    """The pinned files of *project*, as `bitnet sync` provides them."""
    entries = records.read_lock(project.lock_path)
    orders = [order_from_lock(entry, project, check=check_vocabulary) for entry in entries]
    return provide(orders, project)


# --- fetched once, stored once -------------------------------------------------------------------


def test_two_projects_fetch_a_file_once_and_keep_it_once(hub, projects, tmp_path):
    for project in projects:
        assert fetch_source(WEIGHTS, project).path.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)
    assert disk_use(tmp_path) < len(CONTENT) + 20_000  # bytes of records and lock files


def test_a_new_version_that_another_project_has_fetched_is_placed_without_being_fetched(
    hub, projects
):
    one, two = projects
    fetch_source(WEIGHTS, one)
    hub.add("org/model", "model.gguf", CONTENT[::-1])
    fetch_source(WEIGHTS, two)
    updated = fetch_source(WEIGHTS, replace(one, update=True))
    assert (updated.fetched, updated.is_placed) == (False, True)
    again = fetch_source(WEIGHTS, replace(one, update=True))
    assert (again.fetched, again.is_placed) == (False, False)


def test_files_of_one_call_are_of_one_commit_also_if_the_repository_changes_meanwhile(
    hub, projects, caplog
):
    names = ("config.json", "tokenizer_config.json")

    def push(version):
        for name in names:
            hub.add("org/settings", name, json.dumps({"version": version}).encode())

    def push_once():
        if not any(projects[0].store.blobs()):
            return False  # the first file has not come yet
        if not pushed:
            pushed.append(True)
            push(2)
        return True

    pushed = []
    push(1)
    hub.rules.append(Rule(method="HEAD", path=f"/{names[1]}", when=push_once, times=1))
    orders = [order_of(Source(name, "org/settings", name), projects[0]) for name in names]
    files = provide(orders, projects[0])
    assert [json.loads(file.path.read_bytes()) for file in files] == [{"version": 2}] * 2
    assert len({file.pin.commit for file in files}) == 1
    assert "changed on the server while its files came" in caplog.text
    assert all(file.fetched for file in files)


def test_a_second_project_needs_no_connection_at_all(projects, monkeypatch):
    fetch_source(WEIGHTS, projects[0])

    def bomb(*args):
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", bomb)
    result = fetch_source(WEIGHTS, offline(projects[1]))
    assert (result.path.read_bytes(), result.cached) == (CONTENT, True)


def test_a_file_in_the_cache_of_hugging_face_is_used_instead_of_fetched_also_offline(
    hub, projects, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    their_blob = tmp_path / "hf/models--org--model/blobs" / DIGEST
    their_blob.parent.mkdir(parents=True)
    their_blob.write_bytes(CONTENT)
    pinned = replace(WEIGHTS, sha256=DIGEST)
    assert fetch_source(pinned, offline(projects[0])).path.read_bytes() == CONTENT
    assert hub.requests() == []
    shutil.rmtree(projects[1].cache)
    # Without a pin, the hub's reply to HEAD states the digest to look for.
    assert fetch_source(WEIGHTS, projects[1]).cached
    assert hub.sent("cdn") == 0


# --- whose file it is ----------------------------------------------------------------------------


def test_repositories_that_are_spelled_alike_do_not_share_a_path(hub, projects):
    project = projects[0]
    for repo in ("x-y/z", "x/y-z"):
        hub.add(repo, "m.gguf", CONTENT + repo.encode())
        result = fetch_source(Source(repo, repo, "m.gguf"), project)
        assert result.path.read_bytes() == CONTENT + repo.encode()
    hub.forget()
    assert [result.cached for result in sync(project)] == [True, True]
    assert hub.requests() == []
    paths = {result.path.relative_to(project.folder).as_posix() for result in sync(project)}
    assert paths == {"models/x-y-z/m.gguf", "models/x--y-z@main/m.gguf"}


def test_revisions_do_not_share_a_path(hub, projects):
    project = projects[0]
    first = fetch_source(WEIGHTS, project)
    hub.repos["org/model"].revisions["a/b"] = first.pin.commit
    newer = hub.add("org/model", "model.gguf", CONTENT[::-1])
    project.lock_path.unlink()
    shutil.rmtree(project.folder / "models")
    assert fetch_source(WEIGHTS, project).pin.sha256 == newer.sha256
    result = fetch_source(replace(WEIGHTS, revision="a/b"), project)
    assert result.path == project.folder / "models/org--model@a%2Fb/model.gguf"
    hub.forget()
    assert all(result.cached for result in sync(project))
    assert hub.requests() == []


def test_a_target_that_belongs_to_another_repository_is_refused_unless_forced(hub, projects):
    project = projects[0]
    hub.add("org/other", "model.gguf", CONTENT[::-1])
    target = project.folder / "here/model.gguf"
    fetch_source(WEIGHTS, project, target=target)
    other = Source("other", "org/other", "model.gguf")
    with pytest.raises(UsageError, match="belongs to org/model"):
        fetch_source(other, project, target=target)
    assert target.read_bytes() == CONTENT
    fetch_source(other, replace(project, force=True), target=target)
    (entry,) = records.read_lock(project.lock_path)
    assert (entry.repo, target.read_bytes()) == ("org/other", CONTENT[::-1])


def test_a_lock_file_with_two_digests_for_one_path_is_refused(projects):
    project = projects[0]
    fetch_source(WEIGHTS, project)
    document = json.loads(project.lock_path.read_text())
    document["files"].append(document["files"][0] | {"revision": "v1", "sha256": "0" * 64})
    project.lock_path.write_text(json.dumps(document))
    with pytest.raises(InvalidFormat, match=r"pins two files for models/org-model/model\.gguf"):
        records.read_lock(project.lock_path)


@pytest.mark.parametrize("content", [b"mine", CONTENT[:-1]])
def test_a_users_own_file_is_replaced_only_when_forced(projects, content):
    project = projects[0]
    path = model_path(project, WEIGHTS)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="it stays") as caught:
        fetch_source(WEIGHTS, project)
    assert "--force" in caught.value.hint
    assert path.read_bytes() == content
    fetch_source(WEIGHTS, replace(project, force=True))
    assert path.read_bytes() == CONTENT


def test_a_file_that_bitnet_placed_is_replaced_when_another_source_is_placed_there(hub, projects):
    mirror = Source("mirror", "mirror/tiny", vocab_size=2, cache_key="tiny")
    official = Source("official", "owner/tiny", vocab_size=2, cache_key="tiny")
    target = projects[0].folder / "tokenizer.json"
    for note, source in (("mirror", mirror), ("official", official)):
        content = {"note": note, "model": {"vocab": {"a": 0, "b": 1}}}
        hub.add(source.repo, "tokenizer.json", json.dumps(content).encode())
    for source in (mirror, official, mirror, official):
        result = fetch_source(source, projects[0], check=check_vocabulary, target=target)
        assert json.loads(target.read_text())["note"] == source.name
    assert result.cached
    sent = [seen for seen in hub.requests(method="GET") if "resolve" in seen.path]
    assert len(sent) == 2  # each of the two once, however often they take turns
    # Only the last source is pinned at the place.
    places = {entry.repo: entry.place for entry in records.read_lock(projects[0].lock_path)}
    assert places == {"mirror/tiny": None, "owner/tiny": "tokenizer.json"}


def test_sync_needs_no_cache_while_the_projects_file_is_right(projects):
    fetch_source(WEIGHTS, projects[0])
    shutil.rmtree(projects[0].cache)
    assert [result.cached for result in sync(offline(projects[0]))] == [True]


def test_a_pinned_file_that_the_user_changed_is_not_replaced_until_it_is_removed(projects):
    result = fetch_source(WEIGHTS, projects[0])
    result.path.unlink()
    result.path.write_bytes(b"changed")
    with pytest.raises(UsageError, match="it stays"):
        sync(projects[0])
    result.path.unlink()
    assert sync(projects[0])[0].path.read_bytes() == CONTENT


def test_an_edited_file_of_one_project_never_changes_the_file_of_another(projects):
    first = fetch_source(WEIGHTS, projects[0])
    first.path.chmod(0o644)
    with first.path.open("r+b") as file:
        file.write(b"edit")  # perhaps through a hard link, into the store
    second = fetch_source(WEIGHTS, projects[1])
    assert second.path.read_bytes() == CONTENT


# --- hints ---------------------------------------------------------------------------------------


def test_the_hint_for_a_file_without_the_users_digest_never_advises_to_accept_it(hub, projects):
    with pytest.raises(UpstreamChanged) as caught:
        fetch_source(replace(WEIGHTS, sha256="0" * 64), projects[0])
    text = str(caught.value) + caught.value.hint
    assert "--update" not in text
    assert "do not use it" in caught.value.hint
    # Without an announced digest, the file is refused only once its bytes are there.
    hub.rules.append(Rule(where="hub", drop_headers=("X-Linked-Etag",)))
    with pytest.raises(HashMismatch) as caught:
        fetch_source(replace(WEIGHTS, sha256="0" * 64), projects[0])
    assert "--update" not in str(caught.value) + caught.value.hint


def test_a_gated_tokenizer_without_a_token_hints_at_the_command_for_its_mirror(projects):
    gated = Source("official", "meta-llama/Meta-Llama-3-8B", vocab_size=2,
                   cache_key="llama3-128k", gated=True)  # fmt: skip
    with pytest.raises(Exception, match="HF_TOKEN") as caught:
        fetch_source(gated, projects[0], check=check_vocabulary)
    assert "bitnet tokenizer --source mirror" in caught.value.hint


# --- the disk ------------------------------------------------------------------------------------


class Disk:
    """A disk of *size* bytes that holds only the files below *folder*."""

    def __init__(self, folder, size):
        self.folder = folder
        self.size = size

    def free(self, folder):
        return self.size - disk_use(self.folder)


def test_the_bytes_of_a_partial_file_need_no_further_space_on_the_disk(
    hub, projects, tmp_path, monkeypatch
):
    # After the first run 1.5 MB of 2 MB are there, and 2.5 MB are free: the missing 0.5 MB fit
    # beside the headroom, and the whole file would not.
    monkeypatch.setattr(fetch, "HEADROOM_BYTES", 1_600_000)
    disk = Disk(tmp_path, 4_000_000)
    monkeypatch.setattr(files, "free_space", disk.free)
    hub.rules.append(Rule(where="cdn", times=1, truncate_at=1_500_000))
    with pytest.raises(Exception, match="truncated"):
        fetch_source(WEIGHTS, projects[0])
    hub.forget()
    assert fetch_source(WEIGHTS, projects[0]).path.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT) - 1_500_000


def test_a_disk_that_is_too_small_is_refused_with_what_is_missing(projects, monkeypatch):
    monkeypatch.setattr(files, "free_space", lambda folder: 1_000_000)
    with pytest.raises(NoSpace, match=r"needs 2\.0 MB more"):
        fetch_source(WEIGHTS, projects[0])


def test_thirty_broken_runs_leave_one_partial_file(hub, projects, tmp_path):
    for count in range(30):
        hub.rules[:] = [Rule(where="cdn", times=1, truncate_at=50_000)]
        with pytest.raises(Exception, match="truncated"):
            fetch_source(WEIGHTS, projects[0])
        # Each run adds its 50,000 bytes to the same file.
        assert disk_use(tmp_path) <= (count + 1) * 50_000 + 20_000
    hub.rules.clear()
    assert fetch_source(WEIGHTS, projects[0]).path.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)
    assert disk_use(tmp_path) < len(CONTENT) + 20_000


# --- replicas of a file, with an ETag each -------------------------------------------------------


def test_a_download_continues_from_one_replica_to_the_next_with_another_etag(hub, projects):
    for replica in range(4):
        tag = {"ETag": f'"replica-{replica}"'}
        hub.rules.append(Rule(where="cdn", times=1, truncate_at=400_000, headers=tag))
    project = replace(projects[0], options=replace(projects[0].options, retries=5))
    assert fetch_source(WEIGHTS, project).path.read_bytes() == CONTENT
    assert hub.sent("cdn") == len(CONTENT)


def test_a_partial_file_of_one_replica_is_continued_from_another_by_the_next_run(hub, projects):
    hub.rules.append(Rule(where="cdn", times=1, truncate_at=400_000, headers={"ETag": '"a"'}))
    with pytest.raises(Exception, match="truncated"):
        fetch_source(WEIGHTS, projects[0])
    hub.rules.append(Rule(where="cdn", headers={"ETag": '"b"'}))
    fetch_source(WEIGHTS, projects[0])
    assert hub.sent("cdn") == len(CONTENT)


def test_offline_without_the_file_names_the_command_that_fetches_it(projects):
    with pytest.raises(Offline) as caught:
        fetch_source(WEIGHTS, offline(projects[0]))
    assert "bitnet download-model org/model --file model.gguf" in caught.value.hint


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_projects_disk_that_is_too_small_is_found_before_the_download(
    hub, projects, monkeypatch, is_listed
):
    """The project and the cache are on two disks; the hub's list or its reply states the size."""

    def is_cache(folder):
        return projects[0].cache in (folder, *folder.parents)

    for module in (fetch, provide_module):
        monkeypatch.setattr(module, "device_of", is_cache)
    space = {True: 10**12, False: len(CONTENT) - 1}  # free bytes, by `is_cache`
    monkeypatch.setattr(files, "free_space", lambda folder: space[is_cache(folder)])
    source = replace(WEIGHTS, size=len(CONTENT)) if is_listed else WEIGHTS
    with pytest.raises(NoSpace) as caught:
        fetch_source(source, projects[0])
    assert "--output" in caught.value.hint
    assert hub.sent("cdn") == 0
    space[False] += 1
    assert fetch_source(source, projects[0]).path.read_bytes() == CONTENT


# Downloads the file named in the last argument, finds it by its name, removes it, and prints its
# paths and the files in the cache of Hugging Face.
IN_A_LOCALE = """
import json, sys
from pathlib import Path
from bitnet.base.files import text_of
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.models import locate_model, remove_model
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.hub.ref import parse
from bitnet.sources import Source
from bitnet.store import hugging_face

folder, url, name = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
project = Project(folder, folder / "cache", FetchOptions(base_url=url, retries=1), "none")
model = parse(f"hf:org/model:{name}")
paths = [fetch_source(Source("m", "org/model", name), project).path]
paths.append(locate_model(model, project, fetch=False))
removal = remove_model(model, project, dry_run=False)
paths += [entry.path for entry in removal.remove if not entry.is_stored]
_, files = hugging_face.files_of("org/model", "main")
print(json.dumps([[text_of(path.relative_to(folder)) for path in paths], list(files)]))
"""


def test_a_file_is_fetched_and_removed_in_a_locale_that_cannot_encode_its_name(
    hub, tmp_path, monkeypatch
):
    name = "sub/modèle ☃.gguf"
    hub.add("org/model", name, CONTENT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    repository = tmp_path / "hf" / "models--org--model"
    link = repository / "snapshots" / ("c" * 40) / name
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c" * 40)
    (repository / "blobs").mkdir()
    (repository / "blobs" / DIGEST).write_bytes(CONTENT)
    link.parent.mkdir(parents=True)
    link.symlink_to(f"../../../blobs/{DIGEST}")
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_LOCALE, str(tmp_path), hub.url, json.dumps(name)],
        env=os.environ | environment,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    paths, files = json.loads(done.stdout)
    in_cache = f"cache/models/hf/org/model@main/{name}"
    assert paths == [f"models/org-model/{name}", in_cache, in_cache]
    assert files == [name]
