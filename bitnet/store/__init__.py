"""The store: every file once, under its SHA-256; files of projects are links to it.

:mod:`bitnet.store.tree` draws the folders and makes every path.

While size, modification time and inode of a file are unchanged, it is not read again
(docs/adr/0007). Deleting anything here costs only time.
"""

from __future__ import annotations

from bitnet.store.blobs import Store
from bitnet.store.partial import Partial, Version
from bitnet.store.records import Blob, Pin

__all__ = ["Blob", "Partial", "Pin", "Store", "Version"]
