"""Requirements of downloading and running a model, from its header or its folder alone.

The header is read through a ``read(start, stop)`` function: from a file, or with range requests
from a server. Nothing here opens a connection.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from bitnet.base import native
from bitnet.base.errors import BitnetError, InvalidFormat
from bitnet.base.files import free_space
from bitnet.base.findings import Finding, render
from bitnet.base.machine import OVERHEAD_BYTES, free_memory
from bitnet.base.quantities import human_size
from bitnet.families.blocks import KVType
from bitnet.families.family import architecture_refusal
from bitnet.formats.containers import container_of, open_checkpoint, open_gguf
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_header import NeedMoreBytes
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.packing import bytes_in_memory, multiplies_in_rows
from bitnet.models.load import ARCHITECTURES, config_from
from bitnet.quants.registry import dequantize
from bitnet.quants.weight import Weight
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.sheet.inspection import config_of_header, describe_basis, vocabulary
from bitnet.tokenizer import resolve_tokenizer
from bitnet.tokenizer.from_gguf import spec_from_gguf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.types import QuantType

FIRST_WINDOW = 1 << 20  # bytes that are read at first: enough for the header of many models
LARGEST_HEADER = 256 << 20  # bytes; a longer header is refused
# Tables of which a token reads one row.
_LOOKED_UP = ("per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
CONTEXT = 4096  # most tokens of context for which memory is planned


@dataclass(frozen=True)
class Resources:
    """Free resources of this machine, in bytes; ``None`` if the system does not say."""

    free_disk: int | None
    free_memory: int | None


@dataclass(frozen=True)
class MemoryParts:
    """Memory for running a model, in bytes."""

    weights: int  # all of them
    experts: int  # those that can stay in the mapped file and leave memory again
    touched: int  # weights that one token reads
    cache: int  # keys, values and states in 16 bits
    cache_q8: int  # the same with ``--kv-type q8``
    rest: int = OVERHEAD_BYTES  # activations, logits and the interpreter

    @classmethod
    def of(
        cls, tensors: Collection[Weight], used: int, caches: Sequence[int], *, writes: bool = True
    ) -> MemoryParts:
        """Parts of a model with these *tensors*.

        *used* is the number of experts that a token uses, *caches* are the bytes of the cache with
        each :data:`KVType`: 16 bits, then q8. A model that *writes* has an output head, which may
        share its tensor with the embedding.
        """
        module = native.module()
        kinds = [] if module is None else module.kernel_types()
        sizes = {tensor.name: bytes_in_memory(tensor, kinds) for tensor in tensors}
        touched = dict(sizes)
        experts = [tensor for tensor in tensors if len(tensor.shape) == 3]
        for tensor in experts:
            touched[tensor.name] = (
                sizes[tensor.name] * min(used, tensor.shape[0]) // max(tensor.shape[0], 1)
            )
        looked_up = {*_LOOKED_UP}
        if "output.weight" in sizes or not writes:
            looked_up.add("token_embd.weight")
        for name in looked_up & touched.keys():
            del touched[name]  # a token reads one row of it, which is negligible
        mapped = sum(sizes[each.name] for each in experts if multiplies_in_rows(each, kinds))
        return cls(sum(sizes.values()), mapped, sum(touched.values()), *caches)

    @property
    def total(self) -> int:
        """Bytes with everything in memory."""
        return self.weights + self.cache + self.rest

    @property
    def least(self) -> int:
        """Bytes without experts that can stay in the file."""
        return self.total - self.experts


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """Requirements of a model, compared with a machine."""

    name: str  # of the file or folder
    size_bytes: int | None  # of the file, or of all files with weights; ``None`` if unknown
    header_bytes: int = 0  # bytes of it that were read; 0 for a folder
    licence: str = ""  # as named by the server, or else by the file
    # the server requires the token of an account that accepted the licence; ``None``: unknown
    gated: bool | None = None
    local: bool = False  # the file is already here
    architecture: str = ""  # ``general.architecture``
    parameters: int = 0  # weights in all tensors
    # quantization types with their share of the bytes, the largest first
    encodings: dict[str, float] = field(default_factory=dict)
    basis: str = ""  # rotation of the weights, as :func:`describe_basis`; empty if unknown
    context_length: int | None = None  # positions the model was trained for
    vocab_size: int | None = None  # number of token ids
    tokenizer: str  # description of the embedded tokenizer
    has_tokenizer: bool = False  # it is embedded and complete
    chat_template: bool = False  # one is embedded
    # of the weights, the KV cache of *memory_context* tokens, and the rest; ``None`` if unknown
    memory_bytes: int | None
    memory_context: int = 0  # tokens of context that are included
    memory: MemoryParts | None = None  # the parts of *memory_bytes*; ``None`` if unknown
    machine: Resources  # free resources
    findings: tuple[Finding, ...] = ()  # reasons why it would not run or fit; empty if it will

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
        """The plan as text, one fact per line."""
        if self.header_bytes:
            read = f"{_size(self.header_bytes)} of it read"
        elif self.architecture:  # known without a header: from the folder's config.json
            read = "a folder"
        else:
            read = "not read"
        rows = [("licence", self.licence or "not stated"), ("access", self._access())]
        if self.architecture or self.header_bytes:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in self.encodings.items())
            context = f"{self.context_length:,}" if self.context_length else "unknown"
            weights = f"{self.parameters:,} weights"
            rows += [
                ("architecture", f"{self.architecture or 'not stated'}, {weights}"),
                ("encodings", shares or "none: a vocabulary without weights"),
                ("weights", self.basis),
                ("context", f"{context} tokens"),
                ("tokenizer", self.tokenizer),
                ("chat template", "yes" if self.chat_template else "no"),
            ]
        context = f" with {self.memory_context:,} tokens of context" if self.memory_context else ""
        free = _size(self.machine.free_memory)
        rows.append(("disk", f"{_size(self.machine.free_disk)} free"))
        rows.append(("memory", f"about {_size(self.memory_bytes)}{context}, {free} free"))
        rows += [("", text) for text in self._memory_parts()]
        rows.append(("runs here", "yes" if self.runs else "no"))
        yield f"{self.name}: {_size(self.size_bytes)} ({read})"
        yield from (f"  {label:<15}{text}" for label, text in rows if text)
        yield from (f"    {line}" for line in render(self.findings))

    def _memory_parts(self) -> Iterator[str]:
        if (memory := self.memory) is None:
            return
        weights = f"{_size(memory.weights)} of weights ({_size(memory.touched)} read per token)"
        cache = f"{_size(memory.cache)} of cache ({_size(memory.cache_q8)} with --kv-type q8)"
        yield f"{weights}, {cache}, {_size(memory.rest)} of activations and the like"
        if memory.experts and memory.least <= (self.machine.free_memory or 0) < memory.total:
            mapped = f"{_size(memory.experts)} of experts stay in the file"
            yield f"{mapped}, slower, most of all where they are read again"

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
            if error.needs > LARGEST_HEADER:
                raise InvalidFormat(
                    f"{label}: the header is longer than {_size(LARGEST_HEADER)}",
                    hint="the file is damaged: fetch it again",
                ) from error
            count = min(max(2 * len(buffer), error.needs), LARGEST_HEADER)


def plan_model(
    read: Callable[[int, int], bytes],
    machine: Resources,
    *,
    name: str,
    size: int | None,
    **origin: Any,
) -> ModelPlan:
    """Requirements of a GGUF file on *machine*.

    *read* returns its bytes, as for :func:`read_header`. *origin* has fields of the plan that the
    server knows: ``licence``, ``gated``.
    """
    gguf, count = read_header(read, size=size, label=name)
    return _plan_gguf(gguf, machine, name=name, size_bytes=size, header_bytes=count, **origin)


def _plan_gguf(gguf: GGUF, machine: Resources, *, licence: str = "", **facts: Any) -> ModelPlan:
    stated_licence = gguf.metadata.get("general.license")
    empty = np.empty(0, np.uint8)
    experts_used = gguf.metadata.get(f"{gguf.architecture}.expert_used_count")

    has_template = isinstance(gguf.metadata.get("tokenizer.chat_template"), str)

    def describe() -> tuple[str, bool]:
        spec = spec_from_gguf(gguf)
        return f"embedded, complete: {spec.model}, {len(spec.tokens):,} tokens", has_template

    plan = _plan(
        [Weight(tensor.name, tensor.shape, tensor.type, empty) for tensor in gguf.tensors.values()],
        config_of_header(gguf),
        experts_used if isinstance(experts_used, int) else 0,
        describe,
        _format_findings(gguf),
        licence=licence or (stated_licence if isinstance(stated_licence, str) else ""),
        architecture=gguf.architecture,
        basis=describe_basis(gguf.metadata),
        machine=machine,
        **facts,
    )
    # A damaged tokenizer does not hide the template beside it.
    return replace(plan, vocab_size=vocabulary(gguf).size, chat_template=has_template)


def _plan(
    tensors: Collection[Weight],
    config: ModelConfig | None,
    experts_used: int,
    describe_tokenizer: Callable[[], tuple[str, bool]],
    findings: Iterable[Finding] = (),
    **facts: Any,
) -> ModelPlan:
    """The plan of a model with *tensors*, whose bytes need not be read.

    Args:
        tensors: all of the model.
        config: its configuration; None if the model is refused, so that its memory is unknown.
        experts_used: number of experts that a token uses.
        describe_tokenizer: returns a description of the tokenizer, and True if there is a chat
            template; an error that it raises becomes a finding.
        findings: problems that are already known.
        facts: other fields of the plan.
    """
    sizes: Counter[str] = Counter()
    for weight in tensors:
        sizes[weight.quant.name] += _bytes_in_file(weight)
    parts = None
    context = 0
    if config is not None:
        context = min(CONTEXT, config.context_length)
        configs = (replace(config, kv_type=kv_type) for kv_type in get_args(KVType))
        caches = [KVCache(variant, context).cost(context, PREFILL_CHUNK) for variant in configs]
        parts = MemoryParts.of(tensors, experts_used, caches, writes=config.writes)
    problems = [*findings]
    template = False
    try:
        tokenizer, template = describe_tokenizer()
    except BitnetError as error:
        tokenizer = error.message
        problems.append(Finding.of("tokenizer", error))
    plan = ModelPlan(
        parameters=sum(math.prod(weight.shape) for weight in tensors),
        encodings={name: size / (sizes.total() or 1) for name, size in sizes.most_common()},
        context_length=None if config is None else config.context_length,
        vocab_size=None if config is None else config.vocab_size,
        tokenizer=tokenizer,
        has_tokenizer=not any(problem.subject == "tokenizer" for problem in problems),
        chat_template=template,
        memory_bytes=None if parts is None else parts.total,
        memory_context=context,
        memory=parts,
        **facts,
    )
    return _judge(plan, problems)


def plan_path(path: Path, machine: Resources, **origin: Any) -> ModelPlan:
    """Requirements of the model at *path*, which :func:`open_checkpoint` opens, on *machine*.

    *origin* has further fields of the plan, as in :func:`plan_model`.
    """
    if container_of(path) is not open_gguf:
        return _plan_folder(open_checkpoint(path), machine, **origin)
    with GGUF.open(path) as gguf:
        facts: dict[str, Any] = {
            "size_bytes": gguf.size,
            "header_bytes": gguf.data_offset,
            "local": True,
        }
        return _plan_gguf(gguf, machine, name=path.name, **facts, **origin)


def plan_unread(name: str, size: int | None, machine: Resources, **origin: Any) -> ModelPlan:
    """Plan for a file that cannot be read in parts, from its size alone."""
    plan = ModelPlan(
        name=name,
        size_bytes=size,
        tokenizer="not known before it is fetched",
        memory_bytes=None if size is None else size + OVERHEAD_BYTES,
        machine=machine,
        **origin,
    )
    return _judge(plan)


def _plan_folder(checkpoint: Checkpoint, machine: Resources, **origin: Any) -> ModelPlan:
    def describe() -> tuple[str, bool]:
        tokenizer = resolve_tokenizer(checkpoint)
        text = f"{tokenizer.source}: {tokenizer.vocab_size:,} tokens"
        return text, tokenizer.chat_template is not None

    return _plan(
        checkpoint.weights.values(),
        config_from(checkpoint),
        checkpoint.integer("expert_used_count", 0),
        describe,
        name=checkpoint.path.name,
        size_bytes=_weights_size(checkpoint),
        local=True,
        architecture=checkpoint.architecture,
        machine=machine,
        **origin,
    )


def _weights_size(checkpoint: Checkpoint) -> int:
    """Bytes of the files of a folder that hold its weights, without copies that are not read."""
    names = (name for name in checkpoint.inventory.names if name.endswith(".safetensors"))
    return sum(checkpoint.inventory.path(name).stat().st_size for name in names)


def _judge(plan: ModelPlan, findings: Iterable[Finding] = ()) -> ModelPlan:
    """*plan* with *findings*, and with those about free disk and memory of its machine."""
    size = plan.size_bytes
    disk = plan.machine.free_disk
    free = plan.machine.free_memory
    needs = plan.memory_bytes if plan.memory is None else plan.memory.least
    problems = [*findings]
    if not plan.local and size is not None and disk is not None and size > disk:
        text = f"the file has {_size(size)}, the disk {_size(disk)} free"
        problems.append(Finding("failed", "disk", text))
    if needs is not None and free is not None and needs > free:
        text = f"it needs about {_size(needs)}, {_size(free)} are free"
        problems.append(Finding("failed", "memory", text))
    return replace(plan, findings=tuple(problems))


def this_machine(folder: Path) -> Resources:
    """Free disk space for *folder*, and memory that programs can still use."""
    try:
        disk: int | None = free_space(folder)
    except BitnetError:
        disk = None
    return Resources(disk, free_memory())


def _format_findings(gguf: GGUF) -> Iterator[Finding]:
    if gguf.architecture not in ARCHITECTURES:
        refused = architecture_refusal(gguf.architecture, ARCHITECTURES, kind="quantized ")
        yield Finding.of("architecture", refused)
    if not gguf.tensors:
        yield Finding("failed", "weights", "it has none, only metadata")
    kinds = {tensor.type for tensor in gguf.tensors.values()}
    unreadable = sorted(kind.name for kind in kinds if not _decodable(kind))
    if unreadable:
        yield Finding("failed", "encodings", f"no decoder for {', '.join(unreadable)}")


def _decodable(quant: QuantType) -> bool:
    """True if the weights can be decoded, tested with a matrix of zero bits."""
    # Types that interleave rows need four of them, those that group columns 128.
    shape = 4, math.lcm(quant.block_size, 128)
    try:
        dequantize(Weight("probe", shape, quant, np.zeros(quant.size_bytes(shape) or 0, np.uint8)))
    except BitnetError:
        return False
    return True


def _bytes_in_file(weight: Weight) -> int:
    """Bytes of *weight* in its file; by its shape if the type allows, as it may not be read."""
    return weight.quant.size_bytes(weight.shape) or weight.size_bytes


def _size(count: int | None) -> str:
    return "unknown" if count is None else human_size(count)
