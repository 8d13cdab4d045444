"""The program that runs a reference engine: a request on stdin, the answer into a file.

    python -m bitnet.crossval.reference_process ANSWER.json < request.json

A separate process, because a foreign engine may crash, print, keep threads or bring its own
OpenMP. Fields of the request:

- ``engine``, ``model``: name of the engine, path of the model;
- ``prompts``: text, ids, first compared position, and steps of the continuation of each;
- ``texts``: texts to tokenize, each with true if special tokens are added;
- ``threads``, ``arithmetic``: number of compute threads; arithmetic of the engine, for its facts;
- ``library``: path of the library of an engine that is not a Python package;
- ``suppressed``: ids that no continuation has, and ids that none begins with;
- ``causal``: if false, a prompt runs in one pass;
- ``headless``: if true, logits are products of hidden states and embeddings, as in this runtime;
- ``whole``: if it is there, the only prompt has no logits in the answer: its intermediates are
  written to ANSWER.safetensors. Those whose names begin with one of its texts, or whose weight is
  one of them, have a row for every id, others for the last ids;
- ``family``: title of the model's family, for intermediates of transformers.

The answer is a trace (:mod:`bitnet.crossval.trace`), or ``{"error": ...}``.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import json
import os
import re
import struct
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.files import sha256_of
from bitnet.crossval.bounds import ROWS
from bitnet.crossval.llama_library import Llama
from bitnet.crossval.trace import EngineFacts, EngineFailed, Prompt, Trace, prompt_trace
from bitnet.crossval.transformers_engine import TransformersEngine, import_module
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import GenerationSettings
from bitnet.quants.registry import dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from bitnet.crossval.names import Node

_LOGITS = "result_output"
# Part of names of queries, keys and values that marks a later state: ``Qcur_normed-0``.
_LATER = re.compile(r"(?<=^[QKV]cur)_(?:normed|pos)-")
# Package of each engine that comes from PyPI, by the name of the engine.
_DISTRIBUTIONS = {
    "llama.cpp": "xllamacpp",
    "ik_llama.cpp": "ik-llama-cpp-python",
    "transformers": "transformers",
}


def answer(request: dict[str, Any], tensors: Path) -> dict[str, Any]:
    """The engine's answer, as JSON values; requested intermediates are written to *tensors*."""
    name = request["engine"]
    make = _ENGINES[name]
    if "library" in request:
        make = partial(make, library=request["library"])
    needs_weights = bool(request["prompts"])
    engine = make(request["model"], request["threads"], needs_weights, headless=request["headless"])

    # What the engine is.
    digest = sha256_of(engine.library)
    version = f"build {digest[:12]}"  # a user's own build has no version
    if distribution := _DISTRIBUTIONS.get(name):
        version = f"{distribution} {importlib.metadata.version(distribution)}"
    if isinstance(engine, TransformersEngine) and engine.changes:
        version = f"{version}, {engine.changes}"
    facts = EngineFacts(name, version, request["arithmetic"], engine.library.name, digest)

    # Its intermediates of the only prompt, which is then not run again.
    prompts = [Prompt(text, tuple(ids), *rest) for text, ids, *rest in request["prompts"]]
    if "whole" in request:
        ids = prompts.pop().ids
        whole_names = tuple(request["whole"])
        stop = max(len(ids) - ROWS, 0) if request["causal"] else 0
        if isinstance(engine, Llama):
            arrays = _intermediates(engine, ids, whole_names, stop=stop)
        else:
            arrays = engine.intermediates(
                ids, family=request["family"], whole=whole_names, first=stop
            )
        _write_tensors(tensors, arrays)

    # Ids of the texts, and its texts of these ids.
    tokenized = [engine.tokenize(text, add_special=special) for text, special in request["texts"]]
    encoded = [tuple(ids) for ids in tokenized if ids is not None]

    # Its logits of the prompts.
    suppressed, suppressed_first = map(frozenset, request.get("suppressed", ((), ())))
    generation = GenerationSettings(suppressed=suppressed, suppressed_first=suppressed_first)
    answers = []
    for prompt in prompts:
        with engine.context(len(prompt.ids) + prompt.steps + 1) as forward:
            reply = prompt_trace(forward, prompt, generation=generation, causal=request["causal"])
            answers.append(reply)
    trace = Trace(facts, tuple(answers))
    if encoded:
        decoded = tuple(map(engine.detokenize, encoded))
        trace = replace(trace, tokenized=tuple(encoded), decoded=decoded)
    return trace.as_json()


