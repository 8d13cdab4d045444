"""OpenAI's requests as jobs, and answers in OpenAI's shapes. Nothing here waits or sends."""

from __future__ import annotations

import base64
import secrets
import time
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from bitnet.errors import InvalidFormat, UsageError
from bitnet.runtime.generation import GenerationParams
from bitnet.runtime.options import SamplingParams
from bitnet.runtime.text import TokenLogprob, check_prompt, token_logprob
from bitnet.server.faults import Refused
from bitnet.server.worker import Delta, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.runtime.generation import Grammar, Piece
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.server.shapes import (
        ChatRequest,
        CompletionRequest,
        EmbeddingRequest,
        InferenceRequest,
    )

__all__ = ["Answer", "Asked", "chat_jobs", "completion_jobs", "inference_job", "texts_of"]

MAX_PROMPTS = 64
DEFAULT_TOKENS = 128
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
_PLAIN = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_FINISH = {"context": "length", "deadline": "length", "cancelled": "stop"}


@dataclass(frozen=True)
class Asked:
    """What the jobs of one request have in common."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, prefix: str, model: str) -> Asked:
        """A request with an id that no other has."""
        return cls(f"{prefix}-{secrets.token_hex(12)}", model)


@dataclass
class Answer:
    """One choice while it is written.

    Attributes:
        prompt_tokens: ids of its prompt.
        text: what there is of it.
        pieces: its tokens, for log-probabilities.
        tokens: how many ids were generated.
        cached_tokens: ids of the prompt that an earlier request had computed, known at the end.
        finish: OpenAI's finish reason once it has ended.
    """

    prompt_tokens: int
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        """Count *delta* in.

        Raises:
            Refused: it is an error.
        """
        if delta.error is not None:
            raise delta.error
        self.text += delta.text
        if delta.piece is not None and delta.piece.token is not None:
            self.tokens += 1
            if delta.piece.finish_reason != "stop":
                self.pieces.append(delta.piece)
        if delta.finish is not None:
            self.finish = _FINISH.get(delta.finish, delta.finish)
            self.cached_tokens = delta.reused


def usage(answers: Sequence[Answer], *, choices: int) -> dict[str, Any]:
    """Tokens that *answers* took; a prompt counts once for its choices.

    Args:
        answers: all of them, those of a prompt together.
        choices: how many each prompt has.
    """
    firsts = answers[::choices]
    prompt = sum(answer.prompt_tokens for answer in firsts)
    written = sum(answer.tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
    }


def inference_job(
    request: InferenceRequest, model: LanguageModel, request_id: str, *, limit: int
) -> Job:
    """The job of ``/v1/inference``.

    Raises:
        Refused: something in it cannot be.
    """
    return _job(
        request_id, _encoded(request.prompt, model), model,
        max_tokens=_bounded(request.max_tokens or min(DEFAULT_TOKENS, limit), limit),
        sampling=_sampling(request, model, temperature=0.0),
        stops=_stops(request.stop),
    )  # fmt: skip


def completion_jobs(
    request: CompletionRequest, model: LanguageModel, asked: Asked, *, limit: int
) -> list[Job]:
    """The jobs of ``/v1/completions``: *n* for each prompt, those of a prompt together.

    Raises:
        Refused: something in it cannot be.
    """
    prompts = texts_of(request.prompt)
    choices = request.n or 1
    return [
        _job(
            asked.id, _encoded(prompt, model), model,
            max_tokens=_bounded(request.max_tokens or min(DEFAULT_COMPLETION_TOKENS, limit), limit),
            sampling=_sampling(request, model, temperature=1.0, choice=choice),
            stops=_stops(request.stop),
            logprobs=request.logprobs,
        )
        for prompt in prompts
        for choice in range(choices)
    ]  # fmt: skip


def chat_jobs(
    request: ChatRequest,
    model: LanguageModel,
    asked: Asked,
    *,
    limit: int,
    share: int,
    grammar: Grammar | None = None,
) -> list[Job]:
    """The jobs of ``/v1/chat/completions``, one for each choice.

    Args:
        request: what was sent.
        model: what answers.
        asked: names the answer.
        limit: tokens an answer may have.
        share: positions one answer may reserve unasked, so that the others find memory.
        grammar: what the answer must look like.

    Raises:
        Refused: something in it cannot be.
        BitnetError: the model's chat template does not take the conversation.
    """
    from bitnet.tokenizer.chat import chat_template

    template = chat_template(model.tokenizer)
    try:
        text = template.render(
            [message.model_dump(exclude_none=True) for message in request.messages],
            tools=None if request.tool_choice == "none" else request.tools,
            variables=_template_variables(request.chat_template_kwargs),
        )
    except InvalidFormat as error:  # on what the client sent, as the template itself is parsed
        raise Refused(400, error.message, param="messages") from error
    ids = model.tokenizer.encode(text, add_special=False)  # the template writes BOS itself
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    room = max(1, model.engine.context - len(ids))
    unasked = min(room, limit, max(DEFAULT_TOKENS, share - len(ids)))
    wanted = request.max_completion_tokens or request.max_tokens or unasked
    return [
        _job(
            asked.id, ids, model,
            max_tokens=_bounded(wanted, limit),
            sampling=_sampling(request, model, temperature=1.0, choice=choice),
            stops=_stops(request.stop),
            logprobs=logprobs,
            grammar=grammar,
        )
        for choice in range(request.n or 1)
    ]  # fmt: skip


def texts_of(given: Any, field: str = "prompt") -> list[str | list[int]]:
    """The prompts in any of the four forms OpenAI takes them in.

    Args:
        given: what *field* of the request holds.
        field: for the message.

    Raises:
        Refused: there are none, or too many.
    """
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [list(given)]
    if not 0 < len(given) <= MAX_PROMPTS:
        raise Refused(400, f"{len(given)} texts, expected 1 to {MAX_PROMPTS}", param=field)
    return list(given)


def chat_reply(
    asked: Asked, answers: Sequence[Answer], model: LanguageModel, *, logprobs: bool
) -> dict[str, Any]:
    """The whole reply of ``/v1/chat/completions``."""
    counts = usage(answers, choices=len(answers))
    return _reply(asked, "chat.completion", usage=counts) | {
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": _chat_logprobs(answer.pieces, model) if logprobs else None,
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
    }


def chat_chunk(
    asked: Asked,
    index: int,
    delta: dict[str, Any],
    *,
    finish: str | None = None,
    logprobs: Any = None,
) -> dict[str, Any]:
    """One event of a streamed chat."""
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return _reply(asked, "chat.completion.chunk") | {"choices": [choice]}


def completion_reply(
    asked: Asked,
    answers: Sequence[Answer],
    model: LanguageModel,
    *,
    logprobs: bool,
    choices: int,
    echoed: Sequence[str],
) -> dict[str, Any]:
    """The whole reply of ``/v1/completions``."""
    return _reply(asked, "text_completion", usage=usage(answers, choices=choices)) | {
        "choices": [
            completion_choice(
                index, echoed[index] + answer.text, answer.finish,
                _text_logprobs(answer.pieces, model) if logprobs else None,
            )
            for index, answer in enumerate(answers)
        ]
    }  # fmt: skip


def completion_choice(
    index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One choice of ``/v1/completions``."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def completion_chunk(
    asked: Asked, index: int, text: str, finish: str | None, logprobs: Any = None
) -> dict[str, Any]:
    """One event of a streamed completion."""
    return _reply(asked, "text_completion") | {
        "choices": [completion_choice(index, text, finish, logprobs)]
    }


def usage_chunk(asked: Asked, kind: str, counts: dict[str, Any]) -> dict[str, Any]:
    """The event with the token counts that a stream ends with when it is asked to."""
    return _reply(asked, kind, usage=counts) | {"choices": []}


def embeddings_reply(
    request: EmbeddingRequest, rows: Sequence[NDArray[np.float32]], model: str, tokens: int
) -> dict[str, Any]:
    """The reply of ``/v1/embeddings``."""
    encoded: list[Any] = [
        base64.b64encode(row.astype("<f4").tobytes()).decode()
        if request.encoding_format == "base64"
        else [float(value) for value in row]
        for row in rows
    ]
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in enumerate(encoded)
    ]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": counts}


def chat_logprobs(piece: Piece, model: LanguageModel) -> dict[str, Any]:
    """Log-probabilities of one streamed token."""
    return _chat_logprobs([piece], model)


def text_logprobs(piece: Piece, model: LanguageModel) -> dict[str, Any]:
    """As :func:`chat_logprobs`, in the form of ``/v1/completions``."""
    return _text_logprobs([piece], model)


def _reply(asked: Asked, kind: str, *, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    reply = {"id": asked.id, "object": kind, "created": asked.created, "model": asked.model}
    return reply | ({"usage": usage} if usage is not None else {})


def _job(
    request_id: str,
    ids: Sequence[int],
    model: LanguageModel,
    *,
    max_tokens: int,
    sampling: SamplingParams,
    stops: Sequence[str],
    logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> Job:
    context = model.engine.context
    if len(ids) > context:
        raise Refused(
            400,
            f"the prompt has {len(ids):,} tokens, the context holds {context:,}",
            code="context_length_exceeded",
        )
    params = GenerationParams(
        max_tokens=max_tokens,
        stop_ids=model.tokenizer.stop_ids,
        sampling=sampling,
        logprobs=logprobs,
        grammar=grammar,
    )
    return Job(request_id, ids, params, stops)


def _encoded(prompt: str | list[int], model: LanguageModel) -> list[int]:
    if isinstance(prompt, str):
        try:
            check_prompt(prompt)
        except UsageError as error:
            raise Refused(400, error.message, param="prompt") from None
        return model.tokenizer.encode(prompt)
    size = model.config.vocab_size
    if not prompt or max(prompt) >= size:
        raise Refused(400, f"token ids must be below {size:,}, one at least", param="prompt")
    return prompt


def _bounded(wanted: int, limit: int) -> int:
    if wanted > limit:
        raise Refused(
            400,
            f"{wanted:,} tokens asked for, this worker writes at most {limit:,}",
            param="max_tokens",
        )
    return wanted


def _stops(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def _sampling(
    request: Any, model: LanguageModel, *, temperature: float, choice: int = 0
) -> SamplingParams:
    """The sampling of one choice; without a seed each answer gets another one."""
    given = {name: value for name in _PLAIN if (value := getattr(request, name)) is not None}
    return SamplingParams(
        temperature=temperature if request.temperature is None else request.temperature,
        seed=request.seed,
        logit_bias=_bias(request.logit_bias or {}, model.config.vocab_size),
        **given,
    ).turn(choice)


def _bias(given: dict[str, float], size: int) -> dict[int, float]:
    bias = {}
    for name, value in given.items():
        if not (name.isascii() and name.isdecimal() and int(name[:20]) < size):
            raise Refused(400, f"{name[:40]!r} is no token id below {size:,}", param="logit_bias")
        bias[int(name)] = value
    return bias


def _template_variables(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Variables for the chat template, without those that are not a client's to set."""
    own = {
        "self", "messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt",
    }  # fmt: skip
    wrong = own.intersection(given or ())
    if wrong:
        raise Refused(
            400, f"{', '.join(sorted(wrong))} cannot be set", param="chat_template_kwargs"
        )
    return given


def _chat_logprobs(pieces: Sequence[Piece], model: LanguageModel) -> dict[str, Any]:
    content = [
        _token_facts(token) | {"top_logprobs": [_token_facts(other) for other in token.top]}
        for token in _described(pieces, model)
    ]
    return {"content": content, "refusal": None}


def _token_facts(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


def _text_logprobs(pieces: Sequence[Piece], model: LanguageModel) -> dict[str, Any]:
    tokens = _described(pieces, model)
    lengths = [len(token.text) for token in tokens]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{one.text: one.logprob for one in token.top} for token in tokens],
        "text_offset": list(accumulate(lengths, initial=0))[:-1],
    }


def _described(pieces: Sequence[Piece], model: LanguageModel) -> list[TokenLogprob]:
    return [token_logprob(model.tokenizer, piece) for piece in pieces if piece.token is not None]
