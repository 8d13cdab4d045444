"""One inference engine in a process of its own, told on stdin what to run: for runtime.py.

    python benchmarks/peer_engine.py ENGINE MODEL THREADS CONTEXT

ENGINE is ``bitnet``, ``bitnet:LEVEL:HEAD`` (instruction set, ``--exact-head``; either may be
empty), the path of a shared library of llama.cpp's C interface, ``llama.cpp`` (package xllamacpp),
``ik_llama.cpp`` (package ik-llama-cpp-python) or ``OpenVINO GenAI`` (its package). A line such
as ``pp 128``, ``tg 64`` or ``tg 32@4096`` (tokens after a prompt of 4,096, which is not timed) is
answered with its seconds as JSON, an empty one with the peak memory of the process. What
llama.cpp's API calls ``n_ctx``, ``n_batch`` and ``n_ubatch`` is found by its default values,
because no package ships a header. BENCHMARK_LEVEL names the instruction set that ``bitnet`` uses.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys
import time
from pathlib import Path

FIRST_ID = 100  # ids FIRST_ID, FIRST_ID + 1 ... are ordinary tokens of every vocabulary in use
IDS = 1000
# Names of 2024, which bitnet.cpp has.
OLDER = {
    "llama_model_load_from_file": "llama_load_model_from_file",
    "llama_init_from_model": "llama_new_context_with_model",
}
STACK = 256 << 20  # bytes; bitnet.cpp keeps the results of a product there
BATCH = 512  # of llama.cpp and its forks, their default of n_ubatch


def prompt(count):
    """*count* token ids."""
    return [FIRST_ID + 7 * i % IDS for i in range(count)]


class Params(ctypes.Structure):
    """A parameter struct of unknown layout; the callee reads its own part of it."""

    _fields_ = (("raw", ctypes.c_ubyte * 1024),)


class Batch(ctypes.Structure):
    """``llama_batch`` with room for what a fork may append."""

    _fields_ = (("tokens", ctypes.c_int32), ("rest", ctypes.c_ubyte * 124))


class Llama:
    """llama.cpp or a fork, through its C API."""

    def __init__(self, library, path, threads, context):
        c = self.c = ctypes.CDLL(library)
        for name, older in OLDER.items():
            if not hasattr(c, name):
                setattr(c, name, getattr(c, older))
        c.llama_model_default_params.restype = c.llama_context_default_params.restype = Params
        c.llama_model_load_from_file.argtypes = (ctypes.c_char_p, Params)
        c.llama_init_from_model.argtypes = (ctypes.c_void_p, Params)
        c.llama_batch_get_one.restype = Batch
        c.llama_decode.argtypes = (ctypes.c_void_p, Batch)
        c.llama_get_logits_ith.argtypes = (ctypes.c_void_p, ctypes.c_int32)
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_logits_ith"):
            getattr(c, name).restype = ctypes.c_void_p
        c.llama_backend_init()
        model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        params = c.llama_context_default_params()
        at = bytes(params.raw).find(struct.pack("<3I", 512, 2048, 512))
        if not model or at < 0:
            raise SystemExit("the engine does not load the model, or is laid out in an unknown way")
        struct.pack_into("<3I", params.raw, at, context, BATCH, BATCH)
        self.context = ctypes.c_void_p(c.llama_init_from_model(model, params))
        c.llama_set_n_threads(self.context, threads, threads)

    def clear(self):
        """Forget what was read."""
        if hasattr(self.c, "llama_memory_clear"):
            self.c.llama_get_memory.restype = ctypes.c_void_p
            memory = ctypes.c_void_p(self.c.llama_get_memory(self.context))
            self.c.llama_memory_clear(memory, True)
        else:
            self.c.llama_kv_cache_clear(self.context)

    def decode(self, ids):
        """Passes over *ids*, at most a batch each, logits for the last of them."""
        for start in range(0, len(ids), BATCH):
            self._decode(ids[start : start + BATCH])
        self.c.llama_get_logits_ith(self.context, -1)

    def _decode(self, ids):
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        # Forks want the position and the sequence, too.
        batch = self.c.llama_batch_get_one(tokens, len(ids), self.position, 0)
        if self.c.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.position += len(ids)

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens at once (``pp``) or one by one (``tg``) behind *depth*."""
        self.clear()
        self.position = 0
        ids = prompt(count)
        if depth:
            self.decode(prompt(depth))
        start = time.perf_counter()
        for piece in [ids] if kind == "pp" else [[i] for i in ids]:
            self.decode(piece)
        return time.perf_counter() - start


