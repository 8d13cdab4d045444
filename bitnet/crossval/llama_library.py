"""llama.cpp and its descendants through their C API, with ctypes.

The parameter structs differ between versions and forks and no wheel ships a header, so fields are
found by the default values around them; a library with unexpected defaults is refused. ``llama.h``
of llama.cpp names the fields.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.crossval.names import PASSED_ON, Node
from bitnet.crossval.trace import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_PARAMS_BYTES = 1024  # more than any version's struct; the callee reads only its own part

# n_ctx, n_batch, n_ubatch as llama_context_default_params() gives them.
_SIZES = struct.pack("<3I", 512, 2048, 512)
# rope_freq_base and _scale, four yarn factors, yarn_orig_ctx, defrag_thold; cb_eval comes next. The
# last three factors have other defaults in older versions.
_ROPES = tuple(struct.pack("<6fIf", 0, 0, -1, *yarn, 0, -1) for yarn in ((-1, -1, -1), (1, 32, 1)))
_THREADS = struct.pack("<2I", 4, 4)  # n_threads, n_threads_batch
# rope_scaling_type, pooling_type, attention_type, flash_attn_type; forks have only three of them.
_UNSET = struct.pack("<i", -1)
# Numbers of the types in ggml.
_F32 = 0
_F16 = 1
_KV_TYPES = struct.pack("<2i", _F16, _F16)  # type_k, type_v
_INT_BYTES = 4
_POINTER_BYTES = 8
_NO_FLASH_ATTENTION = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
_NO_POOLING = 0  # LLAMA_POOLING_TYPE_NONE
_UNKNOWN_LAYOUT = "the engine's parameters are laid out in an unknown way"

_SOURCES = 10  # pointers in a tensor to those that it was computed from: GGML_MAX_SRC
# Operations, by their names in ggml, whose result is found by the weight that they read.
_OF_WEIGHTS = ("MUL_MAT", "ADD", "MUL", "FUSED_RMS_NORM", "SSM_CONV")

# Type of a function that returns an address, where ``char *`` would become bytes.
_Address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)

# Names of 2024, when functions took the model where they now take its vocabulary.
_OLDER = {
    "llama_model_load_from_file": "llama_load_model_from_file",
    "llama_init_from_model": "llama_new_context_with_model",
    "llama_vocab_n_tokens": "llama_n_vocab",
}


class Params(ctypes.Structure):
    """A parameter struct of unknown layout, of which the callee reads its own part."""

    _fields_ = (("raw", ctypes.c_ubyte * _PARAMS_BYTES),)


@dataclass(frozen=True)
class _ContextFields:
    """Offsets in bytes of the fields of ``llama_context_params`` that are changed here."""

    n_ctx: int  # n_batch and n_ubatch follow
    pooling_type: int | None  # None in forks without all four types
    flash_attn_type: int | None  # None in forks without it
    cb_eval: int
    type_k: int  # type_v follows

    @classmethod
    def find(cls, raw: bytes) -> _ContextFields:
        """The offsets in the bytes *raw* of the default parameters; unknown ones are refused."""
        n_ctx = raw.find(_SIZES)
        rope_freq_base = max(map(raw.find, _ROPES))
        end = rope_freq_base + len(_ROPES[0])
        cb_eval = -(-end // _POINTER_BYTES) * _POINTER_BYTES  # a pointer is aligned
        type_k = cb_eval + 2 * _POINTER_BYTES  # behind cb_eval and cb_eval_user_data
        kv_types = raw[type_k : type_k + len(_KV_TYPES)]
        is_recognized = 0 <= n_ctx < rope_freq_base and kv_types == _KV_TYPES
        if not is_recognized or _THREADS not in raw[n_ctx:rope_freq_base]:
            raise EngineFailed(_UNKNOWN_LAYOUT)
        rope_scaling_type = rope_freq_base - 4 * _INT_BYTES
        has_four_types = raw[rope_scaling_type:rope_freq_base] == 4 * _UNSET
        return cls(
            n_ctx=n_ctx,
            pooling_type=rope_scaling_type + _INT_BYTES if has_four_types else None,
            flash_attn_type=rope_freq_base - _INT_BYTES if has_four_types else None,
            cb_eval=cb_eval,
            type_k=type_k,
        )


class Batch(ctypes.Structure):
    """``llama_batch``, with ``room`` for fields that forks append."""

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
        head: NDArray[np.float32] | None = None,
    ) -> None:
        """Load the GGUF file *path* with *library*, a ``ctypes.CDLL`` of the C API.

        Args:
            library: the loaded library; its functions get argument types.
            path: the GGUF file.
            file: the library's own file, for the report.
            threads: compute threads.
            weights: load the weights too; without them it can only tokenize.
            tokenize_with_model: ``llama_tokenize`` takes the model, as in some forks, and not its
                vocabulary.
            batch: positions to compute at a time; 0: all.
            half_cache: store keys and values as float16, else as float32.
            head: ``(vocabulary, width)``, for a model without an output layer: its logits are the
                products of its hidden states with this matrix.
        """
        self._c = library
        self.library = file  # file of the library that computes
        self._threads = threads
        self.batch = batch  # positions it computes at a time; 0: all
        self._half_cache = half_cache
        self.head = head
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
        self._tokenizer = self._model if tokenize_with_model else self._vocabulary
        self.n_vocab = int(library.llama_vocab_n_tokens(self._vocabulary))  # tokens of the model

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """*text* as ids; special tokens it spells are read as such.

        *add_special* puts BOS and EOS around it if the model uses them.
        """
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 16  # a token for each byte, and some special ones
        for _ in range(2):  # the second time with the room it asked for
            ids = (ctypes.c_int32 * room)()
            count = self._c.llama_tokenize(
                self._tokenizer, raw, len(raw), ids, room, add_special, True
            )
            if count >= 0:
                return list(ids[:count])
            room = -count
        raise EngineFailed(f"the engine does not tokenize {text[:40]!r}")

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
        ``(T, vocabulary)``. *watch* is called with the :class:`Node` and the values of every
        float32 tensor of the graph, but for views with gaps.
        """
        params, callback = self._context_params(size, watch)
        handle = self._c.llama_init_from_model(self._model, params)
        if not handle:
            raise EngineFailed(f"the engine makes no context of {size} positions")
        try:
            if self._c.llama_n_ctx(handle) < size:
                raise EngineFailed(_UNKNOWN_LAYOUT)
            self._c.llama_set_n_threads(handle, self._threads, self._threads)
            if self.head is not None:
                self._c.llama_set_embeddings(handle, True)
            yield partial(self._append, handle, [])
        finally:
            self._c.llama_free(handle)
            del callback  # it must live until here: the context calls it

    def _context_params(self, size: int, watch: Callable[..., None] | None) -> tuple[Params, Any]:
        """Parameters of a context, and the callback in them, which must live as long as it."""
        params = self._c.llama_context_default_params()
        fields = _ContextFields.find(bytes(params.raw))
        batch = min(size, self.batch or size)
        struct.pack_into("<3I", params.raw, fields.n_ctx, size, size, batch)
        if fields.flash_attn_type is not None:
            # The sums of flash attention are rounded to f16.
            struct.pack_into("<i", params.raw, fields.flash_attn_type, _NO_FLASH_ATTENTION)
        if fields.pooling_type is not None and self.head is not None:
            # A vector for each position, and none for the whole text.
            struct.pack_into("<i", params.raw, fields.pooling_type, _NO_POOLING)
        if not self._half_cache:
            struct.pack_into("<2i", params.raw, fields.type_k, _F32, _F32)

        def on_tensor(tensor: int, asks: bool, _user: Any) -> bool:
            # ggml_tensor: type and buffer, then the four sizes, innermost first.
            kind = int(ctypes.cast(tensor, ctypes.POINTER(ctypes.c_int32))[0])
            is_float32 = kind == _F32
            # ggml first *asks* whether to pass a tensor, and calls again once it is computed.
            if asks or watch is None or not is_float32:
                return is_float32
            shape = ctypes.cast(tensor + 16, ctypes.POINTER(ctypes.c_int64))[0:4]
            # A view with gaps between its rows spans more bytes, and is left out.
            if self._c.ggml_nbytes(tensor) == 4 * int(np.prod(shape)):
                values = np.empty(shape[::-1], dtype=np.float32)
                pointer = values.ctypes.data_as(ctypes.c_void_p)
                self._c.ggml_backend_tensor_get(tensor, pointer, 0, values.nbytes)
                watch(self._node(tensor), values)
            return True

        callback = _Callback(on_tensor)
        if watch is not None:
            address = ctypes.cast(callback, ctypes.c_void_p).value
            struct.pack_into("<Q", params.raw, fields.cb_eval, address)
        return params, callback

    def _node(self, tensor: int) -> Node:
        """The graph node of *tensor*: its name, its operation, and the weight behind it."""
        name = self._text("ggml_get_name", tensor)
        operation = self._text("ggml_op_desc", tensor)
        return Node(name, operation, self._weight(tensor))

    def _weight(self, tensor: int) -> str:
        """Name of the weight that the operation of *tensor* reads, empty if it reads none.

        Operations that only change the result of another, such as rotations, have its weight.
        """
        operation = self._text("ggml_op_desc", tensor)
        sources = self._sources(tensor)
        if operation in _OF_WEIGHTS:
            leaves = [source for source in sources if self._text("ggml_op_desc", source) == "NONE"]
            return self._text("ggml_get_name", leaves[-1]) if leaves else ""
        if sources and operation.startswith(PASSED_ON):
            return self._weight(sources[0])
        return ""

    def _sources(self, tensor: int) -> list[int]:
        """Addresses of the tensors that *tensor* was computed from.

        The pointers to them are found from the end of the struct, because what is before them
        differs between versions: ``src``, then ``view_src``, ``view_offs``, ``data`` and ``name``.
        """
        name = ctypes.cast(self._c.ggml_get_name, _Address)(tensor)
        pointers = ctypes.cast(name - 8 * (_SOURCES + 3), ctypes.POINTER(ctypes.c_void_p))
        return [pointer for pointer in pointers[0:_SOURCES] if pointer]

    def _text(self, function: str, tensor: int) -> str:
        """Result of the *function* of the library that describes *tensor*."""
        text: bytes = getattr(self._c, function)(tensor)
        return text.decode("utf-8", "replace")

    def _append(
        self, handle: int, sequence: list[int], ids: Sequence[int], *, all_positions: bool = True
    ) -> NDArray[np.float32]:
        """Append *ids* to *sequence*, the ids that the context *handle* has run; return logits.

        They are ``(T, vocabulary)``: those of each of *ids*, or of the last one alone.
        """
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
        if self.head is not None:
            width = self.head.shape[1]
            vectors = self._rows("llama_get_embeddings_ith", handle, places, width)
            logits: NDArray[np.float32] = vectors @ self.head.T
            return logits
        return self._rows("llama_get_logits_ith", handle, places, self.n_vocab)

    def _rows(
        self, function: str, handle: int, places: Sequence[int], width: int
    ) -> NDArray[np.float32]:
        """Rows that the *function* of the library gives for *places* of the last batch."""
        out = np.empty((len(places), width), dtype=np.float32)
        for number, at in enumerate(places):
            row = getattr(self._c, function)(handle, at)
            if not row:
                raise EngineFailed(f"{function} gave nothing for position {at}")
            out[number] = np.ctypeslib.as_array(row, shape=(width,))
        return out


