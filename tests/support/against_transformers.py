"""Differences between a folder's tokenizer here and the one that transformers makes of it."""

from contextlib import suppress
from pathlib import Path

from transformers import AutoTokenizer

from bitnet.base.errors import BitnetError
from bitnet.tokenizer import load_tokenizer
from bitnet.tokenizer.chat import chat_template

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
]


def outcome(folder: Path, texts: list[str]) -> str:
    """``equal``, ``refused``, ``neither`` reads the folder, or the first difference."""
    try:
        theirs = AutoTokenizer.from_pretrained(folder)
    except Exception:  # noqa: BLE001 - transformers has no base class for these
        return "neither"
    try:
        ours = load_tokenizer(folder)
    except BitnetError as error:
        return f"refused: {error.message}"
    for text in texts:
        found = difference(ours, theirs, text)
        if found:
            return f"difference: {found}"
    for tools in (None, TOOLS):
        expected = got = None
        with suppress(Exception):  # a template that is missing
            expected = theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
        with suppress(BitnetError):
            template = chat_template(ours, tools=tools is not None)
            got = template.render(MESSAGES, tools=tools, add_generation_prompt=False)
        if got != expected:
            return f"difference: the template gives {got!r}, expected {expected!r}"
    return "equal"


def difference(ours, theirs, text: str) -> str:
    """The first difference for *text*, or nothing."""
    try:
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        ids = theirs(text)["input_ids"]
    except Exception:  # noqa: BLE001 - the library needs an unknown token that is not there
        return ""
    got = ours.encode(text, add_special=False)
    if got != plain:
        return f"{text!r} is {got}, expected {plain}"
    around = len(ids) - len(plain)
    whole = ours.encode(text)
    # A text that begins or ends with the tokens put around it gets no second ones here.
    if whole != ids and len(whole) == len(plain) + around:
        return f"{text!r} with special tokens is {whole}, expected {ids}"
    for skip in (False, True):
        expected = theirs.decode(ids, skip_special_tokens=skip)
        decoded = ours.decode(ids, skip_special=skip)
        if decoded != expected:
            return f"{ids} is the text {decoded!r}, expected {expected!r}"
    return ""
