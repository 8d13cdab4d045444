"""Effects of ``plan_files`` and ``write_files`` on a project, ours included."""

import os
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from ci_project import IMAGE

from bitnet.base.errors import InvalidFormat, NotFound, UsageError
from bitnet.ci import templates
from bitnet.ci.templates import DEFAULT, EVERY, plan_files, template_folder, write_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
OURS = ("parity-smoke", "crossval", "wheels", "release")  # templates that this project uses itself
COMMIT = "git+https://example.org/me/bitnet@" + "ab12" * 10
LOCKS = ("requirements.txt", "ik_llama.cpp.txt")
SCRIPTS = (
    "cleanup-tokenizer-cache",
    "compare",
    "each-model",
    "parity_smoke",
    "tokenizer-health-check",
)


def plan(project, names=DEFAULT, **options):
    """The files of the templates *names* for *project*, which install COMMIT."""
    return plan_files(project, list(names), **{"source": COMMIT} | options)


def states(project, names=DEFAULT, **options):
    """State of each planned file by its path: ``new``, ``changed`` or ``unchanged``."""
    return {str(file.path): file.state for file in plan(project, names, **options)}


def workflows():
    """Name and content of each template of a GitHub workflow."""
    for path in sorted((template_folder() / "github").glob("*.yml")):
        yield path.stem, yaml.safe_load(path.read_text())


def test_a_project_gets_workflows_action_scripts_and_what_ci_installs(tmp_path):
    write_files(tmp_path, plan(tmp_path))
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {
        *(f".github/workflows/{name}.yml" for name in DEFAULT),
        *(f".github/actions/bitnet-setup/{n}" for n in ("action.yml", "fetch.sh", "install.sh")),
        *(f".github/bitnet/{name}" for name in ("source.txt", *LOCKS)),
        *(f"scripts/{name}.sh" for name in SCRIPTS),
    }
    assert (tmp_path / ".github/bitnet/source.txt").read_text().splitlines()[1] == COMMIT
    if os.name != "nt":
        assert os.access(tmp_path / "scripts/parity_smoke.sh", os.X_OK)


def test_every_requirement_of_a_lock_file_has_a_version_and_a_digest():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    extras = project["project"]["optional-dependencies"]
    for name, extra in (("requirements", "crossval"), ("ik_llama.cpp", "crossval-ternary")):
        head, *lines = (template_folder() / f"lock/{name}.txt").read_text().splitlines()
        assert head.startswith("#")
        form = re.compile(r"([a-z0-9_.-]+)==[\w.]+ --hash=sha256:[0-9a-f]{64}")
        locked = {form.fullmatch(line)[1].replace("_", "-") for line in lines}
        # What only older Pythons need is not locked: no template runs one.
        requirements = [line for line in needed + extras[extra] if "python_version <" not in line]
        assert {re.match(r"[\w-]+", line)[0].lower() for line in requirements} <= locked
        assert "bitnet-xtask" not in locked


def test_no_template_takes_this_program_by_its_name_from_an_index():
    texts = [
        path.read_text()
        for path in template_folder().rglob("*")
        if path.suffix != ".py" and path.is_file()
    ]
    assert len(texts) > 15
    assert not [text for text in texts if re.search(r"bitnet-xtask|bitnet_xtask==", text)]


def test_a_commit_that_this_program_was_installed_from_is_the_default(tmp_path, monkeypatch):
    class Installed:
        """A distribution whose ``direct_url.json`` (PEP 610) is *noted*."""

        def __init__(self, noted):
            self.noted = noted

        def read_text(self, name):
            return self.noted

    noted = (
        '{"url": "https://example.org/me/bitnet", "vcs_info": {"vcs": "git", "commit_id": "%s"}}'
    )
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(noted % ("ab12" * 10)))
    assert templates.source_of_installation() == COMMIT
    assert states(tmp_path, source="")[".github/bitnet/source.txt"] == "new"
    for other in (None, "{", '{"url": "file:///x", "dir_info": {}}', noted % "main"):
        monkeypatch.setattr(metadata, "distribution", lambda name, other=other: Installed(other))
        assert templates.source_of_installation() == ""
        with pytest.raises(
            UsageError, match="cannot tell where CI should install this program from"
        ):
            plan(tmp_path, source="")


@pytest.mark.parametrize(
    "source",
    [
        "git+https://example.org/me/bitnet",
        "git+https://example.org/me/bitnet@main",
        "git+https://example.org/me/bitnet@" + "ab12" * 9,
        "git+ssh://git@example.org/me/bitnet@" + "ab12" * 10,
        "http://example.org/bitnet.whl",
        "bitnet-xtask==1.0",
        "nowhere",
        "/",
        "../elsewhere",
    ],
)
def test_a_source_that_is_not_pinned_is_refused(tmp_path, source):
    with pytest.raises(UsageError, match="expected git"):
        plan(tmp_path, source=source)


