"""A conversation of several turns with a loaded model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.request_checks import check_messages, check_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import FinishReason


class Conversation:
    """A conversation of several turns; only the new part of each prompt is computed."""

    def __init__(self, model: LanguageModel, request: Request, *, system: str = "") -> None:
        """An empty conversation with *model*, whose answers follow the settings of *request*.

        Each answer uses the seed of the previous one plus one.
        """
        self.system = system  # instructions that come first; may be empty
        self.turns: list[dict[str, str]] = []  # of user, assistant and later system messages
        self.beginning: Sequence[Mapping[str, str]] = ()  # turns that :meth:`clear` leaves
        self.answer: Answer | None = None  # the last one that has a text
        # of the last question's answer; None if it was cut short from outside
        self.finish_reason: FinishReason | None = None
        self.model = model
        self.request = request.choice(0)  # with a seed, drawn if *request* has none
        self._asked = 0  # number of questions
        # A model without a chat template is refused here, not at the first question.
        model.encode_chat([{"role": "user", "content": "-"}])

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, including the system's."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.turns]

    def clear(self) -> None:
        """Begin again, with the same instructions and the same first turns."""
        self.turns = [dict(turn) for turn in self.beginning]

    def set_option(self, name: str, value: Any) -> None:
        """Change the option *name* of the answers that follow."""
        if name in ("prompt", "messages", "tools", "tool_choice"):
            raise UsageError(f"{name} is not an option of a conversation")
        self.request = Request.from_mapping({name: value}, self.request)

    def load(self, messages: Any) -> None:
        """Continue *messages* as this conversation; a first system message is its instructions."""
        check_messages(messages)
        for message in messages:
            is_known = message["role"] in ("system", "user", "assistant")
            if not is_known or not isinstance(message.get("content"), str):
                raise UsageError("a conversation has texts of the system, the user, the assistant")
        first = [message["content"] for message in messages[:1] if message["role"] == "system"]
        self.system = first[0] if first else ""
        self.turns = [dict(message) for message in messages[len(first) :]]

    def ask(self, text: str) -> Iterator[str]:
        """The answer to *text*, in pieces; closing the iterator cuts it short.

        A message without any answer is forgotten; a partial answer is kept.
        """
        check_prompt(text)
        self.turns.append({"role": "user", "content": text})
        answer = None
        self._asked += 1
        try:
            request = replace(self.request.choice(self._asked - 1), messages=self.messages)
            answer = self.model.answer(request)
            yield from answer
        finally:
            self.finish_reason = answer.finish_reason if answer is not None else None
            if answer is not None and answer.text:
                self.answer = answer
                self.turns.append({"role": "assistant", "content": answer.text})
            else:
                self.turns.pop()
