"""Plugin for ``llm``, the program and the library (https://llm.datasette.io).

``llm`` finds this module by its entry point. It offers the models that are on this machine as
``bitnet/NAME``, loads one when it is first used, and downloads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llm

from bitnet.base.errors import BitnetError
from bitnet.base.options import CacheOptions
from bitnet.commands.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bitnet.runtime.language_model import LanguageModel

BATCH = 64  # most texts in a call of ``embed_batch``


@llm.hookimpl
def register_models(register: Callable[[Any], None]) -> None:
    """Offer every model on this machine for prompts and chats."""
    for name in _names():
        register(Writer(name))


@llm.hookimpl
def register_embedding_models(register: Callable[[Any], None]) -> None:
    """Offer every model on this machine for embeddings."""
    for name in _names():
        register(Embedder(name))


class Embedder(llm.EmbeddingModel):
    """Vectors of texts, computed by :meth:`LanguageModel.embed`."""

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
    """Answers, or continuations of the prompt if the model has no chat template."""

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
        """The answer to *prompt*, in pieces; it follows the earlier responses of *conversation*.

        A model without a chat template continues the prompt; a system prompt or earlier turns are
        refused.
        """
        from bitnet.runtime.request import Request

        try:
            model = _load_model(self._name)
            fields = prompt.options.model_dump(exclude_none=True)
            messages = _messages(prompt, conversation)
            if model.tokenizer.chat_template:
                fields["messages"] = messages
            elif [message["role"] for message in messages] == ["user"]:
                fields["prompt"] = messages[0]["content"]
            else:
                raise llm.ModelError(
                    f"{self._name} has no chat template: it continues one text, without a system "
                    "prompt or earlier turns"
                )
            answer = model.answer(Request.from_mapping(fields))
            yield from answer if stream else ["".join(answer)]
        except BitnetError as error:
            raise llm.ModelError(error.message) from error
        response.set_usage(input=answer.prompt_tokens, output=answer.tokens)


def _messages(prompt: Any, conversation: Any | None) -> list[dict[str, str]]:
    """Messages of *conversation* up to *prompt*, with the last system prompt as the first one."""
    if hasattr(prompt, "messages"):
        messages = [_message_of(message) for message in prompt.messages]
        systems = [message["content"] for message in messages if message["role"] == "system"]
    else:  # an older version of llm
        responses = conversation.responses if conversation is not None else []
        messages = []
        for response in responses:
            messages.append({"role": "user", "content": response.prompt.prompt})
            messages.append({"role": "assistant", "content": response.text()})
        messages.append({"role": "user", "content": prompt.prompt})
        systems = [each.prompt.system for each in responses if each.prompt.system]
    # llm puts the system prompt of the first turn into messages, a later one only in the prompt.
    if prompt.system:
        systems.append(prompt.system)
    instructions = [{"role": "system", "content": text} for text in systems[-1:]]
    turns = [message for message in messages if message["role"] != "system"]
    return [*instructions, *(turns or [{"role": "user", "content": ""}])]


def _message_of(message: Any) -> dict[str, str]:
    """*message* of llm as one of a request; parts other than texts are refused."""
    texts = {"text": "", "reasoning": ""}
    for part in message.parts:
        fields = part.to_dict()
        if fields["type"] not in texts:
            raise llm.ModelError(f"expected texts as messages, not a part {fields['type']!r}")
        texts[fields["type"]] += fields["text"]
    turn = {"role": message.role, "content": texts["text"]}
    return turn | ({"reasoning_content": texts["reasoning"]} if texts["reasoning"] else {})


def _names() -> list[str]:
    """Names of the models on this machine; none if the cache cannot be read."""
    from bitnet.hub.models import list_models
    from bitnet.store import Store

    try:
        models = list_models(Store(CacheOptions().root))
    except BitnetError:  # an error here would keep llm from running the models of other plugins
        return []
    return [model.name for model in models if model.path is not None]


_loaded: dict[str, LanguageModel] = {}  # at most one, by name


def _load_model(name: str) -> LanguageModel:
    """The model that ``bitnet models`` lists as *name*; another one is freed before."""
    from bitnet.provision import load

    if name not in _loaded:
        _loaded.clear()
        _loaded[name] = load(Context().model(name))
    return _loaded[name]
