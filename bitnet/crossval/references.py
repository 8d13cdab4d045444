"""The reference engines: one class each, found by name.

llama.cpp       the wheel xllamacpp; GGUF files of models other than BitNet
bitnet.cpp      the build in BITNET_CPP_DIR; GGUF files with I2_S, as they are
ik_llama.cpp    the wheel ik-llama-cpp-python; GGUF files, those with I2_S after a conversion
transformers    folders with safetensors, in float32
recorded        a trace in a file, of any engine on any machine
float64         our own graph in NumPy and double precision
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bitnet.base.errors import InvalidFormat, ReferenceUnavailable, UsageError
from bitnet.base.invocation import extra_command
from bitnet.base.settings import bitnet_cpp_dir, expand_home
from bitnet.crossval.ask import OTHER_ENGINE, ask, describe_ending, run
from bitnet.crossval.float64 import Float64
from bitnet.crossval.modules import is_unpacked, keys_of, title_of
from bitnet.crossval.names import names_for, scale_values
from bitnet.crossval.prefix import list_cached
from bitnet.crossval.recording import Recorded
from bitnet.crossval.trace import EngineFailed, Question, Reference, Trace, trace_from
from bitnet.families.config_classes import writes_text
from bitnet.families.family import of_gguf
from bitnet.models.load import config_from
from bitnet.quants import registry
from bitnet.quants.ternary import SHORTEST_ROW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bitnet.crossval.trace import Arithmetic
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model

logger = logging.getLogger(__name__)


_LIBRARIES = ("libllama.so", "libllama.dylib", "llama.dll")
# In a checkout, a CMake build folder, or an installation prefix.
_PLACES = ("", "lib", "bin", "src", "3rdparty/llama.cpp/src")


def bitnet_cpp_library() -> Path | None:
    """The library of a user's own build in ``BITNET_CPP_DIR``; None if that is not set."""
    setting = bitnet_cpp_dir()
    if setting is None:
        return None
    folder = expand_home(setting).absolute()
    for root, subfolder, name in product((folder, folder / "build"), _PLACES, _LIBRARIES):
        if (root / subfolder / name).is_file():
            return root / subfolder / name
    raise UsageError(
        f"BITNET_CPP_DIR={setting}: there is no {_LIBRARIES[0]} in it",
        hint="name the folder where bitnet.cpp was built, with -DBUILD_SHARED_LIBS=ON",
    )


#: Architectures that ik-llama-cpp-python 0.1.5 loads and computes as their authors do. It does not
#: load the others, aborts at a block of keys that no query sees (windows, MLA) or at the epsilon of
#: another norm (starcoder), ignores their keys (granite, minicpm, mistral3), or has another
#: attention (gpt-oss, qwen35).
_COMPUTED_BY_IK = frozenset(
    {
        *("bitnet", "bitnet-25", "bitnet-b1.58", "command-r", "ernie4_5", "ernie4_5-moe"),
        *("gemma", "gemma3", "glm4", "gptneox", "llama", "olmo", "phi2", "qwen2", "qwen2moe"),
        *("qwen3", "qwen3moe", "seed_oss", "smollm3", "stablelm"),
    }
)


def _is_headless(checkpoint: Checkpoint) -> bool:
    """True for a model without an output head, whose logits are products with its embeddings.

    It is of a family that makes vectors of texts, or its folder is of a class without a head, such
    as MistralModel. A class with a head computes the same if that is the embedding, and scales or
    caps its logits as this runtime does.
    """
    family = of_gguf(checkpoint.architecture)
    if family is not None and (family.encodes or family.headless):
        return True
    config = checkpoint.text_config
    has_head = config.get("tie_word_embeddings") or "output.weight" in checkpoint.weights
    return checkpoint.config is not None and not (writes_text(config) or has_head)


