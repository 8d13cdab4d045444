"""Whatever a server sends, no file appears that differs from the hub's digest or is not whole."""

import hashlib
import random
import socket
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from downloading import download
from hub_server import Rule

from bitnet.base import settings
from bitnet.base.errors import BitnetError, NetworkError
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.repository import file_url
from bitnet.hub.transfer import Transfer, _Piece
from bitnet.store import Partial, Version
from bitnet.store.partial import Ranges

CONTENT = random.Random(26).randbytes(6_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def fetch(session, path, **options):
    """Download the file of the hub to *path* in a session with *options*."""
    with session(**options) as hub_session:
        url = file_url("org/model", "main", "model.gguf", hub_session.options)
        return download(url, path, session=hub_session, progress="none")


# --- seeded chaos --------------------------------------------------------------------------------


def a_fault(dice):
    """A random fault of the storage, for one to three of its replies."""
    return Rule(
        where="cdn",
        method="GET",
        times=dice.randint(1, 3),
        **dice.choice(
            [
                {"reset_at": dice.randrange(2_000_000)},
                {"truncate_at": dice.randrange(2_000_000)},
                {"flip_at": dice.randrange(len(CONTENT))},
                {"shift_range": dice.choice([-1, 1, 4096])},
                {"ignore_range": True},
                {"status": dice.choice([202, 203, 300, 306, 404, 416, 429, 500, 503, 600, 999])},
                {"gzip": True},
                {"drop_headers": ("Content-Length",), "truncate_at": dice.randrange(1_000_000)},
            ]
        ),
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_chaos_of_faults_ends_in_the_right_bytes_or_an_error(hub, session, tmp_path, seed):
    dice = random.Random(seed)
    hub.add("org/model", "model.gguf", CONTENT)
    target = tmp_path / "model.gguf"
    for _ in range(3):
        hub.rules[:] = [a_fault(dice) for _ in range(dice.randint(1, 5))]
        try:
            assert fetch(session, target, connections=dice.choice([1, 3]), retries=4).sha256
        except BitnetError:
            assert not target.exists()
            continue
        assert hashlib.sha256(target.read_bytes()).hexdigest() == DIGEST
        target.unlink()
        stored = settings.cache_dir() / "store/sha256" / DIGEST[:2] / DIGEST
        assert hashlib.sha256(stored.read_bytes()).hexdigest() == DIGEST
        stored.unlink()


# --- what a connection may write -----------------------------------------------------------------


@pytest.fixture
def running(tmp_path, session):
    """A transfer of 100 bytes that has begun, without a server."""
    version = Version("http://127.0.0.1/f", size=100, sha256="0" * 64)
    partial = Partial.begin(tmp_path / "partial", "f", version, alone=True)
    facts = SimpleNamespace(url=version.url, size=100, sha256=version.sha256, accepts_ranges=True)
    with session() as hub_session:
        transfer = Transfer(
            hub_session, facts, partial, name="f", report=lambda _done, _total: None
        )
        yield transfer
        transfer._hash.stop()
    partial.discard()


@pytest.mark.parametrize("late", [b"x" * 60, b"x"], ids=["over the end", "over the other's bytes"])
def test_a_connection_never_writes_what_is_not_its_own(running, late):
    running._store(_Piece(0, 50), b"a" * 50)
    piece = _Piece(50, 100) if len(late) == 60 else _Piece(10, 100)
    with pytest.raises(AssertionError, match="do not belong"):
        running._store(piece, late)
    assert running.partial.path.read_bytes() == b"a" * 50


def test_ranges_overlap_exactly_the_ranges_that_share_a_byte_with_them():
    ranges = Ranges()
    ranges.add(10, 20)
    ranges.add(30, 40)
    held = {*range(10, 20), *range(30, 40)}
    for start in range(45):
        for stop in range(start, 46):
            assert ranges.overlaps(start, stop) == any(at in held for at in range(start, stop))


# --- replies of a raw server ---------------------------------------------------------------------


@contextmanager
def raw_server(*replies):
    """Address of a server that sends the next of *replies* on each connection, and hangs up.

    The last one is repeated.
    """
    server = socket.create_server(("127.0.0.1", 0))
    waiting = list(replies)

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(waiting.pop(0) if len(waiting) > 1 else waiting[0])

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/tokenizer.json"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def reply(status, body=b"content", *headers):
    """Bytes of an HTTP reply; with *headers*, it has no ``Content-Length`` but theirs."""
    length = b"" if headers else b"Content-Length: %d\r\n" % len(body)
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d X\r\nConnection: close\r\n" % status + length + lines + b"\r\n" + body


@pytest.mark.parametrize("status", [201, 202, 203, 204, 205, 206, 300, 303, 304, 306, 600, 999])
@pytest.mark.parametrize("head", [200, None])
def test_a_body_with_another_status_than_200_is_not_taken_as_the_file(tmp_path, status, head):
    replies = [reply(head)] if head else []
    with (
        raw_server(*replies, reply(status)) as url,
        pytest.raises(NetworkError, match=f"status {status}|came unasked") as caught,
    ):
        download(url, tmp_path / "f", options=FetchOptions(retries=1), progress="none")
    assert "empty" not in str(caught.value)  # the status is the reason, not the body
    assert not (tmp_path / "f").exists()


CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize("body", [b"5\r\nhello\r\n", b"5\r\nhel", b"5\r\nhello\r\n3", b""])
def test_a_chunked_body_without_its_last_chunk_is_refused_as_cut_off(tmp_path, body):
    with (
        raw_server(reply(200, b"", CHUNKED), reply(200, body, CHUNKED)) as url,
        pytest.raises(NetworkError, match=r"connection broke|truncated"),
    ):
        download(url, tmp_path / "f", options=FetchOptions(retries=2), progress="none")
    assert not (tmp_path / "f").exists()


def test_a_chunked_body_with_its_last_chunk_is_accepted(tmp_path):
    whole = reply(200, b"5\r\nhello\r\n0\r\n\r\n", CHUNKED)
    with raw_server(reply(200, b"", CHUNKED), whole) as url:
        download(url, tmp_path / "f", options=FetchOptions(retries=1), progress="none")
    assert (tmp_path / "f").read_bytes() == b"hello"


def test_a_body_that_goes_on_after_its_announced_end_is_refused(hub, session, tmp_path):
    hub.add("org/model", "model.gguf", b"0123456789")
    rule = Rule(where="hub", method="HEAD", headers={"Content-Length": "4"})
    hub.rules.append(rule)
    with pytest.raises(NetworkError, match="announces one file and sends another"):
        fetch(session, tmp_path / "f", retries=1)
    assert not (tmp_path / "f").exists()


# --- redirects and slow headers ------------------------------------------------------------------

LOCATIONS = [
    b"http://[bad/",
    b"http://127.0.0.1:99999/x",
    b"http://a..b/x",
    b"http://\xff/x",
    b"http://" + b"a" * 70 + b"/x",
    b"file:///etc/passwd",
    b"http://user:sesame@[::1/x",
    b"http:///x",
    b"//",
    b"http://127.0.0.1:0/",
    b"http://" + b"a" * 9000,
]


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_redirect_to_an_invalid_address_is_a_short_network_error_without_passwords(
    tmp_path, location
):
    moved = reply(302, b"", b"Location: " + location, b"Content-Length: 0")
    with raw_server(reply(200), moved) as url, pytest.raises(NetworkError) as caught:
        download(url, tmp_path / "f", options=FetchOptions(retries=1), progress="none")
    assert "sesame" not in str(caught.value)
    assert len(str(caught.value)) < 3000  # shorter than the longest address


@contextmanager
def dripping_server(every_s):
    """Address of a server that sends a header without an end, a byte every *every_s* seconds."""
    server = socket.create_server(("127.0.0.1", 0))
    closing = threading.Event()

    def serve():
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not closing.wait(every_s):
                    connection.sendall(b"a")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/f"
    finally:
        closing.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_header_sent_byte_by_byte_ends_the_download_with_a_timeout(tmp_path):
    options = FetchOptions(retries=1, timeout=0.3)
    with dripping_server(0.01) as url, pytest.raises(NetworkError, match="timeout"):
        download(url, tmp_path / "f", options=options, progress="none")
