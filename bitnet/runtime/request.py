"""The request for an answer: one record for the command line, HTTP and batches, and its bounds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.base.options import check_type, option
from bitnet.runtime.chain_options import BY_THE_MODEL, ChainOptions, Sampling
from bitnet.runtime.request_checks import (
    biases_of,
    check_messages,
    check_schema,
    check_text,
    check_value,
    check_variables,
    is_call_required,
    list_texts,
    reasoning_of,
)

if TYPE_CHECKING:
    from bitnet.formats.generation import GenerationSettings, SamplingDefault
    from bitnet.runtime.reasoning_budget import BudgetRules
    from bitnet.runtime.repetitions import Breakers
    from bitnet.runtime.structured import Grammar
    from bitnet.runtime.tool_formats import CallRules


EVERYTHING = 2**31 - 1  # as max_tokens: as many tokens as there is room for
DEFAULT_SEED = 42
DEFAULT_TOKENS = 128  # most tokens of an answer for which no limit is set
MAX_LOGPROBS = 100
MAX_LOOKUP = 15  # drafted tokens and the last one fill a batch of the decode kernels
MAX_MESSAGES = 4096
MAX_STOPS = 16  # each is searched for at every token
MAX_BIASES = 1024

_INNER = {"inner": True}  # metadata of a field that JSON cannot set
_SEED_BITS = 53  # of a drawn seed: every reader of JSON keeps such integers exactly
_DEFAULT_IS_MINUS_ONE = {"seed", "max_tokens"}  # -1 means the default in other programs


@dataclass(frozen=True)
class ReasoningRules:
    """Rules for finding the reasoning part of an answer."""

    opening: str  # text before the reasoning
    closing: str  # text after it
    begun: bool  # the answer begins inside the reasoning
    shown: Mapping[int, str] = field(default_factory=dict)  # control tokens read as text


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(ChainOptions):
    """Options of sampling; ``None`` stands for what the model's files recommend."""

    temperature: float | None = option(
        None, f"randomness; 0: always the most likely token; {BY_THE_MODEL}",
        synonyms=("temp",), bounds=(0.0, 100.0),
    )  # fmt: skip
    top_k: int | None = option(
        None, f"sample from this many most likely tokens; 0: all; {BY_THE_MODEL}",
        bounds=(0, 2**31),
    )  # fmt: skip
    top_p: float | None = option(
        None,
        f"sample from the most likely tokens with this total probability; {BY_THE_MODEL}",
        bounds=(0.0, 1.0),
    )
    min_p: float | None = option(
        None,
        f"drop tokens below this share of the most likely one's probability; {BY_THE_MODEL}",
        bounds=(0.0, 1.0),
    )
    repetition_penalty: float | None = option(
        None, f"lower the probability of earlier tokens; 1: off; {BY_THE_MODEL}",
        synonyms=("repeat-penalty",), bounds=(1e-3, 100.0),
    )  # fmt: skip


