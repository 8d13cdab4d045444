import hashlib
from dataclasses import replace

import pytest
from hub_repositories import Blob
from hub_server import HubServer, Rule

from bitnet.base.errors import HashMismatch, NetworkError, NotFound, UsageError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.hub.ref import Ref
from bitnet.hub.repo_models import candidates, choose
from bitnet.hub.repository import file_url, head, list_files, read_card, read_range
from bitnet.hub.session import HubSession
from bitnet.sources import Source

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def options(hub):
    hub.add("org/model", "model.gguf", CONTENT)
    hub.add("org/model", "config.json", b"{}")
    return FetchOptions(base_url=hub.url, retries=1)


@pytest.fixture
def session(options):
    with HubSession(options) as made:
        yield made


def test_head_tells_commit_size_and_digest_of_a_large_file(hub, options, session):
    facts = head(file_url("org/model", "main", "model.gguf", options), session)
    commit = hub.repos["org/model"].revisions["main"]
    assert facts.sha256 == facts.etag == hashlib.sha256(CONTENT).hexdigest()
    assert (facts.size, facts.commit, facts.accepts_ranges) == (len(CONTENT), commit, True)
    assert facts.url == f"{hub.url}/org/model/resolve/{commit}/model.gguf"
    assert hub.requests("cdn") == []


def test_head_of_a_small_file_has_an_etag_and_no_digest(hub, options, session):
    facts = head(file_url("org/model", "main", "config.json", options), session)
    assert (facts.size, facts.sha256) == (2, None)
    assert facts.etag


def test_a_digest_that_only_the_server_behind_a_redirect_names_is_used(hub, tmp_path):
    """A mirror that sends on to a hub: altered bytes are refused, and never pinned."""
    with HubServer() as behind:
        behind.add("org/model", "model.gguf", CONTENT)
        place = f"{behind.url}/org/model/resolve/main/model.gguf"
        hub.rules.append(Rule(path="/resolve/", status=302, headers={"Location": place}))
        options = FetchOptions(base_url=hub.url, retries=1)
        with HubSession(options) as session:
            facts = head(file_url("org/model", "main", "model.gguf", options), session)
        digest = hashlib.sha256(CONTENT).hexdigest()
        assert facts.sha256 == digest
        behind.blobs[digest] = Blob(CONTENT[::-1])
        project = Project(tmp_path, tmp_path / "cache", options, "none")
        with pytest.raises(HashMismatch):
            fetch_source(Source("m", "org/model", "model.gguf"), project)
        assert not project.lock_path.exists()
        assert not list(project.store.blobs())


def test_storage_that_refuses_to_be_asked_names_no_digest(hub):
    hub.add("org/model", "model.gguf", CONTENT)
    away = {"Location": f"{hub.cdn_url}/none"}
    hub.rules.append(Rule(path="/resolve/", status=302, headers=away))
    options = FetchOptions(base_url=hub.url, retries=1)
    with HubSession(options) as session:
        assert head(file_url("org/model", "main", "model.gguf", options), session).sha256 is None


def test_a_weak_etag_binds_nothing(hub, options, session):
    hub.rules.append(Rule(headers={"ETag": 'W/"abc"'}))
    assert head(file_url("org/model", "main", "config.json", options), session).etag is None


def test_files_are_listed_with_sizes_over_all_pages(hub, session):
    hub.page_size = 1
    files = list_files("org/model", "main", session)
    assert [(file.file, file.size) for file in files] == [
        ("config.json", 2),
        ("model.gguf", len(CONTENT)),
    ]
    assert files[0].sha256 is None
    assert files[1].sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_facts_name_licence_and_gate(hub, session):
    hub.repo("org/model", gated=True, licence="llama3")
    facts = read_card("org/model", "main", session)
    assert (facts.gated, facts.licence) == (True, "llama3")
    assert facts.commit == hub.repos["org/model"].revisions["main"]


def test_a_listing_of_an_unknown_repository_is_not_found(hub, session):
    with pytest.raises(NotFound):
        list_files("org/none", "main", session)


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"error": 1}', b'[{"type": "file"}]', b"7"])
def test_a_listing_that_is_none_is_a_network_error(hub, session, body):
    kind = {"Content-Type": "application/json"}
    hub.rules.append(Rule(path="/tree/", status=200, headers=kind, body=body))
    with pytest.raises(NetworkError):
        list_files("org/model", "main", session)


def test_a_part_is_read_without_the_rest(hub, options, session):
    url = file_url("org/model", "main", "model.gguf", options)
    assert read_range(url, 100, 356, session) == CONTENT[100:356]
    assert hub.sent("cdn") == 256


