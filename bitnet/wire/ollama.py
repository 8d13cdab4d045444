"""Ollama's API: bodies as requests, answers as its replies and lines.

Names are those of github.com/ollama/ollama/blob/main/docs/api.md, defaults those of its
``docs/modelfile.mdx``, except ``repeat_last_n``: a ``repeat_penalty`` covers prompt and answer, not
the last 64 tokens.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.sequence import check_vectors
from bitnet.wire.embeddings import MAX_TEXTS, texts_of, to_embed, vectors_of
from bitnet.wire.fields import DIALECTS, NAMES, TOP_LOGPROBS, schemas_by_name, with_defaults
from bitnet.wire.forms import Form
from bitnet.wire.gaps import gap_prompt
from bitnet.wire.logprobs import chat_logprobs
from bitnet.wire.messages import MESSAGES, find_unread_names, read_messages
from bitnet.wire.openai import UNSERVED, finish_of
from bitnet.wire.reasoning import can_reason, takes_effort
from bitnet.wire.schemas import (
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    WHOLE,
    any_of,
    is_neutral,
    mark_ignored,
    mark_refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import TokenLogprob
    from bitnet.wire.forms import Body, Default, Events, ModelUse, Pieces, Served

PREFIX = "/api/"  # of the addresses
STREAM = "lines"  # see Form.stream
NANO = 10**9  # nanoseconds in a second
MOST_SECONDS = 10 * 365 * 86_400  # ten years; a longer keep_alive means for ever
NEVER = "9999-12-31T23:59:59+00:00"  # expires_at of a model that stays loaded
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 0.001, "s": 1, "m": 60, "h": 3600}
#: A part of a duration, as Go's ``time.ParseDuration`` reads it.
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_SECONDS = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_DURATION = re.compile(rf"([+-]?)((?:{_PART.pattern})+)", re.ASCII)
_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
# Fields of a body; the rest are options.
_BODY = ("json_schema", "messages", "tools", "prompt", "thinking")
#: Options that change an answer, by the names that they have below ``options`` of a body.
OPTIONS = Form("Options", schemas_by_name("ollama", without=_BODY), dialect="ollama")
#: Options for loading and running the model, without effect on an answer.
RUNNING = {
    "numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "use_mmap", "use_mlock",
    "num_thread", "num_keep", "vocab_only", "logits_all", "embedding_only",
}  # fmt: skip

#: Samplers that Ollama had: refused unless their value turns them off.
UNSERVED_OPTIONS = {"tfs_z": UNSERVED["tfs_z"], **mark_refused("penalize_newline")}

#: Fields that chats and completions share.
_ANSWER_FIELDS = {
    "model": TEXT,
    "format": any_of(TEXT, OBJECT, about="json, or a JSON schema"),
    "options": OBJECT,
    "stream": FLAG | {"description": "true by default"},
    "think": any_of(
        FLAG,
        {"type": "string", "enum": ["low", "medium", "high"]},
        about="whether the model reasons first, or how much; by default the model decides",
    ),
    "keep_alive": any_of(NUMBER, TEXT),
    "logprobs": FLAG,
    "top_logprobs": TOP_LOGPROBS,
}
SHOW = Form(
    "OllamaShow",
    {
        "model": TEXT,
        "name": TEXT,
        "verbose": FLAG,
        **mark_ignored(system=TEXT, template=TEXT, options=OBJECT),
    },
    dialect="ollama",
)


def chat_requests(body: Body, default: Default = None, model: Served = None) -> list[Request]:
    """The request of *body*, as :data:`CHAT` reads it, for *model* if it is known."""
    messages = read_messages(body["messages"] or (), model)
    for message in messages:
        if message.get("role") == "tool" and "tool_name" in message:
            message.setdefault("name", message.pop("tool_name"))
    return _requests(body, default, model, {"messages": messages, "tools": body["tools"] or None})


def generate_requests(body: Body, default: Default = None, model: Served = None) -> list[Request]:
    """The request of *body*, as :data:`GENERATE` reads it: a chat, if *model* has a template."""
    prompt = body["prompt"] or ""
    system = body["system"]
    if body["suffix"]:
        if system:
            raise UsageError("suffix: a gap has no instructions: leave system out", field="suffix")
        (request,) = _requests(body, default, model, {"prompt": prompt})
        if model is None:
            return [request]
        ids, stop_ids = gap_prompt(model.tokenizer, prompt, body["suffix"])
        return [replace(request, prompt=ids, stop_ids=stop_ids)]
    has_template = model is None or model.tokenizer.chat_template
    if body["raw"] or not has_template:
        if system:
            kind = "a raw prompt" if body["raw"] else "a model without a template"
            raise UsageError(
                f"system: {kind} has no place for it", hint="put it into prompt", field="system"
            )
        return _requests(body, default, model, {"prompt": prompt})
    turns = [{"role": "system", "content": system}] if system else []
    messages = [*turns, {"role": "user", "content": prompt}]
    return _requests(body, default, model, {"messages": messages})


def embedding_requests(body: Body, _: object = None, model: Served = None) -> list[Request]:
    """The requests of *body*, as :data:`EMBED` or :data:`EMBED_ONE` reads it."""
    if model is not None:
        check_vectors(model.config.vector_dim, body.get("dimensions"))
    _check_options(body)
    field = "input" if "input" in body else "prompt"
    texts: list[Any] = texts_of(body[field], field, at_most=MAX_TEXTS)
    if model is not None and body.get("truncate") is not False:
        texts = [model.embedding_ids(text, truncate=True) for text in texts]
    return [to_embed(text) for text in texts]


def _requests(body: Body, default: Default, model: Served, prompt_fields: Body) -> list[Request]:
    """The request of *body*, with the *prompt_fields* of its prompt or of its conversation."""
    options = _check_options(body)
    think = body["think"]
    if think and not can_reason(model):
        raise UsageError(
            "think: this model does not reason",
            hint="leave think out, or choose a model that reasons",
            field="think",
        )
    if body["top_logprobs"] and not body["logprobs"]:
        raise UsageError("top_logprobs is for logprobs: true", field="top_logprobs")
    at = DIALECTS.index("ollama")
    fields = {
        name: options[names[at]]
        for name, names in NAMES.items()
        if name not in _BODY and names[at] in options
    }
    if fields.get("max_tokens") == -2:  # Ollama: until the context is full
        fields["max_tokens"] = None
    request = Request.from_mapping(
        {
            **fields,
            **prompt_fields,
            "json_schema": _schema(body["format"]),
            "thinking": None if think is None else bool(think),
            "reasoning_effort": think if isinstance(think, str) else None,
            "logprobs": (body["top_logprobs"] or 0) if body["logprobs"] else None,
        },
        with_defaults(default, **_DEFAULTS),
    )
    return [replace(request, separate_reasoning=True)]


def answer_ignores(body: Body, model: Served) -> Iterator[str]:
    """Names of the fields in *body* that have no effect on the answer of this *model*."""
    yield from find_unread_names(body.get("messages") or (), model)
    if isinstance(body["think"], str) and not takes_effort(model, body["think"]):
        yield "think"
    yield from find_ignored_options(body, model)


def find_ignored_options(body: Body, model: Served = None) -> Iterator[str]:
    """Names of the options in *body* for loading and running *model*, which have no effect."""
    for name, value in (body["options"] or {}).items():
        # A num_ctx below the model's context does not cut prompts. One above it, which clients
        # compute from the length of their text, counts as the model's context, as in Ollama.
        is_other_context = name == "num_ctx" and (model is None or value != model.context)
        if value is not None and (name in RUNNING or is_other_context):
            yield f"options.{name}"


def _check_options(body: Body) -> dict[str, Any]:
    """The options of *body*; one that cannot be served is refused."""
    options: dict[str, Any] = dict(body["options"] or {})
    for name, value in options.items():
        field = f"options.{name[:80]}"
        if value is None or name in RUNNING:
            continue
        if name in UNSERVED_OPTIONS and is_neutral(UNSERVED_OPTIONS[name], value):
            continue
        is_whole = name == "num_ctx" or OPTIONS.fields.get(name, {}).get("type") == "integer"
        if is_whole and isinstance(value, float) and value.is_integer():
            options[name] = value = int(value)  # Go reads 4096.0 as a whole number
        if name in OPTIONS.fields:
            continue  # Request checks its value
        if name != "num_ctx":
            raise UsageError(f"{field} is not served", field=field)
        if type(value) is not int:
            raise UsageError(f"{field}: expected a whole number", field=field)
        if value < 1:
            raise UsageError(f"{field} is {value}, expected at least 1", field=field)
    return options


def _schema(form: str | dict[str, Any] | None) -> Any:
    """JSON schema that *form*, the field ``format``, asks for, or None."""
    if isinstance(form, dict):
        return form
    if form not in (None, "", "json"):
        raise UsageError("format is neither json nor a JSON schema", field="format")
    return {"type": "object"} if form else None


def answer_reply(body: Body, _head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/api/chat`` or ``/api/generate``."""
    (answer,) = answers
    line = _line(body, answer.text, _calls(answer), answer.reasoning)
    return line | _logprobs(body, answer.logprobs) | _end_facts(answer)


