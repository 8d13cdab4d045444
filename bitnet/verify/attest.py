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
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bitnet.base.errors import BitnetError, InvalidFormat, NotFound, Unsupported
from bitnet.base.files import open_file, read_bytes, write_text
from bitnet.base.outputs import OutputKind, json_in
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_names import has_gguf_name, part_number
from bitnet.tokenizer.load import read_files
from bitnet.verify.content import Grid, content_of, parse_size, section_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.weight import Weight
    from bitnet.tokenizer.tokenizer import Tokenizer
    from bitnet.verify.content import Content

logger = logging.getLogger(__name__)

SCHEMA = 1
SECTIONS = ("metadata", "template", "tensors", "tokenizer")
_THREADS = 8  # most threads that compute digests
_MOST = 1e300  # of a log-probability; NaN, infinities and larger integers are outside
_SHOWN = 5  # most differences that a message lists
HINT = (
    "fetch it again; a change of yours: bitnet attest F --output FILE, "
    "then bitnet verify F --against FILE"
)


def _is_attestation(path: Path) -> bool:
    facts = json_in(path)
    return isinstance(facts, dict) and {"schema", "sections", "digest"} <= set(facts)


ATTESTATION = OutputKind("an attestation", _is_attestation)


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
    # names under which the model is published, which no other content may have; not part of the
    # digest
    files: tuple[str, ...] = ()
    # SHA-256 of each file of the folder that no reader opens; not part of the digest
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def sections(self) -> dict[str, str]:
        """SHA-256 of each section."""
        leaves_by_section: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
        leaves_by_section["tensors"] = {
            name: tensor.sha256 for name, tensor in self.tensors.items()
        }
        for key, digest in self.keys.items():
            leaves_by_section[section_of(key)][key] = digest
        return {name: _sha256(_canonical(leaves)) for name, leaves in leaves_by_section.items()}

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
                name: [tensor.encoding, list(tensor.shape), tensor.sha256]
                for name, tensor in sorted(self.tensors.items())
            },
            "keys": dict(sorted(self.keys.items())),
            "lists": {key: grid.facts() for key, grid in sorted(self.lists.items())},
            "trace": dict(self.trace),
            "unread": dict(sorted(self.unread.items())),
        }

    def text(self) -> str:
        """Text of the attestation's file: a line per tensor and key."""
        parts = []
        for name, value in self.facts().items():
            if isinstance(value, dict) and value:
                lines = [f"  {_plain(key)}: {_plain(entry)}" for key, entry in value.items()]
                parts.append(f" {_plain(name)}: {{\n" + ",\n".join(lines) + "\n }")
            else:
                parts.append(f" {_plain(name)}: {_plain(value)}")
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def write(self, path: Path) -> None:
        """Write it to *path* atomically."""
        write_text(path, self.text())

    @classmethod
    def read(cls, path: Path) -> Attestation:
        """Attestation in the file *path*."""
        return cls.parse(read_bytes(path), path.name)

    @classmethod
    def parse(cls, text: bytes | str, label: str) -> Attestation:
        """Attestation in *text*; *label* is its name in errors."""
        hint = "make it again: bitnet attest ORIGINAL --output FILE --force"
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
        expected = facts.get("sections"), facts.get("digest")
        if (attestation.sections, attestation.digest) != expected:
            raise InvalidFormat(f"{label} has been changed: its digests do not fit", hint=hint)
        return attestation


def _encoding(weight: Weight) -> str:
    """Name of the quantization type of *weight*; I2_S has the same name for every processor."""
    return weight.quant.name.removesuffix("_ARM")


def digest_content(content: Content) -> tuple[dict[str, TensorDigest], dict[str, str]]:
    """Digests of the tensors by name, and of the values and lists of *content* by key."""

    def of_tensor(entry: tuple[str, Weight]) -> tuple[str, TensorDigest]:
        name, weight = entry
        encoding = _encoding(weight)
        digest = hashlib.sha256(_canonical([name, encoding, list(weight.shape)]))
        digest.update(weight.data.data)
        return name, TensorDigest(weight.shape, encoding, digest.hexdigest())

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


