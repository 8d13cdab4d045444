"""Tokens added to the vocabulary of a ``tokenizer.json``, numbered as ``tokenizers`` does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Token = dict[str, Any]  # an added token without its id, as ``tokenizer.json`` writes it

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
#: Keys of an added token in ``added_tokens_decoder``.
TOKEN_KEYS = frozenset(("content", *_FLAGS))


@dataclass
class AddedVocabulary:
    """Ids of a model's vocabulary, and of the tokens that ``tokenizers`` adds to it."""

    ids: dict[str, int]  # of the model's own entries, by text
    size: int  # number of these entries
    tokens: dict[int, Token] = field(default_factory=dict)  # added tokens by id
    added_ids: dict[str, int] = field(default_factory=dict)  # ids of *tokens* by text
    # Texts that were added with the flag at least once, whatever their latest entry says.
    special: set[str] = field(default_factory=set)
    # The library shows these normalized whatever comes later: tokenizer_json refuses some of them.
    once_normalized: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, document: dict[str, Any], file: dict[str, Any] | None) -> AddedVocabulary:
        """The model's vocabulary in *document*, with the added tokens in *file*, unless None.

        Both are contents of a ``tokenizer.json``; *file* is None if a class rebuilt *document*.
        """
        entries = document["model"]["vocab"]
        if isinstance(entries, dict):
            ids = dict(entries)
        else:
            ids = {entry[0]: id for id, entry in enumerate(entries)}
        vocabulary = cls(ids, len(entries))
        for entry in (file or {}).get("added_tokens") or ():
            vocabulary.tokens[entry["id"]] = make_token(entry["content"], **read_flags(entry))
            vocabulary.added_ids[entry["content"]] = entry["id"]
            if entry.get("special"):
                vocabulary.special.add(entry["content"])
            if entry.get("normalized"):
                vocabulary.once_normalized.add(entry["content"])
        return vocabulary

    def id_of(self, text: str) -> int | None:
        """Id of *text*, ``None`` if it is not a token."""
        return self.added_ids.get(text, self.ids.get(text))

    def add(self, token: Token) -> None:
        """Add *token*, or replace the one with the same text; a token without text is ignored.

        A new text gets the id behind all others, as in ``tokenizers``.
        """
        text = token["content"]
        if not text:
            return
        if token["special"]:
            self.special.add(text)
        if token["normalized"]:
            self.once_normalized.add(text)
        id = self.id_of(text)
        if id is None:
            id = max(self.size, max(self.tokens, default=-1) + 1)
        self.tokens[id] = token
        self.added_ids[text] = id

    def entries(self) -> list[dict[str, Any]]:
        """The ``added_tokens`` of a ``tokenizer.json``."""
        entries = []
        for id in sorted(self.tokens):
            token = self.tokens[id]
            special = token["special"] or token["content"] in self.special
            entries.append({"id": id, **token, "special": special})
        return entries


def make_token(text: str, **flags: bool) -> Token:
    """An added token; a flag that *flags* lacks has the default of ``tokenizers``."""
    special = flags.get("special", False)
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"content": text, **defaults, "special": special, **flags}


def find_default_tokens(special: Mapping[str, Token], config: Mapping[str, Any]) -> Iterator[Token]:
    """Tokens of *special* that a class adds once more: those left at its own defaults.

    Their role is not in *config*, and no earlier role has their text.
    """
    texts = set()
    for role, token in special.items():
        if role not in config and token["content"] not in texts:
            yield token
        texts.add(token["content"])


def read_flags(entry: dict[str, Any]) -> dict[str, bool]:
    """The flags among the fields of *entry*."""
    return {name: bool(entry[name]) for name in _FLAGS if name in entry}


def plain_token(value: str | Token) -> Token:
    """An added token from its fields, or from its text alone, which makes it a special one."""
    return make_token(value, special=True) if isinstance(value, str) else dict(value)
