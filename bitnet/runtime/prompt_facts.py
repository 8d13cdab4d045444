"""Facts that the keys, values and states of a model depend on: stored prompts are bound to them."""

from __future__ import annotations

import hashlib
import io
import pickle
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet import __version__
from bitnet.base import settings
from bitnet.formats.mapped_file import files_behind
from bitnet.kernels.native import NativeOps
from bitnet.models.transformer import FACTORS
from bitnet.runtime.prompt_cache import PromptCache
from bitnet.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.cache.prompts import PromptFolder
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.mapped_file import MappedFile
    from bitnet.models.transformer import Model
    from bitnet.quants.weight import Weight


def open_prompt_cache(
    folder: PromptFolder, models: Mapping[str, tuple[Model, Checkpoint]], tokenizer: str
) -> PromptCache | None:
    """The stored prompts of a model in *folder*; None if they cannot be used with it.

    *models* has the model with each of its adapters, by the adapter's name (empty: without one);
    *tokenizer* is the digest of its tokenizer's source. A model cannot use stored prompts if its
    results depend on how a prompt is split, or if it does not write texts.
    """
    model, _ = models[""]
    if not (isinstance(model.ops, NativeOps) and model.config.looks_back and model.config.writes):
        return None
    facts = {
        name: PromptFacts(model, checkpoint, tokenizer)
        for name, (model, checkpoint) in models.items()
    }
    return PromptCache(folder, lambda adapter: facts[adapter].values)


class PromptFacts:
    """Everything that the keys, values and states of a model depend on, for one adapter."""

    def __init__(self, model: Model, checkpoint: Checkpoint, tokenizer: str) -> None:
        """Facts of *model*, loaded from *checkpoint*; *tokenizer* is the digest of its source."""
        of_adapters = {
            name
            for name in checkpoint.weights
            if name.endswith(FACTORS) or name in checkpoint.replaced
        }
        weights = [weight for name, weight in checkpoint.weights.items() if name not in of_adapters]
        self._adapters = [
            weight for name, weight in checkpoint.weights.items() if name in of_adapters
        ]
        self._files = files_behind(view for weight in weights for view in weight.views)
        # weights that were computed, not mapped from a file
        self._loose = [weight for weight in weights if not files_behind(weight.views)]
        self._description = repr([_describe(weight) for weight in weights])
        self._model = model
        self._tokenizer = tokenizer
        self._kv_type = checkpoint.kv_type

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Digests and versions, by name.

        ``weights`` is the same with every adapter that replaces no matrix of the model.
        """
        weights_digest = hashlib.sha256(self._description.encode())
        for file in self._files:
            weights_digest.update(self._digest_of(file).encode())
        for weight in self._loose:
            _add_bytes(weights_digest, weight)
        adapters_digest = hashlib.sha256()
        for weight in self._adapters:
            _add_bytes(adapters_digest, weight)
        ops = self._model.ops
        assert isinstance(ops, NativeOps), "others depend on how a prompt is split"
        kernels = Store(settings.cache_dir()).digest_of(Path(ops.module.__file__))
        return {
            "weights": weights_digest.hexdigest(),
            "tokenizer": self._tokenizer,
            "adapters": adapters_digest.hexdigest() if self._adapters else "",
            "version": __version__,
            "kv_type": self._kv_type,
            "kernels": f"{ops.name} {kernels}",
            "program": hashlib.sha256(_pickle(self._model.program)).hexdigest(),
        }

    def _digest_of(self, file: MappedFile) -> str:
        """SHA-256 of the bytes that are mapped, even if the path has led to another file since."""
        file.check()
        digest = Store(settings.cache_dir()).digest_of(file.path)
        current_status = file.path.stat()
        mapped_status = file.status
        if (current_status.st_dev, current_status.st_ino, current_status.st_mtime_ns) == (
            mapped_status.st_dev,
            mapped_status.st_ino,
            mapped_status.st_mtime_ns,
        ):
            return digest
        return hashlib.sha256(file).hexdigest()


def _describe(weight: Weight) -> tuple[Any, ...]:
    return weight.name, weight.shape, weight.quant.name, weight.scale, weight.rounds_input


def _add_bytes(digest: Any, weight: Weight) -> None:
    digest.update(repr(_describe(weight)).encode())
    for view in weight.views:
        digest.update(np.ascontiguousarray(view))


def _pickle(program: Any) -> bytes:
    """*program* as bytes that depend on its values alone, and not on which objects are shared."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=4)
    pickler.fast = True
    pickler.dump(program)
    return out.getvalue()
