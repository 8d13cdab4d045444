"""Containers of models, and the function that opens all of them.

checkpoint = open_checkpoint("model.gguf")       # or a folder with safetensors files
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bitnet.base.errors import UsageError, from_os_error
from bitnet.formats import gguf_checkpoint, not_a_model, safetensors
from bitnet.quants import registry

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.weight import Weight

__all__ = ["CONTAINERS", "Container", "I2SLayout", "container_of", "open_checkpoint"]

logger = logging.getLogger(__name__)

I2SLayout = Literal["x86", "arm"]


@dataclass(frozen=True)
class Container:
    """A file format for models.

    Attributes:
        recognises: identifies it by the first bytes of a file, or by the content of a folder.
        open: opens the model at a recognised path, without the ignored keys.
    """

    recognises: Callable[[Path], bool]
    open: Callable[[Path, Collection[str]], Checkpoint]


def _open_folder(path: Path, ignore_keys: Collection[str]) -> Checkpoint:
    from bitnet.formats.hf_checkpoint import open_folder  # what a GGUF file does without

    return open_folder(path, ignore_keys)


CONTAINERS = {
    "GGUF": Container(gguf_checkpoint.recognises, gguf_checkpoint.open_gguf),
    "safetensors": Container(safetensors.recognises, _open_folder),
}


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    i2_s_layout: I2SLayout = "x86",
    ignore_keys: Collection[str] = (),
) -> Checkpoint:
    """The model at *path*: a GGUF file, a safetensors file, or a folder with safetensors files.

    Args:
        path: identified by its first bytes, not by its name.
        i2_s_layout: the processor that wrote I2_S weights; no file records it.
        ignore_keys: metadata keys to ignore.
    """
    if i2_s_layout not in get_args(I2SLayout):
        raise UsageError(f"i2_s_layout is {i2_s_layout!r}, expected x86 or arm")
    path = Path(path)
    started = time.perf_counter()
    checkpoint = container_of(path).open(path, ignore_keys)
    checkpoint = replace(checkpoint, opened_s=time.perf_counter() - started)
    for key, value in checkpoint.ignored.items():
        logger.warning("%s: the key %s = %.80r is ignored", path.name, key, value)
    if i2_s_layout == "arm":
        arm = {name: _of_arm(weight) for name, weight in checkpoint.weights.items()}
        return replace(checkpoint, weights=arm)
    return checkpoint


def container_of(path: Path) -> Container:
    """The container at *path*, by its first bytes; the file may still be damaged."""
    try:
        if not path.exists():
            raise not_a_model.missing(path)
        if path.is_file() and not path.stat().st_size:
            raise not_a_model.empty(path.name)
        for container in CONTAINERS.values():
            if container.recognises(path):
                return container
        if path.is_dir():
            raise not_a_model.folder_without_model(path)
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        raise from_os_error(error, path) from error
    raise not_a_model.other_kind(head, path.name)


def _of_arm(weight: Weight) -> Weight:
    return replace(weight, quant=registry.I2_S_ARM) if weight.quant.name == "I2_S" else weight
