"""Claims: files of a store that running commands still need, so that nothing removes them.

A command claims a digest before it looks for the file, and until the file is at its place. A claim
is a shared lock; a removal holds the same lock exclusively. A cache that cannot be written to is
used without claims.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bitnet.base import locks, settings
from bitnet.base.errors import BitnetError, CacheBusy
from bitnet.store.tree import claim_path

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

logger = logging.getLogger(__name__)


class Claims:
    """The claims of one command on files of the store in *store_folder*, released together."""

    def __init__(self, store_folder: Path) -> None:
        self._store_folder = store_folder
        self._stack = ExitStack()
        self._digests: set[str] = set()
        self._changing = threading.Lock()

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add(self, sha256: str) -> None:
        """Claim the file with this digest, which may not exist yet."""
        with self._changing:
            if sha256 in self._digests:
                return
            path = claim_path(self._store_folder, sha256)
            try:
                self._stack.enter_context(
                    locks.hold(path, timeout_s=settings.lock_timeout(), leave=False, shared=True)
                )
            except CacheBusy:
                raise
            except BitnetError as error:
                logger.debug("%s is used without a claim: %s", sha256, error.message)
            self._digests.add(sha256)
