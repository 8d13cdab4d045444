"""A conversation with a model: messages, answers, and what is left when one is cut short."""

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
    """Messages back and forth; only what is new is computed.

    Attributes:
        system: instructions that come first; empty: none.
        turns: messages of user and assistant, oldest first.
        stats: of the last answer, ``None`` before there is one.
        finish_reason: of the last answer; ``None`` too where it was cut short from outside.
    """

    def __init__(self, model: LanguageModel, wanted: Request, *, system: str = "") -> None:
        """An empty conversation with *model*, whose answers are as *wanted*.

        Each answer draws with the seed after the last one's.

        Raises:
            Unsupported: the model has no chat template.
        """
        self.system = system
        self.turns: list[dict[str, str]] = []
        self.stats: Stats | None = None
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._wanted = wanted.choice(0)
        self._asked = 0
        model.encode_chat([{"role": "user", "content": "-"}])

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, with the instructions."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.turns]

    def ask(self, text: str) -> Iterator[str]:
        """The answer to *text*, piece by piece; closing the iterator cuts it short.

        A message that got no answer at all is forgotten; a part of an answer is kept.

        Raises:
            UsageError: *text* is empty, or the template does not accept the conversation.
            InferenceError: the conversation does not fit the context.
        """
        check_prompt(text)
        self.turns.append({"role": "user", "content": text})
        answer = None
        self._asked += 1
        try:
            asked = replace(self._wanted.choice(self._asked - 1), messages=self.messages)
            answer = self._model.answer(asked)
            yield from answer
        finally:
            self.finish_reason = answer.finish_reason if answer is not None else None
            if answer is not None and answer.text:
                self.stats = answer.stats
                self.turns.append({"role": "assistant", "content": answer.text})
            else:
                self.turns.pop()
