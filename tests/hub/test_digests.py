"""Every digest that a server offers is used: in the listing, in a reply, and behind a redirect."""

import hashlib
import json
from base64 import b64encode

import pytest
from hub_repositories import LARGE_BYTES
from hub_server import Rule

from bitnet.base.errors import IntegrityError
from bitnet.hub.fetch_options import FetchOptions, FileSelection
from bitnet.hub.http import read_digest, requests
from bitnet.hub.project import Project
from bitnet.hub.provide import fetch_source
from bitnet.hub.resolve import download, refs_of
from bitnet.sources import Source

CONTENT = b"GGUF" + bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"other bytes").hexdigest()
assert len(CONTENT) > LARGE_BYTES  # the hub redirects requests for it to the storage (cdn)
SOURCE = Source("m", "org/model", "model.gguf")
CONFIG = Source("m", "org/model", "config.json")


def field(digest):
    """Value of a ``Repr-Digest`` header (RFC 9530) for the SHA-256 *digest*."""
    return f"sha-256=:{b64encode(bytes.fromhex(digest)).decode()}:"


@pytest.fixture
def project(hub, tmp_path):
    hub.add("org/model", "model.gguf", CONTENT)
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=hub.url, retries=1)
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def announce(hub, where, method, headers):
    """Let *where* reply to *method* for the file with *headers*, and no digest of its own."""
    location = f"{hub.cdn_url}/{DIGEST}"
    if where == "hub":
        sent = {"Location": location, "X-Linked-Size": str(len(CONTENT)), **headers}
        hub.rules.append(Rule(where, method, "/resolve/", status=302, headers=sent))
    elif method == "HEAD":
        hub.rules.append(Rule(where, method, status=200, headers=headers))
    else:
        sent = {"Content-Type": "application/octet-stream", **headers}
        hub.rules.append(Rule(where, method, status=200, headers=sent, body=CONTENT))


def list_with(hub, digest):
    """Let the hub's list of files state *digest* for the file."""
    lfs = {"oid": digest, "size": len(CONTENT)}
    entry = {"type": "file", "path": "model.gguf", "size": len(CONTENT), "lfs": lfs}
    body = json.dumps([entry]).encode()
    headers = {"Content-Type": "application/json"}
    hub.rules.append(Rule("hub", "GET", "/tree/", status=200, headers=headers, body=body))


def fetch_listed(project):
    """Fetch the file as the hub's list of files names it."""
    (obtained,) = download(refs_of("org/model"), project, select=FileSelection(whole=True))
    return obtained


# Replies that announce a digest: server, method, header.
REPLIES = {
    "the hub's reply to HEAD": ("hub", "HEAD", "X-Linked-Etag"),
    "the hub's redirect": ("hub", "GET", "X-Linked-Etag"),
    "the storage's reply": ("cdn", "GET", "Repr-Digest"),
    "the storage's reply in the old form": ("cdn", "GET", "Digest"),
}


def headers_of(name, digest):
    """Headers with which a server announces *digest* in the header *name*."""
    if name == "X-Linked-Etag":
        return {name: f'"{digest}"'}
    return {name: field(digest) if name == "Repr-Digest" else field(digest).replace(":", "")}


@pytest.mark.parametrize("place", REPLIES)
@pytest.mark.parametrize("digest", [DIGEST, OTHER], ids=["right", "wrong"])
def test_a_digest_is_used_wherever_it_is_announced(hub, project, place, digest):
    where, method, name = REPLIES[place]
    announce(hub, where, method, headers_of(name, digest))
    # The other replies of the hub announce none; by default they would have the right one.
    for other in {("hub", "HEAD"), ("hub", "GET")} - {(where, method)}:
        announce(hub, *other, {})
    if digest == DIGEST:
        assert fetch_source(SOURCE, project).pin.verified
        assert "verified" not in project.lock_path.read_text()  # only a pin that is not states it
        return
    with pytest.raises(IntegrityError):
        fetch_source(SOURCE, project)
    assert not project.lock_path.exists()
    assert not list(project.store.blobs())


@pytest.mark.parametrize("place", REPLIES)
def test_a_digest_that_differs_from_the_listings_is_refused(hub, project, place):
    list_with(hub, DIGEST)
    where, method, name = REPLIES[place]
    announce(hub, where, method, headers_of(name, OTHER))
    for other in {("hub", "HEAD"), ("hub", "GET")} - {(where, method)}:
        announce(hub, *other, {})
    with pytest.raises(IntegrityError):
        fetch_listed(project)
    assert not list(project.store.blobs())


def test_bytes_that_are_not_those_of_the_listing_are_refused(hub, project):
    list_with(hub, OTHER)
    announce(hub, "hub", "HEAD", {})
    announce(hub, "hub", "GET", {})
    with pytest.raises(IntegrityError):
        fetch_listed(project)
    assert not list(project.store.blobs())


def test_a_digest_of_the_listing_alone_verifies_the_file(hub, project):
    list_with(hub, DIGEST)
    announce(hub, "hub", "HEAD", {})
    announce(hub, "hub", "GET", {})
    assert fetch_listed(project).pin.verified


def test_a_storage_that_announces_another_digest_than_the_hub_is_refused(hub, project):
    announce(hub, "cdn", "GET", headers_of("Repr-Digest", OTHER))
    with pytest.raises(IntegrityError, match="announces SHA-256"):
        fetch_source(SOURCE, project)


