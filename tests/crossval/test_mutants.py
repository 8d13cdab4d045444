"""Mutants: small errors of our graph fail against each reference, and the right graph passes."""

import importlib.util
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from hf_folders import tiny_folder, tokenizer_folder
from mutants import attending, mutated, rotated
from tiny_keys import LAYERS
from tiny_models import TOKENS, in_encoding, tiny, write_model

from bitnet import load
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.judge import judge
from bitnet.crossval.references import REFERENCES
from bitnet.crossval.run import cross_validate
from bitnet.formats.containers import open_checkpoint

pytestmark = pytest.mark.slow

# 560 random letters: longer than the window of 512 below, and without a repeated order.
LETTERS = "".join(np.random.default_rng(3).choice(TOKENS[3:55], 560))
TEXTS = ("abcdefg", LETTERS)
OPTIONS = CrossvalOptions(greedy=0, max_positions=24)
# By reference, a family with a sliding window that the reference reads.
FAMILIES = {
    "llama.cpp": "gemma3",
    "ik_llama.cpp": "gemma3",
    "transformers": "mistral",
    "float64": "gemma3",
}
# ik_llama.cpp knows a Gemma 3 by its number of layers, and aborts at a block of keys that no query
# of a batch sees.
WINDOWS = {
    "llama.cpp": {"attention.sliding_window": 16},
    "ik_llama.cpp": {"attention.sliding_window": 512, "block_count": 26},
    "float64": {"attention.sliding_window": 16},
}
MODULES = {"llama.cpp": "xllamacpp", "ik_llama.cpp": "ik_llama_cpp", "transformers": "torch"}


def with_window(config, more):
    """*config* with windows that are longer by *more*; attention without a window stays so."""
    return attending(config, lambda it: replace(it, window=it.window and it.window + more))


OTHER_STYLE = {"interleaved": "half", "half": "interleaved"}
CONFIGURATIONS = {
    "theta x1.05": lambda it: rotated(it, lambda rope: replace(rope, theta=rope.theta * 1.05)),
    "theta x1.3": lambda it: rotated(it, lambda rope: replace(rope, theta=rope.theta * 1.3)),
    "epsilon x10": lambda it: replace(it, norm_eps=it.norm_eps * 10),
    "attention scale off by 2 %": lambda it: attending(
        it, lambda its: replace(its, scale=its.scale * 1.02)
    ),
    "window too long": lambda it: with_window(it, 1),
    "window too short": lambda it: with_window(it, -1),
    "the other style of rope": lambda it: rotated(
        it, lambda rope: replace(rope, style=OTHER_STYLE[rope.style])
    ),
}


def swap_heads(weight):
    rows = weight.data.reshape(weight.shape[0], -1)
    width = len(rows) // 4
    return replace(
        weight,
        data=np.concatenate([rows[width : 2 * width], rows[:width], rows[2 * width :]]).reshape(-1),
    )


def scale_up(weight):
    values = weight.data.view("<f4") * np.float32(1.01)
    return replace(weight, data=values.view(np.uint8))


WEIGHTS = {
    "one head swapped": (f"blk.{LAYERS - 1}.attn_q.weight", swap_heads),
    "one layer's norm off by 1 %": ("blk.0.ffn_norm.weight", scale_up),
}
MUTANTS = (*CONFIGURATIONS, *WEIGHTS)


# bitnet.cpp reads ternary models alone: tests/crossval/test_bitnet_cpp.py
@pytest.fixture(scope="module", params=FAMILIES)
def compared(request, tmp_path_factory):
    """A function that cross-validates a small model with a window and one mutant, or none for "".

    It returns the status of the verdict and its findings by check.
    """
    name = request.param
    if name in MODULES and importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"{name} is not installed: an extra of crossval")
    folder = tmp_path_factory.mktemp(name)
    family = FAMILIES[name]
    kind = "llama" if family == "mistral" else family
    model = tiny(kind, context_length=1024, **WINDOWS.get(name, {}))
    table = model.weights["token_embd.weight"]
    # Small enough for epsilon to matter, and for logits that are not all of one token.
    table.data.view("<f4")[:] *= np.float32(0.05)
    if name == "transformers":
        more = {"max_position_embeddings": 1024, "sliding_window": 16}
        path = tokenizer_folder(
            tiny_folder(folder / "model", family, weights=model.weights, **more), TOKENS
        )
    else:
        path = write_model(folder / "model.gguf", in_encoding(model, "Q8_0"))
    checkpoint = open_checkpoint(path)

    def run(mutant):
        reference = REFERENCES[name]()
        with ExitStack() as stack:
            with mutated(mutant, CONFIGURATIONS, WEIGHTS):
                model = stack.enter_context(load(path))
            # Our float64 pass runs inside cross_validate. An error of our graph is in that pass as
            # well, unless the pass is itself the reference, which has to stay right.
            if reference.independent:
                stack.enter_context(mutated(mutant, CONFIGURATIONS, WEIGHTS))
            evidence, _ = cross_validate(model, checkpoint, reference, OPTIONS, texts=TEXTS)
        verdict = judge(evidence)
        return verdict.status, {one.subject: one for one in verdict.findings}

    return run


def test_the_right_graph_passes(compared):
    status, findings = compared("")
    wrong = [str(one) for one in findings.values() if one.severity != "ok"]
    assert (status, wrong) == ("passed", []), "; ".join(wrong)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_error_of_the_graph_does_not_pass(compared, mutant):
    status, findings = compared(mutant)
    failed = {name for name, one in findings.items() if one.severity == "failed"}
    assert status == "failed", str(findings)
    assert failed & {"operations", "logits", "reference", "float64"}