@dataclass(frozen=True)
class Request(SamplingOptions):
    """Request for one answer. A value out of its range is a :class:`UsageError` naming it."""

    #: Sections of the options in a command's help, with their names.
    SECTIONS: ClassVar = {
        "Answer": ("max_tokens", "stop", "lookup", "reasoning_effort", "thinking_budget"),
        "Sampling": (),  # all others: set below the class, which lists them
    }

    max_tokens: int | None = option(
        None,
        "most tokens to generate; default: as the model's files say, else 128, and 1,024 in run "
        "and chat",
        synonyms=("max-new-tokens", "n-predict"),
        short="n",
        bounds=(1, None),
    )
    stop: list[str] = option([], "text that ends the answer; may be given several times")
    lookup: int = option(
        MAX_LOOKUP,
        "draft up to this many tokens from the text so far, while that saves time; the answer "
        "stays the same",
        bounds=(0, MAX_LOOKUP),
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
    #: Further variables for the chat template.
    template_variables: Mapping[str, Any] | None = field(default=None, metadata=_INNER)
    json_schema: str | bool | Mapping[str, Any] | None = None  # the answer is JSON that follows it
    regex: str | None = None  # the whole answer matches it
    grammar: str | None = None  # the whole answer follows it, in llama.cpp's form (GBNF)
    #: Number of alternatives to report for each token; ``None``: no log-probabilities.
    logprobs: int | None = field(default=None, metadata={"bounds": (0, MAX_LOGPROBS)})
    #: Tokens before the first stop id is allowed.
    min_tokens: int = field(default=0, metadata={"bounds": (0, None)})
    #: Characters of white space at the start of each line but the first; less ends the answer.
    min_indent: int = field(default=0, metadata=_INNER)
    ignore_eos: bool = False  # continue the answer where the model would end it
    #: Name of the model's adapter that the answer is run with.
    lora: str = field(default="", metadata=_INNER)
    #: Compute a vector instead of an answer, pooled as the model says, else by the mean.
    embed: bool = field(default=False, metadata=_INNER)
    #: Compute the scores of the classifier's labels instead of a vector.
    scored: bool = field(default=False, metadata=_INNER)
    #: A second text, to be scored as an answer to the prompt; ``None``: there is one text.
    document: str | None = field(default=None, metadata=_INNER)
    #: Position of the second text for a model that tells the two apart by token types.
    second: int | None = field(default=None, metadata=_INNER)
    #: Name of the model's prompt before a text to embed; ``None``: its default one.
    prompt_name: str | None = field(default=None, metadata=_INNER)
    #: Reason before answering, if the chat template has a switch for it; ``None``: its default.
    thinking: bool | None = None
    reasoning_effort: str | None = option(
        None,
        "none, low, medium or high: how much the model reasons before it answers a message, if its "
        "chat template can",
        metavar="EFFORT",
    )
    thinking_budget: int | None = option(
        None,
        "most tokens of reasoning in the answer to a message; default: no limit",
        synonyms=("reasoning-budget",),
        bounds=(0, None),
    )
    thinking_message: str = ""  # text before the end of a reasoning that has used up its budget
    #: The reasoning part is not in the answer's text.
    separate_reasoning: bool = field(default=False, metadata=_INNER)
    #: The last of *messages* is the beginning of the answer, with its ``content`` and
    #: ``reasoning_content``; the answer is what follows it.
    continue_final_message: bool = False
    #: Defaults of the command or dialect, for what neither the request nor the model's files set.
    fallback: Mapping[str, float] = field(default_factory=dict, metadata=_INNER)
    # LanguageModel.prepare sets the rest. A request to fill a gap between two texts already has its
    # stop_ids; one with values of a preset or of a worker's options already has their origins.
    #: Origin of the length limit and of each field of :class:`Sampling`, by its name.
    origins: Mapping[str, str] = field(default_factory=dict, metadata=_INNER)
    stop_ids: frozenset[int] = field(default=frozenset(), metadata=_INNER)
    #: Ids that are never generated, and those that are not generated as the first token.
    suppressed: frozenset[int] = field(default=frozenset(), metadata=_INNER)
    suppressed_first: frozenset[int] = field(default=frozenset(), metadata=_INNER)
    constraint: Grammar | None = field(default=None, metadata=_INNER)
    #: Sequences of tokens that end a repetition for DRY.
    breakers: Breakers = field(default_factory=dict, metadata=_INNER)
    calls: CallRules | None = field(default=None, metadata=_INNER)
    reasoning: ReasoningRules | None = field(default=None, metadata=_INNER)
    budget: BudgetRules | None = field(default=None, metadata=_INNER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", list_texts("stop", self.stop))
        object.__setattr__(self, "logit_bias", biases_of(self.logit_bias))
        super().__post_init__()
        check_type("thinking_message", self.thinking_message, "a text", str)
        for name in ("regex", "grammar", "reasoning_effort"):
            check_type(name, getattr(self, name), "a text or None", str, None)
        check_type("json_schema", self.json_schema, "a schema", str, bool, Mapping, None)
        for name in ("parallel_tool_calls", "ignore_eos", "thinking", "continue_final_message"):
            check_type(name, getattr(self, name), "true or false", bool, None)
        if self.tools or self.tool_choice is not None:
            from bitnet.runtime.tools import read_tools  # here, so that commands start sooner

            read_tools(self.tools, self.tool_choice)
        if len(self.list_constraints()) > 1:
            constraints = " and ".join(self.list_constraints())
            raise UsageError(
                f"{constraints} are both given",
                hint="leave one out",
                field=self.list_constraints()[0],
            )

    @classmethod
    def from_mapping(cls, entries: Mapping[str, Any], default: Request | None = None) -> Request:
        """The request that *entries* describe; *default* has the fields that they leave out.

        ``None`` stands for the default, and so does a seed or ``max_tokens`` of -1. Another
        negative seed is taken modulo 2^64. A ``top_k`` of -1 means all tokens, as in vLLM and
        llama.cpp.
        """
        changes: dict[str, Any] = {}
        for name, value in entries.items():
            if name not in _JSON:
                raise UsageError(f"{name} is not a field of a request", field=name)
            is_minus_one = type(value) is int and value == -1
            if value is None or (is_minus_one and name in _DEFAULT_IS_MINUS_ONE):
                continue
            if is_minus_one and name == "top_k":
                value = 0
            if name == "seed" and type(value) is int and value < 0:
                value %= 2**64
            changes[name] = value
        base = default or cls()
        origins = {name: origin for name, origin in base.origins.items() if name not in changes}
        return replace(base, origins=origins, **changes)

    def with_origin(self, origin: str) -> Request:
        """This request, with *origin* as the origin of each value that it states."""
        names = [name for name in (*RECOMMENDED, "max_tokens") if self.states(name)]
        return replace(self, origins=dict.fromkeys(names, origin))

    def states(self, name: str) -> bool:
        """True if this request itself has a value for *name*, a field that files may recommend.

        Such a field is None until it is set. :meth:`sets` is the same for every option.
        """
        value = getattr(self, name)
        # An empty list of samplers is the default.
        return bool(value) if isinstance(value, list) else value is not None

    def sets(self, name: str) -> bool:
        """True if this request sets the option *name*, be it to its default on a command line."""
        return name in self.typed or getattr(self, name) != getattr(_DEFAULT, name)

    def list_constraints(self) -> list[str]:
        """Names of the fields that constrain the whole answer."""
        names = ("json_schema", "regex", "grammar")
        return [name for name in names if getattr(self, name) is not None]

    @property
    def needs_grammar(self) -> bool:
        """True if a grammar has to be compiled before the answer begins."""
        return bool(self.list_constraints()) or is_call_required(self.tool_choice)

    def check(self) -> None:
        """Check texts, counts, sizes and depths.

        The command line, HTTP and Python each call it before they tokenize anything.
        """
        if isinstance(self.prompt, str):
            check_text("prompt", self.prompt)
        check_type("messages", self.messages, "a list of messages", list, tuple, None)
        check_type("document", self.document, "a text or None", str, None)
        check_variables(self.template_variables)
        if self.document is not None:
            check_text("document", self.document)
        for name, most, entries in (
            ("messages", MAX_MESSAGES, self.messages),
            ("stop", MAX_STOPS, self.stop),
            ("logit_bias", MAX_BIASES, self.logit_bias),
        ):
            if len(entries or ()) > most:
                raise UsageError(f"{name} has more than {most:,} entries", field=name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens:,}, max_tokens is {self.max_tokens:,}",
                field="min_tokens",
            )
        for number, message in enumerate(self.messages or ()):
            check_value(f"messages.{number}", message)
        for name in ("tool_choice", "template_variables", "thinking_message"):
            check_value(name, getattr(self, name))
        check_value("stop", self.stop, nul=True)  # a model may generate NUL
        if self.continue_final_message:
            self._check_begun()
        for name in ("tools", "regex", "grammar"):
            check_schema(name, getattr(self, name))
        if self.tools:
            from bitnet.runtime.tools import check_schemas

            check_schemas(self.tools)
        if not isinstance(self.json_schema, str):  # JSON text is checked when it is parsed
            check_schema("json_schema", self.json_schema)

    def _check_begun(self) -> None:
        """Check that the last message is the beginning of an answer, which can be continued."""
        if self.messages:
            check_messages(self.messages)
        last = self.messages[-1] if self.messages else {}
        content = last.get("content") or ""
        reasoning = reasoning_of(last)
        has_begun = bool(content or reasoning)
        is_text = has_begun and isinstance(content, str) and isinstance(reasoning, str)
        problem = ""
        if last.get("role") != "assistant" or not is_text or last.get("tool_calls"):
            problem = "expected a text of the assistant as the last message"
        elif self.needs_grammar:
            problem = "an answer with a grammar cannot be continued"
        if problem:
            name = "continue_final_message"
            raise UsageError(f"{name}: {problem}", field=name)

    @property
    def sampling(self) -> Sampling:
        """Values for the sampler: those of this request, else of its command or dialect."""
        return self._sampling_with(self.fallback)

    def _sampling_with(self, fallback: Mapping[str, float]) -> Sampling:
        """Values of this request for the sampler, else those of *fallback*."""
        values: dict[str, Any] = {}
        for name in RECOMMENDED:
            value = getattr(self, name) if self.states(name) else fallback.get(name)
            if value is not None:
                values[name] = value
        return Sampling(**values)

    @property
    def length_limit(self) -> int:
        """Most tokens of the answer: as this request says, else its command or dialect."""
        if self.max_tokens is not None:
            return self.max_tokens
        return int(self.fallback.get("max_tokens", DEFAULT_TOKENS))

    def with_settings(
        self, settings_of_model: GenerationSettings, *, prompt_tokens: int = 0
    ) -> Request:
        """This request with what the files of its model recommend.

        A value of the request itself comes first, then that of the files, then the default of the
        command or dialect. Temperature 0 is always the most likely token, so the files' sampling is
        then left out, as it is in reproducible runs of a request without a temperature.
        *prompt_tokens* count in the files' ``max_length``.
        """
        recommended: Mapping[str, SamplingDefault] = settings_of_model.sampling
        fallback = dict(self.fallback)
        is_reproducible = settings.deterministic() and self.temperature is None
        if is_reproducible:
            fallback["temperature"] = 0.0
        if is_reproducible or self.temperature == 0:
            recommended = {}
        values: dict[str, Any] = self._sampling_with(fallback)._asdict()
        origins: dict[str, str] = {}
        for name in RECOMMENDED:
            if self.states(name):
                origins[name] = self.origins.get(name, "request")
            elif name in recommended:
                values[name] = recommended[name].value
                origins[name] = recommended[name].source
            else:
                origins[name] = "default"
        limit, origins["max_tokens"] = self._limit(settings_of_model, prompt_tokens)
        return replace(
            self,
            **values,
            max_tokens=limit,
            fallback=fallback,
            origins=origins,
            suppressed=settings_of_model.suppressed,
            suppressed_first=settings_of_model.suppressed_first,
        )

    def sampling_facts(self) -> dict[str, dict[str, Any]]:
        """Value and origin of each field that a model's files may set, as JSON values.

        A length of :data:`EVERYTHING` is ``None``.
        """
        values = {**self.sampling._asdict(), "max_tokens": self.length_limit}
        return {
            name: {
                "value": None if value == EVERYTHING else value,
                "from": self.origins.get(name, "default"),
            }
            for name, value in values.items()
        }

    def _limit(self, files: GenerationSettings, prompt_tokens: int) -> tuple[int, str]:
        """Most tokens of the answer, and where that number comes from; *files* are the model's."""
        if self.max_tokens is not None:
            return self.max_tokens, self.origins.get("max_tokens", "request")
        limit = self.length_limit
        origin = "default"
        if files.max_new_tokens is not None:
            limit = int(files.max_new_tokens.number)
            origin = files.max_new_tokens.source
        elif files.max_length is not None:
            room = max(1, int(files.max_length.number) - prompt_tokens)
            if room < limit:
                limit = room
                origin = files.max_length.source
        if limit < self.min_tokens:
            limit = self.min_tokens
            origin = "min_tokens"
        return limit, origin

    def actual_seed(self) -> int:
        """Effective seed: as given, ``BITNET_SEED``, 42 in reproducible runs, or a random one."""
        seed = self.seed if self.seed is not None else settings.seed()
        if seed is not None:
            return seed
        return DEFAULT_SEED if settings.deterministic() else secrets.randbits(_SEED_BITS)

    def choice(self, number: int) -> Request:
        """This request for answer *number* of several, with a seed of its own."""
        return replace(self, seed=(self.actual_seed() + number) % 2**64)


_DEFAULT = Request()
#: Fields of a request that the files of a model may recommend.
RECOMMENDED = Sampling._fields
_OPTIONS = [entry.name for entry in fields(Request) if "help" in entry.metadata]
#: Fields of a request that say how a token is chosen: all options but those of section "Answer".
SAMPLING = tuple(name for name in _OPTIONS if name not in Request.SECTIONS["Answer"])
Request.SECTIONS["Sampling"] = SAMPLING
_JSON = {entry.name for entry in fields(Request) if not entry.metadata.get("inner")}
