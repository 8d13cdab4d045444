"""The request for an answer: one record for the command line, HTTP and batches, and its bounds.

A value within them can be encoded as UTF-8, walked recursively and compiled: grammars of the
largest schemas were measured in time and in depth.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from bitnet.base import settings
from bitnet.base.errors import UsageError, WrongType
from bitnet.base.options import check_bounds, check_type, option, wrong_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bitnet.formats.generation import GenerationSettings
    from bitnet.runtime.structured import Grammar
    from bitnet.runtime.tool_formats import CallRules

    Method = TypeVar("Method", bound=Callable[..., Any])

EVERYTHING = 2**31 - 1  # of max_tokens: as many as there is room for
DEFAULT_SEED = 42
MAX_BIAS = 1e9
MAX_LOGPROBS = 100
MAX_LOOKUP = 15  # drafted tokens and the last one fill a batch of the decode kernels
MAX_MESSAGES = 4096
MAX_STOPS = 16  # each is searched for at every token
MAX_BIASES = 1024
MAX_DEPTH = 100  # of JSON; the grammar library reads 127
MAX_GRAMMAR = 1 << 18  # characters of a schema or a regular expression
MAX_PROPERTIES = 4096  # of all objects of a schema; compile time grows with their square
MAX_REFERENCES = 512  # definitions that a schema refers to; each may be a level of the next one
#: Names under which clients send the reasoning of a message, ours first.
REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
MAX_REPEATS = 4096  # of all patterns; compile time grows with their square


@dataclass(frozen=True)
class ReasoningRules:
    """Rules for finding the reasoning part of an answer."""

    opening: str  # text before it
    closing: str  # text after it
    begun: bool  # the prompt ends with *opening*
    budget: int | None = None  # tokens after which *closing* is forced; None: no limit
    tokens: tuple[int, int] | None = None  # ids of *opening* and *closing*, if each is one
    shown: Mapping[int, str] = field(default_factory=dict)  # control tokens read as text

    def next_token(self, written: Sequence[int]) -> int | None:
        """The token that must follow *written*, an answer so far; ``None``: any may."""
        if self.budget is None or self.tokens is None or len(written) < self.budget:
            return None
        opening, closing = self.tokens
        if closing in written or not (self.begun or opening in written):
            return None
        return closing


def _biases(entries: Mapping[Any, float] | Iterable[str]) -> dict[int, float]:
    """Biases from ``ID=BIAS`` texts, or from a mapping whose ids may be texts, as in JSON."""
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise wrong_type("logit_bias", entries, "a mapping from token ids to numbers")
    if not isinstance(entries, Mapping):
        entries = dict(entry.partition("=")[::2] for entry in entries)
    biases = {}
    for token, bias in entries.items():
        try:
            number = float(bias)
        except (ValueError, TypeError):
            number = math.nan
        if not re.fullmatch("[0-9]{1,19}", str(token)) or not number <= MAX_BIAS:
            shown = f"{token}={bias}".removesuffix("=")[:60]
            raise UsageError(
                f"logit_bias is {shown!r}, expected a token id and a number up to {MAX_BIAS:g}",
                hint="for example: --logit-bias 42=-inf",
                field="logit_bias",
            )
        biases[int(token)] = number
    return biases


_INNER = {"inner": True}  # metadata of a field that no JSON object may set


@dataclass(frozen=True)
class Request:
    """Request for one answer. A value out of its range is a :class:`UsageError` naming it."""

    SECTIONS: ClassVar = {"Answer": ("max_tokens", "stop", "lookup"), "Sampling": ()}

    max_tokens: int = option(
        128, "most tokens to generate", synonyms=("max-new-tokens", "n-predict"), short="n",
        bounds=(1, None),
    )  # fmt: skip
    stop: list[str] = option([], "text that ends the answer; may be given several times")
    lookup: int = option(
        MAX_LOOKUP,
        "draft up to this many tokens from the text so far, while that saves time; the answer "
        "stays the same",
        bounds=(0, MAX_LOOKUP),
    )  # fmt: skip
    temperature: float = option(
        0.0, "randomness; 0: always the most likely token", synonyms=("temp",), bounds=(0.0, 100.0)
    )
    top_k: int = option(0, "sample from this many most likely tokens; 0: all", bounds=(0, 2**31))
    top_p: float = option(
        1.0, "sample from the most likely tokens with this total probability", bounds=(0.0, 1.0)
    )
    min_p: float = option(
        0.0, "drop tokens below this share of the most likely one's probability", bounds=(0.0, 1.0)
    )
    repetition_penalty: float = option(
        1.0, "lower the probability of earlier tokens; 1: off", synonyms=("repeat-penalty",),
        bounds=(1e-3, 100.0),
    )  # fmt: skip
    frequency_penalty: float = option(
        0.0,
        "subtract this from the logit for each time a token was generated",
        bounds=(-100.0, 100.0),
    )
    presence_penalty: float = option(
        0.0, "subtract this from the logit of each generated token, once", bounds=(-100.0, 100.0)
    )
    seed: int | None = option(
        None, "random seed; default: BITNET_SEED, otherwise random",
        bounds=(0, 2**64 - 1),
    )  # fmt: skip
    logit_bias: Mapping[int, float] = option(
        [],
        "add this to the logit of a token id, -inf forbids it; may be given several times",
        metavar="ID=BIAS",
    )
    prompt: str | Sequence[int] = ""  # text to continue, or its ids
    #: A conversation to answer instead, ``{"role": ..., "content": ...}``, oldest first.
    messages: Sequence[Mapping[str, Any]] | None = None
    #: Functions that the model may call in its answer to *messages*, in OpenAI's form.
    tools: Sequence[Mapping[str, Any]] | None = None
    #: ``none``, ``auto``, ``required``, or ``{"type": "function", "function": {"name": ...}}``;
    #: with the last two the answer is a call that follows the schema.
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True  # an answer may call several functions
    #: More for the chat template.
    template_variables: Mapping[str, Any] | None = field(default=None, metadata=_INNER)
    json_schema: str | bool | Mapping[str, Any] | None = None  # the answer is JSON that follows it
    regex: str | None = None  # the whole answer matches it
    #: Number of alternatives to report for each token; ``None``: no log-probabilities.
    logprobs: int | None = field(default=None, metadata={"bounds": (0, MAX_LOGPROBS)})
    #: Tokens before the first stop id is allowed.
    min_tokens: int = field(default=0, metadata={"bounds": (0, None)})
    ignore_eos: bool = False  # continue the answer where the model would end it
    #: Name of the model's adapter that the answer is run with.
    lora: str = field(default="", metadata=_INNER)
    #: A vector instead of an answer, pooled as the model says, else by the mean.
    embed: bool = field(default=False, metadata=_INNER)
    #: Of the model's prompt before a text to embed; ``None``: its own.
    prompt_name: str | None = field(default=None, metadata=_INNER)
    thinking: bool | None = None  # reason first, for templates that can say so; None: as they do
    #: Most tokens of reasoning; ``None``: no limit of its own.
    thinking_budget: int | None = field(default=None, metadata={"bounds": (0, None)})
    #: The reasoning part is not in the answer's text.
    separate_reasoning: bool = field(default=False, metadata=_INNER)
    #: The last of *messages* is the beginning of the answer, with its ``content`` and
    #: ``reasoning_content``; the answer is what follows it.
    continue_final_message: bool = False
    # The rest is what a LanguageModel makes of these for its tokens.
    stop_ids: frozenset[int] = field(default=frozenset(), metadata=_INNER)
    suppressed: frozenset[int] = field(default=frozenset(), metadata=_INNER)  # in no answer
    suppressed_first: frozenset[int] = field(default=frozenset(), metadata=_INNER)  # not its first
    grammar: Grammar | None = field(default=None, metadata=_INNER)
    calls: CallRules | None = field(default=None, metadata=_INNER)
    reasoning: ReasoningRules | None = field(default=None, metadata=_INNER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        check_bounds(self)
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
        """The request that *entries* describe; *default* has the fields that they leave out.

        ``None``, and -1 where it has no other meaning, stand for the default.
        """
        changes: dict[str, Any] = {}
        for name, value in entries.items():
            if name not in _JSON:
                raise UsageError(f"{name} is not a field of a request", field=name)
            if value is None or (value == -1 and name in _MINUS_ONE and type(value) is int):
                continue
            changes[name] = value
        return replace(default or cls(), **changes)

    @property
    def needs_grammar(self) -> bool:
        """True if a grammar has to be compiled before the answer begins."""
        constrained = self.json_schema is not None or self.regex is not None
        return constrained or self.tool_choice not in (None, "auto", "none")

    def check(self) -> None:
        """Check texts, counts, sizes and depths; every door does before it tokenizes anything."""
        if isinstance(self.prompt, str):
            check_text("prompt", self.prompt)
        for name, most, entries in (
            ("messages", MAX_MESSAGES, self.messages),
            ("stop", MAX_STOPS, self.stop),
            ("logit_bias", MAX_BIASES, self.logit_bias),
        ):
            if len(entries or ()) > most:
                raise UsageError(f"{name} has more than {most:,} entries", field=name)
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens:,}, max_tokens is {self.max_tokens:,}",
                field="min_tokens",
            )
        for name in ("messages", "tool_choice", "template_variables"):
            check_value(name, getattr(self, name))
        check_value("stop", self.stop, nul=True)  # a model may write one
        if self.continue_final_message:
            self._check_begun()
        for name in ("tools", "regex"):
            check_schema(name, getattr(self, name))
        if not isinstance(self.json_schema, str):  # a text is read first
            check_schema("json_schema", self.json_schema)

    def _check_begun(self) -> None:
        last = self.messages[-1] if self.messages else {}
        begun = last.get("content") or "", reasoning_of(last)
        is_text = any(begun) and all(isinstance(text, str) for text in begun)
        problem = ""
        if last.get("role") != "assistant" or not is_text or last.get("tool_calls"):
            problem = "expected a text of the assistant as the last message"
        elif self.needs_grammar:
            problem = "an answer with a grammar cannot be continued"
        if problem:
            name = "continue_final_message"
            raise UsageError(f"{name}: {problem}", field=name)

    def with_settings(self, settings_of_model: GenerationSettings) -> Request:
        """This request without the ids that the files of its model suppress."""
        return replace(
            self,
            suppressed=settings_of_model.suppressed,
            suppressed_first=settings_of_model.suppressed_first,
        )

    def actual_seed(self) -> int:
        """Effective seed: as given, ``BITNET_SEED``, 42 in reproducible runs, or a random one."""
        given = self.seed if self.seed is not None else settings.seed()
        if given is not None:
            return given
        return DEFAULT_SEED if settings.deterministic() else secrets.randbits(62)

    def choice(self, number: int) -> Request:
        """This request for answer *number* of several, with a seed of its own."""
        return replace(self, seed=(self.actual_seed() + number) % 2**64)


_OPTIONS = [entry.name for entry in fields(Request) if "help" in entry.metadata]
#: Fields of a request that say how a token is chosen: the options that are not about the answer.
SAMPLING = tuple(name for name in _OPTIONS if name not in Request.SECTIONS["Answer"])
Request.SECTIONS["Sampling"] = SAMPLING
_JSON = {entry.name for entry in fields(Request) if not entry.metadata.get("inner")}
_MINUS_ONE = {"seed", "top_k", "max_tokens"}  # -1 means the default in other programs


# --- keywords in Python --------------------------------------------------------------------------


class AnswerOptions(TypedDict, total=False):
    """Keywords of ``generate``, ``stream``, ``chat`` and their async twins.

    ``None`` means the default. *max_tokens* may cut an answer with a grammar short.
    """

    max_tokens: int | None  # most tokens to generate (128)
    min_tokens: int | None  # tokens before the first stop id is allowed (0)
    stop: str | Sequence[str] | None  # texts that end the answer and are not part of it
    lookup: int | None  # most tokens to draft per pass; never changes the answer (15)
    json_schema: str | bool | Mapping[str, Any] | None  # the answer is JSON that follows it
    regex: str | None  # the whole answer matches it
    logprobs: int | None  # number of alternatives to report for each token
    temperature: float | None  # randomness; 0, the default, always chooses the most likely token
    top_k: int | None  # choose among this many most likely tokens; 0: all
    top_p: float | None  # choose among the most likely tokens with this share of the probability
    min_p: float | None  # leave out tokens less likely than this share of the most likely one
    repetition_penalty: float | None  # make tokens of the text so far less likely; 1: off
    frequency_penalty: float | None  # the same, for each time that a token was generated
    presence_penalty: float | None  # the same, once for each token that was generated
    seed: int | None  # of the random choices; ``BITNET_SEED``, otherwise random
    logit_bias: Mapping[int, float] | None  # numbers added to the logits of token ids


def with_answer_options(method: Method) -> Method:
    """*method*, whose ``**options`` are :class:`AnswerOptions`, with each one in its signature.

    ``help`` and the completion of notebooks read the signature.
    """
    signature = inspect.signature(method)
    before = [entry for entry in signature.parameters.values() if entry.name != "options"]
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=entry.__forward_arg__
        )
        for name, entry in AnswerOptions.__annotations__.items()
    ]
    method.__signature__ = signature.replace(parameters=[*before, *keywords])  # type: ignore[attr-defined]
    return method


def request_of(prompt: str | Sequence[int], options: AnswerOptions) -> Request:
    """The request for the continuation of *prompt*."""
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in values:
        if name not in AnswerOptions.__annotations__:
            listed = ", ".join(AnswerOptions.__annotations__)
            raise WrongType(f"{name!r} is not an option of an answer: {listed}")
    return Request(prompt=prompt, **values)


# --- checks: a UsageError names the field that is wrong -------------------------------------------


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning of *message*, under whichever name a client sends it; empty if none."""
    texts = [message.get(name) for name in REASONING_NAMES]
    return next((text for text in texts if isinstance(text, str) and text), "")


