"""Log-probabilities of tokens, as OpenAI's chats and completions have them."""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bitnet.runtime.piece import TokenLogprob

_DecodesUtf8 = getincrementaldecoder("utf-8")


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of *tokens*, each with its alternatives, as chats have them."""
    content = [
        token_facts(token) | {"top_logprobs": [token_facts(candidate) for candidate in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def token_facts(token: TokenLogprob) -> dict[str, Any]:
    """A token without its alternatives."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}


class TextLogprobs:
    r"""Log-probabilities of one answer's tokens, as completions have them, in parts.

    A token whose bytes are only part of a character is named by them, ``bytes:\xe2\x82``, as
    OpenAI does. Two alternatives with the same bytes are told apart by the id of the less likely
    one, ``token_id:7``.
    """

    def __init__(self) -> None:
        self._characters = 0  # complete ones before the next token
        self._decoder = _DecodesUtf8("replace")

    def next_part(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Log-probabilities of *tokens*, which follow those of the earlier parts."""
        part: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token in tokens:
            names = _names_of(token)
            part["tokens"].append(names[token.id])
            part["token_logprobs"].append(token.logprob)
            part["top_logprobs"].append(
                {names[candidate.id]: candidate.logprob for candidate in token.top}
            )
            part["text_offset"].append(self._characters)
            self._characters += len(self._decoder.decode(token.bytes))
        return part


def _names_of(token: TokenLogprob) -> dict[int, str]:
    """A name for *token* and for each of its alternatives, by id; no two are alike."""
    names: dict[int, str] = {}
    for each in (*token.top, token):
        if each.id in names:
            continue
        name = _name_of(each.bytes)
        names[each.id] = f"token_id:{each.id}" if name in names.values() else name
    return names


def _name_of(raw: bytes) -> str:
    """The text *raw*, or an escaped form if it is not complete."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