def test_a_part_at_the_end_is_as_long_as_the_file_allows(hub, options, session):
    url = file_url("org/model", "main", "model.gguf", options)
    assert read_range(url, len(CONTENT) - 3, len(CONTENT) + 10, session) == CONTENT[-3:]


def test_the_beginning_comes_also_from_a_server_without_ranges(hub, options, session):
    hub.rules.append(Rule(where="cdn", ignore_range=True))
    url = file_url("org/model", "main", "model.gguf", options)
    assert read_range(url, 0, 10, session) == CONTENT[:10]
    with pytest.raises(NetworkError, match="cannot send a part"):
        read_range(url, 5, 10, session)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_part_that_breaks_off_is_asked_for_again(hub, options, is_whole):
    hub.rules.append(Rule(where="cdn", truncate_at=7, ignore_range=is_whole, times=1))
    url = file_url("org/model", "main", "model.gguf", options)
    with HubSession(replace(options, retries=2), sleep=lambda _seconds: None) as patient:
        assert read_range(url, 0, 100, patient) == CONTENT[:100]


@pytest.mark.parametrize("part", ["bytes 5-4/1000", "bytes 5-10/1000", "bytes 50-9/1000"])
def test_another_part_than_the_one_asked_for_is_refused(hub, options, session, part):
    hub.rules.append(Rule(where="cdn", headers={"Content-Range": part}))
    url = file_url("org/model", "main", "model.gguf", options)
    with pytest.raises(NetworkError, match="cannot send a part"):
        read_range(url, 5, 10, session)


# --- listings that cannot be trusted --------------------------------------------------------------


def test_a_listing_that_goes_on_elsewhere_is_refused_not_cut(hub, session):
    link = f'<{hub.cdn_url}/api/models/org/model/tree/main?cursor=1>; rel="next"'
    hub.rules.append(Rule(where="hub", path="/tree/", headers={"Link": link}))
    with pytest.raises(NetworkError, match=r"goes on at another server, http://localhost:\d+/api"):
        list_files("org/model", "main", session)


def test_a_listing_without_an_end_ends(hub, session):
    link = f'<{hub.url}/api/models/org/model/tree/main?recursive=true>; rel="next"'
    hub.rules.append(Rule(where="hub", path="/tree/", headers={"Link": link}))
    with pytest.raises(NetworkError, match="without an end"):
        list_files("org/model", "main", session)


@pytest.mark.parametrize(
    "name", ["../x.gguf", "/etc/x.gguf", "a/../../x.jinja", "a//x.gguf", "./x.gguf", "a/..", "a/"]
)
def test_a_name_that_leaves_the_repository_is_an_unexpected_reply(hub, session, name):
    body = f'[{{"type": "file", "path": "{name}", "size": 1}}]'.encode()
    reply = {"status": 200, "headers": {"Content-Type": "application/json"}, "body": body}
    hub.rules.append(Rule(where="hub", path="/tree/", **reply))
    with pytest.raises(NetworkError, match="not a list of files"):
        list_files("org/model", "main", session)


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "1e3", "null", "true", '"x"', "[]"])
def test_a_size_that_is_none_is_an_unexpected_reply(hub, session, size):
    body = f'[{{"type": "file", "path": "a.gguf", "size": {size}}}]'.encode()
    reply = {"status": 200, "headers": {"Content-Type": "application/json"}, "body": body}
    hub.rules.append(Rule(where="hub", path="/tree/", **reply))
    with pytest.raises(NetworkError):
        list_files("org/model", "main", session)


def test_a_length_of_thousands_of_digits_is_not_a_length(hub, options, session):
    url = file_url("org/model", "main", "model.gguf", options)
    hub.rules.append(Rule(where="hub", method="HEAD", headers={"X-Linked-Size": "9" * 5000}))
    assert head(url, session).size is None


@pytest.mark.parametrize("name", ["a\0.gguf", "a\x1b[2J.gguf", "a\n.gguf", "a\u2028.gguf"])
def test_a_name_that_steers_the_terminal_is_shown_harmless_and_never_fetched(
    hub, options, session, name
):
    hub.add("org/model", name, CONTENT)
    with pytest.raises(UsageError):
        file_url("org/model", "main", name, options)
    found = candidates(list_files("org/model", "main", session), "")
    with pytest.raises(UsageError) as caught:
        choose(Ref("", repo="org/model"), found)
    shown = caught.value.message + caught.value.hint
    assert name not in shown
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert shown.count("\n") == 2