def check_messages(messages: Any) -> None:
    """Check the form of a conversation."""
    are_objects = isinstance(messages, list | tuple) and all(
        isinstance(message, Mapping) for message in messages
    )
    if not are_objects or not messages:
        problem = "empty" if are_objects else "not a list of objects"
        raise UsageError(f"messages is {problem}", field="messages")
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
    if isinstance(stops, Sequence) and all(isinstance(one, str) for one in stops):
        return list(stops)
    raise UsageError("stop is neither a text nor a list of texts", field="stop")


def check_prompt(text: str) -> None:
    """Check a prompt."""
    if not text:
        raise UsageError("the prompt is empty", hint="pass some text: --prompt 'Once upon a time'")
    check_text("the prompt", text, field="prompt")


def check_text(name: str, text: str, *, field: str = "", nul: bool = False) -> None:
    """Check that *text* is text: no half of a surrogate pair, no NUL unless *nul*."""
    field = field or name
    if "\0" in text and not nul:
        raise UsageError(
            f"{name} has a NUL character at position {text.index(chr(0)):,}",
            hint="pass text, not a binary file",
            field=field,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} has half a surrogate pair at position {error.start:,}, which is not text",
            field=field,
        ) from None


def check_value(name: str, value: Any, *, nul: bool = False) -> None:
    """Check the texts in *value*, as JSON has it, and how deep it is nested."""
    for part, depth in _parts(value):
        if depth > MAX_DEPTH:
            raise UsageError(f"{name} is nested more than {MAX_DEPTH} deep", field=name)
        if isinstance(part, str):
            check_text(name, part, nul=nul)


