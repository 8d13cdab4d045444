"""Faults of the system and of the network, injected into real processes: no byte is ever wrong.

A driver has everything loaded and forks for each run. ``strace`` makes one system call of a child
fail; or two children fetch at once, from a hub that cuts, resets, shifts and replaces files.
"""

import hashlib
import json
import os
import random
import subprocess
import sys

import pytest
from hub_server import Rule

from bitnet.store import Store, records

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

WEIGHTS = random.Random(1).randbytes(300_000)
FOLDER = {
    "config.json": b'{"model_type": "llama"}' * 9,
    "model-00001-of-00002.safetensors": WEIGHTS[:200_000],
    "model-00002-of-00002.safetensors": WEIGHTS[200_000:],
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b'{"model": {}}' * 9,
}
# Reads a line of JSON for each run, forks a child for each folder in "works", and writes their exit
# codes: 0, 9 for an error of ours, 7 for any other. With "inject", the child stops itself until
# strace has attached to it; 0x59616D61 is PR_SET_PTRACER (linux/prctl.h).
DRIVER = r"""
import ctypes, json, os, signal, subprocess, sys, time
from pathlib import Path
from bitnet.base.errors import BitnetError
from bitnet.hub import transfer
from bitnet.hub.http import Limits
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.resolve import download as fetch, refs_of

transfer.PARALLEL_FROM_BYTES, transfer.PROBE_BYTES = 50_000, 4_000  # small files in pieces, too

def run(work, facts):
    os.environ |= {"BITNET_CONNECTIONS": "2", "BITNET_STALL_TIMEOUT": "1"}
    options = FetchOptions(base_url=facts["url"], retries=facts["retries"], timeout=10.0)
    project = Project(Path(work), Path(facts["cache"]), options, "none")
    try:
        fetch(refs_of("org/whole", facts["files"]), project)
    except BitnetError as error:
        print(f"{work}: {error.message}", file=sys.stderr)
        return 9
    return 0

def child(work, facts, stopped):
    pid = os.fork()
    if pid:
        return pid
    code = 7
    try:
        if stopped:
            ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 % 2**64), 0, 0, 0)  # any tracer
            os.kill(os.getpid(), signal.SIGSTOP)
        code = run(work, facts)
    except BaseException:
        import traceback
        traceback.print_exc()
    os._exit(code)

for line in sys.stdin:
    facts = json.loads(line)
    call = facts.get("inject", "")
    children = [child(work, facts, bool(call)) for work in facts["works"]]
    if call:
        os.waitpid(children[0], os.WUNTRACED)
        tracer = subprocess.Popen(
            ["strace", "-f", "-qq", "-o", facts["log"], "-e", f"trace={call.partition(':')[0]}",
             "-e", f"inject={call}", "-p", str(children[0])])
        status = Path(f"/proc/{children[0]}/status")
        while "TracerPid:\t0\n" in status.read_text():
            if tracer.poll() is not None:
                sys.exit("strace cannot trace here")
            time.sleep(0.001)
        os.kill(children[0], signal.SIGCONT)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    if call:
        tracer.wait()
    print(json.dumps(codes), flush=True)
"""


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Driver:
    """Runs children in project folders below *root* that share a cache."""

    def __init__(self, hub, root):
        self.root = root
        self.cache = root / "cache"
        self.log = root / "strace.log"
        self.works = [root / "one", root / "two"]
        self.facts = {"url": hub.url, "cache": str(self.cache), "log": str(self.log)}
        self.errors = root / "errors.txt"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def run(self, *works, inject="", files=(), retries=2):
        """Fetch *files* in a child for each of *works*, the first with the fault *inject*.

        Returns their exit codes: 0, or 9 for an error of ours; any other fails the test.
        """
        for work in works:
            work.mkdir(exist_ok=True)
        facts = self.facts | {"inject": inject, "files": list(files), "retries": retries}
        print(
            json.dumps(facts | {"works": list(map(str, works))}),
            file=self.process.stdin,
            flush=True,
        )
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()[-3000:]
        codes = json.loads(line)
        assert set(codes) <= {0, 9}, self.errors.read_text()[-3000:]
        return codes

    def was_hit(self):
        """True if strace has injected a fault in the last run."""
        return self.log.exists() and "(INJECTED)" in self.log.read_text()

    def files(self, work):
        """Digests of the files in the project *work*, by name."""
        below = [path for path in (work / "models").rglob("*") if path.is_file()]
        return {
            path.name: sha256(path.read_bytes()) for path in below if ".partial" not in path.name
        }

    def check_store(self):
        """Files of the store, and those that a project's lock file pins, have their digests."""
        for blob in Store(self.cache).blobs():
            assert sha256(blob.path.read_bytes()) == blob.sha256
        for work in self.works:
            for entry in records.read_lock(work / records.LOCK_FILE):
                place = work / entry.place
                assert not place.exists() or sha256(place.read_bytes()) == entry.sha256

    def forget(self):
        """Empty the cache and the projects."""
        subprocess.run(["rm", "-rf", self.cache, self.log, *self.works], check=True)

    def close(self):
        with self.process:
            self.process.stdin.close()
        assert self.process.returncode == 0, self.errors.read_text()[-3000:]


