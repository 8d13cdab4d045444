"""``inv tokenize``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bitnet import terminal
from bitnet.errors import UsageError
from bitnet.tables import table
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json

if TYPE_CHECKING:
    from bitnet.tokenizer import Tokenizer, TokenSpan


@task(
    group="Tokenizers",
    example='bitnet tokenize smollm2-135m "Hello world"',
    help={
        "model": "GGUF file, tokenizer file or folder, or name of a model",
        "text": "the text; else --file or stdin",
        "file": "UTF-8 file to encode; - for stdin",
        "count": "print only how many ids it has; files of any size",
        "pieces": "print a table: id, characters, the text it stands for, how it is spelled",
        "add_special": "put BOS and EOS around the text where the model wants them",
        "parse_special": "read text that spells a special token as that token",
        "pre": "pre-tokenizer name to use instead of what the GGUF file says",
        "verify": "read the tokenizer's file again instead of trusting size, times and inode",
    },
    positional=["model", "text"],
    formerly={"model": ("tokenizer",)},
    metavars={"model": "PATH|NAME", "file": "FILE", "pre": "NAME"},
)
def tokenize(
    c,
    model=None,
    text="",
    file="",
    count=False,
    pieces=False,
    add_special=True,
    parse_special=True,
    pre="",
    verify=False,
    output=Output(),
):
    """Show the token ids of a text.

    The ids go to stdout on one line. --pieces shows which characters each id stands for; several
    ids can share one character, and BOS and EOS stand for none.
    """
    from bitnet.tokenizer.counting import read_text
    from bitnet.tokenizer.load import load_tokenizer

    if text and file:
        raise UsageError("a text and --file are two texts", hint="leave one of them out")
    if count and pieces:
        raise UsageError("--count prints no pieces", hint="leave --count or --pieces out")
    loaded = load_tokenizer(Context().model(model), pre=pre or None, verify=verify)
    options = {"add_special": add_special, "parse_special": parse_special}
    source = terminal.argument(text) if text else _source(file)
    if count:
        total = loaded.count(source, **options)
        print(as_json({"tokenizer": loaded.source, "count": total}) if output.json else total)
        return
    whole = source if isinstance(source, str) else read_text(source)
    if pieces:
        _show(loaded, whole, loaded.spans(whole, **options), as_facts=output.json)
        return
    ids = loaded.encode(whole, **options)
    facts = {"tokenizer": loaded.source, "count": len(ids), "ids": ids}
    print(as_json(facts) if output.json else " ".join(map(str, ids)))


def _source(file: str) -> Path | BinaryIO:
    if file not in ("", "-"):
        return Path(file)
    if not file and sys.stdin.isatty():
        raise UsageError(
            "there is no text: none was given, and nothing is piped in",
            hint='bitnet tokenize MODEL "a text"',
        )
    return sys.stdin.buffer


def _show(tokenizer: Tokenizer, text: str, spans: list[TokenSpan], *, as_facts: bool) -> None:
    rows = [
        (span, text[span.start : span.stop], tokenizer.spelling(span.id).decode("utf-8", "replace"))
        for span in spans
    ]
    if as_facts:
        found = [
            {"id": span.id, "start": span.start, "stop": span.stop, "text": part, "spelling": own}
            for span, part, own in rows
        ]
        print(as_json({"tokenizer": tokenizer.source, "count": len(found), "pieces": found}))
        return
    cells = [(f"{s.id}", f"{s.start}-{s.stop}", repr(part), repr(own)) for s, part, own in rows]
    heading = ("id", "characters", "text", "spelling")
    print(*table(heading, cells, right=(0, 1), shrink=(2, 3)), sep="\n")
