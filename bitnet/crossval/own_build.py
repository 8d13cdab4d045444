"""Libraries of engines that users build themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base.errors import UsageError
from bitnet.base.settings import bitnet_cpp_dir, expand_home

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ("libllama.so", "libllama.dylib", "llama.dll")
# In a checkout, a CMake build folder, or an installation prefix.
_PLACES = ("", "lib", "bin", "src", "3rdparty/llama.cpp/src")


def bitnet_cpp_library() -> Path | None:
    """The library in the folder named by ``BITNET_CPP_DIR``; ``None`` if it is not set.

    Raises:
        UsageError: the folder is not a build.
    """
    setting = bitnet_cpp_dir()
    if setting is None:
        return None
    folder = expand_home(setting).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"BITNET_CPP_DIR={setting}: there is no such folder",
            hint="name the folder where bitnet.cpp was built",
        )
    for root in (folder, folder / "build"):
        for place in _PLACES:
            for name in _NAMES:
                if (root / place / name).is_file():
                    return root / place / name
    raise UsageError(
        f"BITNET_CPP_DIR={setting}: there is no {_NAMES[0]} in it, so nothing was built there, or "
        "without -DBUILD_SHARED_LIBS=ON",
        hint="name the folder where bitnet.cpp was built",
    )
