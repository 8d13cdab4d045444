"""Every ``run:`` block of the templates, executed: cache miss, cache hit, hub down, fork.

What is simulated is listed in ``workflow_runner``. Two blocks are not executed: cibuildwheel needs
containers, and the job that builds a source package asks a package index for its tools.
"""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ci_project import write_project
from compared_models import COMPARED, HAS_ENGINE, PASSED, TINY, WITHOUT_ENGINE
from hub_server import HubServer
from tiny_models import tiny_gguf
from workflow_runner import CacheStore, Runner

import bitnet
from bitnet.base.files import sha256_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the runner needs bash"),
]

ROOT = Path(__file__).parents[2]
MIRROR = "baseten/Meta-Llama-3-tokenizer"
OFFICIAL = "meta-llama/Meta-Llama-3-8B"
WORKFLOWS = {
    "parity-smoke": "smoke",
    "tokenizer-cache": "provide",
    "verify-models": "health",
    "cache-warm": "warm",
    "crossval": "crossval",
}
ALONE = ("parity-smoke", "crossval")  # tested by functions of their own, not by the common one
NOT_EXECUTED = {"wheels: Build and test", "sdist: Build the source package"}
# Steps of the action: the one that runs after a cache hit, and the one that runs after a miss.
RESTORED = "Check what was restored"
FETCH = "Fetch what bitnet.lock.json pins"
# One job of the matrix of crossval.yml.
MATRIX = {"reference": "llama.cpp", "python": "3.12", "lock": "requirements"}


