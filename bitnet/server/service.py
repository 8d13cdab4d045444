"""A loaded model as the routes work with it: its worker, its name and its events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bitnet.errors import InferenceError
from bitnet.server.refusals import Refused

if TYPE_CHECKING:
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.request import Request
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.narration import Narrator
    from bitnet.server.worker import Worker

__all__ = ["Service"]


@dataclass(frozen=True)
class Service:
    """A loaded model.

    Attributes:
        worker: runs the model.
        narrate: tells what happens.
        name: of the model, as clients see it.
        max_output_tokens: tokens one answer may have.
    """

    worker: Worker
    narrate: Narrator
    name: str
    max_output_tokens: int = 4096

    @property
    def model(self) -> LanguageModel:
        """The model."""
        return self.worker.model

    def close(self) -> None:
        """End every answer, the thread and the model."""
        self.worker.stop()
        self.model.close()

    def sequences(
        self, ids: list[int], request: Request, *, tokens: int, choices: int = 1
    ) -> list[Sequence]:
        """Sequences that continue *ids*, one for each choice, ready to run.

        Args:
            ids: the prompt.
            request: as prepared by the model.
            tokens: most tokens to generate.
            choices: number of answers, each with its own seed.

        Raises:
            Refused: too many tokens are requested, or there is no room for them.
        """
        limit, context = self.max_output_tokens, self.model.context
        if tokens > limit:
            raise Refused(
                400, f"{tokens:,} tokens asked for, this worker writes at most {limit:,}",
                param="max_tokens",
            )  # fmt: skip
        if len(ids) > context:
            raise Refused(
                400, f"the prompt has {len(ids):,} tokens, the context holds {context:,}",
                code="context_length_exceeded",
            )  # fmt: skip
        request = replace(request, max_tokens=tokens)
        try:
            return [self.worker.prepare(ids, request.choice(number)) for number in range(choices)]
        except InferenceError as error:  # it would never fit the memory
            raise Refused(400, error.message, code="context_length_exceeded") from error
