"""Invoke's own configuration files: read where there are some, and refused by name if broken."""

import json
import subprocess
import sys

import pytest

from bitnet.base import errors


def test_invokes_yaml_parser_is_loaded_only_for_a_configuration_file(tmp_path):
    code = (
        "import sys\n"
        "from bitnet.__main__ import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, 'invoke.vendor.yaml.parser' in sys.modules)\n"
    )
    configuration = tmp_path / "invoke.yaml"
    configuration.write_text("run:\n  echo: true\n")
    # The exit code, and whether the parser was loaded.
    for words, expected in (([], "0 False"), ([f"--config={configuration}"], "0 True")):
        command = [sys.executable, "-c", code, *words, "exit-codes"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("json", "{"),
        ("json", "[1]"),
        ("json", '{"run": 3}'),
        ("json", '{"a": "\\ud800"}\xff'),
        ("yaml", "a: ["),
        ("yml", "- a"),
        ("py", "raise RuntimeError('own')"),
        ("py", "import os"),
    ],
)
@pytest.mark.parametrize("is_named", [False, True])
def test_a_broken_configuration_of_invoke_is_refused_by_its_name(
    ending, content, is_named, bitnet, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / f"{'own' if is_named else '.invoke'}.{ending}"
    path.write_bytes(content.encode("latin-1"))
    words = [f"--config={path}"] if is_named else []
    done = bitnet(*words, "exit-codes", "--json")
    assert done.code == errors.InvalidFormat.exit_code
    facts = json.loads(done.out)["error"]
    assert facts["message"].startswith(f"{path} has no settings of Invoke: ")
    assert "internal error" not in done.err
