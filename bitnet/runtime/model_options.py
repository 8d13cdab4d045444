"""Options for running a model; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option
from bitnet.runtime.request import MAX_LOGPROBS

if TYPE_CHECKING:
    from bitnet.families.blocks import KVType
    from bitnet.formats.containers import I2SLayout
    from bitnet.models.exact_head.head import HeadMode

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class VectorOptions:
    """Texts to embed, and the form of their vectors."""

    input: str = option(
        "-",
        "file with a text on each line; .jsonl: with a JSON text, or an object with the key text; "
        "- for stdin",
        metavar="FILE",
    )
    output: str = option(
        "",
        "file for the vectors, .npy or .jsonl; default: JSON lines on stdout",
        metavar="FILE",
        writes=True,
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
    truncate: bool = option(
        True, "cut texts at the model's max_seq_length; --no-truncate refuses longer ones"
    )


@dataclass(frozen=True)
class ScoreOptions:
    """Texts to score, or to tell apart by a model's labels."""

    input: str = option(
        "-",
        "file with a text on each line; .jsonl: with a JSON text, or an object with the key text; "
        "- for stdin",
        metavar="FILE",
    )
    truncate: bool = option(
        True, "cut texts at the model's limit; --no-truncate refuses longer ones"
    )


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
    lock_memory: bool = option(
        False, "keep the weights in memory, but for experts that stay in the file"
    )
    exact_head: HeadMode = option(
        "auto",
        "choose the same tokens without computing the whole output head; auto: if it saves time, "
        "never in serve",
        choices=("auto", "on", "off"),
    )
    draft_model: str = option(
        "",
        "smaller model with the same vocabulary, which drafts tokens that the model checks: the "
        "same answers, faster where enough drafts are right",
        metavar="PATH|NAME",
    )
    lora: list[str] = option(
        [],
        "low-rank adapter (LoRA) to run the model with: a GGUF file, a folder of PEFT, or a task "
        "of jina-embeddings-v3, FOLDER/TASK; SCALE is a factor on what it adds; with NAME, serve "
        "runs the requests with it that name it as their model; may be repeated",
        metavar="[NAME=]PATH[:SCALE]",
    )
    kv_type: KVType = option(
        "f16",
        "form of keys and values: 16 bits, as exact as float16, or q8, 8 bits of rotated vectors, "
        "for half the memory and faster attention",
        choices=("f16", "q8"),
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
        check_bounds(self)


@dataclass(frozen=True)
class ScoringModel(ModelOptions):
    """A model with a head that scores texts, and its resources."""

    model: str = option(
        "",
        "GGUF file or folder with safetensors, a name that `models` lists, or hf:ORG/REPO[:FILE]; "
        "default: BITNET_GGUF",
        metavar="PATH|NAME",
        positional=True,
    )


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
    grammar: str = option(
        "",
        "grammar of the whole answer in llama.cpp's form (GBNF), or a file with it",
        metavar="FILE|TEXT",
        synonyms=("grammar-file",),
    )
    logprobs: int | None = option(
        None, "with --json: log-probabilities of the tokens and of this many alternatives",
        bounds=(0, MAX_LOGPROBS),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.prompt is not None and self.prompt_file:
            raise UsageError(
                "prompt_file and a prompt are both given", hint="leave one out", field="prompt_file"
            )
        if self.system and not self.chat:
            raise UsageError("system needs a chat", hint="add --chat", field="system")
