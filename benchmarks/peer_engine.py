"""One inference engine in a process of its own, which reads its tests from stdin: for runtime.py.

    python benchmarks/peer_engine.py ENGINE MODEL THREADS CONTEXT [KV_TYPE]

ENGINE is ``bitnet``, ``bitnet:LEVEL:HEAD`` (instruction set, ``--exact-head``; either may be
empty), the path of a shared library with llama.cpp's C interface, ``llama.cpp`` (package
xllamacpp), ``ik_llama.cpp`` (package ik-llama-cpp-python), ``OpenVINO GenAI`` or ``mistral.rs``
(packages of their own). KV_TYPE is ``f16`` or ``q8``, for keys and values; mistral.rs ignores it.

A line is a test: ``pp 128`` or ``tg 64``, or ``tg 32@4096`` or ``pp 512@4096`` after a prompt of
4,096 tokens, which is not timed, and is read once for all tests at this depth. The reply is JSON
with the seconds. After an empty line it has the peak memory of the process, which then ends.

The fields ``n_ctx``, ``n_batch``, ``n_ubatch``, ``type_k`` and ``type_v`` of llama.cpp's structs
are found by their default values, because no package ships a header. BENCHMARK_LEVEL names the
instruction set that ``bitnet`` uses. In the folder BENCHMARK_STATES, llama.cpp and its forks save
the states of prompts.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys
import time
import zlib
from pathlib import Path

FIRST_ID = 100  # ids FIRST_ID, FIRST_ID + 1 ... are ordinary tokens of every vocabulary in use
IDS = 1000
# Names of functions in the llama.cpp of 2024, on which bitnet.cpp is built.
OLDER = {
    "llama_model_load_from_file": "llama_load_model_from_file",
    "llama_init_from_model": "llama_new_context_with_model",
}
STACK = 256 << 20  # bytes; bitnet.cpp keeps the results of a product there
BATCH = 512  # of llama.cpp and its forks, their default of n_ubatch
F16 = 1  # ggml's number of the type
Q8_0 = 8  # likewise
SAMPLES = 65  # parts of a model that tell it from another one
SAMPLE = 1 << 16  # bytes of a part
SHORTEST_STATE = 8192  # positions; shorter prompts are read again rather than saved
WORDS = ("time", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")


def prompt(count, turn=0):
    """*count* token ids, which differ from *turn* to *turn*."""
    return [FIRST_ID + (7 * i + 13 * turn) % IDS for i in range(count)]


def state_name(library, path, kv_type):
    """Name of the states of prompts that the build *library* saves for the model at *path*.

    Another model of the same name and another build at the same place have other names.
    """
    builds = [
        f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
        for file in sorted(Path(library).absolute().parent.glob("*.so*"))
    ]
    build = zlib.crc32("\n".join(builds).encode())
    return f"{Path(path).stem}-{hash_of_samples(path):08x}-{build:08x}-{kv_type}"


def hash_of_samples(path):
    """Hash of the size and of SAMPLES parts of the file *path*, the first and the last included.

    It takes milliseconds, since it is part of the time to load a model.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        value = zlib.crc32(str(size).encode())
        last = max(0, size - SAMPLE)
        for number in range(SAMPLES):
            file.seek(last * number // (SAMPLES - 1))
            value = zlib.crc32(file.read(SAMPLE), value)
    return value


class Params(ctypes.Structure):
    """A parameter struct of unknown layout, larger than any; the callee reads the part it knows."""

    _fields_ = (("raw", ctypes.c_ubyte * 1024),)


class Batch(ctypes.Structure):
    """``llama_batch`` with room for what a fork may append."""

    _fields_ = (("tokens", ctypes.c_int32), ("rest", ctypes.c_ubyte * 124))


class Llama:
    """llama.cpp or a fork, through its C API."""

    def __init__(self, library, path, threads, context, kv_type="f16"):
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
        # Defaults of n_ctx, n_batch and n_ubatch, which follow each other.
        at = bytes(params.raw).find(struct.pack("<3I", 512, 2048, 512))
        if not model or at < 0:
            raise SystemExit("the engine does not load the model, or is laid out in an unknown way")
        struct.pack_into("<3I", params.raw, at, context, BATCH, BATCH)
        if kv_type == "q8":
            types = struct.pack("<2Q2I", 0, 0, F16, F16)  # after two null pointers
            at = bytes(params.raw).find(types)
            if at < 0:
                raise SystemExit("the types of keys and values are in an unknown place")
            struct.pack_into("<2Q2I", params.raw, at, 0, 0, Q8_0, Q8_0)
        self.held = 0  # leading positions of the prompt that the context holds
        self.position = 0
        states = os.environ.get("BENCHMARK_STATES", "")
        self.states = Path(states) / state_name(library, path, kv_type) if states else None
        self.context = ctypes.c_void_p(c.llama_init_from_model(model, params))
        if not self.context:
            raise SystemExit("the engine has no context of this size or type")
        c.llama_set_n_threads(self.context, threads, threads)

    def truncate(self, length):
        """Remove positions from *length* on from the cache."""
        if hasattr(self.c, "llama_memory_seq_rm"):
            self.c.llama_get_memory.restype = ctypes.c_void_p
            memory = ctypes.c_void_p(self.c.llama_get_memory(self.context))
            self.c.llama_memory_seq_rm(memory, 0, length, -1)
        else:
            self.c.llama_kv_cache_seq_rm(self.context, 0, length, -1)
        self.position = length

    def hold(self, depth):
        """Make the cache contain exactly the first *depth* positions of the prompt."""
        if depth != self.held:
            self.truncate(0)
            self.held = 0
            if not self.restore(depth):
                self.decode(prompt(depth))
                self.store(depth)
            self.held = depth
        self.truncate(depth)

    def store(self, depth):
        """Save the state after *depth* positions, if states are saved and it is long enough."""
        if self.states and depth >= SHORTEST_STATE:
            ids = (ctypes.c_int32 * depth)(*prompt(depth))
            path = f"{self.states}-{depth}".encode()
            self.c.llama_state_save_file.argtypes = (
                ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
            )  # fmt: skip
            self.c.llama_state_save_file(self.context, path, ids, depth)

    def restore(self, depth):
        """Load the state after *depth* positions; True if it was saved and is complete."""
        if not self.states or not Path(f"{self.states}-{depth}").exists():
            return False
        ids = (ctypes.c_int32 * depth)()
        count = ctypes.c_size_t()
        self.c.llama_state_load_file.argtypes = (
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
        )  # fmt: skip
        self.c.llama_state_load_file.restype = ctypes.c_bool
        path = f"{self.states}-{depth}".encode()
        is_read = self.c.llama_state_load_file(self.context, path, ids, depth, ctypes.byref(count))
        return is_read and count.value == depth and list(ids) == prompt(depth)

    def decode(self, ids):
        """Run *ids* through the model in batches, and read the logits of the last one."""
        for start in range(0, len(ids), BATCH):
            self._decode(ids[start : start + BATCH])
        self.c.llama_get_logits_ith(self.context, -1)

    def _decode(self, ids):
        """Run *ids*, at most BATCH, through the model in one pass."""
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        # Older versions and forks take the position and the sequence as well.
        batch = self.c.llama_batch_get_one(tokens, len(ids), self.position, 0)
        if self.c.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.position += len(ids)

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens at once (``pp``) or one by one (``tg``) behind *depth*."""
        self.hold(depth)
        ids = prompt(count)
        start = time.perf_counter()
        for piece in [ids] if kind == "pp" else [[i] for i in ids]:
            self.decode(piece)
        return time.perf_counter() - start


class Bitnet:
    """This project. Greedy sampling is part of the time; an embedding model embeds instead."""

    def __init__(self, path, threads, context, *, level="", head="", kv_type=""):
        import bitnet
        from bitnet.base import native

        level = level or os.environ.get("BENCHMARK_LEVEL")
        if level and not native.module().set_kernel_level(level):
            raise SystemExit(f"this machine has no {level}")
        options = {"threads": threads, "context": context, "exact_head": head or "auto"}
        self.model = bitnet.load(path, **options, kv_type=kv_type or "f16")
        self.engine = self.model.engine
        self.held = 0  # leading positions of the prompt that its cache contains
        self.turn = 0

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens at once (``pp``) or write them (``tg``) behind *depth*."""
        if not self.model.config.writes:
            start = time.perf_counter()
            self.model.embed([prompt(count)])
            return time.perf_counter() - start
        if depth != self.held:
            self.engine.forget()
            self.held = 0
        if depth and not self.held:
            self.generate(prompt(depth), 1)
            self.held = depth
        if not depth:
            self.engine.forget()
        self.turn += 1
        if kind == "pp":
            # After a cached prompt, ids differ from turn to turn: none of them may be cached.
            times, _ = self.generate(prompt(depth) + prompt(count, self.turn * bool(depth)), 1)
            return times[-1] - times[0]
        ids = [*prompt(depth), FIRST_ID] if depth else prompt(1)
        times, _ = self.generate(ids, count + bool(depth))
        # Behind a prompt, time starts at the first token: the pass before it may read more ids.
        return times[-1] - times[1 if depth else 0]

    def generate(self, ids, count):
        """Times before the first and after each of *count* tokens behind *ids*, and the tokens."""
        from bitnet.runtime.request import Request

        pieces = self.engine.generate(ids, Request(count, lookup=0))
        times = [time.perf_counter()]
        tokens = []
        for piece in pieces:
            times.append(time.perf_counter())
            tokens.append(piece.token)
        if len(tokens) != count:
            raise SystemExit(f"{len(tokens)} tokens instead of {count}")
        return times, tokens


class OpenVINO:
    """OpenVINO GenAI, which reads the same file; new ids in each test bypass its prefix cache."""

    def __init__(self, path, threads, kv_type=""):
        import numpy as np
        import openvino
        import openvino_genai

        self.np = np
        self.tensor = openvino.Tensor
        self.genai = openvino_genai
        options = {"INFERENCE_NUM_THREADS": threads}
        if kv_type:  # OpenVINO's own default is 8 bits
            options["KV_CACHE_PRECISION"] = {"f16": "f16", "q8": "u8"}[kv_type]
        self.pipeline = openvino_genai.LLMPipeline(path, "CPU", **options)
        self.turn = 0

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens and write one (``pp``), or to write *count* (``tg``)."""
        self.turn += 1
        ids = prompt(depth) + prompt(count if kind == "pp" else 1, self.turn)
        config = self.genai.GenerationConfig()
        config.max_new_tokens = 1 if kind == "pp" else count + bool(depth)
        config.ignore_eos = True
        config.do_sample = False
        first = []

        def note_time(_text):
            first.append(time.perf_counter())
            return self.genai.StreamingStatus.RUNNING

        start = time.perf_counter()
        inputs = self.genai.TokenizedInputs(
            self.tensor(self.np.array([ids], dtype=self.np.int64)),
            self.tensor(self.np.ones((1, len(ids)), dtype=self.np.int64)),
        )
        # Decode at a depth is timed from the first token on: before it the prompt is read.
        from_first = depth and kind == "tg"
        result = self.pipeline.generate(inputs, config, note_time if from_first else None)
        end = time.perf_counter()
        if len(result.tokens[0]) != config.max_new_tokens:
            raise SystemExit(f"{len(result.tokens[0])} tokens instead of {config.max_new_tokens}")
        return end - (first[0] if from_first else start)


class MistralRs:
    """mistral.rs, which takes text: its prompts are words of one token each."""

    def __init__(self, path, threads):
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        import mistralrs

        self.package = mistralrs
        file = Path(path).absolute()
        which = mistralrs.Which.GGUF(
            quantized_model_id=str(file.parent), quantized_filename=file.name
        )
        self.runner = mistralrs.Runner(which=which, max_seqs=1)
        self.turn = 0

    def run(self, kind, count, depth=0):
        """Seconds to read *count* tokens and write one (``pp``), or to write *count* (``tg``)."""
        self.turn += 1
        text = words(depth) + words(count if kind == "pp" else 1, self.turn)
        if kind == "pp":
            self.complete(words(depth) or words(1), 1)
            return self.complete(text, 1)
        # Both times its prefix cache has the prompt, so *count* tokens make the difference.
        fewer_s = self.complete(text, 1)
        return self.complete(text, count + 1) - fewer_s

    def complete(self, text, count):
        """Seconds until *count* tokens were written behind *text*."""
        request = self.package.CompletionRequest(
            prompt=text, model="default", max_tokens=count, temperature=0.0, ignore_eos=True
        )
        start = time.perf_counter()
        usage = self.runner.send_completion_request(request).usage
        seconds = time.perf_counter() - start
        if usage.completion_tokens != count:
            raise SystemExit(f"{usage.completion_tokens} tokens instead of {count}")
        return seconds


def words(count, turn=0):
    """A text of *count* tokens, which differs from *turn* to *turn*.

    In turn t, the words of the n-th ten are shifted by t * n places in WORDS.
    """
    size = len(WORDS)
    return "".join(f" {WORDS[(i * i + turn * (i // size + 1)) % size]}" for i in range(count))


def library_of(engine):
    """Path of the shared library of the peer *engine*: itself, or what its package installs."""
    if "/" in engine:
        return engine
    if engine == "llama.cpp":
        import xllamacpp

        return xllamacpp.xllamacpp.__file__
    import ik_llama_cpp

    return str(Path(ik_llama_cpp.__file__).parent / "lib" / "libllama.so")


def peak_mb():
    """Peak resident memory of this process in MB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def raise_stack():
    """Start this program again with a stack of :data:`STACK` bytes, unless it has that already.

    New threads get a stack of this size, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    infinite = resource.RLIM_INFINITY
    if soft != infinite and soft < STACK and (hard == infinite or hard >= STACK):
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main():
    """Load the model, report the time, then run the test of each line."""
    if "/" in sys.argv[1]:
        raise_stack()
    engine = sys.argv[1]
    path = sys.argv[2]
    threads = int(sys.argv[3])
    context = int(sys.argv[4])
    kv_type = sys.argv[5] if len(sys.argv) > 5 else ""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    start = time.perf_counter()
    if engine.startswith("bitnet"):
        _, level, head = (engine + "::").split(":")[:3]
        runner = Bitnet(path, threads, context, level=level, head=head, kv_type=kv_type)
    elif engine == "OpenVINO GenAI":
        runner = OpenVINO(path, threads, kv_type)
    elif engine == "mistral.rs":
        runner = MistralRs(path, threads)
    else:
        runner = Llama(library_of(engine), path, threads, context, kv_type or "f16")
    reply = {"load_s": time.perf_counter() - start}
    while True:
        print(json.dumps(reply), file=replies, flush=True)
        test = sys.stdin.readline().split()
        if not test:
            break
        count, _, depth = test[1].partition("@")
        reply = {"seconds": runner.run(test[0], int(count), int(depth or 0))}
    print(json.dumps({"peak_mb": peak_mb()}), file=replies, flush=True)
    replies.close()
    os._exit(0)  # some libraries crash in their own cleaning up


if __name__ == "__main__":
    main()
