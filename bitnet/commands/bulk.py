"""Commands that work through a file, or measure: ``batch``, ``embed`` and ``bench``."""

from __future__ import annotations

import hashlib
import io
import json
import time
from dataclasses import fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet import __version__
from bitnet.base.errors import RowsFailed, UsageError
from bitnet.base.files import beside, real_path
from bitnet.base.invocation import shell_quote
from bitnet.base.options import option
from bitnet.base.outputs import OutputFile, OutputKind, begins_with
from bitnet.base.tables import LiveLine, table
from bitnet.base.terminal import as_json
from bitnet.batch.batch_options import BatchOptions
from bitnet.commands.context import (
    FORCE,
    Context,
    load_model,
    model_path,
    open_model,
    open_with_unnamed_adapters,
    say,
)
from bitnet.commands.declare import task
from bitnet.commands.score import iterate_texts
from bitnet.runtime.model_options import ModelOptions, VectorOptions
from bitnet.runtime.request import SamplingOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from bitnet.runtime.language_model import LanguageModel

MOST_SHOWN = 20  # failed rows
AT_ONCE = 1024  # texts that are read, sorted by length and computed together
# Options that change the vectors of a model whose files are the same.
_COMPUTED_WITH = ("i2_s_layout", "ignore_key", "kv_type", "pre")
_NPY_HEADER = 128  # bytes of the header that numpy.save writes for an array of vectors

VECTORS = {
    ".npy": OutputKind("a NumPy array", lambda path: begins_with(path, b"\x93NUMPY")),
    ".jsonl": OutputKind(
        "a file of vectors", lambda path: begins_with(path, b'{"index": 0, "embedding": [')
    ),
}


@task(
    group="Run",
    example='echo \'{"prompt": "Why is the sky blue?"}\' > prompts.jsonl\n'
    "bitnet batch smollm2-135m --input prompts.jsonl --output answers.jsonl",
    required=("input", "output"),
)
def batch(
    c,
    options=BatchOptions(),
    sampling=SamplingOptions(),
    model=ModelOptions(),
    common=Context(),
):
    """Answer a file of prompts.

    If it is interrupted, the same command continues where it stopped.
    """
    from bitnet.base import locks
    from bitnet.batch.files import BatchFiles

    target = Path(options.output)
    _check(target, options, model)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Two names of one file have one lock, whose name is not that of a user's file.
    lock = beside(real_path(target), "bitnet-lock")
    hint = "wait for that run to end, or choose another --output"
    with (
        locks.hold(lock, timeout_s=0, what=options.output, hint=hint, leave=False),
        BatchFiles(Path(options.input), target, retry_errors=options.retry_errors) as files,
    ):
        if files.done:
            say(f"{files.done} of {files.total} rows are answered already")
        ignored = _answer(files, options, sampling, model, common)
    failed = len(files.errors)
    failure = None
    facts: dict[str, Any] = {"rows": files.total, "answered_before": files.done, "failed": failed}
    facts |= {"ignored_keys": list(ignored)} if ignored else {}
    if failed:
        facts["errors"] = files.errors
        if not common.output.json:
            for row_id, error in [*files.errors.items()][:MOST_SHOWN]:
                say(f"row {row_id!r}: {error}")
        hint = "correct the rows that are wrong, then run this again with --retry-errors"
        names = ", ".join(map(repr, [*files.errors][:MOST_SHOWN]))
        failure = RowsFailed(f"{failed} of {files.total} rows failed: {names}", hint=hint)
    line = f"{files.total} rows: {files.done} answered before, {failed} failed"
    common.output.finish(facts, [line], failure)


def _check(target, options, model):
    """Refuse an --output that cannot be written, and options that Ray would ignore."""
    if target.is_dir():
        raise UsageError(
            f"--output {options.output} is a folder", hint="name a file in it for the answers"
        )
    if options.engine == "ray":
        _refuse_options_of_the_process(model)


