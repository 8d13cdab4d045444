"""Weights in a rotated basis, as the keys ``prism.hadamard.*`` of a GGUF file describe them.

The inputs of such a matrix go through ``H(signs * x)`` first: signs by the width of the input, then
the Walsh-Hadamard transform of each block of columns. Rows of an embedding in that basis come back
by ``signs * H(row)``. The encoding of the weights is another matter: float16 files are rotated as
well, and files of the same encodings without these keys are not. The keys were defined with
Bonsai 2; without the transform such a model writes nothing but noise, so whatever is not known here
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bitnet.families.keys import Keys

_PREFIX = "prism.hadamard."
_KNOWN = {
    "version": 1,
    "transform": "normalized-sylvester-walsh-hadamard",
    "axis": "input-last-dimension",
}
_READ = (
    *("block_size", "sign_mode", "sign_widths", "sign_values", "weight_names"),
    *("inverse_weight_names", "gdn_v_grouped"),
)
_LARGEST_BLOCK = 1 << 16
_HINT = "fetch the file again; or another file of this model"


@dataclass(frozen=True, eq=False)
class HadamardBasis:
    """The basis of some matrices."""

    block: int  # columns that are transformed together, a power of two
    # 1 and -1 for every column, by width; without the width: all are 1
    signs: Mapping[int, NDArray[np.float32]]
    weights: frozenset[str]  # names of the matrices whose inputs are transformed
    embeddings: frozenset[str]  # names of those whose rows are transformed back
    # inputs of a rotated ``ssm_out`` are ordered as in transformers' folders: neighbouring heads
    # share a key head
    grouped: bool = False

    def signs_of(self, width: int) -> NDArray[np.float32]:
        """Signs of *width* columns."""
        signs = self.signs.get(width)
        return np.ones(width, dtype=np.float32) if signs is None else signs


def hadamard_basis(checkpoint: Keys) -> HadamardBasis | None:
    """The basis that *checkpoint* names; ``None``: its weights are not rotated."""
    keys = {
        key.removeprefix(_PREFIX): value
        for key, value in checkpoint.metadata.items()
        if key.startswith("prism.") and key.startswith(_PREFIX)
    }
    if not keys:
        return None
    label = checkpoint.path.name
    for key, value in keys.items():
        if key not in _READ and (key not in _KNOWN or value != _KNOWN[key]):
            raise Unsupported(
                f"{label}: {_PREFIX}{key} is {value!r:.80}, expected "
                f"{_KNOWN.get(key, 'no such key')!r}: the weights are in a basis that is not known",
                hint="update bitnet, or choose another file of this model",
            )
    for key in (*_KNOWN, "block_size", "sign_mode", "weight_names"):
        if key not in keys:
            raise _wrong(label, key, "missing")
    block = keys["block_size"]
    if type(block) is not int or not 2 <= block <= _LARGEST_BLOCK or block & (block - 1):
        raise _wrong(label, "block_size", f"{block!r:.80}, expected a power of two")
    weights = _names(label, "weight_names", keys, checkpoint)
    embeddings = _names(label, "inverse_weight_names", keys, checkpoint)
    if embeddings - {"token_embd.weight"}:
        raise _wrong(label, "inverse_weight_names", "more than the token embedding")
    is_recurrent = any(name.endswith(".ssm_out.weight") for name in weights)
    grouped = keys.get("gdn_v_grouped", None if is_recurrent else False)
    if type(grouped) is not bool or (grouped and not is_recurrent):
        raise _wrong(label, "gdn_v_grouped", f"{grouped!r:.80}, expected a rotated ssm_out with it")
    basis = HadamardBasis(block, _signs(label, keys), weights, embeddings, grouped)
    for name in weights | embeddings:
        width = checkpoint.weights[name].shape[-1]
        if width % block:
            raise _wrong(label, "block_size", f"{block}, which does not divide {name}'s {width}")
        if keys["sign_mode"] == "explicit" and width not in basis.signs:
            raise _wrong(label, "sign_widths", f"without {width}, the width of {name}")
    return basis


def _names(label: str, key: str, keys: Mapping[str, Any], checkpoint: Keys) -> frozenset[str]:
    names = _entries(label, key, keys)
    unknown = [n for n in names if not isinstance(n, str) or n not in checkpoint.weights]
    if unknown or len(set(names)) != len(names):
        raise _wrong(label, key, f"with {unknown[:1] or 'a name twice'!s}, not a tensor each")
    return frozenset(names)


def _signs(label: str, keys: Mapping[str, Any]) -> dict[int, NDArray[np.float32]]:
    mode = keys["sign_mode"]
    if mode == "identity":
        return {}
    if mode != "explicit":
        raise Unsupported(
            f"{label}: {_PREFIX}sign_mode is {mode!r:.80}, expected 'explicit' or 'identity'",
            hint=_HINT,
        )
    widths = _entries(label, "sign_widths", keys)
    values = _entries(label, "sign_values", keys)
    are_sizes = all(type(width) is int and width > 0 for width in widths)
    if not are_sizes or len(set(widths)) != len(widths):
        raise _wrong(label, "sign_widths", "not different widths")
    if len(values) != sum(widths) or not all(type(v) is int and abs(v) == 1 for v in values):
        raise _wrong(label, "sign_values", "not a 1 or -1 for every column of sign_widths")
    parts = np.split(np.array(values, dtype=np.float32), np.cumsum(widths)[:-1]) if widths else []
    return dict(zip(widths, parts, strict=True))


def _entries(label: str, key: str, keys: Mapping[str, Any]) -> list[Any]:
    """The list *key*; empty if there is none."""
    entries = keys.get(key, ())
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise _wrong(label, key, f"{entries!r:.80}, expected a list")
    return list(entries)


def _wrong(label: str, key: str, problem: str) -> InvalidFormat:
    return InvalidFormat(f"{label}: {_PREFIX}{key} is {problem}", hint=_HINT)
