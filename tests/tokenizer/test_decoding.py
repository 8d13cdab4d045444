"""Ids back to text: every chain of decoders against the library, SentencePiece against its own."""

import io
import json
import random
import string

import pytest
import sentencepiece
import tokenizers

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.compiled import meta_of
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.library import library_engine

SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
}  # fmt: skip
METASPACE = {
    "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True
}  # fmt: skip
# Pieces of all kinds of vocabularies; some look like bytes and are not.
PIECES = [
    *(
        "<unk>",
        "",
        "<s>",
        SPACE,
        SPACE * 2,
        f"{SPACE}a",
        "a",
        "b",
        "ab",
        "##a",
        "##b",
        ".",
        f"{SPACE}.",
    ),
    *("'", "n't", "do", "not", "s", "!", "?", "é", "Ġ", "Ġa", "Ċ", "Ã", "©", "字", "</w>"),
    *("a</w>", "ba</w>", "<0xé>", "<0x+F>", "<0xF>", " ", "  a", "a "),
    *(f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xE5, 0xAD, 0x97, 0xFF, 0x80)),
]
ADDED = ["<s>", "<|im|>", "é!", "Ġadd", SPACE * 3, "<0xF0>", "ad d"]


def _steps(rng):
    """One decoder of each kind, with random options."""
    return [
        REPLACE | {"pattern": {"String": rng.choice([SPACE, "a", "##", "é", "ab", ""])}},
        REPLACE | {"pattern": {"Regex": rng.choice(["[ab]+", f"^{SPACE}", " {2,}"])}},
        FALLBACK,
        FUSE,
        STRIP | {"content": rng.choice([" ", "a"]), "start": rng.randrange(3)},
        STRIP | {"content": "@", "start": 1, "stop": 0},
        METASPACE | {"prepend_scheme": rng.choice(["always", "never", "first"])},
        {"type": "WordPiece", "prefix": rng.choice(["##", ""]), "cleanup": rng.random() < 0.7},
        {"type": "BPEDecoder", "suffix": rng.choice(["</w>", "a"])},
        BYTE_LEVEL,
    ]


def _document(rng, decoder):
    """A random ``tokenizer.json`` with *decoder*."""
    vocabulary = {piece: id for id, piece in enumerate(PIECES)}
    ids = {
        text: id for id, text in enumerate([*PIECES, *(a for a in ADDED if a not in vocabulary)])
    }
    flags = ("single_word", "lstrip", "rstrip")
    added = []
    for text in ADDED:
        special = rng.random() < 0.4
        normalized = not special and rng.random() < 0.3
        entry = {"id": ids[text], "content": text, "special": special, "normalized": normalized}
        added.append(entry | dict.fromkeys(flags, False))
    bpe = {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": []}
    models = [
        (bpe | {"byte_fallback": rng.random() < 0.5}, rng.choice([None, BYTE_LEVEL])),
        ({"type": "Unigram", "unk_id": 0, "vocab": [[p, -1.0] for p in PIECES]}, METASPACE),
        ({"type": "WordPiece", "unk_token": "<unk>", "vocab": vocabulary,
          "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
         {"type": "BertPreTokenizer"}),
    ]  # fmt: skip
    model, pre_tokenizer = rng.choice(models)
    return {
        "version": "1.0", "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": rng.choice([None, {"type": "Lowercase"}]), "pre_tokenizer": pre_tokenizer,
        "post_processor": None, "decoder": decoder, "model": model,
    }  # fmt: skip


def _engines(spec):
    """Tokenizers of *spec* by the engine in use and by the libraries."""
    return Tokenizer.from_spec(spec), Tokenizer(library_engine(spec), meta_of(spec))


def _streamed(tokenizer, ids, skip):
    """The text of *ids* by a stream, id after id."""
    stream = tokenizer.stream(skip_special=skip)
    return "".join(map(stream.push, ids)) + stream.finish()


def _chain(rng):
    """A random decoder: none, a step, or a sequence of up to four."""
    steps = rng.choices(_steps(rng), k=rng.randrange(1, 5))
    if rng.random() < 0.1:
        return None
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "decoders": steps}


@pytest.mark.parametrize("seed", range(120))
def test_any_chain_of_decoders_gives_the_text_of_the_library(seed, tmp_path):
    rng = random.Random(seed)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_document(rng, _chain(rng))))
    library = tokenizers.Tokenizer.from_file(str(path))
    size = library.get_vocab_size()
    for tokenizer in _engines(spec_from_file(path)):
        for _ in range(15):
            ids = [rng.randrange(size) for _ in range(rng.randrange(1, 14))]
            for skip in (False, True):
                expected = library.decode(ids, skip_special_tokens=skip)
                assert tokenizer.decode(ids, skip_special=skip) == expected
                assert _streamed(tokenizer, ids, skip) == expected


