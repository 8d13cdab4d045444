"""Tokenizers of every kind, small or packed, for tests that run on all of them."""

import json
import lzma
from pathlib import Path

from bitnet.tokenizer.load import load_spec

TESTS = Path(__file__).parents[1]
PACKED = ("gpt-2", "starcoder")
SMALL = ("llama", "gemma", "spm", "wordpiece")
# The expression built into the ByteLevel step.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = ["the", "quick", "fox", "don", "t", "ing", "日本", "语", "привет"]


def spec(name, folder):
    """The specification *name*; files that it needs are written into *folder*."""
    if name in PACKED:
        packed = TESTS / "data" / "vocab" / f"ggml-vocab-{name}.gguf.xz"
        path = folder / packed.stem
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        return load_spec(path)
    if name == "spm":
        return load_spec(TESTS / "fixtures" / "spm" / "tiny.model")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(_CONTENT[name]()))
    return load_spec(path)


def _merged(prefix):
    """Vocabulary and merges that make every word of WORDS, with and without *prefix*."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted({*"".join(WORDS), *"abcdefghijklmnopqrstuvwxyz .,!?'123", "\u2581", "\n"})
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *letters]
    merges = []
    for word in (*WORDS, "\u2581\u2581", "\n\n", *(prefix + word for word in WORDS)):
        for end in range(2, len(word) + 1):
            pair = [word[: end - 1], word[end - 1]]
            if pair not in merges:
                merges.append(pair)
                tokens.append(word[:end])
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    return {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": True,
            "fuse_unk": True, "unk_token": "<unk>"}  # fmt: skip


def _added(*texts, **flags):
    """Added tokens for *texts*, with *flags*."""
    defaults = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    own = {"<unk>": 0, "<s>": 1, "</s>": 2}
    return [
        {"id": own[text], "content": text, "special": True, **defaults, **flags} for text in texts
    ]


def _llama():
    """Parts of a tokenizer.json like LLaMA's."""
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    steps = [{"type": "Prepend", "prepend": "\u2581"}, spaces]
    return {
        "added_tokens": [*_added("<unk>", "<s>"), *_added("</s>", rstrip=True)],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "model": _merged("\u2581"),
    }


def _gemma():
    """Parts of a tokenizer.json like Gemma's."""
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    return {
        "added_tokens": _added("<unk>", "<s>", "</s>"),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": split | {"invert": False},
        "model": _merged("\u2581"),
    }


def _wordpiece():
    """Parts of a tokenizer.json like BERT's."""
    tokens = ["[UNK]", "[CLS]", "[SEP]", *WORDS, *"abcdefghij.,!?'", "##s", "##ing", "##b", "日"]
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    added = [
        entry | {"content": content}
        for entry, content in zip(_added("<unk>", "<s>", "</s>"), tokens, strict=False)
    ]
    return {
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


_CONTENT = {"llama": _llama, "gemma": _gemma, "wordpiece": _wordpiece}

# Texts that may be next to a cut, and texts that a cut must not separate.
UNITS = (
    *WORDS, *"abcXYZ019 .,'/\\<>\n\r\t", "\x85", "\u2028", "  ", "\n\n", "\n ", " \n",
    "，", "。", "！", "，，", "\u0301", "e\u0301", "\u2581", "\u3000", "\xa0", "🙂",
    "👩\u200d🚀", "é", "ß", "Ω", "ไทย", "한국", " a ", "<s>", "</s>", "[SEP]",
    "'s", "'ll", "I'm", "ing ", " the ", "<|endoftext|>", "\x00", "\u00a8", "½",
)  # fmt: skip


def text(rng, most=40):
    """A text of units that are hard to cut."""
    pools = [UNITS, rng.sample(UNITS, 4), [" ", *WORDS]]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, most)))
