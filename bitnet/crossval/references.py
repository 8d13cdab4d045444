"""The reference engines: one class each, found by name.

llama.cpp       the wheel xllamacpp; every GGUF encoding but BitNet's own
bitnet.cpp      the build in BITNET_CPP_DIR; I2_S, as it is
ik_llama.cpp    the wheel ik-llama-cpp-python; the same, and ternary weights
transformers    folders with safetensors, in float32
recorded        a trace in a file, of any engine on any machine
float64         our own graph in NumPy and double precision
"""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet import settings
from bitnet.crossval.exact import exact_trace
from bitnet.crossval.own_build import bitnet_cpp_library
from bitnet.crossval.trace import Trace, read_trace, trace_from
from bitnet.errors import InvalidFormat, ReferenceUnavailable, UsageError, VerificationFailed
from bitnet.installation import extra_command
from bitnet.invocation import isolate
from bitnet.quants.iq_bn import SHORTEST_ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.crossval.trace import PromptTrace
    from bitnet.formats.checkpoint import Checkpoint

__all__ = [
    "CHAIN",
    "REFERENCES",
    "BitnetCpp",
    "EngineFailed",
    "IkLlamaCpp",
    "LlamaCpp",
    "Question",
    "Recorded",
    "Reference",
    "choose",
]

logger = logging.getLogger(__name__)

LIMIT_S = 3600.0
_OTHER = "choose another reference: --against NAME"

# The engines use OpenMP, whose threads spin while they wait for each other, after every operation.
# On a busy machine, two such threads took 151 s for the work of 13 s in one thread.
_WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
_LAST_WORDS = 300  # characters of a dead engine's stderr


@dataclass(frozen=True)
class Question:
    """Request to a reference.

    Attributes:
        checkpoint: the model.
        prompts: texts with their ids; without any, the weights are not needed.
        texts: to tokenize, each with true if BOS and EOS are added.
        greedy: steps of the greedy continuation of each prompt.
        continued: indices of the prompts that are continued; all when not given.
        threads: compute threads.
        cache: folder where a slow answer may be cached.
        model_sha256: of the model's file.
        notify: called with the progress.
    """

    checkpoint: Checkpoint
    prompts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    texts: tuple[tuple[str, bool], ...] = ()
    greedy: int = 0
    continued: tuple[bool, ...] = ()
    threads: int = 1
    cache: Path | None = None
    model_sha256: str = ""
    notify: Callable[[str], None] = logger.debug

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of each prompt's continuation."""
        flags = self.continued or (True,) * len(self.prompts)
        return tuple(self.greedy if one else 0 for one in flags)


class EngineFailed(VerificationFailed):
    """The installed engine did not answer: it crashed, refused the model, or took too long."""


class Reference(ABC):
    """A reference engine.

    Attributes:
        name: on the command line.
        independent: it is not this project's code, so the float64 pass can judge it.
        live: it runs the same file here and now.
    """

    name: str
    independent = True
    live = True

    def reads(self, checkpoint: Checkpoint) -> bool:
        """True if it supports such a model."""
        return checkpoint.path.is_file()

    def installed(self) -> bool:
        """True if it is installed."""
        return True

    @abstractmethod
    def trace(self, question: Question) -> Trace:
        """Its answers.

        Raises:
            ReferenceUnavailable: it is not installed.
            EngineFailed: it is installed, but crashed, refused the model or took too long.
        """

    def tensors(self, _question: Question) -> dict[str, NDArray[np.float32]] | None:
        """Intermediates of one pass over the first prompt, ``None`` if it has none."""
        return None