def _refuse_options_of_the_process(model):
    """Refuse options of *model* that are not passed on to the processes of Ray."""
    accepted = ("model", "threads", "features", "no_default_features")
    for entry in fields(model):
        name = entry.name
        flag = f"--{entry.name.replace('_', '-')}"
        if name not in accepted and getattr(model, name) != getattr(ModelOptions(), name):
            text = f"{flag} is not known to the processes of --engine ray"
            raise UsageError(text, hint=f"leave {flag} out: they load the model as it is")


def _answer(files, options, sampling, model, common):
    """Answer the remaining rows; return the keys of the model that were ignored."""
    from bitnet.batch.rows import answers, in_order

    rows = list(files.remaining_rows())

    def write(results):
        if options.ordered:
            results = in_order(rows, results)
        for row, facts in results:
            files.write(row, facts)

    if not rows:
        return ()
    if options.engine == "ray":
        from bitnet.batch.ray_engine import ray_answers

        path = model_path(model, common)
        write(ray_answers(rows, path, options, sampling, threads=model.threads))
        return ()
    with open_model(model, common) as running:
        write(answers(rows, running, sampling=sampling, **options.limits))
        return running.ignored_keys


@task(
    group="Run",
    example="echo 'Why is the sky blue?' > texts.txt\n"
    "bitnet embed smollm2-135m --input texts.txt --dimensions 8",
)
def embed(c, options=VectorOptions(), force=FORCE, model=ModelOptions(), common=Context()):
    """Compute embeddings of texts.

    Uses the pooling and the prompt that the model defines; mean pooling is the default. Texts are
    read as they are computed. If a run with --output is interrupted, the same command continues
    where it stopped.
    """
    from bitnet.runtime.sequence import check_vectors

    target = Path(options.output) if options.output else None
    if target and (target.is_dir() or target.suffix.lower() not in VECTORS):
        raise UsageError(
            f"--output {options.output}: expected the name of a .npy or .jsonl file",
            hint="--output vectors.npy",
        )
    output = None
    if target is not None:
        output = OutputFile(target, VECTORS[target.suffix.lower()], force=force)
        output.check()
    texts = iterate_texts(options.input, "bitnet embed --input texts.txt")
    first = next(texts)  # a missing file is found before the model is opened
    # The exact head only chooses tokens, which vectors do not need.
    own_options = replace(model, exact_head="off")
    checkpoint = open_with_unnamed_adapters(own_options, common)
    # Listed before the model is loaded: loading adds the files of the tokenizer only if its
    # compiled form is not in the cache, and the key of an interrupted run must not depend on that.
    # `paths` is a new list, to which nothing is added then.
    files = checkpoint.inventory.paths
    with load_model(own_options, common, checkpoint) as running:
        if output is not None:  # it must not be a file of the model, whose paths are known now
            output = replace(output, inputs=tuple(files))
            output.check()
        check_vectors(running.config.vector_dim, options.dimensions, options.precision)
        work = _Vectors(running, options, model, files)
        started = time.perf_counter()
        in_report = common.output.json and output is None
        if output is None:
            work.print_all(chain([first], texts), keep=in_report)
        elif output.is_regular:
            work.write_growing(chain([first], texts), output)
        else:
            work.write_at_once(chain([first], texts), output)
        summary = f"{work.rows:,} vectors of {work.dimensions:,} numbers"
        say(f"{summary} in {time.perf_counter() - started:.2f} s | {running.backend}")
        # A model that defines no pooling is pooled by the mean.
        pooling = running.config.pooling.replace("none", "mean")
    facts: dict[str, Any] = {"vectors": work.rows, "dimensions": work.dimensions}
    facts |= {"precision": options.precision, "pooling": pooling}
    if common.output.json:
        result = {"output": str(target)} if target else {"embeddings": work.report_rows}
        print(as_json(facts | result), flush=True)
    elif target:
        print(f"{target}", flush=True)


