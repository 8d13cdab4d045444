"""``inv convert``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitnet.options import option
from bitnet.tasks.declare import Output, task
from bitnet.tasks.running import say
from bitnet.terminal import as_json

# Those of bitnet.convert, which takes too long to import for a list of commands.
ENCODINGS = ("F32", "F16", "BF16", "Q8_0", "I2_S", "TQ1_0", "TQ2_0")


@dataclass(frozen=True)
class ConvertOptions:
    """What is converted into what."""

    model: str = option("", "GGUF file, or folder with safetensors", metavar="PATH")
    output: str = option("", "the new GGUF file; must not exist", metavar="FILE")
    type: str = option(
        "F16",
        "encoding of the matrices; I2_S, TQ1_0 and TQ2_0 are for models of ternary weights",
        choices=ENCODINGS,
    )
    tokenizer: str = option(
        "", "tokenizer to embed, instead of the one of the model", metavar="PATH"
    )
    no_tokenizer: bool = option(False, "embed no tokenizer")
    pre: str = option("", "pre-tokenizer name to write, where it cannot be told", metavar="NAME")
    allow_lossy: bool = option(False, "convert also where weights or scales change by it")
    i2_s_layout: str = option(
        "x86", "processor that wrote the I2_S weights of the model", choices=("x86", "arm")
    )


@task(required=["model", "output"])
def convert(c, wanted=ConvertOptions(), shown=Output()):
    """Write a model as a GGUF file in another encoding.

    Every tensor of the new file is read back and compared with its source. What would lose
    something is refused, except for rounding to F16, BF16 and Q8_0, which is what they are for.
    """
    from bitnet.convert import Request, convert
    from bitnet.progress import Progress

    request = Request(
        wanted.type,
        tokenizer=Path(wanted.tokenizer) if wanted.tokenizer else None,
        no_tokenizer=wanted.no_tokenizer,
        pre=wanted.pre or None,
        allow_lossy=wanted.allow_lossy,
        i2_s_layout=wanted.i2_s_layout,
    )
    with Progress(f"writing {wanted.output}", mode=shown.progress) as progress:
        done = convert(Path(wanted.model), Path(wanted.output), request, on_progress=progress.reach)
    if shown.json:
        print(as_json(done.facts()))
        return
    say("\n".join(done.lines()))
    print(wanted.output)