class _InProcess(Reference):
    """An engine that runs in its own process."""

    package: str  # the module that must be importable
    needs: tuple[str, ...] = ()  # and further required modules
    extra = "crossval"  # that installs it

    def installed(self) -> bool:
        return all(map(importlib.util.find_spec, (self.package, *self.needs)))

    def trace(self, question: Question) -> Trace:
        with tempfile.TemporaryDirectory() as folder, self._file(question, Path(folder)) as model:
            found = self._ask(question, model, Path(folder))
        try:
            trace = trace_from(found, name=f"the answer of {self.name}")
        except InvalidFormat as error:
            raise EngineFailed(error.message, hint=_OTHER) from error
        texts = [text for text, _ in question.prompts]
        named = [
            replace(one, prompt=texts[number] if number < len(texts) else "")
            for number, one in enumerate(trace.prompts)
        ]
        return replace(trace, model_sha256=question.model_sha256, prompts=tuple(named))

    @contextmanager
    def _file(self, question: Question, _folder: Path) -> Iterator[Path]:
        """The file to run: the model, or its conversion."""
        yield question.checkpoint.path

    def _ask(self, question: Question, model: Path, folder: Path, **more: Any) -> dict[str, Any]:
        if not self.installed():
            raise self._missing(f"there is no Python package {self.package}")
        request = {
            "engine": self.name,
            "model": str(model.absolute()),
            "prompts": [list(ids) for _, ids in question.prompts],
            "texts": list(question.texts),
            "steps": list(question.steps),
            "threads": question.threads,
            **more,
        }
        target = folder / "answer.json"
        question.notify(f"asking {self.name}")
        command = isolate("bitnet.crossval.reference_process", str(target))
        done = _run(command, name=self.name, stdin=json.dumps(request))
        if done.returncode or not target.exists():
            raise EngineFailed(f"{self.name} did not survive: {_ending(done)}", hint=_OTHER)
        try:
            found = json.loads(target.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            said = f"the answer of {self.name} is not JSON: {error}"
            raise EngineFailed(said, hint=_OTHER) from error
        if not isinstance(found, dict):
            raise EngineFailed(f"the answer of {self.name} is not a JSON object", hint=_OTHER)
        if "error" in found:
            name = question.checkpoint.path.name
            raise EngineFailed(f"{self.name} cannot run {name}: {found['error']}", hint=_OTHER)
        return found

    def _missing(self, reason: str) -> ReferenceUnavailable:
        command = extra_command(self.extra)
        return ReferenceUnavailable(
            f"the reference {self.name} is not installed: {reason}",
            hint=f"{command}, or accept that nothing is compared: --allow-missing",
        )


class _CppEngine(_InProcess):
    unlike: frozenset[str] = frozenset()  # operations whose intermediates are not comparable

    def tensors(self, question: Question) -> dict[str, NDArray[np.float32]] | None:
        import numpy as np

        with tempfile.TemporaryDirectory() as name, self._file(question, Path(name)) as model:
            folder = Path(name)
            self._ask(question, model, folder, tensors=name)
            order = json.loads((folder / "order.json").read_text(encoding="utf-8"))
            found = {key: np.load(folder / f"{number}.npy") for key, number in order.items()}
        unlike = self.unlike
        if any(name.endswith("post_ffw_norm.weight") for name in question.checkpoint.weights):
            unlike |= {"attn_out", "ffn_out"}  # taken before the norm that follows
        renamed = {f"{_operation(key)}-{_layer(key)}": found[key] for key in found if "-" in key}
        kept = {key: value for key, value in renamed.items() if _operation(key) not in unlike}
        return kept | {key: value for key, value in found.items() if "-" not in key}


class LlamaCpp(_CppEngine):
    """llama.cpp from the wheel ``xllamacpp``.

    Its graph for BitNet is that of an earlier model than 2B-4T, with another activation.
    """

    name = "llama.cpp"
    package = "xllamacpp"

    def reads(self, checkpoint: Checkpoint) -> bool:
        return super().reads(checkpoint) and not checkpoint.architecture.startswith("bitnet")


class IkLlamaCpp(_CppEngine):
    """ik_llama.cpp from the wheel ``ik-llama-cpp-python``.

    It loads I2_S files and gives wrong logits for them without a word, so these are converted to
    IQ2_BN first, which holds the same weights. Its products of IQ2_BN abort where rows are short;
    such a file becomes F16, whose products do not round activations.
    """

    name = "ik_llama.cpp"
    package = "ik_llama_cpp"
    extra = "crossval-ternary"
    unlike = frozenset({"ffn_norm", "kqv_out"})  # its fused operations leave them unwritten

    def __init__(self, *, convert: bool = True) -> None:
        """Without *convert* it gets a file it misreads, which the float64 pass must detect."""
        self._convert = convert

    @contextmanager
    def _file(self, question: Question, folder: Path) -> Iterator[Path]:
        path = question.checkpoint.path
        asks_tokens_only = not question.prompts
        if asks_tokens_only or not self._convert or not _is_i2_s(question.checkpoint):
            yield path
            return
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            raise self._missing(f"there is no Python package {self.package}")
        kind = "iq2_bn" if _shortest_row(question.checkpoint) >= SHORTEST_ROW else "f16"
        converted = folder / f"{kind}.gguf"
        program = str(Path(spec.origin).parent / "bin" / "llama-quantize")
        head = ["--token-embedding-type", "f16", "--output-tensor-type", "f16"]
        files = [str(path.absolute()), str(converted)]
        done = _run([program, "--allow-requantize", *head, *files, kind], name="llama-quantize")
        if done.returncode or not converted.exists():
            said = f"llama-quantize does not convert {path.name} to {kind.upper()}: {_ending(done)}"
            raise EngineFailed(said, hint=_OTHER)
        yield converted


class BitnetCpp(_CppEngine):
    """bitnet.cpp as its user built it, for I2_S files: the engine that they are made for."""

    name = "bitnet.cpp"

    def reads(self, checkpoint: Checkpoint) -> bool:
        return super().reads(checkpoint) and _is_i2_s(checkpoint)

    def installed(self) -> bool:
        return bitnet_cpp_library() is not None

    def _ask(self, question: Question, model: Path, folder: Path, **more: Any) -> dict[str, Any]:
        library = bitnet_cpp_library()
        if library is None:
            raise ReferenceUnavailable(
                f"the reference {self.name} is not installed: BITNET_CPP_DIR is not set",
                hint="build bitnet.cpp, and name its folder in BITNET_CPP_DIR; docs/how-to/"
                "bitnet-cpp.md says how, or accept that nothing is compared: --allow-missing",
            )
        # Built with clang it has no OpenMP, and its own threads wait for each other by spinning.
        alone = replace(question, threads=1)
        return super()._ask(alone, model, folder, library=str(library), **more)


class Transformers(_InProcess):
    """Hugging Face's own code in float32."""

    name = "transformers"
    package = "transformers"
    needs = ("torch",)
    extra = "parity"

    def reads(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.path.is_dir()


class Recorded(Reference):
    """A recorded trace, which brings its own prompts."""

    name = "recorded"
    live = False

    def __init__(self, path: Path) -> None:
        self.recording = read_trace(path)

    def trace(self, question: Question) -> Trace:
        """The recorded answers to *question*, limited to its prompts and steps."""
        left = list(self.recording.prompts)
        found = []
        for (text, ids), steps in zip(question.prompts, question.steps, strict=True):
            while left and (left[0].prompt != text or left[0].ids[: len(ids)] != ids):
                del left[0]
            if left:
                found.append(_cut(left.pop(0), len(ids), steps))
        tokenized = self.recording.tokenized
        if tokenized is None:
            tokenized = tuple(one.ids for one in self.recording.prompts)
        return replace(self.recording, prompts=tuple(found), tokenized=tokenized)


class Float64(Reference):
    """Our graph in double precision: reveals rounding, but not mistakes of the graph."""

    name = "float64"
    independent = False

    def reads(self, _checkpoint: Checkpoint) -> bool:
        return True

    def trace(self, question: Question) -> Trace:
        return exact_trace(
            question.checkpoint,
            question.prompts,
            greedy=question.greedy,
            cache=question.cache,
            model_sha256=question.model_sha256,
            notify=question.notify,
        )


def _cut(one: PromptTrace, positions: int, steps: int) -> PromptTrace:
    """The first *positions* and *steps* of a recorded answer."""
    return replace(
        one,
        ids=one.ids[:positions],
        positions=one.positions[:positions],
        greedy=one.greedy[:steps],
        top2_gaps=one.top2_gaps[:steps],
        asked=positions,
    )


REFERENCES: dict[str, type[Reference]] = {
    one.name: one for one in (LlamaCpp, BitnetCpp, IkLlamaCpp, Transformers, Float64)
}
CHAIN: tuple[type[Reference], ...] = (LlamaCpp, IkLlamaCpp, Transformers)  # tried in this order


def choose(name: str, checkpoint: Checkpoint, *, recording: Path | None = None) -> Reference:
    """The reference *name*, or else the first of :data:`CHAIN` that supports *checkpoint*.

    One that is installed goes before one that is not, and bitnet.cpp, which takes a build of one's
    own, before them all. A *recording* is a reference by itself.

    Raises:
        UsageError: *name* cannot be asked about such a model, or ``BITNET_CPP_DIR`` is wrong.
    """
    if recording is not None:
        return Recorded(recording)
    if not name:
        chain: list[type[Reference]] = [*([BitnetCpp] if bitnet_cpp_library() else []), *CHAIN]
        able = [one for one in (kind() for kind in chain) if one.reads(checkpoint)]
        return next((one for one in able if one.installed()), able[0])
    chosen = REFERENCES[name]()
    if not chosen.reads(checkpoint):
        raise UsageError(
            f"{name} cannot be asked about {checkpoint.path.name}",
            hint=f"choose one that reads it: --against {choose('', checkpoint).name}",
        )
    return chosen


# ik_llama.cpp's own names of rotated queries and keys.
_ALIASES = {"Qcur_roped": "Qcur", "Kcur_roped": "Kcur"}


def _operation(name: str) -> str:
    operation = name.rpartition("-")[0]
    return _ALIASES.get(operation, operation)


def _layer(name: str) -> str:
    return name.rpartition("-")[2]


def _shortest_row(checkpoint: Checkpoint) -> int:
    """Number of columns of the narrowest I2_S matrix."""
    weights = checkpoint.weights.values()
    return min(weight.shape[-1] for weight in weights if weight.quant.name == "I2_S")


def _is_i2_s(checkpoint: Checkpoint) -> bool:
    return any(weight.quant.name == "I2_S" for weight in checkpoint.weights.values())


def _run(
    command: Sequence[str], *, name: str, stdin: str = ""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            input=stdin.encode(),
            capture_output=True,
            timeout=LIMIT_S,
            env=settings.child_environment(**_WAITING),
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"{name} took more than {LIMIT_S:.0f} s"
        raise EngineFailed(said, hint="ask for less: --max-positions N") from None
    except OSError as error:
        raise EngineFailed(f"{name} does not start: {error}", hint=_OTHER) from error


def _ending(done: subprocess.CompletedProcess[bytes]) -> str:
    """Exit status of the process and the last line of its stderr."""
    code = done.returncode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    told = [line for line in lines if "ASSERT" in line or "rror" in line] or lines[-3:]
    said = " ".join(" ".join(told).split())[:_LAST_WORDS]
    return f"{how}; {said}" if said else how
