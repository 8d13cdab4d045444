"""The cache folder: list, verify and remove its files.

:mod:`bitnet.store.tree` draws the folder. There is no index: any file or folder in it may be
deleted at any time without losing anything but speed. Files outside the folders of the cache are
never changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitnet.base.options import option


@dataclass(frozen=True)
class Selection:
    """Entries that ``cache clean`` removes; without options, all but the models."""

    older_than: str = option(
        "", "only what was not used for this long: 30d, 12h, 2w", metavar="AGE", needs_text=True
    )
    keep: int = option(0, "never remove the N most recently used files", metavar="N")
    key: str = option(
        "", "only this entry, as `cache list` names it", metavar="KEY", needs_text=True
    )
    tokenizers_only: bool = option(False, "remove tokenizers only")
    models: bool = option(False, "also remove downloaded models")
