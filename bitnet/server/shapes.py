"""Types of requests, by which FastAPI validates and documents them.

Names are those of OpenAI's API, and of vLLM and llama.cpp's server where it has none. A field that
would change the answer is either supported or refused by name, as is every unknown one. Ranges are
checked by :class:`bitnet.runtime.request.Request`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from bitnet.runtime.options import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "InferenceRequest",
    "Message",
    "ResponseFormat",
    "Shape",
    "StreamEnd",
    "TokenId",
    "TokenizeRequest",
]

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_MESSAGES = 4096

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[int, Field(description="tokens to write at most; -1: the default")] | None
Stops = Annotated[
    str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None,
    Field(description="texts that end the answer and are not part of it"),
]


class Shape(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), strict=True)


class StreamEnd(Shape):
    """Options for the end of a stream."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


def _sampling_fields() -> dict[str, Any]:
    """Sampling parameters, with their help and bounds."""
    kinds: dict[str, Any] = {"float": float, "int": int, "int | None": int}
    found: dict[str, Any] = {}
    for entry in fields(SamplingParams):
        kind = kinds.get(str(entry.type), dict[str, float])
        low, high = entry.metadata["bounds"] or (None, None)
        bounds = {} if low is None else {"minimum": low, "maximum": high}
        about = Field(description=entry.metadata["help"], json_schema_extra=bounds)
        found[entry.name] = (Annotated[kind, about] | None, None)
    return found


_Drawn: Any = create_model("_Drawn", __base__=Shape, **_sampling_fields())


class _Sampling(_Drawn):  # type: ignore[misc]
    """Fields for sampling, ending and constraining an answer."""

    model: str | None = None
    stop: Stops = None
    max_tokens: Tokens = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    repeat_penalty: float | None = Field(None, description="another name of repetition_penalty")
    json_schema: dict[str, Any] | bool | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None, description="json, regex or choice; json_object"
    )

    unserved: ClassVar[tuple[str, ...]] = ("grammar", "guided_grammar", "reasoning_effort")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unserved(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name in cls.unserved:
            if given.get(name) not in (None, "", [], {}, False):
                raise ValueError(f"{name} is not served")
        return {name: value for name, value in given.items() if name not in cls.unserved}


class InferenceRequest(_Sampling):
    """The plain form: a text, and how many tokens to write."""

    prompt: str
    stream: bool = False


class _OpenAI(_Sampling):
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamEnd | None = None
    # Fields without effect on the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    cache_prompt: bool | None = None

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true")
        return self


class CompletionRequest(_OpenAI):
    """``/v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    unserved: ClassVar[tuple[str, ...]] = (*_Sampling.unserved, "suffix")

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of must be n: answers are not ranked")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo has no log-probabilities: those of a prompt are not computed")
        return self


class ResponseFormat(Shape):
    """Format of the answer: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class Message(Shape):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="allow")  # templates read tool_calls, name and others

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(_OpenAI):
    """``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = Field(
        None,
        description="none: the model is not told of the tools; required, or a function by its "
        "name: the answer is a call that follows the function's schema",
    )
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    unserved: ClassVar[tuple[str, ...]] = (
        *_Sampling.unserved, "functions", "function_call", "audio", "prediction", "verbosity",
        "web_search_options",
    )  # fmt: skip

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: true")
        return self


class TokenizeRequest(Shape):
    """A text to turn into ids."""

    content: str
    model: str | None = None
    add_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Shape):
    """Ids to turn into text."""

    tokens: list[TokenId]
    model: str | None = None


class EmbeddingRequest(Shape):
    """``/v1/embeddings``."""

    input: str | list[str] | list[TokenId] | list[list[TokenId]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    output_dtype: Annotated[
        Literal["float", "int8", "uint8", "binary", "ubinary"],
        Field(description="bits of a vector's numbers; binary packs 8 signs into a byte"),
    ] = "float"
    prompt_name: Annotated[
        str | None, Field(description="the model's prompt that stands before texts, such as query")
    ] = None
    normalize: Annotated[bool, Field(description="scale vectors to length one")] = True
    user: str | None = None
