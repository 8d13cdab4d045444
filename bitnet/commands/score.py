"""Commands that score texts: ``rank`` and ``classify``."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import UsageError, from_os_error
from bitnet.base.files import open_file
from bitnet.base.options import option
from bitnet.base.tables import table
from bitnet.commands.context import Context, decode, open_model
from bitnet.commands.declare import task
from bitnet.runtime.model_options import ScoreOptions, ScoringModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from bitnet.runtime.model_options import ModelOptions

_NAME_A_FILE = "name a file with --input FILE"
_LONGEST_SHOWN = 60  # characters of a text in a table


@task(
    group="Run",
    example="printf 'The sky is blue.\\nGrass is green.\\n' > docs.txt\n"
    "bitnet rank models/reranker --query 'Why is the sky blue?' --input docs.txt",
    required=("query",),
)
def rank(
    c,
    query=option("", "text that the documents are to answer", metavar="TEXT"),
    top_n=option(0, "number of documents to print, the best ones; 0: all", bounds=(0, None)),
    options=ScoreOptions(),
    model=ScoringModel(),
    common=Context(),
):
    """Sort documents by how well they answer a query.

    Needs a model with a head that scores pairs of texts.
    """
    _check_named(model, "bitnet search bge-reranker")
    documents = list(iterate_texts(options.input, _NAME_A_FILE))
    # The exact head only chooses tokens, and a score is none.
    with open_model(replace(model, exact_head="off"), common) as running:
        scores = running.rank(query, documents, truncate=options.truncate)
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": float(scores[index]), "text": documents[index]}
        for index in order[: top_n or len(order)]
    ]
    rows = [
        (f"{entry['relevance_score']:.6f}", str(entry["index"] + 1), entry["text"][:_LONGEST_SHOWN])
        for entry in results
    ]
    common.output.finish({"results": results}, table(("score", "line", "text"), rows))


@task(
    group="Run",
    example="echo 'I like it.' > texts.txt\nbitnet classify models/sentiment --input texts.txt",
)
def classify(c, options=ScoreOptions(), model=ScoringModel(), common=Context()):
    """Classify texts with the labels of a model.

    Needs a model with a classification head. Prints the probability of each label.
    """
    _check_named(model, "bitnet search distilbert-sst-2")
    texts = list(iterate_texts(options.input, _NAME_A_FILE))
    # The exact head only chooses tokens, and a label is none.
    with open_model(replace(model, exact_head="off"), common) as running:
        shares = running.classify(texts, truncate=options.truncate)
        classifier = running.config.classifier
    labels = classifier.labels if classifier is not None else ()
    results = []
    rows = []
    for index, row in enumerate(shares):
        by_share = sorted(range(len(labels)), key=lambda label: -row[label])
        results.append(
            {
                "index": index,
                "label": labels[by_share[0]],
                "scores": {labels[label]: float(row[label]) for label in by_share},
            }
        )
        best = by_share[0]
        rows.append((labels[best], f"{row[best]:.6f}", texts[index][:_LONGEST_SHOWN]))
    common.output.finish({"results": results}, table(("label", "share", "text"), rows))


def _check_named(model: ModelOptions, hint: str) -> None:
    """Refuse a *model* without a name: the default model has no head that scores."""
    if not model.model and not settings.gguf():
        raise UsageError("no model is named, and the default model scores no texts", hint=hint)


def iterate_texts(name: str, usage: str) -> Iterator[str]:
    """The texts in the file *name* or, for ``-``, on stdin, as their lines are read.

    *usage* is the hint of the error if there is nothing to read.
    """
    if name == "-" and sys.stdin.isatty():
        raise UsageError("there are no texts: nothing is piped in", hint=usage)
    is_json = name.lower().endswith(".jsonl")
    lines = _lines(name)
    # No line, or a single empty one: the input has no text.
    first = next(lines, "")
    second = next(lines, None)
    if not first and second is None:
        raise UsageError("there are no texts", hint="put one on each line")
    beginning = [first] if second is None else [first, second]
    for number, line in enumerate(chain(beginning, lines), 1):
        yield _text_of(line, f"{name}, line {number}") if is_json else line


def _lines(name: str) -> Iterator[str]:
    """Lines of the file *name*, without their ends and a byte order mark."""
    source = "stdin" if name == "-" else name
    start = 0
    try:
        with ExitStack() as stack:
            if name == "-":
                file: BinaryIO = sys.stdin.buffer
            else:
                file = stack.enter_context(open_file(Path(name)))
            for raw in file:
                encoding = "utf-8" if start else "utf-8-sig"
                line = decode(raw, source, encoding, start=start)
                start += len(raw)
                yield line.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise from_os_error(error, source) from error


def _text_of(line: str, where: str) -> str:
    """The text in *line*, a JSON text or an object with the key ``text``."""
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        raise UsageError(f'{where}: expected a JSON text, or {{"text": "..."}}')
    return text
