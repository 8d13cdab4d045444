"""Text that comes out of a stream of ids."""

from hypothesis import given
from hypothesis import strategies as st
from small_specs import byte_level

from bitnet.tokenizer import Tokenizer

tokenizer = Tokenizer.from_spec(byte_level(added=(), add_bos=False, bos_id=None, eos_id=None))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_streamed_parts_of_a_text_join_to_it_with_nothing_left_over(text):
    stream = tokenizer.stream()
    parts = [stream.push(id) for id in tokenizer.encode(text)]
    assert "".join(parts) == text
    assert stream.finish() == ""


@given(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
def test_any_ids_stream_to_what_decode_gives(ids):
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == tokenizer.decode(ids)


def test_a_character_comes_out_with_its_last_byte():
    stream = tokenizer.stream()
    assert [stream.push(id) for id in tokenizer.encode("字")] == ["", "", "字"]


def test_an_unfinished_character_ends_as_a_replacement():
    stream = tokenizer.stream()
    first = tokenizer.encode("字")[0]
    assert stream.push(first) == ""
    assert stream.finish() == "\ufffd"