def _set_vocab_only(params: Params) -> None:
    """Change *params* so that only the vocabulary of a model is read.

    The switches are bytes after the last pointer, which is null by default. The first of them is
    ``vocab_only``, which is off by default.
    """
    raw = bytes(params.raw)
    for at in range(8, _PARAMS_BYTES, 8):
        switches = raw[at : at + 8]
        if not any(raw[at - 8 : at]) and set(switches) == {0, 1} and not switches[0]:
            params.raw[at] = 1
            return
    raise EngineFailed(_UNKNOWN_LAYOUT)


def _declare(c: Any) -> None:
    """Set the argument and result types of the functions used; a missing one is EngineFailed."""
    pointer = ctypes.c_void_p
    ints = ctypes.POINTER(ctypes.c_int32)
    int32 = ctypes.c_int32
    size = ctypes.c_size_t
    text = ctypes.c_char_p
    flag = ctypes.c_bool
    for name, result, arguments in (
        ("llama_backend_init", None, []),
        ("llama_model_default_params", Params, []),
        ("llama_context_default_params", Params, []),
        ("llama_model_load_from_file", pointer, [text, Params]),
        ("llama_init_from_model", pointer, [pointer, Params]),
        ("llama_free", None, [pointer]),
        ("llama_n_ctx", ctypes.c_uint32, [pointer]),
        ("llama_set_n_threads", None, [pointer, int32, int32]),
        ("llama_vocab_n_tokens", int32, [pointer]),
        ("llama_tokenize", int32, [pointer, text, int32, ints, int32, flag, flag]),
        ("llama_detokenize", int32, [pointer, ints, int32, text, int32, flag, flag]),
        ("llama_batch_init", Batch, [int32, int32, int32]),
        ("llama_batch_free", None, [Batch]),
        ("llama_decode", int32, [pointer, Batch]),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, int32]),
        ("llama_get_embeddings_ith", ctypes.POINTER(ctypes.c_float), [pointer, int32]),
        ("llama_set_embeddings", None, [pointer, flag]),
        ("ggml_get_name", text, [pointer]),
        ("ggml_op_desc", text, [pointer]),
        ("ggml_nbytes", size, [pointer]),
        ("ggml_backend_tensor_get", None, [pointer, pointer, size, size]),
    ):
        function = getattr(c, name, None) or getattr(c, _OLDER.get(name, name), None)
        if function is None:
            raise EngineFailed(f"the engine does not export {name}")
        function.restype = result
        function.argtypes = arguments
        setattr(c, name, function)