def llama3():
    """A ``tokenizer.json`` with as many tokens as Llama 3's, which is how it is recognised."""
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
    """A repository with the templates in it; its runs share the hub and the cache store."""

    def __init__(self, folder, hub):
        self.folder = folder
        self.hub = hub
        self.cache = CacheStore(folder.parent / "store")
        write_project(folder)
        self.runs = itertools.count(1)

    def run(self, name, *, ref="refs/heads/main", event="push", secrets=None, **environment):
        """Run the workflow *name* on a fresh machine; returns the runner, which has its steps.

        *environment* is added to that of the job.
        """
        for folder in ("models", ".bitnet-cache"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        shutil.rmtree(Path.home() / ".cache", ignore_errors=True)
        self.hub.forget()
        beside = str(Path(sys.executable).parent)
        runner = Runner(
            self.folder,
            self.cache,
            environment={
                "PATH": f"{beside}:{os.environ['PATH']}",
                "HOME": os.environ["HOME"],
                "HF_ENDPOINT": self.hub.url,
                "PIP_NO_INDEX": "1",
                "PIP_TARGET": str(self.folder.parent / "site"),
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "BITNET_MODEL": "org/tiny",
            }
            | environment,
            github={
                "ref": ref,
                "event_name": event,
                "run_id": str(next(self.runs)),
                "event": {"repository": {"default_branch": "main"}},
            },
            secrets=secrets or {},
            matrix=MATRIX,
        )
        runner.run(f".github/workflows/{name}.yml", WORKFLOWS[name])
        return runner


def outcomes(runner, outcome):
    """Names of the steps that ended with *outcome*, as GitHub calls it."""
    return [step.name for step in runner.steps if step.outcome == outcome]


def log_of(runner):
    """Name, outcome and output of every step."""
    return "\n".join(f"--- {step.name}: {step.outcome}\n{step.output}" for step in runner.steps)


def succeeded(runner):
    """True if no step failed; otherwise the test fails with the log."""
    return not runner.failed or pytest.fail(log_of(runner))


@pytest.fixture
def project(tmp_path, hub, monkeypatch, bitnet):
    """A project whose lock file pins the mirror's tokenizer and a model."""
    repository = Project(tmp_path / "project", hub)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(repository.folder)
    assert bitnet("tokenizer", "--into", "models").code == 0
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    return repository


@pytest.mark.parametrize("name", [name for name in WORKFLOWS if name not in ALONE])
def test_a_miss_fetches_and_saves_and_a_hit_needs_no_connection(project, name):
    miss = project.run(name)
    assert succeeded(miss)
    assert outcomes(miss, "skipped") == [RESTORED]
    assert len(project.cache.saved) == 1
    assert project.hub.sent("cdn") > 0
    hit = project.run(name)
    assert succeeded(hit)
    assert outcomes(hit, "skipped") == [FETCH, "Save"]
    assert RESTORED in outcomes(hit, "success")
    assert project.hub.requests() == []


def test_the_program_is_built_in_the_job_and_installed(project):
    assert succeeded(project.run("cache-warm"))
    assert (project.folder.parent / "site/tool.py").exists()


def test_the_smoke_test_with_and_without_hub_cache_and_rights(project):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    down = project.run("parity-smoke", HF_ENDPOINT=nobody, BITNET_DOWNLOAD_TIMEOUT="1")
    assert FETCH in outcomes(down, "failure"), log_of(down)
    assert "hint:" in log_of(down)

    fork = {"ref": "refs/pull/7/merge", "event": "pull_request"}
    # A pull request saves no cache: only runs on the default branch do.
    assert succeeded(project.run("parity-smoke", **fork))
    assert project.cache.saved == []

    miss = project.run("parity-smoke")
    assert succeeded(miss)
    assert outcomes(miss, "skipped") == [RESTORED]
    assert len(project.cache.saved) == 1
    # The last step simulates a hub that does not answer, and shows the attempts.
    assert miss.steps[-1].output.count("attempt") >= 3
    assert COMPARED in miss.summary.read_text()

    assert succeeded(project.run("parity-smoke", HF_ENDPOINT=nobody))
    hit = project.run("parity-smoke", **fork)
    assert succeeded(hit)
    assert RESTORED in outcomes(hit, "success")
    assert project.hub.requests() == []
    assert len(project.cache.saved) == 1


def pin_the_official_tokenizer(project, bitnet, monkeypatch):
    """Pin the official tokenizer and the model, and not the mirror's, which has the same bytes."""
    (project.folder / "bitnet.lock.json").unlink()
    assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert bitnet("tokenizer", "--into", "models", "--source", "official").code == 0


def test_a_fork_without_token_leaves_out_what_needs_one_and_checks_the_rest(
    project, bitnet, monkeypatch
):
    pin_the_official_tokenizer(project, bitnet, monkeypatch)
    fork = {"ref": "refs/pull/7/merge", "event": "pull_request"}
    for name, outcome in (("parity-smoke", COMPARED), ("verify-models", PASSED)):
        run = project.run(name, **fork)
        assert succeeded(run)
        assert "::notice::pinned files need an access token" in log_of(run)
        summary = run.summary.read_text()
        assert "### NOT CHECKED: these files need a token" in summary
        assert f"- {OFFICIAL}/tokenizer.json" in summary
        assert outcome in summary
    assert project.cache.saved == []

    own = project.run("parity-smoke", secrets={"HF_TOKEN": "hf_good"})
    assert succeeded(own)
    assert len(project.cache.saved) == 1
    assert "hf_good" not in log_of(own)
    assert "need a token" not in own.summary.read_text()
    assert COMPARED in own.summary.read_text()


def test_a_model_whose_tokenizer_needs_a_token_is_said_to_be_not_checked(
    project, bitnet, hub, monkeypatch
):
    hub.add(
        "org/bare",
        "bare.gguf",
        tiny_gguf(project.folder.parent / "b", tokenizer=False).read_bytes(),
    )
    pin_the_official_tokenizer(project, bitnet, monkeypatch)
    assert bitnet("download-model", "--id", "org/bare", "--file", "bare.gguf").code == 0
    run = project.run("verify-models", ref="refs/pull/7/merge", event="pull_request")
    summary = run.summary.read_text()
    assert "- NOT CHECKED: models/org-bare/bare.gguf: its tokenizer needs a token" in summary
    assert PASSED in summary


def test_a_token_that_is_refused_is_a_failure_and_no_skipped_step(project, bitnet, monkeypatch):
    pin_the_official_tokenizer(project, bitnet, monkeypatch)
    assert project.run("cache-warm", secrets={"HF_TOKEN": "hf_bad"}).failed


def test_a_damaged_cache_is_thrown_away_and_replaced(project):
    assert succeeded(project.run("tokenizer-cache"))
    for path in (project.cache.folder / project.cache.saved[0]).rglob("sha256/*/*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1])
    again = project.run("tokenizer-cache")
    assert succeeded(again)
    assert "::warning::the restored cache is damaged or incomplete" in log_of(again)
    assert project.hub.sent("cdn") > 0
    assert len(project.cache.saved) == 2
    after = project.run("tokenizer-cache")
    assert succeeded(after)
    assert project.hub.requests() == []


def test_a_cache_does_not_replace_what_a_pull_request_changed(project):
    """The store is cached and nothing else: a model in the project is the project's."""
    assert succeeded(project.run("cache-warm"))
    (saved,) = project.cache.saved
    stored = [path.name for path in (project.cache.folder / saved).rglob("*.gguf")]
    assert stored == []
    action = project.folder / ".github/actions/bitnet-setup/action.yml"
    paths = [
        step["with"]["path"]
        for step in yaml.safe_load(action.read_text())["runs"]["steps"]
        if "actions/cache" in step.get("uses", "")
    ]
    assert paths == ["${{ env.BITNET_CACHE_DIR }}/store"] * 2


def test_changed_pins_and_another_program_have_another_key(project, bitnet):
    assert succeeded(project.run("cache-warm"))
    (project.folder / "bitnet.lock.json").unlink()
    assert bitnet("tokenizer", "--into", "models").code == 0
    assert succeeded(project.run("cache-warm", event="schedule"))
    (project.folder / ".github/bitnet/source.txt").write_text("# another\ntool\n")
    assert succeeded(project.run("cache-warm"))
    # A key ends in the number of the run.
    assert len({key.rpartition("-")[0] for key in project.cache.saved}) == 3


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


def test_a_damaged_model_fails_the_job_and_stops_no_other(project, hub):
    broken = hub.add("org/tiny", "broken.gguf", b"GGUF" + bytes(100))
    lock = project.folder / "bitnet.lock.json"
    content = json.loads(lock.read_text())
    (model,) = (entry for entry in content["files"] if entry["kind"] == "model")
    wrong = {"file": "broken.gguf", "sha256": broken.sha256, "size": 104, "commit": None}
    content["files"].append(model | wrong | {"path": "models/a/broken.gguf"})
    lock.write_text(json.dumps(content))
    for name, step, outcome in (
        ("parity-smoke", "Run parity smoke test", COMPARED),
        ("verify-models", "Verify every model and tokenizer", PASSED),
    ):
        runner = project.run(name)
        assert outcomes(runner, "failure") == [step], log_of(runner)
        summary = runner.summary.read_text()
        assert "FAILED, exit code" in summary
        assert outcome in summary


@pytest.fixture
def without_engines(tmp_path):
    """The environment of a machine that has no engine to compare with."""
    code = "import sys\nsys.modules.update(xllamacpp=None, ik_llama_cpp=None)\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(tmp_path)}


def test_without_an_engine_the_summary_says_what_was_checked_and_what_not(project, without_engines):
    run = project.run("parity-smoke", **without_engines)
    assert succeeded(run)
    (line,) = (text for text in run.summary.read_text().splitlines() if TINY in text)
    assert line.startswith(WITHOUT_ENGINE)
    assert "nothing was compared" in line
    assert line.endswith("; checked: the file, its tokenizer, a run of it")
    assert "passed" not in run.steps[-3].output  # of "Run parity smoke test"

    run = project.run("crossval", **without_engines)
    assert outcomes(run, "failure") == ["Compare with the reference engine"], log_of(run)
    (file,) = (project.folder / "reports").rglob("report.json")
    assert json.loads(file.read_text())["verdict"]["status"] == "not run"
    assert f"- FAILED, exit code 22: {TINY}" in run.summary.read_text()


@pytest.mark.skipif(not HAS_ENGINE, reason="the extra `crossval` is not installed")
def test_the_weekly_comparison_says_what_the_reference_says(project):
    runner = project.run("crossval")
    (file,) = (project.folder / "reports").rglob("report.json")
    report = json.loads(file.read_text())
    assert runner.artifacts == ["crossval-llama.cpp"]
    assert succeeded(runner)
    assert report["verdict"]["status"] == "passed"
    assert report["summary"]["positions"] > 100
    summary = runner.summary.read_text()
    assert "# Cross-validation: passed" in summary
    assert PASSED in summary


def blocks(project):
    """Every ``run:`` block of the workflows, with the name of its job and step."""
    for path in sorted((project.folder / ".github/workflows").glob("*.yml")):
        for job, content in yaml.safe_load(path.read_text())["jobs"].items():
            for step in content.get("steps", []):
                if "run" in step:
                    yield path.stem, f"{job}: {step['name']}", step["run"]


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
    runner = release(project, "1.2.0", only="release: Every file has the version of the tag")
    assert runner.failed != good, log_of(runner)


def release(project, version, only="", **environment):
    """Run the blocks of the release that tag v*version* starts, or *only* one; the runner."""
    steps = [
        {"name": name, "run": text}
        for stem, name, text in blocks(project)
        if stem == "release" and only in ("", name)
    ]
    (project.folder / "alone.yml").write_text(json.dumps({"jobs": {"release": {"steps": steps}}}))
    runner = Runner(
        project.folder,
        project.cache,
        environment=os.environ | environment,
        github={"ref": f"refs/tags/v{version}", "event_name": "push"},
    )
    runner.run("alone.yml", "release")
    return runner


# Calls a hook of the build backend (PEP 517): `build_sdist` or `build_wheel`.
BUILD = "import sys; from scikit_build_core import build; build.build_{}(sys.argv[1])"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """This project's source package, and the wheel that is made of it without a compiler."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    words = [sys.executable, "-c", BUILD.format("sdist"), str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.iterdir()
    shutil.unpack_archive(archive, source)
    subprocess.run(
        [sys.executable, "-c", BUILD.format("wheel"), str(folder)],
        cwd=next(source.iterdir()),
        check=True,
        capture_output=True,
        env=os.environ | {"CXX": "/nonexistent", "CC": "/nonexistent"},
    )
    return folder


def test_a_release_of_this_project_has_its_files_checksums_and_notes(project, built, tmp_path):
    """The whole release; a stand-in for the program gh writes its arguments into asked.txt."""
    version = bitnet.__version__
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## [Unreleased]\n" in text
    log = project.folder / "CHANGELOG.md"
    log.write_text(text.replace("## [Unreleased]", f"## [{version}] - 2030-01-01"))
    shutil.copytree(built, project.folder / "dist")
    (tmp_path / "bin").mkdir()
    gh = tmp_path / "bin/gh"
    gh.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked.txt\n')
    gh.chmod(0o755)
    runner = release(project, version, PATH=f"{gh.parent}:{os.environ['PATH']}")
    assert succeeded(runner)
    words = (project.folder / "asked.txt").read_text().splitlines()
    names = sorted(path.name for path in built.iterdir())
    assert [name.partition("-")[0] for name in names] == ["bitnet_xtask"] * 2
    assert words[:3] == ["release", "create", f"v{version}"]
    assert words[-3:] == [*(f"dist/{name}" for name in names), "SHA256SUMS"]
    sums = (project.folder / "SHA256SUMS").read_text().splitlines()
    assert sums == [f"{sha256_of(built / name)}  {name}" for name in names]
    notes = (project.folder / "notes.md").read_text()
    assert "### Added" in notes
    assert "\n## " not in notes  # nothing of the next version's section


def test_a_release_without_notes_is_refused(project, built):
    shutil.copytree(built, project.folder / "dist")
    (project.folder / "CHANGELOG.md").write_text("## [Unreleased]\n\n- something\n")
    runner = release(project, bitnet.__version__)
    assert runner.failed
    assert f"says nothing below ## [{bitnet.__version__}]" in log_of(runner)
    assert not (project.folder / "SHA256SUMS").exists()


def test_no_block_is_left_out(project):
    executed = {*WORKFLOWS, "release"}
    assert {name for stem, name, _ in blocks(project) if stem not in executed} == NOT_EXECUTED