NOTHING = hashlib.sha256().hexdigest()
# Headers that state nothing about the bytes of the whole file: server, method, headers.
SILENT = {
    "the page of a redirect": ("hub", "GET", {"Repr-Digest": field(OTHER)}),
    "the page of a redirect to HEAD": ("hub", "HEAD", {"Digest": field(OTHER).replace(":", "")}),
    "the empty body of a reply to HEAD": ("cdn", "HEAD", {"Repr-Digest": field(NOTHING)}),
    "the same in the old form": ("cdn", "HEAD", {"Digest": field(NOTHING).replace(":", "")}),
    "an encoded body": ("cdn", "HEAD", {"Repr-Digest": field(OTHER), "Content-Encoding": "gzip"}),
    "the message": ("cdn", "GET", {"Content-Digest": field(OTHER)}),
    "another algorithm": ("cdn", "GET", {"Digest": "md5=HUXZLQLMuI/KZ5KDcJPcOA==", "X-Sha": OTHER}),
    "the file before its encoding": (
        "cdn",
        "GET",
        {"Digest": f"id-{field(OTHER)}".replace(":", "")},
    ),
    "hexadecimal digits": ("cdn", "GET", {"Digest": f"sha-256={OTHER}"}),
    "a value that is cut off": ("cdn", "GET", {"Repr-Digest": field(OTHER)[:30]}),
    "a question": ("cdn", "GET", {"Want-Repr-Digest": "sha-256=10"}),
    "an ETag of digits": ("cdn", "GET", {"ETag": f'"{OTHER}"'}),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_header_that_says_nothing_about_the_bytes_refuses_no_file(hub, project, case):
    where, method, headers = SILENT[case]
    announce(hub, where, method, headers)
    for other in {("hub", "HEAD"), ("hub", "GET")} - {(where, method)}:
        announce(hub, *other, {})
    obtained = fetch_source(SOURCE, project)
    assert obtained.path.read_bytes() == CONTENT
    assert obtained.pin.verified is False


def test_a_digest_header_of_a_partial_reply_is_ignored_and_repr_digest_is_read():
    """RFC 9530 deprecates ``Digest``: servers disagree whether that of a part covers the file."""
    part = requests.Response()
    part.status_code = 206
    part.headers["Digest"] = field(OTHER).replace(":", "")
    assert read_digest(part) is None
    part.headers["Repr-Digest"] = field(DIGEST)
    assert read_digest(part) == DIGEST


def test_a_file_without_an_announced_digest_is_called_unverified(hub, project, caplog):
    announce(hub, "hub", "HEAD", {})
    announce(hub, "hub", "GET", {})
    obtained = fetch_source(SOURCE, project)
    assert obtained.facts()["verified"] is False
    assert "not verified by a digest" in obtained.digest_note
    assert "not verified by a digest" in caplog.text
    assert json.loads(project.lock_path.read_text())["files"][0]["verified"] is False

    # The pin names the bytes that came first: they are the same, and still unverified.
    assert fetch_source(SOURCE, project).facts()["verified"] is False
    assert json.loads(project.lock_path.read_text())["files"][0]["verified"] is False


def test_a_digest_that_is_announced_later_verifies_the_pinned_file(hub, project):
    announce(hub, "hub", "HEAD", {})
    announce(hub, "hub", "GET", {})
    fetch_source(SOURCE, project)
    (project.folder / "models/org-model/model.gguf").unlink()
    for blob in list(project.store.blobs()):
        project.store.drop(blob)
    hub.rules.clear()
    assert fetch_source(SOURCE, project).pin.verified
    assert "verified" not in project.lock_path.read_text()


def test_a_digest_of_the_user_verifies_the_file(hub, project):
    announce(hub, "hub", "HEAD", {})
    announce(hub, "hub", "GET", {})
    assert not fetch_source(SOURCE, project).pin.verified
    refs = refs_of("org/model", ["model.gguf"])
    (obtained,) = download(refs, project, sha256=DIGEST)
    assert obtained.pin.verified
    assert "verified" not in project.lock_path.read_text()


def test_a_small_file_is_verified_by_the_name_of_its_git_object(hub, project):
    hub.add("org/model", "config.json", b"{}")
    assert fetch_source(CONFIG, project).pin.verified


def pin_config_unverified(hub, project):
    """Pin ``config.json`` without a digest, remove its bytes, and let the hub describe it again."""
    hub.add("org/model", "config.json", b"{}")
    hub.rules.append(Rule("hub", path="config.json", drop_headers=("ETag", "X-Repo-Commit")))
    assert not fetch_source(CONFIG, project).pin.verified
    (project.folder / "models/org-model/config.json").unlink()
    for blob in list(project.store.blobs()):
        project.store.drop(blob)
    hub.rules.clear()


def test_the_name_of_a_git_object_verifies_the_bytes_of_an_unverified_pin(hub, project):
    pin_config_unverified(hub, project)
    assert fetch_source(CONFIG, project).pin.verified
    assert "verified" not in project.lock_path.read_text()


def test_bytes_of_another_git_object_are_refused_if_only_an_unverified_pin_names_them(hub, project):
    pin_config_unverified(hub, project)
    commit = hub.repo("org/model").revisions["main"]
    headers = {"X-Repo-Commit": commit, "ETag": f'"{"0" * 40}"'}
    for method, body in (("HEAD", b""), ("GET", b"{}")):
        more = {"Content-Type": "application/json", "Content-Length": "2"}
        rule = Rule("hub", method, "config.json", status=200, headers=headers | more, body=body)
        hub.rules.append(rule)
    with pytest.raises(IntegrityError, match="other bytes than those of the git object 0000"):
        fetch_source(CONFIG, project)