def _differences(
    attestation: Attestation, content: Content
) -> tuple[dict[str, str], dict[str, str]]:
    """Messages about the tensors and about the keys of *content* that differ, by name."""
    tensors, keys = digest_content(content)

    def about_tensor(was: TensorDigest | None, now: TensorDigest | None) -> str:
        if was is None or now is None:
            return "is missing" if now is None else "is not attested"
        if now.shape != was.shape:
            return f"has shape {now.shape}, attested is {was.shape}"
        if now.encoding != was.encoding:
            return f"is in {now.encoding}, attested is {was.encoding}"
        return "has other bytes than attested"

    def about_key(key: str) -> str:
        if key not in keys or key not in attestation.keys:
            return f"key {key} is {'not attested' if key in keys else 'missing'}"
        if key in content.lists and key in attestation.lists:
            return f"{key}: {attestation.lists[key].locate(content.lists[key])}"
        value_text = repr(content.values[key]) if key in content.values else "a list"
        value_text = value_text if len(value_text) <= 60 else f"{value_text[:60]}..."
        return f"key {key} is {value_text}, attested is another value"

    old_tensors = dict(attestation.tensors)
    old_keys = dict(attestation.keys)
    pairs = {name: (old_tensors.get(name), tensors.get(name)) for name in old_tensors | tensors}
    tensor_texts = {
        name: f"tensor {name} {about_tensor(was, now)}"
        for name, (was, now) in pairs.items()
        if was != now
    }
    key_texts = {
        key: about_key(key) for key in old_keys | keys if old_keys.get(key) != keys.get(key)
    }
    return tensor_texts, key_texts


def _from_facts(facts: Mapping[str, Any]) -> Attestation:
    """The attestation in *facts*, JSON values from a file; wrong ones raise ``ValueError`` etc."""
    tensors = {
        str(name): TensorDigest(tuple(map(parse_size, shape)), str(encoding), _hexadecimal(digest))
        for name, (encoding, shape, digest) in facts["tensors"].items()
    }
    keys = {str(key): _hexadecimal(digest) for key, digest in facts["keys"].items()}
    if not tensors and not keys:
        raise ValueError("an attestation of nothing")
    lists = {str(key): Grid.parse(**grid) for key, grid in facts["lists"].items()}
    trace = _trace(facts["trace"])
    files = tuple(map(str, facts["files"]))
    name = str(facts["name"])
    architecture = str(facts["architecture"])
    unread = {str(file): _hexadecimal(digest) for file, digest in facts["unread"].items()}
    return Attestation(name, architecture, tensors, keys, lists, trace, files, unread)


def _trace(trace: Mapping[str, Any]) -> Mapping[str, Any]:
    """*trace* if it is a valid trace: ids, and for each backend a token and a number per id."""
    rows = {name: rows for name, rows in trace.items() if name != "ids"}
    ids = [*trace["ids"]] if rows else []
    is_valid = all(isinstance(id, int) and id >= 0 for id in ids) and bool(ids or not rows)
    for name, positions in rows.items():
        is_valid &= name in ("reference", "native") and len(positions) == len(ids)
        is_valid &= all(isinstance(id, int) and -_MOST <= value <= _MOST for id, value in positions)
    if not is_valid:
        raise ValueError("not a trace")
    return trace