async def answer_lines(body: Body, _head: Body, pieces: Pieces) -> Events:
    """The reply of ``/api/chat`` or ``/api/generate`` as lines."""
    async for _, piece, answer in pieces:  # noqa: B007 - used after the loop
        described = [piece.described] if piece.described else []
        if piece.text or piece.reasoning or described:
            line = _line(body, piece.text, thinking=piece.reasoning)
            yield line | _logprobs(body, described) | {"done": False}
    # Calls are sent whole: Ollama has their arguments as an object, not as JSON text.
    for call in _calls(answer):
        yield _line(body, "", [call]) | {"done": False}
    yield _line(body, "") | _end_facts(answer)


def _logprobs(body: Body, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of *tokens*, if *body* asks for them."""
    return {"logprobs": chat_logprobs(tokens)["content"]} if body["logprobs"] else {}


def embedding_reply(body: Body, _head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/api/embed``."""
    rows = [row.tolist() for row in vectors_of(body, answers)]
    tokens = sum(answer.prompt_tokens for answer in answers)
    return {"model": body["model"], "embeddings": rows, "prompt_eval_count": tokens}


def read_chat_use(body: Body) -> ModelUse:
    """Use of the model by *body*, as :data:`CHAT` reads it."""
    return _read_use(body, "messages")


def read_generate_use(body: Body) -> ModelUse:
    """Use of the model by *body*, as :data:`GENERATE` reads it."""
    return _read_use(body, "prompt")


def read_embedding_use(body: Body) -> ModelUse:
    """Use of the model by *body*, as :data:`EMBED` or :data:`EMBED_ONE` reads it."""
    return "answer", _idle_seconds(body)


def _read_use(body: Body, prompt: str) -> ModelUse:
    """Use of the model by *body*: if its field *prompt* is empty, the model is only loaded.

    With a ``keep_alive`` of 0 it is unloaded instead.
    """
    idle_s = _idle_seconds(body)
    if body[prompt]:
        return "answer", idle_s
    if idle_s == 0:
        return "unload", idle_s
    return "load", idle_s


def _idle_seconds(body: Body) -> float | None:
    """Seconds in the ``keep_alive`` of *body*, or None if it has none."""
    keep_alive = body["keep_alive"]
    return None if keep_alive is None else seconds_of(keep_alive)


def empty_reply(body: Body, reason: str) -> dict[str, Any]:
    """The reply to a body without a prompt, which only loads or unloads a model."""
    return _line(body, "") | {"done": True, "done_reason": reason}


def _line(
    body: Body, text: str, calls: Sequence[dict[str, Any]] = (), thinking: str = ""
) -> dict[str, Any]:
    """The beginning of a reply, or of a line of one: a message for chats, else a text."""
    now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    head = {"model": body["model"], "created_at": now}
    thoughts = {"thinking": thinking} if thinking else {}
    if "messages" not in body:
        return head | {"response": text} | thoughts
    message = {"role": "assistant", "content": text} | thoughts
    return head | {"message": message | ({"tool_calls": [*calls]} if calls else {})}


def seconds_of(keep_alive: float | str) -> float:
    """Seconds in *keep_alive*, a number or a text such as ``1h30m``; infinite if it is below 0."""
    seconds = _duration(keep_alive.strip()) if isinstance(keep_alive, str) else keep_alive
    return float(seconds) if 0 <= seconds <= MOST_SECONDS else float("inf")


def _duration(text: str) -> float:
    """Seconds in *text*, a duration of Go or a number of seconds."""
    if _SECONDS.fullmatch(text):
        return float(text)
    duration = _DURATION.fullmatch(text)
    if duration is None:
        raise UsageError(
            "keep_alive: expected seconds, or a duration such as 5m", field="keep_alive"
        )
    seconds = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(duration[2]))
    return -seconds if duration[1] == "-" else seconds


