"""Compare both engines with the ``sentencepiece`` library on random models.

The models are trained, or made up. One that an engine accepts must give the ids, offsets and texts
of the library.
"""

import base64
import io
import random

import sentencepiece
from sentencepiece_writer import sentencepiece_bytes
from tokenizer_configurations import (
    LETTERS,
    SPACE,
    WORDS,
    Outcome,
    answer,
    id_lists,
    offsets_of,
    open_engines,
    other_texts,
    random_charsmap,
    texts,
)

from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.spec import TokenizerSpec

LINES = [
    "The quick brown fox jumps over the lazy dog, 123 times!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "def main():\n    return  'hello   world'",
    "aa ab abc ba bb  a b a b 字字 ﬁé! İ 's a. 1 2",
]
RULES = ("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
SYMBOLS = ["<u>", SPACE * 2, "ﬁ", "ab", " a", f"{SPACE}a", "字", "'s", "\n", "1"]
UNKNOWN = 2
NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6


def random_model(seed):
    """Content of a ``tokenizer.model``."""
    rng = random.Random(seed)
    return _trained(rng) if rng.random() < 0.25 else sentencepiece_bytes(_made_up(rng))


def _flag(rng, share=0.5):
    """True for a *share* of calls."""
    return rng.random() < share


def _trained(rng):
    """Content of a model that the library trained with random options."""
    model = io.BytesIO()
    lines = rng.sample(LINES, rng.randrange(3, len(LINES) + 1))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5),
        model_writer=model,
        model_type=rng.choice(["bpe", "unigram"]),
        vocab_size=rng.choice([420, 500, 600]),
        byte_fallback=_flag(rng),
        normalization_rule_name=rng.choice(RULES),
        add_dummy_prefix=_flag(rng),
        remove_extra_whitespaces=_flag(rng),
        allow_whitespace_only_pieces=_flag(rng),
        split_by_whitespace=_flag(rng, 0.8),
        split_digits=_flag(rng),
        treat_whitespace_as_suffix=_flag(rng, 0.1),
        user_defined_symbols=rng.sample(SYMBOLS, rng.randrange(4)),
        control_symbols=["<c>"] if _flag(rng, 0.3) else [],
        unk_surface=rng.choice([" \u2047 ", "", "?", SPACE]),
        bos_id=rng.choice([1, -1]),
        character_coverage=rng.choice([0.98, 0.99, 1.0]),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=3,
    )
    return model.getvalue()


def _made_up(rng):
    """Specification of a model with random pieces, types and scores."""
    model = rng.choice(["unigram", "spm"])
    fallback = _flag(rng)
    spelled = [text.replace(" ", SPACE) for text in (*LETTERS, *WORDS, SPACE * 3, "aab", "abb")]
    pool = list(dict.fromkeys(spelled))
    pool = rng.sample(pool, rng.randrange(5, len(pool) + 1))
    entries = [("<unk>", UNKNOWN), *((text, NORMAL) for text in pool)]
    entries = [(text, _type(rng) if kind == NORMAL else kind) for text, kind in entries]
    entries += [(text, USER_DEFINED) for text in SYMBOLS if text not in pool and _flag(rng, 0.1)]
    entries += [(text, CONTROL) for text in ("<s>", "</s>", "<|im|>") if _flag(rng, 0.7)]
    if fallback:
        entries += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    if _flag(rng, 0.2):
        rng.shuffle(entries)
    pieces = [text for text, _ in entries]
    digits = rng.choice([0, 1, 6])
    return TokenizerSpec(
        model=model,
        tokens=pieces,
        scores=[round(rng.uniform(-12, 0), digits) for _ in pieces],
        token_types=[kind for _, kind in entries],
        byte_fallback=fallback,
        charsmap=base64.b64decode(random_charsmap(rng)) if _flag(rng, 0.3) else b"",
        add_space_prefix=_flag(rng),
        remove_extra_whitespaces=_flag(rng),
        unknown_id=pieces.index("<unk>"),
        unknown_text=rng.choice([" \u2047 ", "", "?", SPACE]),
        bos_id=pieces.index("<s>") if "<s>" in pieces else None,
        eos_id=pieces.index("</s>") if "</s>" in pieces else None,
    )


def _type(rng):
    """Random type of a piece, mostly normal."""
    return rng.choices([NORMAL, USER_DEFINED, UNUSED, CONTROL], weights=[80, 8, 8, 4])[0]


def compare_model(content, folder, seed=0, count=25):
    """The outcome of the model *content* beside the library, over *count* texts."""
    outcome = Outcome()
    path = folder / "tokenizer.model"
    path.write_bytes(content)
    spec, engines = open_engines(lambda: spec_from_file(path), outcome)
    if not engines:
        return outcome
    differences = outcome.differences
    try:
        library = sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        differences.append(f"the library refuses it: {error}")
        return outcome
    rng = random.Random(seed)
    for text in texts(rng, list(spec.tokens), SYMBOLS, count):
        differences += _encoded(library, engines, text)
    for ids in id_lists(rng, len(spec.tokens), count * 3 // 5):
        differences += other_texts(engines, ids, library.decode(ids), skip=True)
    return outcome


def _encoded(library, engines, text):
    """Yield a line for each difference between the ids and offsets of *text*."""
    mapping = library.encode(text, out_type="offset_mapping")
    for engine in engines:
        ids = answer(engine.encode, text, add_special=False, parse_special=False)
        if ids != mapping["ids"]:
            yield f"{engine.engine} {text!r}: {ids}, expected {mapping['ids']}"
            continue
        offsets = answer(offsets_of, engine, text, parse_special=False)
        expected = _whole_characters(library, mapping)
        if offsets != expected:
            yield f"{engine.engine} {text!r}: {offsets}, expected {expected}"


def _whole_characters(library, mapping):
    """Offsets of *mapping*, where all bytes of a character get the end that its last one has."""
    pieces = [library.id_to_piece(id) for id in mapping["ids"]]
    ends = [stop for _, stop in mapping["offsets"]]
    for at in range(len(pieces) - 2, -1, -1):
        if library.is_byte(mapping["ids"][at]) and "<0x80>" <= pieces[at + 1] < "<0xC0>":
            ends[at] = ends[at + 1] if library.is_byte(mapping["ids"][at + 1]) else ends[at]
    return [(start, end) for (start, _), end in zip(mapping["offsets"], ends, strict=True)]
