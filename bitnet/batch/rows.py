"""One line of a batch: what is asked, and as what it is remembered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from bitnet.errors import UsageError
from bitnet.runtime.options import SamplingParams

__all__ = ["Row"]

_SAMPLING = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "seed": int,
}
_KNOWN = {"id", "prompt", "messages", "max_tokens", "stop", *_SAMPLING}


@dataclass(frozen=True)
class Row:
    """A prompt with its options.

    Attributes:
        id: names the row; its line number where it has no ``id``.
        digest: of everything in it; an answer belongs to exactly this row.
        facts: the row as it was read.
        problem: why it cannot be answered; empty where it can.
    """

    id: str
    digest: str
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def parse(cls, line: str, number: int) -> Row:
        """The row on line *number*; what is wrong with it becomes its problem."""
        digest = hashlib.sha256(line.encode()).hexdigest()[:16]
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, too
            return cls(str(number), digest, problem=f"line {number} is no JSON: {error}")
        if not isinstance(facts, dict):
            return cls(str(number), digest, problem=f"line {number} is no JSON object")
        row_id = facts.get("id", number)
        if isinstance(row_id, bool) or not isinstance(row_id, str | int):
            problem = "id is neither text nor a whole number"
            return cls(str(number), digest, facts, problem)
        return cls(str(row_id), digest, facts, _problem(facts))

    @property
    def sampling(self) -> SamplingParams:
        """How its tokens are chosen.

        Raises:
            UsageError: a value is out of its range.
        """
        kinds = _SAMPLING.items()
        return SamplingParams(
            **{name: kind(self.facts[name]) for name, kind in kinds if name in self.facts}
        )

    @property
    def stops(self) -> list[str]:
        """Texts that end the answer."""
        stop = self.facts.get("stop", [])
        return [stop] if isinstance(stop, str) else list(stop)


def _problem(facts: dict[str, Any]) -> str:
    unknown = sorted(set(facts) - _KNOWN)
    if unknown:
        return f"unknown fields: {', '.join(unknown)}"
    if ("prompt" in facts) == ("messages" in facts):
        return "expected either prompt or messages"
    if not isinstance(facts.get("prompt", ""), str):
        return "prompt is no text"
    if "messages" in facts and (problem := _wrong_messages(facts["messages"])):
        return problem
    for name in ("max_tokens", *_SAMPLING):
        value = facts.get(name, 0)
        whole = name == "max_tokens" or _SAMPLING[name] is int
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return f"{name} is no {'whole ' if whole else ''}number"
    stop = facts.get("stop", "")
    if not isinstance(stop, str) and not (
        isinstance(stop, list) and all(isinstance(one, str) for one in stop)
    ):
        return "stop is neither a text nor a list of texts"
    try:
        Row("", "", facts).sampling  # noqa: B018
    except UsageError as error:
        return error.message
    except OverflowError as error:
        return f"a number is out of its range: {error}"
    return ""


def _wrong_messages(messages: Any) -> str:
    """What is wrong with a conversation; empty where nothing is."""
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        return "messages is no list of objects"
    if not messages:
        return "messages is empty"
    for number, one in enumerate(messages):
        if not isinstance(role := one.get("role"), str):
            return f"messages.{number}: role is no text"
        content = one.get("content")
        if content is None and role != "assistant":
            return f"messages.{number}: content is missing"
        if not isinstance(content, str | list | None):
            return f"messages.{number}: content is neither a text nor a list"
    return ""
