"""What every command that fetches takes: how to fetch, which cache, what to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.hub.options import FetchOptions
from bitnet.options import CacheOptions
from bitnet.tasks.declare import Output

if TYPE_CHECKING:
    from bitnet.hub.project import Project

__all__ = ["Context"]


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
        """The working folder *folder* with this cache and these ways to fetch.

        Args:
            folder: holds the lock file.
            force: fetch again what is already there.
            update: accept files that differ from the lock file.
            verify: read files again instead of trusting what was found before.
        """
        from bitnet.hub.project import Project

        output = self.output.progress
        return Project(folder, self.cache.root, self.fetch, output, force, update, verify)
