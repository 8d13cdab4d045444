"""Tokenizers as GGUF keys: what reads back as it was, and what is refused."""

import pytest

from bitnet.base.errors import Unsupported, VocabMismatch
from bitnet.tokenizer.export import gguf_keys, pre_name
from bitnet.tokenizer.from_gguf import spec_from_metadata
from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "▁a", "ab", "▁ab"]
ID = {text: id for id, text in enumerate(TOKENS)}
REPLACE = Step("Replace", {"pattern": {"String": " "}, "content": "▁"})
PREPEND = Step("Prepend", {"prepend": "▁"})
MERGES = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab")]


@pytest.fixture(autouse=True)
def fewer_texts(monkeypatch):
    """Copies are compared on fewer texts than by the command."""
    monkeypatch.setattr("bitnet.tokenizer.export._DRAWN", 500)


def from_json(merges=MERGES, steps=(PREPEND, REPLACE), **more):
    """The specification of a ``tokenizer.json`` like LLaMA 2's."""
    return TokenizerSpec(
        **{
            "model": "bpe",
            "tokens": TOKENS,
            "merges": [(ID[left], ID[right]) for left, right in merges],
            "added": tuple(AddedToken(id, TOKENS[id]) for id in range(3)),
            "normalizer": steps,
            "byte_fallback": True,
            "fuse_unknown": True,
            "add_space_prefix": PREPEND in steps,
            "unknown_id": 0,
            "bos_id": 1,
            "eos_id": 2,
            "add_bos": True,
            "stop_ids": frozenset({2}),
            "source": "tokenizer.json",
        }
        | more
    )


@pytest.mark.parametrize("steps", [(PREPEND, REPLACE), (REPLACE,)])
def test_merges_whose_results_have_one_order_become_scores(steps):
    keys = gguf_keys(from_json(steps=steps), rows=len(TOKENS))
    scores = dict(zip(TOKENS, keys["tokenizer.ggml.scores"], strict=True))
    assert scores["▁a"] > scores["ab"] > scores["▁ab"]
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"] is (PREPEND in steps)
    read_back = spec_from_metadata(keys)
    assert (read_back.model, read_back.bos_id, read_back.add_bos) == ("spm", 1, True)


@pytest.mark.parametrize(
    "merges",
    [
        [MERGES[3], *MERGES[:3]],  # one way to make ▁ab comes first, another one last
        MERGES[:3],  # one way is left out
        [],
    ],
)
def test_merges_that_no_scores_reproduce_are_refused(merges):
    with pytest.raises(Unsupported, match="scores of SentencePiece") as error:
        gguf_keys(from_json(merges), rows=len(TOKENS))
    assert "tokenizer.model" in error.value.hint


def test_added_tokens_that_would_read_back_otherwise_are_refused():
    spec = from_json(added=(AddedToken(0, "<unk>"), AddedToken(2, "</s>", lstrip=True)))
    with pytest.raises(Unsupported, match="cannot be written exactly in GGUF"):
        gguf_keys(spec, rows=len(TOKENS))


def test_a_second_stop_id_becomes_the_key_of_the_end_of_a_turn():
    tokens = [*TOKENS, "<over>"]
    added = (*from_json().added, AddedToken(len(TOKENS), "<over>"))
    spec = from_json(tokens=tokens, added=added, stop_ids=frozenset({2, len(TOKENS)}))
    keys = gguf_keys(spec, rows=len(tokens))
    assert keys["tokenizer.ggml.eot_token_id"] == len(TOKENS)


def test_more_tokens_than_rows_are_refused():
    with pytest.raises(VocabMismatch, match=f"{len(TOKENS)} tokens, the model has 9"):
        gguf_keys(from_json(), rows=9)


def test_a_pre_tokenizer_is_named_by_its_steps():
    byte_level = Step("ByteLevel", {"add_prefix_space": False, "use_regex": True})
    assert pre_name(from_json(pre_tokenizer=(byte_level,), normalizer=())) == "gpt-2"
    with pytest.raises(Unsupported, match="no name"):
        pre_name(from_json(pre_tokenizer=(byte_level, byte_level)))


@pytest.mark.parametrize("name", ["llama2", "llama3", "gpt2", "phi3"])
def test_real_tokenizers_are_written_exactly_as_gguf_keys(test_data, name):
    from bitnet.tokenizer.load import load_spec

    spec = load_spec(test_data / "tokenizers" / name)
    keys = gguf_keys(spec, rows=spec.vocab_size + 3)  # raises an error if they are not exact
    assert spec_from_metadata(keys).vocab_size == spec.vocab_size + 3


ENCODER = {"add_eos": True, "middle_ids": (2,)}


def encoder(**more):
    """A tokenizer that puts BOS and EOS around a text and joins two."""
    return from_json(**(ENCODER | more))


# Of these ids 0 is <unk>, 1 is BOS and 2 EOS.
@pytest.mark.parametrize(
    ("middle", "second_type"), [((2,), 0), ((2, 2), 0), ((2, 1), 1), ((2, 0), 0)]
)
def test_ids_between_two_texts_are_read_back(middle, second_type):
    spec = encoder(middle_ids=middle, second_type=second_type)
    assert spec_from_metadata(gguf_keys(spec, rows=len(TOKENS))).middle_ids == middle


@pytest.mark.parametrize("middle", [(), (1,), (1, 2), (2, 2, 2)])
def test_two_texts_that_gguf_would_join_otherwise_are_refused(middle):
    with pytest.raises(Unsupported, match="what goes between two texts is"):
        gguf_keys(encoder(middle_ids=middle), rows=len(TOKENS))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"middle_ids": None}, r"between two texts is None, and would be \(2,\)"),
        ({"second_type": 1}, "type of a second text is 1, and would be 0"),
    ],
)
def test_a_model_that_scores_pairs_is_refused_if_gguf_would_join_them_otherwise(change, text):
    spec = encoder(**change)
    gguf_keys(spec, rows=len(TOKENS), has_types=True)  # another model never joins two texts
    with pytest.raises(Unsupported, match=text):
        gguf_keys(spec, rows=len(TOKENS), ranks=True, has_types=True)


def test_a_tokenizer_whose_pairs_gguf_cannot_express_reads_back_without_pairs():
    keys = gguf_keys(from_json(middle_ids=(1,), second_type=1), rows=len(TOKENS), ranks=True)
    assert spec_from_metadata(keys).middle_ids is None
