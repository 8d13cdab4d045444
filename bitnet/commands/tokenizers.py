"""Commands that fetch, find, compare, export and run tokenizers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from bitnet.base import terminal
from bitnet.base.errors import (
    BitnetError,
    TokenizerNotFound,
    UsageError,
    VerificationFailed,
    VocabMismatch,
)
from bitnet.base.invocation import as_started, harmless, shell_quote
from bitnet.base.options import option
from bitnet.base.tables import show, table
from bitnet.base.terminal import as_json
from bitnet.commands.context import (
    CHECKED_TOKENIZER,
    PRE,
    VERIFY,
    Context,
    model_option,
    read_text,
    use_template,
)
from bitnet.commands.declare import Output, task
from bitnet.sources import TOKENIZERS

if TYPE_CHECKING:
    from bitnet.tokenizer import Tokenizer, TokenSpan

TOKENIZER = model_option(
    "GGUF file, tokenizer file or folder, or name of a model", formerly=("tokenizer",)
)


@task(group="Tokenizers", example="bitnet tokenizer --source mirror")
def tokenizer(
    c,
    output=option(
        "models", "folder for tokenizer.json; created if missing", formerly=("into",), metavar="DIR"
    ),
    source=option(
        "mirror",
        "repository: mirror needs no account, official needs HF_TOKEN",
        choices=tuple(TOKENIZERS),
    ),
    force=option(False, "fetch it again even if it is there"),
    verify=VERIFY,
    compare=option(
        "",
        "instead of fetching: a tokenizer.json to compare ...",
        metavar="FILE",
        needs_text=True,
    ),
    against=option("", "... with this one", formerly=("with",), metavar="FILE", needs_text=True),
    common=Context(),
):
    """Download the LLaMA-3 tokenizer, or compare two.

    The file is verified (its digest, and every id of the vocabulary) and pinned in
    bitnet.lock.json. One source never replaces the other. With --compare A --against B it lists
    the differences of two files: vocabulary, merges, special tokens, template.
    """
    from bitnet.hub.orders import tokenizer_order
    from bitnet.hub.provide import provide
    from bitnet.tokenizer.tokenizer_json import check_vocabulary

    if compare or against:
        _compare(compare, against, common.output)
        return
    project = common.project(force=force, rehash=verify)
    target = Path(output) / "tokenizer.json"
    order = tokenizer_order(TOKENIZERS[source], target, project, check_vocabulary)
    (obtained,) = provide([order], project, root=target.parent)
    show(obtained.licence_line, stream=sys.stderr)
    state = "Tokenizer from the cache is at" if obtained.cached else "Downloaded tokenizer to"
    show(f"✓ {state}: {obtained.path}{obtained.digest_note}", stream=sys.stderr)
    common.output.finish({"source": source, **obtained.facts()}, [str(obtained.path)])


def _compare(left: str, right: str, output: Output) -> None:
    """Report the differences between the tokenizers *left* and *right*; fail if there are any."""
    from bitnet.tokenizer.comparison import differences
    from bitnet.tokenizer.load import load_spec

    if not (left and right):
        raise UsageError(
            "tokenizer --compare needs two files", hint="bitnet tokenizer --compare A --against B"
        )
    different_parts = differences(load_spec(left), load_spec(right))
    facts = {
        "equal": not different_parts,
        "differences": [asdict(difference) for difference in different_parts],
    }
    lines = [f"{entry.part}: {entry.text}" for entry in different_parts]
    output.finish(facts, lines or ["no difference"])
    if different_parts:
        raise Exit(f"{left} and {right} differ", code=VerificationFailed.exit_code)


@task(group="Tokenizers", example="bitnet pre-download-tokenizers --model-dir models")
def pre_download_tokenizers(
    c,
    model_dir=option("models", "folder with models, searched recursively", metavar="DIR"),
    common=Context(),
):
    """Download the tokenizers that models lack.

    Models with a complete tokenizer are skipped. The exit code is that of the first failure.
    """
    from bitnet.formats.model_files import find_models

    project = common.project()
    rows = []
    code = 0
    for model in find_models(Path(model_dir)):
        try:
            row = {"model": str(model), "ok": True, **_tokenizer_for(model, project)}
        except BitnetError as error:
            row = {"model": str(model), "ok": False, "state": error.message, "hint": error.hint}
            code = code or error.exit_code
        rows.append(row)
        if not common.output.json:
            show(f"{'✓' if row['ok'] else '✗'} {model}: {row['state']}")
    common.output.finish(rows, [])
    if code:
        failed = [row for row in rows if not row["ok"]]
        raise Exit(
            f"{len(failed)} of {len(rows)} models failed; for the first: {failed[0]['hint']}",
            code=code,
        )


def _tokenizer_for(model, project):
    """State, path and source of the tokenizer of *model*, which is fetched if it is missing."""
    from bitnet import sources
    from bitnet.hub.provide import fetch_source
    from bitnet.tokenizer.discover import model_facts, search
    from bitnet.tokenizer.tokenizer_json import check_vocabulary

    outcome = search(model_facts(model), places=("embedded", "sibling", "parent"))
    if outcome.present:
        return {"state": outcome.present, "path": None, "source": None}
    source = sources.for_model(outcome.model.architecture, outcome.model.vocab_size)
    if source is None:
        family = outcome.model.architecture or "unknown"
        reason = outcome.reason and f"; {outcome.reason}"
        raise TokenizerNotFound(
            f"No compatible tokenizer found for {family} model with "
            f"vocab_size {outcome.model.vocab_size} (strict mode){reason}",
            hint="put the model's own tokenizer.json beside it",
        )
    file = fetch_source(source, project, check=check_vocabulary)
    state = f"{'in the cache' if file.cached else 'fetched'} from {source.repo}: {file.path}"
    return {"state": state, "path": str(file.path), "source": source.name}


@task(group="Tokenizers", example="bitnet explain-tokenizer smollm2-135m")
def explain_tokenizer(
    c,
    model=model_option(),
    tokenizer=option("", "look only at this tokenizer file or folder", metavar="PATH"),
    pre=PRE,
    output=Output(),
):
    """Explain which tokenizer a model gets.

    Lists every place that was searched, and why its tokenizer was chosen or rejected.
    """
    from bitnet.tokenizer.discover import download_info, model_facts, not_found, search

    facts = model_facts(Context().model(model))
    explicit = Path(tokenizer) if tokenizer else None
    outcome = search(facts, explicit=explicit, pre=pre or None, exhaustive=True)
    fetchable = download_info(facts)
    rows = [asdict(entry) | {"path": str(entry.path)} for entry in outcome.candidates]
    info = asdict(fetchable) if fetchable else None
    lines = [f"{facts.path}: {facts.architecture} model, {facts.vocab_size:,} tokens"]
    lines += [
        f"  {entry.verdict:<10} {entry.place:<18} {entry.path}\n{'':13}{entry.reason}"
        for entry in outcome.candidates
    ]
    if fetchable:
        folder = facts.folder
        command = as_started(f"bitnet pre-download-tokenizers --model-dir {shell_quote(folder)}")
        lines.append(f"  can be fetched: {fetchable.repo} ({command})")
    failure = not_found(outcome) if outcome.tokenizer is None else None
    explanation = {"model": str(facts.path), "candidates": rows, "download": info}
    output.finish(explanation, map(harmless, lines), failure)


@task(
    group="Tokenizers",
    example="bitnet export-tokenizer smollm2-135m --output exported",
    required=["output"],
)
def export_tokenizer(
    c,
    model=TOKENIZER,
    output=option(
        "", "folder that receives the files", formerly=("into",), metavar="DIR", writes=True
    ),
    pre=PRE,
    force=option(False, "replace files that are there"),
    console=Output(),
):
    """Export a tokenizer as tokenizer.json.

    A tokenizer that this format cannot represent exactly is refused.
    """
    from bitnet.tokenizer.export import export_tokenizer as export
    from bitnet.tokenizer.load import load_spec

    path = Context().model(model)
    inputs = [path]
    if path.is_dir():
        inputs = sorted(file for file in path.iterdir() if file.is_file())
    files = export(load_spec(path, pre=pre or None), Path(output), force=force, inputs=inputs)
    paths = [str(path) for path in files]
    console.finish({"files": paths}, paths)


@task(
    group="Tokenizers",
    example="bitnet verify-tokenizer exported/tokenizer.json --against smollm2-135m",
    required=["against"],
)
def verify_tokenizer(
    c,
    model=TOKENIZER,
    against=option(
        "", "the tokenizer to compare with: GGUF file, tokenizer file or folder", metavar="PATH"
    ),
    corpus=option(
        "",
        "UTF-8 file with one text per line; default: about 470 built-in texts",
        metavar="FILE",
        needs_text=True,
    ),
    pre=PRE,
    output=Output(),
):
    """Compare two tokenizers in every detail.

    Compares their parts, the ids of texts, and the text of every id.
    """
    from bitnet.tokenizer.comparison import compare
    from bitnet.tokenizer.load import load_spec
    from bitnet.tokenizer.probes import probe_texts

    common = Context()
    paths = common.model(model), common.model(against)
    specs = load_spec(paths[0], pre=pre or None), load_spec(paths[1], pre=pre or None)
    agreement = compare(*specs, _corpus_texts(corpus) if corpus else probe_texts())
    parts = []
    lines = [str(agreement)]
    for difference in agreement.differences:
        text = f"{difference.part}: {difference.text}"
        if difference.certain:
            parts.append(text)
        else:
            lines.append(f"written differently: {text}")
    lines[1:1] = parts
    failure = None
    if not agreement.complete:
        problem = _describe(agreement, specs, parts)
        explain_hint = (
            f"see which one the model gets: bitnet explain-tokenizer {shell_quote(model)}"
        )
        hint = explain_hint if problem else "give a corpus with a line in it"
        failure = VerificationFailed(problem or "no text was compared", hint=hint)
    output.finish(asdict(agreement) | {"passed": agreement.complete}, lines, failure)


def _corpus_texts(corpus: str) -> list[str]:
    """The lines of the file *corpus*; none of an empty file.

    Bytes that are not UTF-8 become U+FFFD.
    """
    texts = read_text(corpus, whole=True, errors="replace").split("\n")
    if not texts[-1]:  # the empty text after the last newline
        texts.pop()
    return texts


def _describe(agreement, specs, parts):
    """The first difference between the two *specs*; empty if there is none."""
    from bitnet.tokenizer.tokenizer import Tokenizer

    both = [Tokenizer.from_spec(spec) for spec in specs]
    if (text := agreement.first_difference) is not None:
        first = f"first difference: {text!r}"
        results = [str(tokenizer.encode(text)) for tokenizer in both]
    elif agreement.first_ids is not None:
        ids = list(agreement.first_ids)
        first = f"the same ids, other texts: {ids}"
        results = [repr(tokenizer.decode(ids)) for tokenizer in both]
    else:
        return f"{both[0].source} and {both[1].source} differ: {parts[0]}" if parts else ""
    rows = zip(both, results, strict=True)
    return "\n".join([first, *(f"  {tokenizer.source}: {result}" for tokenizer, result in rows)])


@task(group="Tokenizers", example="bitnet compat-check smollm2-135m")
def compat_check(
    c,
    model=model_option(),
    tokenizer=CHECKED_TOKENIZER,
    pre=PRE,
    output=Output(),
):
    """Check whether a tokenizer fits a model.

    Prints a line for each further observation, then the verdict.
    """
    from bitnet.tokenizer.comparison import compatibility
    from bitnet.tokenizer.discover import resolve_tokenizer
    from bitnet.tokenizer.load import load_tokenizer

    path = Context().model(model)
    pre = pre or None
    loaded = load_tokenizer(tokenizer, pre=pre) if tokenizer else resolve_tokenizer(path, pre=pre)
    result = compatibility(path, loaded, pre=pre)
    failure = None
    lines = [*result.findings, result.verdict]
    if not result.compatible:
        failure = VocabMismatch(
            result.verdict, hint=f"bitnet explain-tokenizer {shell_quote(path)}"
        )
        lines.pop()  # it is the error
    output.finish(asdict(result), lines, failure)


@task(group="Tokenizers", example='bitnet tokenize smollm2-135m "Hello world"')
def tokenize(
    c,
    model=TOKENIZER,
    text=option("", "the text; default: --file or stdin", positional=True),
    file=option("", "UTF-8 file to encode; - for stdin", metavar="FILE"),
    count=option(False, "print the number of ids only"),
    pieces=option(False, "print a table: id, characters, text, spelling"),
    add_special=option(True, "add BOS and EOS as the model expects"),
    parse_special=option(True, "parse special tokens in the text"),
    pre=PRE,
    verify=option(
        False, "read the tokenizer's file again instead of trusting size, times and inode"
    ),
    output=Output(),
):
    """Show the token ids of a text.

    The ids go to stdout on one line. --pieces shows the characters of each id; several ids can
    share one character, and BOS and EOS have none.
    """
    from bitnet.tokenizer.load import load_tokenizer

    if text and file:
        raise UsageError("a text and --file are two texts", hint="leave one of them out")
    if count and pieces:
        raise UsageError("--count prints no pieces", hint="leave --count or --pieces out")
    loaded = load_tokenizer(Context().model(model), pre=pre or None, verify=verify)
    options = {"add_special": add_special, "parse_special": parse_special}
    if not (text or file) and sys.stdin.isatty():
        raise UsageError(
            "there is no text: none was given, and nothing is piped in",
            hint=f'bitnet tokenize {shell_quote(model)} "a text"',
        )
    whole = terminal.argument(text) if text else read_text(file or "-", whole=True)
    if pieces:
        rows = [_piece(loaded, whole, span) for span in loaded.spans(whole, **options)]
        facts = {"count": len(rows), "pieces": rows}
        cells = [
            (
                str(row["id"]),
                f"{row['start']}-{row['stop']}",
                repr(row["text"]),
                repr(row["spelling"]),
            )
            for row in rows
        ]
        heading = ("id", "characters", "text", "spelling")
        text = "\n".join(table(heading, cells, right=(0, 1), shrink=(2, 3)))
    else:
        ids = loaded.encode(whole, **options)
        facts = {"count": len(ids)} | ({} if count else {"ids": ids})
        text = len(ids) if count else " ".join(map(str, ids))
    print(as_json({"tokenizer": loaded.source} | facts) if output.json else text)


@task(
    group="Tokenizers",
    example='echo \'[{"role": "user", "content": "Hello"}]\' > conversation.json\n'
    "bitnet render smollm2-135m --messages conversation.json",
)
def render(
    c,
    model=model_option("GGUF file, tokenizer file or folder, or name of a model"),
    messages=option(
        "-",
        "JSON file with the messages, or with a whole chat request; - for stdin",
        metavar="FILE",
    ),
    tools=option("", "JSON file with the functions that may be called", metavar="FILE"),
    chat_template=option("", "Jinja file instead of the model's template", metavar="FILE"),
    output=Output(),
):
    """Render a conversation with a model's chat template.

    Prints the prompt that the model gets for the messages. --json adds its ids and the
    variables of the template.
    """
    from bitnet.runtime.conversation import conversation_text
    from bitnet.runtime.request_checks import check_messages
    from bitnet.tokenizer.chat import chat_template as template_of
    from bitnet.tokenizer.load import load_tokenizer
    from bitnet.wire.openai import CHAT, chat_requests

    if messages == "-" and sys.stdin.isatty():
        raise UsageError(
            "there is no conversation: none was given, and nothing is piped in",
            hint=f"bitnet render {shell_quote(model)} --messages conversation.json",
        )
    loaded = load_tokenizer(Context().model(model))
    if chat_template:
        use_template(loaded, chat_template)

    conversation = _read_json(messages)
    entries = conversation if isinstance(conversation, dict) else {"messages": conversation}
    if tools:
        entries["tools"] = _read_json(tools)
    check_messages(entries.get("messages"))
    (request,) = chat_requests(CHAT.read(entries))
    request.check()
    text, *_ = conversation_text(loaded, request)
    if output.json:
        ids = loaded.encode(text, add_special=False)
        template_facts = asdict(template_of(loaded).facts)
        print(as_json({"text": text, "ids": ids, "template": template_facts}))
    else:
        print(text)


def _read_json(file: str) -> Any:
    """The JSON value in *file*."""
    try:
        return json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        name = "stdin" if file == "-" else file
        raise UsageError(
            f"{name} is not JSON: {error}",
            hint="""write [{"role": "user", "content": "Hello"}] into it""",
        ) from None


def _piece(tokenizer: Tokenizer, text: str, span: TokenSpan) -> dict[str, Any]:
    """*span* of *text* as JSON values, with its characters and the spelling of its token."""
    spelling = tokenizer.spelling(span.id).decode("utf-8", "replace")
    return {**span._asdict(), "text": text[span.start : span.stop], "spelling": spelling}
