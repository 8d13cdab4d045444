import json

from bitnet.tokenizer.comparison import approximate
from bitnet.tokenizer.load import load_tokenizer


def letters(path, order):
    """A tokenizer with a token for each printable ASCII character, numbered in *order*."""
    vocab = {character: id for id, character in enumerate(order)}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    path.write_text(json.dumps({"version": "1.0", "model": model}))
    return path


PRINTABLE = [chr(code) for code in range(32, 127)]


def test_a_stand_in_says_how_often_it_is_right(tmp_path):
    exact = load_tokenizer(letters(tmp_path / "exact.json", PRINTABLE))
    swapped = ["~", *PRINTABLE[1:-1], " "]
    stand_in, agreement = approximate("other", letters(tmp_path / "other.json", swapped), exact)
    assert 0 < agreement.equal < agreement.total
    assert stand_in.source == "approximate: other"
