"""Requirements of downloading and running a model, from its header or its folder alone.

The header is read through a ``read(start, stop)`` function: from a file, or with range requests
from a server. Nothing here opens a connection.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported, from_os_error
from bitnet.base.findings import Finding, render
from bitnet.base.memory import free_memory
from bitnet.base.progress import human_size
from bitnet.families.blocks import KVType
from bitnet.formats import not_a_model
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf import GGUF, NeedMoreBytes
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.packing import multiplies_in_rows
from bitnet.models.load import ARCHITECTURES, config_from
from bitnet.quants.registry import dequantize
from bitnet.quants.weight import Weight
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.sheet.inspection import cache_bytes, describe_basis, encodings, memory, vocabulary
from bitnet.tokenizer import resolve_tokenizer
from bitnet.tokenizer.from_gguf import spec_from_gguf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.types import QuantType
    from bitnet.tokenizer import Tokenizer

FIRST_WINDOW = 1 << 20
LARGEST_HEADER = 256 << 20
CONTEXT = 4096
# Activations, logits and the interpreter, besides weights and cache.
OVERHEAD_BYTES = 200_000_000


@dataclass(frozen=True)
class Resources:
    """Free resources of this machine, in bytes; ``None`` if the system does not say."""

    free_disk: int | None
    free_memory: int | None


@dataclass(frozen=True)
class MemoryParts:
    """Memory for running a model, in bytes.

    Attributes:
        weights: all of them.
        experts: those that can stay in the mapped file and leave memory again.
        touched: weights that one token reads.
        cache, cache_q8: keys, values and states, in 16 bits and with ``--kv-type q8``.
        rest: activations, logits and the interpreter.
    """

    weights: int
    experts: int
    touched: int
    cache: int
    cache_q8: int
    rest: int = OVERHEAD_BYTES

    @classmethod
    def of(cls, tensors: Collection[Weight], used: int, caches: tuple[int, int]) -> MemoryParts:
        """Parts of a model with these *tensors*, *used* experts a token, *caches* of both forms."""
        sizes = {it.name: it.quant.size_bytes(it.shape) or it.size_bytes for it in tensors}
        read = dict(sizes)
        experts = [it for it in tensors if len(it.shape) == 3]
        for it in experts:
            read[it.name] = sizes[it.name] * min(used, it.shape[0]) // max(it.shape[0], 1)
        if "output.weight" in sizes and "token_embd.weight" in sizes:
            del read["token_embd.weight"]  # one row
        mapped = sum(sizes[it.name] for it in experts if multiplies_in_rows(it))
        return cls(sum(sizes.values()), mapped, sum(read.values()), *caches)

    @property
    def total(self) -> int:
        """Bytes with everything in memory."""
        return self.weights + self.cache + self.rest

    @property
    def least(self) -> int:
        """Bytes without experts that can stay in the file."""
        return self.total - self.experts


@dataclass(frozen=True)
class ModelOrigin:
    """Facts about a model that are not in its header.

    Attributes:
        licence: name of the terms, empty if unknown.
        gated: the server requires a token of an account that accepted them; ``None``: unknown.
        local: the file is already here.
    """

    licence: str = ""
    gated: bool | None = None
    local: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """Requirements of a model, compared with a machine.

    Attributes:
        name: of the file.
        size_bytes: of the file, ``None`` if unknown.
        header_bytes: bytes of it that were read; 0 for a folder.
        licence: as named by the server, or else by the file.
        gated: see :class:`ModelOrigin`.
        local: see :class:`ModelOrigin`.
        architecture: ``general.architecture``.
        parameters: weights in all tensors.
        encodings: quantization types with their share of the bytes, the largest first.
        basis: whether the weights are rotated; empty if unknown.
        context_length: positions the model was trained for.
        vocab_size: number of token ids.
        tokenizer: description of the embedded tokenizer.
        has_tokenizer: it is embedded and complete.
        chat_template: one is embedded.
        memory_bytes: weights, KV cache of *memory_context* tokens, overhead; ``None`` if unknown.
        memory_context: tokens of context that are included.
        memory: the parts of *memory_bytes*; ``None`` if unknown.
        machine: free resources.
        findings: reasons why it would not run or fit; empty if it will.
    """

    name: str
    size_bytes: int | None
    header_bytes: int = 0
    licence: str
    gated: bool | None
    local: bool
    architecture: str = ""
    parameters: int = 0
    encodings: dict[str, float] = field(default_factory=dict)
    basis: str = ""
    context_length: int | None = None
    vocab_size: int | None = None
    tokenizer: str
    has_tokenizer: bool = False
    chat_template: bool = False
    memory_bytes: int | None
    memory_context: int = 0
    memory: MemoryParts | None = None
    machine: Resources
    findings: tuple[Finding, ...]

    @property
    def runs(self) -> bool:
        """True if it can be downloaded to and run on this machine."""
        return not self.findings

    def facts(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self) | {
            "findings": [finding.facts() for finding in self.findings],
            "runs": self.runs,
        }

    def lines(self) -> Iterator[str]:
        """The plan as text, one question per line."""
        read = f"{_size(self.header_bytes)} of it read" if self.header_bytes else self._unread()
        yield f"{self.name}: {_size(self.size_bytes)} ({read})"
        yield f"  licence        {self.licence or 'not stated'}"
        yield f"  access         {self._access()}"
        if self.architecture or self.header_bytes:
            yield from self._header_lines()
        yield f"  disk           {_size(self.machine.free_disk)} free"
        context = f" with {self.memory_context:,} tokens of context" if self.memory_context else ""
        free = _size(self.machine.free_memory)
        yield f"  memory         about {_size(self.memory_bytes)}{context}, {free} free"
        if self.memory is not None:
            yield from self._memory_lines(self.memory)
        yield f"  runs here      {'yes' if self.runs else 'no'}"
        for line in render(self.findings):
            yield f"    {line}"

    def _header_lines(self) -> Iterator[str]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.encodings.items())
        weights = _count(self.parameters)
        yield f"  architecture   {self.architecture or 'not stated'}, {weights} weights"
        yield f"  encodings      {shares or 'none: a vocabulary without weights'}"
        if self.basis:
            yield f"  weights        {self.basis}"
        context = f"{self.context_length:,}" if self.context_length else "unknown"
        yield f"  context        {context} tokens"
        yield f"  tokenizer      {self.tokenizer}"
        yield f"  chat template  {'yes' if self.chat_template else 'no'}"

    def _memory_lines(self, memory: MemoryParts) -> Iterator[str]:
        token = f"{_size(memory.weights)} of weights ({_size(memory.touched)} read per token)"
        cache = f"{_size(memory.cache)} of cache ({_size(memory.cache_q8)} with --kv-type q8)"
        yield f"{'':17}{token}, {cache}, {_size(memory.rest)} of activations and the like"
        if memory.experts and memory.least <= (self.machine.free_memory or 0) < memory.total:
            mapped = f"{_size(memory.experts)} of experts stay in the file"
            yield f"{'':17}{mapped}, slower, most of all where it is read again"

    def _unread(self) -> str:
        return "a folder" if self.architecture else "not read"

    def _access(self) -> str:
        if self.local:
            return "already here"
        if self.gated is None:
            return "unknown"
        return "gated: needs HF_TOKEN and accepted terms" if self.gated else "open"


def read_header(
    read: Callable[[int, int], bytes], *, size: int | None = None, label: str = "model"
) -> tuple[GGUF, int]:
    """Header of a GGUF file, and the number of bytes read for it.

    The window doubles until metadata and tensor directory are complete; nothing is read twice.
    *read* returns bytes *start* to *stop*, fewer at the end of the file.

    Raises:
        InvalidFormat: not a GGUF file, a damaged one, or an excessively long header.
        Unsupported: the version is not supported.
    """
    buffer = b""
    count = FIRST_WINDOW
    while True:
        part = read(len(buffer), count)
        buffer += part
        try:
            return GGUF.parse(buffer, size=size, label=label), len(buffer)
        except NeedMoreBytes as error:
            if not part or (size is not None and len(buffer) >= size):
                raise InvalidFormat(
                    f"{label} ends after {len(buffer):,} bytes, within its header",
                    hint="the file is incomplete or damaged: fetch it again",
                ) from error
            count = max(2 * len(buffer), min(error.needs, LARGEST_HEADER))
            if count > LARGEST_HEADER:
                raise InvalidFormat(
                    f"{label}: the header is longer than {_size(LARGEST_HEADER)}"
                ) from error


def plan_model(
    read: Callable[[int, int], bytes],
    origin: ModelOrigin,
    *,
    label: str,
    size: int | None,
    machine: Resources,
) -> ModelPlan:
    """Requirements of the model behind *read*, compared with *machine*.

    *read* as in :func:`read_header`, *machine* from :func:`this_machine`.

    Raises:
        BitnetError: as :func:`read_header`, and what *read* raises.
    """
    gguf, header_bytes = read_header(read, size=size, label=label)
    tokenizer, complete = _tokenizer(gguf)
    parts = _memory_parts(gguf)
    least = None if parts is None else parts.least
    findings = [*_format_findings(gguf), *room_findings(origin, size, least, machine)]
    if not complete:
        findings.append(Finding("failed", "tokenizer", tokenizer))
    licence = gguf.metadata.get("general.license")
    used = encodings(gguf)
    total = sum(row["size_bytes"] for row in used) or 1
    return ModelPlan(
        name=label,
        size_bytes=size,
        header_bytes=header_bytes,
        licence=origin.licence or (licence if isinstance(licence, str) else ""),
        gated=origin.gated,
        local=origin.local,
        architecture=gguf.architecture,
        parameters=sum(row["weights"] for row in used),
        encodings={row["type"]: row["size_bytes"] / total for row in used},
        basis=describe_basis(gguf.metadata),
        context_length=memory(gguf).context_length,
        vocab_size=vocabulary(gguf).size,
        tokenizer=tokenizer,
        has_tokenizer=complete,
        chat_template=isinstance(gguf.metadata.get("tokenizer.chat_template"), str),
        memory_bytes=None if parts is None else parts.total,
        memory_context=_context(gguf),
        memory=parts,
        machine=machine,
        findings=tuple(findings),
    )


def plan_file(path: Path, origin: ModelOrigin, *, machine: Resources) -> ModelPlan:
    """:func:`plan_model` for a local file."""
    try:
        with path.open("rb") as file:

            def read(start: int, stop: int) -> bytes:
                file.seek(start)
                return file.read(stop - start)

            size = path.stat().st_size
            local = replace(origin, local=True)
            return plan_model(read, local, label=path.name, size=size, machine=machine)
    except FileNotFoundError:
        raise not_a_model.missing(path) from None
    except IsADirectoryError:
        raise not_a_model.folder_without_model(path) from None
    except OSError as error:
        raise from_os_error(error, path) from error


def plan_unread(
    name: str, size: int | None, origin: ModelOrigin, *, machine: Resources
) -> ModelPlan:
    """Plan for a file that cannot be read in parts, from its size alone."""
    needs = None if size is None else size + OVERHEAD_BYTES
    return ModelPlan(
        name=name,
        size_bytes=size,
        licence=origin.licence,
        gated=origin.gated,
        local=origin.local,
        tokenizer="not known before it is fetched",
        memory_bytes=needs,
        machine=machine,
        findings=tuple(room_findings(origin, size, needs, machine)),
    )


def this_machine(folder: Path) -> Resources:
    """Free disk space for *folder*, and memory that programs can still use."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        disk: int | None = shutil.disk_usage(place).free
    except OSError:
        disk = None
    return Resources(disk, free_memory())


