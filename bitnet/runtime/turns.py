"""Messages of a request as turns that the model's chat template writes completely.

Templates drop what they do not expect: a second system message, the text beside a call, calls of
earlier turns. Such contents are moved to where the template's facts say that it writes them. Then
the turns are rendered with a mark in place of each content; if a mark is still missing, the request
is refused.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from bitnet.base.errors import BitnetError, UsageError
from bitnet.runtime.request_checks import REASONING_NAMES, reasoning_of
from bitnet.runtime.tool_calls import write_calls
from bitnet.runtime.tool_detection import form_named_in, format_of, format_of_calls
from bitnet.runtime.tool_formats import INDEX, NAME, fill
from bitnet.tokenizer.chat import flatten
from bitnet.tokenizer.template_facts import mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.tokenizer.chat import ChatTemplate, Message

_INSTRUCTIONS = ("system", "developer")
_ROLES = (*_INSTRUCTIONS, "user", "assistant", "tool")
_ID_LENGTH = 9
MOST_PROOFS = 256  # conversations, by their form, whose result is cached
# marks that a template does not write, by a digest of the template and the form; oldest first
_PROOFS: OrderedDict[bytes, frozenset[str]] = OrderedDict()
_PROOFS_LOCK = threading.Lock()


@dataclass(frozen=True)
class Turn:
    """A message for the template, and the number of the request's message that it is made of."""

    number: int
    message: Message

    @property
    def role(self) -> str:
        """Role of the message."""
        return str(self.message["role"])

    @property
    def text(self) -> str:
        """The text of the message."""
        content = self.message.get("content") or ""
        return content if isinstance(content, str) else flatten(content)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of functions in the message."""
        return self.message.get("tool_calls") or []

    def change(self, **entries: Any) -> Turn:
        """This turn with other *entries* of its message; None removes one."""
        message = {**self.message, **entries}
        return replace(
            self, message={name: value for name, value in message.items() if value is not None}
        )


class Turns:
    """Turns of *messages* that a *template* renders completely.

    *tools* are functions that the template lists, *variables* more that it sees. *explained* are
    functions that it cannot list, which a system message then describes.
    """

    def __init__(
        self,
        template: ChatTemplate,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        explained: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._facts = template.facts
        self._tools = tools
        self._variables = variables
        facts = self._facts
        turns = [Turn(number, _tidy(number, message)) for number, message in enumerate(messages)]
        uses_tools = any(turn.calls or turn.role == "tool" for turn in turns)
        if uses_tools:
            own_id = form_named_in(template.text).call_id
            turns = _link_results(turns, own_id=own_id, short=facts.short_ids)
            # Whether answers that imitate the template's calls can be parsed. It matters only where
            # the functions are explained: the model then imitates these calls.
            is_readable = not explained or format_of_calls(template) is not None
            if not (facts.calls and facts.results and is_readable):
                turns = self._spell(turns, results=not (facts.results and is_readable))
        if explained:
            prompt = explain_tools(self.format, explained)
            turns = _add_instructions(turns, prompt)
        turns = self._place_instructions(turns)
        if uses_tools and not facts.several_calls:
            turns = list(_call_one_by_one(turns))
        if uses_tools and not facts.text_beside_calls:
            turns = list(_part_from_calls(turns, {turn.number for turn in turns}))
        if not facts.repeated_user:
            turns = _join_users(turns)
        self._turns = self._complete(turns)

    @property
    def messages(self) -> list[Message]:
        """The messages for the template."""
        return [turn.message for turn in self._turns]

    @property
    def format(self) -> CallFormat:
        """Format in which calls are spelled where the template does not write them."""
        return format_of(self._template)

    def _spell(self, turns: Sequence[Turn], *, results: bool) -> list[Turn]:
        """*turns* with calls as text in :attr:`format`; see :func:`_spell_calls`."""
        return list(_spell_calls(turns, self.format, results=results))

    # --- instructions -----------------------------------------------------------------------------

    def _place_instructions(self, turns: Sequence[Turn]) -> list[Turn]:
        """*turns* whose system messages are where the template writes them."""
        facts = self._facts
        if not facts.developer:
            turns = [
                turn.change(role="system") if turn.role == "developer" else turn for turn in turns
            ]
        instructions = [turn for turn in turns if turn.role in _INSTRUCTIONS]
        if not instructions or (facts.later_system and facts.system):
            return list(turns)
        if not facts.system and not (facts.developer and instructions[0].role == "developer"):
            return _give_to_user(turns)
        if len(instructions) == 1 and turns[0] is instructions[0]:
            return list(turns)
        return _join_instructions(turns)

    # --- proof ------------------------------------------------------------------------------------

    def _complete(self, turns: Sequence[Turn]) -> list[Turn]:
        """*turns*, changed until the template writes all of them; else refused."""
        lost = self._find_lost(turns)
        repairs: tuple[Callable[[Sequence[Turn], set[int]], list[Turn]], ...] = (
            lambda turns, _: _join_instructions(turns),
            lambda turns, _: _give_to_user(turns),
            lambda turns, numbers: list(_part_from_calls(turns, numbers)),
            lambda turns, _: self._spell(turns, results=True),
        )
        for repair in repairs:
            if not lost:
                break
            changed = repair(turns, {turn.number for turn, _ in lost})
            if not self._facts.repeated_user:
                changed = _join_users(changed)
            try:
                still_lost = self._find_lost(changed)
            except BitnetError:  # the template refuses the changed turns
                continue
            if len(still_lost) < len(lost):
                turns = changed
                lost = still_lost
        if lost:
            self._refuse(*lost[0])
        return list(turns)

    def _refuse(self, turn: Turn, part: str) -> NoReturn:
        """Raise the error about a *part* of *turn* that the template does not write."""
        where = f"messages.{turn.number}"
        hint = "leave it out, or name another template with --chat-template FILE"
        if turn.role not in _ROLES:
            hint = f"use one of the roles {', '.join(_ROLES)}"
        raise UsageError(
            f"{where}: the chat template of {self._template.source} leaves out {part} of a message"
            f" with the role {turn.role[:40]!r}",
            hint=hint,
            field=where,
        )

    def _find_lost(self, turns: Sequence[Turn]) -> list[tuple[Turn, str]]:
        """Parts that the template does not write, each with its turn: the text, or a call."""
        marks: list[tuple[str, Turn, str]] = []
        messages = []
        for turn in turns:
            message, own = _mark_contents(turn, len(marks))
            messages.append(message)
            marks += own
        words = [word for word, _, _ in marks]
        lost = self._find_unwritten(messages, words)
        return [(turn, part) for word, turn, part in marks if word in lost]

    def _find_unwritten(self, messages: list[Message], words: list[str]) -> frozenset[str]:
        """Those of *words*, in *messages*, that the template does not write.

        Contents are marks, so the result is the same for conversations of one form, and is cached.
        """
        template = self._template
        form = [template.digest, messages, self._tools, self._variables]
        key = hashlib.sha256(json.dumps(form, default=str).encode()).digest()
        with _PROOFS_LOCK:
            proven = _PROOFS.get(key)
        if proven is not None:
            return proven
        text = template.render(messages, tools=self._tools, variables=self._variables)
        lost = frozenset(word for word in words if word not in text)
        with _PROOFS_LOCK:
            _PROOFS[key] = lost
            while len(_PROOFS) > MOST_PROOFS:
                _PROOFS.popitem(last=False)
        return lost


def _mark_contents(turn: Turn, count: int) -> tuple[Message, list[tuple[str, Turn, str]]]:
    """The message of *turn* with marks as its contents, from number *count* on, and those marks."""
    message = dict(turn.message)
    marks: list[tuple[str, Turn, str]] = []

    def add(part: str) -> str:
        word = mark(count + len(marks))
        marks.append((word, turn, part))
        return word

    if turn.text.strip():
        word = add("the text")
        is_text = isinstance(message["content"], str)
        message["content"] = word if is_text else [{"type": "text", "text": word}]
    if turn.calls:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": {"mark": add("a call")}}}
            for call in turn.calls
        ]
    return message, marks


# --- messages as clients send them --------------------------------------------------------------


def _tidy(number: int, message: Mapping[str, Any]) -> Message:
    """*message* without empty entries, its calls checked, and its reasoning under one name."""
    tidy = {name: value for name, value in message.items() if value is not None}
    reasoning = reasoning_of(tidy)
    for name in REASONING_NAMES:
        tidy.pop(name, None)
    if reasoning:
        tidy["reasoning_content"] = reasoning
    if "content" not in tidy:
        tidy["content"] = ""
    calls = tidy.pop("tool_calls", None)
    if calls is not None and not isinstance(calls, list):
        raise UsageError(f"messages.{number}: tool_calls is not a list", field="messages")
    if calls:
        tidy["tool_calls"] = [
            _tidy_call(call, f"messages.{number}.tool_calls.{index}")
            for index, call in enumerate(calls)
        ]
    return tidy


def _tidy_call(call: Any, where: str) -> dict[str, Any]:
    """*call* with the type and the arguments that every template expects."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError(f"{where}: a call has no function name", field=where)
    arguments = function.get("arguments") or "{}"
    field = f"{where}.function.arguments"
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        json.dumps(parsed, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise UsageError(f"{field}: not JSON", field=field) from None
    if not isinstance(parsed, Mapping):
        raise UsageError(f"{field}: not a JSON object", field=field)
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _link_results(turns: Sequence[Turn], *, own_id: str, short: bool) -> list[Turn]:
    """*turns* whose calls all have an id, and whose results have the id and name of their call.

    Templates need ids: some refuse a call without one, others find the call of a result by it.
    *own_id* is the text of an id as the model writes it, or empty. A *short* id has nine letters
    and digits.
    """
    linked: list[Turn] = []
    count = 0  # calls so far
    names: dict[str, str] = {}
    open_ids: list[str] = []  # of calls without a result, the oldest first
    for turn in turns:
        if turn.calls:
            calls = []
            for index, call in enumerate(turn.calls):
                name = call["function"]["name"]
                missing = f"call{turn.number}.{index}"
                if NAME in own_id:  # the template writes the name of the function nowhere else
                    missing = fill(own_id, {NAME: name, INDEX: str(count)})
                call_id = _id_of(call.get("id"), missing, short=short)
                calls.append({**call, "id": call_id})
                names[call_id] = name
                open_ids.append(call_id)
                count += 1
            linked.append(turn.change(tool_calls=calls))
        elif turn.role == "tool":
            stated = turn.message.get("tool_call_id")
            named = turn.message.get("name")
            # Without an id, a result belongs to the oldest call of its function, else of any.
            candidates = [each for each in open_ids if names[each] == named] or open_ids or ["call"]
            call_id = _id_of(stated, candidates[0], short=short and bool(stated))
            if call_id in open_ids:
                open_ids.remove(call_id)
            function = named or names.get(call_id)
            linked.append(turn.change(tool_call_id=call_id, name=function))
        else:
            linked.append(turn)
    return linked


def _id_of(call_id: Any, missing: str, *, short: bool) -> str:
    """The client's *call_id*, else *missing*, in the form that templates take."""
    name = str(call_id) if call_id else missing
    is_short = len(name) == _ID_LENGTH and name.isascii() and name.isalnum()
    if not short or is_short:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:_ID_LENGTH]


