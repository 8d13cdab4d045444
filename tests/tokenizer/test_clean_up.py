"""Contractions and punctuation: joined as the libraries join them."""

from itertools import product

import pytest
from tokenizers import decoders

from bitnet.tokenizer.clean_up import clean_up, join_contractions

SPLIT = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're", " a", "b")
TEXTS = ["".join(parts) for parts in product(SPLIT, repeat=3)]


def test_a_token_is_cleaned_up_as_by_the_decoder_of_the_library():
    theirs = decoders.WordPiece(prefix="##", cleanup=True)
    for text in TEXTS:
        assert join_contractions(text) == theirs.decode([text]), text


def test_a_text_is_cleaned_up_as_by_transformers():
    library = pytest.importorskip(
        "transformers.tokenization_utils_base", reason="pip install 'bitnet-xtask[parity]'"
    )
    theirs = library.PreTrainedTokenizerBase.clean_up_tokenization
    for text in TEXTS:
        assert clean_up(text) == theirs(None, text), text  # a method that does not use its object
