"""The repository that a model names as its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def text_of(metadata: Mapping[str, Any], key: str) -> str:
    """The text *key* of *metadata*; empty if it is absent or something else."""
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def repository_of(metadata: Mapping[str, Any]) -> str:
    """``org/name`` from the keys about a model's origin; empty if there is none."""
    for key in ("general.source.huggingface.repository", "general.source.url", "general.repo_url"):
        path = text_of(metadata, key)
        is_address = "://" in path
        if is_address:
            path = path.partition("://")[2].partition("/")[2]  # without the host
            path = re.split("[?#]", path)[0]
        parts = path.strip("/").split("/")
        if len(parts) >= 2:
            # An address may go on after the name (org/name/tree/main). A path without :// may begin
            # with a host.
            return "/".join(parts[:2] if is_address else parts[-2:])
    return ""
