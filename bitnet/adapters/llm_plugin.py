"""The models that are here, for the program and the library ``llm`` (https://llm.datasette.io).

``llm`` finds this module by its entry point and names the models ``bitnet/NAME``. Nothing is loaded
before a model is used, and nothing is fetched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import llm

from bitnet.base.errors import BitnetError
from bitnet.base.options import CacheOptions
from bitnet.commands.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bitnet.runtime.language_model import LanguageModel

BATCH = 64  # texts that llm hands over together


@llm.hookimpl
def register_models(register: Callable[[Any], None]) -> None:
    """Offer every model that is here for prompts and chats."""
    for name in _names():
        register(Writer(name))


@llm.hookimpl
def register_embedding_models(register: Callable[[Any], None]) -> None:
    """Offer every model that is here for embeddings."""
    for name in _names():
        register(Embedder(name))


class Embedder(llm.EmbeddingModel):
    """Vectors of texts, as :meth:`LanguageModel.embed` gives them."""

    batch_size = BATCH

    def __init__(self, name: str) -> None:
        """The model that ``bitnet models`` lists as *name*."""
        self.model_id = f"bitnet/{name}"
        self._name = name

    def embed_batch(self, items: Iterable[str | bytes], **_: Any) -> Iterator[list[float]]:
        """A vector for each of *items*, in their order."""
        try:
            yield from _load_model(self._name).embed([str(item) for item in items]).tolist()
        except BitnetError as error:
            raise llm.ModelError(error.message) from error


class Writer(llm.Model):
    """Answers in the model's chat template; the continuation of the prompt where it has none."""

    can_stream = True

    class Options(llm.Options):
        """Options of ``llm -o``; those that are left out have this package's defaults."""

        max_tokens: int | None = None
        temperature: float | None = None
        top_p: float | None = None
        seed: int | None = None

    def __init__(self, name: str) -> None:
        """The model that ``bitnet models`` lists as *name*."""
        self.model_id = f"bitnet/{name}"
        self._name = name

    def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any | None
    ) -> Iterator[str]:
        """The answer to *prompt*, after what *conversation* has so far."""
        from bitnet.runtime.request import Request

        try:
            model = _load_model(self._name)
            asked: dict[str, Any] = {"prompt": prompt.prompt}
            if model.tokenizer.chat_template:
                asked = {"messages": _messages(prompt, conversation)}
            options = prompt.options.model_dump(exclude_none=True)
            answer = model.answer(Request.from_mapping(asked | options))
            yield from answer if stream else ["".join(answer)]
        except BitnetError as error:
            raise llm.ModelError(error.message) from error
        response.set_usage(input=answer.prompt_tokens, output=answer.tokens)


def _messages(prompt: Any, conversation: Any | None) -> list[dict[str, str]]:
    before = conversation.responses if conversation is not None else []
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    for answer in before:
        messages.append({"role": "user", "content": answer.prompt.prompt})
        messages.append({"role": "assistant", "content": answer.text()})
    return [*messages, {"role": "user", "content": prompt.prompt}]


def _names() -> list[str]:
    """Names of the models that are here; none where the cache cannot be read."""
    from bitnet.hub.models import list_models
    from bitnet.store import Store

    try:
        models = list_models(Store(CacheOptions().root))
    except BitnetError:  # llm has other models, too
        return []
    return [model.name for model in models if model.path is not None]


@lru_cache(maxsize=1)
def _load_model(name: str) -> LanguageModel:
    from bitnet.provision import load

    return load(Context().model(name))