def fits_in_memory(size: int) -> bool | None:
    """True if a model file of *size* bytes can run here, roughly; ``None`` if unknown."""
    free = free_memory()
    return None if free is None else size + OVERHEAD_BYTES <= free


def _tokenizer(gguf: GGUF) -> tuple[str, bool]:
    """Description of the embedded tokenizer, and true if it is usable."""
    try:
        spec = spec_from_gguf(gguf)
    except BitnetError as error:
        return error.message, False
    return f"embedded, complete: {spec.model}, {len(spec.tokens):,} tokens", True


def _memory_parts(gguf: GGUF) -> MemoryParts | None:
    cache, cache_q8 = (cache_bytes(gguf, _context(gguf), it) for it in get_args(KVType))
    if cache is None or cache_q8 is None:
        return None
    empty = np.empty(0, np.uint8)
    tensors = [Weight(it.name, it.shape, it.type, empty) for it in gguf.tensors.values()]
    used = gguf.metadata.get(f"{gguf.architecture}.expert_used_count")
    return MemoryParts.of(tensors, used if isinstance(used, int) else 0, (cache, cache_q8))


def _context(gguf: GGUF) -> int:
    return min(CONTEXT, memory(gguf).context_length or CONTEXT)


def _format_findings(gguf: GGUF) -> Iterator[Finding]:
    if gguf.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        named = gguf.architecture or "(none)"
        yield Finding("failed", "architecture", f"{named} is not supported; supported: {known}")
    if not gguf.tensors:
        yield Finding("failed", "weights", "it has none, only metadata")
    kinds = {info.type for info in gguf.tensors.values()}
    unreadable = sorted(kind.name for kind in kinds if not _decodable(kind))
    if unreadable:
        yield Finding("failed", "encodings", f"no decoder for {', '.join(unreadable)}")


