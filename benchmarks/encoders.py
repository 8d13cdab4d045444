"""Texts per second of an encoder here and in sentence-transformers, ONNX Runtime and llama.cpp.

    python benchmarks/encoders.py FOLDER Q8_0.gguf F32.gguf [--llama libllama.so]
        [--onnx FOLDER] [--threads 2] [--turns 5] [--json FILE] [--table FILE]

FOLDER is the model in the form of sentence-transformers (all-MiniLM-L6-v2); ``bitnet convert``
writes the two files from it. Texts are words of this project's documentation, of 16, 128 and 512
tokens and of mixed lengths. The time includes tokenizing, but for llama.cpp, which gets ids, up to
2,048 in a pass of several sequences. sentence-transformers and ONNX Runtime sort texts by length
and pad each batch of 32. Each engine runs in a process of its own, in turns; the table has medians.
The first turn compares their vectors with those of sentence-transformers and does not count.

With ``--onnx`` ONNX Runtime runs the model that transformers exports into that folder. PYTHONPATH
may name the packages onnx, onnxscript and onnxruntime.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from arguments import at_least
from idle import MOST_CORES, Others
from runtime import killed_at_last

from bitnet.crossval.llama_library import Batch, Params

LENGTHS = {"16": 128, "128": 24, "512": 6}  # tokens of a text: number of texts
MIXED = 64  # number of texts of different lengths
BATCH = 32  # texts at once, the default of sentence-transformers
TOKENS_AT_ONCE = 2048  # of llama.cpp, its default of n_batch
SEQUENCES_AT_ONCE = 128  # of llama.cpp
OURS_F32, OURS_Q8 = "bitnet F32", "bitnet Q8_0"
TORCH, ONNX = "sentence-transformers F32", "ONNX Runtime F32"
LLAMA_F32, LLAMA_Q8 = "llama.cpp F32", "llama.cpp Q8_0"


def words():
    """The words of this project's documentation."""
    pages = sorted(Path(__file__).parents[1].glob("docs/**/*.md"))
    return " ".join(page.read_text(encoding="utf-8") for page in pages).split()