def _hexadecimal(digest: Any) -> str:
    if not isinstance(digest, str) or len(bytes.fromhex(digest)) != 32:
        raise ValueError("not a SHA-256")
    return digest


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def _canonical(value: Any) -> bytes:
    """JSON with sorted keys, ASCII, without spaces, and a terminator that JSON cannot contain."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


# --- attest and recognise models -----------------------------------------------------------------


@dataclass(frozen=True)
class Recognition:
    """A model for which this package has an attestation."""

    attestation: Attestation  # of the model; its name is one such as ``smollm2-135m``
    # how it was recognised: ``content``: most of it is the known model's; ``name``: only the file
    # has its name
    by: Literal["content", "name"]
    # messages about tensors, keys, tokens and merges that differ; empty: it is the known model
    differences: tuple[str, ...]

    @property
    def text(self) -> str:
        """The result in one sentence."""
        name = self.attestation.name
        if not self.differences:
            return f"every byte of {name} (attestation {self.attestation.digest[:16]})"
        bears = "has most of the content" if self.by == "content" else "bears the name"
        return f"it {bears} of {name} and is not it: {summarize(self.differences)}"


def attest(
    checkpoint: Checkpoint,
    *,
    name: str = "",
    tokenizer: Tokenizer | None = None,
    trace: bool = True,
) -> Attestation:
    """Attestation of *checkpoint*, called *name* or as its file.

    With *trace* it has a pass of each backend over a few tokens, which *tokenizer* makes of a text.
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
        unread=checkpoint.inventory.unread_sha256(unread_files(checkpoint)),
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
        with open_file(path) as file:
            text = file.read(1)
        if text == b"{":
            return Attestation.read(path)
    if against and path.exists():
        return attest(open_checkpoint(path), trace=False)
    attestation = attestations_by_name().get(against)
    if attestation is None:
        names = f"known: {', '.join(attestations_by_name())}"
        raise NotFound(f"no file and no known model {against!r}", hint=names)
    return attestation


def unread_files(checkpoint: Checkpoint) -> list[str]:
    """Files in the folder of *checkpoint* that no reader opens, other than its attestation."""
    if not checkpoint.path.is_dir():
        return []
    own = beside(checkpoint.path).name
    return [name for name in read_files(checkpoint).unread if name != own]


def compare(attestation: Attestation, checkpoint: Checkpoint) -> list[str]:
    """Messages about the differences of *checkpoint* from *attestation*; empty without any."""
    tensors, keys = _differences(attestation, content_of(checkpoint))
    return [*tensors.values(), *keys.values()]


def recognise(checkpoint: Checkpoint) -> Recognition | None:
    """The known model that *checkpoint* is, or is a damaged copy of; ``None`` if neither.

    Its bytes are read only if names, shapes and types of most of its tensors are those of a known
    model, or its file has the name of one.
    """
    content: Content | None = None
    for attestation in attestations_by_name().values():
        has_name = checkpoint.path.name in attestation.files
        content = content or content_of(checkpoint)
        if not has_name and not _most_tensors_agree(attestation, content):
            continue
        tensors, keys = _differences(attestation, content)
        # Only matrices count: norms are the same in every conversion of a model. A file whose keys
        # are all as attested is recognised, too.
        matrices = [name for name, tensor in attestation.tensors.items() if len(tensor.shape) > 1]
        same = sum(name not in tensors for name in matrices)
        is_content = 2 * same > len(matrices) or not keys
        if has_name or is_content:
            texts = (*tensors.values(), *keys.values())
            return Recognition(attestation, "content" if is_content else "name", texts)
    return None


def attest_fetched(path: Path, *, fresh: bool) -> Path | None:
    """Attest the GGUF file at *path*, just verified, in a file beside it; return that file's path.

    None if nothing was written: *path* is not the first GGUF file of a model, has an attestation,
    or cannot be read. A folder is attested by ``bitnet attest`` once it is complete. *fresh*: the
    file was just fetched or put into its place, so an existing attestation may be of other bytes.
    """
    target = beside(path)
    is_first = part_number(path.name) == 1  # it stands for all parts of a split model
    if not has_gguf_name(path) or not is_first or (target.exists() and not fresh):
        return None
    try:
        attest(open_checkpoint(path), trace=False).write(target)
    except BitnetError as error:
        logger.warning("%s is not attested: %s", path, error.message)
        return None
    return target


def summarize(texts: Sequence[str]) -> str:
    """The first of *texts* in one line, and the number of others."""
    ending = f"; {len(texts) - _SHOWN:,} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + ending


def _most_tensors_agree(attestation: Attestation, content: Content) -> bool:
    """True if most tensors of *content*, and most attested ones, agree in name, shape and type."""
    same = sum(
        (was.shape, was.encoding) == (now.shape, _encoding(now))
        for name, was in attestation.tensors.items()
        if (now := content.tensors.get(name)) is not None
    )
    return 2 * same > max(len(attestation.tensors), len(content.tensors))
