"""``inv explain-tokenizer``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.invocation import as_started, harmless, word
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet explain-tokenizer smollm2-135m",
    help={
        "model": "GGUF file, folder with config.json, or name of a model",
        "tokenizer": "look only at this tokenizer file or folder",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
    },
    positional=["model"],
    metavars={"model": "PATH|NAME", "tokenizer": "PATH", "pre": "NAME"},
)
def explain_tokenizer(c, model=None, tokenizer="", pre="", output=Output()):
    """Show every place a tokenizer was looked for, and why."""
    from bitnet.errors import TokenizerNotFound
    from bitnet.tokenizer.discover import Search, download_info, not_found
    from bitnet.tokenizer.model_facts import model_facts

    facts = model_facts(Context().model(model))
    search = Search(facts, Path(tokenizer) if tokenizer else None, pre or None, exhaustive=True)
    search.run()
    fetchable = download_info(facts)
    if output.json:
        rows = [asdict(entry) | {"path": str(entry.path)} for entry in search.candidates]
        info = asdict(fetchable) if fetchable else None
        print(as_json({"model": str(facts.path), "candidates": rows, "download": info}))
        raise Exit(code=0 if search.tokenizer is not None else TokenizerNotFound.exit_code)
    show(harmless(f"{facts.path}: {facts.architecture} model, {facts.vocab_size:,} tokens"))
    for entry in search.candidates:
        row = f"  {entry.verdict:<10} {entry.place:<18} {entry.path}\n{'':13}{entry.reason}"
        show(harmless(row))
    if fetchable:
        folder = facts.path if facts.path.is_dir() else facts.path.parent
        command = as_started(f"bitnet pre-download-tokenizers --model-dir {word(folder)}")
        show(f"  can be fetched: {fetchable.repo} ({command})")
    if search.tokenizer is None:
        raise not_found(search)