def _calls(answer: Answer) -> list[dict[str, Any]]:
    """The calls of *answer* whose arguments are complete, in Ollama's form."""
    calls = []
    for number, call in enumerate(answer.calls):
        if (arguments := call.parse_arguments()) is not None:
            function = {"index": number, "name": call.name, "arguments": arguments}
            calls.append({"id": call.id, "function": function})
    return calls


def _end_facts(answer: Answer) -> dict[str, Any]:
    """The fields at the end of a reply: why *answer* ended, token counts, nanoseconds."""
    total = answer.tokenize_s + answer.queue_s + answer.prefill_s + answer.decode_s
    return {
        "done": True,
        "done_reason": finish_of(answer.finish_reason),
        "total_duration": int(total * NANO),
        "load_duration": 0,
        "prompt_eval_count": answer.prompt_tokens,
        "prompt_eval_duration": int(answer.prefill_s * NANO),
        "eval_count": answer.tokens,
        "eval_duration": int(answer.decode_s * NANO),
    }


def timestamp(since_epoch: float) -> str:
    """A time as Ollama writes it."""
    return datetime.fromtimestamp(since_epoch, timezone.utc).isoformat()


def parameter_size(count: int) -> str:
    """A number of parameters as Ollama writes it: ``134.5M``, ``7.2B``."""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count / 1000:.1f}K"


