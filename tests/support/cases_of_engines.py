"""Tiny models that are compared with other engines, by what the engines compute of them."""

from llama_cpp_models import CASES, OF_EXPERTS, OF_STATES
from tiny_keys import ENCODERS, FAMILIES, LAYERED

from bitnet.families.family import of_gguf

#: Tiny models for llama.cpp by case: an architecture, and keys that differ from the usual ones.
THEIRS = (
    {name: (name, {}) for name in (*FAMILIES, *ENCODERS, *LAYERED)} | CASES | OF_STATES | OF_EXPERTS
)
#: Architectures of models of which `crossval` compares vectors.
OF_VECTORS = (*ENCODERS, "gemma-embedding", "llama-embed")


def _writes_as_here(architecture: str) -> bool:
    """True if llama.cpp computes logits of models of *architecture* as this package does."""
    family = of_gguf(architecture)
    assert family is not None, "the tiny models are of known families"
    engine = family.llama_cpp  # whose *always* names a difference that every model has
    return architecture not in OF_VECTORS and engine is not None and not engine.always


#: Models whose logits llama.cpp computes as this package does.
DECODERS = {name: case for name, case in THEIRS.items() if _writes_as_here(case[0])}
