"""Routes of llama.cpp's server: ``/completion``, ``/props``, ``/apply-template`` and others.

Names are those of its README (github.com/ggml-org/llama.cpp, tools/server), with its sampling
defaults. ``/tokenize`` and ``/detokenize`` are elsewhere, since several dialects share them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from bitnet import __version__
from bitnet.runtime.chat_form import token_facts, with_top
from bitnet.runtime.conversation_text import conversation_text
from bitnet.runtime.request import Request as ModelRequest
from bitnet.server.models import entry_of, service_of
from bitnet.server.prompts import check_size, made, sequences_of
from bitnet.server.refusals import Refused
from bitnet.server.shapes import MAX_MESSAGES, MAX_STOPS, Message, Shape, TokenId
from bitnet.server.streams import UNNAMED, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece, TokenLogprob
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.models import Models
    from bitnet.server.service import Service

router = APIRouter(tags=["llama-server"])

_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_OWN = {
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "n_probs": "logprobs",
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "json_schema")},
    "logit_bias": "logit_bias",
}


class LlamaCompletion(Shape):
    """``/completion``."""

    prompt: str | list[TokenId]
    model: str | None = None
    n_predict: int | None = Field(None, description="-1: as many as there is room for")
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | list[list[int | float | bool]] | None = Field(
        None, description="ids and what is added to them; false forbids one"
    )
    json_schema: dict[str, Any] | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    return_tokens: bool | None = None
    # Fields without effect on the answer.
    cache_prompt: bool | None = None
    id_slot: int | None = None
    timings_per_token: bool | None = None


class TemplateRequest(Shape):
    """``/apply-template``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None


@router.post("/completion", summary="The continuation of a text, as llama.cpp's server has it")
async def completion(body: LlamaCompletion, request: Request) -> Response:
    """Continue ``prompt``; ``stream`` sends events without a last word."""
    service = await service_of(request, body.model)
    exchange = Exchange(service, request, _sequences, body, compiles=body.json_schema is not None)
    if not body.stream:
        (answer,) = await exchange.collect()
        return JSONResponse(_ended(body, answer, service, answer.text))

    def chunks(_index: int, piece: Piece, _answer: Answer) -> Iterator[Any]:
        if piece.text or piece.described:
            facts = {"content": piece.text, "tokens": _ids(body, [piece.token]), "stop": False}
            if piece.described:
                facts["completion_probabilities"] = [_probability(piece.described)]
            yield facts

    def last(answers: list[Answer]) -> Iterator[Any]:
        yield _ended(body, answers[0], service, "")

    return await exchange.stream(chunks, last, wire=UNNAMED)


@router.post("/apply-template", summary="The text that the chat template makes of a conversation")
async def apply_template(body: TemplateRequest, request: Request) -> dict[str, str]:
    """The prompt of a chat, without answering it."""
    worker = (await service_of(request, body.model)).worker
    check_size("tools", body.tools)
    messages = [message.model_dump(exclude_none=True) for message in body.messages]

    def rendered() -> str:
        translated = ModelRequest(messages=messages, tools=body.tools)
        return conversation_text(worker.model.tokenizer, translated)[0]

    with worker.place():
        return {"prompt": await worker.prepared(rendered)}


@router.get("/props", summary="Facts about a model, which is loaded")
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """Chat template, context length and number of slots."""
    service = await service_of(request, model)
    tokenizer = service.model.tokenizer

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return {
        "default_generation_settings": {"n_ctx": service.model.context, "params": _DEFAULTS},
        "total_slots": service.worker.limits.max_batch,
        "model_alias": service.name,
        "model_path": service.model.path.name,
        "chat_template": tokenizer.chat_template or "",
        "bos_token": text(tokenizer.bos_id),
        "eos_token": text(tokenizer.eos_id),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"bitnet {__version__}",
    }


