"""Options and parameters for running a model; cheap to import."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from bitnet.base import settings
from bitnet.base.arguments import wrong_type
from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option

if TYPE_CHECKING:
    from bitnet.formats.containers import I2SLayout
    from bitnet.models.exact_head.head import HeadMode

__all__ = [
    "PRECISIONS",
    "SAMPLING",
    "ModelOptions",
    "Precision",
    "PromptOptions",
    "SamplingParams",
    "VectorOptions",
]

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
DEFAULT_SEED = 42
MAX_BIAS = 1e9
MAX_LOGPROBS = 100
MAX_LOOKUP = 15  # drafted tokens and the last one fill a batch of the decode kernels


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of sampling. A value out of its range is a :class:`UsageError`.

    ``logit_bias`` maps token ids to values added to their logits; ``ID=BIAS`` texts also work.
    """

    SECTION: ClassVar = "Sampling"

    temperature: float = option(
        0.0, "randomness; 0: always the most likely token", synonyms=("temp",), bounds=(0.0, 100.0)
    )
    top_k: int = option(0, "sample from this many most likely tokens; 0: all", bounds=(0, 2**31))
    top_p: float = option(
        1.0, "sample from the most likely tokens with this total probability", bounds=(0.0, 1.0)
    )
    min_p: float = option(
        0.0, "drop tokens below this share of the most likely one's probability", bounds=(0.0, 1.0)
    )
    repetition_penalty: float = option(
        1.0, "lower the probability of earlier tokens; 1: off", synonyms=("repeat-penalty",),
        bounds=(1e-3, 100.0),
    )  # fmt: skip
    frequency_penalty: float = option(
        0.0,
        "subtract this from the logit for each time a token was generated",
        bounds=(-100.0, 100.0),
    )
    presence_penalty: float = option(
        0.0, "subtract this from the logit of each generated token, once", bounds=(-100.0, 100.0)
    )
    seed: int | None = option(
        None, "random seed; default: BITNET_SEED, otherwise random",
        bounds=(0, 2**64),
    )  # fmt: skip
    logit_bias: Mapping[int, float] = option(
        [],
        "add this to the logit of a token id, -inf forbids it; may be given several times",
        metavar="ID=BIAS",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        check_bounds(self)
        for token, bias in self.logit_bias.items():
            if token < 0 or not bias <= MAX_BIAS:
                raise UsageError(
                    f"logit_bias is {token}={bias}, expected an id from 0 on and a bias up to "
                    f"{MAX_BIAS:g}",
                    field="logit_bias",
                )

    def actual_seed(self) -> int:
        """Effective seed: as given, ``BITNET_SEED``, 42 in reproducible runs, or a random one."""
        given = self.seed if self.seed is not None else settings.seed()
        if given is not None:
            return given
        return DEFAULT_SEED if settings.deterministic() else secrets.randbits(62)

    def turn(self, number: int = 0) -> SamplingParams:
        """These parameters with the seed for answer *number* of several, so that they differ."""
        return replace(self, seed=(self.actual_seed() + number) % 2**64)


SAMPLING = tuple(entry.name for entry in fields(SamplingParams))


def _biases(entries: Mapping[Any, float] | Iterable[str]) -> dict[int, float]:
    """Biases from ``ID=BIAS`` texts, or from a mapping whose ids may be texts, as in JSON."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise wrong_type("logit_bias", entries, "a mapping from token ids to numbers")
    given = entries.items() if isinstance(entries, Mapping) else _split(entries)
    biases = {}
    for token, bias in given:
        try:
            if not re.fullmatch(r"-?[0-9]{1,19}", str(token)):
                raise ValueError
            biases[int(token)] = float(bias)
        except (ValueError, TypeError):  # noqa: PERF203 - it names the entry
            shown = f"{token}={bias}".removesuffix("=")[:60]
            raise UsageError(
                f"logit_bias is {shown!r}, expected a token id and a number",
                hint="for example: --logit-bias 42=-inf",
                field="logit_bias",
            ) from None
    return biases


def _split(entries: Iterable[str]) -> list[tuple[str, str]]:
    parts = (entry.partition("=") for entry in entries)
    return [(token, bias) for token, _, bias in parts]


@dataclass(frozen=True)
class VectorOptions:
    """Texts to embed, and the form of their vectors."""

    input: str = option(
        "-",
        "file with a text on each line; .jsonl: with a JSON text, or an object with text in it; - "
        "for stdin",
        metavar="FILE",
    )
    output: str = option(
        "", "file for the vectors, .npy or .jsonl; default: JSON lines on stdout", metavar="FILE"
    )
    prompt_name: str = option(
        "", "the model's prompt to put before each text, such as query; default: its own",
        metavar="NAME",
    )  # fmt: skip
    dimensions: int | None = option(
        None, "dimensions to keep of each vector; default: all", synonyms=("truncate-dim",)
    )
    precision: Precision = option(
        "float32",
        "form of the numbers: int8 and uint8 round each vector by its largest number, binary and "
        "ubinary keep the signs, 8 in a byte",
        choices=PRECISIONS,
    )
    normalize: bool = option(True, "scale vectors to length one")


@dataclass(frozen=True)
class ModelOptions:
    """The model to run, its tokenizer and its resources."""

    SECTION: ClassVar = "Model"

    model: str = option(
        "",
        "GGUF file or folder with safetensors, a name that `models` lists, or hf:ORG/REPO[:FILE]; "
        "default: BITNET_GGUF, else smollm2-135m, which is fetched into the cache",
        metavar="PATH|NAME",
        positional=True,
    )
    tokenizer: str = option(
        "",
        "tokenizer file or folder, or an address: https://..., hf://org/repo or org/repo; "
        "default: discovered",
        metavar="PATH|URL|REPO",
    )
    pre: str = option("", "pre-tokenizer name to use instead of the GGUF file's", metavar="NAME")
    auto_download: bool = option(
        False, "download a missing tokenizer, and a model that is given by name"
    )
    chat_template: str = option(
        "", "file with the chat template to use instead of the model's own", metavar="FILE"
    )
    allow_mock: bool = option(
        False, "treat bytes as tokens if there is no tokenizer, for exercises only"
    )
    threads: int = option(
        0,
        "compute threads; default: BITNET_THREADS, else one per core",
        bounds=(0, settings.MAX_THREADS),
    )
    context: int | None = option(
        None, "context length in tokens; default: the model's own", bounds=(1, None)
    )
    exact_head: HeadMode = option(
        "auto",
        "choose the same tokens without computing the whole output head; auto: if it saves time, "
        "never in serve",
        choices=("auto", "on", "off"),
    )
    i2_s_layout: I2SLayout = option(
        "x86", "processor that wrote the I2_S weights; no file says it", choices=("x86", "arm")
    )
    ignore_key: list[str] = option(
        [],
        "key of the model to treat as if it were not there, such as rope.scaling.alpha; may be "
        "repeated",
        metavar="KEY",
    )
    features: str = option("", "accepted for old scripts; the device is the CPU", metavar="LIST")
    no_default_features: bool = option(False, "accepted for old scripts, as --features")

    def __post_init__(self) -> None:
        """Check value ranges.

        Raises:
            UsageError: a number is out of range.
        """
        check_bounds(self)


@dataclass(frozen=True)
class PromptOptions:
    """The prompt, and additional output."""

    SECTION: ClassVar = "Text"

    prompt: str | None = option(None, "text to continue, after piped input")
    prompt_file: str = option(
        "",
        "file with the text, - for stdin; a text that is piped in stands before --prompt; one "
        "newline at its end is left out",
        metavar="FILE|-",
    )
    chat: bool = option(False, "the text is a message to answer, in the model's chat template")
    system: str = option("", "with --chat: instructions that come before the message")
    dump_ids: bool = option(False, "print the ids of prompt and answer on stderr")
    stats: bool = option(False, "print more metrics on stderr")
    json_schema: str = option(
        "", "JSON schema of the answer, or a file with it", metavar="FILE|JSON"
    )
    regex: str = option("", "regular expression for the whole answer")
    logprobs: int | None = option(
        None, "with --json: log-probabilities of the tokens and of this many alternatives",
        bounds=(0, MAX_LOGPROBS),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check combinations of options.

        Raises:
            UsageError: options contradict each other.
        """
        check_bounds(self)
        if self.prompt is not None and self.prompt_file:
            raise UsageError(
                "prompt_file and a prompt are both given", hint="leave one out", field="prompt_file"
            )
        if self.system and not self.chat:
            raise UsageError("system needs a chat", hint="add --chat", field="system")
        if self.json_schema and self.regex:
            raise UsageError(
                "json_schema and a regular expression are both given",
                hint="leave one out",
                field="json_schema",
            )
