"""Local language models that just work, and prove it.

Public names load on first use, so that ``import bitnet`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS: dict[str, str] = {
    "BitnetError": "bitnet.errors",
}

__all__ = ["BitnetError", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'bitnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
