"""Every ``run:`` block of the templates, executed: cache miss, cache hit, hub down, fork.

What is simulated is listed in ``workflow_runner``. Two blocks are not executed: cibuildwheel needs
containers, and building a source package needs a package index.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import socket
import sys
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hub_server import HubServer
from tiny_models import tiny_gguf
from workflow_runner import CacheStore, Runner

from bitnet.ci.rules import read_workflows, run_blocks
from bitnet.ci.templates import EVERY, plan_files, write_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the runner needs bash"),
]

MIRROR = "baseten/Meta-Llama-3-tokenizer"
OFFICIAL = "meta-llama/Meta-Llama-3-8B"
WORKFLOWS = {
    "parity-smoke": "smoke",
    "tokenizer-cache": "provide",
    "verify-models": "health",
    "cache-warm": "warm",
    "crossval": "crossval",
}
ALONE = ("parity-smoke", "crossval")  # have a test of their own
NOT_EXECUTED = {"wheels: Build and test", "sdist: Build the source package"}
RESTORED = "Check what was restored"


def llama3():
    vocab = {f"t{number}": number for number in range(128_256)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}).encode()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with HubServer() as server:
        server.add(MIRROR, "tokenizer.json", llama3())
        server.add(OFFICIAL, "tokenizer.json", llama3())
        server.repo(OFFICIAL, gated=True)
        server.tokens["hf_good"] = {OFFICIAL}
        path = tiny_gguf(tmp_path_factory.mktemp("hub") / "tiny.gguf")
        server.add("org/tiny", "tiny.gguf", path.read_bytes())
        yield server


class Project:
    """A repository with the templates in it, and what its runs share."""

    def __init__(self, folder, hub):
        self.folder, self.hub = folder, hub
        self.cache = CacheStore(folder.parent / "store")
        (folder / ".github").mkdir(parents=True)
        (folder / ".github/bitnet-requirements.txt").write_text("bitnet-xtask\n")
        write_files(folder, plan_files(folder, list(EVERY)))

    def run(self, name, *, ref="refs/heads/main", event="push", secrets=None, **environment):
        """A run on a fresh machine; the runner with its steps."""
        for folder in ("models", "cache"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        shutil.rmtree(Path.home() / ".cache", ignore_errors=True)
        self.hub.seen.clear()
        beside = str(Path(sys.executable).parent)
        runner = Runner(
            self.folder,
            self.cache,
            environment={
                "PATH": f"{beside}:{os.environ['PATH']}",
                "HOME": os.environ["HOME"],
                "HF_ENDPOINT": self.hub.url,
                "PIP_NO_INDEX": "1",
                "BITNET_MODEL": "org/tiny",
            }
            | environment,
            github={
                "ref": ref,
                "event_name": event,
                "event": {"repository": {"default_branch": "main"}},
            },
            secrets=secrets or {},
        )
        runner.run(f".github/workflows/{name}.yml", WORKFLOWS[name])
        return runner

    @property
    def key(self):
        lock = (self.folder / "bitnet.lock.json").read_bytes()
        return f"bitnet-{hashlib.sha256(lock).hexdigest()}"


def outcomes(runner, outcome):
    return [step.name for step in runner.steps if step.outcome == outcome]


def said(runner):
    return "\n".join(f"--- {step.name}: {step.outcome}\n{step.output}" for step in runner.steps)


def succeeded(runner):
    return not runner.failed or pytest.fail(said(runner))


@pytest.fixture
def project(tmp_path, hub, monkeypatch, bitnet):
    """It pins the mirror's tokenizer and a model."""
    made = Project(tmp_path / "project", hub)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(made.folder)
    assert bitnet("tokenizer", "--into", "models").code == 0
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    return made


@pytest.mark.parametrize("name", [name for name in WORKFLOWS if name not in ALONE])
def test_a_miss_fetches_and_saves_and_a_hit_needs_no_connection(project, name):
    miss = project.run(name)
    assert succeeded(miss)
    assert outcomes(miss, "skipped") == [RESTORED]
    assert project.cache.saved == [project.key]
    assert project.hub.sent("cdn") > 0
    hit = project.run(name)
    assert succeeded(hit)
    assert len(outcomes(hit, "skipped")) == 1  # saving
    assert RESTORED in outcomes(hit, "success")
    assert project.hub.requests() == []


