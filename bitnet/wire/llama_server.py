"""llama.cpp's server: its bodies as requests, answers as its replies and events.

Names are those of its README (github.com/ggml-org/llama.cpp, tools/server), with its sampling
defaults.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.runtime.conversation import conversation_text
from bitnet.runtime.request import Request
from bitnet.wire.embeddings import MAX_TEXTS, texts_of, to_embed, vectors_of
from bitnet.wire.fields import (
    DIALECTS,
    FLAG,
    MESSAGES,
    NAMES,
    OBJECTS,
    TEXT,
    TEXTS,
    TOKEN_ID,
    WHOLE,
    Form,
    optional,
    random,
    schemas_by_name,
    without_nulls,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.wire.fields import Body, Default, Events, Pieces, Served

#: Addresses whose errors have this form.
PATHS = {"/completion", "/props", "/slots", "/apply-template", "/health", "/infill", "/embedding"}
STREAM = "unnamed"  # events
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_DIALECT = "llama_server"
MAX_FILES = 256
# Tokens of models that fill gaps: Qwen, StarCoder, Granite, DeepSeek, CodeLlama and CodeGemma.
_GAPS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    (" <PRE>", " <SUF>", " <MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
_FILE = ("<|file_sep|>", "<file_sep>")


def embedding_requests(body: Body, *_: object) -> list[Request]:
    """The requests of *body*, as :data:`EMBED` reads it: one for each text."""
    return [to_embed(text) for text in texts_of(body["content"], "content", at_most=MAX_TEXTS)]


def embedding_reply(body: Body, _head: Body, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The reply of ``/embedding``."""
    rows = vectors_of(body, answers)
    return [{"index": index, "embedding": [row.tolist()]} for index, row in enumerate(rows)]


def prompt_of(body: Body, model: LanguageModel) -> dict[str, str]:
    """The reply of ``/apply-template``: the prompt of a chat, which is not answered."""
    asked = Request(messages=without_nulls(body["messages"]), tools=body["tools"])
    asked.check()
    return {"prompt": conversation_text(model.tokenizer, asked)[0]}


def completion_requests(body: Body, default: Default = None, _: object = None) -> list[Request]:
    """The request of *body*, as :data:`COMPLETION` reads it; *default* for what it leaves out."""
    at = DIALECTS.index(_DIALECT)
    given = {name: body[names[at]] for name, names in NAMES.items() if names[at]}
    return [Request.from_mapping(given, random(default, **DEFAULTS))]


def infill_requests(body: Body, default: Request, model: Served) -> list[Request]:
    """The request of *body*, as :data:`INFILL` reads it, for *model*.

    The prompt is the other files, the text before the gap and the text after it, each behind its
    token (llama.cpp: ``format_prompt_infill``).
    """
    assert model is not None, "a worker knows it"
    tokenizer = model.tokenizer

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    def find(mark: str) -> int | None:
        """Id of the token that *mark* is."""
        ids = tokenizer.encode(mark, add_special=False)
        is_token = len(ids) == 1 and tokenizer.token_bytes(ids[0]) == mark.encode()
        return ids[0] if is_token else None

    tokens = next((ids for marks in _GAPS if None not in (ids := [*map(find, marks)])), None)
    if tokens is None:
        raise Unsupported(
            "this model has no tokens for the text before and after a gap",
            hint="choose a model that was trained to fill in the middle",
        )
    before, after, middle = tokens
    file = next((token for token in map(find, _FILE) if token is not None), None)
    bos = tokenizer.bos_id
    prompt: list[Any] = [bos] if tokenizer.encode("a")[:1] == [bos] else []
    extra = body["input_extra"] or ()
    for part in extra:
        name = part.get("filename") or "file"
        prompt += encode("\n\n") if file is None else [file, *encode(f"{name}\n")]
        prompt += encode(part["text"])
    if extra and file is not None:
        prompt += [file, *encode("file\n")]
    prompt += [before, *encode(body["input_prefix"] + (body["prompt"] or ""))]
    prompt += [after, *encode(body["input_suffix"]), middle]
    (request,) = completion_requests(body, default)
    ends = {token for token in (before, after, middle, file) if token is not None}
    return [replace(request, prompt=prompt, stop_ids=tokenizer.stop_ids | ends)]


