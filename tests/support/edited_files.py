"""Copies of GGUF files with one key or the head changed, and what llama.cpp makes of each."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from builders import Tensor, Typed, write_gguf

from bitnet.base.settings import child_environment
from bitnet.formats.containers import open_gguf
from bitnet.formats.gguf_header import Array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REFUSED = "refused"
_PATIENCE = 90  # seconds for some twenty files, which take a few
# Keys without which no model is; with 0, a program may do anything.
_SIZES = ("block_count", "context_length", "embedding_length", "vocab_size")


def without_each_key(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each key of its architecture in the file *source*, and a copy in *folder* without it."""
    metadata, tensors = _contents(source)
    architecture = metadata["general.architecture"]
    for number, key in enumerate(sorted(metadata)):
        if key.startswith(f"{architecture}."):
            rest = {name: value for name, value in metadata.items() if name != key}
            yield key, write_gguf(folder / f"{number}.gguf", rest, tensors)


def with_each_key_changed(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each key of numbers or truths in *source*, and a copy in *folder* where they are others.

    Numbers are 0, or 1 where they were 0. Sizes that every tensor shows are left as they are.
    """
    metadata, tensors = _contents(source)
    architecture = metadata["general.architecture"]
    for number, key in enumerate(sorted(metadata)):
        name = key.removeprefix(f"{architecture}.")
        changed = _changed(metadata[key])
        if name == key or name in _SIZES or changed is None:
            continue
        yield key, write_gguf(folder / f"c{number}.gguf", metadata | {key: changed}, tensors)


def _changed(value: Any) -> Any:
    """Another value than *value*; ``None`` for texts and empty arrays."""
    if isinstance(value, Typed):
        items = [_changed(item) for item in value.value]
        return Typed(value.type, items) if items and None not in items else None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(0 if value else 1)
    return None


def with_head(source: Path, target: Path, *, tied: bool) -> Path:
    """A copy of *source* whose head is its embedding, which is stored once more if not *tied*."""
    metadata, tensors = _contents(source)
    tensors = [tensor for tensor in tensors if tensor.name != "output.weight"]
    if not tied:
        embedding = next(tensor for tensor in tensors if tensor.name == "token_embd.weight")
        tensors.append(replace(embedding, name="output.weight"))
    return write_gguf(target, metadata, tensors)


def _contents(source: Path) -> tuple[dict[str, Any], list[Tensor]]:
    checkpoint = open_gguf(source)
    metadata = {
        key: Typed(value._type, list(value)) if isinstance(value, Array) else value
        for key, value in checkpoint.metadata.items()
    }
    tensors = [
        Tensor(weight.name, weight.shape, weight.quant.ggml_id, weight.data.tobytes())
        for weight in checkpoint.weights.values()
    ]
    return metadata, tensors


def llama_cpp_logits(files: Sequence[Path], ids: Sequence[int], folder: Path) -> list[Any]:
    """For each of *files* the logits of llama.cpp (ids, vocabulary), or why there are none.

    One process asks for file after file; another one goes on where it crashed or did not end.
    """
    results: list[Any] = []
    while len(results) < len(files):
        asked = folder / "asked.json"
        rest = [str(file) for file in files[len(results) :]]
        asked.write_text(json.dumps([rest, [int(token) for token in ids]]))
        try:
            done = subprocess.run(
                [sys.executable, __file__, str(asked), str(folder)],
                capture_output=True,
                env=child_environment(GGML_NO_BACKTRACE="1"),
                timeout=_PATIENCE,
                check=False,
            )
            failure = f"crashed with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            failure = "does not end"
        for number in range(len(rest)):
            found = folder / f"{number}.npy"
            if not found.exists():
                break
            logits = np.load(found)
            results.append(logits if logits.size else REFUSED)
            found.unlink()
        if failure:
            results.append(failure)
    return results


def _main(asked: str, folder: str) -> None:
    import ctypes
    from importlib import import_module

    from bitnet.crossval.llama_library import Llama
    from bitnet.crossval.trace import EngineFailed

    files, ids = json.loads(Path(asked).read_text())
    module = Path(str(import_module("xllamacpp.xllamacpp").__file__))
    library = ctypes.CDLL(str(module))
    for number, file in enumerate(files):
        try:
            model = Llama(library, Path(file), module, threads=1, half_cache=False)
            with model.context(max(64, len(ids))) as forward:
                logits = forward(ids)
        except EngineFailed:
            logits = np.zeros(0, np.float32)
        np.save(Path(folder) / f"{number}.npy", logits)


if __name__ == "__main__":
    _main(*sys.argv[1:])
