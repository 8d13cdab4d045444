"""Reads a model, writes it anew, and says what became of every tensor."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bitnet.convert.metadata import metadata
from bitnet.convert.tensors import Converted, compare, job
from bitnet.errors import InvalidFormat
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_new import NewTensor, write_new
from bitnet.formats.gguf_write import refuse_existing
from bitnet.formats.mapped_file import mapped_files, unchanged
from bitnet.models.binding import expected_tensors
from bitnet.models.load import config_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bitnet.convert.request import Request
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["Conversion", "convert"]


@dataclass(frozen=True)
class Conversion:
    """What was written: the file, its size, and every tensor."""

    output: Path
    size_bytes: int
    tensors: tuple[Converted, ...]

    @property
    def exact(self) -> bool:
        """Whether every tensor is."""
        return all(tensor.exact for tensor in self.tensors)

    def facts(self) -> dict[str, Any]:
        """The conversion as JSON values."""
        return {
            "output": str(self.output),
            "size_bytes": self.size_bytes,
            "exact": self.exact,
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }

    def lines(self) -> Iterator[str]:
        """How many tensors became what."""
        kinds = Counter((one.before, one.after, one.exact) for one in self.tensors)
        for (before, after, exact), count in kinds.items():
            errors = [t.error for t in self.tensors if (t.before, t.after) == (before, after)]
            how = "exactly" if exact else f"rounded, by {max(errors):.2g} of the largest at most"
            yield f"{count} tensor{'s' * (count > 1)} {before} -> {after}, {how}"


def convert(
    source: Path,
    output: Path,
    request: Request,
    *,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Conversion:
    """Write the model at *source* as the GGUF file *output*.

    Args:
        source: GGUF file, or folder with safetensors.
        output: the new file, which must not exist.
        request: what it is to be.
        on_progress: called with the bytes written so far and the bytes in all.

    Raises:
        UsageError: *output* exists.
        Unsupported: something would be lost and may not, or cannot be said in GGUF.
        InvalidFormat: *source* is damaged or incomplete.
        IntegrityError: *source* changed while it was read.
        TokenizerNotFound: *source* has no tokenizer.
        VerificationFailed: a tensor read back is not what it was meant to be.
    """
    refuse_existing(output)
    checkpoint = open_checkpoint(source, i2_s_layout=request.i2_s_layout)
    _check_complete(checkpoint)
    jobs = [job(weight, checkpoint, request) for weight in checkpoint.weights.values()]
    tensors = [NewTensor(one.weight.name, one.weight.shape, one.target, one.chunks) for one in jobs]
    converted: list[Converted] = []

    def check(path: Path) -> None:
        converted.extend(compare(path, jobs))
        for file in mapped_files(read):
            file.check()

    read = [weight.data for weight in checkpoint.weights.values()]
    with unchanged(read):
        write_new(
            output, metadata(checkpoint, request), tensors, check=check, on_progress=on_progress
        )
    return Conversion(output, output.stat().st_size, tuple(converted))


def _check_complete(checkpoint: Checkpoint) -> None:
    required, _ = expected_tensors(config_from(checkpoint))
    missing = [name for name in required if name not in checkpoint.weights]
    if missing:
        raise InvalidFormat(
            f"{checkpoint.path.name}: {len(missing)} tensors are missing, such as {missing[0]}",
            hint="fetch the whole model again",
        )