def make_texts(folder):
    """Texts by name of the test.

    A number as name is the number of tokens of its texts; those of "mixed" have 4 to 256. A text
    may have fewer if no word completes it.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    every_word = words()
    at = 0

    def text_of(count):
        """The next text, of *count* tokens with the special ones."""
        nonlocal at
        words_of_text = []
        length = 0
        while length < count:
            words_of_text.append(every_word[at % len(every_word)])
            at += 1
            length = len(tokenizer.encode(" ".join(words_of_text)).ids)
            if length > count:  # the last word has too many tokens: try one of a single token
                words_of_text[-1] = "a"
                length = len(tokenizer.encode(" ".join(words_of_text)).ids)
                if length > count:
                    words_of_text.pop()
                    length = count
        return " ".join(words_of_text)

    tests = {name: [text_of(int(name)) for _ in range(n)] for name, n in LENGTHS.items()}
    # Half of the lengths are below exp(3.4), about 30 tokens.
    lengths = np.random.default_rng(0).lognormal(3.4, 0.8, MIXED)
    tests["mixed"] = [text_of(int(length)) for length in lengths.clip(4, 256)]
    return tests


class Ours:
    """This project."""

    def __init__(self, path, threads):
        import bitnet

        self.model = bitnet.load(path, threads=threads)
        self.model.text_limit = 512  # sentence-transformers' file says 256

    def embed(self, texts):
        """Vectors of *texts*, ``(N, 384)``, of length one."""
        return self.model.embed(texts)


class SentenceTransformers:
    """torch, by sentence-transformers."""

    def __init__(self, path, threads):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self.model = SentenceTransformer(str(path), device="cpu")
        self.model.max_seq_length = 512

    def embed(self, texts):
        """Vectors of *texts*, ``(N, 384)``, of length one."""
        return self.model.encode(texts, batch_size=BATCH)


class OnnxRuntime:
    """ONNX Runtime with the tokenizers library, the combination that fastembed uses."""

    def __init__(self, path, threads):
        import onnxruntime
        from tokenizers import Tokenizer

        folder, exported = path.split(os.pathsep)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(exported, options)
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.tokenizer.enable_truncation(512)
        self.tokenizer.enable_padding()

    def embed(self, texts):
        """Vectors of *texts*, ``(N, 384)``, of length one."""
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        rows = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(texts), BATCH):
            numbers = order[start : start + BATCH]
            encodings = self.tokenizer.encode_batch([texts[at] for at in numbers])
            ids = np.array([encoding.ids for encoding in encodings], np.int64)
            mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
            types = np.zeros_like(ids)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            (states,) = self.session.run(None, inputs)
            # Mean pooling; the length of the vector, and so the number of tokens, cancels out.
            sums = (states * mask[..., None]).sum(axis=1)
            rows[numbers] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return rows


class Llama:
    """llama.cpp, several sequences in a pass."""

    def __init__(self, path, threads):
        from tokenizers import Tokenizer

        folder, library, file = path.split(os.pathsep)
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.ids = {}
        c = self.c = ctypes.CDLL(library)
        c.llama_model_default_params.restype = c.llama_context_default_params.restype = Params
        c.llama_model_load_from_file.argtypes = (ctypes.c_char_p, Params)
        c.llama_init_from_model.argtypes = (ctypes.c_void_p, Params)
        c.llama_batch_init.restype = Batch
        c.llama_decode.argtypes = (ctypes.c_void_p, Batch)
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory"):
            getattr(c, name).restype = ctypes.c_void_p
        c.llama_get_embeddings_seq.restype = ctypes.POINTER(ctypes.c_float)
        c.llama_backend_init()
        model = c.llama_model_load_from_file(file.encode(), c.llama_model_default_params())
        params = c.llama_context_default_params()
        # n_ctx, n_batch and n_ubatch are found by their defaults; n_seq_max follows.
        at = bytes(params.raw).find(struct.pack("<3I", 512, 2048, 512))
        sizes = (TOKENS_AT_ONCE,) * 3
        struct.pack_into("<4I", params.raw, at, *sizes, SEQUENCES_AT_ONCE)
        self.context = ctypes.c_void_p(c.llama_init_from_model(model, params))
        c.llama_set_n_threads(self.context, threads, threads)
        c.llama_set_embeddings(self.context, True)
        self.batch = c.llama_batch_init(TOKENS_AT_ONCE, 0, 1)

    def embed(self, texts):
        """Vectors of *texts*, ``(N, 384)``, of length one."""
        rows = []
        packed = []
        for text in texts:
            ids = self._ids(text)
            has_room = sum(map(len, packed)) + len(ids) <= TOKENS_AT_ONCE
            if packed and not (has_room and len(packed) < SEQUENCES_AT_ONCE):
                rows += self._pass(packed)
                packed = []
            packed.append(ids)
        return np.array(rows + self._pass(packed))

    def _ids(self, text):
        """Ids of *text*, tokenized once: `child` does it before it measures."""
        if text not in self.ids:
            self.ids[text] = self.tokenizer.encode(text).ids
        return self.ids[text]

    def _pass(self, packed):
        """Vectors of the *packed* sequences of ids, computed in one pass."""
        batch = self.batch
        at = 0
        for sequence, ids in enumerate(packed):
            for position, token in enumerate(ids):
                batch.token[at] = token
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = 1
                at += 1
        batch.n_tokens = at
        if self.c.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        rows = []
        for sequence in range(len(packed)):
            row = np.array(self.c.llama_get_embeddings_seq(self.context, sequence)[:384])
            rows.append(row / np.linalg.norm(row))
        return rows


KINDS = {"bitnet": Ours, "torch": SentenceTransformers, "onnx": OnnxRuntime, "llama": Llama}


def child(kind, path, threads, source):
    """Read names of tests from stdin, and write the seconds and the first vectors of each.

    *kind* is a key of KINDS, *path* what its class takes: a path, or several with separators.
    *source* is a JSON file with the texts of each test.
    """
    tests = json.loads(Path(source).read_text())
    engine = KINDS[kind](path, threads)
    for line in sys.stdin:
        texts = tests[line.strip()]
        engine.embed(texts[:8])  # warm-up
        if kind == "llama" and not engine.ids.keys() >= set(texts):
            engine.embed(texts)  # so that tokenizing is not measured
        started = time.perf_counter()
        vectors = engine.embed(texts)
        seconds = time.perf_counter() - started
        print(json.dumps([seconds, np.asarray(vectors[:4]).tolist()]), file=REPLIES, flush=True)


def export_onnx(folder, target):
    """Path of *folder*'s encoder as ONNX, which is exported unless it exists."""
    file = target / "model.onnx"
    if not file.exists():
        import torch
        import transformers

        target.mkdir(parents=True, exist_ok=True)
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")

        class States(torch.nn.Module):
            """The states behind the last block."""

            def __init__(self):
                super().__init__()
                self.model = model.eval()

            def forward(self, input_ids, attention_mask, token_type_ids):
                """States of a batch, ``(N, T, hidden)``."""
                return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state

        ids = torch.ones(2, 16, dtype=torch.int64)
        batch = torch.export.Dim("batch", min=1, max=1024)
        length = torch.export.Dim("length", min=2, max=512)
        torch.onnx.export(
            States(),
            # three tensors: the exporter would make one input of the same one used twice
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            str(file),
            input_names=["input_ids", "attention_mask", "token_type_ids"],
            dynamic_shapes=({0: batch, 1: length},) * 3,
        )
    return file


