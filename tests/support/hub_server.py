"""A hub on loopback that speaks the protocol of huggingface.co, and misbehaves by rules.

Two servers run: the hub itself, and a file server under another host name and port, to which the
hub redirects requests for large files. Every request is recorded.

    hub = HubServer()
    hub.add("org/model", "model.gguf", b"...")
    hub.rules.append(Rule(where="cdn", method="GET", reset_at=1000, times=1))
    ... download(file_url("org/model", "main", "model.gguf", FetchOptions(base_url=hub.url))) ...
    hub.sent("cdn")  # bytes of bodies

From the command line it serves a folder of ``OWNER/NAME/FILE``:

    python tests/support/hub_server.py --root DIR --port 8123
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from hub_repositories import Blob, Repo, Seen
from loopback import LoopbackServer, QuietHandler
from waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

SEND_BYTES = 1 << 18
SECRET_QUERY = "Signature=do-not-show-this"
PAGE = b"<!DOCTYPE html><html><body>Welcome to the guest network</body></html>"


@dataclass
class Rule:
    """A way to misbehave, at most *times* times, for requests that match the first four fields.

    With ``status`` the reply is that status and ``body``; otherwise it is the real one, altered.
    """

    where: str = ""  # "hub" or "cdn"; empty: both
    method: str = ""
    path: str = ""  # part of the path
    agent: str = ""  # how the User-Agent begins
    times: int = 1_000_000_000
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    latency_s: float = 0.0
    when: Callable[[], object] | None = None  # the reply waits until this returns a true value
    rate: float = 0.0  # bytes per second of a connection; 0: no limit
    reset_at: int | None = None  # bytes of the body before the connection is reset
    truncate_at: int | None = None  # bytes of the body before the connection ends normally
    stall_at: int | None = None  # bytes of the body before silence
    ignore_range: bool = False
    shift_range: int = 0  # bytes by which a 206 starts too late; its Content-Range admits it
    gzip: bool = False
    flip_at: int | None = None  # position of the byte of the file that is wrong
    drop_headers: tuple[str, ...] = ()


class HubServer:
    """The hub and its file server; a context manager."""

    def __init__(self, port: int = 0) -> None:
        self.repos: dict[str, Repo] = {}
        self.rules: list[Rule] = []
        self.tokens: dict[str, set[str]] = {}  # token -> gated repositories it may read
        self._seen: list[Seen] = []
        self.blobs: dict[str, Blob] = {}
        self.page_size = 1000
        self.in_flight = 0
        self.stalled = 0  # connections that have gone silent
        self.lock = threading.Condition()
        self.closing = threading.Event()
        self.connections: set[socket.socket] = set()
        self._hub = _Server("hub", self, port)
        self._cdn = _Server("cdn", self)
        self.url = f"http://127.0.0.1:{self._hub.server_port}"
        self.cdn_url = f"http://localhost:{self._cdn.server_port}"
        for server in (self._hub, self._cdn):
            server.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self) -> None:
        """Stop both servers, and end their connections."""
        self.closing.set()
        for server in (self._hub, self._cdn):
            server.stop()
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def repo(self, name: str, **facts) -> Repo:
        """The repository *name*, created if it is missing, with *facts* as its fields."""
        repo = self.repos.setdefault(name, Repo(name))
        for key, value in facts.items():
            setattr(repo, key, value)
        return repo

    def add(self, repo_name: str, file: str, content: bytes | Path) -> Blob:
        """Commit *file* to *repo_name*; the earlier commits stay."""
        repo = self.repo(repo_name)
        before = repo.commits.get(repo.revisions.get("main", ""), {})
        blob = Blob(content)
        commit = hashlib.sha1(f"{repo_name}{len(repo.commits)}".encode()).hexdigest()
        repo.commits[commit] = {**before, file: blob}
        repo.revisions["main"] = commit
        self.blobs[blob.sha256] = blob
        return blob

    def sent(self, where: str = "", method: str = "GET") -> int:
        """Bytes of bodies sent so far."""
        return sum(seen.sent for seen in self.requests(where, method))

    def requests(self, where: str = "", method: str = "") -> list[Seen]:
        """The requests so far, in the order in which they ended; waits for unfinished ones."""
        with self._answered() as everything:
            return [
                seen
                for seen in everything
                if where in ("", seen.where) and method in ("", seen.method)
            ]

    def forget(self) -> None:
        """Wait for unfinished requests, and forget all requests so far."""
        with self._answered() as everything:
            everything.clear()

    @contextlib.contextmanager
    def _answered(self):
        """The requests seen, under the lock, while none is being answered."""
        with self.lock:
            assert self.lock.wait_for(lambda: not self.in_flight, timeout=PATIENCE_S)
            yield self._seen

    def rule_for(self, where: str, method: str, path: str, agent: str) -> Rule:
        """The first rule that matches and has *times* left, of which one is used up."""
        with self.lock:
            for rule in self.rules:
                fits = rule.where in ("", where) and rule.method in ("", method)
                fits = fits and rule.path in path and agent.startswith(rule.agent)
                if fits and rule.times > 0:
                    rule.times -= 1
                    return rule
        return Rule()


class _Server(LoopbackServer):
    """One of the two servers: *where* is ``hub`` or ``cdn``."""

    def __init__(self, where, hub, port=0):
        self.where = where
        super().__init__(_Handler, hub, port=port)


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    """Handler of requests to both servers."""

    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.hub: HubServer = self.server.owner
        with self.hub.lock:
            self.hub.connections.add(self.connection)

    def finish(self):
        with self.hub.lock:
            self.hub.connections.discard(self.connection)
        super().finish()

    def do_GET(self):
        self._answer()

    def do_HEAD(self):
        self._answer()

    def _answer(self):
        """Reply by the first rule that matches, and record the request."""
        self.status = 0
        self.count = 0
        with self.hub.lock:
            self.hub.in_flight += 1
        agent = self.headers.get("User-Agent", "")
        self.rule = self.hub.rule_for(self.server.where, self.command, self.path, agent)
        try:
            time.sleep(self.rule.latency_s)
            if self.rule.when:
                until(self.rule.when)
            if self.rule.status:
                headers = {"Content-Type": "text/plain", **self.rule.headers}
                self._reply(self.rule.status, headers, self.rule.body)
            elif self.server.where == "cdn":
                self._cdn()
            else:
                self._hub()
        except ConnectionError:
            self.close_connection = True
        finally:
            with self.hub.lock:
                request = self.server.where, self.command, self.path, dict(self.headers.items())
                self.hub._seen.append(Seen(*request, self.status, self.count))
                self.hub.in_flight -= 1
                self.hub.lock.notify_all()

    # --- the hub -----------------------------------------------------------------------------

    def _hub(self):
        """Reply as the hub: to its API, or to a request for a file."""
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            self._api(parts[2:])
            return
        if "resolve" not in parts:
            self._reply(200, {"Content-Type": "text/html"}, PAGE)
            return
        at = parts.index("resolve")
        match = self._find_file("/".join(parts[:at]), parts[at + 1], "/".join(parts[at + 2 :]))
        if match is None:
            return
        commit, blob = match
        facts = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not blob.large:
            self._file(blob, {**facts, "ETag": f'"{blob.oid}"'})
            return
        facts |= {
            "X-Linked-Etag": f'"{blob.sha256}"',
            "X-Linked-Size": str(blob.size),
            "Location": f"{self.hub.cdn_url}/{blob.sha256}?{SECRET_QUERY}",
            "ETag": f'"{blob.oid}"',
        }
        self._reply(302, facts, b"Found. Redirecting")

    def _find_repo(self, name):
        """The repository, or ``None`` after a refusal was sent."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            self._json(401, {"error": "Invalid credentials in Authorization header"})
            return None
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not token):
            status = 404 if token else 401
            self._json(status, {"error": "Repository not found"}, "RepoNotFound")
            return None
        return repo

    def _find_file(self, name, revision, file):
        """Commit and blob, or ``None`` after a refusal was sent."""
        repo = self._find_repo(name)
        if repo is None:
            return None
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo.gated and name not in self.hub.tokens.get(token, ()):
            self._json(403 if token else 401, {"error": "restricted"}, "GatedRepo")
            return None
        files = repo.files(revision)
        if files is None:
            self._json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
            return None
        if file not in files[1]:
            self._json(404, {"error": "Entry not found"}, "EntryNotFound")
            return None
        return files[0], files[1][file]

    def _search(self):
        """Reply with the list of models, in the form of the hub with ``expand``."""
        query = parse_qs(urlsplit(self.path).query)
        text = query.get("search", [""])[0].lower()
        repos = [repo for repo in self.hub.repos.values() if text in repo.name.lower()]
        entries = []
        for repo in repos[: int(query.get("limit", ["1000"])[0])]:
            all_facts = {
                "downloads": len(repo.name),
                "gated": "manual" if repo.gated else False,
                "gguf": {"total": 1_000_000, "architecture": "llama", "context_length": 64},
                "tags": ["gguf", f"license:{repo.licence}"],
            }
            facts = {name: all_facts[name] for name in query.get("expand", ())}
            entries.append({"_id": "0" * 24, "id": repo.name, "modelId": repo.name, **facts})
        self._json(200, entries)

    def _api(self, parts):
        """Reply to the path *parts* below ``api/models``."""
        if not parts:
            self._search()
            return
        kinds = [kind for kind in ("tree", "revision", "refs") if kind in parts]
        at = parts.index(kinds[0]) if kinds else len(parts)
        repo = self._find_repo("/".join(parts[:at]))
        if repo is None:
            return
        if kinds == ["refs"]:
            branches = [{"name": name} for name in repo.revisions]
            self._json(200, {"branches": branches, "tags": []})
            return
        files = repo.files(parts[at + 1] if kinds else "main")
        if files is None:
            self._json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        elif kinds == ["tree"]:
            self._tree(files[1])
        else:
            siblings = [{"rfilename": path} for path in files[1]]
            card = {"license": repo.licence}
            gated = "manual" if repo.gated else False
            self._json(
                200,
                {
                    "id": repo.name,
                    "sha": files[0],
                    "gated": gated,
                    "cardData": card,
                    "siblings": siblings,
                },
            )

    def _tree(self, files):
        """Reply with a page of the list of *files*."""
        query = parse_qs(urlsplit(self.path).query)
        first = int(query.get("cursor", ["0"])[0])
        entries = []
        for path, blob in list(files.items())[first : first + self.hub.page_size]:
            entry = {"type": "file", "path": path, "size": blob.size, "oid": blob.oid}
            if blob.large:
                entry["lfs"] = {"oid": blob.sha256, "size": blob.size}
            entries.append(entry)
        following = first + self.hub.page_size
        link = f'<{self.hub.url}{urlsplit(self.path).path}?cursor={following}>; rel="next"'
        self._json(200, entries, headers={"Link": link} if following < len(files) else {})

    # --- the file server ---------------------------------------------------------------------

    def _cdn(self):
        """Reply as the file server."""
        blob = self.hub.blobs.get(urlsplit(self.path).path.strip("/"))
        if blob is None:
            self._reply(404, {}, b"")
            return
        self._file(blob, {"ETag": f'"cdn-{blob.oid[:16]}"', "Accept-Ranges": "bytes"})

    def _file(self, blob, headers):
        """Reply with the file, or with the requested range of it."""
        headers = {"Content-Type": "application/octet-stream", **headers}
        start = 0
        stop = blob.size
        range_header = self.headers.get("Range", "")
        if_range = self.headers.get("If-Range")
        is_part = range_header.startswith("bytes=") and not self.rule.ignore_range
        if is_part and if_range in (None, headers["ETag"]):
            first, _, last = range_header.removeprefix("bytes=").partition("-")
            start = int(first)
            stop = min(blob.size, int(last) + 1 if last else blob.size)
            if start >= blob.size:
                self._reply(416, {"Content-Range": f"bytes */{blob.size}"}, b"")
                return
            start += self.rule.shift_range
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        if self.rule.gzip:
            self._reply(
                200, {**headers, "Content-Encoding": "gzip"}, gzip.compress(blob.read(0, stop))
            )
            return
        self._head(206 if "Content-Range" in headers else 200, headers, stop - start)
        if self.command == "GET":
            self._body(blob, start, stop)

    def _body(self, blob, start, stop):
        """Send bytes *start* to *stop* of *blob*, altered by the rule."""
        rule = self.rule
        cuts = [cut for cut in (rule.reset_at, rule.truncate_at, rule.stall_at) if cut is not None]
        end = min(stop, start + min(cuts)) if cuts else stop
        if blob.path and not cuts and not rule.rate and rule.flip_at is None:
            with open(blob.path, "rb") as file:
                self.count += self.connection.sendfile(file, start, end - start)
            return
        started = time.monotonic()
        step = SEND_BYTES if not rule.rate else max(4096, min(SEND_BYTES, int(rule.rate * 0.02)))
        for at in range(start, end, step):
            chunk = bytearray(blob.read(at, min(at + step, end)))
            if rule.flip_at is not None and at <= rule.flip_at < at + len(chunk):
                chunk[rule.flip_at - at] ^= 255
            self.connection.sendall(chunk)
            self.count += len(chunk)
            ahead_s = self.count / rule.rate - (time.monotonic() - started) if rule.rate else 0
            if ahead_s > 0:
                time.sleep(ahead_s)
        if end < stop or cuts:
            self._break()

    def _break(self):
        """End the connection the way the rule says."""
        self.close_connection = True
        if self.rule.stall_at is not None:
            self.connection.settimeout(None)
            with self.hub.lock:
                self.hub.stalled += 1
            self.connection.recv(1)  # silence, until the client or the server closes
        elif self.rule.reset_at is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    # --- replies -----------------------------------------------------------------------------

    def _json(self, status, document, code="", headers=None):
        """Reply with *document*; *code* is the hub's error code."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        if code:
            headers["X-Error-Code"] = code
        self._reply(status, headers, json.dumps(document).encode())

    def _reply(self, status, headers, body):
        """Send a whole reply."""
        self._head(status, headers, len(body))
        if self.command == "GET":
            self.connection.sendall(body)
            self.count += len(body)

    def _head(self, status, headers, length):
        """Send status and headers, altered by the rule."""
        self.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers, **self.rule.headers}.items():
            if name not in self.rule.drop_headers:
                self.send_header(name, value)
        self.end_headers()


def main() -> None:
    """Serve a folder until interrupted."""
    parser = argparse.ArgumentParser(description="A model hub on loopback.")
    parser.add_argument("--root", type=Path, required=True, help="folder of OWNER/NAME/FILE")
    parser.add_argument("--port", type=int, default=0, help="port; 0: any")
    arguments = parser.parse_args()
    with HubServer(arguments.port) as hub:
        for path in sorted(arguments.root.glob("*/*/**/*")):
            owner, name, *file = path.relative_to(arguments.root).parts
            if path.is_file():
                hub.add(f"{owner}/{name}", "/".join(file), path)
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
