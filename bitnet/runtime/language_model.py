"""A model and its tokenizer as one object that generates text.

Close it, or use it as a context manager, as ``with bitnet.load("models/model.gguf") as model``.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InferenceError, Unsupported, UsageError
from bitnet.base.invocation import shell_quote
from bitnet.base.options import check_ids, check_type
from bitnet.formats.checkpoint import Prompts
from bitnet.formats.generation import GenerationSettings, read_generation_settings
from bitnet.kernels.native import select
from bitnet.models.load import config_from, load_model
from bitnet.runtime import vectors
from bitnet.runtime.answer import Answer
from bitnet.runtime.answer_options import AnswerOptions, request_of, with_answer_options
from bitnet.runtime.chain_options import uses_dry
from bitnet.runtime.conversation import (
    budget_rules,
    conversation_text,
    effort_variables,
    reasoning_rules,
    thinking_variables,
)
from bitnet.runtime.drafts import check_draft_model
from bitnet.runtime.prompt_facts import open_prompt_cache
from bitnet.runtime.repetitions import find_breakers
from bitnet.runtime.request import Request
from bitnet.runtime.request_checks import read_schema
from bitnet.runtime.scheduler import Scheduler
from bitnet.runtime.structured import Grammars
from bitnet.runtime.text_ids import TokenIds, encode_input
from bitnet.runtime.tools import NO_TOOLS
from bitnet.tokenizer import Tokenizer, resolve_tokenizer
from bitnet.tokenizer.discover import check_vocab, model_facts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from bitnet.cache.prompts import PromptFolder
    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.exact_head.head import HeadMode
    from bitnet.models.transformer import Model
    from bitnet.runtime.prompt_cache import PromptCache
    from bitnet.runtime.repetitions import Breakers
    from bitnet.runtime.structured import Grammar
    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.runtime.tools import Tools


class LanguageModel:
    """A model ready to generate; :func:`bitnet.load` creates it.

    :meth:`scheduler` runs several answers together. Answers of :meth:`answer`, :meth:`stream` and
    similar methods are generated one at a time, from any thread; the prefix that a prompt shares
    with the previous one is not computed again. A closed model raises :class:`InferenceError`.

    Attributes:
        path: of the model file.
        tokenizer: text to ids and back.
        context: positions a sequence may reach.
        config: configuration of the transformer.
        backend: compute backend, with its instruction set.
        load_s: seconds it took to load.
        ignored_keys: keys of the model file that were ignored on request.
        prompts: prefixes that the model expects before texts it embeds, by name.
        text_limit: tokens of a text to embed that its settings keep, or None without a limit.
        generation: sampling options and suppressed ids that the model's files recommend.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        path: Path,
        context: int | None = None,
        draft_model: Model | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        self._draft_model = draft_model
        self._prompt_cache = prompt_cache
        self._engine: Scheduler | None = Scheduler(
            model,
            context=context,
            max_batch=1,
            draft_model=draft_model,
            prompt_cache=prompt_cache,
        )
        self.path = path
        self.tokenizer = tokenizer
        self.context: int = self._engine.context
        self.config: ModelConfig = model.config
        self.backend: str = model.ops.name
        self.load_s: float = 0.0
        self.ignored_keys: tuple[str, ...] = ()
        self.prompts: Prompts = Prompts()
        self.text_limit: int | None = None
        self.generation: GenerationSettings = GenerationSettings()
        # texts that end a repetition in the last request, and their tokens
        self._last_breakers: tuple[tuple[str, ...], Breakers] = ((), {})

    @property
    def engine(self) -> Scheduler:
        """The scheduler with a batch of one, for the answers of this object."""
        if self._engine is None:
            raise InferenceError(f"the model {self.path} is closed", hint="load it again")
        return self._engine

    @property
    def model(self) -> Model:
        """The transformer."""
        return self.engine.model

    @cached_property
    def rank_template(self) -> str | None:
        """Text around a query and a document for a model that ranks; None without one."""
        return vectors.find_rank_template(self)

    def scheduler(self, *, max_batch: int = 8, kv_budget_bytes: int | None = None) -> Scheduler:
        """A scheduler of several sequences, for use in one thread; arguments as for its class."""
        return Scheduler(
            self.model,
            context=self.context,
            max_batch=max_batch,
            kv_budget_bytes=kv_budget_bytes,
            draft_model=self._draft_model,
            prompt_cache=self._prompt_cache,
        )

    def prepare(self, request: Request) -> tuple[TokenIds, Request]:
        """Prompt ids of *request*, and the request with this model's stop ids and grammar.

        Raises:
            UsageError: the prompt is empty, the template does not accept the conversation, the
                schema or the regular expression is wrong, or the prompt name is unknown.
            Unsupported: an embedding model is asked for an answer; a model without a template gets
                messages; or a schema or regular expression is given without llguidance installed.
        """
        request.check()
        if request.embed:
            return vectors.prepare(self, request)
        if not self.config.writes:
            raise Unsupported(
                f"{self.path.name} makes vectors of texts and does not write any",
                hint=f"bitnet embed {shell_quote(self.path)} --input texts.txt",
            )
        if (messages := request.messages) is None:
            ids = encode_input(self.tokenizer, "prompt", request.prompt)
        else:
            ids, request = self._prepare_chat(request, messages)
        stop_ids = request.stop_ids or self.tokenizer.stop_ids
        request = request.with_settings(self.generation, prompt_tokens=len(ids))
        return ids, replace(
            request,
            constraint=request.constraint or self._constraint(request),
            breakers=self._breakers(request),
            stop_ids=frozenset() if request.ignore_eos else stop_ids,
        )

    def _prepare_chat(
        self, request: Request, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[TokenIds, Request]:
        """Prompt ids of the *messages* of *request*, and *request* with rules for its answer."""
        tokenizer = self.tokenizer
        variables = effort_variables(tokenizer, request.reasoning_effort)
        if request.thinking is not None:
            variables = thinking_variables(tokenizer, request.thinking) | variables
        if variables:
            variables |= request.template_variables or {}
            request = replace(request, template_variables=variables)
        text, tools, form = conversation_text(tokenizer, request)
        # The template writes BOS itself if the model needs it.
        ids = tokenizer.encode_array(text, add_special=False)
        if form is not None:
            calls = (tools or NO_TOOLS).rules(form, tokenizer, text)
            request = replace(request, calls=calls)
            if tools is not None:
                constraint = self._calls_grammar(request, tools, form, calls.opening_in_prompt)
                request = replace(request, constraint=constraint)
        if request.constraint or request.needs_grammar:
            return ids, request  # a grammar has no place for reasoning
        continued = messages[-1] if request.continue_final_message else None
        rules = reasoning_rules(tokenizer, text, continued)
        if rules is not None and request.thinking_budget is not None:
            limit_and_message = request.thinking_budget, request.thinking_message
            request = replace(request, budget=budget_rules(tokenizer, rules, *limit_and_message))
        return ids, replace(request, reasoning=rules if request.separate_reasoning else None)

    def answer(self, request: Request) -> Answer:
        """The answer to *request*; iterate over it for the text as it is generated.

        Raises:
            UsageError: as :meth:`prepare`.
            InferenceError: the prompt does not fit the context.
            Unsupported: as :meth:`prepare`.
        """
        started = time.perf_counter()
        ids, request = self.prepare(request)
        passed = time.perf_counter() - started
        engine = self.engine
        answer = Answer(self.tokenizer, engine.prepare(ids, request), run=engine.run)
        answer.backend = self.backend
        answer.load_s = self.load_s
        answer.tokenize_s += passed
        return answer

    @with_answer_options
    def stream(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> Answer:
        """The continuation of *prompt*; iterate over it for the text as it is generated.

        Args:
            prompt: text, or ids from the tokenizer or :meth:`encode_chat`.
            options: keywords of :class:`bitnet.AnswerOptions`.

        Raises:
            BitnetError: as :meth:`answer`; a value out of its range is a ``UsageError``.
        """
        return self.answer(request_of(prompt, options))

    @with_answer_options
    def generate(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> str:
        """The continuation of *prompt* as one text; keywords as for :meth:`stream`."""
        return "".join(self.stream(prompt, **options))

    @with_answer_options
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[AnswerOptions]) -> str:
        """The answer to a conversation; see :meth:`encode_chat` and :meth:`stream`."""
        return self.generate(self.encode_chat(messages), **options)

    @with_answer_options
    async def astream(
        self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]
    ) -> AsyncGenerator[str]:
        """The text of :meth:`stream` in pieces, from a thread; cancelling ends it."""
        import asyncio  # here, so that commands without it start sooner

        pieces = iter(await asyncio.to_thread(self.stream, prompt, **options))
        step: asyncio.Future[str | None] | None = None
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
                if (piece := await asyncio.shield(step)) is None:
                    return
                yield piece
        finally:
            if step is not None and not step.done():
                await asyncio.wait([step])  # a generator cannot be closed while it runs
            pieces.close()

    @with_answer_options
    async def agenerate(self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]) -> str:
        """The text of :meth:`generate`, without blocking the event loop."""
        return "".join([piece async for piece in self.astream(prompt, **options)])

    @with_answer_options
    async def achat(
        self, messages: Sequence[Mapping[str, Any]], **options: Unpack[AnswerOptions]
    ) -> str:
        """The text of :meth:`chat`, without blocking the event loop."""
        import asyncio  # as above

        return await self.agenerate(await asyncio.to_thread(self.encode_chat, messages), **options)

    @cached_property
    def grammars(self) -> Grammars:
        """Grammars that constrain an answer; :class:`Unsupported` without llguidance."""
        return Grammars(self.tokenizer, rows=self.model.config.vocab_size)

    def _breakers(self, request: Request) -> Breakers:
        """Token sequences that end a repetition for *request*; those used last are cached."""
        if not uses_dry(request, request.sampling):
            return {}
        texts = tuple(request.dry_sequence_breakers)
        if (last := self._last_breakers)[0] != texts:  # read once: other threads replace it
            last = self._last_breakers = texts, find_breakers(self.tokenizer, texts)
        return last[1]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation, up to the beginning of the assistant's answer.

        Args:
            messages: ``{"role": ..., "content": ...}``, oldest first.

        Raises:
            Unsupported: the model has no chat template.
            UsageError: its template does not accept this conversation.
            WrongType: *messages* is not a list.
        """
        check_type("messages", messages, "a list of messages, each a mapping", list, tuple)
        text, *_ = conversation_text(self.tokenizer, Request(messages=messages))
        return self.tokenizer.encode(text, add_special=False)

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        prompt_name: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = True,
    ) -> NDArray[np.float32]:
        """Embeddings of *texts*, pooled as the model says; by the mean if it does not.

        Args:
            texts: texts, or ids. Ids are used unchanged; texts get the prompt and the tokenizer's
                special tokens.
            prompt_name: one of :attr:`prompts`; the model's default when not given.
            normalize: scale each vector to length one.
            dimensions: number of leading dimensions to keep; all when not given.
            truncate: leave out the ends of texts beyond :attr:`text_limit`, as
                sentence-transformers does; otherwise such texts are refused.

        Returns:
            ``(len(texts), dimensions)``; one row for a single text.

        Raises:
            UsageError: the prompt name is unknown, *dimensions* is out of its range, or a text
                has no tokens or unknown ids.
            InferenceError: a text is longer than the context, or than the limit where it is not
                truncated, the hidden states are not finite, or memory runs out.
        """
        return vectors.embed(
            self,
            texts,
            prompt_name=prompt_name,
            normalize=normalize,
            dimensions=dimensions,
            truncate=truncate,
        )

    def rank(
        self, query: str, documents: Sequence[str], *, truncate: bool = True
    ) -> NDArray[np.float32]:
        """Relevance of each of *documents* to *query*, ``(len(documents),)``; larger is better.

        Raises:
            Unsupported: the model has no head that ranks documents.
            InferenceError: as :meth:`embed`.
        """
        return vectors.rank(self, query, documents, truncate=truncate)

    def classify(self, texts: str | Sequence[str], *, truncate: bool = True) -> NDArray[np.float32]:
        """Score of each label per text, by ``config.classifier.function``: ``(texts, labels)``.

        Raises:
            Unsupported: the model has no head that scores texts.
            InferenceError: as :meth:`embed`.
        """
        return vectors.classify(self, texts, truncate=truncate)

    def embedding_ids(
        self, text: str | Sequence[int], prompt_name: str | None = None, *, truncate: bool = False
    ) -> list[int]:
        """Ids of a text to embed; *text* and *prompt_name* are those of :meth:`embed`.

        With *truncate*, the end of a text beyond :attr:`text_limit` or the context is left out; an
        end token that the tokenizer adds, which last-token pooling reads, still follows.

        Raises:
            UsageError: the prompt name is unknown, or *text* is not a text.
            InferenceError: a text that is not truncated is longer than the limit.
        """
        return vectors.embedding_ids(self, text, prompt_name, truncate=truncate)

    def logits(self, ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        """Logits at every position of *ids*, ``(len(ids), vocab_size)``.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context.
        """
        return self.engine.logits(check_ids("ids", ids))

    def close(self) -> None:
        """Free weights and cache; the object cannot be used afterwards.

        Prompts that are to be stored are written first.
        """
        if self._prompt_cache is not None:
            self._prompt_cache.close()
        self._engine = self._draft_model = self._prompt_cache = None

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LanguageModel {self.path}: {self.config.architecture}, {self.backend}>"

    def _calls_grammar(
        self, request: Request, tools: Tools, form: CallFormat, begun: str
    ) -> Grammar | None:
        """Grammar of calls alone, or of calls and answers by a schema; None if all are allowed."""
        for name, label in (("regex", "a regular expression"), ("grammar", "a grammar")):
            if getattr(request, name) is not None:
                raise UsageError(f"tools and {label} are both given", field="tools")
        schema = None
        if not tools.required:  # a call that is required has no text beside it
            if request.json_schema is None:
                return None
            schema = read_schema(request.json_schema)
        return self.grammars.tools(tools.grammar(form, self.tokenizer, schema, begun=begun))

    def _constraint(self, request: Request) -> Grammar | None:
        if request.json_schema is not None:
            return self.grammars.json_schema(read_schema(request.json_schema))
        if request.grammar is not None:
            return self.grammars.gbnf(request.grammar)
        return None if request.regex is None else self.grammars.regex(request.regex)


def load_checkpoint(
    checkpoint: Checkpoint,
    *,
    tokenizer: Tokenizer | Path | None = None,
    pre: str | None = None,
    context: int | None = None,
    threads: int = 0,
    allow_mock: bool = False,
    exact_head: HeadMode = "auto",
    draft: Checkpoint | None = None,
    lock_memory: bool = False,
    adapted: Mapping[str, Checkpoint] | None = None,
    prompt_folder: PromptFolder | None = None,
) -> LanguageModel:
    """The open *checkpoint* with its tokenizer; options and errors as of :func:`bitnet.load`.

    *adapted* has the same checkpoint with each of the adapters that requests may name. KV caches of
    prompts are stored in *prompt_folder*, and read from there.
    """
    path = checkpoint.path
    started = time.perf_counter() - checkpoint.opened_s  # opening counts as loading
    with memory_errors(path):
        if isinstance(tokenizer, Tokenizer):
            check_vocab(model_facts(checkpoint), tokenizer)
        else:
            tokenizer = resolve_tokenizer(checkpoint, tokenizer, pre=pre, allow_mock=allow_mock)
        ops = select(threads=threads)
        transformer = load_model(checkpoint, ops=ops, exact_head=exact_head)
        for name, adapted_checkpoint in (adapted or {}).items():
            transformer.adapters[name] = load_model(adapted_checkpoint, base=transformer)
        draft_model = None
        if draft is not None:
            config = config_from(draft)
            draft_tokenizer = resolve_tokenizer(draft, None)
            check_draft_model(transformer.config, tokenizer, config, draft_tokenizer)
            draft_model = load_model(draft, ops=ops, exact_head=exact_head)
        if lock_memory:
            transformer.lock()
            if draft_model is not None:
                draft_model.lock()
        load_s = time.perf_counter() - started
        prompt_cache = None
        if prompt_folder is not None:
            by_adapter = {"": (transformer, checkpoint)}
            for name, adapted_checkpoint in (adapted or {}).items():
                by_adapter[name] = transformer.adapters[name], adapted_checkpoint
            prompt_cache = open_prompt_cache(prompt_folder, by_adapter, tokenizer.fingerprint)
        model = LanguageModel(
            transformer,
            tokenizer,
            path=path,
            context=context,
            draft_model=draft_model,
            prompt_cache=prompt_cache,
        )
    model.load_s = load_s
    model.ignored_keys = tuple(sorted(checkpoint.ignored))
    model.prompts = checkpoint.prompts
    model.text_limit = checkpoint.text_limit
    model.generation = read_generation_settings(checkpoint).within(model.config.vocab_size)
    return model


@contextmanager
def memory_errors(path: Path) -> Iterator[None]:
    """Turn a ``MemoryError`` into an :class:`InferenceError` that names the model at *path*."""
    try:
        yield
    except MemoryError as error:
        raise InferenceError(
            f"not enough memory for {path.name}{f': {error}' if str(error) else ''}",
            hint=f"bitnet plan {shell_quote(path)}",
        ) from error
