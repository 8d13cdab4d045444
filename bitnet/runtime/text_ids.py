"""Token ids of prompts and of texts to embed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from bitnet.base.errors import InferenceError, Unsupported, UsageError
from bitnet.base.options import check_ids
from bitnet.runtime.request_checks import check_prompt, check_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Prompts
    from bitnet.tokenizer import Tokenizer

#: Ids of a text: an array from a tokenizer, a list from a caller.
TokenIds: TypeAlias = "Sequence[int] | NDArray[np.int32]"


def encode_input(
    tokenizer: Tokenizer, name: str, text: str | Sequence[int], at_most: int | None = None
) -> TokenIds:
    """Ids of *text*, at most *at_most*; a text that is given as ids is checked and not changed.

    *name* is what errors about ids call them; those about a text say "the prompt".
    """
    if not isinstance(text, str):
        return check_ids(name, text, "a text or token ids")
    check_prompt(text)
    return tokenizer.encode_array(text, at_most=at_most)


def text_ids(
    tokenizer: Tokenizer,
    text: str | Sequence[int],
    prompt: str,
    *,
    room: tuple[int | None, int],
    truncate: bool,
) -> TokenIds:
    """Ids of *prompt* and *text* to embed; with *truncate*, only as many as fit.

    *room* is the limit of the model's settings, if they have one, and its context. Without
    *truncate*, a text that exceeds the limit of the settings is refused. Ids given by the caller
    get no prompt and no limit.
    """
    own_limit, context = room
    limit = min(own_limit or context, context)
    if not isinstance(text, str):
        return encode_input(tokenizer, "input", text)
    if not prompt + text:  # an embedding allows an empty text, which check_prompt refuses
        return tokenizer.encode_array("")
    ids = encode_input(tokenizer, "input", prompt + text, limit if truncate else None)
    if own_limit is not None and len(ids) > limit:
        raise _too_long(len(ids), limit, may_be_cut=True)
    return ids


def pair_ids(
    tokenizer: Tokenizer,
    pair: tuple[str, str],
    template: str | None,
    *,
    room: tuple[int | None, int],
    truncate: bool,
) -> tuple[TokenIds, int]:
    """Ids of a *pair* of a query and a document, and the position where the document begins.

    The texts are put into *template*, for which the position is 0, or between the tokenizer's own
    tokens. With *truncate*, the longer text loses its end first, as in the ``tokenizers`` library;
    texts in a template are never cut, but refused if they are too long.
    *room* is as for :func:`text_ids`.
    """
    own_limit, context = room
    limit = min(own_limit or context, context)
    for name, text in zip(("query", "document"), pair, strict=True):
        check_text(name, text)
    if template is not None:
        ids = tokenizer.encode_array(_fill(template, *pair), add_special=False)
        if len(ids) > limit:
            raise _too_long(len(ids), limit, may_be_cut=False)
        return ids, 0
    query, document = (tokenizer.encode(text, add_special=False) for text in pair)
    around = tokenizer.around_pair
    if around is None:
        raise Unsupported(
            f"the tokenizer {tokenizer.source} does not say how two texts are joined",
            hint="use the folder of the model, whose tokenizer.json says it",
        )
    first, middle, last = around
    available = limit - len(first) - len(middle) - len(last)
    if len(query) + len(document) > available:
        if not truncate:
            length = len(query) + len(document) + limit - available
            # The caller truncates only under a limit of the settings.
            raise _too_long(length, limit, may_be_cut=own_limit is not None)
        kept_query, kept_document = _shares(len(query), len(document), max(available, 0))
        query = query[:kept_query]
        document = document[:kept_document]
    begin = [*first, *query, *middle]
    return [*begin, *document, *last], len(begin)


def _fill(template: str, query: str, document: str) -> str:
    """*template* with both texts, neither of which is searched for the place of the other."""
    parts = template.split("{query}")
    filled = [part.replace("{document}", document) for part in parts]
    return query.join(filled)


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths to which texts of *first* and *second* tokens are cut to fit *room* together.

    The longer one loses tokens first; what it has more than the other is lost before both are cut.
    """
    shorter, longer = sorted((first, second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)


def _too_long(length: int, limit: int, *, may_be_cut: bool) -> InferenceError:
    """The error of a text that is too long; *may_be_cut*: ``--truncate`` would cut it."""
    hint = "cut the text"
    if may_be_cut:
        hint += ", or have it cut: --truncate"
    return InferenceError(
        f"a text has {length:,} tokens, the model reads {limit:,} of a text", hint=hint
    )


def prompt_text(prompts: Prompts, name: str | None, model: str) -> str:
    """The text of the prompt called *name*, or of the default prompt if *name* is None.

    It is empty if *prompts* have no default. *model* is the model's name in errors.
    """
    name = prompts.default if name is None else name
    if name and name not in prompts.texts:
        names = ", ".join(sorted(prompts.texts)) or "none"
        raise UsageError(
            f"{model} has no prompt called {name!r}; it has: {names}",
            hint="or write the prompt at the beginning of each text",
            field="prompt_name",
        )
    return prompts.texts.get(name, "")
