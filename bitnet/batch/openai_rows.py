"""Lines of OpenAI's batch files: ``custom_id``, ``method``, ``url`` and ``body``.

As platform.openai.com/docs/guides/batch has them. A body has the fields that the worker takes for
the same address, and its answer the form that the worker gives it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.formats.model_files import model_name
from bitnet.runtime.chat_form import chat_reply
from bitnet.runtime.openai_request import chat_request, request_of, texts_of
from bitnet.runtime.options import SAMPLING
from bitnet.runtime.request import Request, check_messages
from bitnet.runtime.response_form import ResponseItems, response_request
from bitnet.runtime.text_form import (
    completion_reply,
    embeddings_reply,
    vector_precision,
    vectors_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel

__all__ = ["URLS", "Url", "check_for", "line_of", "reply_of", "requests_of"]

MAX_TEXTS = 2048  # of a row, as OpenAI has it
_NAMES = {bool: "true or false", int: "a whole number", str: "a text", dict: "an object",
          list: "a list"}  # fmt: skip
_Kinds = dict[str, tuple[type, ...]]


def requests_of(facts: Mapping[str, Any], default: Request) -> list[Request]:
    """Requests of the line *facts*, one for each answer, those of a prompt together.

    Raises:
        UsageError: it asks for something that a batch does not do; names the field.
    """
    url = URLS.get(facts["url"]) if isinstance(facts.get("url"), str) else None
    if url is None:
        known = ", ".join(URLS)
        raise UsageError(f"url is {str(facts.get('url'))[:80]!r}, expected one of {known}",
                         field="url")  # fmt: skip
    if facts.get("method") != "POST":
        raise UsageError(f"method is {str(facts.get('method'))[:80]!r}, expected 'POST'",
                         field="method")  # fmt: skip
    body = facts.get("body")
    if not isinstance(body, dict):
        raise UsageError("body is not an object", field="body")
    if unknown := set(facts) - {"custom_id", "method", "url", "body"}:
        raise UsageError(f"{min(unknown)} is not a field of a line", field=min(unknown))
    default = replace(default, sampling=replace(default.sampling, temperature=1.0))
    try:
        url.check(body)
        return url.requests(body, default)
    except UsageError as error:
        raise _in_body(error) from error


def check_for(facts: Mapping[str, Any], model: LanguageModel) -> None:
    """Refuse the line *facts* if *model* cannot give what it asks for.

    Raises:
        UsageError: its vectors cannot have that type or number of dimensions; names the field.
    """
    if facts["url"] != "/v1/embeddings":
        return
    try:
        vector_precision(facts["body"], model.config.dim)
    except UsageError as error:
        raise _in_body(error) from error


def _in_body(error: UsageError) -> UsageError:
    """*error* about a body, as one about its line."""
    field, message = f"body.{error.field}", error.message
    if not error.field:
        return error
    said = f"body.{message}" if message.startswith(error.field) else f"{field}: {message}"
    return UsageError(said, hint=error.hint, field=field)


def line_of(row_id: str, digest: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Output line for the input line *row_id*.

    Args:
        row_id: its ``custom_id``.
        digest: of the line.
        facts: ``body``, what :func:`reply_of` gave, or ``error``.
    """
    error, response = facts.get("error"), None
    if error is None:
        response = {"status_code": 200, "request_id": f"row-{digest}", "body": facts["body"]}
    told = None if error is None else {"code": "request_failed", "message": error}
    return {"id": f"batch_req_{digest}", "custom_id": row_id, "row": digest,
            "response": response, "error": told}  # fmt: skip


def reply_of(
    facts: Mapping[str, Any], digest: str, answers: Sequence[Answer], model: LanguageModel
) -> dict[str, Any]:
    """The reply to the line *facts*, as OpenAI has it."""
    url = URLS[facts["url"]]
    created, name = int(time.time()), model_name(model.path)
    head = {"id": f"{url.prefix}{digest}", "created": created, "model": name}
    return url.reply(facts["body"], head, answers, model)


@dataclass(frozen=True)
class Url:
    """An address that a line may name.

    Attributes:
        prefix: that the id of a reply begins with.
        needed: fields that a body must have.
        kinds: types of the fields whose values are not checked elsewhere.
        others: its other fields.
        requests: makes the requests of a body.
        reply: makes the reply of the answers.
    """

    prefix: str
    needed: str
    kinds: _Kinds
    others: frozenset[str]
    requests: Callable[[Mapping[str, Any], Request], list[Request]]
    reply: Callable[
        [Mapping[str, Any], Mapping[str, Any], Sequence[Answer], LanguageModel], dict[str, Any]
    ]

    def check(self, body: Mapping[str, Any]) -> None:
        """Accept the form of *body*.

        Raises:
            UsageError: a field is missing, unknown or of the wrong type.
        """
        if body.get(self.needed) is None:
            raise UsageError(f"{self.needed} is missing", field=self.needed)
        for name, value in body.items():
            if name == "stream" and value:
                raise UsageError("stream is not for a batch", field=name)
            kinds = self.kinds.get(name)
            if value is None or name in self.others:
                continue
            if kinds is None:
                raise UsageError(f"{name} is not served in a batch", field=name[:80])
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                expected = " or ".join(_NAMES[kind] for kind in kinds)
                raise UsageError(f"{name} is not {expected}", field=name)


def _choices(body: Mapping[str, Any]) -> int:
    count = 1 if body.get("n") is None else int(body["n"])
    if count < 1:
        raise UsageError(f"n is {count}, expected at least 1", field="n")
    return count


