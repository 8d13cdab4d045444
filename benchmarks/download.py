"""Download speed of a file: bitnet against curl and huggingface_hub, from a hub on loopback.

    python benchmarks/download.py --size-mb 512 --rounds 5
    python benchmarks/download.py --store --size-mb 1000      two projects, resuming, a second use

The hub is unlimited first. Then it limits the rate of each connection and delays each answer
(--slow-mb, --rate-mb, --latency-ms).

Every round runs each program once, in turn, so a machine that slows down slows them all. Each
result is the best round; compare the ratios. bitnet also computes the SHA-256 and syncs the file,
which curl does not: hence the row for curl followed by sha256sum. The processor time per GB, of the
client alone, hardly depends on other load.

With --store: bytes sent and stored for two projects as a share of the file, seconds for the last
14 % of a resumed download and for the whole file, and milliseconds of a second use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

from hub_server import HubServer, Rule

REPO = "bench/model"
FILE = "model.gguf"


def bitnet(hub, target, *, connections):
    """Wall and processor seconds of our download, as in the functions of the other programs."""
    from bitnet.hub.fetch import fetch
    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.hub.orders import FileOrder
    from bitnet.hub.repository import file_url
    from bitnet.hub.session import HubSession
    from bitnet.sources import Source
    from bitnet.store import Store

    os.environ["BITNET_CONNECTIONS"] = str(connections)
    options = FetchOptions(base_url=hub)
    store = Store(target.parent / "cache")
    started = _clocks()
    url = file_url(REPO, "main", FILE, options)
    with HubSession(options) as session:
        order = FileOrder(Source(target.name, "", target.name, url=url))
        result = fetch(order, store, [url], session=session, progress="none")
    store.place(result.blob, target)
    return _since(started)


def huggingface_hub(hub, target):
    """Wall and processor seconds of the download by huggingface_hub."""
    os.environ.update(HF_ENDPOINT=hub, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    from huggingface_hub import hf_hub_download

    started = _clocks()
    hf_hub_download(REPO, FILE, local_dir=target, endpoint=hub)
    return _since(started)


def curl(hub, target, *, digest=False):
    """Wall and processor seconds of curl, and with *digest* of sha256sum after it."""
    url = f"{hub}/{REPO}/resolve/main/{FILE}"
    started = _clocks()
    subprocess.run(["curl", "-sSfL", "-o", str(target), url], check=True)
    if digest:
        subprocess.run(["sha256sum", str(target)], check=True, stdout=subprocess.DEVNULL)
    return _since(started)


PROGRAMS = {
    "curl": curl,
    "curl + sha256sum": lambda hub, target: curl(hub, target, digest=True),
    "bitnet, 1 connection": lambda hub, target: bitnet(hub, target, connections=1),
    "bitnet": lambda hub, target: bitnet(hub, target, connections=0),  # as many as it chooses
    "huggingface_hub": huggingface_hub,
}


def run_program(program, hub, folder):
    """Wall and processor seconds of *program* in a process of its own; imports do not count."""
    target = Path(folder) / "target"
    command = [sys.executable, __file__, "--only", program, "--hub", hub, "--folder", str(target)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(target)
    seconds, cpu = map(float, done.stdout.split())
    return seconds, cpu


def measure(size, rounds, rules, programs):
    """Least wall seconds and least processor seconds of each of *programs* in all *rounds*.

    *size* is that of the file in bytes; *rules* are fields of the hub's rules, for JSON.
    """
    seconds = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        with open(source, "wb") as file:
            for _ in range(size // 1_000_000):
                file.write(os.urandom(1_000_000))
        server = [sys.executable, __file__, "--serve", str(source), "--rules", json.dumps(rules)]
        with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
            try:
                hub = process.stdout.readline().strip()
                for _ in range(rounds):
                    for name in programs:
                        os.sync()  # each run waits only for its own writes
                        seconds[name].append(run_program(name, hub, folder))
            finally:
                process.terminate()
    return {name: tuple(map(min, zip(*times, strict=True))) for name, times in seconds.items()}


def measure_store(size_mb):
    """Savings of the store: two projects, a second use, and a transfer cut at 86 % and resumed."""
    from bitnet.base.errors import NetworkError
    from bitnet.hub.fetch_options import FetchOptions
    from bitnet.hub.project import Project
    from bitnet.hub.provide import fetch_source
    from bitnet.sources import Source

    os.environ["BITNET_CONNECTIONS"] = "1"
    size = size_mb * 1_000_000
    source = Source("bench", REPO, FILE)
    with tempfile.TemporaryDirectory() as folder, HubServer() as hub:
        folder = Path(folder)
        with open(folder / "source", "wb") as file:
            for _ in range(size_mb):
                file.write(os.urandom(1_000_000))
        hub.add(REPO, FILE, folder / "source")
        # One attempt: a transfer that is cut is not resumed by the same call.
        options = FetchOptions(base_url=hub.url, retries=1)

        def project(name, cache="cache"):
            (folder / name).mkdir(exist_ok=True)
            return Project(folder / name, folder / cache, options, "none")

        def seconds(*where):
            started = time.perf_counter()
            fetch_source(source, project(*where))
            return time.perf_counter() - started

        whole = seconds("one")
        second_project = seconds("two")
        second_use = min(seconds("two") for _ in range(5))
        roots = [folder / name for name in ("one", "two", "cache")]
        files = [path.stat() for top in roots for path in top.rglob("*") if path.is_file()]
        # By inode: a file that two folders share through a hard link counts once.
        disk = sum({status.st_ino: status.st_size for status in files}.values())
        sent = hub.sent("cdn")
        hub.rules.append(Rule(where="cdn", times=1, truncate_at=int(size * 0.86)))
        with contextlib.suppress(NetworkError):
            fetch_source(source, project("three", "another cache"))
        hub.forget()
        rest_s = seconds("three", "another cache")
        return {
            "transfer": round(sent / size, 3),
            "disk": round(disk / size, 3),
            "second_project_ms": round(second_project * 1000, 1),
            "second_use_ms": round(second_use * 1000, 1),
            "whole_s": round(whole, 2),
            "rest_after_86_percent_s": round(rest_s, 2),
            "rest_transfer": round(hub.sent("cdn") / size, 3),
        }


def _clocks():
    """Wall time, and processor time of this process and its ended children, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + used.ru_utime + used.ru_stime


