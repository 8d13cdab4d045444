"""``inv embed``."""

from __future__ import annotations

import io
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.runtime.options import ModelOptions, VectorOptions
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import open_model, read_text, say, write_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMS = (".npy", ".jsonl")


@task(
    group="Run",
    example="echo 'Why is the sky blue?' > texts.txt\n"
    "bitnet embed smollm2-135m --input texts.txt --dimensions 8",
)
def embed(c, options=VectorOptions(), model=ModelOptions(), common=Context()):
    """Embed texts as vectors.

    They are pooled as the model says, and behind its prompt where it has one; a model that says
    nothing gives the mean of its last hidden states.
    """
    from bitnet.files import write_bytes
    from bitnet.runtime.vectors import check_vectors, rounded

    target = Path(options.output) if options.output else None
    if target and (target.is_dir() or target.suffix.lower() not in _FORMS):
        raise UsageError(
            f"--output {options.output}: expected the name of a .npy or .jsonl file",
            hint="--output vectors.npy",
        )
    texts = _texts(options.input)
    with open_model(replace(model, exact_head="off"), common) as running:
        dimensions = options.dimensions
        check_vectors(running.config.dim, dimensions, options.precision)
        started = time.perf_counter()
        found = running.embed(
            texts,
            prompt_name=options.prompt_name or None,
            normalize=options.normalize,
            dimensions=dimensions,
        )
        vectors = rounded(found, options.precision)
        said = f"{len(texts):,} vectors of {found.shape[1]:,} numbers"
        say(f"{said} in {time.perf_counter() - started:.2f} s | {running.backend}")
        pooling = running.config.pooling.replace("none", "mean")
    facts = {
        "vectors": len(texts),
        "dimensions": found.shape[1],
        "precision": options.precision,
        "pooling": pooling,
    }
    if target is None and not common.output.json:
        print(_lines(vectors), end="", flush=True)
        return
    if target is None:
        write_json(facts | {"embeddings": vectors.tolist()})
        return
    is_array = target.suffix.lower() == ".npy"
    write_bytes(target, _npy(vectors) if is_array else _lines(vectors).encode())
    if common.output.json:
        write_json(facts | {"output": str(target)})
    else:
        print(target)


def _texts(name: str) -> list[str]:
    """The texts in the file *name*, one for each line.

    Raises:
        UsageError: there are none, or a line of a ``.jsonl`` file is not a text.
    """
    if name == "-" and sys.stdin.isatty():
        raise UsageError(
            "there are no texts: nothing is piped in", hint="bitnet embed --input texts.txt"
        )
    whole = read_text(name)
    if not whole:
        raise UsageError("there are no texts", hint="put one on each line")
    lines = [line.removesuffix("\r") for line in whole.split("\n")]
    if not name.lower().endswith(".jsonl"):
        return lines
    return [_text(line, f"{name}, line {number}") for number, line in enumerate(lines, 1)]


def _text(line: str, place: str) -> str:
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: no JSON: {error}") from None
    text = said.get("text") if isinstance(said, dict) else said
    if not isinstance(text, str):
        raise UsageError(f'{place}: expected a JSON text, or {{"text": "..."}}')
    return text


def _lines(vectors: NDArray[Any]) -> str:
    rows = enumerate(vectors.tolist())
    return "".join(f"{json.dumps({'index': at, 'embedding': row})}\n" for at, row in rows)


def _npy(vectors: NDArray[Any]) -> bytes:
    import numpy as np

    whole = io.BytesIO()
    np.save(whole, vectors)
    return whole.getvalue()
