"""One row of a batch: its request and identity."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from bitnet.base.errors import UsageError
from bitnet.batch.openai_rows import requests_of
from bitnet.runtime.request import Request, check_messages
from bitnet.wire.fields import OBJECT, ROW, Form
from bitnet.wire.openai import schema_of

__all__ = ["BatchRow"]

#: A row of this package's own form: a request by the names of its fields.
PLAIN = Form("BatchRow", {**ROW, "response_format": OBJECT})


@dataclass(frozen=True)
class BatchRow:
    """A prompt with its options.

    Attributes:
        id: of the row; its line number if it has no ``id``.
        digest: of its content; an answer belongs to exactly this row.
        facts: the row as it was read.
        problem: reason why it cannot be answered; empty if there is none.
    """

    id: str
    digest: str
    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def parse(cls, line: str, number: int) -> BatchRow:
        """The row on line *number*; an error in it becomes its problem."""
        digest = hashlib.sha256(line.encode()).hexdigest()[:16]
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers with thousands of digits
            return cls(str(number), digest, problem=f"line {number} is not JSON: {error}")
        if not isinstance(facts, dict):
            return cls(str(number), digest, problem=f"line {number} is not a JSON object")
        name = "custom_id" if "custom_id" in facts else "id"
        row_id = facts.get(name, number)
        if isinstance(row_id, bool) or not isinstance(row_id, str | int):
            problem = f"{name} is neither text nor a whole number"
            return cls(str(number), digest, facts, problem)
        row = cls(str(row_id), digest, facts)
        try:
            row.requests(Request())
        except UsageError as error:
            return cls(row.id, digest, facts, error.message)
        return row

    @property
    def is_openais(self) -> bool:
        """True if it is a line of one of OpenAI's batch files."""
        return "custom_id" in self.facts

    def requests(self, default: Request) -> list[Request]:
        """The requests of this row; *default* supplies the fields that it leaves out."""
        if self.is_openais:
            return requests_of(self.facts, default)
        facts = PLAIN.read({name: value for name, value in self.facts.items() if name != "id"})
        schema = schema_of(facts.pop("response_format"))
        if None not in (schema, facts["json_schema"]):
            raise UsageError(
                "json_schema and response_format are both given", field="response_format"
            )
        if (facts["prompt"] is None) == (facts["messages"] is None):
            raise UsageError("expected either prompt or messages", field="prompt")
        if facts["messages"] is not None:
            check_messages(facts["messages"])
        facts["json_schema"] = facts["json_schema"] if schema is None else schema
        return [Request.from_mapping(facts, default)]
