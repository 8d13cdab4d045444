"""Is this machine fit to run: versions, processor, model, cache folder, settings; no network."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bitnet
from bitnet import locks, native, settings
from bitnet.errors import BitnetError, NoSpace, PermissionDenied, from_os_error
from bitnet.formats.checkpoint import open_checkpoint
from bitnet.formats.gguf_values import printable
from bitnet.progress import human_size

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Finding", "examine", "markdown", "verdict"]

SPACE_BYTES = 1_000_000_000  # a small model with its tokenizer, and room to work


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        text: what was found; never holds a secret.
        problem: what is wrong with it and what helps, ``None`` when it is fine.
        duration_s: how long looking took, where that says something.
    """

    name: str
    text: str
    problem: BitnetError | None = None
    duration_s: float | None = None

    def __str__(self) -> str:
        mark = "✓" if self.problem is None else "✗"
        took = "" if self.duration_s is None else f" ({self.duration_s * 1000:.0f} ms)"
        return f"{mark} {self.name}: {self.text}{took}"

    def facts(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {
            "name": self.name,
            "text": self.text,
            "ok": self.problem is None,
            "hint": self.problem.hint if self.problem is not None else None,
            "duration_s": self.duration_s,
        }


def examine(root: Path, model: Path | None = None) -> list[Finding]:
    """Everything that can be said without the network.

    Args:
        root: the cache folder.
        model: GGUF file, or folder with safetensors, that the report is about.
    """
    return [*_versions(), _backend(), _model(model), *_cache(root), *_settings()]


def verdict(findings: Iterable[Finding]) -> str:
    """One sentence: what is wrong first, and what to do about it."""
    problem = next((f.problem for f in findings if f.problem is not None), None)
    if problem is None:
        return "Nothing is wrong."
    first = problem.message.splitlines()[0].rstrip(".")
    return f"{first}: {problem.hint}." if problem.hint else f"{first}."


def markdown(findings: list[Finding]) -> str:
    """The findings as a block to paste into a bug report."""
    lines = [str(finding) for finding in findings]
    return "\n".join(["### bitnet doctor", "", "```", *lines, verdict(findings), "```"])


def _versions() -> list[Finding]:
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None)
    return [
        Finding("bitnet", bitnet.__version__),
        Finding("Python", f"{platform.python_version()} at {sys.executable}"),
        *(Finding(name, _version(name)) for name in ("pip", "numpy", "tokenizers", "gguf")),
        Finding("system", f"{platform.platform()}, {platform.machine()}"),
        Finding("C++ compiler", compiler or "none; only needed to build the compiled module"),
    ]


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
        return Finding("backend", "cannot be used", error)
    return Finding("backend", name if name != "numpy" else "numpy (works, and is slower)")


def _model(path: Path | None) -> Finding:
    """What the file is, as its header says; ``bitnet verify`` looks inside."""
    if path is None:
        return Finding("Model", "none named; --model PATH or BITNET_GGUF names one")
    try:
        checkpoint = open_checkpoint(path)
    except BitnetError as error:
        return Finding("Model", f"{printable(path.name)} cannot be read", error)
    weights = checkpoint.weights.values()
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    facts = (
        f"{printable(path.name)}: {'safetensors' if checkpoint.path.is_dir() else 'GGUF'}",
        f"architecture {printable(checkpoint.architecture)}",
        f"{len(weights)} tensors ({', '.join(sorted({one.quant.name for one in weights}))})",
        human_size(sum(one.data.nbytes for one in weights)),
        "no tokenizer in it" if tokens is None else f"{len(tokens):,} tokens",
    )
    return Finding("Model", ", ".join(facts))


def _cache(root: Path) -> list[Finding]:
    """Whether the cache folder can be written and locked, and has room; leaves nothing behind."""
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    found = []
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing) as folder:
            found = [Finding("cache folder", f"{root}, writable"), _locking(Path(folder))]
        free = shutil.disk_usage(existing).free
    except OSError as error:
        problem = from_os_error(error, existing)
        if not isinstance(problem, NoSpace | PermissionDenied):
            problem = PermissionDenied(problem.message, hint="choose another: --cache-dir DIR")
        return [*found, Finding("cache folder", f"{root} cannot be used", problem)]
    text = f"{human_size(free)} free"
    full = NoSpace(f"only {text} in {root}", hint="bitnet clean-cache")
    return [*found, Finding("disk", text, full if free < SPACE_BYTES else None)]


def _locking(folder: Path) -> Finding:
    path = folder / "probe.lock"
    try:
        with locks.hold(path, timeout_s=0):
            excludes = locks.is_held(path)
    except BitnetError as error:
        return Finding("locks", "do not work", error)
    # Without locks downloads stay right, several at once only do the work twice.
    return Finding("locks", "work" if excludes else "have no effect on this file system")


def _settings() -> list[Finding]:
    found = []
    for setting in settings.ALL:
        text = settings.as_set(setting)
        if text is None:
            continue
        try:
            setting()
        except BitnetError as error:
            found.append(Finding(setting.names[0], text, error))
            continue
        found.append(Finding(setting.names[0], text))
    if not any(finding.problem for finding in found):
        found.append(Finding("network", "switched off" if settings.offline() else "allowed"))
        found.append(Finding("access token", "set" if settings.hf_token() else "not set"))
    return found
