"""A conversation with a model: its messages and answers, also answers that were cut short."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.runtime.request import check_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Stats
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import FinishReason
    from bitnet.runtime.request import Request

__all__ = ["Conversation"]


class Conversation:
    """A conversation of several turns; only the new part of each prompt is computed.

    Attributes:
        system: instructions that come first; may be empty.
        turns: messages of user and assistant, oldest first.
        stats: metrics of the last answer, ``None`` before the first.
        finish_reason: of the last answer; also ``None`` if it was cut short from outside.
    """

    def __init__(self, model: LanguageModel, request: Request, *, system: str = "") -> None:
        """An empty conversation with *model*, whose answers follow the settings of *request*.

        Each answer uses the seed of the previous one plus one.

        Raises:
            Unsupported: the model has no chat template.
        """
        self.system = system
        self.turns: list[dict[str, str]] = []
        self.stats: Stats | None = None
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._request = request.choice(0)
        self._asked = 0
        model.encode_chat([{"role": "user", "content": "-"}])

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, including the system's."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.turns]

    def ask(self, text: str) -> Iterator[str]:
        """The answer to *text*, in pieces; closing the iterator cuts it short.

        A message without any answer is forgotten; a partial answer is kept.

        Raises:
            UsageError: *text* is empty, or the template does not accept the conversation.
            InferenceError: the conversation does not fit the context.
        """
        check_prompt(text)
        self.turns.append({"role": "user", "content": text})
        answer = None
        self._asked += 1
        try:
            asked = replace(self._request.choice(self._asked - 1), messages=self.messages)
            answer = self._model.answer(asked)
            yield from answer
        finally:
            self.finish_reason = answer.finish_reason if answer is not None else None
            if answer is not None and answer.text:
                self.stats = answer.stats
                self.turns.append({"role": "assistant", "content": answer.text})
            else:
                self.turns.pop()
