"""Logits of llama.cpp for a file, from a process of its own, which may crash."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bitnet.base.settings import child_environment


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
    asked = folder / "asked.json"
    found = folder / "found.npz"
    found.unlink(missing_ok=True)
    ids = [[int(token) for token in ids] for ids in prompts]
    asked.write_text(json.dumps([ids, list(adapters)]))
    words = [sys.executable, __file__, str(path), str(asked), str(found)]
    environment = child_environment(GGML_NO_BACKTRACE="1")
    done = subprocess.run(words, capture_output=True, env=environment, timeout=300, check=False)
    if done.returncode == 3:
        return None
    if done.returncode:
        tail = done.stderr.decode("utf-8", "replace")[-400:]
        raise RuntimeError(f"llama.cpp ended with {done.returncode}: {tail}")
    with np.load(found) as arrays:
        return [arrays[f"arr_{number}"] for number in range(len(prompts))]


def distance(ours, theirs):
    """Largest difference as a share of the range of *ours*."""
    return float(np.abs(ours - theirs).max() / np.ptp(ours))


def _main(path, asked, found):
    import ctypes
    from importlib import import_module

    from bitnet.crossval.llama_library import Llama
    from bitnet.crossval.trace import EngineFailed

    prompts, adapters = json.loads(Path(asked).read_text())
    file = import_module("xllamacpp.xllamacpp").__file__
    try:
        library = ctypes.CDLL(file)
        model = Llama(library, path, Path(file), threads=1, half_cache=False)
    except EngineFailed:
        sys.exit(3)
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
                context = ctypes.c_void_p(forward.args[0])
                handles = (ctypes.c_void_p * len(opened))(*opened)
                scales = (ctypes.c_float * len(opened))(*(scale for _, scale in adapters))
                assert not library.llama_set_adapters_lora(
                    context, handles, ctypes.c_size_t(len(opened)), scales
                )
            rows.append(forward(ids))
    np.savez(found, *rows)


if __name__ == "__main__":
    _main(*sys.argv[1:])
