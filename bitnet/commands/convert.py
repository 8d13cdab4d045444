"""Commands on model files: ``inspect-gguf``, ``convert`` and ``fix-gguf``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from bitnet.base.errors import BitnetError, UsageError
from bitnet.base.options import option
from bitnet.base.progress import Progress
from bitnet.commands.context import Context, model_option, say
from bitnet.commands.declare import Output, nearest, task


@task(group="Models", example="bitnet inspect-gguf smollm2-135m", aliases=("show",))
def inspect_gguf(
    c,
    model=model_option(
        "GGUF file, any part of a split model, or name of a model", formerly=("path",)
    ),
    full=option(False, "count every ternary weight; without it a sample of each tensor is read"),
    output=Output(),
):
    """Show what is inside a GGUF file, and what is odd about it."""
    from bitnet.sheet.inspection import inspect_gguf

    found = inspect_gguf(Context().model(model), full=full)
    output.finish(found.as_json(), found.lines())


# Those of bitnet.convert, which takes too long to import for a list of commands.
ENCODINGS = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S"),
    *("IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0", "MXFP4_MOE", "Q3_K_L", "Q3_K_M", "Q3_K_S"),
    *("Q2_K", "Q2_K_S"),
    *("I2_S", "TQ1_0", "TQ2_0", "IQ2_BN", "Q1_0", "Q2_0", "PQ2_0", "PTQ1_0"),
)


@dataclass(frozen=True)
class ConvertOptions:
    """Source and destination of a conversion."""

    model: str = model_option("GGUF file, folder with safetensors, or name of a model", "")
    output: str = option("", "the new GGUF file; must not exist", metavar="FILE")
    type: str = option(
        "F16",
        "encoding of the matrices; I2_S and those after it are for one-bit and ternary models",
        choices=ENCODINGS,
    )
    pure: bool = option(False, "one type for all matrices, instead of larger ones for some")
    output_tensor_type: str = option(
        "", "type of the output head of a quantized file, such as Q8_0", metavar="TYPE"
    )
    token_embedding_type: str = option(
        "", "type of the embedding of a quantized file, such as Q8_0", metavar="TYPE"
    )
    imatrix: str = option(
        "", "importance matrix (of llama-imatrix) to round by: GGUF or imatrix.dat", metavar="FILE"
    )
    tokenizer: str = option(
        "", "tokenizer to embed, instead of the one of the model", metavar="PATH"
    )
    no_tokenizer: bool = option(False, "embed no tokenizer")
    pre: str = option("", "pre-tokenizer name to write if it cannot be detected", metavar="NAME")
    allow_lossy: bool = option(False, "convert even if weights or scales change")
    i2_s_layout: str = option(
        "x86", "processor that wrote the I2_S weights of the model", choices=("x86", "arm")
    )
    ignore_key: list[str] = option(
        [], "key of the model to treat as absent, and leave out; may be repeated", metavar="KEY"
    )
    cost: bool = option(True, "measure the cost at the end: run source and file on a text")


@task(
    group="Models",
    example="bitnet convert smollm2-135m --output q8.gguf --type Q8_0 --allow-lossy",
    required=["model", "output"],
)
def convert(c, options=ConvertOptions(), console=Output()):
    """Write a model as a GGUF file in another encoding.

    What will be written, and which engines will compute it differently, is said before. Every
    tensor of the new file is read back and compared with its source. What would lose something is
    refused, except for rounding floats to F16, BF16 and blocks, which is what they are for.
    """
    from bitnet.convert import ConversionRequest, plan_conversion
    from bitnet.formats.gguf_write import refuse_existing

    same = ("no_tokenizer", "allow_lossy", "i2_s_layout", "pure")
    texts = ("pre", "output_tensor_type", "token_embedding_type")
    request = ConversionRequest(
        options.type,
        tokenizer=Path(options.tokenizer) if options.tokenizer else None,
        ignore_keys=tuple(options.ignore_key),
        imatrix=Path(options.imatrix) if options.imatrix else None,
        **{name: getattr(options, name) for name in same},
        **{name: getattr(options, name) or None for name in texts},
    )
    output = Path(options.output)
    refuse_existing(output)
    plan = plan_conversion(Context().model(options.model), request)
    if not console.json:
        say(f"{options.output}: " + "\n".join(plan.lines()))
    for warning in plan.warnings if not console.no_warnings else ():
        say(f"Warning: {warning.subject}: {warning.text}")
    with Progress("checking", mode=console.progress) as progress:
        plan.check(progress.reach)
    with Progress(f"writing {options.output}", mode=console.progress) as progress:
        done = plan.write(output, progress.reach)
    cost = _cost(plan, output) if options.cost else {"skipped": "--no-cost"}
    skipped = isinstance(cost, dict)
    if not console.json:
        say("\n".join(done.lines()))
        say(f"cost: not measured: {cost['skipped']}" if skipped else cost.line())
    console.finish(done.facts() | {"cost": cost if skipped else cost.facts()}, [options.output])


def _cost(plan, output):
    """Cost of the conversion, or why it is unknown; the file is complete either way."""
    from bitnet.convert import measure
    from bitnet.tokenizer import load_tokenizer

    try:
        return measure(plan.checkpoint, output, load_tokenizer(output))
    except BitnetError as error:
        return {"skipped": error.message}


@dataclass(frozen=True)
class Fix:
    """Changes in the copy."""

    output: str = option("", "the corrected copy; must not exist", metavar="FILE")
    set_pre: str = option(
        "", "name of the pre-tokenizer (tokenizer.ggml.pre), such as llama-bpe", metavar="NAME"
    )
    set: list[str] = option(
        [],
        "set a key; KEY:TYPE=VALUE for a new key; may be repeated",
        metavar="KEY=VALUE",
    )

    @property
    def changes(self) -> list[str]:
        """All changes in the form of :func:`bitnet.formats.gguf_write.parse_change`."""
        from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

        if not self.set_pre:
            return list(self.set)
        if self.set_pre not in PRE_TOKENIZERS:
            any_name = f"any name can be set with --set tokenizer.ggml.pre:string={self.set_pre}"
            hint = f"{nearest(self.set_pre, PRE_TOKENIZERS)} {any_name}".lstrip()
            raise UsageError(f"{self.set_pre!r} is not a known pre-tokenizer", hint=hint)
        return [f"tokenizer.ggml.pre:string={self.set_pre}", *self.set]


@task(
    group="Models",
    example="bitnet fix-gguf smollm2-135m --set general.name=Mine --output fixed.gguf",
    required=["output"],
)
def fix_gguf(
    c,
    model=model_option(
        "GGUF file, or name of a model, to copy; it is not changed", formerly=("path",)
    ),
    fix=Fix(),
    console=Output(),
):
    """Write a copy of a GGUF file with corrected metadata."""
    from bitnet.formats.gguf_write import write_copy

    source, output = Context().model(model), Path(fix.output)
    with Progress(f"writing {fix.output}", mode=console.progress) as progress:
        changes = write_copy(source, output, changes=fix.changes, on_progress=progress.reach)
    facts = {"output": fix.output, "changes": [asdict(change) for change in changes]}
    console.finish(facts, [fix.output])
