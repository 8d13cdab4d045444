"""The same bits, however the work is cut: threads, batches, chunks, processes.

The models and prompts are large enough that a sum in another order changes the last bits of some
logit. Logits are compared unrounded.
"""

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tiny_keys import FAMILIES
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Segment
from bitnet.models.load import load_model

pytestmark = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)

# Arbitrary ids, more than any chunk below.
IDS = [5, 9, 3, 44, 12, 13, 60, 30, 20, 21, 7, 8, 63, 2, 17, 33, 41, 29, 11, 50, 6, 38, 24]
ENCODINGS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "I2_S", "TQ2_0")
MOST_THREADS = 5  # more than the cores of a small machine, and odd
# Prints the digest of the logits in a process of its own, which imports a copy of this file.
_PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from test_determinism_here import digest, logits, model_of
print(digest(logits(model_of({encoding!r}, threads={threads}), chunk={chunk})))
"""


def model_of(encoding, *, architecture="llama", threads=1):
    """A tiny model; ternary encodings in the family that has them."""
    if encoding in ("I2_S", "TQ2_0"):
        architecture = "bitnet-b1.58"
    return load_model(in_encoding(tiny(architecture), encoding), ops=NativeOps(threads=threads))


def logits(model, *, chunk=len(IDS), ids=IDS):
    """Logits after every token, the prompt in pieces of *chunk*."""
    store = KVCache(model.config, 64)
    parts = [ids[at : at + chunk] for at in range(0, len(ids), chunk)]
    return np.concatenate([model.forward(part, store, all_positions=True) for part in parts])


@cache
def expected(encoding, architecture="llama"):
    """Logits of one thread, the whole prompt at once."""
    return logits(model_of(encoding, architecture=architecture))


def same_bits(found, wanted):
    """True if both arrays have the same dtype and bytes."""
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def digest(array):
    """SHA-256 of the bytes of *array*."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_different_tokens_give_different_logits(encoding):
    # Otherwise the comparisons below would prove nothing.
    rows = expected(encoding)
    assert np.isfinite(rows).all()
    assert len({row.tobytes() for row in rows}) == len(IDS)


@pytest.mark.parametrize("threads", range(2, MOST_THREADS + 1))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_number_of_threads_gives_the_same_bits(encoding, threads):
    of_one_thread = expected(encoding)
    # Made last: the number of threads is that of the process.
    model = model_of(encoding, threads=threads)
    assert same_bits(logits(model), of_one_thread)
    assert same_bits(logits(model, chunk=1), of_one_thread)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 8, 16, 22])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_prompt_in_chunks_of_any_size_gives_the_same_bits(encoding, chunk):
    assert same_bits(logits(model_of(encoding), chunk=chunk), expected(encoding))


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_number_of_sequences_in_a_batch_gives_the_same_bits(encoding, size):
    model = model_of(encoding)
    caches = [KVCache(model.config, 64) for _ in range(size)]
    # Every sequence is at another position: some read a prompt while others generate.
    starts = [(5 * row) % 16 for row in range(size)]  # ids that are in the cache before
    for start, store in zip(starts, caches, strict=True):
        if start:
            model.forward(IDS[:start], store)
    lengths = [1 + (row % 3) * 3 for row in range(size)]  # 1, 4 or 7 ids in the pass
    segments = [
        Segment(IDS[start : start + length], store, "all")
        for start, length, store in zip(starts, lengths, caches, strict=True)
    ]
    for start, length, found in zip(starts, lengths, model.run(segments), strict=True):
        assert same_bits(found, expected(encoding)[start : start + length])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_gives_the_same_bits_in_any_batch(architecture):
    whole = expected("Q8_0", architecture)
    model = model_of("Q8_0", architecture=architecture, threads=3)
    caches = [KVCache(model.config, 64) for _ in range(3)]
    batched = model.run([Segment(IDS, store, "all") for store in caches])
    assert all(same_bits(rows, whole) for rows in batched)
    assert same_bits(logits(model, chunk=4), whole)


@pytest.mark.parametrize("encoding", ["Q4_K", "I2_S"])
def test_another_process_gives_the_same_bits(encoding, tmp_path):
    (tmp_path / "test_determinism_here.py").write_text(Path(__file__).read_text())
    paths = [str(tmp_path), str(Path(__file__).parents[1] / "support")]
    for threads, chunk in ((2, len(IDS)), (1, 6)):
        program = _PROGRAM.format(paths=paths, encoding=encoding, threads=threads, chunk=chunk)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == digest(expected(encoding))


def test_a_prompt_that_continues_a_truncated_cache_gives_the_same_bits():
    model = model_of("Q4_0")
    store = KVCache(model.config, 64)
    model.forward([*IDS[:11], 1, 2, 3], store)
    store.truncate(11)
    continued = model.forward(IDS[11:], store, all_positions=True)
    assert same_bits(continued, expected("Q4_0")[11:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_real_weights_give_the_same_bits_in_any_batch(name, test_models):
    path = test_models / name
    if not path.exists():
        pytest.skip(f"{name} is not in the folder BITNET_TEST_MODELS names")
    checkpoint = open_checkpoint(path)
    ids = [token * 97 for token in IDS]  # spread over a vocabulary of thousands
    single = load_model(checkpoint, ops=NativeOps(threads=1))
    whole = logits(single, ids=ids)
    assert same_bits(logits(single, ids=ids, chunk=1), whole)
    model = load_model(checkpoint, ops=NativeOps(threads=3))
    assert same_bits(logits(model, ids=ids, chunk=9), whole)
    caches = [KVCache(model.config, 64) for _ in range(3)]
    model.forward(ids[:6], caches[0])
    spans = [(6, 7), (0, len(ids)), (0, 2)]  # one decodes, one reads a prompt, one begins
    segments = [
        Segment(ids[start:stop], store, "all")
        for (start, stop), store in zip(spans, caches, strict=True)
    ]
    for (start, stop), part in zip(spans, model.run(segments), strict=True):
        assert same_bits(part, whole[start:stop])
