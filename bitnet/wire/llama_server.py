"""llama.cpp's server: its bodies as requests, answers as its replies and events.

Names are those of its README (github.com/ggml-org/llama.cpp, tools/server), with its sampling
defaults.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.conversation import conversation_text
from bitnet.runtime.request import MAX_BIASES, Request
from bitnet.wire.embeddings import MAX_TEXTS, texts_of, to_embed, vectors_of
from bitnet.wire.fields import DIALECTS, NAMES, TOP_LOGPROBS, schemas_by_name, with_defaults
from bitnet.wire.forms import Form
from bitnet.wire.gaps import gap_prompt
from bitnet.wire.logprobs import token_facts
from bitnet.wire.openai import CHAT, chat_requests
from bitnet.wire.schemas import (
    FLAG,
    IGNORED,
    NUMBER,
    REFUSED,
    TEXT,
    TEXTS,
    TOKEN_ID,
    WHOLE,
    Schema,
    any_of,
    mark_ignored,
    mark_refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import TokenLogprob
    from bitnet.wire.forms import Body, Default, Events, Pieces, Served

#: Addresses whose errors have the form of :func:`error_reply`.
PATHS = {"/completion", "/props", "/slots", "/apply-template", "/health", "/infill", "/embedding"}
STREAM = "unnamed"  # see Form.stream
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_DIALECT = "llama_server"
MAX_FILES = 256  # files in input_extra
#: Samplers of llama.cpp that are left out here: they choose among the ways to write one text.
_LEFT_OUT = {"infill"}

#: A pair of a token id and its bias.
_BIAS: Schema = {"type": "array", "items": any_of(NUMBER, FLAG, TEXT)}


def embedding_requests(body: Body, *_: object) -> list[Request]:
    """The requests of *body*, as :data:`EMBED` reads it: one for each text."""
    return [to_embed(text) for text in texts_of(body["content"], "content", at_most=MAX_TEXTS)]


def embedding_reply(body: Body, _head: Body, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The reply of ``/embedding``."""
    rows = vectors_of(body, answers)
    return [{"index": index, "embedding": [row.tolist()]} for index, row in enumerate(rows)]


def prompt_of(_body: Body, requests: Sequence[Request], model: LanguageModel) -> dict[str, str]:
    """The reply of ``/apply-template``: the prompt of a chat, which is not answered."""
    (request,) = requests
    request.check()
    return {"prompt": conversation_text(model.tokenizer, request)[0]}


def completion_requests(body: Body, default: Default = None, _: object = None) -> list[Request]:
    """The request of *body*, as :data:`COMPLETION` reads it; *default* has its missing fields."""
    at = DIALECTS.index(_DIALECT)
    fields = {name: body[names[at]] for name, names in NAMES.items() if names[at]}
    if fields["max_tokens"] == 0:  # only the prompt is run, so that a later request finds it
        fields["max_tokens"] = 1
    samplers = body["samplers"]
    if samplers is not None:
        fields["samplers"] = [name for name in samplers if name not in _LEFT_OUT]
    if isinstance(fields["logit_bias"], list):
        fields["logit_bias"] = _biases_of(fields["logit_bias"])
    fields["grammar"] = fields["grammar"] or None  # an empty one asks for nothing
    fields["logprobs"] = body["n_probs"] or None
    min_indent = body["n_indent"] or 0
    request = Request.from_mapping(fields, with_defaults(default, **DEFAULTS))
    return [replace(request, min_indent=min_indent)]


def _biases_of(pairs: list[list[Any]]) -> dict[int, float]:
    """Biases by their token ids, from *pairs* of both; false forbids a token."""
    biases: dict[int, float] = {}
    for number, pair in enumerate(pairs):
        where = f"logit_bias.{number}"
        token: Any
        bias: Any
        token, bias = pair if len(pair) == 2 else (None, None)
        is_number = type(bias) in (int, float)
        if type(token) is not int or not (is_number or bias is False):
            message = f"{where}: expected a token id, and a number or false"
            raise UsageError(message, hint="for example [15043, -1.5]", field=where)
        if token in biases:
            raise UsageError(f"{where}: token id {token} has a bias already", field=where)
        biases[token] = bias if is_number else -math.inf
    return biases


