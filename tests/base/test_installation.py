"""The command that a hint names is one of the tool that made this installation."""

import sys

import pytest

from bitnet.base.invocation import extra_command, reinstall_command

EXTRAS = [
    "ci", "crossval", "crossval-ternary", "otel", "parity", "ray", "sentencepiece", "serve",
    "signing", "structured",
]  # fmt: skip


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """Folder of the environment that runs, empty: without the files of pipx or uv."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_for_an_extra_installs_its_requirements_and_not_bitnet_again(extra):
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


def test_the_command_of_uv_repeats_the_packages_that_it_added_before(prefix):
    (prefix / "uv-receipt.toml").write_text(
        "[tool]\nrequirements = [{ name = 'bitnet-xtask' }, "
        "{ name = 'ray', extras = ['data'], specifier = '>=2.40' }]\n"
    )
    command = "uv tool install --with 'ray[data]>=2.40' --with 'llguidance>=1.9' "
    assert extra_command("structured").startswith(command)


@pytest.mark.parametrize(
    ("entry", "option"),  # keys of a package in the receipt of uv, and the option that repeats it
    [
        ("directory = '/src/loc'", "--with 'loc @ file:///src/loc'"),
        ("path = '/a b/loc.whl', extras = ['x']", "--with 'loc[x] @ file:///a%20b/loc.whl'"),
        ("editable = '/src/loc'", "--with-editable /src/loc"),
        (
            "url = 'https://h/loc.zip', subdirectory = 'sub'",
            "--with 'loc @ https://h/loc.zip#subdirectory=sub'",
        ),
        ("git = 'https://h/loc'", "--with 'loc @ git+https://h/loc'"),
        (
            "git = 'file:///loc?subdirectory=sub&rev=v1#0123'",
            "--with 'loc @ git+file:///loc@v1#subdirectory=sub'",
        ),
        (
            "specifier = '>=1,<2', marker = \"python_version > '3.1'\"",
            """--with 'loc>=1,<2 ; python_version > '"'"'3.1'"'"''""",
        ),
    ],
)
def test_the_command_of_uv_repeats_a_package_with_its_origin(entry, option, prefix):
    text = f"[tool]\nrequirements = [{{ name = 'loc', {entry} }}]\n"
    (prefix / "uv-receipt.toml").write_text(text)
    assert extra_command("structured").startswith(f"uv tool install {option} --with ")
    assert reinstall_command().startswith(f"uv tool install --reinstall {option} ")


@pytest.mark.parametrize(
    "receipt",
    [
        "[tool",
        "tool = 1",
        "[tool]\nrequirements = [1]",
        "[tool]\nrequirements = [{ name = 'loc', index = 'https://h/simple' }]",
        "[tool]\nrequirements = [{ name = 'loc', git = 'https://h/loc?lfs=true' }]",
    ],
)
def test_with_a_receipt_that_no_command_can_repeat_uv_pip_and_uv_upgrade_are_named(receipt, prefix):
    (prefix / "uv-receipt.toml").write_text(receipt)
    assert extra_command("structured").startswith("uv pip install --python ")
    assert reinstall_command() == "uv tool upgrade --reinstall bitnet-xtask"


def test_an_environment_without_pip_is_changed_by_uv_pip(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert extra_command("structured").startswith("uv pip install --python ")


@pytest.mark.parametrize(
    ("origin", "source"),  # direct_url.json (PEP 610), and the requirement in the command
    [
        ({}, "'bitnet-xtask[otel,serve]'"),
        ({"url": "file:///a/b"}, "'/a/b[otel,serve]'"),
        (
            {"url": "https://h/b.git", "vcs_info": {"commit_id": "c0"}},
            "'bitnet-xtask[otel,serve] @ git+https://h/b.git@c0'",
        ),
    ],
)
def test_the_command_of_uv_repeats_the_extras_and_the_origin_of_bitnet(
    origin, source, prefix, monkeypatch
):
    (prefix / "uv-receipt.toml").write_text(
        "[tool]\nrequirements = [{ name = 'bitnet-xtask', extras = ['otel', 'serve'] }, "
        "{ name = 'ray' }]\n"
    )
    monkeypatch.setattr("bitnet.base.invocation.direct_url", lambda: origin)
    for command in (extra_command("structured"), reinstall_command()):
        assert command.startswith("uv tool install ")
        assert command.endswith(f" {source}")
        assert "--with ray " in command
