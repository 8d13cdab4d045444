"""A small download that is killed, or refused, at every call that changes or asks the system.

A process that has everything loaded forks once per call; the child runs into its fault there. After
each: the target is whole or missing, the next run mends everything, and the disk holds the
file once.
"""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from hub_server import HubServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

CONTENT = b"GGUF" + bytes(range(256)) * 2000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
DRIVER = r"""
import errno, hashlib, io, json, os, shutil, signal, sys, threading
from pathlib import Path
from bitnet.errors import BitnetError
from bitnet.hub import session, transfer, wheels, repository
from bitnet.hub.download import download
from bitnet.hub.options import FetchOptions
from bitnet.store import Store

url, root, fault, digest = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
size = int(sys.argv[5])
cache, target = root / "cache", root / "work" / "model.gguf"
options = FetchOptions(base_url=url, connections=1, retries=1)
CALLS = (
    "open", "pwrite", "write", "fsync", "replace", "rename", "unlink", "link", "mkdir", "rmdir",
    "chmod", "utime", "ftruncate", "close", "stat", "lstat", "scandir", "listdir",
)

os.fsync = lambda fd: None  # what is written survives a kill; a disk at work is slow

WRITING = ("pwrite", "write", "fsync", "replace", "rename", "link", "mkdir", "ftruncate")

def inject(number):
    count, lock = 0, threading.Lock()
    def wrap(module, name):
        real = getattr(module, name)
        def call(*args, **options):
            nonlocal count
            with lock:
                count += 1
                hit = count == number
            if hit and fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if hit:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **options)
        setattr(module, name, call)
    for name in CALLS if fault == "kill" else WRITING:
        wrap(os, name)
    wrap(io, "open")
    import builtins
    builtins.open = io.open
    return lambda: count

def fetch():
    download(f"{url}/org/model/resolve/main/model.gguf", target, options=options, progress="none",
             store=Store(cache))

def run(number):
    "How a child ended that met its fault at call *number*; 0: it needed fewer calls."
    child = os.fork()
    if child == 0:
        code = 0
        try:
            reached = inject(number)
            try:
                fetch()
            except BitnetError:
                code = 9
            if code == 0 and reached() >= number:
                code = 8  # it went on in spite of the fault
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 7
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)

def used():
    files = [p.lstat() for p in root.rglob("*") if p.is_file() and not p.is_symlink()]
    return sum({s.st_ino: s.st_size for s in files}.values())

def right(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() == digest

wrong, number, ends = [], 0, {}
while True:
    number += 1
    end = run(number)
    ends[end] = ends.get(end, 0) + 1
    if end == 7:
        wrong.append([number, "an error that is none of ours"])
    if target.exists() and not right(target):
        wrong.append([number, "wrong bytes at the target"])
    if used() > size + 20000:
        wrong.append([number, f"{used()} bytes after the fault"])
    finished = end == 0
    end = run(10**9)
    if end != 0 or not right(target):
        wrong.append([number, f"the next run ended with {end}"])
    if used() > size + 20000:
        wrong.append([number, f"{used()} bytes after the next run"])
    if list((cache / "store/partial").glob("*/*")):
        wrong.append([number, "something is left on its way"])
    if finished:
        break
    shutil.rmtree(cache)
    shutil.rmtree(target.parent)
print(json.dumps({"calls": number - 1, "wrong": wrong, "ends": ends}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "full disk"])
def test_whatever_call_it_ends_at_bytes_and_disk_use_are_right(tmp_path, fault):
    with HubServer() as hub:
        hub.add("org/model", "model.gguf", CONTENT)
        words = [hub.url, str(tmp_path), fault, DIGEST, str(len(CONTENT))]
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *words], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == [], done.stderr[-3000:]
    assert found["calls"] > (60 if fault == "kill" else 15)
