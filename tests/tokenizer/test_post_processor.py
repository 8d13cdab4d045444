"""Two texts joined by an exported tokenizer, as the original joins them."""

import json
from dataclasses import replace

import pytest
from small_specs import byte_level, words
from tokenizers import Tokenizer as Library

from bitnet.base.errors import Unsupported
from bitnet.tokenizer.export import export_tokenizer
from bitnet.tokenizer.load import load_spec
from bitnet.tokenizer.post_processor import write_post_processor
from bitnet.tokenizer.spec import AddedToken

TOKENS = ("[CLS]", "[SEP]", "[X]", "a", "b")
ID = {text: id for id, text in enumerate(TOKENS)}


@pytest.fixture(autouse=True)
def fewer_texts(monkeypatch):
    """Copies are compared on fewer texts: these tests are about what is around the texts."""
    monkeypatch.setattr("bitnet.tokenizer.export._DRAWN", 50)


def template(single, pair):
    """A template of items such as ``[CLS]``, ``A`` or ``B:1``, the last with its type."""

    def items(text):
        for item in text.split():
            name, _, type_id = item.partition(":")
            kind = "Sequence" if name in "AB" else "SpecialToken"
            yield {kind: {"id": name, "type_id": int(type_id or 0)}}

    special = {text: {"id": text, "ids": [ID[text]], "tokens": [text]} for text in TOKENS[:3]}
    sections = {"single": [*items(single)], "pair": [*items(pair)], "special_tokens": special}
    return {"type": "TemplateProcessing", **sections}


# Tokens at the ends of a text, with their ids.
ENDS = {"cls": ["[CLS]", 0], "sep": ["[SEP]", 1]}
BERT = "[CLS] A [SEP] B:1 [SEP]:1"
# Sections of a ``tokenizer.json`` that join two texts.
PROCESSORS = {
    "BERT": template("[CLS] A [SEP]", BERT),
    "BertProcessing": {"type": "BertProcessing", **ENDS},
    "RoBERTa": {
        "type": "RobertaProcessing",
        **ENDS,
        "trim_offsets": True,
        "add_prefix_space": False,
    },
    "types of one kind": template("[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]"),
    "LLaMA": template("[CLS] A", "[CLS] A [CLS]:1 B:1"),
    "nothing between": template("A [SEP]", "A B [SEP]"),
    "only between": template("A", "A [X] B:1"),
    "other ends of a pair": template("[CLS] A", "[CLS] A [X] B [SEP]"),
    "a third type": template("A [SEP]", "A [SEP] B:2 [SEP]:2"),
    "the second first": template("A [SEP]", "B [SEP] A:1 [SEP]"),
    "none": None,
}
PROCESSORS["in a sequence"] = {"type": "Sequence", "processors": [PROCESSORS["BERT"]]}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_copy_of_a_file_joins_two_texts_alike(name, tmp_path):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": ID[text], "content": text, "special": True, **flags} for text in TOKENS[:3]]
    document = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": PROCESSORS[name],
        "model": {"type": "WordLevel", "vocab": ID, "unk_token": "a"},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    spec = load_spec(path)
    written = export_tokenizer(spec, tmp_path / "out")

    joined = [Library.from_file(str(file)).encode("a", "b") for file in (path, written[0])]
    assert joined[0].ids == joined[1].ids
    assert joined[0].type_ids == joined[1].type_ids
    copy = load_spec(tmp_path / "out")
    assert (copy.middle_ids, copy.second_type) == (spec.middle_ids, spec.second_type)


ENCODER = words(
    tokens=TOKENS,
    unknown_id=3,
    added=tuple(AddedToken(id, TOKENS[id]) for id in range(3)),
    bos_id=0,
    eos_id=1,
    add_bos=True,
    add_eos=True,
)


@pytest.mark.parametrize(("middle", "second_type"), [((1,), 1), ((1,), 0), ((1, 1), 0), ((), 1)])
def test_ids_between_two_texts_that_no_file_states_are_exported(middle, second_type, tmp_path):
    spec = replace(ENCODER, middle_ids=middle, second_type=second_type)
    written = export_tokenizer(spec, tmp_path)
    copy = load_spec(tmp_path)
    assert (copy.middle_ids, copy.second_type) == (middle, second_type)
    joined = Library.from_file(str(written[0])).encode("a", "b")
    assert joined.ids == [0, 3, *middle, 4, 1]  # [CLS] a ... b [SEP]
    assert joined.type_ids == [0] * (2 + len(middle)) + [second_type] * 2


def test_each_of_two_texts_that_nothing_joins_has_the_ends_with_its_own_type(tmp_path):
    (path, *_others) = export_tokenizer(replace(ENCODER, middle_ids=None), tmp_path)
    joined = Library.from_file(str(path)).encode("a", "b")
    assert joined.ids == [0, 3, 1, 0, 4, 1]  # [CLS] a [SEP] [CLS] b [SEP]
    assert joined.type_ids == [0, 0, 0, 1, 1, 1]


def test_without_ids_around_or_between_texts_the_section_is_empty():
    assert write_post_processor(byte_level(add_bos=False)) is None


def test_a_copy_that_would_join_two_texts_otherwise_is_not_written(tmp_path, monkeypatch):
    spec = replace(ENCODER, middle_ids=(1,), second_type=1)
    other = write_post_processor(replace(spec, middle_ids=None))
    monkeypatch.setattr("bitnet.tokenizer.library.write_post_processor", lambda _: other)
    with pytest.raises(Unsupported, match=r"between two texts is \(1,\), and would be \(1, 0\)"):
        export_tokenizer(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()
