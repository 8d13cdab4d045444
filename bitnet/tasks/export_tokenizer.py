"""``inv export-tokenizer``."""

from __future__ import annotations

from pathlib import Path

from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet export-tokenizer smollm2-135m --into exported",
    help={
        "tokenizer": "GGUF file, tokenizer file or folder, or name of a model",
        "into": "folder that receives the files",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
        "force": "replace files that are there",
    },
    positional=["tokenizer"],
    required=["into"],
    metavars={"into": "DIR", "pre": "NAME"},
)
def export_tokenizer(c, tokenizer=None, into="", pre="", force=False, output=Output()):
    """Write a tokenizer as tokenizer.json, exactly or not at all."""
    from bitnet.tokenizer.export import export_tokenizer as export
    from bitnet.tokenizer.load import load_spec

    files = export(load_spec(Context().model(tokenizer), pre=pre or None), Path(into), force=force)
    if output.json:
        print(as_json({"files": [str(path) for path in files]}))
    else:
        print("\n".join(str(path) for path in files))