def _chat(body: Mapping[str, Any], default: Request) -> list[Request]:
    check_messages(body["messages"])
    if body.get("modalities") not in (None, ["text"]):
        raise UsageError("modalities: only text is served", field="modalities")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise UsageError("top_logprobs is for logprobs: true", field="top_logprobs")
    request = chat_request(body, default)
    return [request.choice(number) for number in range(_choices(body))]


def _chat_reply(
    body: Mapping[str, Any],
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    _model: LanguageModel,
) -> dict[str, Any]:
    return chat_reply(head, answers, logprobs=bool(body.get("logprobs")))


def _completion(body: Mapping[str, Any], default: Request) -> list[Request]:
    choices = _choices(body)
    if body.get("best_of") not in (None, choices):
        raise UsageError("best_of must be n: answers are not ranked", field="best_of")
    if body.get("echo") and body.get("logprobs") is not None:
        raise UsageError(
            "echo has no log-probabilities: those of a prompt are not computed", field="echo"
        )
    request = request_of(body, replace(default, logprobs=body.get("logprobs")))
    requests = [replace(request, prompt=text) for text in _texts(body, "prompt")]
    return [one.choice(number) for one in requests for number in range(choices)]


def _completion_reply(
    body: Mapping[str, Any],
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    _model: LanguageModel,
) -> dict[str, Any]:
    echoed = [one.prompt_text if body.get("echo") else "" for one in answers]
    has_logprobs = body.get("logprobs") is not None
    return completion_reply(
        head, answers, logprobs=has_logprobs, choices=_choices(body), echoed=echoed
    )


def _embedding(body: Mapping[str, Any], _default: Request) -> list[Request]:
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise UsageError("encoding_format is neither float nor base64", field="encoding_format")
    if body.get("output_dtype") == "float32":
        raise UsageError("output_dtype is float32, expected float", field="output_dtype")
    name = body.get("prompt_name")
    return [
        Request(prompt=text, embed=True, prompt_name=name, max_tokens=1)
        for text in _texts(body, "input")
    ]


def _embedding_reply(
    body: Mapping[str, Any],
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    model: LanguageModel,
) -> dict[str, Any]:
    rows = vectors_of(body, answers, vector_precision(body, model.config.dim))
    tokens = sum(answer.stats.prompt_tokens for answer in answers)
    return embeddings_reply(body, rows, str(head["model"]), tokens)


def _response(body: Mapping[str, Any], default: Request) -> list[Request]:
    for name in ("input", "tools", "include"):
        kind = str if name == "include" else dict
        given = body.get(name)
        if isinstance(given, list) and not all(isinstance(one, kind) for one in given):
            raise UsageError(f"{name} holds something that is not {_NAMES[kind]}", field=name)
    if body.get("truncation") not in (None, "disabled"):
        raise UsageError("truncation: only disabled is served", field="truncation")
    return [response_request(body, default)]


def _response_reply(
    body: Mapping[str, Any],
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    _model: LanguageModel,
) -> dict[str, Any]:
    return ResponseItems(body, head).whole(answers[0])


def _texts(body: Mapping[str, Any], field: str) -> list[str | list[int]]:
    given = body[field]
    lists = given if isinstance(given, list) else []
    is_flat = all(type(one) is int for one in lists) or all(isinstance(one, str) for one in lists)
    is_ids = all(isinstance(one, list) and all(type(part) is int for part in one) for one in lists)
    if not (is_flat or is_ids):
        raise UsageError(f"{field} is neither texts nor lists of token ids", field=field)
    return texts_of(given, field, at_most=MAX_TEXTS)


# Fields without effect on the answer.
_IDLE = frozenset({
    "model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "cache_prompt", "stream", "stream_options",
})  # fmt: skip
_DRAWN = frozenset({*SAMPLING, "stop", "max_tokens", "min_tokens", "ignore_eos", "repeat_penalty",
                    "json_schema"})  # fmt: skip
_GRAMMARS: _Kinds = {
    "guided_json": (dict, str), "guided_regex": (str,), "guided_choice": (list,),
    "structured_outputs": (dict,), "n": (int,),
}  # fmt: skip

URLS = {
    "/v1/chat/completions": Url(
        "chatcmpl-",
        "messages",
        _GRAMMARS | {"messages": (list,), "logprobs": (bool,), "top_logprobs": (int,),
                     "tools": (list,), "parallel_tool_calls": (bool,),
                     "chat_template_kwargs": (dict,), "response_format": (dict,)},
        _IDLE | _DRAWN | {"max_completion_tokens", "tool_choice", "modalities"},
        _chat,
        _chat_reply,
    ),
    "/v1/completions": Url(
        "cmpl-",
        "prompt",
        _GRAMMARS | {"prompt": (str, list), "logprobs": (int,), "echo": (bool,),
                     "best_of": (int,)},
        _IDLE | _DRAWN,
        _completion,
        _completion_reply,
    ),
    "/v1/embeddings": Url(
        "",
        "input",
        {"input": (str, list), "encoding_format": (str,), "dimensions": (int,),
         "output_dtype": (str,), "prompt_name": (str,), "normalize": (bool,)},
        frozenset({"model", "user"}),
        _embedding,
        _embedding_reply,
    ),
    "/v1/responses": Url(
        "resp_",
        "input",
        {"input": (str, list), "instructions": (str,), "tools": (list,), "text": (dict,),
         "parallel_tool_calls": (bool,), "top_logprobs": (int,), "include": (list,),
         "metadata": (dict,)},
        _IDLE | {"max_output_tokens", "temperature", "top_p", "tool_choice", "truncation"},
        _response,
        _response_reply,
    ),
}  # fmt: skip
