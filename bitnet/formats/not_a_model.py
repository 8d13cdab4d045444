"""Errors for paths that are not models: one text, exit code and hint for every command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base.errors import InvalidFormat, NotFound
from bitnet.base.invocation import word

if TYPE_CHECKING:
    from pathlib import Path

_FETCH = "check the path, or fetch a model: bitnet download-model smollm2-135m"
_KINDS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint", "convert it to GGUF first"),
    (b"<", "an HTML or XML page", "fetch it again: the server answered with a page"),
    (b"lmgg", "the format before GGUF", "convert it with llama.cpp of 2023 to 2024"),
    (b"fmgg", "the format before GGUF", "convert it with llama.cpp of 2023 to 2024"),
    (b"tjgg", "the format before GGUF", "convert it with llama.cpp of 2023 to 2024"),
)


def missing(path: Path) -> NotFound:
    """Error: *path* does not exist."""
    return NotFound(f"no such file or folder: {path}", hint=_FETCH)


def empty(label: str) -> InvalidFormat:
    """Error: the file *label* is empty."""
    return InvalidFormat(f"{label} is empty", hint="fetch the file again")


def folder_without_model(path: Path) -> NotFound:
    """Error: *path* is a folder without a single model to choose."""
    files = sorted(file for file in path.glob("*.gguf") if file.is_file())
    if not files:
        return NotFound(
            f"no model in {path}: neither *.gguf nor *.safetensors with config.json", hint=_FETCH
        )
    return NotFound(
        f"{path} is a folder with {len(files)} GGUF file{'s' * (len(files) != 1)}, "
        "expected a GGUF file, or a folder with config.json and *.safetensors",
        hint=f"name the file itself: {word(files[0])}",
    )


def kind_from_head(head: bytes) -> tuple[str, str] | None:
    """Kind of a file that begins with *head*, and a hint; ``None`` if unknown."""
    start = head.lstrip()
    return next(((what, hint) for magic, what, hint in _KINDS if start.startswith(magic)), None)


def other_kind(head: bytes, label: str) -> InvalidFormat:
    """Error: the file *label*, which begins with *head*, is something else; names it if known."""
    neither = f"{label} is neither a GGUF file nor safetensors"
    if known := kind_from_head(head):
        what, hint = known
        return InvalidFormat(f"{neither} but {what}", hint=hint)
    return InvalidFormat(
        f"{neither}: it starts with {head[:4]!r}",
        hint="fetch it again, or pass a .gguf file or a folder with config.json and *.safetensors",
    )
