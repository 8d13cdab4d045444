"""Differences between a folder's tokenizer and the recorded results of transformers for it."""

import json
from base64 import b64decode
from contextlib import suppress
from pathlib import Path

from bitnet.base.errors import BitnetError
from bitnet.tokenizer import load_tokenizer
from bitnet.tokenizer.chat import chat_template

# Recorded by ``record_folders.py``.
RECORDED = Path(__file__).parents[1] / "tokenizer" / "found" / "folders.jsonl"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
]


def outcome(folder: Path, expected: dict[str, object] | None, *, ids_only: bool = False) -> str:
    """Result of loading *folder* and comparing it with the results of transformers.

    ``equal``; ``refused: REASON``; ``difference: FIRST ONE``; or ``neither``, without loading, if
    *expected* is None, since transformers does not read the folder. With *ids_only* decoded texts
    and templates are not compared.
    """
    if expected is None:
        return "neither"
    try:
        tokenizer = load_tokenizer(folder)
    except BitnetError as error:
        return f"refused: {error.message}"
    for text, results in expected["texts"].items():
        if results is None:  # nothing is recorded for this text
            continue
        plain, ids, *decoded = results
        difference = _difference(tokenizer, text, plain, ids, [] if ids_only else decoded)
        if difference:
            return f"difference: {difference}"
    if ids_only:
        return "equal"
    for tools, rendered in zip((None, TOOLS), expected["templates"], strict=True):
        ours = None
        with suppress(BitnetError):
            template = chat_template(tokenizer, tools=tools is not None)
            ours = template.render(MESSAGES, tools=tools, add_generation_prompt=False)
        if ours != rendered:
            return f"difference: the template gives {ours!r}, expected {rendered!r}"
    return "equal"


def _difference(
    tokenizer, text: str, plain: list[int], ids: list[int], expected_texts: list[str]
) -> str:
    """The first difference for *text*; empty if there is none.

    *plain* are the ids without special tokens, *ids* those with them. *expected_texts* are *ids*
    decoded with special tokens, and without.
    """
    ours = tokenizer.encode(text, add_special=False)
    if ours != plain:
        return f"{text!r} is {ours}, expected {plain}"
    with_special = tokenizer.encode(text)
    if with_special not in _without_doubles(ids, plain):
        return f"{text!r} with special tokens is {with_special}, expected {ids}"
    for skip, expected in zip((False, True), expected_texts, strict=False):
        decoded = tokenizer.decode(ids, skip_special=skip)
        if decoded != expected:
            return f"{ids} is the text {decoded!r}, expected {expected!r}"
    return ""


def _without_doubles(ids: list[int], plain: list[int]) -> list[list[int]]:
    """*ids* without the special tokens around *plain* that *plain* itself begins or ends with.

    Unlike transformers, this package does not add special tokens that the text already has. There
    is one result for each position of *plain* in *ids*.
    """
    results = []
    for at in range(len(ids) - len(plain) + 1):
        if ids[at : at + len(plain)] != plain:
            continue
        before, after = ids[:at], ids[at + len(plain) :]
        first = [] if before and plain[: len(before)] == before else before
        last = [] if after and plain[-len(after) :] == after else after
        results.append([*first, *plain, *last])
    return results or [ids]


def write(case: dict[str, object], path: Path) -> Path:
    """Write the files of a recorded *case* into *path*."""
    for name, content in case["files"].items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".model"):
            file.write_bytes(b64decode(content))
            continue
        # The recording has vocabularies as lists, which are shorter.
        if name == "tokenizer.json" and content["model"]["type"] != "Unigram":
            vocabulary = content["model"]["vocab"]
            if isinstance(vocabulary, list):
                numbered = {text: id for id, text in enumerate(vocabulary)}
                content = {**content, "model": {**content["model"], "vocab": numbered}}
        text = content if isinstance(content, str) else json.dumps(content)
        file.write_text(text, "utf-8")
    return path
