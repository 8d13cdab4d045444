"""Diagnose this machine: versions and newer ones, model, cache folder, settings; no network."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from bitnet import __version__, native
from bitnet.base import locks, settings
from bitnet.base.errors import BitnetError, NoSpace, PermissionDenied, from_os_error
from bitnet.base.findings import Finding
from bitnet.base.invocation import direct_url, reinstall_command
from bitnet.base.progress import human_size
from bitnet.cache.prune import space_hint
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_values import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

SPACE_BYTES = 1_000_000_000  # a small model with its tokenizer, and room to work


def examine(root: Path, model: Path | None = None) -> list[Finding]:
    """Findings about everything that does not need the network.

    Args:
        root: the cache folder.
        model: GGUF file, or folder with safetensors, to include.
    """
    return [*_versions(), check_updates(), _backend(), _model(model), *_cache(root), *_settings()]


def verdict(findings: Iterable[Finding]) -> str:
    """One sentence: the first problem and its remedy."""
    wrong = next((finding for finding in findings if finding.failed), None)
    if wrong is None:
        return "Nothing is wrong."
    first = wrong.text.splitlines()[0].rstrip(".")
    return f"{first}: {wrong.hint}." if wrong.hint else f"{first}."


def markdown(findings: list[Finding]) -> str:
    """The findings as a Markdown block for a bug report."""
    lines = [str(finding) for finding in findings]
    return "\n".join(["### bitnet doctor", "", "```", *lines, verdict(findings), "```"])


def _versions() -> list[Finding]:
    compiler = native.compiler_name()
    return [
        Finding("ok", "bitnet", __version__),
        Finding("ok", "Python", f"{platform.python_version()} at {sys.executable}"),
        _pip(),
        *(Finding("ok", name, _version(name)) for name in ("numpy", "tokenizers", "gguf")),
        Finding("ok", "system", f"{platform.platform()}, {platform.machine()}"),
        Finding("ok", "C++ compiler", compiler)
        if compiler
        else Finding("note", "C++ compiler", "none; only needed to build the compiled module"),
    ]


def _pip() -> Finding:
    """The program that finds packaged models, a dependency that can be uninstalled."""
    if find_spec("pip") is not None:
        return Finding("ok", "pip", _version("pip"))
    hint = f"{sys.executable} -m ensurepip --upgrade   (or: uv pip install pip)"
    return Finding("failed", "pip", "missing; it finds packaged models such as smollm2-135m", hint)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _backend() -> Finding:
    try:
        native.module()
        name = native.backend_name()
    except BitnetError as error:
        return Finding.of("backend", error)
    reason, hint = native.problem()
    if reason:
        return Finding("note", "backend", f"numpy, up to a hundred times slower: {reason}", hint)
    return Finding("ok", "backend", name)


def _model(path: Path | None) -> Finding:
    """Description of the model from its header; ``bitnet verify`` examines the content."""
    if path is None:
        return Finding("skipped", "Model", "none named; a path, or BITNET_GGUF, names one")
    try:
        checkpoint = open_checkpoint(path)
    except BitnetError as error:
        return Finding.of("Model", error)
    weights = checkpoint.weights.values()
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    facts = (
        f"{printable(path.name)}: {'safetensors' if checkpoint.path.is_dir() else 'GGUF'}",
        f"architecture {printable(checkpoint.architecture)}",
        f"{len(weights)} tensors ({', '.join(sorted({one.quant.name for one in weights}))})",
        human_size(sum(one.size_bytes for one in weights)),
        "no tokenizer in it" if tokens is None else f"{len(tokens):,} tokens",
    )
    return Finding("ok", "Model", ", ".join(facts))


def _cache(root: Path) -> list[Finding]:
    """Findings on the cache folder: writable, lockable, enough room; leaves nothing behind."""
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    findings = []
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as folder:
            findings = [Finding("ok", "cache folder", f"{root}, writable"), _locking(Path(folder))]
        free = shutil.disk_usage(existing).free
    except OSError as error:
        problem = from_os_error(error, existing, in_cache=True)
        if not isinstance(problem, NoSpace | PermissionDenied):
            problem = PermissionDenied(problem.message, hint="choose another: BITNET_CACHE_DIR=DIR")
        return [*findings, Finding.of("cache folder", problem)]
    text = f"{human_size(free)} free"
    if free < SPACE_BYTES:
        full = NoSpace(f"only {text} in {root}", hint=space_hint(root, SPACE_BYTES - free))
        return [*findings, Finding.of("disk", full)]
    return [*findings, Finding("ok", "disk", text)]


def _locking(folder: Path) -> Finding:
    path = folder / "probe.lock"
    try:
        with locks.hold(path, timeout_s=0):
            excludes = locks.is_held(path)
    except BitnetError as error:
        return Finding.of("locks", error)
    # Without locks downloads stay correct; simultaneous ones only repeat work.
    if not excludes:
        return Finding("note", "locks", "have no effect on this file system")
    return Finding("ok", "locks", "work")


def _settings() -> list[Finding]:
    findings = []
    for setting in settings.ALL:
        text = settings.as_set(setting)
        if text is None:
            continue
        try:
            setting()
        except BitnetError as error:
            findings.append(Finding.of(setting.names[0], error))
            continue
        findings.append(Finding("ok", setting.names[0], text))
    if not any(finding.failed for finding in findings):
        findings.append(
            Finding("ok", "network", "switched off" if settings.offline() else "allowed")
        )
        findings.append(
            Finding("ok", "access token", "set" if settings.access_token() else "not set")
        )
    return findings


_VERSION = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_SUBJECT = "updates"


def check_updates() -> Finding:
    """Finding on the source of this installation: whether it is known to have a newer version."""
    facts = direct_url()
    address = str(facts.get("url", ""))
    if not address.startswith("file:"):
        known = facts.get("vcs_info", {}).get("commit_id")
        origin = f"commit {known[:12]}" if known else "a package index"
        return Finding(
            "skipped", _SUBJECT, f"installed from {origin}; newer ones are not looked up"
        )
    folder = Path(url2pathname(urlsplit(address).path))
    if not folder.is_dir():
        return Finding(
            "skipped", _SUBJECT, f"installed from {folder}; newer ones are not looked up"
        )
    if facts.get("dir_info", {}).get("editable"):
        return _of_checkout(folder)
    try:
        source = (folder / "bitnet/__init__.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Finding("skipped", _SUBJECT, f"installed from {folder}, which is gone")
    version = match[1] if (match := _VERSION.search(source)) else ""
    if version and version != __version__:
        text = f"{folder} has version {version}, installed is {__version__}"
        return Finding("note", _SUBJECT, text, f"install it again: {reinstall_command()}")
    return Finding("ok", _SUBJECT, f"{folder} has the version that is installed")


def _of_checkout(folder: Path) -> Finding:
    """Finding on a checkout: the last fetch of its branch against its commit.

    The files of git are read rather than git run: the configuration of a checkout names programs.
    """
    git = folder / ".git"
    branch = _line(git / "HEAD").removeprefix("ref: refs/heads/")
    local, remote = (_commit(git, f"refs/{kind}/{branch}") for kind in ("heads", "remotes/origin"))
    if not (local and remote):
        return Finding("skipped", _SUBJECT, f"{folder} has no branch that follows an origin")
    # A commit that was checked out here before is older.
    if remote == local or remote in _line(git / f"logs/refs/heads/{branch}", whole=True):
        return Finding("ok", _SUBJECT, f"{folder} has what was last fetched from origin/{branch}")
    text = f"origin/{branch} has other commits than {folder}, as of the last `git fetch`"
    return Finding("note", _SUBJECT, text, f"git pull; then: {reinstall_command()}")


def _commit(git: Path, ref: str) -> str:
    if loose := _line(git / ref):
        return loose
    packed = re.search(
        rf"^([0-9a-f]+) {re.escape(ref)}$", _line(git / "packed-refs", whole=True), re.M
    )
    return packed[1] if packed else ""


def _line(path: Path, *, whole: bool = False) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if whole else text.strip()
