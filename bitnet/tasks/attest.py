"""``inv attest``."""

from __future__ import annotations

from pathlib import Path

from bitnet import settings
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Check",
    example="bitnet attest smollm2-135m --output smollm2.json",
    help={
        "model": "GGUF file, folder with config.json, or name of a model; else BITNET_GGUF",
        "output": "file to write; without it the attestation is printed",
        "name": "what to call the model; else its file's name",
        "tokenizer": "tokenizer file or folder for the trace; else the model's own",
        "trace": "run both backends over a few tokens and record what they compute",
    },
    positional=["model"],
    metavars={"model": "PATH|NAME", "output": "FILE", "name": "NAME", "tokenizer": "PATH"},
)
def attest(c, model="", output="", name="", tokenizer="", trace=True, show=Output()):
    """Write down what a model is, by content.

    A digest for each tensor, key, token list and template, and a few positions as both backends
    compute them. Order, alignment and splitting do not change it; any other bit does. Compare with
    `inv verify --against FILE`.
    """
    from bitnet.errors import TokenizerNotFound, UsageError
    from bitnet.formats.containers import open_checkpoint
    from bitnet.tokenizer.discover import resolve_tokenizer
    from bitnet.verify import attest as attesting

    path = model or settings.gguf()
    if not path:
        raise UsageError("attest needs MODEL", hint="bitnet attest PATH, or set BITNET_GGUF")
    path = Context().model(path)
    checkpoint = open_checkpoint(path)
    try:
        found = resolve_tokenizer(checkpoint, tokenizer or None) if trace else None
    except TokenizerNotFound:
        if tokenizer:
            raise
        found = None  # the first ids of the vocabulary are traced
    attestation = attesting.attest(checkpoint, name=name, tokenizer=found, trace=trace)
    if output:
        attestation.write(Path(output))
        facts = {"model": str(path), "output": output, "digest": attestation.digest}
        print(as_json(facts) if show.json else f"{attestation.digest}  {output}")
    else:
        print(attestation.text(), end="")