class Bitnet:
    """This project: tokens are chosen, too, greedily; a model of embeddings embeds."""

    def __init__(self, path, threads, context, *, level="", head="", kv_type=""):
        import bitnet
        from bitnet.base import native

        level = level or os.environ.get("BENCHMARK_LEVEL")
        if level and not native.module().set_kernel_level(level):
            raise SystemExit(f"this machine has no {level}")
        options = {"threads": threads, "context": context, "exact_head": head or "auto"}
        self.model = bitnet.load(path, **options, kv_type=kv_type or "f16")
        self.engine = self.model.engine

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens at once (``pp``) or write them (``tg``) behind *depth*."""
        from bitnet.runtime.request import Request

        if not self.model.config.writes:
            start = time.perf_counter()
            self.model.embed([prompt(count)])
            return time.perf_counter() - start
        self.engine.forget()
        ids = prompt(count if kind == "pp" else 1 + depth)
        wanted = Request(1 if kind == "pp" else count + bool(depth), lookup=0)
        pieces = self.engine.generate(ids, wanted)
        start, found = time.perf_counter(), 0
        if depth:
            next(pieces)  # the prompt is read
            start, found = time.perf_counter(), 1
        found += sum(1 for _ in pieces)
        seconds = time.perf_counter() - start
        if found != wanted.max_tokens:
            raise SystemExit(f"{found} tokens instead of {wanted.max_tokens}")
        return seconds


class OpenVINO:
    """OpenVINO GenAI, which reads the same file; its prefix cache is met with new ids each time."""

    def __init__(self, path, threads):
        import numpy as np
        import openvino
        import openvino_genai

        self.np, self.tensor, self.genai = np, openvino.Tensor, openvino_genai
        self.pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        self.offset = 0

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens and write one (``pp``), or to write *count* (``tg``)."""
        self.offset += 1
        ids = [FIRST_ID + (7 * i + self.offset) % IDS for i in range(count if kind == "pp" else 1)]
        ids += prompt(depth)
        wanted = self.genai.GenerationConfig()
        wanted.max_new_tokens = 1 if kind == "pp" else count + bool(depth)
        wanted.ignore_eos, wanted.do_sample = True, False
        first = []

        def heard(_text):
            first.append(time.perf_counter())
            return self.genai.StreamingStatus.RUNNING

        start = time.perf_counter()
        inputs = self.genai.TokenizedInputs(
            self.tensor(self.np.array([ids], dtype=self.np.int64)),
            self.tensor(self.np.ones((1, len(ids)), dtype=self.np.int64)),
        )
        result = self.pipeline.generate(inputs, wanted, heard if depth else None)
        end = time.perf_counter()
        if len(result.tokens[0]) != wanted.max_new_tokens:
            raise SystemExit(f"{len(result.tokens[0])} tokens instead of {wanted.max_new_tokens}")
        return end - (first[0] if depth else start)


def library_of(engine):
    """Path of the shared library that a peer's package installs."""
    if "/" in engine:
        return engine
    if engine == "llama.cpp":
        import xllamacpp

        return xllamacpp.xllamacpp.__file__
    import ik_llama_cpp

    return str(Path(ik_llama_cpp.__file__).parent / "lib" / "libllama.so")


def peak_mb():
    """Peak resident memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def raise_stack():
    """Begin again with a stack of :data:`STACK` bytes, which threads get as they are started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    infinite = resource.RLIM_INFINITY
    if soft != infinite and soft < STACK and (hard == infinite or hard >= STACK):
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main():
    """Load, say so, then do what the lines say."""
    if "/" in sys.argv[1]:
        raise_stack()
    engine, path, threads, context = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    start = time.perf_counter()
    if engine.startswith("bitnet"):
        _, level, head, kv_type = (engine + ":::").split(":")[:4]
        running = Bitnet(path, threads, context, level=level, head=head, kv_type=kv_type)
    elif engine == "OpenVINO GenAI":
        running = OpenVINO(path, threads)
    else:
        running = Llama(library_of(engine), path, threads, context)
    reply = {"load_s": time.perf_counter() - start}
    while True:
        print(json.dumps(reply), file=answers, flush=True)
        words = sys.stdin.readline().split()
        if not words:
            break
        count, _, depth = words[1].partition("@")
        reply = {"seconds": running.run(words[0], int(count), int(depth or 0))}
    print(json.dumps({"peak_mb": peak_mb()}), file=answers, flush=True)
    answers.close()
    os._exit(0)  # some libraries crash in their own cleaning up


if __name__ == "__main__":
    main()
