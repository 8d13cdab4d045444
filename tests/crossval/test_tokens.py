"""Tokenizer parity: what is judged, what is counted apart, and that no weights are needed."""

import importlib.util
import json
from dataclasses import replace

import pytest
from builders import vocabulary, write_gguf
from tiny_models import KEYS, TOKENS, VOCAB

from bitnet.crossval.evidence import texts_for, tokenizer_parity
from bitnet.crossval.judge import judge
from bitnet.crossval.options import CrossvalOptions
from bitnet.crossval.references import Float64, IkLlamaCpp, LlamaCpp
from bitnet.crossval.run import cross_validate, recordable
from bitnet.crossval.trace import EngineFacts, PromptTrace, Question, Recorded, Trace
from bitnet.formats.containers import open_checkpoint
from bitnet.tokenizer import resolve_tokenizer


@pytest.fixture
def vocabulary_file(tmp_path):
    """A GGUF file with a vocabulary and not one weight."""
    metadata = {"general.architecture": "llama"} | {f"llama.{k}": v for k, v in KEYS.items()}
    metadata |= vocabulary(
        TOKENS,
        merges=[],
        token_types=[3, 1, 3, *[1] * (VOCAB - 3)],  # </s> is ordinary text
        pre="gpt-2",
        bos_token_id=0,
        eos_token_id=2,
        add_bos_token=True,
    )
    return write_gguf(tmp_path / "vocabulary.gguf", metadata, [])


def compared(path, checkpoint, reference):
    """Evidence of a comparison of tokenizers alone."""
    tokenizer, options = resolve_tokenizer(path), CrossvalOptions(tokenizer_only=True)
    return cross_validate(None, checkpoint, reference, options, tokenizer=tokenizer)[0]


@pytest.mark.parametrize("kind", [LlamaCpp, IkLlamaCpp])
def test_a_vocabulary_without_weights_is_compared(vocabulary_file, kind):
    if importlib.util.find_spec(kind.package) is None:
        pytest.skip(f"{kind.package} is not installed: an extra of crossval")
    checkpoint = open_checkpoint(vocabulary_file)
    assert not checkpoint.weights
    evidence = compared(vocabulary_file, checkpoint, kind())
    assert judge(evidence).status == "passed", judge(evidence).reasons
    assert evidence.compute_path == "none"
    parity = evidence.tokenizer_parity
    assert parity.total > 800
    assert parity.apart > 10
    assert parity.decoded == parity.decoded_equal > 700


def test_nothing_is_passed_where_the_reference_has_no_tokenizer(vocabulary_file):
    checkpoint = open_checkpoint(vocabulary_file)
    assert judge(compared(vocabulary_file, checkpoint, Float64())).status == "not run"


def parity(path, pairs):
    """*pairs* of a text with whether it gets BOS, against a reference that is always wrong."""
    theirs = Trace(EngineFacts("e"), tokenized=tuple((63, 63, 63) for _ in pairs))
    return tokenizer_parity(resolve_tokenizer(path), theirs, pairs)


@pytest.mark.parametrize(
    ("text", "theirs", "judged", "equal"),
    [
        ("ab", "ab", 1, 1),
        ("ab", " ab", 1, 0),
        ("ab .", "ab.", 0, 0),  # the C++ engines clean that up
        ("a\u2581b", "?", 0, 0),
    ],
)
def test_texts_of_ids_are_judged(vocabulary_file, text, theirs, judged, equal):
    tokenizer = resolve_tokenizer(vocabulary_file)
    ids = tuple(tokenizer.encode(text, add_special=False))
    trace = Trace(EngineFacts("e"), tokenized=(ids,), decoded=(theirs,))
    found = tokenizer_parity(tokenizer, trace, [(text, False)])
    assert (found.decoded, found.decoded_equal) == (judged, equal)
    assert found.ids == (ids if judged > equal else ())


@pytest.mark.parametrize("theirs", ["{}", " {}"])
def test_recordings_hold_the_texts_of_ids(vocabulary_file, tmp_path, theirs):
    tokenizer = resolve_tokenizer(vocabulary_file)
    prompts = ("ab", "ba")
    ids = tuple(tuple(tokenizer.encode(text)) for text in prompts)
    decoded = tuple(theirs.format(tokenizer.decode(one)) for one in ids)
    cut_off = tuple(PromptTrace(text, one[:1]) for text, one in zip(prompts, ids, strict=True))
    answered = Trace(
        EngineFacts("e"), prompts=cut_off, tokenized=(*ids, (9,)), decoded=(*decoded, "x")
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(recordable(answered, tokenizer).as_json()))

    recorded = Recorded(path)
    texts = texts_for(recorded, ())
    trace = recorded.trace(Question(open_checkpoint(vocabulary_file), texts=texts))
    found = tokenizer_parity(tokenizer, trace, texts)
    assert (found.total, found.equal, found.decoded) == (2, 2, 2)
    assert found.decoded_equal == (2 if theirs == "{}" else 0)
    without = recordable(replace(answered, tokenized=ids[:1], decoded=decoded[:1]), tokenizer)
    assert without.decoded is None


def test_the_first_text_that_is_read_differently_is_shown(vocabulary_file):
    tokenizer = resolve_tokenizer(vocabulary_file)
    texts = [("ab", False), ("ba", False), ("bb", False)]
    ids = [tuple(tokenizer.encode(text, add_special=False)) for text, _ in texts]
    theirs = Trace(EngineFacts("e"), tokenized=(ids[0], (9, 9), (9,)))
    found = tokenizer_parity(tokenizer, theirs, texts)
    assert (found.total, found.equal, found.text) == (3, 1, "ba")
    assert (found.ours, found.theirs) == (ids[1], (9, 9))


@pytest.mark.parametrize(
    ("text", "special"), [("a\u2581b", False), ("<s>ab", True), ("ab</s>", False)]
)
def test_what_engines_read_differently_is_counted_and_not_judged(vocabulary_file, text, special):
    found = parity(vocabulary_file, [(text, special), ("ab", True)])
    assert (found.total, found.equal, found.apart, found.apart_equal) == (1, 0, 1, 0)
    assert found.text == "ab"


@pytest.mark.parametrize(
    ("text", "special"), [("<s>ab", False), ("ab<s>", True), ("<extra>", True), ("e\u0301", False)]
)
def test_everything_else_is_judged(vocabulary_file, text, special):
    found = parity(vocabulary_file, [(text, special)])
    assert (found.total, found.equal, found.apart) == (1, 0, 0)
    assert found.text == text


def test_decomposed_characters_are_apart_where_the_tokenizer_composes_them(test_data):
    found = parity(test_data / "vocab" / "ggml-vocab-qwen2.gguf", [("e\u0301", False)])
    assert (found.total, found.apart) == (0, 1)


def test_every_probe_is_read_with_and_without_special_tokens():
    texts = texts_for(LlamaCpp(), ["a prompt"])
    assert texts[0] == ("a prompt", True)
    plain = [text for text, special in texts if not special]
    assert plain == [text for text, special in texts[1:] if special]
    assert len(plain) > 450