@pytest.fixture
def driver(hub, tmp_path):
    for name, content in FOLDER.items():
        hub.add("org/whole", name, content)
    started = Driver(hub, tmp_path)
    yield started
    started.close()


# Kinds of system calls, each with its variants as strace names them.
CALLS = {
    "fsync": "fsync",
    "link": "link,linkat",
    "flock": "flock",
    "rename": "rename,renameat,renameat2",
    "pwrite64": "pwrite64",
    "mkdir": "mkdir,mkdirat",
    "unlink": "unlink,unlinkat",
}
ERRORS = ("ENOSPC", "EIO", "EINTR", "EACCES")


@pytest.mark.needs("strace")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"]
)
def test_a_system_call_that_fails_leaves_no_wrong_byte(driver, call, every):
    right = {name: sha256(content) for name, content in FOLDER.items()}
    (work, _) = driver.works
    hits = number = 0
    # Fail the first call of the kind, then the second ..., until a run makes fewer calls.
    while number == 0 or driver.was_hit():
        number += 1
        # Without *every*, one error for each call, in turn.
        chosen = ERRORS if every else ERRORS[number % 4 :][:1]
        for error in chosen:
            driver.forget()
            inject = f"{CALLS[call]}:error={error}:when={number}"
            (code,) = driver.run(work, inject=inject)
            files = driver.files(work)
            assert files in ({}, right), f"{inject}: {code}: a part is there, or other bytes"
            assert code != 0 or files == right
            driver.check_store()
            hits += driver.was_hit()
            assert driver.run(work, retries=9) == [0], inject
            assert driver.files(work) == right
            driver.check_store()
        if not every and number >= 12:  # the slow variant goes on
            break
    assert hits  # the process makes calls of this kind


def a_fault(dice):
    """A random fault of the hub or its storage, for one to three requests."""
    kinds = [
        {"reset_at": dice.randrange(200_000)},
        {"truncate_at": dice.randrange(200_000)},
        {"flip_at": dice.randrange(200_000)},
        {"shift_range": dice.choice([-1, 1, 4096])},
        {"ignore_range": True},
        {"status": dice.choice([202, 206, 300, 404, 416, 429, 500, 503])},
        {"drop_headers": ("Content-Length",), "truncate_at": dice.randrange(100_000)},
        {"drop_headers": ("ETag", "X-Linked-Etag", "X-Repo-Commit")},
    ]
    times = dice.randint(1, 3)
    return Rule(where=dice.choice(["hub", "cdn"]), times=times, **dice.choice(kinds))


@pytest.mark.parametrize("seed", range(8))
def test_two_processes_in_a_chaos_of_faults_and_changes_get_no_wrong_byte(hub, driver, seed):
    """A file may be of any version that the hub had, and is always a whole one."""
    dice = random.Random(seed)
    versions = {name: {sha256(content)} for name, content in FOLDER.items()}
    for _ in range(4):
        hub.rules[:] = [a_fault(dice) for _ in range(dice.randint(0, 5))]
        if dice.random() < 0.5:
            name = dice.choice(sorted(FOLDER))
            content = dice.randbytes(len(FOLDER[name]))
            versions[name].add(hub.add("org/whole", name, content).sha256)
        codes = driver.run(*driver.works, retries=3)
        for code, work in zip(codes, driver.works, strict=True):
            files = driver.files(work)
            assert all(digest in versions[name] for name, digest in files.items())
            assert code != 0 or files.keys() == FOLDER.keys()
        driver.check_store()
        if dice.random() < 0.3:
            driver.forget()
    hub.rules.clear()
    driver.forget()
    assert driver.run(*driver.works, retries=9) == [0, 0]
