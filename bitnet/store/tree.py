"""The tree of a cache on disk, and the functions that make its paths.

    <cache>/CACHEDIR.TAG                                  marks the folder as a cache of bitnet

    <cache>/store/sha256/ab/ab12...                       a file; read-only, never changed
    <cache>/store/verified/<name>.json                    digest found at a path, and its state then
    <cache>/store/names/<name>.json                       the pin of a file, by its name
    <cache>/store/partial/<key>/model.gguf.partial        partial download, resumable
    <cache>/store/partial/<key>/model.gguf.partial.json   its version and finished parts
    <cache>/store/partial/<key>.lock                      held by the process that fetches it
    <cache>/store/partial/<digest>.in-use.lock            held together by those that need the file
    <cache>/store/partial/<digest>.superseded             mark of a file whose name means another
    <cache>/store/partial/placing-<name>.json             files that are being placed, and a lock
    <cache>/store/partial/.pip-<host>-<digest>-<random>/  temporary files of pip, while it runs

    <cache>/tokenizers/<key>/tokenizer.json               a link into the store; key: llama3-128k
    <cache>/tokenizers/compiled/<sha256>.tok              memory-mapped form, made again if missing
    <cache>/tokenizers/compiled/digests/                  digests of tokenizer files
    <cache>/models/NAME/FILE                              links into the store, by a packaged model,
    <cache>/models/hf/ORG/REPO@REVISION/FILE              by a repository,
    <cache>/models/url-HASH/FILE                          and by an address
    <cache>/exact-heads/<hash of the head>.copy           copy of an output head, also made again
    <cache>/prompts/<model>/<digest of ids>.kv            keys, values and states behind a prompt

In the store, a key is the digest of a file, or of the version of one whose digest is not known.
Deleting anything here costs only time. Functions take the folder of the store, ``<cache>/store``,
unless they say otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base.files import real_path

if TYPE_CHECKING:
    from pathlib import Path

AREAS = ("tokenizers", "models", "store", "exact-heads", "prompts")  # folders of a cache
SUPERSEDED = ".superseded"
PLACING = "placing-"  # how the names of notes of files that are being placed begin
COMPILED = "compiled"  # folder beside the tokenizers, not a key


def is_in_area(cache: Path, path: Path) -> bool:
    """True if *path* is in a folder of *cache*, also if its folder is a link to it.

    Letter case does not count: on some systems two spellings are one folder.
    """
    root = [part.casefold() for part in real_path(cache).parts]
    parts = [part.casefold() for part in (*real_path(path.parent).parts, path.name)]
    inner = parts[len(root) :]
    return parts[: len(root)] == root and bool(inner) and inner[0] in AREAS


def store_folder(cache: Path) -> Path:
    """Folder of the store in *cache*."""
    return cache / "store"


def blob_folder(store: Path) -> Path:
    """Folder of the files by digest."""
    return store / "sha256"


def blob_path(store: Path, sha256: str) -> Path:
    """Path of the file with this digest."""
    return blob_folder(store) / sha256[:2] / sha256


def digests_folder(store: Path) -> Path:
    """Folder of the digests that were computed, by path."""
    return store / "verified"


def names_folder(store: Path) -> Path:
    """Folder of the pins."""
    return store / "names"


def partial_folder(store: Path) -> Path:
    """Folder of partial files, and of locks, notes and marks."""
    return store / "partial"


def transfer_folder(store: Path, key: str) -> Path:
    """Folder of the partial files of *key*."""
    return partial_folder(store) / key


def transfer_lock(store: Path, key: str) -> Path:
    """Lock of the process that fetches *key*."""
    return partial_folder(store) / f"{key}.lock"


def claim_path(store: Path, sha256: str) -> Path:
    """Lock of the commands that need the file with this digest."""
    return partial_folder(store) / f"{sha256}.in-use.lock"


def mark_path(store: Path, sha256: str) -> Path:
    """Mark of a file whose name means another file by now."""
    return partial_folder(store) / f"{sha256}{SUPERSEDED}"


def placement_note(store: Path, name: str) -> Path:
    """Note of files that are being placed; its lock has the suffix ``.lock``."""
    return partial_folder(store) / f"{PLACING}{name}.json"


def tokenizer_path(cache: Path, key: str, file: str) -> Path:
    """Place of the tokenizer *file* in *cache*."""
    return cache / "tokenizers" / key / file


def tok_path(cache: Path, fingerprint: str) -> Path:
    """Path in *cache* of the memory-mapped form of the tokenizer with this fingerprint."""
    return cache / "tokenizers" / COMPILED / f"{fingerprint}.tok"


def tok_digests_folder(cache: Path) -> Path:
    """Folder in *cache* of the digests of tokenizer files, by path."""
    return cache / "tokenizers" / COMPILED / "digests"


def exact_head_path(cache: Path, fingerprint: str) -> Path:
    """Path in *cache* of the copy of the output head with this fingerprint."""
    return cache / "exact-heads" / f"{fingerprint}.copy"


def models_folder(cache: Path) -> Path:
    """Folder in *cache* with the links of models."""
    return cache / "models"


def prompts_folder(cache: Path) -> Path:
    """Folder in *cache* with the states behind prompts."""
    return cache / "prompts"
