"""Orders of rows and columns that GGUF expects, where a folder has others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.families.blocks import Attention, DeltaNet
from bitnet.families.family import of_gguf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint


def row_order(name: str, checkpoint: Checkpoint, config: ModelConfig) -> NDArray[np.intp] | None:
    """Order of rows that GGUF expects in the tensor *name*, or None if the rows stay as they are.

    Row i of the result is row ``order[i]`` of the folder's tensor.
    """
    for mixer, part in _mixers(name, config):
        if isinstance(mixer, DeltaNet) and mixer.grouped and not mixer.joined:
            heads, rows = _tile_heads(mixer)
            if part in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
                return heads
            if part == "attn_gate.weight":
                return rows
            if part in ("attn_qkv.weight", "ssm_conv1d.weight"):
                first = np.arange(2 * mixer.keys_width)
                return np.append(first, len(first) + rows)
        family = of_gguf(checkpoint.architecture)
        is_same_style = family is None or family.gguf_rope_style == checkpoint.rope_style
        match = re.fullmatch(r"attn_([qk])\.(?:weight|bias)", part)
        if isinstance(mixer, Attention) and match and not is_same_style:
            return _adjacent_pairs(mixer, match[1], checkpoint)
    return None


def column_order(name: str, config: ModelConfig) -> NDArray[np.intp] | None:
    """Order of columns that GGUF expects in the tensor *name*, as :func:`row_order`."""
    for mixer, part in _mixers(name, config):
        is_tiled = isinstance(mixer, DeltaNet) and mixer.grouped and not mixer.joined
        if is_tiled and part == "ssm_out.weight":
            assert isinstance(mixer, DeltaNet)
            return _tile_heads(mixer)[1]
    return None


def _mixers(name: str, config: ModelConfig) -> list[tuple[object, str]]:
    """Mixers of the block that the tensor *name* belongs to, with its name there."""
    match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if match is None or int(match[1]) >= len(config.blocks):
        return []
    block = config.blocks[int(match[1])]
    return [(mixer, match[2]) for branch in block for mixer in branch.every()]


def _tile_heads(mixer: DeltaNet) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Orders of heads and of their rows, in which the heads of one key head are apart.

    A folder has the value heads of a key head side by side; GGUF has them *key_heads* apart.
    """
    heads = np.arange(mixer.heads).reshape(mixer.key_heads, -1).T.reshape(-1)
    return heads, (heads[:, None] * mixer.value_dim + np.arange(mixer.value_dim)).reshape(-1)


def _adjacent_pairs(mixer: Attention, part: str, checkpoint: Checkpoint) -> NDArray[np.intp]:
    """Rows of each head with the halves of rotary pairs next to each other."""
    if mixer.rope is not None and mixer.rope.dims != mixer.head_dim:
        raise Unsupported(
            f"{checkpoint.path.name}: {mixer.rope.dims} of {mixer.head_dim} elements of a head "
            "are rotated; a GGUF file of this architecture cannot say that",
            hint="run the folder as it is",
        )
    heads = mixer.heads if part == "q" else mixer.kv_heads
    rows = np.arange(heads * mixer.head_dim).reshape(heads, 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)