async def completion_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/completion`` as events."""
    async for _, piece, answer in pieces:  # noqa: B007 - used behind it
        if piece.text:
            ids = _ids(body, [piece.token])
            yield {"content": piece.text, "tokens": ids, "stop": False}
    yield _end_facts(body, head, answer) | {"content": "", "tokens": []}


def _ids(body: Body, ids: list[int | None]) -> list[int]:
    return [one for one in ids if one is not None] if body["return_tokens"] else []


def completion_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/completion``."""
    return _end_facts(body, head, answers[0])


def _end_facts(body: Body, head: Body, answer: Answer) -> dict[str, Any]:
    """The reply at the end of *answer*, with its text and tokens."""
    reason = answer.finish_reason
    stopped = "word" if answer.stop_text else "eos"
    kind = {"stop": stopped, "length": "limit", "context": "limit"}.get(str(reason), str(reason))
    run = answer.prompt_tokens - answer.sequence.reused_tokens
    return {
        "content": answer.text,
        "tokens": _ids(body, [*answer.ids]),
        "stop": True,
        "stop_type": kind,
        "stopping_word": answer.stop_text,
        "model": head["model"],
        "tokens_predicted": answer.tokens,
        "tokens_evaluated": answer.prompt_tokens,
        "tokens_cached": answer.sequence.reused_tokens,
        "truncated": False,
        "timings": {
            "prompt_n": run,
            "prompt_ms": answer.prefill_s * 1000,
            "prompt_per_second": answer.prefill_tokens_per_s,
            "predicted_n": answer.tokens,
            "predicted_ms": answer.decode_s * 1000,
            "predicted_per_second": answer.decode_tokens_per_s,
        },
    }


def error_reply(message: str, status: int, kind: str, *_: object) -> dict[str, Any]:
    """The body of a reply with an error *status*."""
    return {"error": {"code": status, "message": message, "type": kind}}


COMPLETION = Form(
    "LlamaCompletion",
    {
        **schemas_by_name(_DIALECT, without=("messages", "tools", "tool_choice")),
        "prompt": optional(TEXT, {"type": "array", "items": TOKEN_ID}),
        "model": TEXT,
        "n_predict": WHOLE | {"description": "-1: as many as there is room for"},
        "stream": FLAG,
        "return_tokens": FLAG,
    },
    required=("prompt",), idle={"cache_prompt": FLAG, "id_slot": WHOLE, "timings_per_token": FLAG},
    dialect=_DIALECT, tag="llama-server",
    summary="The continuation of a text, as llama.cpp's server has it",
    requests=completion_requests, reply=completion_reply, events=completion_events,
)  # fmt: skip
INFILL = Form(
    "LlamaInfill",
    {
        **COMPLETION.fields,
        "prompt": TEXT | {"description": "text after the prefix, where the cursor stands"},
        "input_prefix": TEXT | {"description": "text before the gap"},
        "input_suffix": TEXT | {"description": "text after the gap"},
        "input_extra": {
            "type": "array",
            "maxItems": MAX_FILES,
            "items": {
                "type": "object",
                "properties": {"filename": TEXT, "text": TEXT},
                "required": ["text"],
            },
            "description": "other files of the project",
        },
    },
    required=("input_prefix", "input_suffix"),
    idle={**(COMPLETION.idle or {}), "n_indent": WHOLE, "samplers": TEXTS},
    dialect=_DIALECT, tag="llama-server", summary="The text of a gap, by models that can fill it",
    requests=infill_requests, reply=completion_reply, events=completion_events,
)  # fmt: skip
EMBED = Form(
    "LlamaEmbedding", {"content": optional(TEXT, TEXTS), "model": TEXT}, required=("content",),
    tag="llama-server", summary="Vectors of texts, as llama.cpp's server has it",
    requests=embedding_requests, reply=embedding_reply,
)  # fmt: skip
TEMPLATE = Form(
    "TemplateRequest", {"messages": MESSAGES, "model": TEXT, "tools": OBJECTS},
    required=("messages",), compute=prompt_of, tag="llama-server",
    summary="The text that the chat template makes of a conversation",
)  # fmt: skip
