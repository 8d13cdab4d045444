"""Weights in a rotated basis, as the keys ``prism.hadamard.*`` of a GGUF file describe them.

The input of such a matrix is first replaced by ``H(signs * x)``: it is multiplied by signs, which
depend on its width, and then each block of its columns goes through the Walsh-Hadamard transform.
Rows of an embedding in that basis are turned back by ``signs * H(row)``. The encoding of the
weights does not tell if they are rotated: only these keys do, which were defined with Bonsai 2.
Without the transform such a model generates nothing but noise, so unknown keys and values are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from bitnet.families.keys import Keys

#: Beginning of the keys.
PREFIX = "prism.hadamard."
# The only values of these keys that are computed.
_KNOWN = {
    "version": 1,
    "transform": "normalized-sylvester-walsh-hadamard",
    "axis": "input-last-dimension",
}
# The other keys, whose values are read.
_READ = (
    *("block_size", "sign_mode", "sign_widths", "sign_values", "weight_names"),
    *("inverse_weight_names", "gdn_v_grouped"),
)
_LARGEST_BLOCK = 1 << 16  # far above published models


@dataclass(frozen=True, eq=False)
class HadamardBasis:
    """The rotated basis of some matrices of a model."""

    block: int  # columns that are transformed together, a power of two
    # signs of the columns, 1 or -1, by the width of a matrix; all signs of a missing width are 1
    signs: Mapping[int, NDArray[np.float32]]
    weights: frozenset[str]  # names of the matrices whose inputs are transformed
    embeddings: frozenset[str]  # names of the matrices whose rows are transformed back
    # inputs of a rotated ``ssm_out`` are ordered as in transformers' folders: neighbouring heads
    # share a key head
    grouped: bool = False

    def signs_of(self, width: int) -> NDArray[np.float32]:
        """Signs of *width* columns."""
        signs = self.signs.get(width)
        return np.ones(width, dtype=np.float32) if signs is None else signs


def hadamard_basis(checkpoint: Keys) -> HadamardBasis | None:
    """The basis that the keys of *checkpoint* describe, or None if its weights are not rotated."""
    keys = {
        key.removeprefix(PREFIX): value
        for key, value in checkpoint.metadata.items()
        if key.startswith(PREFIX)
    }
    if not keys:
        return None
    for key, is_right, expected in _checks(keys, checkpoint.weights):
        if not is_right:
            # a wrong value of a key that is read is damage, anything else a newer version of keys
            error = InvalidFormat if key in _READ else Unsupported
            raise error(
                f"{checkpoint.path.name}: {PREFIX}{key} is {keys.get(key)!r:.80}, expected "
                f"{expected}: the weights are in a basis that is not known",
                hint="update bitnet, fetch the file again, or choose another file of this model",
            )
    has_signs = keys["sign_mode"] == "explicit"
    widths, values = (
        list(keys.get(key, ())) if has_signs else [] for key in ("sign_widths", "sign_values")
    )
    # the last part, behind all widths, is empty and is not in the dict
    parts = np.split(np.array(values, dtype=np.float32), np.cumsum(widths, dtype=int))
    return HadamardBasis(
        keys["block_size"],
        dict(zip(widths, parts, strict=False)),
        frozenset(keys["weight_names"]),
        frozenset(keys.get("inverse_weight_names", ())),
        keys.get("gdn_v_grouped", False),
    )


def _checks(keys: Mapping[str, Any], tensors: Mapping[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Checks in order: a key, True if its value is right, and a text with the expected value.

    A later check relies on the earlier ones: the caller stops at the first that fails.
    """
    for key in keys:
        yield key, key in _READ or key in _KNOWN, "no such key"
    for key, expected in _KNOWN.items():
        yield key, keys.get(key) == expected, repr(expected)
    block = keys.get("block_size")
    mode = keys.get("sign_mode")
    is_size = type(block) is int and 2 <= block <= _LARGEST_BLOCK and not block & (block - 1)
    yield "block_size", is_size, "a power of two"
    yield "weight_names", "weight_names" in keys, "names of tensors"
    for key in ("weight_names", "inverse_weight_names", "sign_widths", "sign_values"):
        entries = keys.get(key, ())
        yield key, isinstance(entries, Iterable) and not isinstance(entries, str), "a list"
    for key in ("weight_names", "inverse_weight_names"):
        names = list(keys.get(key, ()))
        are_tensors = all(isinstance(name, str) and name in tensors for name in names)
        yield key, are_tensors and len(set(names)) == len(names), "names of tensors, once each"
    embeddings = list(keys.get("inverse_weight_names", ()))
    is_embedding = not set(embeddings) - {"token_embd.weight"}
    yield "inverse_weight_names", is_embedding, "the token embedding at most"
    names = [*embeddings, *keys["weight_names"]]
    have_columns = all(tensors[name].shape for name in names)
    yield "weight_names", have_columns, "names of matrices"
    columns = {tensors[name].shape[-1] for name in names}
    yield (
        "block_size",
        not any(width % block for width in columns),
        f"a divisor of {sorted(columns)}",
    )
    yield "sign_mode", mode in ("explicit", "identity"), "explicit or identity"
    if mode == "explicit":
        widths = list(keys.get("sign_widths", ()))
        values = list(keys.get("sign_values", ()))
        are_sizes = all(type(width) is int and width > 0 for width in widths)
        is_whole = are_sizes and len(set(widths)) == len(widths) and columns <= set(widths)
        yield "sign_widths", is_whole, f"different widths, {sorted(columns)} among them"
        are_signs = all(type(value) is int and abs(value) == 1 for value in values)
        yield "sign_values", are_signs and len(values) == sum(widths), "1 or -1 for every column"
    # this key is required if ``ssm_out`` is rotated, and must not be true otherwise
    is_recurrent = any(name.endswith(".ssm_out.weight") for name in names)
    grouped = keys.get("gdn_v_grouped", None if is_recurrent else False)
    is_flag = type(grouped) is bool and (is_recurrent or not grouped)
    yield "gdn_v_grouped", is_flag, "a flag, with a rotated ssm_out"