def _intermediates(
    engine: Llama, ids: Sequence[int], whole: tuple[str, ...], *, stop: int
) -> dict[str, NDArray[np.float32]]:
    """Intermediates of *ids*, by the keys of their nodes.

    Those whose names begin with one of *whole*, or whose weight is one of them, have a row for each
    id, the others for the ids from *stop* on.
    """
    parts: dict[str, list[NDArray[np.float32]]] = {}
    latest: dict[str, NDArray[np.float32]] = {}
    is_last = False

    def watch(node: Node, values: NDArray[np.float32]) -> None:
        # A name with a space is a view; attention scores have no row for each id.
        is_state = " " not in node.name and not node.name.startswith(("kq-", "kq_"))
        is_wanted = is_last or node.name.startswith(whole) or node.weight in whole
        if is_state and is_wanted:
            key = node._replace(name=_LATER.sub("-", node.name)).key
            latest.pop(key, None)  # what comes last is a later state
            latest[key] = values

    # Batches up to *stop*, and all behind it as the last part.
    cuts = [*range(0, stop, engine.batch or len(ids) or 1), stop, len(ids)]
    with engine.context(max(len(ids), 1), watch=watch) as forward:
        for start, end in pairwise(cuts):
            is_last = start == stop
            latest.clear()
            if start < end:
                logits = forward(ids[start:end], all_positions=is_last)
                if engine.head is not None:  # the graph has no node with these logits
                    latest[_LOGITS] = logits
            for key, values in latest.items():
                if not values.size % (end - start):
                    parts.setdefault(key, []).append(values.reshape(end - start, -1))
    return {key: np.concatenate(rows) for key, rows in parts.items()}


def _write_tensors(file: Path, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Write *arrays* by name as safetensors: a length, a header in JSON, and their bytes in order.

    https://huggingface.co/docs/safetensors describes the format.
    """
    directory = {}
    end = 0
    for name, values in arrays.items():
        offsets = [end, end + values.nbytes]
        directory[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": offsets}
        end += values.nbytes
    header = json.dumps(directory).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for values in arrays.values():
            out.write(np.ascontiguousarray(values, dtype="<f4").tobytes())


def _llama_cpp(path: str, threads: int, weights: bool, *, headless: bool) -> Llama:
    package = import_module("xllamacpp")
    extension = importlib.import_module(f"{package.__name__}.xllamacpp")
    library = Path(extension.__file__ or "")
    c = ctypes.CDLL(str(library))
    head = _embeddings(path) if headless and weights else None
    return Llama(c, path, library, threads=threads, weights=weights, head=head)


def _embeddings(path: str) -> NDArray[np.float32]:
    """Embeddings of all tokens of the model at *path*, ``(vocabulary, width)``."""
    weight = open_checkpoint(path).weights["token_embd.weight"]
    return dequantize(weight).reshape(weight.shape)


def _ik_llama_cpp(path: str, threads: int, weights: bool, *, headless: bool) -> Llama:
    assert not headless  # it is not asked about such models
    folder = Path(import_module("ik_llama_cpp").__file__ or "").parent / "lib"
    library = next(iter(sorted(folder.glob("*llama.*"))), None)
    if library is None:
        raise EngineFailed("ik-llama-cpp-python came without its library")
    c = ctypes.CDLL(str(library))
    # Its products of Q4_1 with 32 positions and more at a time are wrong: 1.6 nats beside float64.
    make = partial(Llama, tokenize_with_model=True, batch=ROWS)
    return make(c, path, library, threads=threads, weights=weights)


def _bitnet_cpp(path: str, threads: int, weights: bool, *, headless: bool, library: str) -> Llama:
    assert not headless  # it is asked about BitNet alone
    c = ctypes.CDLL(library)
    product = getattr(c, "ggml_vec_dot_i2_i8_s", None)
    if product is None:
        raise EngineFailed(f"{library} has no products of I2_S: it is not of bitnet.cpp")
    file = _file_of(product) or Path(library)
    # It keeps the results of a product on the stack, for all positions of a batch: so batches must
    # be small.
    return Llama(c, path, file, threads=threads, weights=weights, batch=64)


def _file_of(function: Any) -> Path | None:
    """File of the library that contains *function*, None if the system cannot tell.

    It may be another one than the library that was opened, which loads it.
    """
    look_up = getattr(ctypes.CDLL(None), "dladdr", None) if sys.platform != "win32" else None
    symbol = (ctypes.c_char_p * 4)()  # Dl_info of the C library: file, base, name, address
    if look_up is None or not look_up(ctypes.cast(function, ctypes.c_void_p), symbol):
        return None
    return Path(os.fsdecode(symbol[0] or b""))


_ENGINES: dict[str, Callable[..., Any]] = {
    "llama.cpp": _llama_cpp,
    "bitnet.cpp": _bitnet_cpp,
    "ik_llama.cpp": _ik_llama_cpp,
    "transformers": TransformersEngine,
}


def _main(target: str) -> None:
    try:
        reply = answer(json.load(sys.stdin), Path(target).with_suffix(".safetensors"))
    except EngineFailed as error:
        reply = {"error": str(error)}
    except (OSError, ValueError) as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    Path(target).write_text(json.dumps(reply), encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1])
