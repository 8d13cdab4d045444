"""Attest a model by its content, compare with an attestation, and recognise known models.

    attestation = attest(open_checkpoint("model.gguf"))
    recognition = recognise(open_checkpoint("unknown.gguf"))    # None: not a known model
    recognition.differences                                     # empty: it is that model

An attestation is the content of a model as a tree of SHA-256 digests:

    digest                          of the sections
    |- tensors                      of name -> digest of name, shape, encoding and bytes
    |- metadata                     of key -> digest of key and value
    |- tokenizer                    of key -> digest of key and value or list
    `- template                     of key -> digest of key and value

docs/reference/attestations.md has the canonical form, ``attestation.schema.json`` the file's.
Recognition does not need a name: it compares content. A file with a known model's content or name
that differs anywhere is damaged (or modified on purpose, and can be attested as such).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bitnet.base.errors import BitnetError, InvalidFormat, NotFound, Unsupported, from_os_error
from bitnet.base.files import write_text
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import part_number
from bitnet.tokenizer.load import read_files
from bitnet.verify.content import Grid, content_of, section_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer.tokenizer import Tokenizer
    from bitnet.verify.content import Content, StoredTensor

logger = logging.getLogger(__name__)

SCHEMA = 1
SECTIONS = ("metadata", "template", "tensors", "tokenizer")
_THREADS = 8
_SHOWN = 5
HINT = (
    "fetch it again; a change of yours: bitnet attest F --output FILE, "
    "then bitnet verify F --against FILE"
)


class Difference(NamedTuple):
    """One deviation from an attestation."""

    section: str  # ``tensors``, ``metadata``, ``tokenizer`` or ``template``
    name: str  # of the tensor or key
    text: str  # description with the name; for a list, with the token or merge


@dataclass(frozen=True)
class TensorDigest:
    """One tensor: SHA-256 over name, shape, encoding and bytes."""

    shape: tuple[int, ...]
    encoding: str
    sha256: str


@dataclass(frozen=True)
class Attestation:
    """Digests of a model's content."""

    name: str  # of the model; not part of the digest
    architecture: str  # not part of the digest either
    tensors: Mapping[str, TensorDigest]  # by name
    keys: Mapping[str, str]  # SHA-256 of each key with its value or list
    # digests that locate items of long lists; not part of the digest
    lists: Mapping[str, Grid] = field(default_factory=dict)
    # per backend the best token and its log-probability at each of the ids in ``ids``; not part of
    # the digest
    trace: Mapping[str, Any] = field(default_factory=dict)
    # names under which the model is published; no other content may have them
    files: tuple[str, ...] = ()
    # SHA-256 of each file of the folder that no reader opens; not part of the digest
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def sections(self) -> dict[str, str]:
        """SHA-256 of each section."""
        found: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
        found["tensors"] = {name: one.sha256 for name, one in self.tensors.items()}
        for key, digest in self.keys.items():
            found[section_of(key)][key] = digest
        return {name: _sha256(_canonical(leaves)) for name, leaves in found.items()}

    @property
    def digest(self) -> str:
        """SHA-256 of the whole model."""
        return _sha256(_canonical({"schema": SCHEMA, "sections": self.sections}))

    def facts(self) -> dict[str, Any]:
        """The attestation as JSON values."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "architecture": self.architecture,
            "files": list(self.files),
            "digest": self.digest,
            "sections": self.sections,
            "tensors": {
                name: [one.encoding, list(one.shape), one.sha256]
                for name, one in sorted(self.tensors.items())
            },
            "keys": dict(sorted(self.keys.items())),
            "lists": {key: grid.facts() for key, grid in sorted(self.lists.items())},
            "trace": dict(self.trace),
            "unread": dict(sorted(self.unread.items())),
        }

    def text(self) -> str:
        """Text of the attestation's file: a line per tensor and key."""
        parts = []
        for field_, value in self.facts().items():
            if isinstance(value, dict) and value:
                lines = [f"  {_plain(key)}: {_plain(entry)}" for key, entry in value.items()]
                parts.append(f" {_plain(field_)}: {{\n" + ",\n".join(lines) + "\n }")
            else:
                parts.append(f" {_plain(field_)}: {_plain(value)}")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def write(self, path: Path) -> None:
        """Write it to *path* atomically."""
        write_text(path, self.text())

    @classmethod
    def read(cls, path: Path) -> Attestation:
        """Attestation in the file *path*."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise from_os_error(error, path) from error
        return cls.parse(text, path.name)

    @classmethod
    def parse(cls, text: bytes | str, label: str) -> Attestation:
        """Attestation in *text*; *label* is its name in errors."""
        hint = "make it again: bitnet attest ORIGINAL --output FILE"
        try:
            facts = json.loads(text)
            schema = facts["schema"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidFormat(f"{label} is not an attestation", hint=hint) from error
        if schema != SCHEMA:
            raise Unsupported(f"{label} has schema {schema!r}, this version reads {SCHEMA}")
        try:
            attestation = _from_facts(facts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidFormat(f"{label} is not a complete attestation", hint=hint) from error
        if attestation.sections != facts.get("sections") or attestation.digest != facts.get(
            "digest"
        ):
            raise InvalidFormat(f"{label} has been changed: its digests do not fit", hint=hint)
        return attestation


def digest_content(content: Content) -> tuple[dict[str, TensorDigest], dict[str, str]]:
    """Digests of all tensors and of all keys of *content*; several at a time."""

    def of_tensor(entry: tuple[str, StoredTensor]) -> tuple[str, TensorDigest]:
        name, tensor = entry
        digest = hashlib.sha256(_canonical([name, tensor.encoding, list(tensor.shape)]))
        digest.update(tensor.data)
        return name, TensorDigest(tensor.shape, tensor.encoding, digest.hexdigest())

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        tensors = dict(pool.map(of_tensor, content.tensors.items()))
    keys = {key: _sha256(_canonical([key, value])) for key, value in content.values.items()}
    for key, items in content.lists.items():
        digest = hashlib.sha256(_canonical([key, items.kind, len(items)]))
        digest.update(items.raw)
        keys[key] = digest.hexdigest()
    return tensors, keys


def beside(model: Path) -> Path:
    """Path of the attestation that a download writes for the file or folder *model*."""
    return model / "attestation.json" if model.is_dir() else Path(f"{model}.attestation.json")


def differences(attestation: Attestation, content: Content) -> list[Difference]:
    """Differences between *content* and *attestation*; empty if there are none."""
    tensors, keys = digest_content(content)
    return [
        *_tensor_differences(attestation.tensors, tensors),
        *_key_differences(attestation, keys, content),
    ]


def _tensor_differences(
    attested: Mapping[str, TensorDigest], actual: Mapping[str, TensorDigest]
) -> list[Difference]:
    problems: list[tuple[str, str]] = []
    for name, was in attested.items():
        now = actual.get(name)
        if now is None:
            problems.append((name, "is missing"))
        elif now.shape != was.shape:
            problems.append((name, f"has shape {now.shape}, attested is {was.shape}"))
        elif now.encoding != was.encoding:
            problems.append((name, f"is in {now.encoding}, attested is {was.encoding}"))
        elif now.sha256 != was.sha256:
            problems.append((name, "has other bytes than attested"))
    problems += [(name, "is not attested") for name in actual if name not in attested]
    return [Difference("tensors", name, f"tensor {name} {text}") for name, text in problems]


def _key_differences(
    attestation: Attestation, actual: Mapping[str, str], content: Content
) -> list[Difference]:
    problems: list[tuple[str, str]] = []
    for key, digest in attestation.keys.items():
        if actual.get(key) == digest:
            continue
        if key not in actual:
            problems.append((key, f"key {key} is missing"))
        elif key in content.lists and key in attestation.lists:
            problems.append((key, f"{key}: {attestation.lists[key].locate(content.lists[key])}"))
        else:
            now = _short(content.values.get(key, "another list"))
            problems.append((key, f"key {key} is {now}, attested is another value"))
    problems += [
        (key, f"key {key} is not attested") for key in actual if key not in attestation.keys
    ]
    return [Difference(section_of(key), key, text) for key, text in problems]


def _from_facts(facts: Mapping[str, Any]) -> Attestation:
    tensors = {
        str(name): TensorDigest(tuple(map(int, shape)), str(encoding), _hexadecimal(digest))
        for name, (encoding, shape, digest) in facts["tensors"].items()
    }
    keys = {str(key): _hexadecimal(digest) for key, digest in facts["keys"].items()}
    if not tensors and not keys:
        raise ValueError("an attestation of nothing")
    lists = {str(key): Grid.parse(**grid) for key, grid in facts["lists"].items()}
    trace = _trace(facts["trace"])
    files = tuple(map(str, facts["files"]))
    name, architecture = str(facts["name"]), str(facts["architecture"])
    unread = {str(file): _hexadecimal(digest) for file, digest in facts["unread"].items()}
    return Attestation(name, architecture, tensors, keys, lists, trace, files, unread)


def _trace(trace: Mapping[str, Any]) -> Mapping[str, Any]:
    """*trace* if it is a valid trace: ids, and for each backend a token and a number per id."""
    rows = {name: rows for name, rows in trace.items() if name != "ids"}
    ids = [*trace["ids"]] if rows else []
    whole = all(isinstance(id, int) and id >= 0 for id in ids) and bool(ids or not rows)
    for name, positions in rows.items():
        whole &= name in ("reference", "native") and len(positions) == len(ids)
        whole &= all(isinstance(id, int) and math.isfinite(value) for id, value in positions)
    if not whole:
        raise ValueError("not a trace")
    return trace


def _hexadecimal(digest: Any) -> str:
    if not isinstance(digest, str) or len(bytes.fromhex(digest)) != 32:
        raise ValueError("not a SHA-256")
    return digest


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def _canonical(value: Any) -> bytes:
    """JSON with sorted keys, ASCII, without spaces, and a terminator that JSON cannot contain."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


