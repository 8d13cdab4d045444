"""A model and its tokenizer as one object that writes text.

Close it, or use it as a context manager::

    import bitnet

    with bitnet.load("models/model.gguf") as model:
        print(model.generate("The capital of France is", max_tokens=8))
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from bitnet.errors import InferenceError, UsageError
from bitnet.formats.checkpoint import Checkpoint
from bitnet.formats.containers import I2SLayout, open_checkpoint
from bitnet.invocation import word
from bitnet.kernels.select import select
from bitnet.models.exact_head import ExactHead
from bitnet.models.load import load_model
from bitnet.runtime.engine import Engine
from bitnet.runtime.generation import GenerationParams
from bitnet.runtime.options import SamplingParams
from bitnet.runtime.structured import Grammars
from bitnet.runtime.text import Generation, Stats, check_prompt
from bitnet.tokenizer import Tokenizer, resolve_tokenizer
from bitnet.tokenizer.discover import fits
from bitnet.tokenizer.model_facts import model_facts

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from bitnet.models.config import TransformerConfig
    from bitnet.runtime.structured import CompiledGrammar

__all__ = ["LanguageModel", "StreamOptions", "load"]


class StreamOptions(TypedDict, total=False):
    """What :meth:`LanguageModel.stream` takes besides the prompt."""

    max_tokens: int
    stop: str | Sequence[str]
    sampling: SamplingParams | None
    lookup: int
    json_schema: str | bool | Mapping[str, Any] | None
    regex: str | None
    logprobs: int | None


class LanguageModel:
    """A model ready to write; :func:`load` makes it.

    Answers are written one at a time; several threads may ask for them. What a prompt shares with
    the one before is not computed again.

    Attributes:
        path: where it came from.
        tokenizer: text to ids and back.
        config: what kind of transformer it is.
        backend: what computes it, with its instruction set.
        load_s: seconds it took to load.
        ignored_keys: keys of the model that were treated as if they were not there.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, *, path: Path, load_s: float = 0.0
    ) -> None:
        self._engine: Engine | None = engine
        self.path = path
        self.tokenizer = tokenizer
        self.config: TransformerConfig = engine.model.config
        self.backend: str = engine.model.ops.name
        self.load_s = load_s
        self.ignored_keys: tuple[str, ...] = ()

    @property
    def engine(self) -> Engine:
        """What runs ids.

        Raises:
            InferenceError: the model is closed.
        """
        if self._engine is None:
            raise InferenceError(f"the model {self.path} is closed", hint="load it again")
        return self._engine

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        stop: str | Sequence[str] = (),
        sampling: SamplingParams | None = None,
        lookup: int = 0,
        json_schema: str | bool | Mapping[str, Any] | None = None,
        regex: str | None = None,
        logprobs: int | None = None,
    ) -> Generation:
        """The continuation of *prompt*; iterate over it for the text as it is written.

        Args:
            prompt: text, or ids as the tokenizer or :meth:`encode_chat` gives them.
            max_tokens: tokens at most, at least one.
            stop: text, or texts, that end the answer and are no part of it.
            sampling: how tokens are chosen; the most likely one when not given.
            lookup: tokens at most to draft in a pass from what was written before, up to 15; 0:
                none. It changes the speed and never the answer.
            json_schema: the answer is JSON that follows it, as a mapping or as text; one that
                ``max_tokens`` cuts short is not whole.
            regex: the whole answer matches it; no look-around, no back-references.
            logprobs: how many alternatives to report with each token in ``Generation.logprobs``;
                ``None``: no log-probabilities.

        Raises:
            UsageError: the prompt is empty, a value is out of its range, or the schema or the
                regular expression is wrong.
            InferenceError: the prompt does not fit the context.
            Unsupported: a schema or a regular expression, and llguidance is not installed.
        """
        stats = Stats(backend=self.backend, load_s=self.load_s)
        started = time.perf_counter()
        ids = self._encoded(prompt)
        stats.tokenize_s = time.perf_counter() - started
        params = GenerationParams(
            max_tokens=max_tokens,
            stop_ids=self.tokenizer.stop_ids,
            sampling=sampling or SamplingParams(),
            logprobs=logprobs,
            lookup=lookup,
            grammar=self._grammar(json_schema, regex),
        )
        stops = [stop] if isinstance(stop, str) else stop
        return Generation(self.engine, self.tokenizer, ids, params, stops, stats)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[StreamOptions]) -> str:
        """The continuation of *prompt* as one text; *options* are those of :meth:`stream`."""
        return "".join(self.stream(prompt, **options))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[StreamOptions]) -> str:
        """The answer to a conversation; see :meth:`encode_chat` and :meth:`stream`."""
        return self.generate(self.encode_chat(messages), **options)

    @cached_property
    def grammars(self) -> Grammars:
        """Grammars that an answer can be made to follow.

        Raises:
            Unsupported: llguidance is not installed.
        """
        return Grammars(self.tokenizer)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation, up to where the assistant's answer begins.

        Args:
            messages: ``{"role": ..., "content": ...}``, oldest first.

        Raises:
            Unsupported: the model has no chat template.
            UsageError: its template does not accept this conversation.
        """
        from bitnet.tokenizer.chat import chat_template

        if not all(isinstance(message, Mapping) for message in messages):
            raise UsageError(
                "a conversation is a list of messages, each a mapping",
                hint="model.chat([{'role': 'user', 'content': 'Hello'}])",
            )
        text = chat_template(self.tokenizer).render([dict(message) for message in messages])
        # The template writes BOS itself where the model wants it.
        return self.tokenizer.encode(text, add_special=False)

    def logits(self, ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        """Logits after every position of *ids*, ``(len(ids), vocab_size)``.

        Raises:
            UsageError: *ids* is empty, or holds an id outside the vocabulary.
            InferenceError: *ids* is longer than the context.
        """
        return self.engine.logits(ids)

    def close(self) -> None:
        """Let go of weights and cache; the object cannot be used afterwards."""
        self._engine = None

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LanguageModel {self.path}: {self.config.architecture}, {self.backend}>"

    def _grammar(
        self, json_schema: str | bool | Mapping[str, Any] | None, regex: str | None
    ) -> CompiledGrammar | None:
        if json_schema is not None and regex is not None:
            raise UsageError("a JSON schema and a regex are both given", hint="leave one out")
        if json_schema is not None:
            return self.grammars.json_schema(json_schema)
        return None if regex is None else self.grammars.regex(regex)

    def _encoded(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            if isinstance(prompt, bytes | bytearray):
                raise UsageError("the prompt is bytes, not text", hint="decode it first")
            return list(prompt)
        check_prompt(prompt)
        return self.tokenizer.encode(prompt)


def load(
    model: str | os.PathLike[str] | Checkpoint,
    *,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    pre: str | None = None,
    context: int | None = None,
    threads: int = 0,
    allow_mock: bool = False,
    exact_head: ExactHead = "auto",
    i2_s_layout: I2SLayout = "x86",
    ignore_keys: Collection[str] = (),
) -> LanguageModel:
    """*model* with its tokenizer, ready to write.

    Args:
        model: GGUF file, or folder with ``config.json`` and safetensors files, or either when it
            is open.
        tokenizer: the tokenizer, or a file or folder with it; found by itself when not given.
        pre: pre-tokenizer name to use instead of what the GGUF file says.
        context: positions a sequence may reach; the model's own length when not given.
        threads: compute threads; 0: ``BITNET_THREADS``, else as many as there are cores.
        allow_mock: without a tokenizer, take bytes for tokens.
        exact_head: whether to choose tokens without reading the whole output head; they are the
            same. ``auto``: where it saves time.
        i2_s_layout: the processor that wrote I2_S weights; no file says it. An open model was
            opened with one.
        ignore_keys: keys of the model to treat as if they were not there; as *i2_s_layout*.

    Raises:
        NotFound: nothing is there.
        TokenizerNotFound: there is no tokenizer that is exactly the model's.
        VocabMismatch: *tokenizer* is not the model's.
        UsageError: a value is out of its range.
        InvalidFormat: a damaged file.
        Unsupported: the architecture, an encoding, or not a model at all.
        InferenceError: not enough memory.
    """
    if exact_head not in get_args(ExactHead):
        raise UsageError(f"--exact-head is {exact_head!r}, expected auto, on or off")
    path = model.path if isinstance(model, Checkpoint) else Path(model)
    with _memory_errors(path):
        if isinstance(model, Checkpoint):
            checkpoint = model
        else:
            checkpoint = open_checkpoint(path, i2_s_layout=i2_s_layout, ignore_keys=ignore_keys)
        started = time.perf_counter() - checkpoint.opened_s
        if isinstance(tokenizer, Tokenizer):
            fits(model_facts(checkpoint), tokenizer)
        else:
            explicit = Path(tokenizer) if tokenizer is not None else None
            tokenizer = resolve_tokenizer(checkpoint, explicit, pre=pre, allow_mock=allow_mock)
        engine = Engine(
            load_model(checkpoint, ops=select(threads=threads), exact_head=exact_head),
            context=context,
        )
    loaded = LanguageModel(engine, tokenizer, path=path, load_s=time.perf_counter() - started)
    loaded.ignored_keys = tuple(sorted(checkpoint.ignored))
    return loaded


@contextmanager
def _memory_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise InferenceError(
            f"not enough memory for {path.name}{f': {error}' if str(error) else ''}",
            hint=f"bitnet plan --model {word(path)}",
        ) from error
