"""The program that runs a reference engine: a request on stdin, the answer into a file.

    python -m bitnet.crossval.reference_process ANSWER.json < request.json

A separate process, because a foreign engine may crash, print, keep threads or bring its own
OpenMP. The request names ``engine``, ``model``, ``prompts`` (text, ids, first compared position and
steps of the continuation of each), ``texts`` to tokenize (each with whether special tokens are
added), ``threads``, its ``arithmetic``, the ``library`` of an engine that is not a Python package,
and, to dump intermediates of the only prompt to ANSWER.safetensors instead of running it, the
beginnings ``whole`` of the names of those that are dumped for every id; of others the last rows
are. The answer is a trace (:mod:`bitnet.crossval.trace`), or ``{"error": ...}``.

llama.cpp and its descendants share a C API, which is called through ctypes. The parameter structs
differ between versions and forks and no wheel ships a header, so fields are found by the default
values around them; a library with unexpected defaults is refused. ``llama.h`` of llama.cpp names
the fields.
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
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bitnet.base.files import sha256_of
from bitnet.crossval.operations import ROWS
from bitnet.crossval.trace import EngineFacts, EngineFailed, Prompt, Trace, prompt_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from numpy.typing import NDArray

_PARAMS_BYTES = 1024  # more than any version's struct; the callee reads only its own part

# n_ctx, n_batch, n_ubatch as llama_context_default_params() gives them.
_SIZES = struct.pack("<3I", 512, 2048, 512)
# rope_freq_base and _scale, four yarn factors, yarn_orig_ctx, defrag_thold; cb_eval comes next.
_ROPES = tuple(struct.pack("<6fIf", 0, 0, -1, *yarn, 0, -1) for yarn in ((-1, -1, -1), (1, 32, 1)))
_THREADS = struct.pack("<2I", 4, 4)  # n_threads, n_threads_batch
# rope_scaling_type, pooling_type, attention_type, flash_attn_type; forks have only three of them.
_UNSET = struct.pack("<i", -1)
_F32, _F16 = 0, 1  # numbers of the types in ggml

_Callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class _Params(ctypes.Structure):
    _fields_ = (("raw", ctypes.c_ubyte * _PARAMS_BYTES),)


class _Batch(ctypes.Structure):
    """``llama_batch``; fields appended by forks are in ``room``."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
        ("room", ctypes.c_ubyte * 64),
    )


