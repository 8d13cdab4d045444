"""Two tokenizers compared: parts, ids of texts, texts of ids."""

from dataclasses import fields, replace

import pytest
from small_specs import BYTE_LEVEL_STEP, byte_level, pieces, words

from bitnet.tokenizer.comparison import (
    PROBES,
    as_sentencepiece,
    compare,
    differences,
    measure_agreement,
)
from bitnet.tokenizer.load import load_spec
from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec


def test_agreement_counts_texts_with_equal_ids():
    agreement = measure_agreement(
        lambda text: list(text.encode()), lambda text: [ord(char) for char in text]
    )
    ascii_only = [text for text in PROBES if text.isascii()]
    assert agreement.total == len(PROBES)
    assert agreement.equal == len(ascii_only)
    assert agreement.first_difference == next(text for text in PROBES if not text.isascii())
    assert f"{len(ascii_only)} of {len(PROBES)}" in str(agreement)


def test_a_tokenizer_agrees_with_itself():
    agreement = measure_agreement(str.split, str.split)
    assert agreement.ratio == 1.0
    assert agreement.first_difference is None


def test_equal_ids_that_decode_to_other_texts_are_not_a_complete_agreement():
    def encode(text):
        return list(text.encode())

    def decode(ids):
        return bytes(ids).decode("latin-1")

    same = measure_agreement(encode, encode, decode=(decode, decode))
    assert same.complete
    # The ids of each probe, and of each two neighbours joined.
    assert same.decoded == 2 * len(PROBES) - 1
    other = measure_agreement(encode, encode, decode=(decode, lambda ids: decode(ids).strip()))
    assert other.ratio == 1
    assert not other.complete
    assert 0 < other.decoded_equal < other.decoded
    assert decode(other.first_ids).strip() != decode(other.first_ids)


def test_agreement_of_ids_alone_is_not_complete():
    agreement = measure_agreement(str.split, str.split)
    assert not agreement.complete
    assert "texts of ids not checked" in str(agreement)


def test_two_tokenizers_compared_on_no_texts_do_not_agree():
    assert measure_agreement(str.split, str.split, texts=[]).ratio == 0.0


def test_probes_differ_from_each_other():
    assert len(set(PROBES)) == len(PROBES)


TEXTS = ("hello", "a b", "<s>hello word")


def _changes(spec):
    """Yield the name of a part, and changes of *spec* in that part alone."""
    tokens = [*spec.tokens]
    tokens[1], tokens[2] = tokens[2], tokens[1]
    yield "vocabulary", {"tokens": tokens}
    yield "ids put first", {"bos_id": 3, "add_bos": not spec.add_bos}
    yield "ids put first", {"prefix_ids": (1, 2)}
    yield "ids put last", {"suffix_ids": (2,)}
    yield "ids put last", {"eos_id": 3, "add_eos": not spec.add_eos}
    yield "ids between two texts", {"middle_ids": (1, 1)}
    if spec.added:
        first, *others = spec.added
        for flag in ("special", "lstrip", "rstrip", "single_word"):
            changed = replace(first, **{flag: not getattr(first, flag)})
            yield "added tokens", {"added": (changed, *others)}
        yield "added tokens", {"added": tuple(others)}
        yield "added tokens", {"added": (replace(first, text="other"), *others)}
    if spec.merges:
        yield "merges", {"merges": spec.merges[:-1]}
        yield "merges", {"merges": spec.merges[::-1]}
        yield "merges", {"merges": [spec.merges[1], spec.merges[0], *spec.merges[2:]]}
    if len(spec.scores):
        name = "scores" if spec.model == "unigram" else "merges"
        yield name, {"scores": [-score for score in spec.scores]}
        yield "add_space_prefix", {"add_space_prefix": not spec.add_space_prefix}
        yield "remove_extra_whitespaces", {"remove_extra_whitespaces": True}
        yield "byte_fallback", {"byte_fallback": not spec.byte_fallback}
    if spec.model == "bpe":
        yield "word_suffix", {"word_suffix": "</w>"}
    if spec.model == "wordpiece":
        yield "continuing_prefix", {"continuing_prefix": "@@"}
        yield "max_chars_per_word", {"max_chars_per_word": 7}


@pytest.mark.parametrize(
    "spec", [byte_level(), pieces(), pieces("spm"), words()], ids=lambda spec: spec.model
)
def test_a_change_that_ids_or_texts_show_is_a_certain_difference(spec):
    spec = replace(spec, middle_ids=(1,))
    assert differences(spec, replace(spec, source="another name", fingerprint="x")) == []
    for part, change in _changes(spec):
        found = {entry.part: entry.certain for entry in differences(spec, replace(spec, **change))}
        assert found.get(part), (part, change, found)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("stop_ids", {"stop_ids": frozenset({1})}),
        ("chat_template", {"chat_template": "x"}),
        ("named_templates", {"named_templates": (("tool_use", "x"),)}),
        ("ids between two texts", {"middle_ids": (1,)}),
        ("normalizer", {"normalizer": (Step("NFC"),)}),
        ("pre_tokenizer", {"pre_tokenizer": (Step("Digits"), BYTE_LEVEL_STEP)}),
    ],
)
def test_a_change_that_ids_and_texts_may_not_show_is_an_uncertain_difference(part, change):
    spec = byte_level(added=())
    found = differences(spec, replace(spec, **change))
    assert [(entry.part, entry.certain) for entry in found] == [(part, False)]


