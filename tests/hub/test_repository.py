"""Replies of a hub: facts of a file, the list of files, the card of a model, a part of a file."""

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
    with HubSession(options) as opened_session:
        yield opened_session


def test_the_reply_to_head_of_a_large_file_gives_commit_size_and_digest(hub, options, session):
    facts = head(file_url("org/model", "main", "model.gguf", options), session)
    commit = hub.repos["org/model"].revisions["main"]
    assert facts.sha256 == facts.etag == hashlib.sha256(CONTENT).hexdigest()
    assert (facts.size, facts.commit, facts.accepts_ranges) == (len(CONTENT), commit, True)
    assert facts.url == f"{hub.url}/org/model/resolve/{commit}/model.gguf"
    assert hub.requests("cdn") == []


def test_the_reply_to_head_of_a_small_file_gives_an_etag_and_no_digest(hub, options, session):
    facts = head(file_url("org/model", "main", "config.json", options), session)
    assert (facts.size, facts.sha256) == (2, None)
    assert facts.etag


def test_a_digest_that_only_the_server_behind_a_redirect_names_is_used(hub, tmp_path):
    """A mirror redirects to a hub: altered bytes are refused, and never pinned."""
    with HubServer() as behind:
        behind.add("org/model", "model.gguf", CONTENT)
        address = f"{behind.url}/org/model/resolve/main/model.gguf"
        hub.rules.append(Rule(path="/resolve/", status=302, headers={"Location": address}))
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


def test_a_redirect_to_a_storage_that_refuses_head_gives_no_digest(hub):
    hub.add("org/model", "model.gguf", CONTENT)
    headers = {"Location": f"{hub.cdn_url}/none"}
    hub.rules.append(Rule(path="/resolve/", status=302, headers=headers))
    options = FetchOptions(base_url=hub.url, retries=1)
    with HubSession(options) as session:
        assert head(file_url("org/model", "main", "model.gguf", options), session).sha256 is None


@pytest.mark.parametrize(("times", "is_named"), [(2, True), (None, False)])
def test_a_storage_that_fails_at_head_is_asked_again_and_then_gives_no_digest(hub, times, is_named):
    options = FetchOptions(base_url=hub.url, retries=4)
    with HubServer() as behind, HubSession(options) as session:
        behind.add("org/model", "model.gguf", CONTENT)
        behind.rules.append(Rule(method="HEAD", status=503, times=times or 1000))
        headers = {"Location": f"{behind.url}/org/model/resolve/main/model.gguf"}
        hub.rules.append(Rule(path="/resolve/", status=302, headers=headers))
        address = f"{hub.url}/org/model/resolve/main/model.gguf"
        digest = hashlib.sha256(CONTENT).hexdigest() if is_named else None
        assert head(address, session).sha256 == digest
        assert len(behind.requests()) == 3


def test_a_weak_etag_is_not_used(hub, options, session):
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


def test_the_card_of_a_repository_gives_its_licence_gate_and_commit(hub, session):
    hub.repo("org/model", gated=True, licence="llama3")
    facts = read_card("org/model", "main", session)
    assert (facts.gated, facts.licence) == (True, "llama3")
    assert facts.commit == hub.repos["org/model"].revisions["main"]


def test_a_listing_of_an_unknown_repository_is_not_found(hub, session):
    with pytest.raises(NotFound):
        list_files("org/none", "main", session)


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"error": 1}', b'[{"type": "file"}]', b"7"])
def test_a_reply_that_is_not_a_list_of_files_is_a_network_error(hub, session, body):
    kind = {"Content-Type": "application/json"}
    hub.rules.append(Rule(path="/tree/", status=200, headers=kind, body=body))
    with pytest.raises(NetworkError):
        list_files("org/model", "main", session)


def test_a_part_of_a_file_is_read_without_the_rest(hub, options, session):
    url = file_url("org/model", "main", "model.gguf", options)
    assert read_range(url, 100, 356, session) == CONTENT[100:356]
    assert hub.sent("cdn") == 256


def test_a_part_beyond_the_end_of_a_file_ends_with_the_file(hub, options, session):
    url = file_url("org/model", "main", "model.gguf", options)
    assert read_range(url, len(CONTENT) - 3, len(CONTENT) + 10, session) == CONTENT[-3:]


def test_the_beginning_is_read_also_from_a_server_without_ranges_and_a_later_part_is_not(
    hub, options, session
):
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


def test_a_listing_that_continues_on_another_server_is_refused(hub, session):
    link = f'<{hub.cdn_url}/api/models/org/model/tree/main?cursor=1>; rel="next"'
    hub.rules.append(Rule(where="hub", path="/tree/", headers={"Link": link}))
    with pytest.raises(NetworkError, match=r"goes on at another server, http://localhost:\d+/api"):
        list_files("org/model", "main", session)


def test_a_listing_whose_pages_never_end_is_refused(hub, session):
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
def test_a_listing_with_an_invalid_size_is_a_network_error(hub, session, size):
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
def test_a_file_name_with_control_characters_is_escaped_in_messages_and_never_fetched(
    hub, options, session, name
):
    hub.add("org/model", name, CONTENT)
    with pytest.raises(UsageError):
        file_url("org/model", "main", name, options)
    models = candidates(list_files("org/model", "main", session), "")
    with pytest.raises(UsageError) as caught:
        choose(Ref("", repo="org/model"), models)
    message = caught.value.message + caught.value.hint
    assert name not in message
    assert all(c.isprintable() or c == "\n" for c in message)
    assert message.count("\n") == 2  # one before each of the two files in the list