def test_a_folder_of_the_project_is_a_source(tmp_path):
    (tmp_path / "vendor/bitnet").mkdir(parents=True)
    assert states(tmp_path, source="vendor/bitnet")[".github/bitnet/source.txt"] == "new"


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("bitnet_xtask-1-py3-none-any.whl", True),
        ("bitnet_xtask-1-cp312-abi3-linux_x86_64.whl", True),
        ("bitnet_xtask-1-cp312-cp312-linux_x86_64.whl", False),  # crossval runs 3.11, too
        ("bitnet_xtask-1-cp310-cp310-linux_x86_64.whl", False),
    ],
)
def test_a_wheel_must_be_for_the_pythons_of_the_templates(tmp_path, wheel, fits):
    (tmp_path / wheel).touch()
    if fits:
        assert plan(tmp_path, source=wheel)
        return
    with pytest.raises(UsageError, match="is for one Python"):
        plan(tmp_path, source=wheel)


@pytest.mark.parametrize("source", ["wheels/bitnet_xtask-1-py3-none-any.whl", "vendor", COMMIT])
def test_an_image_is_given_the_source_that_it_is_built_from(tmp_path, source):
    if source != COMMIT:
        (tmp_path / source).mkdir(parents=True)  # also for the wheel: only its name is read
    for given in (source, ""):  # the second time the project's own is kept
        planned = plan_files(tmp_path, ["docker"], source=given, image=IMAGE)
        (image,) = (file for file in planned if file.path.name == "Dockerfile")
        copied = f'COPY ["{source}", "{source}"]\n' in image.text
        assert copied is (source != COMMIT)
        write_files(tmp_path, planned, force=True)


@pytest.mark.parametrize("name", ["docker", "gitlab"])
@pytest.mark.parametrize("image", ["", "python:3.12", f"python@sha256:{'ab' * 31}", "a b@sha256:"])
def test_an_image_without_its_digest_is_refused(tmp_path, name, image):
    with pytest.raises(UsageError, match="names no digest") as raised:
        plan(tmp_path, [name], image=image)
    assert "imagetools inspect python:3.12-bookworm" in raised.value.hint


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("gitlab", "docker")])
def test_an_image_that_no_template_runs_in_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"none of the templates .* runs in a container"):
        plan(tmp_path, [name], image=IMAGE)


def test_every_image_is_the_one_given_and_stays_the_projects(tmp_path):
    names = ["docker", "gitlab"]
    write_files(tmp_path, plan(tmp_path, names, image=IMAGE))
    texts = [(tmp_path / path).read_text() for path in ("Dockerfile", ".gitlab/bitnet-ci.yml")]
    named = re.findall(r"(?m)^(?:FROM|  image:) (\S+)", "\n".join(texts))
    assert named == [IMAGE] * 3
    assert set(states(tmp_path, names).values()) == {"unchanged"}


def test_no_report_is_signed_after_a_failed_comparison():
    job = dict(workflows())["crossval"]["jobs"]["sign"]
    assert job["needs"] == "crossval"
    assert "if" not in job


def test_writing_twice_changes_nothing(tmp_path):
    write_files(tmp_path, plan(tmp_path))
    assert set(states(tmp_path).values()) == {"unchanged"}
    assert states(tmp_path, source="")[".github/bitnet/source.txt"] == "unchanged"


def test_a_changed_file_stops_everything_unless_forced(tmp_path):
    mine = tmp_path / ".github/workflows/crossval.yml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine\n")
    planned = plan(tmp_path)
    with pytest.raises(UsageError, match="nothing was written: 1 file with other content"):
        write_files(tmp_path, planned)
    assert [path.name for path in tmp_path.rglob("*.yml")] == ["crossval.yml"]
    write_files(tmp_path, planned, force=True)
    notice, content = mine.read_text().split("\n", 1)
    assert (
        notice == "# Written by `bitnet ci-init`; the template is ci/github/crossval.yml of bitnet."
    )
    assert content == (template_folder() / "github/crossval.yml").read_text()


def test_every_copy_says_what_wrote_it(tmp_path):
    write_files(tmp_path, plan(tmp_path, EVERY, image=IMAGE))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        first, second = path.read_text().splitlines()[:2]
        notice = second if first.startswith("#!") else first
        # The lock files are copied as ci/lock/make.py writes them, with a line of their own.
        assert re.search("[Ww]ritten by .?ci-init|bitnet ci-init|Made by ci/lock", notice), path


def test_the_default_branch_is_the_projects(tmp_path):
    write_files(tmp_path, plan(tmp_path, EVERY, branch="trunk", image=IMAGE))
    texts = [path.read_text() for path in tmp_path.rglob("*.yml")]
    assert any("branches: [trunk]" in text for text in texts)
    assert not any("branches: [main]" in text for text in texts)


