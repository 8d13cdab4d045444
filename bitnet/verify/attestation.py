"""Attestations: the content of a model as a tree of SHA-256 digests, and its comparison.

    digest                          of the sections
    |- tensors                      of name -> digest of name, shape, encoding and bytes
    |- metadata                     of key -> digest of key and value
    |- tokenizer                    of key -> digest of key and value or list
    `- template                     of key -> digest of key and value

docs/reference/attestations.md has the canonical form, ``attestation.schema.json`` the file's.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bitnet.base.errors import InvalidFormat, Unsupported, from_os_error
from bitnet.base.files import write_text
from bitnet.verify.content import MERGE_PAIRS, MERGES, VOCAB, section_of
from bitnet.verify.locate import Grid, grid_of, locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.verify.content import Content, Items, StoredTensor

SCHEMA = 1
SECTIONS = ("metadata", "template", "tensors", "tokenizer")
_THREADS = 8
_TOKENS = {
    "tokenizer.ggml.merges": "tokenizer.ggml.tokens",
    MERGES: VOCAB,
    MERGE_PAIRS: VOCAB,
}


class Difference(NamedTuple):
    """One deviation from an attestation.

    Attributes:
        section: ``tensors``, ``metadata``, ``tokenizer`` or ``template``.
        name: of the tensor or key.
        text: description with the name; for a list, with the token or merge.
    """

    section: str
    name: str
    text: str


@dataclass(frozen=True)
class TensorDigest:
    """One tensor: SHA-256 over name, shape, encoding and bytes."""

    shape: tuple[int, ...]
    encoding: str
    sha256: str


@dataclass(frozen=True)
class Attestation:
    """Digests of a model's content.

    Attributes:
        name: of the model; not part of the digest.
        architecture: not part of the digest either.
        tensors: by name.
        keys: SHA-256 of each key with its value or list.
        lists: digests that locate items of long lists; not part of the digest.
        trace: per backend the best token and its log-probability at each of the ids in
            ``ids``; not part of the digest.
        files: names under which the model is published; no other content may have them.
        unread: SHA-256 of each file of the folder that no reader opens; not part of the digest.
    """

    name: str
    architecture: str
    tensors: Mapping[str, TensorDigest]
    keys: Mapping[str, str]
    lists: Mapping[str, Grid] = field(default_factory=dict)
    trace: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
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
            "lists": {
                key: {"length": grid.length, "rows": grid.rows, "columns": grid.columns}
                for key, grid in sorted(self.lists.items())
            },
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


def grids_of(lists: Mapping[str, Items]) -> dict[str, Grid]:
    """For each long list, the digests that locate a difference."""
    return {key: grid_of(items) for key, items in lists.items() if len(items)}


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
    attested: Mapping[str, TensorDigest], found: Mapping[str, TensorDigest]
) -> list[Difference]:
    problems: list[tuple[str, str]] = []
    for name, was in attested.items():
        now = found.get(name)
        if now is None:
            problems.append((name, "is missing"))
        elif now.shape != was.shape:
            problems.append((name, f"has shape {now.shape}, attested is {was.shape}"))
        elif now.encoding != was.encoding:
            problems.append((name, f"is in {now.encoding}, attested is {was.encoding}"))
        elif now.sha256 != was.sha256:
            problems.append((name, "has other bytes than attested"))
    problems += [(name, "is not attested") for name in found if name not in attested]
    return [Difference("tensors", name, f"tensor {name} {text}") for name, text in problems]


def _key_differences(
    attestation: Attestation, found: Mapping[str, str], content: Content
) -> list[Difference]:
    problems: list[tuple[str, str]] = []
    for key, digest in attestation.keys.items():
        if found.get(key) == digest:
            continue
        if key not in found:
            problems.append((key, f"key {key} is missing"))
        elif key in content.lists and key in attestation.lists:
            tokens = content.lists.get(_TOKENS.get(key, ""))
            where = locate(attestation.lists[key], content.lists[key], tokens)
            problems.append((key, f"{key}: {where}"))
        else:
            now = _short(content.values.get(key, "another list"))
            problems.append((key, f"key {key} is {now}, attested is another value"))
    problems += [
        (key, f"key {key} is not attested") for key in found if key not in attestation.keys
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
    lists = {
        str(key): Grid.parse(grid["length"], grid["rows"], grid["columns"])
        for key, grid in facts["lists"].items()
    }
    trace = _trace(facts["trace"])
    files = tuple(map(str, facts["files"]))
    name, architecture = str(facts["name"]), str(facts["architecture"])
    unread = {str(file): _hexadecimal(digest) for file, digest in facts["unread"].items()}
    return Attestation(name, architecture, tensors, keys, lists, trace, files, unread)


def _trace(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """*found* if it is a valid trace: ids, and for each backend a token and a number per id."""
    rows = {name: rows for name, rows in found.items() if name != "ids"}
    ids = [*found["ids"]] if rows else []
    whole = all(isinstance(id, int) and id >= 0 for id in ids) and bool(ids or not rows)
    for name, positions in rows.items():
        whole &= name in ("reference", "native") and len(positions) == len(ids)
        whole &= all(isinstance(id, int) and math.isfinite(value) for id, value in positions)
    if not whole:
        raise ValueError("not a trace")
    return found


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