def contestants(options):
    """Kind and path of every engine that is available, by its label."""
    ours = (OURS_F32, "bitnet", options.folder), (OURS_Q8, "bitnet", options.q8)
    entries = {label: (kind, str(path)) for label, kind, path in ours}
    entries[TORCH] = ("torch", str(options.folder))
    if options.onnx and importlib.util.find_spec("onnxruntime"):
        file = export_onnx(options.folder, options.onnx)
        entries[ONNX] = ("onnx", os.pathsep.join(map(str, (options.folder, file))))
    if options.llama:
        for label, file in ((LLAMA_F32, options.f32), (LLAMA_Q8, options.q8)):
            parts = (options.folder, options.llama, file)
            entries[label] = ("llama", os.pathsep.join(map(str, parts)))
    return entries


class Engine:
    """A process with an engine, paused (SIGSTOP) while others run: idle threads of some spin."""

    def __init__(self, kind, path, threads, source):
        command = [sys.executable, __file__, "--child", kind, path, str(threads), str(source)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        self.busy = 0  # measurements that other processes disturbed

    def run(self, name):
        """Seconds of the test *name*, and its first vectors."""
        self.process.send_signal(signal.SIGCONT)
        others = Others([self.process.pid])
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline()
        if not reply:
            raise SystemExit(f"an engine died: {' '.join(self.process.args)}")
        seconds, rows = json.loads(reply)
        self.busy += others.share() >= MOST_CORES
        self.process.send_signal(signal.SIGSTOP)
        return seconds, np.array(rows)

    def stop(self):
        """End the process."""
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def measure(paths, tests, options, work):
    """Texts per second of every engine by test and turn, and its number of disturbed measurements.

    *paths* has the kind and path of each engine by label, *work* is the file of the texts. The
    first turn does not count. The results so far are written to --json after each turn.
    """
    engines = {}
    with killed_at_last(engines):
        for label, (kind, path) in paths.items():
            engines[label] = Engine(kind, path, options.threads, work)
        speeds = measure_speeds(engines, tests, options)
        busy = {label: engine.busy for label, engine in engines.items()}
        for engine in engines.values():
            engine.stop()
    return speeds, busy


def measure_speeds(engines, tests, options):
    """Texts per second of *engines* by label and test, in every turn but the first."""
    speeds = {label: {name: [] for name in tests} for label in engines}
    vectors = {label: {} for label in engines}
    for turn in range(options.turns + 1):
        for name, texts in tests.items():
            for label, engine in engines.items():
                seconds, vectors[label][name] = engine.run(name)
                if turn:
                    speeds[label][name].append(len(texts) / seconds)
        if not turn:
            check(vectors)
            for engine in engines.values():
                engine.busy = 0
        elif options.json:
            busy = {label: engine.busy for label, engine in engines.items()}
            facts = {"turns": turn, "busy": busy, "texts_per_s": speeds}
            options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return speeds


def check(vectors):
    """Exit if an engine's vectors differ from those of sentence-transformers.

    *vectors* has the first vectors of each test by label.
    """
    for name, expected in vectors[TORCH].items():
        for label, by_test in vectors.items():
            rows = by_test[name]
            cosines = (rows * expected).sum(axis=1)
            least = 0.99 if "Q8_0" in label else 0.999
            if not cosines.min() > least:
                raise SystemExit(f"{label}, {name}: cosine {cosines.min():.5f} to torch")


def table(speeds, busy, tests):
    """Medians as a Markdown table, with the number of measurements that others disturbed."""
    names = [*tests]
    heads = [f"{name} tokens" if name in LENGTHS else name for name in names]
    lines = [
        f"| texts per second | {' | '.join(heads)} | disturbed |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for label, by_test in speeds.items():
        row = " | ".join(f"{statistics.median(by_test[name]):,.1f}" for name in names)
        count = sum(len(per_turn) for per_turn in by_test.values())
        lines.append(f"| {label} | {row} | {busy[label]} of {count} |")
    return "\n".join(lines) + "\n"


def main():
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("q8", type=Path)
    parser.add_argument("f32", type=Path)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=at_least(1), default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    tests = make_texts(options.folder)
    work = options.q8.with_suffix(".texts.json")
    work.write_text(json.dumps(tests))
    speeds, busy = measure(contestants(options), tests, options, work)
    text = table(speeds, busy, tests)
    if options.table:
        options.table.write_text(text)
    print(text)


if __name__ == "__main__":
    # Libraries print to stdout, so the replies of a child get a descriptor of their own.
    REPLIES = os.fdopen(os.dup(1), "w")
    if sys.argv[1:2] == ["--child"]:
        os.dup2(2, 1)
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main()
