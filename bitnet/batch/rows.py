"""One line of a batch: what is asked, and as what it is remembered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from bitnet.errors import UsageError
from bitnet.runtime.request import Request

__all__ = ["Row"]


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
        row = cls(str(row_id), digest, facts)
        try:
            row.request(Request())
        except UsageError as error:
            return cls(row.id, digest, facts, error.message)
        return row

    def request(self, default: Request) -> Request:
        """The request of this row; *default* supplies the fields that it leaves out.

        Raises:
            UsageError: a field is unknown, missing, of the wrong type or out of its range.
        """
        facts = {name: value for name, value in self.facts.items() if name != "id"}
        request = Request.from_mapping(facts, default)
        if ("prompt" in facts) == ("messages" in facts):
            raise UsageError("expected either prompt or messages", field="prompt")
        return request
