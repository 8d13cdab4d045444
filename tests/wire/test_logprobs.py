"""Log-probabilities of completions: names of tokens and their offsets, whole and in parts."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bitnet.runtime.piece import TokenLogprob
from bitnet.wire.logprobs import TextLogprobs


def _token(id, raw, top=()):
    """A token with the bytes *raw*, log-probability -1 - *id* and the alternatives *top*."""
    return TokenLogprob(id, raw.decode("utf-8", "replace"), raw, -1.0 - id, tuple(top))


def test_parts_of_characters_are_named_by_their_bytes_and_none_is_lost():
    top = [_token(1, b"\xe2"), _token(2, b"\xe3"), _token(3, b"a"), _token(4, b"a")]
    (names,) = TextLogprobs().next_part([_token(2, b"\xe3", top)])["top_logprobs"]
    assert names == {r"bytes:\xe2": -2.0, r"bytes:\xe3": -3.0, "a": -4.0, "token_id:4": -5.0}


def test_the_chosen_token_has_the_name_that_it_has_among_its_alternatives():
    top = [_token(3, b"a"), _token(4, b"a")]
    part = TextLogprobs().next_part([_token(4, b"a", top)])
    assert part["tokens"] == ["token_id:4"]
    assert part["top_logprobs"] == [{"a": -4.0, "token_id:4": -5.0}]


@given(text=st.text(max_size=12), data=st.data())
def test_offsets_are_those_of_the_text_in_any_parts(text, data):
    """A token begins where the characters end that are complete before it."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=6)) | {0, len(raw)})
    tokens = [_token(number, raw[begin:end]) for number, (begin, end) in enumerate(pairwise(cuts))]
    expected = [len(raw[:begin].decode("utf-8", "ignore")) for begin in cuts[:-1]]
    whole = TextLogprobs().next_part(tokens)
    parts = TextLogprobs()
    streamed = [parts.next_part([token]) for token in tokens]
    assert whole["text_offset"] == expected
    assert [part["text_offset"][0] for part in streamed] == expected