class _Vectors:
    """Vectors of texts as they are written, block by block.

    Attributes:
        rows: number of vectors so far, with those of an earlier run.
        dimensions: numbers of a vector.
        report_rows: the vectors themselves, for a report on stdout.
    """

    def __init__(
        self,
        running: LanguageModel,
        options: VectorOptions,
        model: ModelOptions,
        files: Sequence[Path],  # of the model
    ) -> None:
        self.rows = 0
        self.dimensions = options.dimensions or running.config.vector_dim
        self.report_rows: list[list[float]] = []
        self._running = running
        self._options = options
        self._model = model
        self._files = files

    def print_all(self, texts: Iterator[str], *, keep: bool) -> None:
        """Print the vectors of *texts*, or *keep* them for a report."""
        for block in _blocks(texts):
            vectors = self._compute(block)
            if keep:
                self.report_rows += vectors.tolist()
            else:
                print(_lines(vectors, self.rows), end="", flush=True)
            self.rows += len(block)

    def write_at_once(self, texts: Iterator[str], output: OutputFile) -> None:
        """Compute the vectors of all *texts*, then write them to *output*, a pipe or a device."""
        is_array = output.path.suffix.lower() == ".npy"
        parts: list[bytes] = []
        for block in _blocks(texts):
            parts.append(self._encode(self._compute(block), is_array=is_array))
            self.rows += len(block)
        output.write(self._header() if is_array else b"", *parts)

    def write_growing(self, texts: Iterator[str], output: OutputFile) -> None:
        """Append the vectors of *texts* to those that an interrupted run left."""
        from bitnet.base.growing import GrowingFile

        is_array = output.path.suffix.lower() == ".npy"
        beginning = _NPY_HEADER if is_array else 0
        digest = hashlib.sha256()
        with GrowingFile(output, self._key(output), beginning=beginning) as file:
            if file.rows:
                for text in islice(texts, file.rows):
                    digest.update(_digest(text))
                if digest.hexdigest() != file.digest:
                    raise UsageError(
                        f"the {file.rows:,} vectors that an interrupted run left for "
                        f"{output.path} are of other texts",
                        hint=f"rm {shell_quote(file.path)}",
                    )
                self.rows = file.rows
                say(f"{file.rows:,} vectors are computed already")
            for block in _blocks(texts):
                content = self._encode(self._compute(block), is_array=is_array)
                for text in block:
                    digest.update(_digest(text))
                file.append(content, rows=len(block), digest=digest.hexdigest())
                self.rows += len(block)
            file.publish(self._header() if is_array else b"")

    def _compute(self, block: list[str]) -> NDArray[Any]:
        """Vectors of the texts of a *block*, ``(len(block), dimensions)``, in their precision."""
        from bitnet.runtime.sequence import round_vectors

        options = self._options
        vectors = self._running.embed(
            block,
            prompt_name=options.prompt_name or None,
            normalize=options.normalize,
            dimensions=options.dimensions,
            truncate=options.truncate,
        )
        return round_vectors(vectors, options.precision)

    def _encode(self, vectors: NDArray[Any], *, is_array: bool) -> bytes:
        """The next *vectors* as bytes of the output: raw numbers of an array, or JSON lines."""
        return vectors.tobytes() if is_array else _lines(vectors, self.rows).encode()

    def _header(self) -> bytes:
        """Bytes that numpy.save writes before the numbers."""
        import numpy as np

        from bitnet.runtime.sequence import round_vectors

        sample = round_vectors(np.zeros((1, self.dimensions), np.float32), self._options.precision)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header,
            {
                "descr": np.lib.format.dtype_to_descr(sample.dtype),
                "fortran_order": False,
                "shape": (self.rows, sample.shape[1]),
            },
        )
        return header.getvalue()

    def _key(self, output: OutputFile) -> dict[str, Any]:
        """Model and options that the vectors of an earlier run must have been computed with."""
        from bitnet.models.adapted import split_adapters

        options = self._options
        running = self._running
        return {
            "version": __version__,
            "model": _identity(self._files),
            "adapters": [
                [str(path.absolute()), factor, _identity(_files_of_adapter(path))]
                for path, factor in split_adapters(self._model.lora)[0]
            ],
            "tokenizer": [running.tokenizer.source, running.tokenizer.fingerprint],
            "dimensions": self.dimensions,
            "precision": options.precision,
            "prompt": options.prompt_name,
            "normalize": options.normalize,
            "truncate": options.truncate,
            "context": running.context,
            **{name: getattr(self._model, name) for name in _COMPUTED_WITH},
            "form": output.path.suffix.lower(),
        }


