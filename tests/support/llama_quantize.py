"""llama.cpp's quantizers, called through its libraries."""

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bitnet.quants import types

INSTALLED = find_spec("xllamacpp") is not None
REASON = "the extra `crossval` is not installed"


class _Importance(ctypes.Structure):
    """An entry of llama.cpp's list of importance matrices."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    )


class _Parameters(ctypes.Structure):  # llama_model_quantize_params
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("threads", "file_type", "head", "embedding")),
        *((name, ctypes.c_bool) for name in ("requantize", "quantize_output", "only_copy", "pure")),
        *((name, ctypes.c_bool) for name in ("keep_split", "dry_run")),
        ("importance", ctypes.POINTER(_Importance)),
        *((name, ctypes.c_void_p) for name in ("overrides", "types", "pruned")),
        ("buffer", ctypes.c_size_t),
    )


@cache
def _rows_library():
    """The library inside xllamacpp, which quantizes rows."""
    folder = Path(find_spec("xllamacpp").origin).parent
    (file,) = (*folder.glob("xllamacpp*.so"), *folder.glob("xllamacpp*.pyd"))
    library = ctypes.CDLL(str(file))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = (
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    )
    return library


def quantize_rows(name, values, importance=None):
    """Bytes of *values*, ``(rows, columns)`` float32, in the type *name*."""
    quant = types.by_name(name)
    out = np.empty(quant.size_bytes(values.shape), np.uint8)
    weights = None if importance is None else importance.ctypes.data
    size = _rows_library().ggml_quantize_chunk(
        quant.ggml_id, values.ctypes.data, out.ctypes.data, 0, *values.shape, weights
    )
    assert size == out.size
    return out


def quantize_file(library, source, output, file_type, *, importance=None, **options):
    """Write *source* to *output* as llama-quantize does; True if it succeeded.

    Args:
        library: file of a libllama; that of xllamacpp lacks this function.
        source: GGUF file.
        output: the new file.
        file_type: number of the mix.
        importance: weights of inputs by the name of a matrix.
        options: fields of the parameters.
    """
    library = ctypes.CDLL(str(library))
    library.llama_model_quantize_default_params.restype = _Parameters
    library.llama_model_quantize.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Parameters)),
    )
    parameters = library.llama_model_quantize_default_params()
    # These defaults show that the struct has the layout of _Parameters.
    assert (parameters.file_type, parameters.quantize_output) == (7, True)
    parameters.threads = 1
    parameters.file_type = file_type
    if importance:
        entries = [
            _Importance(
                name.encode(), values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), values.size
            )
            for name, values in importance.items()
        ]
        # One entry more, of null pointers, ends the list.
        parameters.importance = (_Importance * (len(entries) + 1))(*entries)
    for field, value in options.items():
        setattr(parameters, field, value)
    words = (str(source).encode(), str(output).encode())
    return library.llama_model_quantize(*words, ctypes.byref(parameters)) == 0
