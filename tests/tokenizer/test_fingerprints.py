"""Known vocabularies: recognised by hashes of their tokens or merges."""

import hashlib

from bitnet.tokenizer.vocabularies import (
    KNOWN,
    PRE_TOKENIZERS,
    fingerprint,
    identify,
    identify_merges,
)


def test_a_fingerprint_is_the_hash_of_the_bytes_in_a_gguf_file():
    # Each text with its length before it, in 64 bits.
    raw = b"\x01\0\0\0\0\0\0\0a\x02\0\0\0\0\0\0\0\xc3\xa4"
    expected = hashlib.sha256(raw).hexdigest()
    assert fingerprint(["a", "ä"]) == expected
    assert fingerprint(memoryview(raw)) == expected
    assert fingerprint([b"a", "ä".encode()]) == expected


def test_tokens_identify_a_vocabulary_only_with_its_number_of_merges():
    known = next(known for known in KNOWN if known.name == "LLaMA-3")
    assert identify(known.key, known.n_merges) == known
    # With 127,066 merges the same tokens are not LLaMA-3's tokenizer.
    assert identify(known.key, 127_066) is None
    assert identify("0" * 64, known.n_merges) is None


def test_merges_are_hashed_only_when_their_number_is_known():
    known = next(known for known in KNOWN if known.name == "LLaMA-3")
    assert identify_merges(known.n_merges, lambda: known.merges_key) == known
    assert identify_merges(known.n_merges, lambda: "0" * 64) is None

    def never():
        raise AssertionError("hashed without need")

    assert identify_merges(17, never) is None  # no known vocabulary has 17


def test_every_known_vocabulary_has_a_known_pre_tokenizer_and_its_own_keys():
    assert {known.pre for known in KNOWN if known.n_merges} <= set(PRE_TOKENIZERS)
    assert all(known.also <= set(PRE_TOKENIZERS) for known in KNOWN)
    keys = [key for known in KNOWN for key in (known.key, known.merges_key) if key]
    assert all(len(key) == 64 for key in keys)
    assert len({known.key for known in KNOWN if known.key}) == sum(bool(k.key) for k in KNOWN)
