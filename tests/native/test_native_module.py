"""The compiled module is used only where it is the one these sources were written for."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from bitnet.base import native
from bitnet.base.errors import Unsupported


@pytest.fixture
def imported_anew():
    """Clear the cached result of importing the module, before and after the test."""
    forget = (native._import.cache_clear, native._warn_once.cache_clear)
    for one in forget:
        one()
    yield
    for one in forget:
        one()


@pytest.fixture
def outdated(monkeypatch, tmp_path, imported_anew):
    """Sources of a later interface than that of the module that is built."""
    if native.module() is None:
        pytest.skip("the compiled module is not installed or switched off")
    stub = tmp_path / "_native.pyi"
    stub.write_bytes(native._STUB.read_bytes() + b"def another() -> None: ...\n")
    monkeypatch.setattr(native, "_STUB", stub)
    native._import.cache_clear()


def test_a_module_built_by_these_sources_is_used(monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    if (found := native.module()) is None:
        pytest.skip("the compiled module is not installed")
    assert native.interface() == found.INTERFACE


def test_a_module_without_the_stub_of_its_sources_is_not_used(
    monkeypatch, tmp_path, imported_anew, caplog
):
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    if native.module() is None:
        pytest.skip("the compiled module is not installed")
    monkeypatch.setattr(native, "_STUB", tmp_path / "_native.pyi")
    native._import.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert native.module() is None
    assert "_native.pyi is missing" in caplog.text


def test_a_module_of_other_sources_is_not_used_and_reported_once(outdated, monkeypatch, caplog):
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    with caplog.at_level(logging.WARNING):
        assert native.module() is None
        assert native.module() is None
    (message,) = caplog.messages
    assert f", expected {native.interface()[:12]}" in message
    assert message.endswith("pip install .")
    assert native.cpu_features() == []
    assert native.backend_name() == "numpy"


def test_a_module_of_other_sources_is_an_error_if_the_compiled_backend_is_required(
    outdated, monkeypatch
):
    monkeypatch.setenv("BITNET_BACKEND", "native")
    with pytest.raises(Unsupported, match="interface") as raised:
        native.module()
    assert raised.value.hint.endswith("pip install .")


def test_free_threaded_python_is_refused_with_the_reason(imported_anew, monkeypatch, caplog):
    real = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else real(name)
    )
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    with caplog.at_level(logging.WARNING):
        assert native.module() is None
    assert "free-threaded" in caplog.text
    monkeypatch.setenv("BITNET_BACKEND", "native")
    with pytest.raises(Unsupported, match="free-threaded") as raised:
        native.module()
    assert "ordinary Python" in raised.value.hint


def test_a_sub_interpreter_is_refused_with_the_reason():
    """In both orders: before the main interpreter has the module, and after."""
    script = """
        import sys
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        def run():
            number = interpreters.create()
            failed = interpreters.run_string(
                number,
                "import os; os.environ['BITNET_BACKEND'] = 'native'\\n"
                "from bitnet.base import native\\n"
                "try: native.module()\\n"
                "except native.Unsupported as error: print(error, flush=True)",
            )
            assert failed is None, failed
        run()
        from bitnet.base import native
        native.module()
        run()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    lines = done.stdout.splitlines()  # an error and its hint, twice
    assert lines[:2] == lines[2:]
    assert "this is a sub-interpreter" in lines[0]


@pytest.mark.needs("c++")
def test_kernels_are_not_compiled_with_flags_that_change_results(tmp_path):
    sources = Path(__file__).parents[2] / "native" / "kernels"
    scalar = sources / "isa" / "scalar.cpp"
    for flags, succeeds in (([], True), (["-ffast-math"], False)):
        done = subprocess.run(
            ["c++", "-std=c++17", "-fsyntax-only", "-I", str(sources), *flags, str(scalar)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) is succeeds, done.stderr
        assert ("-ffast-math and /fp:fast change results" in done.stderr) is not succeeds


@pytest.fixture
def without_the_module(monkeypatch, imported_anew):
    """An installation whose compiled module is not there."""
    monkeypatch.setenv("BITNET_BACKEND", "auto")
    monkeypatch.setitem(sys.modules, "bitnet._native", None)
    native._import.cache_clear()


def test_a_module_that_was_not_built_is_reported_with_the_reason(
    without_the_module, monkeypatch, bitnet, caplog
):
    monkeypatch.setattr(native, "compiler_name", lambda: "/usr/bin/c++")
    monkeypatch.setattr(native, "direct_url", lambda: {"url": "file:///clone", "dir_info": {}})
    reason = "it was not built, and this machine has a C++ compiler (/usr/bin/c++)"
    with caplog.at_level(logging.WARNING):
        assert native.module() is None
    assert reason in caplog.text
    assert "without BITNET_PURE_PYTHON: " in caplog.text
    assert reason in bitnet("--version").err
    assert reason in " ".join(bitnet("doctor").out.split())


def test_without_a_compiler_the_hint_asks_for_one(without_the_module, monkeypatch, bitnet):
    monkeypatch.setattr(native, "compiler_name", lambda: None)
    assert "install a C++ compiler" in bitnet("--version").err


# Calls the build backend for a wheel or an editable wheel, into the folder of its argument.
BUILD = "import sys; from scikit_build_core import build; build.build_{}(sys.argv[1])"


@pytest.fixture(scope="module")
def broken_sources(tmp_path_factory):
    """A copy of what is built, in which no C++ file compiles."""
    pytest.importorskip("scikit_build_core")
    source = Path(__file__).parents[2]
    copy = tmp_path_factory.mktemp("source") / "bitnet"
    for folder in ("bitnet", "native", "ci", ".ci"):
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(source / folder, copy / folder, ignore=leave)
    for name in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source / name, copy / name)
    (copy / "tests/native").mkdir(parents=True)
    for driver in (source / "tests/native").glob("*.cpp"):
        shutil.copy(driver, copy / "tests/native")
    for file in (copy / "native").rglob("*.cpp"):
        file.write_text(f"#error does not compile\n{file.read_text(encoding='utf-8')}")
    return copy


def build(sources, folder, kind="wheel", **environment):
    """Build *sources* into the new *folder*; the completed process."""
    folder.mkdir()
    return subprocess.run(
        [sys.executable, "-c", BUILD.format(kind), str(folder)],
        cwd=sources,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.needs("c++")
def test_a_failed_compilation_ends_the_installation_with_a_hint(broken_sources, tmp_path):
    done = build(broken_sources, tmp_path / "wheel")
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert not list((tmp_path / "wheel").iterdir())
    assert "#error does not compile" in text
    assert "The compiled module of bitnet was not built" in text
    assert "set BITNET_PURE_PYTHON=1" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"BITNET_PURE_PYTHON": "1"}, {"CXX": "/nonexistent", "CC": "/nonexistent"}],
    ids=["asked for", "without a compiler"],
)
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_pure_python_wheel_is_built_on_request_or_without_a_compiler(
    broken_sources, tmp_path, kind, environment
):
    done = build(broken_sources, tmp_path / "wheel", kind, **environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheel").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_builds_do_not_share_a_folder():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert "build-dir" not in project, "two installations at once would spoil each other"