def _since(begun):
    """Wall and processor seconds since :func:`_clocks` returned *begun*."""
    return tuple(after - before for before, after in zip(begun, _clocks(), strict=True))


def serve(source, rules):
    """Serve the file *source* as the hub does, until this process is terminated."""
    with HubServer() as hub:
        hub.add(REPO, FILE, source)
        hub.rules += [Rule(**rule) for rule in rules]
        print(hub.url, flush=True)
        while True:
            time.sleep(60)


def main():
    """Do what the command line asks for: the benchmark, or one of its own processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-mb", type=int, default=512, help="size of the plain file in MB")
    parser.add_argument("--slow-mb", type=int, default=128, help="size of the rate-limited file")
    parser.add_argument("--rate-mb", type=float, default=10.0, help="MB/s of one connection")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="per request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", action="store_true", help="measure what the store saves")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    for internal in ("--only", "--hub", "--serve", "--rules"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Path(arguments.serve), json.loads(arguments.rules))
    if arguments.store:
        print(json.dumps(measure_store(arguments.size_mb), indent=1))
        return
    if arguments.only:
        arguments.folder.mkdir()
        folder = arguments.folder
        # huggingface_hub takes a folder, the others the path of the file.
        target = folder if arguments.only == "huggingface_hub" else folder / "file"
        print(*PROGRAMS[arguments.only](arguments.hub, target))
        return
    report(arguments)


def report(arguments):
    """Measure the unlimited and the rate-limited hub, and print the results."""
    latency = {"latency_s": arguments.latency_ms / 1000}
    limit = {"where": "cdn", "rate": arguments.rate_mb * 1e6}
    available = [name for name in PROGRAMS if name != "huggingface_hub" or _has_huggingface_hub()]
    cases = {
        "unlimited": (arguments.size_mb, arguments.rounds, []),
        "rate-limited": (arguments.slow_mb, 1, [limit | latency, {"where": "hub"} | latency]),
    }
    results = {}
    for case, (size_mb, rounds, rules) in cases.items():
        best = measure(size_mb * 1_000_000, rounds, rules, available)
        curl_s = best["curl"][0]
        results[case] = {}
        print(f"\n{case}, {size_mb} MB: MB/s, ratio to curl, processor s per GB", file=sys.stderr)
        for name, (seconds, cpu) in best.items():
            figures = {
                "mb_per_s": round(size_mb / seconds, 1),
                "ratio_to_curl": round(curl_s / seconds, 2),
                "cpu_s_per_gb": round(cpu / size_mb * 1000, 2),
            }
            results[case][name] = figures
            speed, ratio, cost = figures.values()
            print(f"  {name:<22} {speed:>8.1f} {ratio:>6.2f} {cost:>6.2f}", file=sys.stderr)
    if arguments.json:
        machine = {"system": platform.system(), "cores": os.cpu_count()}
        print(json.dumps({"machine": machine, "results": results}, indent=1))


def _has_huggingface_hub():
    from importlib.util import find_spec

    return find_spec("huggingface_hub") is not None


if __name__ == "__main__":
    main()