@pytest.mark.parametrize("decoder", [None, FUSE, METASPACE, BYTE_LEVEL])
def test_a_token_with_an_empty_text_is_decoded_and_an_id_without_a_token_is_not(tmp_path, decoder):
    model = {"type": "WordLevel", "vocab": {"": 0, "a": 1, f"{SPACE}b": 3}, "unk_token": "a"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"added_tokens": [], "decoder": decoder, "model": model}))
    tokenizer = Tokenizer.from_spec(spec_from_file(path))
    library = tokenizers.Tokenizer.from_file(str(path))
    for ids in ([1, 0, 3], [0], [0, 1], [2, 1], [1, 2, 0, 0, 3], [2]):
        for _ in range(2):  # also with the texts that the first time kept
            assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False), ids


@pytest.mark.parametrize("folder", ["llama3", "phi3"])
def test_real_files_give_the_text_of_the_library(folder, test_data):
    path = test_data / "tokenizers" / folder / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(path))
    tokenizer = Tokenizer.from_spec(spec_from_file(path))
    rng = random.Random(folder)
    size = library.get_vocab_size()
    for _ in range(300):
        # Bytes and special tokens are at the ends of the vocabulary.
        pools = (range(300), range(size), range(size - 12, size))
        ids = [rng.choice(rng.choice(pools)) for _ in range(20)]
        for skip in (False, True):
            assert tokenizer.decode(ids, skip_special=skip) == library.decode(
                ids, skip_special_tokens=skip
            )


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request, tmp_path_factory):
    """SentencePiece models with every way to treat spaces, and user-defined runs of U+2581."""
    folder = tmp_path_factory.mktemp(request.param)
    words = string.printable.split() + ["if x:", "    return 1", "def f():", "naïve café"] * 5
    paths = []
    for trim in (True, False):
        for prefix in (True, False):
            model = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(words * 3), model_writer=model, vocab_size=400,
                model_type=request.param, byte_fallback=True, remove_extra_whitespaces=trim,
                add_dummy_prefix=prefix, user_defined_symbols=[SPACE * 2, SPACE * 4, "<x>"],
                hard_vocab_limit=False, minloglevel=9, normalization_rule_name="identity",
            )  # fmt: skip
            path = folder / f"{trim:d}{prefix:d}" / "tokenizer.model"
            path.parent.mkdir()
            path.write_bytes(model.getvalue())
            paths.append(path)
    return paths


def test_sentencepiece_models_give_the_text_of_their_library(trained):
    rng = random.Random(0)
    for path in trained:
        library = sentencepiece.SentencePieceProcessor(model_file=str(path))
        for tokenizer in _engines(spec_from_file(path)):
            for _ in range(150):
                ids = [rng.randrange(1, library.get_piece_size()) for _ in range(15)]
                assert tokenizer.decode(ids, skip_special=True) == library.decode(ids)
                assert _streamed(tokenizer, ids, True) == library.decode(ids)


def test_program_code_comes_back_unchanged_from_a_sentencepiece_model(trained):
    code = "def f():\n    if x:\n        return 1"
    for path in trained:
        if path.parent.name.startswith("0"):  # extra white space is kept
            for tokenizer in _engines(spec_from_file(path)):
                ids = tokenizer.encode(code)
                assert tokenizer.decode(ids, skip_special=True) == code


def test_a_decoder_with_an_expression_is_refused_where_its_cost_has_no_bound(tmp_path, monkeypatch):
    replaced = {"type": "Replace", "pattern": {"Regex": "(a)\\1"}, "content": "b"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_document(random.Random(0), replaced)))
    with pytest.raises(Unsupported, match="a decoder replaces"):
        spec_from_file(path)
    # The compiled module bounds the steps of expressions, the libraries do not.
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    path.write_text(json.dumps(_document(random.Random(0), replaced | {"pattern": {"Regex": "a"}})))
    with pytest.raises(Unsupported, match="needs the compiled module"):
        spec_from_file(path)


@pytest.mark.parametrize("decoder", [{"type": "Nonsense"}, {"type": "Strip"}, "ByteLevel", 3])
def test_a_decoder_the_library_does_not_take_is_refused(decoder, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_document(random.Random(0), decoder)))
    with pytest.raises(InvalidFormat, match="cannot be run"):
        spec_from_file(path)


def test_an_answer_does_not_repeat_bytes_that_end_its_prompt(tmp_path):
    chain = {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, STRIP]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_document(random.Random(0), chain)))
    tokenizer = Tokenizer.from_spec(spec_from_file(path))
    prompt = [PIECES.index(piece) for piece in ("a", "<0xC3>", "<0xA9>")]  # "aé"
    stream = tokenizer.stream()
    stream.skip(prompt)
    assert stream.push(PIECES.index("b")) + stream.finish() == "b"
