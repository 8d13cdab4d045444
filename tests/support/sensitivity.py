"""Measure which mistakes the check of operations detects, for every family, encoding and engine.

    python tests/support/sensitivity.py benchmarks/results/sensitivity.json

For each engine and encoding the file has the largest residuals of right models, by kind of
operation, and for each mistake the least factor by which it exceeds the bounds. For transformers
the logits are measured, too. ``inv sensitivity`` runs this and writes the page; it fails if a bound
has too little margin.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from asked_here import ask_here
from cases_of_engines import THEIRS
from crossval_evidence import evidence
from llama_cpp_models import IDS, written
from mistakes import mistakes
from tiny_keys import EMBEDDERS, ENCODERS, FAMILIES, HYBRIDS, LAYERED, MIXTURES, VOCAB
from tiny_models import in_encoding, tiny

from bitnet.base.files import write_text
from bitnet.convert.convert_options import BLOCKS, FLOATS
from bitnet.crossval import references
from bitnet.crossval.bounds import BOUNDS, Residual
from bitnet.crossval.compare import compare
from bitnet.crossval.float64 import STORED_TOKENS
from bitnet.crossval.judge import SCALE, WORST, kl_of_reference, rows_to_judge
from bitnet.crossval.operations import (
    Operation,
    check_operations,
    our_intermediates,
    reference_operations,
)
from bitnet.crossval.references import IkLlamaCpp, LlamaCpp, Transformers
from bitnet.crossval.trace import EngineFacts, Prompt, Question, Reference, Trace, prompt_trace
from bitnet.families.blocks import Experts
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from, load_model
from bitnet.models.transformer import Model
from bitnet.quants import types

if TYPE_CHECKING:
    from bitnet.crossval.evidence import Row
    from bitnet.formats.checkpoint import Checkpoint

OURS = tuple(dict.fromkeys((*FAMILIES, *ENCODERS, *EMBEDDERS, *HYBRIDS, *LAYERED, *MIXTURES)))
# Left out of the table: each mistake would take a pass over many layers.
TOO_SLOW = ("exaone4-windows", "exaone4-windows-without-a-key", "gemma3n-shared-caches")
TERNARY = ("I2_S", "TQ1_0", "TQ2_0")  # of ternary families
ENCODINGS = (*FLOATS, *BLOCKS)
#: Encodings of weights, at least one for each type to which llama.cpp rounds activations: floats,
#: Q8_0, Q8_1 and Q8_K.
THEIR_ENCODINGS = (*FLOATS, "Q8_0", "Q4_1", "Q4_K")
#: Without halves: ik_llama.cpp writes out of bounds for experts of 16 bits.
IK_ENCODINGS = ("F32", "Q8_0", "Q4_K")
#: Encodings in which, besides TERNARY, the mistakes of every model are measured: floats, halves,
#: activations of 8 bits.
WITH_MISTAKES = ("F32", "F16", "Q8_0")
#: In each other encoding, the mistakes of every fifth model are measured, of another fifth in each.
SHARES = 5

#: Why llama.cpp does not load a family, in its own words (xllamacpp 2026.10.11549).
REFUSED = {
    "gptj": "unsupported model architecture: 'gptj'",
    "bitnet-b1.58": "unknown model architecture: 'bitnet-b1.58'",
    "gte": "unknown model architecture: 'gte'",
    "olmo_hybrid": "unknown model architecture: 'olmo_hybrid'",
    "mpnet": "unknown model architecture: 'mpnet'",
    "helium": "unknown model architecture: 'helium'",
    "opt": "unknown model architecture: 'opt'",
    "minicpm3": "tensor 'blk.0.attn_kv_b.weight' not found",
    **{
        name: f"unknown model architecture: '{name}'"
        for name in (
            *("axk1", "biogpt", "gpt_neo", "gpt_refact", "hyperclovax", "lfm3", "nanochat"),
            *("openai-gpt", "persimmon", "vaultgemma", "youtu"),
        )
    },
}
#: Families that llama.cpp loads but computes differently, and the difference.
OTHERWISE = {
    "phimoe": "it has RMS norms, and another choice of experts",
    "qwen2vl": "it does not read the epsilon of the norms, and takes 0 for it",
}
#: Models that ik_llama.cpp computes as their authors do.
READ_BY_IK = (
    *("bitnet", "command-r", "ernie4_5", "ernie4_5-moe-experts", "gemma", "glm4", "gptneox"),
    *("llama", "olmo", "phi2", "qwen2", "qwen2moe-experts", "qwen3", "qwen3moe-experts"),
    *("seed_oss", "smollm3", "stablelm", "yarn", "linear-without-a-type"),
)

AT_ONCE = 4  # models that are measured before the table is written again
#: Engines in the order of the table.
ENGINES = ("transformers", "llama.cpp", "ik_llama.cpp", "bitnet")

#: Least number of times by which a bound exceeds right models, and a mistake exceeds a bound.
MARGIN = 1.5

#: Mistakes that may pass, and the reason.
MAY_PASS = {
    "every epsilon x1.5": "where the residual stream is large, as in Gemma, it changes the gain of "
    "a norm by 4e-8, and float32 rounds that of right models by up to 5e-8",
    "a bias of attention x1.01": "it changes a mean by less than 1e-3, and rounding activations to "
    "8 bits changes that of right models by up to 5e-3; with weights in F32 it fails",
}


class Distances(NamedTuple):
    """Distances of the logits of an engine from the float64 pass, or the largest accepted ones."""

    mean: float  # KL divergence, over all positions
    worst: float  # of one position
    stretch: float  # slope of the log-probabilities, less 1


class Logits(NamedTuple):
    """Logits of an engine beside the float64 pass, measured as an operation is."""

    residual: Distances
    kind: str = "logits"
    name: str = "logits"


_MOST_KL = kl_of_reference("float32")
#: Largest accepted residuals, by kind of operation, and of logits in float32.
LIMITS: dict[str, Residual | Distances] = {
    **BOUNDS,
    "logits": Distances(_MOST_KL, WORST * _MOST_KL, SCALE["float32"]),
}

Judge = Callable[[Model], tuple[Operation, ...]]


def of_ours(architecture: str, encoding: str) -> tuple[Checkpoint, Judge]:
    """A tiny model, and a function that compares our engine's operations with a float64 model's."""
    checkpoint = in_encoding(tiny(architecture), encoding, rounded=True)
    theirs = our_intermediates(load_model(checkpoint, ops=NativeOps()), IDS)
    arithmetic = "float" if encoding == "F32" else "int8"

    def judged(exact: Model) -> tuple[Operation, ...]:
        return check_operations(
            exact, checkpoint, IDS, theirs, arithmetic=arithmetic, half_cache=False
        )

    return checkpoint, judged


def of_llama_cpp(
    case: str, encoding: str, folder: Path, engine: type[LlamaCpp] = LlamaCpp
) -> tuple[Checkpoint, Judge]:
    """As :func:`of_ours`, for llama.cpp, which runs once and is compared with each model."""
    checkpoint = written(folder / f"{case}-{encoding}.gguf", *THEIRS[case], encoding=encoding)
    question = Question(checkpoint, prompts=(Prompt("", IDS),))
    reference = asked_once(engine())

    def judged(exact: Model) -> tuple[Operation, ...]:
        return reference_operations(reference, question, exact) or ()

    return checkpoint, judged


def asked_once(reference: Reference) -> Reference:
    """*reference*, whose intermediates of a prompt are computed once."""
    answers: dict[tuple[int, ...], Any] = {}
    ask = reference.intermediates

    def remembered(asked: Question, exact: Model) -> Any:
        (prompt,) = asked.prompts
        if prompt.ids not in answers:
            answers[prompt.ids] = ask(asked, exact)
        return answers[prompt.ids]

    reference.intermediates = remembered  # type: ignore[method-assign]
    return reference


def of_transformers(case: str, folder: Path) -> tuple[Checkpoint, Judge, Callable[[Model], Logits]]:
    """A folder, and functions that compare its operations and its logits with a float64 model's."""
    from compared_folders import compared_folder  # needs torch

    checkpoint = open_checkpoint(compared_folder(case, folder / case))
    prompt = Prompt("", IDS)
    question = Question(checkpoint, prompts=(prompt,))
    reference = asked_once(Transformers())
    theirs = reference.trace(question)

    def judged(exact: Model) -> tuple[Operation, ...]:
        return reference_operations(reference, question, exact) or ()

    def logits_of(exact: Model) -> Logits:
        cache = KVCache(exact.config, len(IDS), dtype=np.float64)
        forward = partial(exact.forward, cache=cache)
        answer = prompt_trace(forward, prompt, count=STORED_TOKENS, causal=exact.config.causal)
        pass_ = Trace(EngineFacts("float64"), (answer,))
        rows, _ = compare(pass_, theirs, exact=pass_)
        return Logits(distances(rows, exact))

    return checkpoint, judged, logits_of


