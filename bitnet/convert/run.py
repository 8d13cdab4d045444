"""Plan and run a conversion.

plan = plan_conversion(Path("model"), ConvertOptions("Q8_0"))  # what will be written, and how large
done = plan.write(Path("model.gguf"))
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, Unsupported, VerificationFailed
from bitnet.base.files import require_space
from bitnet.base.findings import Finding
from bitnet.base.outputs import OutputFile
from bitnet.base.quantities import human_size
from bitnet.base.tables import quantity
from bitnet.convert.convert_options import BLOCKS, MIXES
from bitnet.convert.engines import differences
from bitnet.convert.metadata import metadata
from bitnet.convert.mixes import read_importance, types_of_mix
from bitnet.convert.tensors import Job, job
from bitnet.formats.containers import open_checkpoint, open_gguf
from bitnet.formats.gguf_write import NewTensor, file_size, write_new
from bitnet.formats.mapped_file import expect_unchanged, files_behind
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bitnet.convert.convert_options import ConvertOptions
    from bitnet.formats.checkpoint import Checkpoint


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion: the file, its size, every tensor, and engines that differ.

    Keys of the source that were ignored are not in the file.
    """

    output: Path
    size_bytes: int
    tensors: tuple[Converted, ...]
    warnings: tuple[Finding, ...] = ()
    ignored_keys: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """True if the file is the same model: every weight, and the rounding of its products."""
        return all(tensor.exact and tensor.keeps_rounding for tensor in self.tensors)

    def facts(self) -> dict[str, Any]:
        """The conversion as JSON values."""
        return {
            "output": str(self.output),
            "size_bytes": self.size_bytes,
            "exact": self.exact,
            "ignored_keys": list(self.ignored_keys),
            "warnings": [{"engine": each.subject, "text": each.text} for each in self.warnings],
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }

    def lines(self) -> Iterator[str]:
        """The kinds of conversions with their numbers of tensors and largest errors, as text."""
        kinds = Counter((t.before, t.after, t.exact, t.keeps_rounding) for t in self.tensors)
        for (before, after, exact, keeps_rounding), count in kinds.items():
            errors = [t.error for t in self.tensors if (t.before, t.after) == (before, after)]
            how = f"rounded, by {max(errors):.2g} of the largest weight at most"
            if exact:
                how = "exactly"
            if exact and not keeps_rounding:
                how = "the same weights, but another rounding of what they multiply"
            yield f"{quantity(count, 'tensor')} {before} -> {after}, {how}"


@dataclass(frozen=True)
class ConversionPlan:
    """A planned conversion."""

    checkpoint: Checkpoint  # the source
    jobs: tuple[Job, ...]  # its tensors and their new types
    metadata: Mapping[str, bytes]  # every key of the file
    size_bytes: int  # of the file
    warnings: tuple[Finding, ...]  # engines that will compute it differently, with reasons

    def lines(self) -> Iterator[str]:
        """The conversions and the size of the file, as text."""
        yield f"{human_size(self.size_bytes)}, {quantity(len(self.jobs), 'tensor')}:"
        sizes: dict[str, list[int]] = {}
        for planned in self.jobs:
            kind = f"{planned.weight.quant.name} -> {planned.target.name}"
            sizes.setdefault(kind, []).append(planned.size_bytes)
        for kind, of_kind in sizes.items():
            yield f"  {quantity(len(of_kind), 'tensor')} {kind}, {human_size(sum(of_kind))}"

    def write(
        self, output: Path, on_progress: Callable[[int, int], None] = lambda *_: None
    ) -> Conversion:
        """Write the file *output*, which must not exist."""
        OutputFile(output).check()
        hint = "choose another disk, or a smaller --type"
        require_space(output.parent, self.size_bytes, output.name, hint)
        results: list[tuple[Converted, bytes]] = []
        views = [view for planned in self.jobs for view in planned.weight.views]

        def check(path: Path) -> None:
            # Not by open_checkpoint, whose warnings would name the temporary file.
            written = open_gguf(path).weights
            for planned, (tensor, digest) in zip(self.jobs, results, strict=True):
                raw = written[tensor.name].data[: planned.size_bytes].data
                if hashlib.sha256(raw).digest() != digest:
                    text = f"{tensor.name}: what was read back differs"
                    raise VerificationFailed(text, hint="check the disk")
            for file in files_behind(views):
                file.check()

        tensors = [_new(planned, partial(_convert, planned, results)) for planned in self.jobs]
        with expect_unchanged(views):
            write_new(output, self.metadata, tensors, check=check, on_progress=on_progress)
        converted = tuple(tensor for tensor, _ in results)
        ignored = tuple(sorted(self.checkpoint.ignored))
        return Conversion(output, output.stat().st_size, converted, self.warnings, ignored)


