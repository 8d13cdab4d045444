"""The optional compiled module: why it cannot be used, or which instruction sets it can use here.

Everything works without it, only slower. ``BITNET_BACKEND=native`` makes its absence an error,
``BITNET_BACKEND=reference`` does not use it.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import platform
import re
import shutil
import sysconfig
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base import settings
from bitnet.base.errors import Unsupported
from bitnet.base.invocation import direct_url, reinstall_command

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

_STUB = Path(__file__).parents[1] / "_native.pyi"  # types of the module's interface

_INSTALL = (
    "install a C++ compiler and install this again from its sources (pip install .), "
    "or install a wheel that was made on a machine with one (pip wheel .)"
)


@cache
def _import() -> tuple[ModuleType | None, str, str]:
    """The module, or ``None`` with the reason and a hint."""
    if reason := _interpreter_refused():
        return None, reason, "use the main interpreter of an ordinary Python"
    try:
        extension = import_module("bitnet._native")
    except ModuleNotFoundError as error:  # an installation without a compiler leaves it out
        compiler = compiler_name()
        # dir_info or vcs_info: installed from sources, so it could have been built here.
        if not (compiler and direct_url().keys() & {"dir_info", "vcs_info"}):
            return None, str(error), _INSTALL
        reason = f"it was not built, and this machine has a C++ compiler ({compiler})"
        hint = f"build it, without BITNET_PURE_PYTHON: {reinstall_command()}"
        return None, reason, hint
    except ImportError as error:
        return None, str(error), _INSTALL
    built = str(getattr(extension, "INTERFACE", ""))
    expected = interface()
    if not expected:
        return None, f"{_STUB} is missing: its interface cannot be checked", _INSTALL
    if built != expected:
        reason = (
            f"{extension.__file__} was built for interface {built[:12]}, expected {expected[:12]}"
        )
        return None, reason, "build it again, where its sources are: pip install ."
    atexit.register(_expect_leaks, extension, os.getpid())
    return extension, "", ""


def compiler_name() -> str | None:
    """Path of a C++ compiler of this machine, if there is one."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None)


def problem() -> tuple[str, str]:
    """The reason why the compiled module cannot be used, and a hint; both empty if it can."""
    return ("", "") if settings.backend() == "reference" else _import()[1:]


def interface() -> str:
    """SHA-256 of the stub, which identifies the interface; empty if the stub is missing."""
    try:
        return hashlib.sha256(_STUB.read_bytes()).hexdigest()
    except OSError:
        return ""


def _interpreter_refused() -> str:
    """The reason why the module cannot be used in this interpreter; empty if it can."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it has not been made for free-threaded Python"
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13 and later, and earlier ones
        with suppress(ImportError):
            interpreters = import_module(name)
            if interpreters.get_current() == interpreters.get_main():
                break
            return "its threads and locks are those of one interpreter, this is a sub-interpreter"
    return ""


def _expect_leaks(module: ModuleType, process: int) -> None:
    """Do not warn at exit about objects of the module that unfinished threads still refer to.

    Unfinished are daemon threads and, in a forked child, all threads of its parent. *process* is
    the one that imported the module.
    """
    if os.getpid() != process or any(thread.daemon for thread in threading.enumerate()):
        module.set_leak_warnings(False)


@cache
def _warn_once(reason: str, hint: str) -> None:
    logger.warning(
        "the compiled module cannot be loaded, using NumPy: %s. A small model such as SmolLM2-135M "
        "then writes about 5 tokens a second instead of 25 to 100. To get it: %s",
        reason,
        hint,
    )


def module() -> ModuleType | None:
    """The extension module, or ``None`` if it is missing, of another interface, or switched off."""
    backend = settings.backend()
    if backend == "reference":
        return None
    extension, reason, hint = _import()
    if extension is None:
        if backend == "native":
            raise Unsupported(
                f"BITNET_BACKEND=native, but the compiled module cannot be loaded: {reason}",
                hint=hint,
            )
        _warn_once(reason, hint)
    return extension


def cpu_features() -> list[str]:
    """Instruction sets that the compiled module can use on this CPU; empty without the module."""
    compiled = _import()[0]
    return list(compiled.kernel_levels()[1:]) if compiled is not None else []  # [0] is scalar


def processor() -> str:
    """Name of the processor, or of its architecture if the system does not report the name."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if match := re.search(r"(?m)^model name\s*:\s*(.+)$", text):
            return match[1].strip()
    return platform.processor() or platform.machine()


def backend_name() -> str:
    """``native (avx2, avx512_vnni)``, ``native (scalar)`` or ``numpy``."""
    if settings.backend() == "reference" or _import()[0] is None:
        return "numpy"
    return f"native ({', '.join(cpu_features()) or 'scalar'})"
