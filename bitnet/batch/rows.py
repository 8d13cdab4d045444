"""Rows of a batch and their answers: of this package's own form, or lines of OpenAI's batch files.

Lines have ``custom_id``, ``method``, ``url`` and ``body``, as platform.openai.com/docs/guides/batch
describes them. A body is one that the server accepts at the same URL, and its answer has the form
of the server's reply.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, UsageError
from bitnet.base.trust import encodable
from bitnet.formats.model_files import model_name
from bitnet.runtime.answer import Answer
from bitnet.runtime.request import Request, SamplingOptions
from bitnet.runtime.request_checks import check_messages
from bitnet.wire.embeddings import MAX_TEXTS
from bitnet.wire.fields import ROW
from bitnet.wire.forms import Form, read_json
from bitnet.wire.logprobs import token_facts
from bitnet.wire.messages import read_messages
from bitnet.wire.openai import completion_requests, schema_of
from bitnet.wire.routes import ROUTES
from bitnet.wire.schemas import OBJECT

if TYPE_CHECKING:
    from collections import abc

    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import TokenLogprob
    from bitnet.runtime.sequence import Sequence

logger = logging.getLogger(__name__)

#: A row of this package's own form: a request by the names of its fields.
PLAIN = Form("BatchRow", {**ROW, "response_format": OBJECT})

#: Forms of request bodies, by the URLs that a line may have. A completion may have as many prompts
#: as embeddings may have texts.
URLS: dict[str, Form] = {path: form for path, form in ROUTES.items() if form.tag == "OpenAI"}
URLS["/v1/completions"] = replace(
    URLS["/v1/completions"], requests=partial(completion_requests, at_most=MAX_TEXTS)
)


@dataclass(frozen=True)
class BatchRow:
    """A prompt with its options."""

    id: str  # its line number if it states none, see with_id_besides
    digest: str  # of its content; an answer belongs to exactly this row
    facts: dict[str, Any] = field(default_factory=dict)  # the row as it was read
    problem: str = ""  # reason why it cannot be answered
    states_id: bool = True

    @classmethod
    def parse(cls, line: str, number: int) -> BatchRow:
        """The row on line *number*; an error in it becomes its problem."""
        digest = hashlib.sha256(line.encode()).hexdigest()[:16]
        without_id = cls(str(number), digest, states_id=False)
        try:
            facts = read_json(line)
        except UsageError as error:
            problem = error.message.replace("the body", f"line {number}")
            return replace(without_id, problem=problem)
        if not isinstance(facts, dict):
            return replace(without_id, problem=f"line {number} is not a JSON object")
        name = "custom_id" if "custom_id" in facts else "id"
        row = replace(without_id, facts=facts)
        if name in facts:
            row_id = facts[name]
            if isinstance(row_id, bool) or not isinstance(row_id, str | int):
                return replace(row, problem=f"{name} is neither text nor a whole number")
            row = cls(str(row_id), digest, facts)
        try:
            row.requests(Request())
        except UsageError as error:
            return replace(row, problem=error.message)
        return row

    def with_id_besides(self, stated_ids: abc.Set[str]) -> BatchRow:
        """This row; if it states no id, with one that is not among *stated_ids*."""
        if self.states_id:
            return self
        row_id = self.id
        while row_id in stated_ids:
            row_id = f"line {row_id}"
        return replace(self, id=row_id)

    @property
    def is_openai_line(self) -> bool:
        """True if it is a line of one of OpenAI's batch files."""
        return "custom_id" in self.facts

    def requests(self, default: Request, model: LanguageModel | None = None) -> list[Request]:
        """The requests of this row; *default* supplies the fields that it leaves out.

        An OpenAI line has one request for each answer, those of a prompt next to each other. It is
        refused if *model* cannot give what it asks for.
        """
        if self.is_openai_line:
            return self._requests_of_body(default, model)
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
            facts["messages"] = read_messages(facts["messages"], model)
        facts["json_schema"] = facts["json_schema"] if schema is None else schema
        return [Request.from_mapping(facts, default)]

    def list_ignored(self, model: LanguageModel, *, strict_names: bool = False) -> list[str]:
        """Names of its fields that have no effect on the answer of *model*.

        The name of another model counts as one; with *strict_names* it is refused.
        """
        if self.problem or not self.is_openai_line:
            return []
        form = URLS[self.facts["url"]]
        body = form.read(self.facts["body"])
        names = form.list_ignored(body, model)
        requested_name = body["model"]
        name = model_name(model.path)
        if requested_name is not None and requested_name != name:
            if strict_names:
                raise UsageError(
                    f"body.model: {requested_name[:100]!r} is not the model that answers, {name!r}",
                    hint="correct it, or leave --strict-model-name out",
                    field="body.model",
                )
            names.append(f"model {requested_name[:100]!r}: {name} answers")
        return names

    def reply(self, answers: abc.Sequence[Answer], model: LanguageModel) -> dict[str, Any]:
        """Fields for :meth:`output`: an OpenAI line's reply as ``body``, or the answer's."""
        if self.is_openai_line:
            path = self.facts["url"]
            name = model_name(model.path)
            form = URLS[path]
            body = form.read(self.facts["body"])
            row_id = f"{form.id_prefix}{self.digest}"
            created = int(time.time())
            head = {"id": row_id, "created": created, "model": name}
            ignored = self.list_ignored(model)
            return {"body": form.reply(body, head, answers), "ignored": ignored}
        (answer,) = answers
        optional: dict[str, Any] = {}
        if answer.calls:
            optional["tool_calls"] = [asdict(call) for call in answer.calls]
        if answer.sequence.request.logprobs is not None:
            optional["logprobs"] = [_logprob(token) for token in answer.logprobs]
        return {
            "text": answer.text,
            **optional,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": len(answer.prompt_ids),
            "tokens": answer.tokens,
        }

    def output(self, facts: abc.Mapping[str, Any]) -> dict[str, Any]:
        """The line of the output with *facts*: those of :meth:`reply`, or an ``error``."""
        if not self.is_openai_line:
            return {"id": self.id, "row": self.digest, **facts}
        error = facts.get("error")
        response = None
        if error is None:
            request_id = f"row-{self.digest}"
            response = {"status_code": 200, "request_id": request_id, "body": facts["body"]}
            if facts.get("ignored"):
                response["ignored"] = facts["ignored"]
        failure = None if error is None else {"code": "request_failed", "message": error}
        return {"id": f"batch_req_{self.digest}", "custom_id": self.id, "row": self.digest,
                "response": response, "error": failure}  # fmt: skip

    def _requests_of_body(self, default: Request, model: LanguageModel | None) -> list[Request]:
        facts = self.facts
        for name, accepted in (("url", [*URLS]), ("method", ["POST"])):
            if (value := facts.get(name)) not in accepted:
                expected = (
                    f"one of {', '.join(accepted)}" if len(accepted) > 1 else repr(accepted[0])
                )
                message = f"{name} is {str(value)[:80]!r}, expected {expected}"
                raise UsageError(message, field=name)
        path = facts["url"]
        if unknown := set(facts) - {"custom_id", "method", "url", "body"}:
            name = encodable(min(unknown)[:200])
            raise UsageError(f"{name} is not a field of a line", field=name)
        if not isinstance(facts.get("body"), dict):
            raise UsageError("body: expected a JSON object", field="body")
        form = URLS[path]
        try:
            body = form.read(facts["body"])
            if body.get("stream"):
                raise UsageError("stream is not for a batch", field="stream")
        except UsageError as error:
            raise _in_body(error) from error
        try:
            requests = form.requests(body, default, model)
            for request in requests:
                request.check()
        except UsageError as error:
            raise _in_body(form.rename(error, body)) from error
        choices = range(body.get("n") or 1)
        return [request.choice(number) for request in requests for number in choices]


