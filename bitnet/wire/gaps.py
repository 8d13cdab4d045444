"""Prompts of models that fill a gap between two texts (fill in the middle)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from bitnet.tokenizer import Tokenizer

#: Tokens that mark the text before a gap, the text after it, and the answer that fills it.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # the same, in other files
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    (" <PRE>", " <SUF>", " <MID>"),  # CodeLlama
    ("<PRE>", "<SUF>", "<MID>"),  # CodeLlama, without the spaces
)
_FILE = ("<|file_sep|>", "<file_sep>")  # tokens before the name and the text of a file


def can_fill(tokenizer: Tokenizer) -> bool:
    """True if *tokenizer* has the tokens for a gap."""
    return _find_marks(tokenizer) is not None


def gap_prompt(
    tokenizer: Tokenizer, prefix: str, suffix: str, files: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[int], frozenset[int]]:
    """Ids of a prompt for the text between *prefix* and *suffix*, and the ids that end the answer.

    The prompt is the other *files*, each with its ``text`` and perhaps a ``filename``, the text
    before the gap and the text after it, each behind its token (llama.cpp:
    ``format_prompt_infill``).
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    tokens = _find_marks(tokenizer)
    if tokens is None:
        raise Unsupported(
            "this model has no tokens for the text before and after a gap",
            hint="choose a model that was trained to fill in the middle",
        )
    before, after, middle = tokens
    separators = (_find(tokenizer, mark) for mark in _FILE)
    file_token = next((token for token in separators if token is not None), None)
    bos = tokenizer.bos_id
    prompt: list[int] = []
    # The prompt begins with BOS only if the tokenizer adds it to texts.
    if bos is not None and tokenizer.encode("a")[:1] == [bos]:
        prompt.append(bos)
    for part in files:
        name = part.get("filename") or "file"
        prompt += encode("\n\n") if file_token is None else [file_token, *encode(f"{name}\n")]
        prompt += encode(part["text"])
    if files and file_token is not None:  # the file with the gap is the last one
        prompt += [file_token, *encode("file\n")]
    prompt += [before, *encode(prefix)]
    prompt += [after, *encode(suffix), middle]
    own_stops = {token for token in (before, after, middle, file_token) if token is not None}
    return prompt, tokenizer.stop_ids | own_stops


def _find_marks(tokenizer: Tokenizer) -> list[int] | None:
    """Token ids of the marks before, after and in a gap, or None if the model has none."""
    candidates = (_find_all(tokenizer, marks) for marks in _MARKS)
    return next((ids for ids in candidates if ids is not None), None)


def _find(tokenizer: Tokenizer, mark: str) -> int | None:
    """Token id of *mark*, or None if it is not a single token."""
    ids = tokenizer.encode(mark, add_special=False)
    is_token = len(ids) == 1 and tokenizer.token_bytes(ids[0]) == mark.encode()
    return ids[0] if is_token else None


def _find_all(tokenizer: Tokenizer, marks: Sequence[str]) -> list[int] | None:
    """Token ids of *marks*, or None if one of them is not a single token."""
    ids = [_find(tokenizer, mark) for mark in marks]
    tokens = [token for token in ids if token is not None]
    return tokens if len(tokens) == len(marks) else None
