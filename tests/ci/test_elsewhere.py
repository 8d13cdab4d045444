"""The templates for GitLab, pre-commit and Docker, run as far as they do without their programs.

Not run: the pipeline's cache and image, pre-commit's choice of files, and the second stage of the
Dockerfile, which only copies and adds a user.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ci_project import write_project
from compared_models import COMPARED
from hub_server import HubServer
from tiny_models import tiny_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="the templates need a shell"),
]


@pytest.fixture
def project(tmp_path, bitnet, monkeypatch):
    """Folder of a project that pins a model; its hub has a gated file, too."""
    folder = tmp_path / "project"
    write_project(folder)
    with HubServer() as server:
        model = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
        server.add("org/tiny", "tiny.gguf", model)
        server.add("org/gated", "gated.gguf", model + bytes(32))  # other bytes, the same model
        server.repo("org/gated", gated=True)
        server.tokens["hf_good"] = {"org/gated"}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.chdir(folder)
        assert bitnet("download-model", "--id", "org/tiny", "--file", "tiny.gguf").code == 0
        yield folder


def run(script, folder, **environment):
    """Run the bash *script* in *folder*, with this environment's programs; the finished process."""
    beside = str(Path(sys.executable).parent)
    pip = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=os.environ | pip | {"PATH": f"{beside}:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
    )


def pipeline(folder, **environment):
    """Run the script of GitLab's job with its variables; the finished process."""
    job = yaml.safe_load((folder / ".gitlab/bitnet-ci.yml").read_text())["bitnet"]
    values = {"CI_PROJECT_DIR": str(folder)}
    for name, text in job["variables"].items():
        values[name] = text.replace("$CI_PROJECT_DIR", str(folder))
    site = {"PIP_TARGET": str(folder.parent / "site")}
    return run("\n".join(job["script"]), folder, **values, **site, **environment)


def test_a_pipeline_fetches_verifies_and_runs_every_model(project, bitnet):
    shutil.rmtree(project / "models")
    done = pipeline(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMPARED in (project / "bitnet-summary.md").read_text()
    assert (project / ".bitnet-cache/store").is_dir()


def test_a_pipeline_without_the_token_says_what_it_left_out(project, bitnet, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert bitnet("download-model", "--id", "org/gated", "--file", "gated.gguf").code == 0
    monkeypatch.delenv("HF_TOKEN")
    shutil.rmtree(project / "models")
    done = pipeline(project)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = (project / "bitnet-summary.md").read_text()
    assert "NOT CHECKED: these files need a token" in summary
    assert "- org/gated/gated.gguf" in summary
    assert COMPARED in summary


def test_the_pipeline_is_one_that_gitlab_reads(project):
    program = Path(sys.executable).parent / "check-jsonschema"
    if not program.exists():
        pytest.skip("check-jsonschema is not installed; pip install 'bitnet-xtask[ci]'")
    words = ["--builtin-schema", "vendor.gitlab-ci", project / ".gitlab/bitnet-ci.yml"]
    assert subprocess.run([program, *words]).returncode == 0


@pytest.fixture
def hooks(project):
    """The hooks of the pre-commit template, by id."""
    (repository,) = yaml.safe_load((project / ".pre-commit-config.yaml").read_text())["repos"]
    return {hook["id"]: hook for hook in repository["hooks"]}


def test_a_hook_verifies_committed_models(project, hooks, tmp_path):
    hook = hooks["bitnet-verify"]
    assert re.search(hook["files"], "models/a.gguf")
    assert re.search(hook["files"], "models/A.GGUF")
    shutil.copy(tmp_path / "tiny.gguf", project / "good one.gguf")
    assert run(hook["entry"] + " 'good one.gguf'", project).returncode == 0
    (project / "bad.gguf").write_bytes(b"GGUF" + bytes(50))
    done = run(hook["entry"] + " 'good one.gguf' bad.gguf", project)
    assert done.returncode == 15, done.stdout + done.stderr  # VerificationFailed
    # A file whose name looks like an option is still a file.
    (project / "bad.gguf").rename(project / "--help.gguf")
    assert run(hook["entry"] + " --help.gguf", project).returncode == 15


def test_a_hook_holds_files_to_their_pins(project, hooks):
    hook = hooks["bitnet-sync"]
    assert re.search(hook["files"], "bitnet.lock.json")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # nothing listens: the hook must not download
    assert run(hook["entry"], project, **nowhere).returncode == 0
    model = project / "models/org-tiny/tiny.gguf"
    raw = model.read_bytes()
    model.unlink()
    done = run(hook["entry"], project, **nowhere)
    assert (done.returncode, "is missing" in done.stdout) == (15, True)
    assert not model.exists()
    model.write_bytes(raw + b"\0")
    done = run(hook["entry"], project, **nowhere)
    assert (done.returncode, "pinned is" in done.stdout) == (15, True)


def test_an_image_is_built_with_every_pinned_file_checked(project, tmp_path):
    """The RUN lines of the first stage run in a folder, with a virtual environment in it."""
    text = (project / "Dockerfile").read_text()
    _, build, final = text.split("\nFROM ")
    steps = re.findall(r"^RUN (?:--mount=\S+ )?(.*)$", build, re.M)
    assert len(steps) == 4  # the expression above has read all of them
    image = tmp_path / "image"
    for folder in (".github", "tool"):
        shutil.copytree(project / folder, image / folder)
    shutil.copy(project / "bitnet.lock.json", image)
    environment = tmp_path / "opt"
    lines = [step.replace("/opt/bitnet", str(environment)) for step in steps]
    path = f"{environment}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run("\n".join(lines), image, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (image / "models/org-tiny/tiny.gguf").exists()
    assert "USER bitnet" in final
    (command,) = re.findall(r'^CMD \["sh", "-c", (".*")\]$', final, re.M)
    words = yaml.safe_load(command).split("$(")[0].split()
    assert words[:3] == ["exec", "bitnet", "serve"]
