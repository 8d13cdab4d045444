"""Open the tokenizer in a file of any supported format."""

from __future__ import annotations

import gc
import hashlib
import logging
import mmap
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bitnet import __version__
from bitnet.base import settings
from bitnet.base.errors import BitnetError, InvalidFormat, TokenizerNotFound
from bitnet.base.files import open_file
from bitnet.base.invocation import shell_quote
from bitnet.base.options import check_type
from bitnet.formats import mapped_file
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.formats.gguf_header import Array
from bitnet.formats.gguf_names import has_gguf_name, list_models
from bitnet.store import digests, tree
from bitnet.tokenizer.from_files import (
    TOKENIZER_FILES,
    VOCABULARY_FILES,
    spec_from_file,
    spec_from_folder,
    tokenizer_names,
)
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.side_files import SIDE_FILES, TEMPLATE_FOLDER, template_files
from bitnet.tokenizer.spec import BYTE_NAMES, TokenizerSpec, TokenType
from bitnet.tokenizer.tokenizer import Tokenizer
from bitnet.tokenizer.vocabularies import split_merge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from bitnet.formats.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

_SMALL = 1 << 16  # bytes: hashing a smaller file is faster than looking up its hash


def read_files(checkpoint: Checkpoint) -> Inventory:
    """The files of *checkpoint*; of a folder, those that its tokenizer may need have been read."""
    files = checkpoint.inventory
    names = (*TOKENIZER_FILES, "merges.txt", *SIDE_FILES) if checkpoint.path.is_dir() else ()
    for name in names:
        if name in files:
            files.read(name)
    return files


def load_tokenizer(
    path: str | os.PathLike[str],
    *,
    pre: str | None = None,
    verify: bool = False,
    files: Inventory | None = None,
) -> Tokenizer:
    """The tokenizer in *path*, ready to use; see :func:`load_spec`.

    The compiled form is found by a hash of the content of the files. An earlier hash is trusted
    while size, inode, modification time and status time of a file are unchanged; with *verify* it
    is computed again.

    Raises:
        WrongType: *path* is not a path.
        BitnetError: as :func:`load_spec`, whose arguments it takes.
    """
    check_type("path", path, "a path", str, os.PathLike)
    file = _file_of(Path(path))
    key = _content_key(file, pre, verify=verify)
    tokenizer = Tokenizer.from_cache(key, source=_source_of(file)) if key else None
    if tokenizer is None:
        tokenizer = _load_uncached(Path(path), file, pre=pre, files=files, key=key)
    _warn_if_unused(pre, tokenizer.pre, tokenizer.source)
    return tokenizer


def _load_uncached(
    path: Path, file: Path, *, pre: str | None, files: Inventory | None, key: str
) -> Tokenizer:
    """The tokenizer in *path*; *key* is the hash of the content of *file*, empty if it has none.

    Its compiled form is kept under *key* if that is the hash of what was read. It is not if a file
    was written in the meantime, or since *files* was read.
    """
    if key and files is None:
        files = Inventory(file.parent)
    collects = gc.isenabled()
    gc.disable()  # a vocabulary is a million objects without cycles, which would only be walked
    try:
        spec = spec_from_path(path, pre=pre, files=files)
        if key and files is not None and key == _key_of_content(file.name, files, pre):
            spec = replace(spec, fingerprint=key)
        return Tokenizer.from_spec(spec)
    finally:
        if collects:
            gc.enable()


