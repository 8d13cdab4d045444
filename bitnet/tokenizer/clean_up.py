"""Contractions and punctuation that BERT's tokenizer splits, joined again in decoded text."""

# In the order of the library, in which they are replaced.
_PAIRS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
# Those of transformers' ``clean_up_tokenization``, which lacks one.
_OF_TRANSFORMERS = tuple(pair for pair in _PAIRS if pair[0] != " do not")


def join_contractions(text: str) -> str:
    """*text* of one token as the ``tokenizers`` library's decoders clean it up."""
    for split, joined in _PAIRS:
        text = text.replace(split, joined)
    return text


def clean_up(text: str) -> str:
    """*text* as transformers' ``clean_up_tokenization`` returns it."""
    for split, joined in _OF_TRANSFORMERS:
        text = text.replace(split, joined)
    return text
