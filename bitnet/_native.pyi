# Signatures of the compiled module, which tests/test_native_stub.py compares with it.

from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

INTERFACE: str

def set_leak_warnings(wanted: bool) -> None: ...
def guard_mapping(mapped: object) -> int: ...
def watch_mappings() -> bool: ...
def release_mapping(number: int) -> None: ...
def is_torn(number: int) -> bool: ...
def gguf_skip_strings(buffer: object, at: int, count: int) -> tuple[int, int]: ...
def gguf_string_starts(buffer: object, count: int) -> object: ...
def gguf_strings(buffer: object, count: int) -> list[str] | None: ...

class Graph:
    def __init__(self) -> None: ...
    def add_register(self, width: int, place: int) -> int: ...
    def add_table(
        self, layers: int, kv_heads: int, head_dim: int, window: int, q8: bool = False
    ) -> int: ...
    def add_context(
        self,
        rotations: Sequence[tuple[NDArray[numpy.float64], float]],
    ) -> int: ...
    def add_rotation(self, pairs: int, half: bool) -> int: ...
    def set_state(self, size: int) -> None: ...
    def add(self, instruction: str, **fields: Any) -> None: ...
    def run(
        self,
        tokens: NDArray[numpy.int64],
        segments: list[Any],
        result: int,
        out: NDArray[numpy.float32],
    ) -> None: ...

def kernel_types() -> list[str]: ...
def kernel_levels() -> list[str]: ...
def kernel_level() -> str: ...
def set_kernel_level(name: str) -> bool: ...
def has_kernel(type: int) -> bool: ...
def dense_pays() -> bool: ...
def kernel_self_test() -> list[str]: ...
def kernel_counters() -> dict[str, int]: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...
def linear(
    type: int,
    weight: NDArray[numpy.uint8],
    rows: int,
    cols: int,
    scale: float,
    x: NDArray[numpy.float32],
    out: NDArray[numpy.float32],
) -> None: ...
def row_bytes(type: int, cols: int) -> int: ...
def allocate_weights(size: int) -> NDArray[numpy.uint8]: ...
def pack_rows(
    type: int,
    weight: NDArray[numpy.uint8],
    rows: int,
    cols: int,
    out: NDArray[numpy.uint8],
) -> None: ...
def quantize_rows(
    ggml_id: int,
    x: NDArray[numpy.float32],
    importance: NDArray[numpy.float32] | None,
    out: NDArray[numpy.uint8],
) -> None: ...
def tiled_columns(type: int, cols: int) -> int: ...
def embed(
    type: int,
    weight: NDArray[numpy.uint8],
    rows: int,
    cols: int,
    scale: float,
    ids: NDArray[numpy.int64],
    out: NDArray[numpy.float32],
) -> None: ...
def rope(
    x: NDArray[numpy.float32],
    cos: NDArray[numpy.float32],
    sin: NDArray[numpy.float32],
    half: bool,
    out: NDArray[numpy.float32],
) -> None: ...
def attention(
    q: NDArray[numpy.float32],
    pages: NDArray[numpy.int16],
    start: int,
    scale: float,
    window: int,
    softcap: float,
    out: NDArray[numpy.float32],
    sinks: NDArray[numpy.float32] | None = None,
) -> None: ...
def softcap(
    x: NDArray[numpy.float32],
    cap: float,
    out: NDArray[numpy.float32],
) -> None: ...
def turns(
    angles: NDArray[numpy.float64],
    scale: float,
    cos: NDArray[numpy.float32],
    sin: NDArray[numpy.float32],
) -> None: ...
def sum_bytes(
    bytes: NDArray[numpy.uint8],
) -> int: ...
def exact_head_sizes(rows: int, cols: int) -> tuple[int, int, int]: ...

EXACT_HEAD_COLUMNS: int

class ExactHead:
    def __init__(
        self,
        type: int,
        weight: NDArray[numpy.uint8],
        rows: int,
        cols: int,
        order: NDArray[numpy.int32],
        factors: NDArray[numpy.float32],
        tiles: NDArray[numpy.uint8],
        sixth: NDArray[numpy.uint8],
        step: NDArray[numpy.float32],
        residual: NDArray[numpy.float32],
        norm: NDArray[numpy.float32],
        file: int = -1,
        file_offset: int = 0,
    ) -> None: ...
    def build(self, begin: int, end: int) -> bool: ...
    def find(
        self,
        x: NDArray[numpy.float32],
        count: int,
        margins: Sequence[float],
        listed: Sequence[NDArray[numpy.int64]],
    ) -> list[Any]: ...
    def bounds(
        self,
        x: NDArray[numpy.float32],
        sixth: bool,
        approx: NDArray[numpy.float32],
        upper: NDArray[numpy.float32],
    ) -> bool: ...
    def rows(
        self,
        x: NDArray[numpy.float32],
        ids: NDArray[numpy.int64],
        out: NDArray[numpy.float32],
    ) -> None: ...

def pack_ternary(
    source: str,
    weight: NDArray[numpy.uint8],
    rows: int,
    inputs: int,
    type: int,
    cols: int,
    out: NDArray[numpy.uint8],
) -> bool: ...

class OverBudget(RuntimeError):
    pass

class TokenizerEngine:
    def __init__(self, buffer: object) -> None: ...
    def encode(self, text: str, parse_special: bool) -> list[int]: ...
    def encode_array(
        self, text: str, parse_special: bool, threads: int
    ) -> NDArray[numpy.uint32]: ...
    def encode_many(
        self, texts: list[str], parse_special: bool, threads: int
    ) -> list[list[int]]: ...
    def spans(self, text: str, parse_special: bool) -> list[tuple[int, int, int]]: ...
    def token_spelling(self, id: int) -> bytes: ...
    def token_flags(self, id: int) -> int: ...
    def find(self, spelling: bytes) -> int | None: ...
    @property
    def meta(self) -> bytes: ...
    def added(self) -> list[tuple[int, str, int]]: ...
    @property
    def key(self) -> bytes: ...
    def __len__(self) -> int: ...

def build_tokenizer(
    *,
    key: bytes,
    meta: bytes,
    config: bytes,
    offsets: bytes,
    bytes: bytes,
    flags: bytes,
    merges: bytes,
    scores: bytes,
    byte_ids: bytes,
    added: bytes,
    steps: bytes,
    charsmap: bytes,
    prefix: bytes,
    suffix: bytes,
) -> bytes: ...
def pair_ids(pairs: list[Any], ids: dict[str, int]) -> bytes | None: ...
def spell(
    texts: list[str],
    kinds: bytes,
    added: list[tuple[int, int, str]],
    outside: list[int],
    byte_level: bool,
    byte_fallback: bool,
    sentencepiece: bool,
) -> tuple[bytes, bytes, bytes, bytes, bytes]: ...
def pack_steps(normalizers: object, pre_tokenizers: object, spelled: bool) -> bytes: ...
def regex_find_all(pattern: str, text: str) -> list[str]: ...
def regex_replace(pattern: str, content: str, text: str) -> str: ...
def scan_all(pattern: str, text: str) -> tuple[list[str], str] | None: ...
def scan_parts(text: str) -> list[int]: ...