class Llama:
    """A model loaded by the library."""

    def __init__(
        self,
        library: Any,
        path: str,
        file: Path,
        *,
        threads: int,
        weights: bool = True,
        tokenize_with_model: bool = False,
        batch: int = 0,
        half_cache: bool = True,
    ) -> None:
        """Load the GGUF file *path* with *library*, a ``ctypes.CDLL`` of the C API.

        Without *weights* it can only tokenize; some forks *tokenize_with_model*, others with its
        vocabulary. With *half_cache* keys and values are stored as float16, else as float32.
        """
        self._c = library
        self.library = file  # file of the library that computes
        self._threads = threads
        self.batch = batch  # positions it computes at a time; 0: all
        self._half_cache = half_cache
        _declare(library)
        library.llama_backend_init()
        params = library.llama_model_default_params()
        if not weights:
            _set_vocab_only(params)
        self._model = library.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise EngineFailed("the engine does not load the file")
        self._vocabulary = self._model
        if hasattr(library, "llama_model_get_vocab"):
            library.llama_model_get_vocab.restype = ctypes.c_void_p
            self._vocabulary = library.llama_model_get_vocab(ctypes.c_void_p(self._model))
        self._tokenizes = self._model if tokenize_with_model else self._vocabulary
        self.n_vocab = int(library.llama_vocab_n_tokens(self._vocabulary))  # tokens of the model

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """*text* as ids; special tokens it spells are read as such.

        *add_special* puts BOS and EOS around it if the model uses them.
        """
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 16
        ids = (ctypes.c_int32 * room)()
        count = self._c.llama_tokenize(self._tokenizes, raw, len(raw), ids, room, add_special, True)
        if count < 0:
            raise EngineFailed(f"the engine does not tokenize {text[:40]!r}")
        return list(ids[:count])

    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of *ids*; special tokens by name."""
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        room = 16 * len(ids)
        for _ in range(2):  # the second time with the room it asked for
            out = ctypes.create_string_buffer(max(room, 1))
            count = self._c.llama_detokenize(
                self._vocabulary, tokens, len(ids), out, room, False, True
            )
            if count >= 0:
                return out.raw[:count].decode("utf-8", "replace")
            room = -count
        raise EngineFailed(f"the engine does not detokenize {list(ids[:10])}")

    @contextmanager
    def context(
        self, size: int, *, watch: Callable[..., None] | None = None
    ) -> Iterator[Callable[..., NDArray[np.float32]]]:
        """Logits of a new sequence of up to *size* positions, as a function of ids to append.

        The function returns logits at each of the ids, or with ``all_positions=False`` at the last:
        ``(T, vocabulary)``. *watch* is called with name and values of every float32 tensor of the
        graph.
        """
        params, callback = self._context_params(size, watch)
        handle = self._c.llama_init_from_model(self._model, params)
        if not handle:
            raise EngineFailed(f"the engine makes no context of {size} positions")
        try:
            if self._c.llama_n_ctx(handle) < size:
                raise EngineFailed("the engine's parameters are laid out in an unknown way")
            self._c.llama_set_n_threads(handle, self._threads, self._threads)
            yield partial(self._append, handle, [])
        finally:
            self._c.llama_free(handle)
            del callback  # until here, because the context calls it

    def _context_params(self, size: int, watch: Callable[..., None] | None) -> tuple[_Params, Any]:
        """Parameters of a context, and the callback in them, which must live as long as it."""
        params = self._c.llama_context_default_params()
        raw = bytes(params.raw)
        sizes, rope = raw.find(_SIZES), max(map(raw.find, _ROPES))
        after = -(-(rope + len(_ROPES[0])) // 8) * 8  # cb_eval is a pointer
        kv_types = struct.pack("<2i", _F16, _F16)
        known = 0 <= sizes < rope and raw[after + 16 : after + 24] == kv_types
        if not known or _THREADS not in raw[sizes:rope]:
            raise EngineFailed("the engine's parameters are laid out in an unknown way")
        batch = min(size, self.batch or size)
        struct.pack_into("<3I", params.raw, sizes, size, size, batch)
        if raw[rope - 16 : rope] == 4 * _UNSET:
            # No flash attention: its sums are rounded to f16.
            struct.pack_into("<i", params.raw, rope - 4, 0)
        if not self._half_cache:
            struct.pack_into("<2i", params.raw, after + 16, _F32, _F32)

        def on_tensor(tensor: int, asks: bool, _user: Any) -> bool:
            # ggml_tensor: type and buffer, then the four sizes, innermost first.
            kind = int(ctypes.cast(tensor, ctypes.POINTER(ctypes.c_int32))[0])
            if watch is None or kind != 0 or asks:
                return kind == 0
            its = ctypes.cast(tensor + 16, ctypes.POINTER(ctypes.c_int64))[0:4]
            if self._c.ggml_nbytes(tensor) == 4 * int(np.prod(its)):
                values = np.empty(its[::-1], dtype=np.float32)
                pointer = values.ctypes.data_as(ctypes.c_void_p)
                self._c.ggml_backend_tensor_get(tensor, pointer, 0, values.nbytes)
                watch(self._c.ggml_get_name(tensor).decode("utf-8", "replace"), values)
            return True

        callback = _Callback(on_tensor)
        if watch is not None:
            address = ctypes.cast(callback, ctypes.c_void_p).value
            struct.pack_into("<Q", params.raw, after, address)
        return params, callback

    def _append(
        self, handle: int, sequence: list[int], ids: Sequence[int], *, all_positions: bool = True
    ) -> NDArray[np.float32]:
        """Append *ids* to *sequence*, which *handle* has computed, and return their logits."""
        batch = self._c.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for at, token in enumerate(ids):
                batch.token[at] = token
                batch.pos[at] = len(sequence) + at
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = 0
                batch.logits[at] = all_positions or at == len(ids) - 1
            code = self._c.llama_decode(handle, batch)
            if code:
                raise EngineFailed(f"llama_decode gave {code}")
        finally:
            self._c.llama_batch_free(batch)
        sequence += ids
        places = range(0 if all_positions else len(ids) - 1, len(ids))
        out = np.empty((len(places), self.n_vocab), dtype=np.float32)
        for number, at in enumerate(places):
            row = self._c.llama_get_logits_ith(handle, at)
            if not row:
                raise EngineFailed(f"no logits for position {at}")
            out[number] = np.ctypeslib.as_array(row, shape=(self.n_vocab,))
        return out


def _set_vocab_only(params: _Params) -> None:
    """Change *params* so that only the vocabulary of a model is read.

    The switches, the first of which is this one, are bytes after the last pointer; it is off by
    default.
    """
    raw = bytes(params.raw)
    for at in range(8, _PARAMS_BYTES, 8):
        switches = raw[at : at + 8]
        if not any(raw[at - 8 : at]) and set(switches) == {0, 1} and not switches[0]:
            params.raw[at] = 1
            return
    raise EngineFailed("the engine's parameters are laid out in an unknown way")


# Names of 2024, when functions took the model for its vocabulary.
_OLDER = {
    "llama_model_load_from_file": "llama_load_model_from_file",
    "llama_init_from_model": "llama_new_context_with_model",
    "llama_vocab_n_tokens": "llama_n_vocab",
}


def _declare(c: Any) -> None:
    """Argument and result types of the functions used."""
    pointer, ints = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32)
    int32, size, text, flag = ctypes.c_int32, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_bool
    for name, result, arguments in (
        ("llama_backend_init", None, []),
        ("llama_model_default_params", _Params, []),
        ("llama_context_default_params", _Params, []),
        ("llama_model_load_from_file", pointer, [text, _Params]),
        ("llama_init_from_model", pointer, [pointer, _Params]),
        ("llama_free", None, [pointer]),
        ("llama_n_ctx", ctypes.c_uint32, [pointer]),
        ("llama_set_n_threads", None, [pointer, int32, int32]),
        ("llama_vocab_n_tokens", int32, [pointer]),
        ("llama_tokenize", int32, [pointer, text, int32, ints, int32, flag, flag]),
        ("llama_detokenize", int32, [pointer, ints, int32, text, int32, flag, flag]),
        ("llama_batch_init", _Batch, [int32, int32, int32]),
        ("llama_batch_free", None, [_Batch]),
        ("llama_decode", int32, [pointer, _Batch]),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, int32]),
        ("ggml_get_name", text, [pointer]),
        ("ggml_nbytes", size, [pointer]),
        ("ggml_backend_tensor_get", None, [pointer, pointer, size, size]),
    ):
        function = getattr(c, name, None) or getattr(c, _OLDER.get(name, name), None)
        if function is None:
            raise EngineFailed(f"the engine does not export {name}")
        function.restype, function.argtypes = result, arguments
        setattr(c, name, function)


# Package of the engine.
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
    engine = make(request["model"], request["threads"], bool(request["prompts"]))
    digest = sha256_of(engine.library)
    version = f"build {digest[:12]}"  # of a user's own
    if distribution := _DISTRIBUTIONS.get(name):
        version = f"{distribution} {importlib.metadata.version(distribution)}"
    prompts = [Prompt(text, tuple(ids), *rest) for text, ids, *rest in request["prompts"]]
    if "whole" in request:
        _dump(engine, prompts.pop().ids, tensors, tuple(request["whole"]))
    tokenized = [engine.tokenize(text, add_special=special) for text, special in request["texts"]]
    encoded = [tuple(ids) for ids in tokenized if ids is not None]
    facts = EngineFacts(name, version, request["arithmetic"], engine.library.name, digest)
    answers = []
    for prompt in prompts:
        with engine.context(len(prompt.ids) + prompt.steps + 1) as forward:
            answers.append(prompt_trace(forward, prompt))
    trace = Trace(
        facts,
        tuple(answers),
        tuple(encoded) if encoded else None,
        tuple(map(engine.detokenize, encoded)) if encoded else None,
    )
    return trace.as_json()


#: Endings of names of later states of queries, keys and values.
_LATER = re.compile(r"(?<=^[QKV]cur)_(?:normed|pos)-")


def _dump(engine: Any, ids: Sequence[int], file: Path, whole: tuple[str, ...]) -> None:
    """Write intermediates of *ids* by name to the safetensors file *file*.

    Those whose names begin with one of *whole* have a row for each id, others for the last ones.
    """
    if not isinstance(engine, Llama):
        raise EngineFailed("this engine gives no intermediates")
    parts: dict[str, list[NDArray[np.float32]]] = {}
    seen: dict[str, NDArray[np.float32]] = {}
    wanted = whole  # beginnings of names

    def watch(name: str, values: NDArray[np.float32]) -> None:
        # A name with a space is a view; a repeated name is a later state: queries after RoPE,
        # which have a name of their own in some families.
        is_state = " " not in name and not name.startswith(("kq-", "kq_"))
        if is_state and name.startswith(wanted):
            seen[_LATER.sub("-", name)] = values

    stop = max(len(ids) - ROWS, 0)
    cuts = [*range(0, stop, engine.batch or len(ids) or 1), stop, len(ids)]
    with engine.context(max(len(ids), 1), watch=watch) as forward:
        for start, end in pairwise(cuts):
            is_last = start == stop
            wanted = ("",) if is_last else whole
            seen.clear()
            if start < end:
                forward(ids[start:end], all_positions=is_last)
            for name, values in seen.items():
                if not values.size % (end - start):
                    parts.setdefault(name, []).append(values.reshape(end - start, -1))
    arrays = {name: np.concatenate(rows) for name, rows in parts.items()}
    _write_tensors(file, arrays)


def _write_tensors(file: Path, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Write *arrays* by name as safetensors: a length, a header in JSON, and their bytes in order.

    https://huggingface.co/docs/safetensors describes the format.
    """
    directory, end = {}, 0
    for name, values in arrays.items():
        place = [end, end + values.nbytes]
        directory[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": place}
        end += values.nbytes
    header = json.dumps(directory).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for values in arrays.values():
            out.write(np.ascontiguousarray(values, dtype="<f4").tobytes())


class _TransformersEngine:
    def __init__(self, path: str, threads: int, weights: bool) -> None:
        torch, transformers = _module("torch"), _module("transformers")
        self._torch, self._model = torch, cast("Any", None)
        built = Path(torch.__file__ or "").parent / "lib" / "libtorch_cpu.so"
        self.library = built if built.exists() else Path(torch._C.__file__ or "")
        if weights:
            torch.set_num_threads(threads)
            self._model, loading = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
            # Packed ternary weights get the type in config.json, not the requested one.
            torch.nn.Module.float(self._model).eval()
            missing = sorted(loading["missing_keys"])
            if missing:  # it would fill them with random numbers
                raise EngineFailed(f"the folder has no {missing[0]} ({len(missing)} are missing)")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                path, local_files_only=True
            )
        except (OSError, ValueError):
            self._tokenizer = None

    def tokenize(self, text: str, *, add_special: bool) -> list[int] | None:
        if self._tokenizer is None:
            return None
        return list(self._tokenizer(text, add_special_tokens=add_special)["input_ids"])

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def context(self, _size: int) -> AbstractContextManager[Callable[..., NDArray[np.float32]]]:
        return nullcontext(partial(self._append, []))

    def _append(
        self, sequence: list[int], ids: Sequence[int], *, all_positions: bool = True
    ) -> NDArray[np.float32]:
        sequence += ids
        if not all_positions:  # nothing is cached: the next pass is over all of them
            return np.empty((0, 0), dtype=np.float32)
        with self._torch.no_grad():
            out = self._model(self._torch.tensor([sequence])).logits[0]
        rows: NDArray[np.float32] = out[-len(ids) :].float().numpy()
        return rows


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineFailed(f"the Python package {name} does not load: {error}") from error


