"""Plan and run a conversion, and report the result for every tensor.

plan = plan_conversion(Path("model"), Request("Q8_0"))  # what will be written, and how large
plan.check()  # whatever is to be refused is refused here
done = plan.write(Path("model.gguf"))
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, NoSpace
from bitnet.base.findings import Finding
from bitnet.base.progress import human_size
from bitnet.convert.comparison import Converted, compare
from bitnet.convert.engines import differences
from bitnet.convert.importance import read_importance
from bitnet.convert.metadata import metadata
from bitnet.convert.mixtures import mixture_types
from bitnet.convert.request import BLOCKS, MIXTURES
from bitnet.convert.tensors import Job, job
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_new import NewTensor, file_size, write_new
from bitnet.formats.gguf_write import refuse_existing
from bitnet.formats.mapped_file import expect_unchanged, files_behind
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from bitnet.convert.importance import Importance
    from bitnet.convert.request import ConversionRequest
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["Conversion", "ConversionPlan", "convert", "plan_conversion"]


def _silent(_done: int, _total: int) -> None:
    pass


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
            "warnings": [{"engine": one.subject, "text": one.text} for one in self.warnings],
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }

    def lines(self) -> Iterator[str]:
        """Number of tensors by conversion."""
        kinds = Counter(
            (one.before, one.after, one.exact, one.keeps_rounding) for one in self.tensors
        )
        for (before, after, exact, keeps_rounding), count in kinds.items():
            errors = [t.error for t in self.tensors if (t.before, t.after) == (before, after)]
            how = "exactly" if exact else f"rounded, by {max(errors):.2g} of the largest at most"
            if exact and not keeps_rounding:
                how = "the same weights, but another rounding of what they multiply"
            yield f"{_tensors(count)} {before} -> {after}, {how}"


@dataclass(frozen=True)
class ConversionPlan:
    """A planned conversion.

    Attributes:
        checkpoint: the source.
        jobs: its tensors and their new types.
        metadata: every key of the file.
        size_bytes: of the file.
        warnings: engines that will compute it differently, with reasons.
    """

    checkpoint: Checkpoint
    jobs: tuple[Job, ...]
    metadata: Mapping[str, bytes]
    size_bytes: int
    warnings: tuple[Finding, ...]

    def lines(self) -> Iterator[str]:
        """The conversions and the size of the file, as text."""
        yield f"{human_size(self.size_bytes)}, {_tensors(len(self.jobs))}:"
        names = [(one.weight.quant.name, one.target.name) for one in self.jobs]
        for kind, count in Counter(names).items():
            size = sum(
                one.size_bytes for one, name in zip(self.jobs, names, strict=True) if name == kind
            )
            yield f"  {_tensors(count)} {kind[0]} -> {kind[1]}, {human_size(size)}"

    def check(self, on_progress: Callable[[int, int], None] = _silent) -> None:
        """Refuse an impossible or lossy conversion before anything is written."""
        total, done = sum(one.size_bytes for one in self.jobs), 0
        with expect_unchanged([view for one in self.jobs for view in one.weight.views]):
            for one in self.jobs:
                one.check()
                done += one.size_bytes
                on_progress(done, total)

    def write(self, output: Path, on_progress: Callable[[int, int], None] = _silent) -> Conversion:
        """Write the file *output*, which must not exist."""
        refuse_existing(output)
        _check_room(output, self.size_bytes)
        converted: list[Converted] = []
        read = [view for job in self.jobs for view in job.weight.views]

        def check(path: Path) -> None:
            converted.extend(compare(path, self.jobs))
            for file in files_behind(read):
                file.check()

        tensors = [_new(job) for job in self.jobs]
        with expect_unchanged(read):
            write_new(output, self.metadata, tensors, check=check, on_progress=on_progress)
        ignored = tuple(sorted(self.checkpoint.ignored))
        size = output.stat().st_size
        return Conversion(output, size, tuple(converted), self.warnings, ignored)


def plan_conversion(source: Path, request: ConversionRequest) -> ConversionPlan:
    """Plan for converting the model at *source*; no weights are read.

    Args:
        source: GGUF file, or folder with safetensors.
        request: options of the conversion.
    """
    checkpoint = open_checkpoint(
        source, i2_s_layout=request.i2_s_layout, ignore_keys=request.ignore_keys
    )
    config = config_from(checkpoint)
    its = layout(config)
    missing = [name for name in its.required if name not in checkpoint.weights]
    if missing:
        raise InvalidFormat(
            f"{checkpoint.path.name}: {len(missing)} tensors are missing, such as {missing[0]}",
            hint="fetch the whole model again",
        )
    mixed = mixture_types(checkpoint, request, its.vectors) if request.type in MIXTURES else {}
    importance = read_importance(request.imatrix) if request.imatrix else None
    jobs = tuple(
        job(weight, checkpoint, config, request, its.vectors, mixed, importance)
        for weight in checkpoint.weights.values()
    )
    keys = metadata(checkpoint, request, importance)
    size = file_size(keys, [_new(one) for one in jobs])
    warnings = [*differences(checkpoint, config, jobs)]
    if importance is not None:
        warnings += _warn_of_unweighted(jobs, importance)
    return ConversionPlan(checkpoint, jobs, keys, size, tuple(warnings))


def _warn_of_unweighted(jobs: tuple[Job, ...], importance: Importance) -> Iterator[Finding]:
    """A warning if *importance* has nothing for some of the matrices that are rounded."""
    rounded = [one for one in jobs if one.target.name in BLOCKS and not one.is_copy]
    missing = [one.weight.name for one in rounded if one.importance is None]
    if missing and len(missing) == len(rounded):
        raise InvalidFormat(
            f"{importance.path.name} has nothing for any of the {len(rounded)} matrices",
            hint="use the importance matrix of this model",
        )
    if missing:
        text = f"has nothing for {_tensors(len(missing))}, such as {missing[0]}"
        yield Finding("warning", importance.path.name, text)


def convert(
    source: Path,
    output: Path,
    request: ConversionRequest,
    *,
    on_progress: Callable[[int, int], None] = _silent,
) -> Conversion:
    """Write the model at *source* as the GGUF file *output*.

    Args:
        source: GGUF file, or folder with safetensors.
        output: the new file, which must not exist.
        request: options of the conversion.
        on_progress: called with the bytes written so far and in total.
    """
    refuse_existing(output)
    plan = plan_conversion(source, request)
    plan.check()
    return plan.write(output, on_progress)


def _new(one: Job) -> NewTensor:
    return NewTensor(one.weight.name, one.weight.shape, one.target, one.chunks)


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' * (count > 1)}"


def _check_room(output: Path, size: int) -> None:
    place = output.absolute().parent
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size:
        raise NoSpace(
            f"{output.name} takes {human_size(size)}, the disk has {human_size(free)} free",
            hint="choose another disk, or a smaller --type",
        )