def _in_body(error: UsageError) -> UsageError:
    """*error* about a field of the body of a line, which it names by its path in the line."""
    if not error.field:
        return error
    field = f"body.{error.field}"
    message = f"{field}: {error.message}"
    if error.message.startswith(error.field):
        message = f"body.{error.message}"
    return UsageError(message, hint=error.hint, field=field)


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    facts = {"id": token.id, **token_facts(token)}
    return facts | ({"top": [_logprob(candidate) for candidate in token.top]} if token.top else {})


def answers(
    rows: abc.Iterable[BatchRow],
    model: LanguageModel,
    *,
    max_tokens: int | None = None,
    max_batch: int = 8,
    strict_model_name: bool = False,
    sampling: SamplingOptions | None = None,
) -> abc.Iterator[tuple[BatchRow, dict[str, Any]]]:
    """Yield *rows* with their answers, as they are finished.

    An error in a row becomes its answer, as ``error``; other rows are not affected. *max_tokens*
    and *sampling* replace what the model's files recommend, and a row may replace them. *max_batch*
    answers are generated at the same time. With *strict_model_name* a row that names another model
    is refused.
    """
    scheduler = model.scheduler(max_batch=max_batch)
    waiting = iter(rows)
    options = asdict(sampling or SamplingOptions())
    default = Request(max_tokens=max_tokens, **options).with_origin("command line")
    ignored: set[str] = set()  # fields that the log has named
    running: dict[Sequence, tuple[BatchRow, Answer, list[Answer]]] = {}
    while True:
        while len(running) < max_batch and (row := next(waiting, None)) is not None:
            try:
                if row.problem:
                    raise UsageError(row.problem)
                requests = row.requests(default, model)
                sequences = [scheduler.prepare(*model.prepare(request)) for request in requests]
                for name in row.list_ignored(model, strict_names=strict_model_name):
                    if name not in ignored:
                        ignored.add(name)
                        logger.warning("rows have a field that changes nothing: %s", name)
            except BitnetError as error:
                yield row, {"error": error.message}
                continue
            choices = [Answer(model.tokenizer, sequence) for sequence in sequences]
            for answer in choices:
                scheduler.queue(answer.sequence)
                running[answer.sequence] = row, answer, choices
        if not running:
            return
        for sequence, piece in scheduler.step():
            if sequence not in running:
                continue
            row, answer, choices = running[sequence]
            try:
                is_over = bool(answer.take(piece).finish_reason)
            except Exception as error:  # noqa: BLE001 - it becomes the answer of the row
                answer.error = error
                is_over = True
            if not is_over:
                continue
            # The scheduler does not know that a stop text ends an answer, so it is cancelled there.
            # An answer that fails ends all answers of its row.
            ended = choices if answer.error else [answer]
            for choice in ended:
                running.pop(choice.sequence, None)
                scheduler.cancel(choice.sequence)
            if answer.error or all(choice.finish_reason for choice in choices):
                if problem := answer.error:
                    yield row, {"error": getattr(problem, "message", str(problem))}
                else:
                    yield row, row.reply(choices, model)


def in_order(
    rows: abc.Iterable[BatchRow], answered: abc.Iterable[tuple[BatchRow, dict[str, Any]]]
) -> abc.Iterator[tuple[BatchRow, dict[str, Any]]]:
    """Results of *answered* in the order of *rows*; an answer waits for earlier ones."""
    early: dict[str, tuple[BatchRow, dict[str, Any]]] = {}
    finished = iter(answered)
    for row in rows:
        while row.id not in early:
            finished_row = next(finished)
            early[finished_row[0].id] = finished_row
        yield early.pop(row.id)
