"""Every reader of GGUF files, for inputs of any kind.

Used by the fuzz target, by the Hypothesis tests and to replay the committed corpus.
"""

import importlib
import json
from contextlib import suppress

from bitnet.base.errors import BitnetError, InvalidFormat
from bitnet.formats import gguf_header
from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_header import Array
from bitnet.sheet.inspection import examine

try:
    NATIVE = importlib.import_module("bitnet._native")
except ImportError:
    NATIVE = None


def walks(data, total):
    """Index of *data*, the beginning of *total* bytes, or its error: by Python, and by native code.

    The compiled module does one step of the index: it skips the strings of an array.
    """
    yield _walk(data, total, gguf_header.skip_strings)
    yield _walk(data, total, getattr(NATIVE, "gguf_skip_strings", gguf_header.skip_strings))


def _walk(data, total, skip):
    """Index of *data* with *skip* to skip strings, or type, message and hint of its error."""
    try:
        return gguf_header.index(data, total, "x", skip)
    except BitnetError as error:
        return type(error), error.message, error.hint


def exercise(data):
    """Read *data* completely, and return the file, or None if it is refused.

    Any error but a :class:`BitnetError` is a bug.
    """
    for total in (len(data), len(data) + 1000):
        plain, compiled = walks(data, total)
        assert plain == compiled
    try:
        gguf = GGUF.parse(data, size=len(data))
    except BitnetError:
        return None
    for value in gguf.metadata.values():
        if isinstance(value, Array):
            _read_array(value)
    for info in gguf.tensors.values():
        if info.offset + info.size_bytes <= len(data):
            assert len(gguf.tensor_bytes(info.name)) == info.size_bytes
        else:
            with suppress(InvalidFormat):
                gguf.tensor_bytes(info.name)
                raise AssertionError("a tensor behind the end of the file was read")
    for full in (False, True):
        inspection = examine(gguf, full=full)
        assert all(line.isprintable() for line in inspection.lines())
        json.dumps(inspection.as_json(), allow_nan=False)
    return gguf


def _read_array(array):
    """Read *array* in every way that it offers; they have to agree."""
    if array.item_type != "string":
        numbers = array.numpy().tolist()
        assert len(numbers) == len(array)
        assert all(a == b or a != a for a, b in zip(numbers, array, strict=True))  # NaN is not NaN
        return
    texts = array.strings()
    starts = array.starts
    assert len(texts) == len(array) == len(starts) - 1
    for i in {0, len(array) // 2, len(array) - 1} if len(array) else ():
        assert array[i] == texts[i]
        assert array.bytes_at(i) == texts[i].encode("utf-8", "surrogateescape")