def test_texts_for_templates_are_compared_only_if_there_is_a_template():
    spec = byte_level()
    changed = replace(spec, template_tokens=(("pad_token", "<pad>"),))
    assert differences(spec, changed) == []
    (found,) = differences(*(replace(each, chat_template="x") for each in (spec, changed)))
    assert (found.part, found.certain) == ("texts in templates", False)


# Fields that decide nothing by themselves; and ``outside``, which GGUF files lack and which matters
# only for texts in which special tokens are not looked for.
_NOT_COMPARED = {"token_types", "outside", "pre", "source", "document", "fingerprint"}
# Other values of the fields for which :func:`_other` has no rule.
_OTHER_VALUES = {
    "model": "wordlevel",
    "added": (AddedToken(1, "x"),),
    "chat_template": "y",
    "named_templates": (("tool_use", "x"),),
    "template_tokens": (("pad_token", "x"),),
}


def _other(name, value):
    """Another value than *value* of the field *name*."""
    if name in _OTHER_VALUES:
        return _OTHER_VALUES[name]
    if name in ("tokens", "merges", "scores", "token_types"):
        return [*value][::-1]
    if name.endswith("_ids") or name == "restarts":
        return frozenset({2}) if isinstance(value, frozenset) else (2, 1)
    if isinstance(value, tuple):
        return (Step("NFC"),)
    return {bool: not value, str: "~", bytes: b"~"}.get(type(value), 2)


def test_every_field_of_a_specification_is_compared():
    """By one kind of tokenizer at least: others may have no use for it."""
    specs = [
        replace(spec, chat_template="x", middle_ids=(1,), add_bos=True, bos_id=1, eos_id=1)
        for spec in (byte_level(), pieces(), pieces("spm"), words())
    ]
    not_compared = set()
    for field in fields(TokenizerSpec):
        changed = [
            replace(spec, **{field.name: _other(field.name, getattr(spec, field.name))})
            for spec in specs
        ]
        found = [differences(*pair) for pair in zip(specs, changed, strict=True)]
        if not any(found):
            not_compared.add(field.name)
    assert not_compared == _NOT_COMPARED


def test_a_tokenizer_with_a_changed_part_is_not_the_same():
    spec = byte_level()
    assert compare(spec, spec, TEXTS).complete
    assert not compare(spec, spec, ()).complete
    for change in ({"add_bos": False}, {"merges": spec.merges[::-1]}, {"added": spec.added[1:]}):
        found = compare(spec, replace(spec, **change), ["b"])
        assert not found.complete
        assert any(entry.certain for entry in found.differences)


def test_ids_that_no_compared_text_has_are_decoded_too():
    spec = byte_level()
    tokens = [*spec.tokens]
    tokens[200], tokens[201] = tokens[201], tokens[200]
    found = compare(spec, replace(spec, tokens=tokens), ["hello"])
    assert found.equal == found.total
    assert "text of ids" in {entry.part for entry in found.differences}


def test_merges_and_scores_that_join_alike_are_the_same():
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "ab", "\u2581ab"]
    merges = TokenizerSpec(
        model="bpe",
        tokens=tokens,
        merges=[(257, 258), (256, 259)],
        byte_fallback=True,
        normalizer=(Step("Replace", {"pattern": {"String": " "}, "content": "\u2581"}),),
    )
    scores = as_sentencepiece(merges)
    assert scores.model == "spm" != merges.model
    assert not [entry for entry in differences(merges, scores) if entry.certain]
    other = replace(merges, merges=[(256, 259), (257, 258)])
    assert "merges" in {entry.part for entry in differences(other, scores)}


# Published files and GGUF files of the same tokenizer.
PAIRS = {
    "llama3/tokenizer.json": "ggml-vocab-llama-bpe.gguf",
    "llama2/tokenizer.model": "ggml-vocab-llama-spm.gguf",
}


@pytest.mark.parametrize("name", PAIRS)
def test_published_files_of_one_tokenizer_are_the_same(name, test_data):
    of_files = load_spec(test_data / "tokenizers" / name)
    of_gguf = load_spec(test_data / "vocab" / PAIRS[name])
    found = compare(
        replace(of_files, add_bos=of_gguf.add_bos, bos_id=of_gguf.bos_id), of_gguf, PROBES
    )
    assert [entry for entry in found.differences if entry.certain] == []
    assert found.complete
