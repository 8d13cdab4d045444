"""Tokenizer parity: texts that are compared, and that no weights are needed."""

import importlib.util
import json
from dataclasses import replace

import pytest
from builders import vocabulary, write_gguf
from tiny_keys import KEYS, VOCAB
from tiny_models import TOKENS

from bitnet.crossval.compare import tokenizer_parity
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.float64 import Float64
from bitnet.crossval.judge import judge
from bitnet.crossval.plan import texts_for
from bitnet.crossval.recording import Recorded, recordable
from bitnet.crossval.references import IkLlamaCpp, LlamaCpp
from bitnet.crossval.run import cross_validate
from bitnet.crossval.trace import EngineFacts, PromptTrace, Question, Trace
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


def evidence_on_tokenizers(path, checkpoint, reference):
    """Evidence of a comparison of tokenizers alone."""
    tokenizer = resolve_tokenizer(path)
    options = CrossvalOptions(tokenizer_only=True)
    return cross_validate(None, checkpoint, reference, options, tokenizer=tokenizer)[0]


@pytest.mark.parametrize("kind", [LlamaCpp, IkLlamaCpp])
def test_a_vocabulary_without_weights_is_compared(vocabulary_file, kind):
    if importlib.util.find_spec(kind.package) is None:
        pytest.skip(f"{kind.package} is not installed: an extra of crossval")
    checkpoint = open_checkpoint(vocabulary_file)
    assert not checkpoint.weights
    evidence = evidence_on_tokenizers(vocabulary_file, checkpoint, kind())
    assert judge(evidence).status == "passed", judge(evidence).reasons
    assert evidence.compute_path == "none"
    parity = evidence.tokenizer_parity
    # Probe texts, most of them with and without special tokens; some are not decoded.
    assert parity.total > 800
    assert parity.decoded == parity.decoded_equal > 700


def test_tokenizers_do_not_pass_if_the_reference_has_none(vocabulary_file):
    checkpoint = open_checkpoint(vocabulary_file)
    assert judge(evidence_on_tokenizers(vocabulary_file, checkpoint, Float64())).status == "not run"


def is_asked(path, text):
    """True if a reference is asked about the prompt *text*."""
    return texts_for(LlamaCpp(), resolve_tokenizer(path), [text])[:1] == ((text, True),)


# A text, what the engine decodes of its ids, and how many texts are judged and found equal.
@pytest.mark.parametrize(
    ("text", "theirs", "judged", "equal"),
    [
        ("ab", "ab", 1, 1),
        ("ab", " ab", 1, 0),
        ("ab .", "ab.", 0, 0),  # the C++ engines clean that up
    ],
)
def test_texts_of_ids_are_judged(vocabulary_file, text, theirs, judged, equal):
    tokenizer = resolve_tokenizer(vocabulary_file)
    ids = tuple(tokenizer.encode(text, add_special=False))
    trace = Trace(EngineFacts("e"), tokenized=(ids,), decoded=(theirs,))
    parity = tokenizer_parity(tokenizer, trace, [(text, False)])
    assert (parity.decoded, parity.decoded_equal) == (judged, equal)
    assert parity.ids == (ids if judged > equal else ())


@pytest.mark.parametrize("theirs", ["{}", " {}"])
def test_recordings_hold_the_texts_of_ids(vocabulary_file, tmp_path, theirs):
    tokenizer = resolve_tokenizer(vocabulary_file)
    prompts = ("ab", "ba")
    ids = tuple(tuple(tokenizer.encode(text)) for text in prompts)
    decoded = tuple(theirs.format(tokenizer.decode(tokens)) for tokens in ids)
    # A prompt runs only some of its positions; the texts are recorded as a whole.
    cut_off = tuple(PromptTrace(text, own[:1]) for text, own in zip(prompts, ids, strict=True))
    answered = Trace(
        EngineFacts("e"), prompts=cut_off, tokenized=(*ids, (9,)), decoded=(*decoded, "x")
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(recordable(answered, tokenizer).as_json()))

    recorded = Recorded(path)
    texts = texts_for(recorded, tokenizer, ())
    trace = recorded.trace(Question(open_checkpoint(vocabulary_file), texts=texts))
    parity = tokenizer_parity(tokenizer, trace, texts)
    assert (parity.total, parity.equal, parity.decoded) == (2, 2, 2)
    assert parity.decoded_equal == (2 if theirs == "{}" else 0)
    # Texts are recorded of all prompts or of none.
    of_first = recordable(replace(answered, tokenized=ids[:1], decoded=decoded[:1]), tokenizer)
    assert of_first.decoded is None


def test_the_first_text_that_is_read_differently_is_shown(vocabulary_file):
    tokenizer = resolve_tokenizer(vocabulary_file)
    texts = [("ab", False), ("ba", False), ("bb", False)]
    ids = [tuple(tokenizer.encode(text, add_special=False)) for text, _ in texts]
    theirs = Trace(EngineFacts("e"), tokenized=(ids[0], (9, 9), (9,)))
    parity = tokenizer_parity(tokenizer, theirs, texts)
    assert (parity.total, parity.equal, parity.text) == (3, 1, "ba")
    assert (parity.ours, parity.theirs) == (ids[1], (9, 9))


# A literal U+2581, a text that begins with the BOS token, and one with an ordinary token that looks
# special.
@pytest.mark.parametrize("text", ["a\u2581b", "<s>ab", "ab</s>"])
def test_what_engines_read_differently_on_purpose_is_not_asked(vocabulary_file, text):
    assert not is_asked(vocabulary_file, text)


@pytest.mark.parametrize("text", ["ab<s>", "<extra>", "e\u0301", "ab"])
def test_everything_else_is_asked(vocabulary_file, text):
    assert is_asked(vocabulary_file, text)


def test_decomposed_characters_are_not_asked_where_the_tokenizer_composes_them(test_data):
    assert not is_asked(test_data / "vocab" / "ggml-vocab-qwen2.gguf", "e\u0301")


def test_every_probe_is_read_with_and_without_special_tokens(vocabulary_file):
    texts = texts_for(LlamaCpp(), resolve_tokenizer(vocabulary_file), ["a prompt"])
    assert texts[0] == ("a prompt", True)
    plain = [text for text, special in texts if not special]
    both = {text for text, special in texts[1:] if special}
    assert both <= set(plain)
    assert len(both) > 430
