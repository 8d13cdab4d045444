"""A copy of a GGUF file that names a longer context, to measure speeds behind long prompts.

Speed does not depend on what positions mean to a model, and most small models were made for few.
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
    """A path to *model*, or to a copy of it that has *context* positions."""
    if not context:
        yield model
        return
    with GGUF.open(model) as gguf:
        architecture = gguf.metadata["general.architecture"]
        key = f"{architecture}.context_length"
        old = gguf.metadata[key]
    content = bytearray(model.read_bytes())
    at = content.index(key.encode()) + len(key) + 4  # behind the number of its type
    if content[at : at + 4] != struct.pack("<I", old):
        raise SystemExit(f"{model}: {key} is not where it was expected")
    struct.pack_into("<I", content, at, context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / model.name
        path.write_bytes(content)
        yield path
