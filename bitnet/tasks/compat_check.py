"""``inv compat-check``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bitnet.tasks.declare import Output, task


@task(
    help={
        "model": "GGUF file, or folder with config.json",
        "tokenizer": "tokenizer file or folder to judge; else the one that would be used",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
    },
    positional=["model"],
    metavars={"tokenizer": "PATH", "pre": "NAME"},
)
def compat_check(c, model=None, tokenizer="", pre="", output=Output()):
    """Say in one line whether model and tokenizer fit."""
    from bitnet.errors import VocabMismatch
    from bitnet.tokenizer.compare import compatibility
    from bitnet.tokenizer.discover import resolve_tokenizer
    from bitnet.tokenizer.load import load_tokenizer

    path = Path(model)
    other = load_tokenizer(Path(tokenizer)) if tokenizer else resolve_tokenizer(path, pre=pre)
    result = compatibility(path, other)
    if output.json:
        print(json.dumps(asdict(result)))
    else:
        print("\n".join((*result.findings, *([result.verdict] if result.compatible else []))))
    if not result.compatible:
        raise VocabMismatch(result.verdict, hint=f"inv explain-tokenizer {path}")
