"""The command that a hint names is one of the tool that made this installation."""

import sys

import pytest

from bitnet.base.invocation import extra_command, reinstall_command

EXTRAS = [
    "ci", "crossval", "crossval-ternary", "otel", "parity", "ray", "serve", "structured",
]  # fmt: skip


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """An environment of no tool in particular."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_requirements_are_installed_and_not_this_package_again(extra):
    command = extra_command(extra)
    assert " -m pip install " in command or command.startswith("uv pip install --python ")
    assert "bitnet" not in command.partition(" install ")[2]
    assert ">=" in command


def test_an_environment_of_pipx_is_changed_by_pipx(prefix):
    (prefix / "pipx_metadata.json").touch()
    assert extra_command("structured") == "pipx inject bitnet-xtask 'llguidance>=1.9'"
    assert reinstall_command() == "pipx reinstall bitnet-xtask"


def test_an_environment_of_uv_tool_is_changed_by_uv(prefix):
    (prefix / "uv-receipt.toml").touch()
    assert extra_command("structured").startswith("uv tool install --with 'llguidance>=1.9' ")
    assert reinstall_command().startswith("uv tool install --reinstall ")


def test_uv_is_given_again_what_it_added_before(prefix):
    (prefix / "uv-receipt.toml").write_text(
        "[tool]\nrequirements = [{ name = 'bitnet-xtask' }, "
        "{ name = 'ray', extras = ['data'], specifier = '>=2.40' }]\n"
    )
    command = "uv tool install --with 'ray[data]>=2.40' --with 'llguidance>=1.9' "
    assert extra_command("structured").startswith(command)


def test_an_environment_without_pip_is_changed_by_uv(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert extra_command("structured").startswith("uv pip install --python ")
