"""Commands on model files: ``inspect-gguf``, ``convert`` and ``fix-gguf``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from bitnet.base.errors import UsageError
from bitnet.base.options import option
from bitnet.base.outputs import OutputFile
from bitnet.base.progress import Progress
from bitnet.commands.context import Context, model_option, say
from bitnet.commands.declare import Output, task
from bitnet.convert.convert_options import ConvertOptions


@task(group="Models", example="bitnet inspect-gguf smollm2-135m")
def inspect_gguf(
    c,
    model=model_option(
        "GGUF file, any part of a split model, or name of a model", formerly=("path",)
    ),
    full=option(False, "count every ternary weight; without it a sample of each tensor is read"),
    output=Output(),
):
    """Show the contents of a GGUF file and their problems."""
    from bitnet.sheet.inspection import inspect_gguf

    report = inspect_gguf(Context().model(model), full=full)
    output.finish(report.as_json(), report.lines())


@task(
    group="Models",
    example="bitnet convert smollm2-135m --output q8.gguf --type Q8_0 --allow-lossy",
    required=["model", "output"],
)
def convert(
    c,
    model=model_option("GGUF file, folder with safetensors, or name of a model", ""),
    output=option("", "the new GGUF file; must not exist", metavar="FILE", writes=True),
    options=ConvertOptions(),
    console=Output(),
):
    """Convert or quantize a model to GGUF.

    Before it writes, it prints what the file will contain, and which engines will compute it
    differently. Every tensor of the new file is read back and compared with its source. Without
    --allow-lossy, a loss is refused, except for rounding floats to F16, BF16 and quantized blocks.
    """
    from bitnet.convert.run import plan_conversion

    target = Path(output)
    OutputFile(target).check()
    plan = plan_conversion(Context().model(model), options)
    if not console.json:
        say(f"{output}: " + "\n".join(plan.lines()))
    if not console.no_warnings:
        for warning in plan.warnings:
            say(f"Warning: {warning.subject}: {warning.text}")
    with Progress(f"writing {output}", mode=console.progress) as progress:
        conversion = plan.write(target, progress.reach)
    if not console.json:
        say("\n".join(conversion.lines()))
    console.finish(conversion.facts(), [output])


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
    output=option("", "the corrected copy; must not exist", metavar="FILE", writes=True),
    set_pre=option(
        "", "name of the pre-tokenizer (tokenizer.ggml.pre), such as llama-bpe", metavar="NAME"
    ),
    set=option([], "set a key; KEY:TYPE=VALUE for a new key; may be repeated", metavar="KEY=VALUE"),
    console=Output(),
):
    """Write a copy of a GGUF file with corrected metadata."""
    from bitnet.formats.gguf_write import write_copy
    from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

    source = Context().model(model)
    pre_change = f"tokenizer.ggml.pre:string={set_pre}"
    if set_pre and set_pre not in PRE_TOKENIZERS:
        hint = f"any name can be set with --set {pre_change}"
        raise UsageError(f"{set_pre!r} is not a known pre-tokenizer", hint=hint)
    requests = [pre_change, *set] if set_pre else set
    with Progress(f"writing {output}", mode=console.progress) as progress:
        changes = write_copy(source, Path(output), changes=requests, on_progress=progress.reach)
    facts = {"output": output, "changes": [asdict(change) for change in changes]}
    console.finish(facts, [output])