def test_a_release_brings_the_wheels_it_calls_and_nothing_to_install(tmp_path):
    assert set(states(tmp_path, ["release"], source="")) == {
        ".github/workflows/release.yml",
        ".github/workflows/wheels.yml",
    }


def test_unknown_names_and_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no template nightly"):
        plan(tmp_path, ["nightly"])
    with pytest.raises(NotFound):
        plan(tmp_path / "none")


def test_every_template_has_a_name_that_can_be_asked_for():
    elsewhere = {"gitlab", "pre-commit", "docker"}
    assert {path.stem for path in template_folder().glob("github/*.yml")} == set(EVERY) - elsewhere


def test_this_projects_workflows_are_the_templates():
    assert set(states(ROOT, OURS, source="").values()) == {"unchanged"}
    names = {path.stem for path in (ROOT / ".github/workflows").glob("*.yml")}
    # This project's own: its checks, and the site of its documentation.
    assert names == {*OURS, "ci", "site"}


def test_a_file_where_the_folder_belongs_is_named(tmp_path):
    (tmp_path / ".github").write_text("")
    with pytest.raises(NotFound, match="Not a directory"):
        plan(tmp_path)


def test_every_job_is_limited_and_names_its_rights():
    """Beside what the linters check of any workflow."""
    for name, workflow in workflows():
        assert workflow["permissions"] == {}, name
        assert "concurrency" in workflow, name
        for job in workflow["jobs"].values():
            assert isinstance(job["permissions"], dict), name
            assert "uses" in job or "timeout-minutes" in job, name
            assert "-latest" not in str(job.get("runs-on")) + str(job.get("strategy")), name


def test_caches_are_named_by_their_contents_and_saved_by_the_default_branch():
    action = yaml.safe_load((template_folder() / "github/bitnet-setup/action.yml").read_text())
    restore, save = (
        step for step in action["runs"]["steps"] if "actions/cache" in step.get("uses", "")
    )
    key = "${{ steps.key.outputs.key }}-"
    assert restore["with"]["restore-keys"] == key
    assert restore["with"]["key"] == save["with"]["key"] == key + "${{ github.run_id }}"
    assert "default_branch" in save["if"]
    assert not [name for name, text in workflows() if "actions/cache" in str(text)]


def test_the_token_goes_to_the_action_and_nowhere_else():
    for name, workflow in workflows():
        tokens = [
            step["with"]["token"]
            for job in workflow["jobs"].values()
            for step in job.get("steps", [])
            if "bitnet-setup" in step.get("uses", "")
        ]
        assert all(token.startswith("${{ secrets.") for token in tokens), name
        assert str(workflow).count("${{ secrets.") == len(tokens), name


LATIN = "# Café\n".encode("latin-1")  # its é is not UTF-8


def test_files_of_the_project_that_are_not_utf_8_are_changed_or_refused(tmp_path):
    """Such files count as changed by the user; source.txt, which has to be read, is refused."""
    names = ["docker", "gitlab", "pre-commit", "parity-smoke"]
    for file in plan(tmp_path, names, image=IMAGE):
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LATIN + file.text.encode())
    assert set(states(tmp_path, names).values()) == {"changed"}
    with pytest.raises(InvalidFormat, match=r"source\.txt is not UTF-8 at byte 5") as refused:
        plan(tmp_path, names, source="")
    assert "--from" in refused.value.hint


@pytest.mark.parametrize("host", ["10.0.0.1:5000/", "1", ""])
def test_an_image_on_any_host_is_written_as_it_is(host, tmp_path):
    image = f"{host}python@sha256:{'ab' * 32}"
    texts = [file.text for file in plan(tmp_path, ["docker"], image=image)]
    assert any(f"FROM {image}\n" in text for text in texts)


@pytest.mark.parametrize("branch", ["trunk", "release/1.0", "1.0", "on", "No", "日本", "v2"])
def test_a_branch_is_that_text_in_every_workflow(branch, tmp_path):
    for file in plan(tmp_path, branch=branch):
        if file.path.suffix == ".yml" and "branches:" in file.text:
            triggers = yaml.safe_load(file.text)[True]  # YAML 1.1 reads the key `on` as true
            named = [
                event["branches"] for event in triggers.values() if "branches" in (event or {})
            ]
            assert named
            assert all(names == [branch] for names in named)


@pytest.mark.parametrize("branch", ["", "a]", "a, b", "a\nb", "*", "a: b", "#", "/a", "a/", "a b"])
def test_a_branch_that_no_workflow_can_name_is_refused(branch, tmp_path):
    with pytest.raises(UsageError, match="--branch is"):
        plan(tmp_path, branch=branch)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_project_or_source_that_cannot_be_looked_up_is_refused(name, tmp_path):
    with pytest.raises(NotFound, match="no folder"):
        plan(tmp_path / name)
    with pytest.raises(UsageError, match="--from is"):
        plan(tmp_path, source=name)
