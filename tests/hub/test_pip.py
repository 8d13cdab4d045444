"""Wheels that pip finds, and the errors that its output becomes."""

import subprocess

import pytest
from tiny_packages import TINY

from bitnet import sources
from bitnet.base.errors import (
    AuthError,
    NetworkError,
    NoSpace,
    NotFound,
)
from bitnet.hub import wheels
from bitnet.hub.fetch_options import FetchOptions
from bitnet.sources import Package


def test_pip_finds_the_addresses_of_wheels_in_a_folder(local_index, tmp_path):
    wanted = [package.requirement for package in TINY.packages]
    (tmp_path / "entry").mkdir()
    located = wheels.find_wheels(wanted, tmp_path / "entry", FetchOptions())
    assert list(located) == wanted
    for requirement, located_wheel in located.items():
        wheel = located_wheel.source
        assert wheel.name.startswith(requirement.replace("-", "_").replace("==", "-"))
        assert wheel.url == (local_index / wheel.name).as_uri()
    assert [path.name for path in (tmp_path / "entry").iterdir()] == ["report.json"]


def test_a_version_that_is_absent_is_not_found_and_the_error_lists_the_others(
    local_index, tmp_path
):
    parts = (Package("tiny-model", "9.9", "x"),)
    with pytest.raises(NotFound, match=r"tiny-model==9\.9: .*\(from versions: 1\.0\)"):
        wheels.find_wheels([package.requirement for package in parts], tmp_path, FetchOptions())


def test_an_index_that_does_not_answer_is_a_network_error(local_index, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")  # nothing there
    options = FetchOptions(retries=1, timeout=5.0)
    with pytest.raises(NetworkError, match=r"tiny-model==1\.0: .*[Cc]onnection") as caught:
        wheels.find_wheels(["tiny-model==1.0"], tmp_path, options)
    assert "secret" not in str(caught.value)


def test_pip_gets_no_token_and_a_folder_of_its_own_for_temporary_files(
    local_index, tmp_path, monkeypatch
):
    variables = []
    popen = subprocess.Popen

    def record(*args, **kwargs):
        variables.append(kwargs["env"])
        return popen(*args, **kwargs)

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(subprocess, "Popen", record)
    wheels.find_wheels(["tiny-model==1.0"], tmp_path, FetchOptions())
    assert "hf_secret" not in str(variables)
    assert variables[0]["TMPDIR"] == str(tmp_path)  # what pip unpacks goes with the folder


@pytest.mark.parametrize(
    ("output", "error", "said"),
    [
        ("/usr/bin/python: No module named pip", NotFound, "No module named pip"),
        ("ERROR: [Errno 28] No space left on device", NoSpace, "No space left"),
        ("ERROR: 401 Client Error: Unauthorized for url: x", AuthError, "401"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n"
            "ERROR: No matching distribution found for a==1",
            NetworkError,
            "NewConnectionError",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement a==1 "
            "(from versions: none)\nERROR: No matching distribution found for a==1",
            NotFound,
            "from versions: none",
        ),
        ("ERROR: something else", NetworkError, "something else"),
        ("", NetworkError, "it said nothing"),
    ],
)
def test_the_output_of_pip_becomes_an_error_with_a_hint(output, error, said):
    explained = wheels.explain(output, ["a==1"])
    assert type(explained) is error
    assert said in explained.message
    assert explained.hint


def test_every_packaged_model_is_pinned():
    for name, model in sources.PACKAGED.items():
        assert name == model.name == model.repo
        assert len(model.sha256) == 64
        assert model.size > 0
        assert model.licence
        assert all(part.version and part.member for part in model.parts)
