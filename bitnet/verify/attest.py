"""Attest a model, and recognise models attested in this package.

    attestation = attest(open_checkpoint("model.gguf"))
    recognition = recognise(open_checkpoint("unknown.gguf"))    # None: not a known model
    recognition.differences                                     # empty: it is that model

Recognition does not need a name: it compares content. A file with a known model's content or name
that differs anywhere is damaged (or modified on purpose, and can be attested as such).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bitnet.base.errors import BitnetError, NotFound
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import part_number
from bitnet.tokenizer.load import read_files
from bitnet.verify.attestation import Attestation, beside, differences, digest_content, grids_of
from bitnet.verify.content import content_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer.tokenizer import Tokenizer
    from bitnet.verify.attestation import Difference
    from bitnet.verify.content import Content

logger = logging.getLogger(__name__)

_SHOWN = 5
HINT = (
    "fetch it again; a change of yours: bitnet attest F --output FILE, "
    "then bitnet verify F --against FILE"
)


@dataclass(frozen=True)
class Recognition:
    """A model for which this package has an attestation.

    Attributes:
        attestation: of the model; its name is one such as ``smollm2-135m``.
        by: ``content`` (most of it is the model's) or ``name`` (only the file's name is).
        differences: differing tensors, keys, tokens and merges; empty: it is the model.
    """

    attestation: Attestation
    by: Literal["content", "name"]
    differences: tuple[Difference, ...]

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
    files: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
    trace: bool = True,
) -> Attestation:
    """Attestation of *checkpoint*.

    Args:
        checkpoint: an open model.
        name: of the model; by default its file's name.
        files: names under which it is published and which no other content may have.
        tokenizer: the model's own, for the trace.
        trace: run both backends over a few tokens; otherwise only content is hashed.
    """
    from bitnet.verify.trace import record

    content = content_of(checkpoint)
    tensors, keys = digest_content(content)
    return Attestation(
        name or checkpoint.path.name,
        checkpoint.architecture,
        tensors,
        keys,
        grids_of(content.lists),
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
    """Attest the GGUF file at *path*, whose digest was just verified, in a file next to it.

    A folder is attested by ``bitnet attest`` once it is complete. *fresh*: it was fetched now, so
    an existing attestation is of other bytes.

    Returns:
        Path of the attestation; ``None`` if there is nothing to attest.
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


def summarize(found: Sequence[Difference]) -> str:
    """The first of *found* in one line, and the number of others."""
    more = f"; {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return "; ".join(one.text for one in found[:_SHOWN]) + more


def _same_directory(attestation: Attestation, content: Content) -> bool:
    """True if most tensors have an attested name, shape and type."""
    same = sum(
        (was.shape, was.encoding) == (now.shape, now.encoding)
        for name, was in attestation.tensors.items()
        if (now := content.tensors.get(name)) is not None
    )
    return 2 * same > max(len(attestation.tensors), len(content.tensors))


def _same_content(attestation: Attestation, found: Sequence[Difference]) -> bool:
    """True if most matrices, or all values and lists, are as attested.

    Norms do not count: another conversion of the same model has the same ones.
    """
    other = {one.name for one in found if one.section == "tensors"}
    matrices = [name for name, one in attestation.tensors.items() if len(one.shape) > 1]
    same = sum(name not in other for name in matrices)
    return 2 * same > len(matrices) or all(one.section == "tensors" for one in found)
