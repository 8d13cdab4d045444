"""Messages of a conversation as OpenAI's and Ollama's clients send them.

Every entry of a message reaches the chat template, is refused, or has no effect on the text. An
entry with an unknown name is refused unless the model's template reads it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.request import MAX_MESSAGES
from bitnet.wire.schemas import (
    IGNORED,
    NULL,
    OBJECT,
    OBJECTS,
    REFUSED,
    TEXT,
    WHOLE,
    Schema,
    any_of,
    mark_ignored,
    mark_refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bitnet.runtime.language_model import LanguageModel

ONLY_TEXT = "only text can be read"
#: Part of a content. Its type decides which other entries it may have.
PART: Schema = {
    "type": "object",
    "properties": {
        "type": TEXT,
        "text": TEXT,
        "refusal": TEXT,
        **mark_ignored(
            cache_control=OBJECT,
            prompt_cache_breakpoint=OBJECT,
            annotations=OBJECTS,
            citations=OBJECTS,
            logprobs=OBJECTS,
        ),
    },
    "additionalProperties": True,  # :func:`read_messages` refuses them by name
}
CALL: Schema = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "type": TEXT,
        "function": {
            "type": "object",
            "properties": {
                "name": TEXT,
                "arguments": any_of(TEXT, OBJECT),
                **mark_ignored(index=WHOLE, description=TEXT),
            },
            "required": ["name"],
        },
        **mark_ignored(index=WHOLE, extra_content=OBJECT, cache_control=OBJECT),
    },
    "required": ["function"],
}
#: A message of OpenAI's and Ollama's; the model's template may read further entries.
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "minLength": 1, "maxLength": 64},
        "content": {"anyOf": [TEXT, {"type": "array", "items": PART}, NULL]},
        "name": TEXT,
        "tool_calls": {"type": "array", "items": CALL},
        "tool_call_id": TEXT,
        "tool_name": TEXT,
        "reasoning_content": TEXT,
        "reasoning": TEXT,
        "thinking": TEXT,
        "refusal": TEXT,
        **mark_ignored(annotations=OBJECTS, cache_control=OBJECT),
        **mark_refused("images", "audio", hint=ONLY_TEXT),
        **mark_refused("function_call", hint="send it as tool_calls"),
        **mark_refused("reasoning_details", hint="send it as reasoning_content"),
    },
    "required": ["role"],
    "additionalProperties": True,  # :func:`read_messages` refuses them by name
}
MESSAGES: Schema = {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES}
_OWN = frozenset(MESSAGE["properties"])
#: Entries that do not reach the template: those without effect, and refused ones, which are empty.
_LEFT_OUT = frozenset(
    name for name, schema in MESSAGE["properties"].items() if IGNORED in schema or REFUSED in schema
)
#: Entries that are ignored, not refused, if the template does not read them.
_NAMES = ("name", "tool_name")


def read_messages(
    messages: Iterable[Mapping[str, Any]], model: LanguageModel | None
) -> list[dict[str, Any]]:
    """*messages*, which follow :data:`MESSAGES`, in the form that chat templates expect.

    Entries that are null are left out: some templates would write the word. If *model* is known,
    an entry with an unknown name is refused unless its template reads it.
    """
    turns = []
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        turn = {
            name: value
            for name, value in message.items()
            if value is not None and name not in _LEFT_OUT
        }
        for name in turn:
            if name not in _OWN:
                _check_read(model, name, f"{where}.{name[:80]}")
        if isinstance(turn.get("content"), list):
            parts = enumerate(turn["content"])
            turn["content"] = [_text_part(part, f"{where}.content.{at}") for at, part in parts]
        refusal = turn.pop("refusal", "")
        if refusal and not turn.get("content"):
            turn["content"] = refusal
        turns.append(turn)
    return turns


def find_unread_names(
    messages: Iterable[Mapping[str, Any]], model: LanguageModel | None
) -> Iterator[str]:
    """Paths of the names in *messages* that the template of *model* does not read."""
    for message in messages:
        for name in _NAMES:
            if message.get(name) and model is not None and not reads(model, name):
                yield f"messages.{name}"


def reads(model: LanguageModel, name: str) -> bool:
    """True if the source of the chat template of *model* contains the word *name*."""
    template = model.tokenizer.chat_template or ""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def type_of(entry: Mapping[str, Any], where: str, default: str = "") -> str:
    """The ``type`` of *entry*, which is at *where*.

    One that is left out or null is *default*; without a default it is refused.
    """
    kind = entry.get("type")
    field = f"{where}.type"
    if kind is None:
        if not default:
            raise UsageError(f"{field}: this field is required", field=field)
        return default
    if not isinstance(kind, str):
        raise UsageError(f"{field}: expected a text", field=field)
    return kind


def _check_read(model: LanguageModel | None, name: str, where: str) -> None:
    """Refuse the entry *name* at *where* unless the template of *model* reads it."""
    if model is not None and not reads(model, name):
        where = encodable(where)
        raise UsageError(
            f"{where}: this field is not known here, and the model's template does not read it",
            hint="leave it out",
            field=where,
        )


def _text_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A content part in the form that templates expect; one that is not text is refused."""
    kind = type_of(part, where, "text")
    name = "refusal" if kind == "refusal" else "text"
    if kind not in ("text", "refusal", "input_text", "output_text"):
        printable = encodable(kind[:40])
        raise UsageError(
            f"{where}: a part of type {printable!r} is refused: {ONLY_TEXT}", field=where
        )
    if not isinstance(part.get(name), str):
        raise UsageError(f"{where}.{name}: expected a text", field=f"{where}.{name}")
    for key, value in part.items():
        is_own = key in ("type", name) or IGNORED in PART["properties"].get(key, {})
        if not is_own and value is not None:
            field = encodable(f"{where}.{key[:80]}")
            raise UsageError(f"{field}: this field is not known here", field=field)
    return {"type": "text", "text": part[name]}
