"""What ``plan_files`` and ``write_files`` do to a project, and that ours is made by them."""

import os
from pathlib import Path

import pytest

import bitnet
from bitnet.ci.templates import DEFAULT, EVERY, plan_files, template_folder, write_files
from bitnet.errors import NotFound, UsageError

ROOT = Path(__file__).parents[2]
OURS = ("parity-smoke", "crossval", "wheels", "release")


def states(project, names=DEFAULT, **options):
    return {str(file.path): file.state for file in plan_files(project, list(names), **options)}


def test_a_project_gets_workflows_action_scripts_and_what_ci_installs(tmp_path):
    write_files(tmp_path, plan_files(tmp_path, list(DEFAULT)))
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {
        *(f".github/workflows/{name}.yml" for name in DEFAULT),
        ".github/actions/bitnet-setup/action.yml",
        ".github/actions/bitnet-setup/fetch.sh",
        ".github/bitnet-requirements.txt",
        "scripts/parity_smoke.sh",
        "scripts/tokenizer-health-check.sh",
        "scripts/cleanup-tokenizer-cache.sh",
    }
    installs = (tmp_path / ".github/bitnet-requirements.txt").read_text()
    assert installs == f"bitnet-xtask[crossval]=={bitnet.__version__}\n"
    if os.name != "nt":
        assert os.access(tmp_path / "scripts/parity_smoke.sh", os.X_OK)


def test_writing_twice_changes_nothing(tmp_path):
    write_files(tmp_path, plan_files(tmp_path, list(DEFAULT)))
    again = states(tmp_path)
    assert again.pop(".github/bitnet-requirements.txt") == "kept"
    assert set(again.values()) == {"unchanged"}


def test_a_changed_file_stops_everything_unless_forced(tmp_path):
    mine = tmp_path / ".github/workflows/crossval.yml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine\n")
    planned = plan_files(tmp_path, list(DEFAULT))
    with pytest.raises(UsageError, match="1 files are there with other content"):
        write_files(tmp_path, planned)
    assert [path.name for path in tmp_path.rglob("*.yml")] == ["crossval.yml"]
    write_files(tmp_path, planned, force=True)
    assert mine.read_text() == (template_folder() / "github/crossval.yml").read_text()


def test_what_ci_installs_is_the_projects_own(tmp_path):
    (tmp_path / ".github").mkdir()
    own = tmp_path / ".github/bitnet-requirements.txt"
    own.write_text("-e .\n")
    write_files(tmp_path, plan_files(tmp_path, list(DEFAULT)), force=True)
    assert own.read_text() == "-e .\n"


def test_the_default_branch_is_the_projects(tmp_path):
    write_files(tmp_path, plan_files(tmp_path, list(EVERY), branch="trunk"))
    texts = [path.read_text() for path in tmp_path.rglob("*.yml")]
    assert any("branches: [trunk]" in text for text in texts)
    assert not any("branches: [main]" in text for text in texts)


def test_a_release_brings_the_wheels_it_calls(tmp_path):
    assert set(states(tmp_path, ["release"])) == {
        ".github/workflows/release.yml",
        ".github/workflows/wheels.yml",
    }


def test_unknown_names_and_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no workflow template nightly"):
        plan_files(tmp_path, ["nightly"])
    with pytest.raises(NotFound):
        plan_files(tmp_path / "none", list(DEFAULT))


def test_every_template_file_has_a_name_that_can_be_asked_for():
    assert {path.stem for path in template_folder().glob("github/*.yml")} == set(EVERY)


def test_this_projects_workflows_are_the_templates():
    found = {p: s for p, s in states(ROOT, OURS).items() if s != "unchanged"}
    assert found == {".github/bitnet-requirements.txt": "kept"}
    names = {path.stem for path in (ROOT / ".github/workflows").glob("*.yml")}
    assert names == {*OURS, "ci"}  # ci.yml runs this project's own checks


def test_a_file_where_the_folder_belongs_is_named(tmp_path):
    (tmp_path / ".github").write_text("")
    with pytest.raises(NotFound, match="Not a directory"):
        plan_files(tmp_path, list(DEFAULT))