# --- of a model ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recognition:
    """A model for which this package has an attestation."""

    attestation: Attestation  # of the model; its name is one such as ``smollm2-135m``
    # ``content`` (most of it is the model's) or ``name`` (only the file's name is)
    by: Literal["content", "name"]
    # differing tensors, keys, tokens and merges; empty: it is the model
    differences: tuple[Difference, ...]

    @property
    def text(self) -> str:
        """The result in one sentence."""
        name = self.attestation.name
        if not self.differences:
            return f"every byte of {name} (attestation {self.attestation.digest[:16]})"
        bears = "has most of the content" if self.by == "content" else "bears the name"
        texts = [difference.text for difference in self.differences]
        return f"it {bears} of {name} and is not it: {summarize(texts)}"


def attest(
    checkpoint: Checkpoint,
    *,
    name: str = "",
    files: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
    trace: bool = True,
) -> Attestation:
    """Attestation of *checkpoint*, called *name* or as its file.

    *files* are the names under which it is published and which no other content may have. With
    *trace* both backends run over a few tokens, of its own *tokenizer*.
    """
    from bitnet.verify.trace import record

    content = content_of(checkpoint)
    tensors, keys = digest_content(content)
    return Attestation(
        name or checkpoint.path.name,
        checkpoint.architecture,
        tensors,
        keys,
        {key: Grid.of(items) for key, items in content.lists.items() if len(items)},
        record(checkpoint, tokenizer) if trace else {},
        files,
        checkpoint.inventory.unread_sha256(unread_files(checkpoint)),
    )