def assert_only_right_passes(
    checkpoint: Checkpoint, exact: Model, verdict: Callable[[Model], tuple[bool, str]]
) -> None:
    """Assert that *verdict* passes *exact*, the right model of *checkpoint*, and fails mistakes.

    Those in MAY_PASS are not tried.
    """
    is_right, text = verdict(exact)
    assert is_right, text
    passed = [
        f"{mistake.kind} {mistake.place}"
        for mistake in mistakes(checkpoint)
        if mistake.kind not in MAY_PASS and verdict(mistake.model())[0]
    ]
    assert passed == []


def distances(rows: Sequence[Row], exact: Model) -> Distances:
    """Distances of the reference in *rows* from *exact*, at the positions that are judged."""
    whole = evidence(*rows)
    has_experts = any(isinstance(mixer, Experts) for mixer in exact.config.mixers())
    judged = rows_to_judge(replace(whole, model=replace(whole.model, has_experts=has_experts)))
    divergences = [row.theirs_kl for row in judged]
    slopes = [row.theirs_scale for row in judged]
    return Distances(fmean(divergences), max(divergences), fmean(slopes) - 1)


def excess(steps: tuple[Operation, ...]) -> float:
    """Largest ratio of a residual of *steps* to its bound; at most 1 if all are within bounds."""
    return max(
        abs(value) / most
        for step in steps
        for value, most in zip(step.residual, LIMITS[step.kind], strict=True)
    )