def _decodable(quant: QuantType) -> bool:
    """True if the weights can be decoded, tested with one row of zero bits."""
    columns = math.lcm(quant.block_size, 128) if quant.known else 0
    size = quant.size_bytes((4, columns))
    if not columns or size is None:
        return False
    weight = Weight("probe", (4, columns), quant, np.zeros(size, np.uint8))
    try:
        dequantize(weight)
    except Unsupported:
        return False
    return True


def room_findings(
    origin: ModelOrigin, size: int | None, needs: int | None, machine: Resources
) -> Iterator[Finding]:
    """Findings if *machine* lacks *size* bytes of disk or *needs* bytes of memory."""
    disk, free = machine.free_disk, machine.free_memory
    if not origin.local and size is not None and disk is not None and size > disk:
        text = f"the file has {_size(size)}, the disk {_size(disk)} free"
        yield Finding("failed", "disk", text)
    if needs is not None and free is not None and needs > free:
        text = f"it needs about {_size(needs)}, {_size(free)} are free"
        yield Finding("failed", "memory", text)


def _size(count: int | None) -> str:
    return "unknown" if count is None else human_size(count)


def _count(number: int) -> str:
    for limit, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= limit:
            return f"{number / limit:.2f} {unit}"
    return f"{number:,}"


def plan_path(path: Path, origin: ModelOrigin, *, machine: Resources) -> ModelPlan:
    """Plan of the model at *path*, a GGUF file or a folder.

    Raises:
        BitnetError: as :func:`bitnet.formats.containers.open_checkpoint`, for a folder.
        NotFound: the file does not exist.
        InvalidFormat: not a model, or a damaged one.
    """
    if not path.is_dir():
        return plan_file(path, origin, machine=machine)
    return _plan(open_checkpoint(path), replace(origin, local=True), machine)