class _SeparateProcess(Reference):
    """An engine that runs in its own process."""

    package: str  # the module that must be importable
    needs: tuple[str, ...] = ()  # further modules that must be importable
    extra = "crossval"  # the extra of this package that installs it

    def is_installed(self) -> bool:
        return all(map(importlib.util.find_spec, (self.package, *self.needs)))

    def arithmetic(self, checkpoint: Checkpoint) -> Arithmetic:
        weights = checkpoint.weights.values()
        return "float" if all(weight.quant.name == "F32" for weight in weights) else "int8"

    def trace(self, question: Question) -> Trace:
        try:
            return trace_from(self._ask(question)[0], name=f"the answer of {self.name}")
        except InvalidFormat as error:
            raise EngineFailed(error.message, hint=OTHER_ENGINE) from error

    def _file(self, question: Question, _folder: Path) -> Path:
        """The file to run: the model, or its conversion in *_folder*."""
        return question.checkpoint.path

    def _ask(
        self, question: Question, **more: Any
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The answer of the process, and the intermediates that it wrote, by name."""
        if question.prompts and not self.computes(question.checkpoint):
            raise self._model_error(question.checkpoint)
        if not self.is_installed():
            raise self._installation_error()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            checkpoint = question.checkpoint
            # A file of a vocabulary alone has no configuration, and is asked no prompts.
            causal = not question.prompts or config_from(checkpoint).looks_back
            request = {
                "engine": self.name,
                "model": str(self._file(question, folder).absolute()),
                "prompts": [
                    [prompt.text, prompt.ids, prompt.first, prompt.steps]
                    for prompt in question.prompts
                ],
                "suppressed": [
                    sorted(question.generation.suppressed),
                    sorted(question.generation.suppressed_first),
                ],
                "texts": list(question.texts),
                "threads": question.threads,
                "arithmetic": self.arithmetic(checkpoint),
                "causal": causal,
                "headless": _is_headless(checkpoint),
                **more,
            }
            question.notify(f"asking {self.name}")
            model = checkpoint.path.name
            return ask(self.name, request, folder, model=model, limit_s=question.limit_s)

    def _model_error(self, checkpoint: Checkpoint) -> ReferenceUnavailable:
        return ReferenceUnavailable(
            f"{self.name} does not compute {checkpoint.architecture} models as they are",
            hint="compare with this runtime's own pass in double precision: --against float64",
        )

    def _installation_error(self) -> ReferenceUnavailable:
        return ReferenceUnavailable(
            f"the reference {self.name} is not installed: there is no package {self.package}",
            hint=f"{extra_command(self.extra)}, or accept that nothing is compared: "
            "--allow-missing",
        )


class LlamaCpp(_SeparateProcess):
    """llama.cpp from the wheel ``xllamacpp``.

    Its graph for BitNet is that of an earlier model than 2B-4T, with another activation, so it is
    not asked about BitNet.
    """

    name = "llama.cpp"
    package = "xllamacpp"
    # Our names for intermediates that a fork calls differently from llama.cpp; empty: the value is
    # not comparable.
    names: ClassVar[dict[str, str]] = {}

    def reads(self, checkpoint: Checkpoint) -> bool:
        has_its_graph = not checkpoint.architecture.startswith("bitnet")
        return has_its_graph and super().reads(checkpoint)

    def computes(self, checkpoint: Checkpoint) -> bool:
        family = of_gguf(checkpoint.architecture)
        if family is None:
            return True
        in_one_direction = not checkpoint.value("hrm.prefix_lm", False)
        return in_one_direction and family.llama_cpp is not None and not family.llama_cpp.always

    def intermediates(self, question: Question, exact: Model) -> Mapping[str, NDArray[Any]] | None:
        tensors = question.checkpoint.weights
        names = names_for(exact.config, exact.program, tensors, self.names)
        whole = names.list_selectors(list_cached(exact.program, last=False))
        return names.translate(self._ask(question, whole=whole)[1])


class IkLlamaCpp(LlamaCpp):
    """ik_llama.cpp from the wheel ``ik-llama-cpp-python``, for the families that it computes right.

    It loads I2_S files and gives wrong logits for them without a word, so these are converted to
    IQ2_BN first, which holds the same weights. Its products of IQ2_BN abort where rows are short;
    such a file becomes F16, whose products do not round activations.
    """

    name = "ik_llama.cpp"
    package = "ik_llama_cpp"
    extra = "crossval-ternary"
    # Fused operations do not write some values; inp_embd is the embedding before its factor.
    names: ClassVar[dict[str, str]] = {
        "ffn_norm": "",
        "kqv_out": "",
        "inp_embd": "",
        "fa": "kqv_out",
        "Qcur_roped": "Qcur",
        "Kcur_roped": "Kcur",
    }

    def reads(self, checkpoint: Checkpoint) -> bool:
        # It computes a few positions at a time, none of which could see those of the next ones.
        causal = checkpoint.value("attention.causal", True) is not False
        return causal and not _is_headless(checkpoint) and _SeparateProcess.reads(self, checkpoint)

    def computes(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.architecture in _COMPUTED_BY_IK

    def _file(self, question: Question, folder: Path) -> Path:
        path = question.checkpoint.path
        weights = question.checkpoint.weights.values()
        widths = [weight.shape[-1] for weight in weights if weight.quant.name == "I2_S"]
        spec = importlib.util.find_spec(self.package)
        if not widths or not question.prompts or spec is None or spec.origin is None:
            return path
        kind = "iq2_bn" if min(widths) >= SHORTEST_ROW else "f16"
        converted = folder / f"{kind}.gguf"
        program = str(Path(spec.origin).parent / "bin" / "llama-quantize")
        head = ["--token-embedding-type", "f16", "--output-tensor-type", "f16"]
        files = [str(path.absolute()), str(converted)]
        command = [program, "--allow-requantize", *head, *files, kind]
        completed = run(command, name="llama-quantize", limit_s=question.limit_s)
        if completed.returncode or not converted.exists():
            text = f"llama-quantize does not convert {path.name} to {kind.upper()}"
            raise EngineFailed(f"{text}: {describe_ending(completed)}", hint=OTHER_ENGINE)
        return converted


class BitnetCpp(LlamaCpp):
    """bitnet.cpp as its user built it, for I2_S files: the engine that they are made for."""

    name = "bitnet.cpp"

    def reads(self, checkpoint: Checkpoint) -> bool:
        is_i2_s = any(weight.quant.name == "I2_S" for weight in checkpoint.weights.values())
        return _SeparateProcess.reads(self, checkpoint) and is_i2_s

    def computes(self, _checkpoint: Checkpoint) -> bool:
        return True

    def is_installed(self) -> bool:
        return bitnet_cpp_library() is not None

    def _ask(
        self, question: Question, **more: Any
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        # Built with clang it has no OpenMP, and its own threads wait for each other by spinning.
        single_threaded = replace(question, threads=1)
        return super()._ask(single_threaded, library=str(bitnet_cpp_library()), **more)

    def _installation_error(self) -> ReferenceUnavailable:
        return ReferenceUnavailable(
            f"the reference {self.name} is not installed: BITNET_CPP_DIR is not set",
            hint="build bitnet.cpp, and name its folder in BITNET_CPP_DIR; "
            "docs/how-to/bitnet-cpp.md says how",
        )


class Transformers(_SeparateProcess):
    """Hugging Face's own code in float32."""

    name = "transformers"
    package = "transformers"
    needs = ("torch",)
    extra = "parity"

    def reads(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.path.is_dir()

    def arithmetic(self, checkpoint: Checkpoint) -> Arithmetic:
        # With ternary weights it rounds activations to 8 bits like the float64 pass. Where one of
        # them rounds the other way, they differ by more than float32 alone does: so it gets the
        # wider tolerance of ``float``, though it keeps keys and values in float32.
        is_ternary = any(map(registry.rounds_activations, checkpoint.weights.values()))
        return "float" if is_ternary else "float32"

    def intermediates(self, question: Question, exact: Model) -> Mapping[str, NDArray[Any]] | None:
        checkpoint = question.checkpoint
        if is_unpacked(checkpoint):  # it may compute with the numbers as they are stored
            return None
        keys = keys_of(exact.config, exact.program, checkpoint)
        cached = list_cached(exact.program, last=False)
        whole = sorted({keys[name][0] for name in cached if name in keys})
        arrays = self._ask(question, whole=whole, family=title_of(checkpoint))[1]
        return {
            name: scale_values(arrays[key], factor)
            for name, (key, factor) in keys.items()
            if key in arrays
        }


REFERENCES: dict[str, type[Reference]] = {
    engine.name: engine for engine in (LlamaCpp, BitnetCpp, IkLlamaCpp, Transformers, Float64)
}
CHAIN: tuple[type[Reference], ...] = (LlamaCpp, IkLlamaCpp, Transformers)  # tried in this order


def installation_hint(name: str) -> str:
    """Hint for installing the engine *name* on this machine; empty if it is here or part of us."""
    engine = REFERENCES[name]() if name in REFERENCES else None
    if not isinstance(engine, _SeparateProcess) or engine.is_installed():
        return ""
    return engine._installation_error().hint


def references_for(checkpoint: Checkpoint) -> list[Reference]:
    """The engines that read *checkpoint* and compute it right, installed or not."""
    engines = [kind() for kind in REFERENCES.values()]
    return [
        engine for engine in engines if engine.reads(checkpoint) and engine.computes(checkpoint)
    ]


def choose(
    name: str,
    checkpoint: Checkpoint,
    *,
    recording: Path | None = None,
    tokenizer_only: bool = False,
) -> Reference:
    """The reference *name*, or else the first of :data:`CHAIN` that supports *checkpoint*.

    An installed engine is preferred, and the user's own build of bitnet.cpp to all others. An
    engine supports a model that it reads and computes right; with *tokenizer_only* reading is
    enough. If none does, the result is llama.cpp, which then fails with the reason. A *recording*
    is a reference by itself.
    """

    def supports(engine: Reference) -> bool:
        return engine.reads(checkpoint) and (tokenizer_only or engine.computes(checkpoint))

    if recording is not None:
        return Recorded(recording)
    if not name:
        chain: list[type[Reference]] = [*([BitnetCpp] if bitnet_cpp_library() else []), *CHAIN]
        candidates = [engine for engine in (kind() for kind in chain) if supports(engine)]
        if not candidates:
            return LlamaCpp()  # whose answer says that it does not compute the model
        installed = (engine for engine in candidates if engine.is_installed())
        return next(installed, candidates[0])
    reference = REFERENCES[name]()
    if not supports(reference):
        raise UsageError(
            f"{name} cannot be asked about {checkpoint.path.name}",
            hint=f"choose one that reads it: --against {references_for(checkpoint)[0].name}",
        )
    return reference