def error_reply(message: str, *_: object) -> dict[str, str]:
    """The body of a reply with an error status."""
    return {"error": message}


CHAT = Form(
    "OllamaChat",
    {
        **_ANSWER_FIELDS,
        "messages": MESSAGES | {"minItems": 0},
        **schemas_by_name("ollama", "tools"),
    },
    required=("model",), ignores=answer_ignores, dialect="ollama", tag="Ollama",
    prefix="options.", model_use=read_chat_use, empty_reply=empty_reply,
    summary="The next message of a conversation, as Ollama has it",
    requests=chat_requests, reply=answer_reply, events=answer_lines, stream=STREAM,
)  # fmt: skip
GENERATE = Form(
    "OllamaGenerate",
    {
        **_ANSWER_FIELDS,
        "prompt": TEXT,
        "system": TEXT,
        "raw": FLAG | {"description": "continue the prompt as it is"},
        "suffix": TEXT
        | {"description": "text after the gap that is filled, by models that can fill one"},
        **mark_refused("template", "context", "images"),
    },
    required=("model",), ignores=answer_ignores, dialect="ollama", tag="Ollama",
    prefix="options.", model_use=read_generate_use, empty_reply=empty_reply,
    summary="The answer to a prompt, as Ollama has it",
    requests=generate_requests, reply=answer_reply, events=answer_lines, stream=STREAM,
)  # fmt: skip
#: Fields that both addresses for embeddings share.
_EMBEDDING_FIELDS = {"model": TEXT, "options": OBJECT, "keep_alive": any_of(NUMBER, TEXT)}
EMBED = Form(
    "OllamaEmbed",
    {
        **_EMBEDDING_FIELDS,
        "input": any_of(TEXT, TEXTS),
        "truncate": FLAG | {"description": "true by default: cut what is too long"},
        "dimensions": WHOLE,
    },
    required=("model", "input"), ignores=find_ignored_options, dialect="ollama", tag="Ollama",
    summary="Vectors of texts, as Ollama has it", setters={"prompt": ("input",)},
    requests=embedding_requests, reply=embedding_reply, model_use=read_embedding_use,
)  # fmt: skip


def _raw_vector(body: Body, answers: Sequence[Answer]) -> list[float]:
    """The vector of the one text of *body* as the model computes it: Ollama does not scale it."""
    return vectors_of({**body, "normalize": False}, answers)[0].tolist()  # type: ignore[no-any-return]


#: The older ``/api/embeddings``, of one text.
EMBED_ONE = Form(
    "OllamaEmbeddings", {**_EMBEDDING_FIELDS, "prompt": TEXT}, required=("model", "prompt"),
    ignores=find_ignored_options, dialect="ollama", tag="Ollama",
    summary="The vector of a text, as Ollama had it",
    requests=embedding_requests, model_use=read_embedding_use,
    reply=lambda body, _, answers: {"embedding": _raw_vector(body, answers)},
)  # fmt: skip
