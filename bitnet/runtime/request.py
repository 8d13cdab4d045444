"""The request for an answer: one record for the command line, HTTP and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bitnet.base.arguments import check_type
from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option
from bitnet.runtime.limits import (
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_STOPS,
    check_schema,
    check_text,
    check_value,
)
from bitnet.runtime.options import MAX_LOGPROBS, MAX_LOOKUP, SAMPLING, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bitnet.runtime.reasoning import ReasoningRules
    from bitnet.runtime.tool_formats import CallRules

__all__ = ["EVERYTHING", "Grammar", "Matcher", "Request", "check_messages", "check_prompt"]


EVERYTHING = 2**31 - 1  # of max_tokens: as many as there is room for


class Matcher(Protocol):
    """State of one answer in its grammar; ``runtime.structured`` implements it."""

    @property
    def finished(self) -> bool:
        """True if the answer is complete and nothing may follow it."""

    def next_ids(self) -> NDArray[np.intp]:
        """Ids that may come next, ascending; stop ids where the answer may end."""

    def accept(self, token: int) -> None:
        """Advance by *token*, one of those allowed."""

    def valid(self, tokens: Sequence[int]) -> int:
        """Number of leading *tokens* that the grammar accepts in sequence."""


class Grammar(Protocol):
    """A constraint that answers have to follow."""

    def start(self) -> Matcher:
        """The state before the first token of an answer."""


@dataclass(frozen=True)
class Request:
    """Request for one answer. A value out of its range is a :class:`UsageError` naming it.

    Attributes:
        max_tokens: most tokens to generate.
        stop: texts that end the answer and are not part of it.
        lookup: most tokens to draft per pass from the text so far. It changes the speed and never
            the answer.
        sampling: parameters of sampling.
        prompt: text to continue, or its ids.
        messages: a conversation to answer instead, ``{"role": ..., "content": ...}``, oldest first.
        tools: functions that the model may call in its answer to *messages*, in OpenAI's form.
        tool_choice: ``none``, ``auto``, ``required``, or ``{"type": "function", "function":
            {"name": ...}}``; with the last two the answer is a call that follows the schema.
        parallel_tool_calls: an answer may call several functions.
        template_variables: additional variables for the chat template.
        json_schema: the answer is JSON that follows it, as a mapping or as text.
        regex: the whole answer matches it.
        logprobs: number of alternatives to report for each token; ``None``: no log-probabilities.
        min_tokens: tokens before the first stop id is allowed.
        ignore_eos: continue the answer where the model would end it.
        embed: compute a vector instead of an answer, pooled as the model says, else by the mean.
        prompt_name: with *embed*, name of the model's prompt before the text; ``None``: its
            default.
        thinking: whether the model reasons first, for templates that can say so; ``None``: as the
            template does by itself.
        thinking_budget: most tokens of reasoning; ``None``: no limit of its own.
        separate_reasoning: the reasoning part of the answer to *messages* is not in its text.
        continue_final_message: the last of *messages* is the beginning of the answer, with its
            ``content`` and ``reasoning_content``; the answer is what follows it.
        stop_ids: token ids that end the answer; a :class:`LanguageModel` fills in its own.
        grammar: *json_schema* or *regex* for the tokens of one model; a :class:`LanguageModel`
            fills it in.
        calls: how to find calls in the answer; a :class:`LanguageModel` fills it in.
        reasoning: how to find reasoning in the answer; a :class:`LanguageModel` fills it in.
    """

    SECTION: ClassVar = "Answer"

    max_tokens: int = option(
        128, "most tokens to generate", synonyms=("max-new-tokens", "n-predict"), short="n",
        bounds=(1, None),
    )  # fmt: skip
    stop: list[str] = option([], "text that ends the answer; may be given several times")
    lookup: int = option(
        0, "draft up to this many tokens from the text so far; the answer stays the same",
        bounds=(0, MAX_LOOKUP),
    )  # fmt: skip
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompt: str | Sequence[int] = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True
    template_variables: Mapping[str, Any] | None = None
    json_schema: str | bool | Mapping[str, Any] | None = None
    regex: str | None = None
    logprobs: int | None = field(default=None, metadata={"bounds": (0, MAX_LOGPROBS)})
    min_tokens: int = field(default=0, metadata={"bounds": (0, None)})
    ignore_eos: bool = False
    embed: bool = False
    prompt_name: str | None = None
    thinking: bool | None = None
    thinking_budget: int | None = field(default=None, metadata={"bounds": (0, None)})
    separate_reasoning: bool = False
    continue_final_message: bool = False
    stop_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    calls: CallRules | None = None
    reasoning: ReasoningRules | None = None

    def __post_init__(self) -> None:
        """Check value ranges.

        Raises:
            UsageError: a value is out of its range, or two values contradict each other.
        """
        object.__setattr__(self, "stop", _stops(self.stop))
        check_bounds(self)
        check_type("sampling", self.sampling, "SamplingParams", SamplingParams)
        check_type("regex", self.regex, "a text or None", str, None)
        check_type("json_schema", self.json_schema, "a schema", str, bool, Mapping, None)
        for name in ("parallel_tool_calls", "ignore_eos", "thinking", "continue_final_message"):
            check_type(name, getattr(self, name), "true or false", bool, None)
        if self.tools or self.tool_choice is not None:
            from bitnet.runtime.tools import read_tools  # a command's defaults need none

            read_tools(self.tools, self.tool_choice)
        if self.json_schema is not None and self.regex is not None:
            raise UsageError(
                "json_schema and regex are both given", hint="leave one out", field="json_schema"
            )

    @classmethod
    def from_mapping(cls, entries: Mapping[str, Any], default: Request | None = None) -> Request:
        """The request that *entries* describe.

        Args:
            entries: fields of a request and of its sampling parameters; ``None``, and -1 where it
                has no other meaning, select the value of *default*.
            default: values of the fields that *entries* leave out.

        Raises:
            UsageError: an unknown field, or a value of the wrong type or out of its range.
        """
        default = default or cls()
        own: dict[str, Any] = {}
        sampling: dict[str, Any] = {}
        for name, value in entries.items():
            if name not in _JSON and name not in SAMPLING:
                raise UsageError(f"{name} is not a field of a request", field=name)
            if value is None or (value == -1 and name in _MINUS_ONE and type(value) is int):
                continue
            (own if name in _JSON else sampling)[name] = value
        if sampling:
            own["sampling"] = replace(default.sampling, **sampling)
        return replace(default, **own)

    @property
    def needs_grammar(self) -> bool:
        """True if a grammar has to be compiled before the answer begins."""
        constrained = self.json_schema is not None or self.regex is not None
        return constrained or self.tool_choice not in (None, "auto", "none")

    def check(self) -> None:
        """Check texts, counts, sizes and depths; every door does before it tokenizes anything.

        Raises:
            UsageError: one is out of its bounds; it names the field.
        """
        if isinstance(self.prompt, str):
            check_text("prompt", self.prompt)
        for name, most, entries in (
            ("messages", MAX_MESSAGES, self.messages),
            ("stop", MAX_STOPS, self.stop),
            ("logit_bias", MAX_BIASES, self.sampling.logit_bias),
        ):
            if len(entries or ()) > most:
                raise UsageError(f"{name} has more than {most:,} entries", field=name)
        for name in ("messages", "tool_choice", "template_variables"):
            check_value(name, getattr(self, name))
        check_value("stop", self.stop, nul=True)  # a model may write one
        if self.continue_final_message:
            self._check_begun()
        for name in ("tools", "regex"):
            check_schema(name, getattr(self, name))
        if not isinstance(self.json_schema, str):  # a text is read first, by ``Grammars``
            check_schema("json_schema", self.json_schema)

    def _check_begun(self) -> None:
        last = self.messages[-1] if self.messages else {}
        begun = last.get("content") or "", last.get("reasoning_content") or ""
        is_text = any(begun) and all(isinstance(text, str) for text in begun)
        if last.get("role") != "assistant" or not is_text or last.get("tool_calls"):
            raise UsageError(
                "continue_final_message: expected a text of the assistant as the last message",
                field="continue_final_message",
            )
        if self.needs_grammar:
            raise UsageError(
                "continue_final_message: an answer with a grammar cannot be continued",
                field="continue_final_message",
            )

    def choice(self, number: int) -> Request:
        """This request for answer *number* of several, with a seed of its own."""
        return replace(self, sampling=self.sampling.turn(number))


# Fields that a JSON object may have; the rest is derived.
_JSON = {
    *("prompt", "messages", "json_schema", "regex"),
    *("tools", "tool_choice", "parallel_tool_calls"),
    *("max_tokens", "min_tokens", "ignore_eos", "stop", "lookup", "logprobs"),
    *("thinking", "thinking_budget", "continue_final_message"),
}
_MINUS_ONE = {"seed", "top_k", "max_tokens"}  # -1 means the default in other programs


def check_messages(messages: Any) -> None:
    """Check the form of a conversation.

    Raises:
        UsageError: it is not a list of messages, each with a role and content; it says where.
    """
    if not isinstance(messages, (list, tuple)) or not all(
        isinstance(message, Mapping) for message in messages
    ):
        raise UsageError("messages is not a list of objects", field="messages")
    if not messages:
        raise UsageError("messages is empty", field="messages")
    for number, message in enumerate(messages):
        content, where = message.get("content"), f"messages.{number}"
        problem = ""
        if not isinstance(message.get("role"), str):
            problem = "role is not a text"
        elif content is None and message["role"] != "assistant":
            problem = "content is missing; only an assistant's message may be without"
        elif not isinstance(content, str | list | None):
            problem = "content is neither a text nor a list"
        if problem:
            raise UsageError(f"{where}: {problem}", field=where)


def _stops(given: Any) -> list[str]:
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, Sequence) or not all(isinstance(one, str) for one in stops):
        raise UsageError("stop is neither a text nor a list of texts", field="stop")
    return list(stops)


def check_prompt(text: str) -> None:
    """Check a prompt.

    Raises:
        UsageError: *text* is empty, or is not text.
    """
    if not text:
        raise UsageError("the prompt is empty", hint="pass some text: --prompt 'Once upon a time'")
    check_text("the prompt", text, field="prompt")