def load_spec(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """Specification of the tokenizer in *path*.

    *path* is a GGUF file, ``tokenizer.json``, ``tekken.json``, ``tokenizer.model`` (SentencePiece
    or tiktoken ranks), ``vocab.json`` next to ``merges.txt``, or a folder with one of these or with
    a single GGUF file. *pre* names a pre-tokenizer, if the file has none or a wrong one: a
    ``tokenizer.json`` and SentencePiece's and BERT's models have their own, and with them *pre* is
    not used, which a warning says. *files* is the inventory of the folder, if the caller has one.
    """
    spec = spec_from_path(path, pre=pre, files=files)
    _warn_if_unused(pre, spec.pre, spec.source)
    return spec


def _warn_if_unused(requested: str | None, used: str, source: str) -> None:
    """Warn if the *requested* pre-tokenizer is not the one that is *used*."""
    if requested and requested != used:
        text = "the pre-tokenizer %s is not used: %s says itself how text is cut into words"
        logger.warning(text, requested, source)


def spec_from_path(
    path: str | os.PathLike[str], *, pre: str | None = None, files: Inventory | None = None
) -> TokenizerSpec:
    """As :func:`load_spec`, without the warning."""
    path = Path(path)
    if not path.exists():
        if has_gguf_name(path):
            raise mapped_file.missing(path)
        raise TokenizerNotFound(
            f'No tokenizer found at "{path}". Expected tokenizer.json, tokenizer.model or a GGUF '
            "file with an embedded tokenizer",
            hint="check the path; LLaMA-3's is fetched by: bitnet tokenizer --source mirror",
        )
    if path.is_dir():
        models = list_models(path)
        if len(models) == 1 and not tokenizer_names(files or Inventory(path)):
            return _spec_in_gguf(models[0], pre)
        return spec_from_folder(path, pre=pre, files=files)
    with open_file(path) as file:
        is_gguf = file.read(len(MAGIC)) == MAGIC
    if is_gguf:
        return _spec_in_gguf(path, pre)
    return spec_from_file(path, pre=pre, files=files)


def extract_tokenizer_from_gguf(
    model: str | os.PathLike[str] | GGUF, *, pre: str | None = None
) -> Tokenizer:
    """The tokenizer embedded in a GGUF file.

    Args:
        model: the file, or the first part of a split one, or either when it is open.
        pre: overrides ``tokenizer.ggml.pre``; see :func:`load_spec`.

    Raises:
        TokenizerNotFound: none is embedded, or its pre-tokenizer is unknown.
        InvalidFormat: the file is damaged.
        Unsupported: the kind of tokenizer is unknown.
    """
    tokenizer = Tokenizer.from_spec(_spec_in_gguf(model, pre))
    _warn_if_unused(pre, tokenizer.pre, tokenizer.source)
    return tokenizer


def extract_tokens(path: str | os.PathLike[str], key: str = "tokenizer.ggml.tokens") -> list[str]:
    """The token texts embedded in a GGUF file, by id, or the array of strings *key*."""
    with _open_gguf(path) as gguf:
        array = array_in(gguf, key, "strings")
        if array is None:
            raise TokenizerNotFound(
                f"Missing {key}: {gguf.path} does not embed it",
                hint=f"bitnet inspect-gguf {shell_quote(gguf.path)}",
            )
        return array.strings()


def extract_merges(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """The merges embedded in a GGUF file, in order of priority; split at the first space only."""
    return [split_merge(line) for line in extract_tokens(path, "tokenizer.ggml.merges")]


def extract_scores(path: str | os.PathLike[str]) -> list[float]:
    """The scores embedded in a GGUF file, by id; empty for vocabularies that have none."""
    with _open_gguf(path) as gguf:
        return [*map(float, array_in(gguf, "tokenizer.ggml.scores", "numbers") or ())]


def array_in(gguf: GGUF, key: str, expected: Literal["strings", "numbers"]) -> Array | None:
    """The array *key* of *gguf*, ``None`` if absent; refused if its items are not *expected*."""
    value = gguf.metadata.get(key)
    if value is None:
        return None
    if isinstance(value, Array) and (value.item_type == "string") == (expected == "strings"):
        return value
    raise InvalidFormat(
        f"{key} should be an array of {expected}, and is {value!r:.60}, {gguf.path}",
        hint=f"fetch the file again; its keys are shown by: bitnet inspect-gguf"
        f" {shell_quote(gguf.path)}",
    )


def detect_architecture_from_gguf(path: str | os.PathLike[str]) -> str:
    """``general.architecture`` of a GGUF file; empty when it has none."""
    with _open_gguf(path) as gguf:
        return gguf.architecture


def mock_tokenizer() -> Tokenizer:
    """A tokenizer whose ids are UTF-8 bytes: for exercises only; no model was trained with it."""
    spec = TokenizerSpec(
        model="spm",
        tokens=list(BYTE_NAMES),
        scores=[0.0] * 256,
        token_types=[int(TokenType.BYTE)] * 256,
        byte_fallback=True,
        source="MOCK (bytes; means nothing to any model)",
        fingerprint="mock",
    )
    return Tokenizer.from_spec(spec)


def _file_of(path: Path) -> Path:
    """The tokenizer file in a folder that has one, or whose first one is ``tokenizer.json``.

    Any other *path* is returned as it is.
    """
    if not path.is_dir():
        return path
    try:
        names = tokenizer_names(Inventory(path))
    except BitnetError:
        return path  # loading reports it
    return path / names[0] if len(names) == 1 or names[:1] == ["tokenizer.json"] else path


def _source_of(file: Path) -> str:
    """Name in messages of the tokenizer in *file*, the same as in its specification."""
    return str(file.with_name(VOCABULARY_FILES[0]) if file.name in VOCABULARY_FILES else file)


def _content_key(path: Path, pre: str | None, *, verify: bool) -> str:
    """Hash of the content of a tokenizer file and its side files.

    It is empty for GGUF files, for folders, and for files that cannot be read.
    """
    if not path.is_file():
        return ""
    files = Inventory(path.parent)
    sha256 = {}
    try:
        for name in _deciding_names(path.name, template_files(files)):
            if name not in files:
                continue
            with open_file(files.path(name)) as file:
                if name == path.name and file.read(len(MAGIC)) in (MAGIC, b""):
                    return ""
                sha256[name] = _digest(files.path(name), file, verify=verify)
        return _key_of(sha256, files, pre)
    except (BitnetError, OSError, ValueError):
        return ""  # unreadable or empty: loading reports it


def _key_of_content(name: str, files: Inventory, pre: str | None) -> str:
    """As :func:`_content_key`, of the content that was read from *files* for the file *name*."""
    was_read = files.names
    templates = [each for each in was_read if each.startswith(f"{TEMPLATE_FOLDER}/")]
    names = [each for each in _deciding_names(name, templates) if each in was_read]
    sha256 = {each: hashlib.sha256(files.read(each)).hexdigest() for each in names}
    return _key_of(sha256, files, pre)


def _key_of(sha256: dict[str, str], files: Inventory, pre: str | None) -> str:
    """Hash of the digests by name, of the pre-tokenizer *pre*, and of this package's version.

    Another version may read the same files differently. Of a ``tokenizer.json`` beside another
    file, only the presence counts: the class that the folder names then reads it instead of that
    file.
    """
    digest = hashlib.sha256(f"{__version__}\n{pre}".encode())
    for name, content in sha256.items():
        digest.update(os.fsencode(name) + f"\n{content}\n".encode())
    if "tokenizer.json" in files:
        digest.update(b"tokenizer.json is there\n")
    return digest.hexdigest()


def _deciding_names(name: str, templates: Sequence[str]) -> list[str]:
    """Names of files whose content decides on the tokenizer in the file *name*, if they exist.

    *templates* are names of chat templates in a folder of their own.
    """
    names = [name, *SIDE_FILES, *templates]
    if name in VOCABULARY_FILES:
        names += VOCABULARY_FILES
    return [*dict.fromkeys(names)]


def _digest(path: Path, file: BinaryIO, *, verify: bool) -> str:
    """SHA-256 of *path*, open as *file*; from an earlier record if the file has not changed."""
    before = os.fstat(file.fileno())
    if before.st_size < _SMALL:
        file.seek(0)
        return hashlib.sha256(file.read()).hexdigest()
    records = digests.VerifiedFiles(tree.tok_digests_folder(settings.cache_dir()))
    record = None if verify else records.find(path)
    if record is not None and record.is_untouched:
        return record.sha256
    settled = before.st_ctime <= time.time() - digests.SETTLED_S
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        digest = hashlib.sha256(content).hexdigest()
    after = path.stat()
    status_fields = ("st_ino", "st_dev", "st_size", "st_mtime_ns", "st_ctime_ns")
    if settled and all(getattr(before, name) == getattr(after, name) for name in status_fields):
        records.remember(path, digest)
    else:
        records.forget(path)
    return digest


def _open_gguf(path: str | os.PathLike[str]) -> GGUF:
    """The file *path*, which a caller in Python named."""
    check_type("path", path, "a path", str, os.PathLike)
    return GGUF.open(path)


def _spec_in_gguf(model: str | os.PathLike[str] | GGUF, pre: str | None) -> TokenizerSpec:
    logger.info("Detected GGUF file, extracting embedded tokenizer")
    gguf = model if isinstance(model, GGUF) else _open_gguf(model)
    if "tokenizer.ggml.tokens" not in gguf.metadata:
        raise TokenizerNotFound(
            f"Missing tokenizer.ggml.tokens: {gguf.path} has no embedded tokenizer",
            hint=f"bitnet explain-tokenizer {shell_quote(gguf.path)}",
        )
    spec = spec_from_gguf(gguf, pre=pre)
    logger.info("Extracted tokenizer from GGUF (%d tokens)", spec.vocab_size)
    return spec