def check_schema(name: str, value: Any) -> None:
    """Check the size of *value*, schemas or a regular expression that become a grammar."""
    check_value(name, value)
    characters = properties = repeats = 0
    references = set()
    for part, _ in _parts({"pattern": value} if isinstance(value, str) else value):
        characters += len(part) + 4 if isinstance(part, str) else 4
        if not isinstance(part, Mapping):
            continue
        own, pattern, target = (part.get(key) for key in ("properties", "pattern", "$ref"))
        properties += len(own) if isinstance(own, Mapping) else 0
        references.add(target if isinstance(target, str) else None)
        by_pattern = part.get("patternProperties")
        for text in (pattern, *(by_pattern if isinstance(by_pattern, Mapping) else ())):
            repeats += sum(map(text.count, "?*+{")) if isinstance(text, str) else 0
    for count, most, what in (
        (characters, MAX_GRAMMAR, "characters"),
        (properties, MAX_PROPERTIES, "properties"),
        (len(references), MAX_REFERENCES, "definitions referred to"),
        (repeats, MAX_REPEATS, "repetitions in patterns"),
    ):
        if count > most:
            raise UsageError(f"{name} is too large: a grammar may have {most:,} {what}", field=name)


def read_schema(schema: str | bool | Mapping[str, Any]) -> Mapping[str, Any]:
    """*schema* as an object."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"the JSON schema is not JSON: {error}",
                hint="""--json-schema '{"type": "object"}', or the name of a file""",
            ) from None
    if schema is not True and not isinstance(schema, dict):
        problem = f"a JSON schema is an object or true, not {json.dumps(schema)[:40]}"
        raise UsageError(problem, hint="""--json-schema '{"type": "object"}'""")
    check_schema("json_schema", schema)
    return {} if schema is True else schema  # the library sets a style on objects only


def _parts(value: Any) -> Iterator[tuple[Any, int]]:
    """Everything in *value*, keys too, with its depth; without recursion."""
    left = [(value, 0)]
    while left:
        part, depth = left.pop()
        yield part, depth
        if depth > MAX_DEPTH:
            continue  # the caller refuses it
        if isinstance(part, Mapping):
            for key, inner in part.items():
                left += ((key, depth), (inner, depth + 1))
        elif isinstance(part, list | tuple):
            left += ((inner, depth + 1) for inner in part)
