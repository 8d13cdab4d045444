"""Requirements of running a model in a local folder: ``config.json`` with safetensors files."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.base.errors import BitnetError
from bitnet.base.findings import Finding
from bitnet.formats.containers import open_checkpoint
from bitnet.models.load import config_from
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.scheduler import PREFILL_CHUNK
from bitnet.sheet.plan import (
    CONTEXT,
    OVERHEAD_BYTES,
    ModelOrigin,
    ModelPlan,
    Resources,
    plan_file,
    room_findings,
)
from bitnet.tokenizer import resolve_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer import Tokenizer


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
    cache = KVCache(config, context).cost(context, PREFILL_CHUNK)
    needs = total + cache + OVERHEAD_BYTES
    tokenizer = _tokenizer(checkpoint)
    findings = list(room_findings(origin, None, needs, machine))
    if isinstance(tokenizer, BitnetError):
        findings.append(Finding.of("tokenizer", tokenizer))
    size = sum(file.stat().st_size for file in checkpoint.path.glob("*.safetensors"))
    return ModelPlan(
        name=checkpoint.path.name,
        size_bytes=size,
        header_bytes=0,
        licence=origin.licence,
        gated=origin.gated,
        local=True,
        architecture=checkpoint.architecture,
        parameters=sum(math.prod(weight.shape) for weight in checkpoint.weights.values()),
        encodings={name: nbytes / total for name, nbytes in shares},
        basis="",
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        tokenizer=_describe(tokenizer),
        has_tokenizer=not isinstance(tokenizer, BitnetError),
        chat_template=bool(getattr(tokenizer, "chat_template", None)),
        memory_bytes=needs,
        memory_context=context,
        machine=machine,
        findings=tuple(findings),
    )


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer | BitnetError:
    """The tokenizer that the model would use, or the error if there is none."""
    try:
        return resolve_tokenizer(checkpoint)
    except BitnetError as error:
        return error


def _describe(tokenizer: Tokenizer | BitnetError) -> str:
    if isinstance(tokenizer, BitnetError):
        return tokenizer.message
    return f"{tokenizer.source}: {tokenizer.vocab_size:,} tokens"
