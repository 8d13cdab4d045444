"""The optional compiled module: whether it is there, and what this processor offers.

Everything works without it; it is only faster. ``BITNET_BACKEND=native`` turns its absence into
an error, ``BITNET_BACKEND=reference`` leaves it unused.
"""

from __future__ import annotations

import logging
import platform
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import settings
from bitnet.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["backend_name", "cpu_features", "module", "processor"]

logger = logging.getLogger(__name__)

INTERFACE = 2  # what C++ and Python take and give each other; CMakeLists.txt reads this line

_BACKENDS = ("auto", "native", "reference")
_INSTALL = "install a C++ compiler, then: pip install --force-reinstall bitnet-xtask"


@cache
def _import() -> tuple[ModuleType | None, str, str]:
    """The module; else ``None``, why there is none to use, and what helps."""
    try:
        found = import_module("bitnet._native")
    except ImportError as error:
        return None, str(error), _INSTALL
    built = getattr(found, "INTERFACE", 0)
    if built != INTERFACE:
        reason = f"{found.__file__} was built for interface {built}, expected {INTERFACE}"
        return None, reason, "build it again, where its sources are: inv native"
    return found, "", ""


@cache
def _warn_once(reason: str, hint: str) -> None:
    logger.warning(
        "the compiled module cannot be loaded, using NumPy (slower): %s. To get it: %s",
        reason,
        hint,
    )


def module() -> ModuleType | None:
    """The extension module, or ``None`` where it is not installed or not wanted.

    One that was built from sources of another interface is as good as none.

    Raises:
        Unsupported: ``BITNET_BACKEND=native`` and there is no such module.
        UsageError: ``BITNET_BACKEND`` names no backend.
    """
    wanted = settings.backend()
    if wanted not in _BACKENDS:
        raise UsageError(
            f"BITNET_BACKEND is {wanted!r}: expected one of {', '.join(_BACKENDS)}",
            hint="unset BITNET_BACKEND",
        )
    if wanted == "reference":
        return None
    found, reason, hint = _import()
    if found is None:
        if wanted == "native":
            raise Unsupported(
                f"BITNET_BACKEND=native, but the compiled module cannot be loaded: {reason}",
                hint=hint,
            )
        _warn_once(reason, hint)
    return found


def cpu_features() -> list[str]:
    """Names of the instruction sets the compiled module can use here; empty without it."""
    found = _import()[0]
    return list(found.cpu_features()) if found is not None else []


def processor() -> str:
    """Name of the processor; its family where the system says no more."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def backend_name() -> str:
    """``native (avx2, avx512_vnni)``, ``native (scalar)`` or ``numpy``."""
    if settings.backend() == "reference" or _import()[0] is None:
        return "numpy"
    return f"native ({', '.join(cpu_features()) or 'scalar'})"