@cache
def attestations_by_name() -> Mapping[str, Attestation]:
    """Attestations of this package, by name of the model."""
    folder = resources.files("bitnet.verify") / "attestations"
    by_name = {}
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".json"):
            attestation = Attestation.parse(file.read_bytes(), file.name)
            by_name[attestation.name] = attestation
    return by_name


def attestation_of(against: str) -> Attestation:
    """Attestation that *against* means: a file, an original model, or the name of a known model."""
    path = Path(against)
    if path.is_file():
        with path.open("rb") as file:
            text = file.read(1)
        if text == b"{":
            return Attestation.read(path)
    if against and path.exists():
        return attest(open_checkpoint(path), trace=False)
    attestation = attestations_by_name().get(against)
    if attestation is None:
        near = get_close_matches(against, attestations_by_name(), n=1)
        meant = (
            f"did you mean {near[0]}?" if near else f"known: {', '.join(attestations_by_name())}"
        )
        raise NotFound(f"no file and no known model {against!r}", hint=meant)
    return attestation


def unread_files(checkpoint: Checkpoint) -> list[str]:
    """Files in the folder of *checkpoint* that no reader asks for, without its attestation."""
    if not checkpoint.path.is_dir():
        return []
    own = beside(checkpoint.path).name
    return [name for name in read_files(checkpoint).unread if name != own]


