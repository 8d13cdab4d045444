"""One line of a batch: what is asked, and as what it is remembered."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from bitnet.batch.openai_rows import fields_of
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
        name = "custom_id" if "custom_id" in facts else "id"
        row_id = facts.get(name, number)
        if isinstance(row_id, bool) or not isinstance(row_id, str | int):
            problem = f"{name} is neither text nor a whole number"
            return cls(str(number), digest, facts, problem)
        row = cls(str(row_id), digest, facts)
        try:
            row.request(Request())
        except UsageError as error:
            return cls(row.id, digest, facts, error.message)
        return row

    @property
    def is_openais(self) -> bool:
        """Whether it is a line of one of OpenAI's batch files."""
        return "custom_id" in self.facts

    def request(self, default: Request) -> Request:
        """The request of this row; *default* supplies the fields that it leaves out.

        Raises:
            UsageError: a field is unknown, missing, of the wrong type or out of its range.
        """
        if self.is_openais:
            facts = fields_of(self.facts)
        else:
            facts = {name: value for name, value in self.facts.items() if name != "id"}
        if "response_format" in facts:
            schema = _schema(facts.pop("response_format"))
            if schema is not None and facts.setdefault("json_schema", schema) is not schema:
                raise UsageError(
                    "json_schema and response_format are both given", field="response_format"
                )
        request = Request.from_mapping(facts, default)
        if ("prompt" in facts) == ("messages" in facts):
            raise UsageError("expected either prompt or messages", field="prompt")
        return request


def _schema(form: Any) -> Any:
    """The schema that OpenAI's *form* of a response means; ``None``: any text."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind in ("text", "json_object"):
        return {"type": "object"} if kind == "json_object" else None
    given = form.get("json_schema") if kind == "json_schema" else None
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise UsageError(
            "response_format is none of text, json_object and a json_schema with its schema",
            field="response_format",
        )
    return schema