def measure_model(
    checkpoint: Checkpoint,
    judged: Judge,
    logits_of: Callable[[Model], Logits] | None = None,
    *,
    wrong_ones: bool,
) -> dict[str, Any]:
    """Largest residuals of the right model, by kind, and with *wrong_ones* excesses of mistakes."""
    right: dict[str, dict[str, tuple[float, str]]] = {}
    exact = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))
    steps: list[Operation | Logits] = list(judged(exact))
    if logits_of is not None:
        steps.append(logits_of(exact))
    for step in steps:
        largest = right.setdefault(step.kind, {})
        for measure, value in zip(step.residual._fields, step.residual, strict=True):
            largest[measure] = max(largest.get(measure, (0.0, "")), (abs(value), step.name))
    wrong: dict[str, list[tuple[float, str]]] = {}
    for mistake in mistakes(checkpoint) if wrong_ones else ():
        wrong.setdefault(mistake.kind, []).append((excess(judged(mistake.model())), mistake.place))
    return {"right": right, "wrong": wrong}


def add_measured(row: dict[str, Any], name: str, measured: dict[str, Any]) -> None:
    """Add the results of the model *name* to the *row* of an engine and an encoding.

    The row has each model by itself, and the largest residuals and the least excesses of all.
    """
    row["models"].append(name)
    row["families"][name] = summarize(measured)
    for kind, largest in measured["right"].items():
        residuals = row["right"].setdefault(kind, {})
        for measure, (value, operation) in largest.items():
            entry = [float(f"{value:.2g}"), f"{name} {operation}"]
            residuals[measure] = max(residuals.get(measure, [0.0, ""]), entry)
    for kind, places in measured["wrong"].items():
        counts = row["wrong"].setdefault(kind, {"models": 0, "fail": 0, "least": [1e300, ""]})
        counts["models"] += len(places)
        counts["fail"] += sum(times > 1 for times, _ in places)
        times, place = min(places)
        entry = [float(f"{times:.2g}"), f"{name} {place}".rstrip()]
        counts["least"] = min(counts["least"], entry)