def _files_of_adapter(path: Path) -> list[Path]:
    """Files of the adapter at *path*: a file, a folder, or FOLDER/TASK with all files of FOLDER."""
    if path.is_file():
        return [path]
    folder = path if path.is_dir() else path.parent
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


def _identity(files: Iterable[Path]) -> list[list[Any]]:
    """Names, sizes and times of the *files* of a model or an adapter."""
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _blocks(texts: Iterator[str]) -> Iterator[list[str]]:
    """Successive lists of up to AT_ONCE *texts*."""
    while block := list(islice(texts, AT_ONCE)):
        yield block


def _digest(text: str) -> bytes:
    """SHA-256 of *text*, which may contain surrogates."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def _lines(vectors: NDArray[Any], first: int) -> str:
    """*vectors* as JSON lines, numbered from *first* on."""
    rows = enumerate(vectors.tolist(), first)
    return "".join(f"{json.dumps({'index': at, 'embedding': row})}\n" for at, row in rows)


@task(group="Run", example="bitnet bench smollm2-135m --tests pp128,tg32")
def bench(
    c,
    tests=option(
        "pp128,pp512,tg128",
        "ppN runs a prompt of N tokens, tgN generates N tokens; ppN@D and tgN@D after D others",
        metavar="LIST",
    ),
    thread_counts=option(
        "", "numbers of threads to measure with; default: 1 and --threads", metavar="LIST"
    ),
    repetitions=option(5, "measured runs of each test, after a warm-up"),
    against=option(
        "",
        "earlier output of --json; adds what became faster and slower",
        formerly=("compare",),
        metavar="FILE",
    ),
    model=ModelOptions(),
    common=Context(),
):
    """Measure the speed of loading, prefill and decoding.

    Prints a table, or a report with --json. Run it on an idle machine: other load distorts the
    result.
    """
    from bitnet.bench import BenchPlan, changes, measure, read_report, report_lines

    plan = BenchPlan.of(tests, thread_counts, repetitions, threads=model.threads)
    before = read_report(Path(against)) if against else None
    running = open_model(model, common)
    # Reloading does not repeat the note that --features chooses nothing.
    bench_options = replace(model, model=str(running.path), features="", no_default_features=False)
    with LiveLine() as line:
        report = measure(
            running,
            plan,
            reload=lambda: open_model(bench_options, common),
            on_step=(lambda _text: None) if common.output.no_progress else line.tell,
        )
    lines = [*report_lines(report)]
    if before:
        report["changes"] = changes(before, report)
        rows = [
            (
                change["what"],
                f"{change['before']:.4g}",
                f"{change['after']:.4g}",
                f"x{change['ratio']:.2f}",
            )
            for change in report["changes"]
        ]
        head = ("metric", "before", "after", "ratio")
        lines += ["", *table(head, rows, right=(1, 2, 3))]
        old_facts = before["model"]["name"], before["machine"]["cpu"], before["machine"]["backend"]
        if old_facts != (
            report["model"]["name"],
            report["machine"]["cpu"],
            report["machine"]["backend"],
        ):
            say(f"Note: the earlier report is of another model or machine: {', '.join(old_facts)}")
    common.output.finish(report, lines)
