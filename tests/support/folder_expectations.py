"""Differences between a folder's tokenizer and the recorded results of transformers for it."""

from contextlib import suppress
from pathlib import Path

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


def outcome(folder: Path, expected: dict[str, object] | None) -> str:
    """``equal``, ``refused``, the first difference, or ``neither`` if *expected* is ``None``."""
    if expected is None:
        return "neither"
    try:
        tokenizer = load_tokenizer(folder)
    except BitnetError as error:
        return f"refused: {error.message}"
    for text, results in expected["texts"].items():
        difference = "" if results is None else _difference(tokenizer, text, *results)
        if difference:
            return f"difference: {difference}"
    for tools, rendered in zip((None, TOOLS), expected["templates"], strict=True):
        ours = None
        with suppress(BitnetError):
            template = chat_template(tokenizer, tools=tools is not None)
            ours = template.render(MESSAGES, tools=tools, add_generation_prompt=False)
        if ours != rendered:
            return f"difference: the template gives {ours!r}, expected {rendered!r}"
    return "equal"


def _difference(
    tokenizer, text: str, plain: list[int], ids: list[int], shown: str, skipped: str
) -> str:
    """The first difference for *text*, or nothing."""
    ours = tokenizer.encode(text, add_special=False)
    if ours != plain:
        return f"{text!r} is {ours}, expected {plain}"
    whole = tokenizer.encode(text)
    # A text that begins or ends with the tokens put around it gets no second ones here.
    if whole != ids and len(whole) == len(ids):
        return f"{text!r} with special tokens is {whole}, expected {ids}"
    for skip, expected in ((False, shown), (True, skipped)):
        decoded = tokenizer.decode(ids, skip_special=skip)
        if decoded != expected:
            return f"{ids} is the text {decoded!r}, expected {expected!r}"
    return ""
