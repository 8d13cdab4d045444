"""The reference pages that docs/generate.py writes are complete and current."""

import importlib.util
from pathlib import Path

import pytest

from bitnet.base import settings
from bitnet.base.errors import EXIT_CODES
from bitnet.commands import load

SCRIPT = Path(__file__).parents[2] / "docs/generate.py"


@pytest.fixture(scope="module")
def generate():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_every_option_is_on_the_page(generate):
    page = generate.commands()
    collection = load()
    for name in collection.task_names:
        section = page.split(f"\n## {collection[name].command_words}\n")[1].split("\n## ")[0]
        for argument in collection[name].options:
            assert argument.spelling().replace("|", "\\|") in section


def test_every_variable_is_on_the_page(generate):
    page = generate.environment()
    missing = [n for setting in settings.ALL for n in setting.names if f"`{n}`" not in page]
    assert not missing


def test_every_exit_code_is_on_the_page(generate):
    page = generate.exit_codes()
    assert all(f"| {code} | {meaning} |" in page for code, meaning in EXIT_CODES.items())


def test_pages_do_not_depend_on_the_environment(generate, monkeypatch):
    before = generate.pages()
    monkeypatch.setenv("BITNET_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert generate.pages() == before


def test_a_page_that_is_not_current_is_named(generate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "FOLDER", tmp_path / "reference")
    assert generate.main(["--check"]) == 1  # the folder does not exist yet
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    with (tmp_path / "reference/exit-codes.md").open("a") as page:
        page.write("| 99 | made up |\n")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    assert "not current: exit-codes.md" in capsys.readouterr().err