def _plan(checkpoint: Checkpoint, origin: ModelOrigin, machine: Resources) -> ModelPlan:
    config = config_from(checkpoint)
    context = min(CONTEXT, config.context_length)
    sizes: dict[str, int] = {}
    for weight in checkpoint.weights.values():
        sizes[weight.quant.name] = sizes.get(weight.quant.name, 0) + weight.size_bytes
    total = sum(sizes.values())
    shares = sorted(sizes.items(), key=lambda entry: -entry[1])
    cache, cache_q8 = (
        KVCache(replace(config, kv_type=it), context).cost(context, PREFILL_CHUNK)
        for it in get_args(KVType)
    )
    used = checkpoint.integer("expert_used_count", 0)
    parts = MemoryParts.of(checkpoint.weights.values(), used, (cache, cache_q8))
    tokenizer = _tokenizer_of(checkpoint)
    findings = list(room_findings(origin, None, parts.least, machine))
    if isinstance(tokenizer, BitnetError):
        findings.append(Finding.of("tokenizer", tokenizer))
    size = sum(file.stat().st_size for file in checkpoint.path.glob("*.safetensors"))
    return ModelPlan(
        name=checkpoint.path.name,
        size_bytes=size,
        licence=origin.licence,
        gated=origin.gated,
        local=True,
        architecture=checkpoint.architecture,
        parameters=sum(math.prod(weight.shape) for weight in checkpoint.weights.values()),
        encodings={name: nbytes / total for name, nbytes in shares},
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        tokenizer=_describe(tokenizer),
        has_tokenizer=not isinstance(tokenizer, BitnetError),
        chat_template=bool(getattr(tokenizer, "chat_template", None)),
        memory_bytes=parts.total,
        memory_context=context,
        memory=parts,
        machine=machine,
        findings=tuple(findings),
    )


def _tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | BitnetError:
    """The tokenizer that the model would use, or the error if there is none."""
    try:
        return resolve_tokenizer(checkpoint)
    except BitnetError as error:
        return error


def _describe(tokenizer: Tokenizer | BitnetError) -> str:
    if isinstance(tokenizer, BitnetError):
        return tokenizer.message
    return f"{tokenizer.source}: {tokenizer.vocab_size:,} tokens"