def completion_ignores(body: Body, _: Served) -> Iterator[str]:
    """The name of the list of samplers in *body*, if some of them are left out here."""
    if _LEFT_OUT.intersection(body["samplers"] or ()):
        yield "samplers"


def infill_requests(body: Body, default: Request, model: Served) -> list[Request]:
    """The request of *body*, as :data:`INFILL` reads it, for *model*."""
    assert model is not None, "a worker knows it"
    prefix = body["input_prefix"] + (body["prompt"] or "")
    extra = body["input_extra"] or ()
    prompt, stop_ids = gap_prompt(model.tokenizer, prefix, body["input_suffix"], extra)
    (request,) = completion_requests(body, default)
    return [replace(request, prompt=prompt, stop_ids=stop_ids)]


async def completion_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/completion`` as events."""
    is_empty = body["n_predict"] == 0
    described: list[TokenLogprob] = []  # since the last event
    count = 0  # tokens of the pieces so far: the answer may be ahead of them
    sent = 0  # those in the events so far
    async for _, piece, answer in pieces:
        count += piece.token is not None
        if piece.described:
            described.append(piece.described)
        if piece.text and not is_empty:
            ids = _ids(body, answer.ids[sent:count])
            facts = {"content": piece.text, "tokens": ids, "stop": False}
            yield _only_requested(body, facts | _probabilities(described))
            described = []
            sent = count
    end = _end_facts(body, head, answer) | {"content": ""}
    if not is_empty:
        # Tokens of a stop text are not in the text of any event: they come here.
        end |= {"tokens": _ids(body, answer.ids[sent:])} | _probabilities(described)
    yield _only_requested(body, end)


def _ids(body: Body, ids: list[int]) -> list[int]:
    """*ids*, if *body* asks for tokens or, as in llama.cpp, for a stream; else none."""
    return ids if body["return_tokens"] or body["stream"] else []


def completion_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/completion``."""
    (answer,) = answers
    facts = _end_facts(body, head, answer)
    if body["n_predict"] != 0:
        facts |= _probabilities(answer.logprobs)
    return _only_requested(body, facts)


