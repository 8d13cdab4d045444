"""Containers of models, and the function that opens all of them.

checkpoint = open_checkpoint("model.gguf")       # or a folder with safetensors files
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bitnet.base.errors import Unsupported, UsageError, from_os_error
from bitnet.base.files import open_file
from bitnet.families.family import WINDOWS, Family, of_gguf
from bitnet.families.keys import RopeStyle, without
from bitnet.formats import mapped_file, safetensors
from bitnet.formats.checkpoint import Checkpoint, Inventory, has_input_norms, resolve_unnamed
from bitnet.formats.gguf import GGUF, MAGIC
from bitnet.formats.other_folders import refuse_other_folder
from bitnet.quants import registry

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping


logger = logging.getLogger(__name__)

I2SLayout = Literal["x86", "arm"]
#: Key and only value by which ``convert`` marks BitNet models, which round the inputs of their
#: ternary layers. It is needed where neither architecture nor encoding is BitNet's alone.
ROUNDED_INPUTS = ("quantize.activations", "int8 per token")


def open_gguf(path: Path, ignore_keys: Collection[str] = ()) -> Checkpoint:
    """The model in the GGUF file at *path*, without its *ignore_keys*."""
    gguf = GGUF.open(path)
    family = of_gguf(gguf.architecture)
    style: RopeStyle = family.gguf_rope_style if family else "half"
    metadata = without(gguf.metadata, ignore_keys) if ignore_keys else gguf.metadata
    ignored = {key: gguf.metadata[key] for key in gguf.metadata.keys() - metadata.keys()}
    ignored |= find_ignored_keys(metadata, gguf.architecture)
    metadata = effective_keys(metadata, gguf.architecture)
    rounds_inputs = _rounds_inputs(gguf, metadata, family)
    weights = {name: gguf.weight(name, rounds_input=rounds_inputs) for name in gguf.tensors}
    return Checkpoint(
        gguf.path,
        gguf.architecture,
        metadata,
        weights,
        style,
        gguf=gguf,
        ignored=ignored,
        rounds_inputs=rounds_inputs,
        inventory=Inventory.of_mapped(gguf.files),
    )


def effective_keys(metadata: Mapping[str, Any], architecture: str) -> Mapping[str, Any]:
    """*metadata* without the keys that llama.cpp does not read for *architecture*.

    GGUF files are converted for llama.cpp and tested there, so they are read as it reads them.
    """
    family = of_gguf(architecture)
    if family is None or family.llama_cpp is None:
        return metadata
    names = family.llama_cpp.ignores
    layers = family.llama_cpp.window_layers
    if layers and metadata.get(f"{architecture}.block_count") != layers:
        names += WINDOWS  # llama.cpp recognises models with windows by their number of layers
    ignored = {f"{architecture}.{name}" for name in names}
    return {key: value for key, value in metadata.items() if key not in ignored}


def find_ignored_keys(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Keys that :func:`effective_keys` leaves out, and that would have an effect, with values.

    A value of 0, false or nothing has no effect, nor has a window as long as the context.
    """
    left_out = metadata.keys() - effective_keys(metadata, architecture).keys()
    window = f"{architecture}.{WINDOWS[0]}"
    length = metadata.get(f"{architecture}.context_length")
    is_stated = isinstance(metadata.get(window), int) and isinstance(length, int)
    if is_stated and metadata[window] >= length:
        left_out -= {window}
    return {key: metadata[key] for key in sorted(left_out) if metadata[key]}


def _rounds_inputs(gguf: GGUF, metadata: Mapping[str, Any], family: Family | None) -> bool:
    """True if the model was trained with inputs of ternary layers rounded to int8 per token.

    Any of these shows it: the architecture, norms before every projection, a quantization type that
    only BitNet models have, or the key :data:`ROUNDED_INPUTS`.
    """
    key, per_token = ROUNDED_INPUTS
    if metadata.get(key, per_token) != per_token:
        raise Unsupported(
            f"{gguf.path.name}: {key} is {metadata[key]!r}, expected {per_token!r}",
            hint=f"ignore the key, so that ternary layers take floats: --ignore-key {key}",
        )
    return (
        key in metadata
        or (family is not None and family.rounds_inputs)
        or has_input_norms(gguf.tensors)
        or any(
            info.type.is_ternary and info.type.name not in registry.OF_ANY_MODEL
            for info in gguf.tensors.values()
        )
    )


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    i2_s_layout: I2SLayout = "x86",
    ignore_keys: Collection[str] = (),
) -> Checkpoint:
    """The model at *path*: a GGUF file, a safetensors file, or a folder with safetensors files.

    A file is identified by its first bytes, not by its name. *i2_s_layout* names the processor that
    wrote I2_S weights, which no file records. Keys in *ignore_keys* are left out.
    """
    if i2_s_layout not in get_args(I2SLayout):
        raise UsageError(f"i2_s_layout is {i2_s_layout!r}, expected x86 or arm")
    path = resolve_unnamed(Path(path))
    started = time.perf_counter()
    checkpoint = container_of(path)(path, ignore_keys)
    checkpoint = replace(checkpoint, opened_s=time.perf_counter() - started)
    for key, value in checkpoint.ignored.items():
        logger.warning("%s: the key %s = %.80r is ignored", path.name, key, value)
    if i2_s_layout == "arm":
        arm = {
            name: replace(weight, quant=registry.I2_S_ARM)
            for name, weight in checkpoint.weights.items()
            if weight.quant.name == "I2_S"
        }
        return replace(checkpoint, weights={**checkpoint.weights, **arm})
    return checkpoint


def container_of(path: Path) -> Callable[[Path, Collection[str]], Checkpoint]:
    """Function that opens the container at *path*, chosen by its first bytes alone.

    Its arguments are the path and the keys to ignore.
    """
    path = resolve_unnamed(path)
    try:
        if not path.exists():
            raise mapped_file.missing(path)
        head = b""
        if path.is_file():
            with open_file(path) as file:
                head = file.read(32)
            if not head:
                raise mapped_file.empty(path.name)
            if MAGIC.startswith(head[: len(MAGIC)]):  # also if the file ends within the magic
                return open_gguf
        if path.is_dir():
            refuse_other_folder(path)
        if safetensors.recognises(path):
            from bitnet.formats.hf_checkpoint import open_folder  # a GGUF file needs none of it

            return open_folder
        if path.is_dir():
            raise mapped_file.folder_without_model(path)
    except OSError as error:
        raise from_os_error(error, path) from error
    raise mapped_file.other_kind(head, path.name)
