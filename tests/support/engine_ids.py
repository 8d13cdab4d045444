"""Ids of llama.cpp for texts, in a process of its own, since its faults end the process."""

import json
import subprocess
import sys
from pathlib import Path


def tokenize(paths, texts, folder):
    """Ids of each of *texts* with the vocabulary of each of *paths*.

    Args:
        paths: GGUF files.
        texts: to tokenize, without BOS and EOS.
        folder: for the files between the processes.
    """
    request = folder / "texts.json"
    reply = folder / "ids.json"
    request.write_text(json.dumps([paths, texts]))
    command = [sys.executable, __file__, str(request), str(reply)]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(reply.read_text())


def _main(request, reply):
    """Tokenize what the file *request* has, and write the ids to *reply*."""
    import ctypes
    from importlib import import_module

    from bitnet.crossval.llama_library import Llama

    paths, texts = json.loads(Path(request).read_text())
    file = import_module("xllamacpp.xllamacpp").__file__
    library = ctypes.CDLL(file)
    rows = []
    for path in paths:
        model = Llama(library, path, Path(file), threads=1, weights=False)
        rows.append([model.tokenize(text, add_special=False) for text in texts])
    Path(reply).write_text(json.dumps(rows))


if __name__ == "__main__":
    _main(*sys.argv[1:])