def summarize(measured: dict[str, Any]) -> list[Any]:
    """Least margin of the right model, number of mistakes that must fail, and their least excess.

    The excess is None without mistakes.
    """
    margins = [
        getattr(LIMITS[kind], measure) / value
        for kind, largest in measured["right"].items()
        for measure, (value, _) in largest.items()
        if value
    ]
    excesses = [
        times
        for kind, places in measured["wrong"].items()
        if kind not in MAY_PASS
        for times, _ in places
    ]
    least = float(f"{min(excesses):.2g}") if excesses else None
    return [float(f"{min(margins):.2g}"), len(excesses), least]


def names_of(engine: str, encoding: str) -> tuple[str, ...]:
    """Every model that *engine* reads in *encoding*."""
    if engine == "bitnet":
        return ("bitnet", "bitnet-b1.58") if encoding in TERNARY else OURS
    if engine == "transformers":
        from compared_folders import FOLDERS  # needs torch

        return tuple(FOLDERS)
    left_out = {*REFUSED, *OTHERWISE, *TOO_SLOW}
    read = READ_BY_IK if engine == "ik_llama.cpp" else THEIRS
    return tuple(case for case in read if case not in left_out and fits(case, encoding))


def measure_in(
    engine: str, name: str, encoding: str, folder: Path, *, wrong_ones: bool
) -> dict[str, Any]:
    """Result of :func:`measure_model` for *engine* with the model *name* in *encoding*."""
    if engine == "transformers":
        return measure_model(*of_transformers(name, folder), wrong_ones=wrong_ones)
    if engine == "bitnet":
        compared = of_ours(name, encoding)
    else:
        kind = {"llama.cpp": LlamaCpp, "ik_llama.cpp": IkLlamaCpp}[engine]
        compared = of_llama_cpp(name, encoding, folder, kind)
    return measure_model(*compared, wrong_ones=wrong_ones)


def fits(case: str, encoding: str) -> bool:
    """True if rows of the matrices of *case* are whole blocks of *encoding*."""
    size = types.by_name(encoding).block_size
    return all(width % size == 0 for width in row_widths(case))


@cache
def row_widths(case: str) -> frozenset[int]:
    """Widths of the matrices in the blocks of *case*."""
    architecture, keys = THEIRS[case]
    model = tiny(architecture, **({"vocab_size": VOCAB} | keys))
    vectors = layout(config_from(model)).vectors
    return frozenset(
        weight.shape[-1]
        for name, weight in model.weights.items()
        if name.startswith("blk.") and len(weight.shape) > 1 and name not in vectors
    )


def faults(table: dict[str, Any]) -> Iterator[str]:
    """A line for each bound, and each mistake that may not pass, whose margin is below MARGIN."""
    for title, row in table["measured"].items():
        for kind, largest in row["right"].items():
            for measure, (value, where) in largest.items():
                most = getattr(LIMITS[kind], measure)
                if value * MARGIN > most:
                    yield f"{title}, {where}: {measure} {value:.1e} of {kind}, at most {most:.1e}"
        for kind, seen in row["wrong"].items():
            times, where = seen["least"]
            if times < MARGIN and kind not in MAY_PASS:
                yield f"{title}, {where}: {kind} exceeds its bounds {times:.2g} times"


def text_of(table: dict[str, Any]) -> str:
    """*table* as JSON, each innermost list on a line."""
    text = json.dumps(table, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda it: re.sub(r"\s*\n\s*", " ", it[0]), text)
    return text.replace("[ ", "[").replace(" ]", "]") + "\n"