@router.get("/slots", summary="How many answers are being written")
async def slots(request: Request, model: str | None = None) -> list[dict[str, Any]]:
    """A row for each answer that may be written at the same time, those in use first.

    There is none while the model is not loaded.
    """
    service = entry_of(request, model).service
    if service is None:
        return []
    worker = service.worker
    return [
        {"id": slot, "n_ctx": service.model.context, "is_processing": slot < worker.open_jobs}
        for slot in range(worker.limits.max_batch)
    ]


@router.get("/health", summary="Whether requests are taken, as llama.cpp's server says it")
async def health(request: Request) -> JSONResponse:
    """``ok``, or status 503."""
    models: Models = request.app.state.models
    if models.alive and not models.draining:
        return JSONResponse({"status": "ok"})
    raise Refused(503, "the worker is stopping", kind="unavailable_error", retry_after_s=5)


@router.post("/rerank", include_in_schema=False)
@router.post("/v1/rerank", summary="Refused: no model here ranks documents")
async def rerank() -> Response:
    """Refused: ranking requires a model with a ranking head, which no supported family has."""
    raise Refused(
        501, "this model does not rank documents: it has no head for it",
        kind="not_supported_error", code="rerank_not_supported",
    )  # fmt: skip


def _sequences(body: LlamaCompletion, service: Service) -> list[Sequence]:
    if body.json_schema is not None:
        check_size("json_schema", body.json_schema)
    given = {own: getattr(body, name) for name, own in _OWN.items()}
    if isinstance(body.logit_bias, list):
        given["logit_bias"] = dict(_bias(one) for one in body.logit_bias)
    logprobs = given.pop("logprobs")
    is_bounded = body.n_predict not in (None, -1)
    given["max_tokens"] = body.n_predict if is_bounded else None
    given |= {"prompt": body.prompt, "ignore_eos": body.ignore_eos}
    names = {own: name for name, own in _OWN.items()}
    translated = replace(made(given, names=names, **_DEFAULTS), logprobs=logprobs or None)
    tokens = translated.max_tokens if is_bounded else None
    return sequences_of(translated, service, tokens=tokens)


def _bias(entry: list[Any]) -> tuple[str, float]:
    if len(entry) != 2 or isinstance(entry[0], bool) or entry[1] is True:
        raise Refused(400, "logit_bias: expected pairs of a token id and a number or false",
                      param="logit_bias")  # fmt: skip
    token, bias = entry
    try:
        return str(token), float("-inf") if bias is False else float(bias)
    except OverflowError:
        raise Refused(400, "logit_bias: a number is out of its range", param="logit_bias") from None


def _ids(body: LlamaCompletion, ids: list[int | None]) -> list[int]:
    return [one for one in ids if one is not None] if body.return_tokens else []


def _ended(body: LlamaCompletion, answer: Answer, service: Service, text: str) -> dict[str, Any]:
    stats, reason = answer.stats, answer.finish_reason
    stopped = "word" if answer.stop_text else "eos"
    kind = {"stop": stopped, "length": "limit", "context": "limit"}.get(str(reason), str(reason))
    run = stats.prompt_tokens - stats.reused_tokens
    facts = {
        "content": text,
        "tokens": _ids(body, [*answer.ids]) if text else [],
        "stop": True,
        "stop_type": kind,
        "stopping_word": answer.stop_text,
        "model": service.name,
        "tokens_predicted": stats.tokens,
        "tokens_evaluated": stats.prompt_tokens,
        "tokens_cached": stats.reused_tokens,
        "truncated": False,
        "timings": {
            "prompt_n": run,
            "prompt_ms": stats.prefill_s * 1000,
            "prompt_per_second": stats.prefill_tokens_per_s,
            "predicted_n": stats.tokens,
            "predicted_ms": stats.decode_s * 1000,
            "predicted_per_second": stats.decode_tokens_per_s,
        },
    }
    if answer.logprobs and text:
        facts["completion_probabilities"] = [_probability(one) for one in answer.logprobs]
    return facts


def _probability(token: TokenLogprob) -> dict[str, Any]:
    return with_top(token, lambda one: {"id": one.id, **token_facts(one)})
