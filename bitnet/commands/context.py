"""Options of every command that fetches: download, cache, output.

:meth:`Context.model` is where every command that takes a model finds out which file it means.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.base.errors import NotFound
from bitnet.base.options import CacheOptions
from bitnet.base.tables import show
from bitnet.commands.declare import Output
from bitnet.hub.options import FetchOptions

if TYPE_CHECKING:
    from bitnet.hub.candidates import RepoModel
    from bitnet.hub.project import Project

_SUFFIXES = (".gguf", ".safetensors", ".json", ".model")


@dataclass(frozen=True)
class Context:
    """The options that commands hand on unchanged; its parts are groups of options."""

    fetch: FetchOptions = field(default_factory=FetchOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    output: Output = field(default_factory=Output)

    def project(
        self,
        folder: Path = Path(),
        *,
        force: bool = False,
        update: bool = False,
        verify: bool = False,
    ) -> Project:
        """The working folder *folder* with this cache and these ways to fetch."""
        from bitnet.hub.limits import Limits
        from bitnet.hub.project import Project

        output, fetch = self.output.progress, self.fetch
        limits = Limits(rate=fetch.rate, connections=fetch.at_once)
        return Project(folder, self.cache.root, fetch, output, force, update, verify, limits=limits)

    def model(self, named: str | Path, *, fetch: bool = False) -> Path:
        """The file or folder that MODEL means, everywhere.

        :mod:`bitnet.hub.ref` says what can be written. What has a name is kept in the cache, and
        nothing is written into the working folder. With *fetch* it may be fetched if it is not
        here.

        Raises:
            NotFound: it is not here and may not be fetched.
            Offline: it is not here, may be fetched, and the network is switched off.
            UsageError: it fits several models of a repository; lists them.
            BitnetError: it cannot be fetched.
        """
        path = Path(named)
        from bitnet.formats.model_files import only_model

        with suppress(OSError, ValueError):  # at once, without what opens connections
            if path.exists() and path.suffix != ".whl":
                return only_model(path)
        from bitnet.hub import named as by_name
        from bitnet.hub.ref import names, parse
        from bitnet.sheet.plan import fits_in_memory

        ref = parse(str(named))
        if ref.path is not None and not ref.path.exists():
            if _is_path(ref.text):
                return ref.path
            near = get_close_matches(ref.text, names(), n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise NotFound(
                f"no such file or folder, and no model of that name: {ref.text}",
                hint=f"{meant}`bitnet models` lists the names",
            )
        return by_name.provide(
            ref,
            self.project(),
            fetch=fetch,
            announce=lambda line: show(line, stream=sys.stderr),
            fits=fits_in_memory,
            pick=ask,
        )


def _is_path(text: str) -> bool:
    """True if *text* can only be a path: it has a separator or the suffix of a file."""
    return "/" in text or "\\" in text or Path(text).suffix.lower() in _SUFFIXES


def ask(repo: str, found: list[RepoModel]) -> RepoModel | None:
    """The one of *found* that a person at a terminal chooses; ``None`` without one."""
    from bitnet.sheet.plan import fits_in_memory

    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    print(f"{repo} has {len(found)} models:", file=sys.stderr)
    for number, one in enumerate(found, 1):
        print(f"{number:>3}{one.line(fits_in_memory(one.size))}", file=sys.stderr)
    print("which one? (number, or nothing to leave) ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(found):
        return found[int(answer) - 1]
    return None
