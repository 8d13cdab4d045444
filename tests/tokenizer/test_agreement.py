from bitnet.tokenizer.agreement import PROBES, measure_agreement


def test_agreement_counts_texts_with_equal_ids():
    found = measure_agreement(
        lambda text: list(text.encode()), lambda text: [ord(char) for char in text]
    )
    ascii_only = [text for text in PROBES if text.isascii()]
    assert found.total == len(PROBES)
    assert found.equal == len(ascii_only)
    assert found.first_difference == next(text for text in PROBES if not text.isascii())
    assert f"{len(ascii_only)} of {len(PROBES)}" in str(found)


def test_a_tokenizer_agrees_with_itself():
    found = measure_agreement(str.split, str.split)
    assert found.ratio == 1.0
    assert found.first_difference is None


def test_the_same_ids_may_stand_for_other_texts():
    def encode(text):
        return list(text.encode())

    def decode(ids):
        return bytes(ids).decode("latin-1")

    same = measure_agreement(encode, encode, decode=(decode, decode))
    assert same.complete
    assert same.decoded == 2 * len(PROBES) - 1
    other = measure_agreement(encode, encode, decode=(decode, lambda ids: decode(ids).strip()))
    assert other.ratio == 1
    assert not other.complete
    assert 0 < other.decoded_equal < other.decoded
    assert decode(other.first_ids).strip() != decode(other.first_ids)


def test_texts_that_were_not_compared_do_not_agree():
    found = measure_agreement(str.split, str.split)
    assert not found.complete
    assert "texts of ids not checked" in str(found)


def test_no_texts_do_not_agree():
    assert measure_agreement(str.split, str.split, texts=[]).ratio == 0.0


def test_probes_differ_from_each_other():
    assert len(set(PROBES)) == len(PROBES)