def plan_conversion(source: Path, request: ConvertOptions) -> ConversionPlan:
    """Plan for converting the model at *source*, for which no whole matrix is decoded.

    For some ternary types, the first rows of an embedding and of a head are decoded, to see
    whether they are ternary.
    """
    checkpoint = open_checkpoint(
        source, i2_s_layout=request.i2_s_layout, ignore_keys=request.ignore_key
    )
    config = config_from(checkpoint)
    if checkpoint.config is not None:
        _check_as_file(checkpoint)
    tensors = layout(config)
    missing = [name for name in tensors.required if name not in checkpoint.weights]
    if missing:
        raise InvalidFormat(
            f"{checkpoint.path.name}: {len(missing)} tensors are missing, such as {missing[0]}",
            hint="compare the weights with those that the model's author publishes",
        )
    mixed = types_of_mix(checkpoint, request, tensors.vectors) if request.type in MIXES else {}
    importance = read_importance(Path(request.imatrix)) if request.imatrix else None
    jobs = tuple(
        job(weight, checkpoint, config, request, tensors.vectors, mixed, importance)
        for weight in checkpoint.weights.values()
    )
    keys = metadata(checkpoint, request)
    size = file_size(keys, [_new(each, lambda: iter(())) for each in jobs])
    warnings = [*differences(checkpoint, config, jobs)]
    if importance is not None:
        rounded = [each for each in jobs if each.target.name in BLOCKS and not each.is_copy]
        unweighted = [each.weight.name for each in rounded if each.importance is None]
        if unweighted and len(unweighted) == len(rounded):
            raise InvalidFormat(
                f"--imatrix has nothing for any of the {len(rounded)} matrices",
                hint="use the importance matrix of this model",
            )
        if unweighted:
            count = quantity(len(unweighted), "tensor")
            text = f"has nothing for {count}, such as {unweighted[0]}"
            warnings.append(Finding("warning", "--imatrix", text))
    return ConversionPlan(checkpoint, jobs, keys, size, tuple(warnings))


def _check_as_file(checkpoint: Checkpoint) -> None:
    """Refuse a folder whose keys are refused in a GGUF file: no engine would run that file."""
    try:
        config_from(replace(checkpoint, config=None))
    except (InvalidFormat, Unsupported) as error:
        label = checkpoint.path.name
        reason = error.message.removeprefix(f"{label}: ")
        raise Unsupported(
            f"{label}: a GGUF file cannot hold this model: {reason}", hint="run the folder itself"
        ) from error


def _new(job: Job, chunks: Callable[[], Iterator[bytes | memoryview]]) -> NewTensor:
    return NewTensor(job.weight.name, job.weight.shape, job.target, chunks)


@dataclass(frozen=True)
class Converted:
    """Result for one tensor, which was decoded again and read back."""

    name: str  # GGUF name
    before: str  # its encoding in the source
    after: str  # its encoding in the file
    exact: bool  # it decodes to the same numbers
    error: float = 0.0  # largest difference, as a share of the largest weight near it
    # products with it round their input to int8 if and only if they did before
    keeps_rounding: bool = True


def _convert(job: Job, results: list[tuple[Converted, bytes]]) -> Iterator[bytes | memoryview]:
    """The bytes of a new tensor; the result and their SHA-256 are appended to *results*."""
    digest = hashlib.sha256()
    exact = True
    error = 0.0
    for piece in job.pieces():
        digest.update(piece.data)
        exact = exact and piece.exact
        error = max(error, piece.error)
        yield piece.data
    before = job.weight.quant.name
    after = job.target.name
    tensor = Converted(job.weight.name, before, after, exact, error, job.keeps_rounding)
    results.append((tensor, digest.digest()))