def compare(attestation: Attestation, checkpoint: Checkpoint) -> list[Difference]:
    """Differences between *checkpoint* and *attestation*; empty if there are none."""
    return differences(attestation, content_of(checkpoint))


def recognise(checkpoint: Checkpoint) -> Recognition | None:
    """The known model that *checkpoint* is, or is a damaged copy of; ``None`` if neither.

    Its bytes are read only if names, shapes and types of its tensors are those of a known model,
    or its file has the name of one.
    """
    content: Content | None = None
    for attestation in attestations_by_name().values():
        named = checkpoint.path.name in attestation.files
        content = content or content_of(checkpoint)
        if not named and not _same_directory(attestation, content):
            continue
        found = differences(attestation, content)
        if not found or _same_content(attestation, found):
            return Recognition(attestation, "content", tuple(found))
        if named:
            return Recognition(attestation, "name", tuple(found))
    return None


def attest_fetched(path: Path, *, fresh: bool) -> Path | None:
    """Attest the GGUF file at *path*, just verified, in a file next to it; the path of that file.

    A folder is attested by ``bitnet attest`` once it is complete. *fresh*: it was fetched now, so
    an existing attestation is of other bytes.
    """
    target = beside(path)
    is_first = part_number(path.name) == 1  # it stands for all parts of a split model
    if path.suffix != ".gguf" or not is_first or (target.exists() and not fresh):
        return None
    try:
        attest(open_checkpoint(path), trace=False).write(target)
    except BitnetError as error:
        logger.warning("%s is not attested: %s", path, error.message)
        return None
    return target


def summarize(texts: Sequence[str]) -> str:
    """The first of *texts* in one line, and the number of others."""
    more = f"; {len(texts) - _SHOWN:,} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def _same_directory(attestation: Attestation, content: Content) -> bool:
    """True if most tensors have an attested name, shape and type."""
    same = sum(
        (was.shape, was.encoding) == (now.shape, now.encoding)
        for name, was in attestation.tensors.items()
        if (now := content.tensors.get(name)) is not None
    )
    return 2 * same > max(len(attestation.tensors), len(content.tensors))


def _same_content(attestation: Attestation, deviations: Sequence[Difference]) -> bool:
    """True if most matrices, or all values and lists, are as attested.

    Norms do not count: another conversion of the same model has the same ones.
    """
    other = {one.name for one in deviations if one.section == "tensors"}
    matrices = [name for name, one in attestation.tensors.items() if len(one.shape) > 1]
    same = sum(name not in other for name in matrices)
    return 2 * same > len(matrices) or all(one.section == "tensors" for one in deviations)