def test_the_smoke_test_with_and_without_hub_cache_and_rights(project):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    down = project.run("parity-smoke", HF_ENDPOINT=nobody)
    assert outcomes(down, "failure") == ["Fetch LLaMA-3 tokenizer"], said(down)
    assert "hint:" in said(down)
    assert [step.outcome for step in down.steps[-4:]] == ["skipped"] * 4

    fork = {"ref": "refs/pull/7/merge", "event": "pull_request"}
    assert succeeded(project.run("parity-smoke", **fork))
    assert project.cache.saved == []

    miss = project.run("parity-smoke")
    assert succeeded(miss)
    assert outcomes(miss, "skipped") == [RESTORED]
    assert project.cache.saved == [project.key]
    assert miss.steps[-1].output.count("attempt") >= 3  # the drill

    assert succeeded(project.run("parity-smoke", HF_ENDPOINT=nobody))
    hit = project.run("parity-smoke", **fork)
    assert succeeded(hit)
    assert RESTORED in outcomes(hit, "success")
    assert project.hub.requests() == []
    assert project.cache.saved == [project.key]


def test_a_fork_without_token_skips_what_needs_one(project, bitnet, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    (project.folder / "bitnet.lock.json").unlink()
    assert bitnet("tokenizer", "--into", "models", "--source", "official").code == 0
    fork = project.run("parity-smoke", ref="refs/pull/7/merge", event="pull_request")
    assert succeeded(fork)
    assert "::notice::a pinned file needs an access token" in said(fork)
    assert "Run parity smoke test" in outcomes(fork, "skipped")
    assert project.cache.saved == []

    own = project.run("parity-smoke", secrets={"HF_TOKEN": "hf_good"})
    assert succeeded(own)
    assert project.cache.saved == [project.key]
    assert "hf_good" not in said(own)


def test_a_token_that_is_refused_is_a_failure_and_no_skipped_step(project, bitnet, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    (project.folder / "bitnet.lock.json").unlink()
    assert bitnet("tokenizer", "--into", "models", "--source", "official").code == 0
    assert project.run("cache-warm", secrets={"HF_TOKEN": "hf_bad"}).failed


def test_a_damaged_cache_is_thrown_away_and_everything_fetched_again(project):
    assert succeeded(project.run("tokenizer-cache"))
    for path in (project.cache.folder / project.key).rglob("tokenizer.json"):
        path.write_bytes(path.read_bytes().replace(b"t7", b"T7", 1))
    again = project.run("tokenizer-cache")
    assert succeeded(again)
    assert "::warning::the restored cache is damaged or incomplete" in said(again)
    assert f"gh cache delete {project.key}" in said(again)
    assert project.hub.sent("cdn") > 0


def test_changed_pins_have_another_key(project, bitnet, hub):
    assert succeeded(project.run("cache-warm"))
    first = project.key
    (project.folder / "bitnet.lock.json").unlink()
    assert bitnet("tokenizer", "--into", "models").code == 0
    assert project.key != first
    assert succeeded(project.run("cache-warm", event="schedule"))
    assert project.cache.saved == [first, project.key]


@pytest.mark.parametrize(
    ("secrets", "repository"), [({}, MIRROR), ({"HF_TOKEN": "hf_good"}, OFFICIAL)]
)
def test_without_a_lock_file_the_token_decides_where_llama3_comes_from(
    project, secrets, repository
):
    lock = project.folder / "bitnet.lock.json"
    lock.unlink()
    runner = project.run("parity-smoke", secrets=secrets)
    assert succeeded(runner)
    pinned = json.loads(lock.read_text())["files"]
    assert [entry["repo"] for entry in pinned] == ["org/tiny", repository]
    assert project.cache.saved == []  # no lock file, no key


def test_a_damaged_model_stops_the_smoke_test_and_the_health_check(project, hub):
    broken = hub.add("org/tiny", "broken.gguf", b"GGUF" + bytes(100))
    lock = project.folder / "bitnet.lock.json"
    content = json.loads(lock.read_text())
    for entry in content["files"]:
        if entry["kind"] == "model":
            entry.update(file="broken.gguf", sha256=broken.sha256, size=104, commit=None)
    lock.write_text(json.dumps(content))
    for name, step in (
        ("parity-smoke", "Run parity smoke test"),
        ("verify-models", "Verify every model and tokenizer"),
    ):
        runner = project.run(name)
        assert outcomes(runner, "failure") == [step], said(runner)
    assert "❌ Failed: models/org-tiny/tiny.gguf" in runner.summary.read_text()


def test_the_weekly_comparison_says_what_the_reference_says_or_fails(project):
    runner = project.run("crossval")
    report = json.loads((project.folder / "reports/tiny/report.json").read_text())
    assert runner.artifacts == ["crossval"]
    if importlib.util.find_spec("xllamacpp") is None:
        assert outcomes(runner, "failure") == ["Compare with the reference engine"], said(runner)
        assert report["verdict"]["status"] == "not run"
        return
    assert succeeded(runner)
    assert report["verdict"]["status"] == "passed"
    assert report["summary"]["positions"] > 100
    assert "# Cross-validation: passed" in runner.summary.read_text()


class CacheApi(BaseHTTPRequestHandler):
    """The two calls of GitHub's interface that cache-clean makes."""

    def do_GET(self):
        assert self.headers["Authorization"] == "Bearer token-of-the-run"
        assert self.path == "/repos/me/project/actions/caches?key=bitnet-&per_page=100"
        body = json.dumps({"actions_caches": self.server.caches}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self):
        self.server.deleted.append(int(self.path.rsplit("/", 1)[1]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words):
        pass


def test_cache_clean_deletes_old_caches_of_other_lock_files(project):
    server = ThreadingHTTPServer(("127.0.0.1", 0), CacheApi)
    now = datetime.now(timezone.utc)
    ages = {1: ("bitnet-old", 90), 2: (project.key, 90), 3: ("bitnet-recent", 3)}
    server.deleted, server.caches = (
        [],
        [
            {"id": id, "key": key, "last_accessed_at": f"{now - timedelta(days=days):%FT%TZ}"}
            for id, (key, days) in ages.items()
        ],
    )
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    runner = Runner(
        project.folder,
        project.cache,
        environment=dict(os.environ)
        | {
            "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}",
            "GITHUB_REPOSITORY": "me/project",
        },
        github={"ref": "refs/heads/main", "event_name": "schedule", "token": "token-of-the-run"},
    )
    runner.run(".github/workflows/cache-clean.yml", "clean")
    server.shutdown()
    server.server_close()
    assert succeeded(runner)
    assert server.deleted == [1]
    assert "Cache cleanup complete" in said(runner)


@pytest.mark.parametrize(
    ("files", "good"),
    [
        (["bitnet_xtask-1.2.0-cp312-cp312-win_amd64.whl", "bitnet_xtask-1.2.0.tar.gz"], True),
        (["bitnet_xtask-1.2.0.tar.gz", "bitnet_xtask-1.2.0rc1.tar.gz"], False),
        ([], False),
    ],
)
def test_a_release_has_the_version_of_its_tag(project, files, good):
    (project.folder / "dist").mkdir()
    for name in files:
        (project.folder / "dist" / name).touch()
    (release,) = [w for w in read_workflows(project.folder) if w.path.name == "release.yml"]
    (block,) = run_blocks(release)
    alone = {"jobs": {"check": {"steps": [{"name": block.step, "run": block.text}]}}}
    (project.folder / "alone.yml").write_text(json.dumps(alone))
    runner = Runner(
        project.folder,
        project.cache,
        environment=dict(os.environ),
        github={"ref": "refs/tags/v1.2.0", "event_name": "push"},
    )
    runner.run("alone.yml", "check")
    assert runner.failed != good, said(runner)


def test_no_block_is_left_out(project):
    executed = {*WORKFLOWS, "cache-clean", "release"}
    left = {
        block.step
        for workflow in read_workflows(project.folder)
        for block in run_blocks(workflow)
        if not workflow.is_action and workflow.path.stem not in executed
    }
    assert left == NOT_EXECUTED
