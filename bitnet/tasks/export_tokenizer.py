"""``inv export-tokenizer``."""

from __future__ import annotations

from pathlib import Path

from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet export-tokenizer smollm2-135m --output exported",
    help={
        "model": "GGUF file, tokenizer file or folder, or name of a model",
        "output": "folder that receives the files",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
        "force": "replace files that are there",
    },
    positional=["model"],
    required=["output"],
    formerly={"model": ("tokenizer",), "output": ("into",)},
    metavars={"model": "PATH|NAME", "output": "DIR", "pre": "NAME"},
)
def export_tokenizer(c, model=None, output="", pre="", force=False, shown=Output()):
    """Write a tokenizer as tokenizer.json, exactly or not at all."""
    from bitnet.tokenizer.export import export_tokenizer as export
    from bitnet.tokenizer.load import load_spec

    files = export(load_spec(Context().model(model), pre=pre or None), Path(output), force=force)
    if shown.json:
        print(as_json({"files": [str(path) for path in files]}))
    else:
        print("\n".join(str(path) for path in files))
