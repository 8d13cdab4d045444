"""Plan and run a conversion, and compare every tensor with its source.

plan = plan_conversion(Path("model"), ConvertOptions("Q8_0"))  # what will be written, and how large
plan.check()  # whatever is to be refused is refused here
done = plan.write(Path("model.gguf"))
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat, VerificationFailed
from bitnet.base.files import require_space
from bitnet.base.findings import Finding
from bitnet.base.progress import human_size
from bitnet.convert.engines import differences
from bitnet.convert.metadata import metadata
from bitnet.convert.mixtures import mixture_types, read_importance
from bitnet.convert.options import BLOCKS, MIXTURES
from bitnet.convert.tensors import Job, count_nonzero, job
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.gguf_write import NewTensor, file_size, refuse_existing, write_new
from bitnet.formats.mapped_file import expect_unchanged, files_behind
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from
from bitnet.quants import registry
from bitnet.quants.ternary import Ternary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bitnet.convert.mixtures import Importance
    from bitnet.convert.options import ConvertOptions
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.quants.weight import Weight


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
    """A planned conversion."""

    checkpoint: Checkpoint  # the source
    jobs: tuple[Job, ...]  # its tensors and their new types
    metadata: Mapping[str, bytes]  # every key of the file
    size_bytes: int  # of the file
    warnings: tuple[Finding, ...]  # engines that will compute it differently, with reasons

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
        hint = "choose another disk, or a smaller --type"
        require_space(output.parent, self.size_bytes, output.name, lambda _missing: hint)
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


def plan_conversion(source: Path, request: ConvertOptions) -> ConversionPlan:
    """Plan for converting the model at *source*; no weights are read."""
    checkpoint = open_checkpoint(
        source, i2_s_layout=request.i2_s_layout, ignore_keys=request.ignore_key
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
    importance = read_importance(Path(request.imatrix)) if request.imatrix else None
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


def _new(one: Job) -> NewTensor:
    return NewTensor(one.weight.name, one.weight.shape, one.target, one.chunks)


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' * (count > 1)}"


@dataclass(frozen=True)
class Converted:
    """One tensor, read back."""

    name: str  # GGUF name
    before: str  # its encoding in the source
    after: str  # its encoding in the file
    exact: bool  # it decodes to the same numbers
    error: float = 0.0  # largest difference, as a share of the largest weight
    # products with it round their input to int8 if and only if they did before
    keeps_rounding: bool = True


def compare(path: Path, jobs: Sequence[Job]) -> Iterator[Converted]:
    """Compare every tensor of the file at *path* with its source."""
    written = open_checkpoint(path).weights
    for item in jobs:
        weight = written[item.weight.name]
        exact, error = _difference(item, weight)
        before, after = item.weight.quant.name, weight.quant.name
        result = Converted(weight.name, before, after, exact, error, item.keeps_rounding)
        if item.is_copy and not exact:
            raise VerificationFailed(
                f"{weight.name}: what was read back differs", hint="check the disk"
            )
        item.judge(exact, error)
        yield result


def _difference(job: Job, written: Weight) -> tuple[bool, float]:
    """True if *written* equals the source exactly; and the largest relative difference."""
    if job.matrices:
        pairs = zip(job.matrices, written.matrices(), strict=True)
        results = [_difference(matrix, its) for matrix, its in pairs]
        return all(exact for exact, _ in results), max(error for _, error in results)
    if job.is_copy:
        size = written.quant.size_bytes(written.shape)
        exact = np.array_equal(job.weight.data[:size], written.data[:size])
        return exact, 0.0
    if job.target.is_ternary and job.from_ternary:
        return _ternary_difference(job.ternary(), registry.unpack_ternary(written), written.name)
    copied = Job(written, written.quant, None, allow_lossy=False)
    largest, apart, exact = 0.0, 0.0, True
    for before, after in zip(job.values(), copied.values(job.step), strict=True):
        exact = exact and np.array_equal(before, after)
        largest = max(largest, float(np.abs(before).max(initial=0)))
        apart = max(apart, float(np.abs(before - after).max(initial=0)))
    return exact, apart / largest if largest else apart


def _ternary_difference(source: Ternary, copy: Ternary, name: str) -> tuple[bool, float]:
    """As :func:`_difference`; codes must be equal, and scales where they have weights."""
    codes = []
    for its in (source, copy):  # 0 where the scale is 0, whatever is stored
        rows, columns = its.codes.shape
        each = its.codes.reshape(rows, its.scales.shape[1], -1)
        codes.append((each * (its.scales != 0)[:, :, None]).reshape(rows, columns))
    if not np.array_equal(*codes):
        raise VerificationFailed(f"{name}: other codes than its source's", hint="check the disk")
    groups = max(source.scales.shape[1], copy.scales.shape[1])
    before, after = (
        np.broadcast_to(
            np.repeat(scales, groups // scales.shape[1], axis=1), (len(source.codes), groups)
        )
        for scales in (source.scales, copy.scales)
    )
    used = count_nonzero(Ternary(source.codes, before)) > 0
    apart = np.where(used, np.abs(before - after), 0).max(initial=0)
    largest = np.where(used, np.abs(before), 0).max(initial=0)
    return bool(apart == 0), float(apart / largest) if largest else 0.0
