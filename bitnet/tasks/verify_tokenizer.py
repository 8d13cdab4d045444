"""``inv verify-tokenizer``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet verify-tokenizer exported/tokenizer.json --against smollm2-135m",
    help={
        "model": "GGUF file, tokenizer file or folder, or name of a model",
        "against": "the tokenizer to compare with: GGUF file, tokenizer file or folder",
        "corpus": "UTF-8 text file, one text a line; else about 470 built-in texts",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
    },
    positional=["model"],
    required=["against"],
    formerly={"model": ("tokenizer",)},
    metavars={"model": "PATH|NAME", "against": "PATH", "corpus": "FILE", "pre": "NAME"},
)
def verify_tokenizer(c, model=None, against="", corpus="", pre="", output=Output()):
    """Compare the ids and texts of two tokenizers on a corpus."""
    from bitnet.errors import VerificationFailed
    from bitnet.tokenizer.agreement import measure_agreement
    from bitnet.tokenizer.load import load_tokenizer
    from bitnet.tokenizer.probes import corpus_texts

    common = Context()
    ours = load_tokenizer(common.model(model), pre=pre or None, verify=True)
    other = load_tokenizer(common.model(against), verify=True)
    encoders = [partial(entry.encode, add_special=False) for entry in (ours, other)]
    texts = corpus_texts(Path(corpus) if corpus else None)
    found = measure_agreement(*encoders, texts=texts, decode=(ours.decode, other.decode))
    if output.json:
        print(as_json(asdict(found)))
        raise Exit(code=0 if found.complete else VerificationFailed.exit_code)
    show(str(found))
    if found.first_difference is not None:
        mine, theirs = (encode(found.first_difference) for encode in encoders)
        raise VerificationFailed(
            f"first difference: {found.first_difference!r}\n  {ours.source}: {mine}\n"
            f"  {other.source}: {theirs}",
            hint="see which one the model gets: bitnet explain-tokenizer MODEL",
        )
    if found.first_ids is not None:
        ids = list(found.first_ids)
        raise VerificationFailed(
            f"the same ids, other texts: {ids}\n  {ours.source}: {ours.decode(ids)!r}\n"
            f"  {other.source}: {other.decode(ids)!r}",
            hint="see which one the model gets: bitnet explain-tokenizer MODEL",
        )
    if not found.complete:
        raise VerificationFailed("no text was compared", hint="give a corpus with a line in it")