# --- instructions -------------------------------------------------------------------------------


def explain_tools(form: CallFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    """Instructions about *tools* for a model whose template has none."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    arguments = '{"ARGUMENT": VALUE}'
    if form.notation.kind != "json":
        arguments = '{"ARGUMENT": "VALUE"}'
    example = write_calls(form, [{"function": {"name": "NAME", "arguments": arguments}}])
    return (
        "You may call functions. Each line describes one, as JSON:\n"
        + "\n".join(lines)
        + f"\n\nTo call a function, answer with nothing but\n{example}"
    )


def _add_instructions(turns: Sequence[Turn], prompt: str) -> list[Turn]:
    """*turns* whose first system message ends with *prompt*."""
    if turns and turns[0].role in _INSTRUCTIONS:
        text = "\n\n".join(filter(None, (turns[0].text, prompt)))
        return [turns[0].change(content=text), *turns[1:]]
    return [Turn(0, {"role": "system", "content": prompt}), *turns]


def _join_instructions(turns: Sequence[Turn]) -> list[Turn]:
    """*turns* with all system messages in one, at the beginning."""
    instructions = [turn for turn in turns if turn.role in _INSTRUCTIONS]
    if not instructions:
        return list(turns)
    text = "\n\n".join(turn.text for turn in instructions if turn.text)
    rest = [turn for turn in turns if turn.role not in _INSTRUCTIONS]
    return [instructions[0].change(content=text), *rest]


def _give_to_user(turns: Sequence[Turn]) -> list[Turn]:
    """*turns* with all system messages at the beginning of the user's first one."""
    joined = _join_instructions(turns)
    if not joined or joined[0].role not in _INSTRUCTIONS:
        return joined
    text = joined[0].text
    rest = joined[1:]
    index = next((at for at, turn in enumerate(rest) if turn.role == "user"), None)
    if index is None:
        return [joined[0].change(role="user"), *rest]
    whole = "\n\n".join(filter(None, (text, rest[index].text)))
    return [*rest[:index], rest[index].change(content=whole), *rest[index + 1 :]]


def _join_users(turns: Sequence[Turn]) -> list[Turn]:
    """*turns* in which consecutive messages of the user are one."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and turn.role == joined[-1].role == "user":
            texts = filter(None, (joined[-1].text, turn.text))
            joined[-1] = joined[-1].change(content="\n\n".join(texts))
        else:
            joined.append(turn)
    return joined


# --- calls and results --------------------------------------------------------------------------


def _call_one_by_one(turns: Sequence[Turn]) -> Iterator[Turn]:
    """*turns* in which a message has one call, followed by its results."""
    results = _results_of_calls(turns)
    moved = {
        index
        for (of_turn, _), indices in results.items()
        if len(turns[of_turn].calls) > 1
        for index in indices
    }
    for at, turn in enumerate(turns):
        if len(turn.calls) < 2:
            if at not in moved:
                yield turn
            continue
        for number, call in enumerate(turn.calls):
            first = turn if number == 0 else turn.change(content="", reasoning_content=None)
            yield first.change(tool_calls=[call])
            yield from (turns[index] for index in results[at, number])


def _results_of_calls(turns: Sequence[Turn]) -> dict[tuple[int, int], list[int]]:
    """Indices of the results of each call, by the index of its turn and its number in that turn.

    Clients may use an id again, so a result belongs to the last message before it that has the id;
    of several calls there with this id, to the first one without a result.
    """
    results: dict[tuple[int, int], list[int]] = {}
    latest: dict[str, list[tuple[int, int]]] = {}  # calls of the last message with an id
    for at, turn in enumerate(turns):
        own: dict[str, list[tuple[int, int]]] = {}
        for number, call in enumerate(turn.calls):
            results[at, number] = []
            own.setdefault(call["id"], []).append((at, number))
        latest |= own
        if turn.role == "tool":
            calls = latest.get(turn.message.get("tool_call_id", ""), [])
            unanswered = [call for call in calls if not results[call]]
            if calls:
                results[(unanswered or calls)[0]].append(at)
    return results


def _part_from_calls(turns: Iterable[Turn], numbers: set[int]) -> Iterator[Turn]:
    """*turns* in which text beside calls becomes a message before them.

    Only turns made of the request's messages *numbers* are changed.
    """
    for turn in turns:
        if turn.number in numbers and turn.calls and turn.text.strip():
            yield turn.change(tool_calls=None, reasoning_content=None)
            yield turn.change(content="")
        else:
            yield turn


def _spell_calls(turns: Iterable[Turn], form: CallFormat, *, results: bool) -> Iterator[Turn]:
    """*turns* with their calls as text; with *results*, tool results become the user's text, too.

    Results are spelled if the template has no role for them.
    """
    pending_results: list[Turn] = []

    def join_held() -> Turn:
        texts = [f"<tool_response>\n{turn.text}\n</tool_response>" for turn in pending_results]
        return Turn(pending_results[0].number, {"role": "user", "content": "\n".join(texts)})

    for turn in turns:
        if results and turn.role == "tool":
            pending_results.append(turn)
            continue
        if pending_results:
            yield join_held()
            pending_results = []
        if turn.calls:
            texts = filter(None, (turn.text, write_calls(form, turn.calls)))
            turn = turn.change(content="\n".join(texts), tool_calls=None)
        yield turn
    if pending_results:
        yield join_held()
