"""Copy a GGUF file with a longer context in its metadata, to measure speed after long prompts.

Most small models were trained for short contexts; speed does not depend on what they learned.
"""

from __future__ import annotations

import struct
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.formats.gguf import GGUF

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def with_context(model: Path, context: int | None) -> Iterator[Path]:
    """Path of *model*; with a *context*, of a temporary copy that has so many positions."""
    if not context:
        yield model
        return
    with GGUF.open(model) as gguf:
        architecture = gguf.metadata["general.architecture"]
        key = f"{architecture}.context_length"
        old = gguf.metadata[key]
    content = bytearray(model.read_bytes())
    # The key is followed by four bytes, the number of the value's type, and then by the value.
    at = content.index(key.encode()) + len(key) + 4
    if content[at : at + 4] != struct.pack("<I", old):
        raise SystemExit(f"{model}: {key} is not where it was expected")
    struct.pack_into("<I", content, at, context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / model.name
        path.write_bytes(content)
        yield path