def _probabilities(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The field with the log-probabilities of *tokens*; no field if there are none."""
    if not tokens:
        return {}
    rows = [
        _token_with_id(token) | {"top_logprobs": [_token_with_id(each) for each in token.top]}
        for token in tokens
    ]
    return {"completion_probabilities": rows}


def _token_with_id(token: TokenLogprob) -> dict[str, Any]:
    """A token with its id, without its alternatives."""
    return {"id": token.id, **token_facts(token)}


def _only_requested(body: Body, facts: dict[str, Any]) -> dict[str, Any]:
    """Those of *facts* that ``response_fields`` names.

    A path becomes its last part: ``timings/prompt_n`` is ``prompt_n``.
    """
    if not body["response_fields"]:
        return facts
    requested = {}
    for path in body["response_fields"]:
        *outer, name = path.split("/")
        value: Any = facts
        for part in outer:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict) and name in value:
            requested[name] = value[name]
    return requested


def _end_facts(body: Body, head: Body, answer: Answer) -> dict[str, Any]:
    """The reply at the end of *answer*, with its text and tokens."""
    is_empty = body["n_predict"] == 0  # the token after the prompt is not part of the reply
    stop_type = "limit"
    if answer.finish_reason == "stop" and not is_empty:
        stop_type = "word" if answer.stop_text else "eos"
    predicted = 0 if is_empty else answer.tokens
    computed = answer.prompt_tokens - answer.sequence.reused_tokens
    return {
        "content": "" if is_empty else answer.text,
        "tokens": [] if is_empty else _ids(body, answer.ids),
        "stop": True,
        "stop_type": stop_type,
        "stopping_word": "" if is_empty else answer.stop_text,
        "model": head["model"],
        "tokens_predicted": predicted,
        "tokens_evaluated": answer.prompt_tokens,
        "tokens_cached": answer.sequence.reused_tokens,
        "truncated": False,
        "timings": {
            "prompt_n": computed,
            "prompt_ms": answer.prefill_s * 1000,
            "prompt_per_second": answer.prefill_tokens_per_s,
            "predicted_n": predicted,
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
        "prompt": any_of(TEXT, {"type": "array", "items": TOKEN_ID}),
        "model": TEXT,
        "logit_bias": any_of(
            {"type": "object", "additionalProperties": NUMBER},
            {"type": "array", "items": _BIAS, "maxItems": MAX_BIASES},
            about="numbers to add to the logits of token ids; pairs may have false, which forbids",
        ),
        "n_predict": WHOLE
        | {"description": "-1: as many as there is room for; 0: only the prompt is run"},
        "t_max_predict_ms": WHOLE
        | {
            "minimum": -1,
            "maximum": 2**63 - 1,
            "description": "end the answer with the first line after this time; -1 or 0: no limit",
        },
        "n_indent": WHOLE
        | {"minimum": 0, "description": "a line with less white space than this ends the answer"},
        "n_probs": TOP_LOGPROBS
        | {"description": "log-probabilities of this many tokens at each position; 0: none"},
        "response_fields": TEXTS | {"description": "fields of the reply; default: all"},
        "stream": FLAG,
        "return_tokens": FLAG,
        **mark_ignored(
            cache_prompt=FLAG, id_slot=WHOLE, timings_per_token=FLAG, t_max_prompt_ms=WHOLE
        ),
        **mark_refused("n_keep", neutral=(0,)),
        **mark_refused("post_sampling_probs", "return_progress", "lora"),
    },
    required=("prompt",), ignores=completion_ignores, dialect=_DIALECT, tag="llama-server",
    summary="The continuation of a text, as llama.cpp's server has it",
    requests=completion_requests, reply=completion_reply, events=completion_events,
    stream=STREAM,
)  # fmt: skip
INFILL = Form(
    "LlamaInfill",
    {
        **COMPLETION.fields,
        "prompt": TEXT | {"description": "text after the prefix, up to the cursor"},
        "input_prefix": TEXT | {"description": "text before the gap"},
        "input_suffix": TEXT | {"description": "text after the gap"},
        "input_extra": {
            "type": "array",
            "maxItems": MAX_FILES,
            "items": {
                "type": "object",
                "properties": {"filename": TEXT, "text": TEXT, **mark_ignored(time=NUMBER)},
                "required": ["text"],
            },
            "description": "other files of the project",
        },
    },
    required=("input_prefix", "input_suffix"), ignores=completion_ignores,
    dialect=_DIALECT, tag="llama-server", summary="The text of a gap, by models that can fill it",
    requests=infill_requests, reply=completion_reply, events=completion_events,
    stream=STREAM,
)  # fmt: skip
EMBED = Form(
    "LlamaEmbedding", {"content": any_of(TEXT, TEXTS), "model": TEXT}, required=("content",),
    tag="llama-server", summary="Vectors of texts, as llama.cpp's server has it",
    setters={"prompt": ("content",)}, requests=embedding_requests, reply=embedding_reply,
)  # fmt: skip
# Fields of a chat that change its prompt.
_OF_PROMPT = (
    "messages", "model", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
    "reasoning_effort", "continue_final_message",
)  # fmt: skip
TEMPLATE = Form(
    "TemplateRequest",
    {
        name: schema if name in _OF_PROMPT or REFUSED in schema else schema | {IGNORED: True}
        for name, schema in CHAT.fields.items()
    },
    required=("messages",), ignores=CHAT.ignores, requests=chat_requests, compute=prompt_of,
    setters=CHAT.setters, tag="llama-server",
    summary="The text that the chat template makes of a conversation",
)  # fmt: skip
