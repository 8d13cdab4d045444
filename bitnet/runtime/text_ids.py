"""Token ids of prompts and of texts to embed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.base.errors import InferenceError, UsageError
from bitnet.base.options import check_ids
from bitnet.runtime.request_checks import check_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.formats.checkpoint import Prompts
    from bitnet.tokenizer import Tokenizer


def encode_input(
    tokenizer: Tokenizer, name: str, text: str | Sequence[int], at_most: int | None = None
) -> list[int]:
    """Ids of *text*, at most so many; ids are checked and used unchanged.

    Errors call the text *name*.
    """
    if not isinstance(text, str):
        return check_ids(name, text, "a text or token ids")
    check_prompt(text)
    return tokenizer.encode(text, at_most=at_most)


def text_ids(
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    prompt: str,
    *,
    room: tuple[int | None, int],
    truncate: bool,
) -> list[int]:
    """Ids of *prompt* and *text* to embed: those that fit, or, if not to *truncate*, all.

    *room* is the limit of the model's settings, if they have one, and its context; a text that is
    not truncated and has more ids than that limit is refused.
    """
    own_limit, context = room
    limit = min(own_limit or context, context)
    if not isinstance(text, str):
        return encode_input(tokenizer, "input", text)
    if not prompt + text:
        return tokenizer.encode("")
    ids = encode_input(tokenizer, "input", prompt + text, limit if truncate else None)
    if own_limit is not None and len(ids) > limit:
        raise InferenceError(
            f"a text has {len(ids):,} tokens, the model reads {limit:,} of a text",
            hint="cut the text, or leave out --no-truncate",
        )
    return ids


def prompt_text(prompts: Prompts, name: str | None, model: str) -> str:
    """The prompt called *name*, the default one without a name; errors name *model*."""
    name = prompts.default if name is None else name
    if name and name not in prompts.texts:
        known = ", ".join(sorted(prompts.texts)) or "none"
        raise UsageError(
            f"{model} has no prompt called {name!r}; it has: {known}",
            hint="write what should stand before the texts into them",
            field="prompt_name",
        )
    return prompts.texts.get(name, "")
