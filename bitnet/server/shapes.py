"""What clients send, as types; FastAPI checks requests by them and documents them.

Names, ranges and defaults are those of OpenAI's API. Fields that it lacks and other local servers
have (``top_k``, ``min_p``, ``repetition_penalty``) keep the names used there. Fields that would
change the answer and are not served are refused; unknown ones are ignored, as every such server
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
    "StreamOptions",
    "TokenizeRequest",
]

MAX_CHOICES = 8
MAX_STOPS = 16
MAX_MESSAGES = 4096

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stops = Annotated[
    str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None,
    Field(description="texts that end the answer and are no part of it"),
]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=(), strict=True)


class StreamOptions(_Shape):
    """What a stream ends with."""

    include_usage: bool = False


class _Sampling(_Shape):
    """How tokens are chosen."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=100)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-1000, le=1000)]] | None = None


class InferenceRequest(_Sampling):
    """The plain form: a text, and how many tokens to write."""

    prompt: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Stops = None
    stream: bool = False


class _OpenAI(_Sampling):
    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    unserved: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unserved(cls, given: Any) -> Any:
        for name in cls.unserved if isinstance(given, dict) else ():
            if given.get(name) not in (None, "", [], {}, False):
                raise ValueError(f"{name} is not served")
        return given

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream: true")
        return self


class CompletionRequest(_OpenAI):
    """``/v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    unserved: ClassVar[tuple[str, ...]] = ("suffix",)

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of must be n: answers are not ranked")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo has no log-probabilities: those of a prompt are not computed")
        return self


class ResponseFormat(_Shape):
    """What the answer must be: any text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class Message(_Shape):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="allow")  # templates read tool_calls, name and others

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing; only an assistant's message may be without")
        return self


class ChatRequest(_OpenAI):
    """``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = Field(
        None, description="none: the model is not told of the tools; it is never made to call one"
    )
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    unserved: ClassVar[tuple[str, ...]] = ("functions", "function_call", "audio")

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: true")
        return self


class TokenizeRequest(_Shape):
    """A text to turn into ids."""

    content: str
    add_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(_Shape):
    """Ids to turn into text."""

    tokens: list[TokenId]


class EmbeddingRequest(_Shape):
    """``/v1/embeddings``."""

    input: str | list[str] | list[TokenId] | list[list[TokenId]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