def _llama_cpp(path: str, threads: int, weights: bool) -> Llama:
    package = _module("xllamacpp")
    extension = importlib.import_module(f"{package.__name__}.xllamacpp")
    library = Path(extension.__file__ or "")
    c = ctypes.CDLL(str(library))
    return Llama(c, path, library, threads=threads, weights=weights)


def _ik_llama_cpp(path: str, threads: int, weights: bool) -> Llama:
    folder = Path(_module("ik_llama_cpp").__file__ or "").parent / "lib"
    library = next(iter(sorted(folder.glob("*llama.*"))), None)
    if library is None:
        raise EngineFailed("ik-llama-cpp-python came without its library")
    c = ctypes.CDLL(str(library))
    # Its products of Q4_1 with 32 positions and more at a time are wrong: 1.6 nats beside float64.
    make = partial(Llama, tokenize_with_model=True, batch=ROWS)
    return make(c, path, library, threads=threads, weights=weights)


def _bitnet_cpp(path: str, threads: int, weights: bool, *, library: str) -> Llama:
    c = ctypes.CDLL(library)
    product = getattr(c, "ggml_vec_dot_i2_i8_s", None)
    if product is None:
        raise EngineFailed(f"{library} has no products of I2_S: it is not of bitnet.cpp")
    # It keeps the results of a product on the stack, for all positions of a batch.
    file = _file_of(product) or Path(library)
    return Llama(c, path, file, threads=threads, weights=weights, batch=64)


def _file_of(function: Any) -> Path | None:
    """The library that contains *function*: one may be loaded by another."""
    look_up = getattr(ctypes.CDLL(None), "dladdr", None) if sys.platform != "win32" else None
    symbol = (ctypes.c_char_p * 4)()  # Dl_info of the C library: file, base, name, address
    if look_up is None or not look_up(ctypes.cast(function, ctypes.c_void_p), symbol):
        return None
    return Path(os.fsdecode(symbol[0] or b""))


_ENGINES: dict[str, Callable[..., Any]] = {
    "llama.cpp": _llama_cpp,
    "bitnet.cpp": _bitnet_cpp,
    "ik_llama.cpp": _ik_llama_cpp,
    "transformers": _TransformersEngine,
}


def _main(target: str) -> None:
    try:
        found = answer(json.load(sys.stdin), Path(target).with_suffix(".safetensors"))
    except (EngineFailed, OSError, ValueError) as error:
        is_ours = isinstance(error, EngineFailed)
        found = {"error": str(error) if is_ours else f"{type(error).__name__}: {error}"}
    Path(target).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1])
