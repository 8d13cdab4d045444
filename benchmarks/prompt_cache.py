"""Time to the first token of a long prompt: computed, from memory, and from disk.

    python benchmarks/prompt_cache.py smollm2.gguf --tokens 8000

Each answer is one token after the prompt. ``page_cache`` is a newly loaded model, with the state of
the prompt in a file in the system's page cache; with --drop-caches (Linux, root) there is also
``disk``, for which the page cache is emptied first. ``read`` is the time to read the bytes of that
file, the lower limit of either. A prompt that is longer than the model's context needs --context
with a longer one. Run it on an idle machine: ``others`` is the number of cores that other processes
used meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from arguments import at_least
from contexts import with_context
from idle import Others

from bitnet.cache.prompts import PromptFolder
from bitnet.formats.containers import open_checkpoint
from bitnet.runtime.language_model import LanguageModel, load_checkpoint
from bitnet.runtime.request import Request


def main() -> None:
    """Print the times as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=8000, help="length of the prompt")
    parser.add_argument("--context", type=int, help="positions of the model, if not its own")
    parser.add_argument("--kv-type", default="f16", choices=("f16", "q8"))
    parser.add_argument(
        "--turns", type=at_least(1), default=5, help="of all answers but the cold one"
    )
    parser.add_argument("--drop-caches", action="store_true", help="measure the disk, too")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as folder,
        with_context(options.model, options.context) as path,
    ):
        print(json.dumps(measure(options, path, Path(folder)), indent=2))


def measure(options: argparse.Namespace, file: Path, folder: Path) -> dict[str, float | int | str]:
    """Results for the model at *file*, with the prompt stored in *folder*, by their JSON keys.

    All seconds but ``cold_s`` are medians.
    """
    prompts = PromptFolder(folder, limit_bytes=1e12)

    def load() -> LanguageModel:
        checkpoint = replace(open_checkpoint(file), kv_type=options.kv_type)
        return load_checkpoint(checkpoint, prompt_folder=prompts)

    others = Others()
    with load() as model:
        rng = np.random.default_rng(1)
        # Ordinary tokens: special ones have the first ids or the last ones.
        ids = rng.integers(10, model.config.vocab_size - 1000, options.tokens).tolist()
        first_token(model, ids[:100][::-1])  # warm-up: starts the threads, and reads the weights
        cold_s, cold_token = first_token(model, ids)
        memory = [first_token(model, ids) for _ in range(options.turns)]
    (prompt_file,) = folder.rglob("*.kv")
    size = prompt_file.stat().st_size
    tokens = {cold_token, *(token for _, token in memory)}
    result: dict[str, float | int | str] = {
        "model": options.model.name,
        "tokens": options.tokens,
        "file_bytes": size,
        "kv_type": options.kv_type,
        "turns": options.turns,
        "cold_s": cold_s,
        "memory_s": statistics.median(passed_s for passed_s, _ in memory),
    }
    for dropped in (False, True) if options.drop_caches else (False,):
        disk_s: list[float] = []
        read_s: list[float] = []
        for _ in range(options.turns):
            drop_caches(dropped)
            read_s.append(read(prompt_file))
            with load() as model:
                model.engine.logits(ids[:2])  # warm-up, as above
                # Again, since the reading put the prompt's file into the page cache.
                drop_caches(dropped)
                passed_s, token = first_token(model, ids)
            disk_s.append(passed_s)
            tokens.add(token)
        name = "disk" if dropped else "page_cache"
        result |= {
            f"{name}_s": statistics.median(disk_s),
            f"{name}_read_s": statistics.median(read_s),
            f"{name}_over_read": statistics.median(disk_s) / statistics.median(read_s),
            f"cold_over_{name}": cold_s / statistics.median(disk_s),
        }
    if len(tokens) != 1:
        raise SystemExit(f"different first tokens: {tokens}")
    return result | {"others": others.share()}


def first_token(model: LanguageModel, ids: list[int]) -> tuple[float, int]:
    """Seconds until the first token after *ids* is known, and the token."""
    started = time.perf_counter()
    sequence = model.engine.prepare(ids, Request(prompt=ids, max_tokens=1, temperature=0.0))
    (piece,) = model.engine.run(sequence)
    assert piece.token is not None, "a sampler chooses one"
    return time.perf_counter() - started, piece.token


def read(path: Path) -> float:
    """Seconds to read the file *path*."""
    buffer = bytearray(1 << 20)
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def drop_caches(wanted: bool) -> None:
    """Empty the page cache of the system, if that is *wanted*."""
    if wanted:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")


if __name__ == "__main__":
    main()