def encodings_of(engine: str) -> tuple[str, ...]:
    """Encodings in which *engine* is measured."""
    if engine == "transformers":
        return ("F32",)
    if engine == "bitnet":
        return (*ENCODINGS, *TERNARY)
    return IK_ENCODINGS if engine == "ik_llama.cpp" else THEIR_ENCODINGS


def measure(engine: str, encoding: str, measured: dict[str, Any] | None = None) -> dict[str, Any]:
    """The row of *engine* and *encoding*, with up to :data:`AT_ONCE` more models.

    *measured* is the row before them; None if it has no models.
    """
    references.ask = ask_here  # a process for each model takes longer than the model
    in_full = encoding in WITH_MISTAKES or encoding in TERNARY
    share = encodings_of(engine).index(encoding) % SHARES
    row = measured or {"models": [], "families": {}, "right": {}, "wrong": {}, "seconds": 0}
    started = time.process_time()
    names = names_of(engine, encoding)
    missing = [number for number, name in enumerate(names) if name not in row["models"]]
    for number in missing[:AT_ONCE]:
        name = names[number]
        with tempfile.TemporaryDirectory() as folder:
            wrong_ones = in_full or number % SHARES == share
            measured_model = measure_in(engine, name, encoding, Path(folder), wrong_ones=wrong_ones)
            add_measured(row, name, measured_model)
    row["seconds"] += round(time.process_time() - started)
    return row


def kept_rows(
    path: Path, versions: dict[str, str], engines: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Rows of the table at *path* by title, without those of *engines*, which are measured again.

    Raises:
        SystemExit: they were measured with other *versions* of the libraries.
    """
    if not path.exists():
        return {}
    table = json.loads(path.read_text(encoding="utf-8"))
    rows = {
        title: row for title, row in table["measured"].items() if title.split()[0] not in engines
    }
    if rows and table["versions"] != versions:
        raise SystemExit(
            f"{path} was measured with {table['versions']}, and here are {versions}: measure every "
            "engine again, or install these versions"
        )
    return rows


def main(words: list[str]) -> int:
    """Measure, write the table, and print what has no margin."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--again", action="store_true", help="keep what was measured, and measure what is missing"
    )
    options = parser.parse_args(words)
    engines = options.engines.split(",")
    if unknown := sorted(set(engines) - set(ENGINES)):
        parser.error(f"no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    table: dict[str, Any] = {
        "versions": _versions(),
        "bounds": {kind: bound._asdict() for kind, bound in LIMITS.items()},
        "margin": MARGIN,
        "may_pass": MAY_PASS,
        "measured": {},
    }
    measured = kept_rows(options.output, table["versions"], [] if options.again else engines)
    order = [f"{engine} {encoding}" for engine in ENGINES for encoding in encodings_of(engine)]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[dict[str, Any]], str] = {}

        def measure_more(title: str) -> None:
            names = set(names_of(*title.split()))
            row = measured.get(title)
            if row is None or set(row["models"]) != names:
                kept = row if row and set(row["models"]) <= names else None  # none of former models
                running[pool.submit(measure, *title.split(), kept)] = title

        for title in order:
            if title.split()[0] in engines:
                measure_more(title)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                title = running.pop(future)
                measured[title] = future.result()
                print(f"{title}: {measured[title]['seconds']} s", file=sys.stderr)
                measure_more(title)
            table["measured"] = {title: measured[title] for title in order if title in measured}
            write_text(options.output, text_of(table))
    table["measured"] = {title: measured[title] for title in order if title in measured}
    problems = list(faults(table))
    print("\n".join(problems) or "every bound has its margin")
    return 1 if problems else 0


def _versions() -> dict[str, str]:
    packages = ("xllamacpp", "ik-llama-cpp-python", "transformers", "torch", "numpy")
    return {name: importlib.metadata.version(name) for name in packages}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
