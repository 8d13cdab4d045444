"""Small vocabularies to run both engines on."""

from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec, byte_spelling

BYTE_LEVEL_STEP = Step(
    "ByteLevel", {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
)
_JOINS = [
    *(("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (" ", "w"), ("a", "a"), ("aa", "aa")),
    *((" ", " "), ("  ", "  "), ("o", "r"), ("a", "b"), ("b", "c"), ("1", "2")),
]
ADDED = (
    ("<s>", {}),
    ("</s>", {"rstrip": True}),
    ("<|im|>", {"lstrip": True, "special": False}),
    ("word", {"single_word": True, "special": False}),
    ("norm", {"normalized": True, "special": False}),
)


def byte_level(**changes):
    """A byte-level BPE with a few merges and every kind of added token."""
    texts = [byte_spelling(bytes([byte])) for byte in range(256)]
    merges = []
    for left, right in _JOINS:
        pair = tuple(texts.index(byte_spelling(part.encode())) for part in (left, right))
        texts.append(texts[pair[0]] + texts[pair[1]])
        merges.append(pair)
    added = tuple(
        AddedToken(len(texts) + i, text, **options) for i, (text, options) in enumerate(ADDED)
    )
    texts += [token.text for token in added]
    fields = {
        "tokens": texts,
        "merges": merges,
        "added": added,
        "byte_level": True,
        "pre_tokenizer": (BYTE_LEVEL_STEP,),
        "bos_id": added[0].id,
        "eos_id": added[1].id,
        "add_bos": True,
        "stop_ids": frozenset({added[1].id}),
        "source": "a test",
    }
    return TokenizerSpec(model="bpe", **(fields | changes))


def pieces(model="unigram", **changes):
    """A SentencePiece model of few pieces."""
    tokens = ["<unk>", "\u2581", "a", "b", "aa", "ab", "\u00e9"]
    fields = {"scores": [-1.0 * n for n in range(len(tokens))], "unknown_id": 0}
    fields |= {"token_types": [2] + [1] * (len(tokens) - 1), "tokens": tokens}
    return TokenizerSpec(model=model, source="a test", **(fields | changes))


def words(**changes):
    """A WordPiece model."""
    fields = {
        "tokens": ["[UNK]", "hello", "##lo", "a", "##a"],
        "unknown_id": 0,
        "pre_tokenizer": (Step("BertPreTokenizer"),),
    }
    return TokenizerSpec(model="wordpiece", source="a test", **(fields | changes))


def split(regex):
    """A byte-level BPE whose text is cut with *regex* first."""
    options = {"pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return byte_level(pre_tokenizer=(Step("Split", options), BYTE_LEVEL_STEP))
