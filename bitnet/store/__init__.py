"""The store: every file once, under its SHA-256; what projects have are links to it.

    <cache>/store/sha256/ab/ab12...          the bytes; read-only, never changed
    <cache>/store/verified/<name>.json       which digest was found at a path, and its state then
    <cache>/store/names/<name>.json          which digest a file of a repository, or an address, had
    <cache>/store/partial/<digest>/model.gguf.partial         on its way, resumable
    <cache>/store/partial/<digest>/model.gguf.partial.json    which version, which parts
    <cache>/store/partial/<digest>.lock                       who fetches it

A digest is computed once. As long as size, time of change and inode of a file stay what they were
then, it is not read again. A file of the store that was changed all the same, through a hard link
in a project, is noticed by them, read, and removed. Deleting anything here costs only time.
"""

from __future__ import annotations

from bitnet.store.blobs import Blob, Store
from bitnet.store.names import Name, model_key
from bitnet.store.partial import Partial, Version

__all__ = ["Blob", "Name", "Partial", "Store", "Version", "model_key"]
