"""A tensor without dimensions, a single number, is refused wherever a family reads a matrix."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny_keys

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.families.family import families, of_gguf
from bitnet.families.hadamard import hadamard_basis
from bitnet.families.keys import Keys

ARCHITECTURES = sorted(name for family in families() for name in family.architectures)


@dataclass(frozen=True)
class Shape:
    """A tensor of which only the shape matters."""

    shape: tuple[int, ...]


class Recording(dict):
    """Tensors by name, which records the names that are asked for."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []

    def __contains__(self, name):
        self.asked.append(name)
        return super().__contains__(name)

    def get(self, name, default=None):
        self.asked.append(name)
        return super().get(name, default)


class Tiny(Keys):
    """Keys of a tiny model whose vectors, where it has the tensor, are of ones."""

    def numbers(self, name, shape):
        return np.ones(shape, dtype=np.float32) if name in self.weights else None


def read(keys):
    """The model that the family of *keys* makes of them, or None if it refuses them."""
    try:
        return of_gguf(keys.architecture).decoder(keys)
    except (InvalidFormat, Unsupported):
        return None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_decoder_reads_or_refuses_a_tensor_that_is_a_single_number(architecture):
    embedding = {"token_embd.weight": Shape((tiny_keys.VOCAB, tiny_keys.DIM))}
    weights = Recording(embedding)
    keys = Tiny(
        path=Path("f.gguf"),
        architecture=architecture,
        metadata=tiny_keys.metadata(architecture),
        weights=weights,
        rope_style="half",
    )
    read(keys)
    assert weights.asked
    # Each tensor that the family looks for: it must be read or refused, without another error.
    for name in set(weights.asked):
        read(replace(keys, weights={**embedding, name: Shape(())}))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("gemma3n", "blk.0.laurel_l.weight"),
        ("gemma3n", "per_layer_token_embd.weight"),
        ("jina-bert-v2", "blk.0.ffn_up.weight"),
        ("laguna", "blk.0.attn_gate.weight"),
        ("bert", "token_types.weight"),
    ],
)
def test_a_single_number_where_rows_are_counted_is_refused_by_its_name(architecture, name):
    embedding = Shape((tiny_keys.VOCAB, tiny_keys.DIM))
    keys = Tiny(
        path=Path("f.gguf"),
        architecture=architecture,
        metadata=tiny_keys.metadata(architecture),
        weights={"token_embd.weight": embedding, name: Shape(())},
        rope_style="half",
    )
    with pytest.raises(InvalidFormat, match=f"{name} is a single number, expected a matrix"):
        of_gguf(architecture).decoder(keys)


def test_a_single_number_among_rotated_matrices_is_refused():
    name = "blk.0.attn_q.weight"
    rotated = {
        "version": 1,
        "transform": "normalized-sylvester-walsh-hadamard",
        "axis": "input-last-dimension",
        "block_size": 256,
        "weight_names": [name],
        "sign_mode": "identity",
    }
    keys = Keys(
        path=Path("f.gguf"),
        architecture="llama",
        metadata={f"prism.hadamard.{key}": value for key, value in rotated.items()},
        weights={name: Shape(())},
        rope_style="half",
    )
    with pytest.raises(InvalidFormat, match=r"weight_names is .*, expected names of matrices"):
        hadamard_basis(keys)
