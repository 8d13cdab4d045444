"""The store: every file once, under its SHA-256; files of projects are links to it.

    <cache>/store/sha256/ab/ab12...          content; read-only, never changed
    <cache>/store/verified/<name>.json       digest found at a path, and the file's state then
    <cache>/store/names/<name>.json          record of a file in a repository, or at an address
    <cache>/store/partial/<digest>/model.gguf.partial         partial download, resumable
    <cache>/store/partial/<digest>/model.gguf.partial.json    its version and finished parts
    <cache>/store/partial/<digest>.lock                       held by the process that fetches it
    <cache>/store/partial/<digest>.in-use.lock                held by those that need it
    <cache>/store/partial/placing-<name>.json                 files that are being placed now
    <cache>/store/partial/<digest>.superseded                 a version that its name left

While size, modification time and inode of a file are unchanged, it is not read again
(docs/adr/0007). Deleting anything here costs only time.
"""

from __future__ import annotations

from bitnet.store.blobs import Store
from bitnet.store.partial import Partial, Version
from bitnet.store.records import Blob, Pin

__all__ = ["Blob", "Partial", "Pin", "Store", "Version"]
