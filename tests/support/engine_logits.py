"""Logits of llama.cpp for a file, from a process of its own, which may crash."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bitnet.base.settings import child_environment

REFUSED = "refused"
_PATIENCE_S = 90  # for some twenty files, which take a few seconds


def llama_cpp(path, prompts, folder, adapters=()):
    """Logits after every id of each of *prompts*, ``None`` if llama.cpp refuses the file at *path*.

    Args:
        path: GGUF file.
        prompts: lists of ids.
        folder: for files between the processes.
        adapters: low-rank adapters, with their scales.

    Raises:
        RuntimeError: it crashed; the text is the end of what it wrote.
    """
    done = _run([(path, adapters)], prompts, folder, timeout_s=300)
    if done.returncode:
        tail = done.stderr.decode("utf-8", "replace")[-400:]
        raise RuntimeError(f"llama.cpp ended with {done.returncode}: {tail}")
    (answer,) = _answers(folder)
    return answer


def llama_cpp_of_each(files, ids, folder):
    """Logits after each of *ids* for each of *files*, or a text with the reason for none."""
    return _one_by_one([(file, ()) for file in files], ids, folder)


def llama_cpp_with_each(path, adapters, ids, folder):
    """As :func:`llama_cpp_of_each`, for the file at *path* with each file of *adapters* alone."""
    return _one_by_one([(path, [(str(adapter), 1.0)]) for adapter in adapters], ids, folder)


def _one_by_one(models, ids, folder):
    """Logits, or a text with the reason for none, for each of *models*: a file and its adapters.

    One process runs model after model. If it crashes or does not end, another process continues
    with the next model.
    """
    results = []
    while len(results) < len(models):
        try:
            done = _run(models[len(results) :], [ids], folder, timeout_s=_PATIENCE_S)
            failure = f"crashed with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            failure = "does not end"
        results += [REFUSED if answer is None else answer[0] for answer in _answers(folder)]
        if failure and len(results) < len(models):  # else it failed behind its last answer
            results.append(failure)
    return results


def _run(models, prompts, folder, *, timeout_s):
    """Run a process that writes an answer for each of *models* into *folder*, and return it."""
    for old in folder.glob("answer-*.npz"):
        old.unlink()
    request = folder / "asked.json"
    ids = [[int(token) for token in ids] for ids in prompts]
    request.write_text(json.dumps([[(str(file), list(own)) for file, own in models], ids]))
    words = [sys.executable, __file__, str(request), str(folder)]
    environment = child_environment(GGML_NO_BACKTRACE="1")
    return subprocess.run(
        words, capture_output=True, env=environment, timeout=timeout_s, check=False
    )


def _answers(folder):
    """Answers in *folder* in the order of models: a list of logits, ``None`` for a refusal."""
    answers = []
    while (path := folder / f"answer-{len(answers)}.npz").exists():
        with np.load(path) as arrays:
            rows = [arrays[f"arr_{number}"] for number in range(len(arrays))]
        answers.append(rows or None)
    return answers


def own_logits(checkpoint, ids):
    """Logits of this package for *checkpoint*, by the reference backend in float32."""
    from bitnet.kernels.kv_cache import KVCache
    from bitnet.kernels.reference import ReferenceOps
    from bitnet.models.load import load_model

    model = load_model(checkpoint, ops=ReferenceOps())
    cache = KVCache(model.config, len(ids), dtype=np.float32)
    return model.forward(list(ids), cache, all_positions=True)


def distance(ours, theirs):
    """Largest difference as a share of the range of *ours*."""
    return float(np.abs(ours - theirs).max() / np.ptp(ours))


def _main(request, folder):
    """Answer the file *request*: write a file with logits for each model into *folder*."""
    import ctypes
    from importlib import import_module

    from bitnet.crossval.llama_library import Llama
    from bitnet.crossval.trace import EngineFailed

    models, prompts = json.loads(Path(request).read_text())
    module = Path(import_module("xllamacpp.xllamacpp").__file__)
    library = ctypes.CDLL(str(module))
    for number, (file, adapters) in enumerate(models):
        try:
            model = Llama(library, file, module, threads=1, half_cache=False)
        except EngineFailed:
            rows = []
        else:
            rows = _logits(model, library, prompts, adapters)
        # Written whole or not at all: the process may be killed at any time.
        unfinished = Path(folder) / "unfinished.npz"
        np.savez(unfinished, *rows)
        unfinished.rename(Path(folder) / f"answer-{number}.npz")


def _logits(model, library, prompts, adapters):
    """Logits of each of *prompts* with *adapters*, pairs of a file and a scale."""
    import ctypes

    library.llama_adapter_lora_init.restype = ctypes.c_void_p
    opened = [
        library.llama_adapter_lora_init(ctypes.c_void_p(model._model), name.encode())
        for name, _ in adapters
    ]
    assert all(opened), "llama.cpp refuses an adapter"
    rows = []
    for ids in prompts:
        with model.context(max(64, len(ids))) as forward:
            if opened:
                context = ctypes.c_void_p(forward.args[0])  # of the partial function
                handles = (ctypes.c_void_p * len(opened))(*opened)
                scales = (ctypes.c_float * len(opened))(*(scale for _, scale in adapters))
                assert not library.llama_set_adapters_lora(
                    context, handles, ctypes.c_size_t(len(opened)), scales
                )
            rows.append(forward(ids))
    return rows


if __name__ == "__main__":
    _main(*sys.argv[1:])
