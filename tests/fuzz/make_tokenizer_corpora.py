"""Writes the seeds of the tokenizer corpora: ``python tests/fuzz/make_tokenizer_corpora.py``."""

import base64
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import tekken_files
from charsmaps import charsmap
from sentencepiece_writer import sentencepiece_bytes
from small_specs import byte_level, pieces

HERE = Path(__file__).parent


def _json(model, **parts):
    """Bytes of a ``tokenizer.json`` with *model* and other *parts*."""
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model} | parts).encode()


def tokenizer_json():
    """Name and bytes of every seed of ``tokenizer-json``."""
    spec = byte_level()
    tokens = {text: id for id, text in enumerate(spec.tokens)}
    merges = [[spec.tokens[left], spec.tokens[right]] for left, right in spec.merges]
    # The token 269 is an added one.
    bpe = {"type": "BPE", "vocab": dict(list(tokens.items())[:269]), "merges": merges}
    added = [{"id": 269, "content": "<s>", "special": True, "lstrip": True, "normalized": False}]
    split = {
        "type": "Split",
        "pattern": {"Regex": r"\p{L}+|\s+(?!\S)"},
        "behavior": "Isolated",
        "invert": False,
    }
    bytes_step = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    steps = {"type": "Sequence", "pretokenizers": [split, bytes_step]}
    yield "bpe", _json(bpe, added_tokens=added, pre_tokenizer=steps, decoder=bytes_step)
    few = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2, "<unk>": 3},
        "merges": ["a b"],
        "unk_token": "<unk>",
    }
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    yield "replace", _json(few, normalizer=replaced)
    # Each step doubles the spaces.
    grow = {"type": "Sequence", "normalizers": [{**replaced, "content": "  "}] * 20}
    yield "grow", _json(few, normalizer=grow)
    symbol = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "first",
        "split": True,
    }
    yield "metaspace", _json(few, pre_tokenizer=symbol, decoder=symbol)
    yield "metaspace-empty", _json(few, pre_tokenizer={**symbol, "replacement": ""})
    yield "split-empty", _json(few, pre_tokenizer={**split, "pattern": ""})
    yield "intervals", _json(few, pre_tokenizer={**split, "pattern": {"Regex": "a" + "{1}" * 500}})
    yield "explosive", _json(few, pre_tokenizer={**split, "pattern": {"Regex": "(?:a|a)+c"}})
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5], ["aa", -2.0]]}
    yield "unigram", _json(unigram)
    yield "unigram-nan", _json(unigram).replace(b"-1.5", b"NaN")
    table = base64.b64encode(charsmap({b"a": b"b"})[-20:]).decode()  # the end of a table alone
    yield (
        "precompiled",
        _json(unigram, normalizer={"type": "Precompiled", "precompiled_charsmap": table}),
    )
    words = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1, "##a": 2}}
    words |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    bert = {"type": "BertNormalizer", "clean_text": True, "lowercase": True}
    yield "wordpiece", _json(words, normalizer=bert, pre_tokenizer={"type": "BertPreTokenizer"})


def sentencepiece():
    """Name and bytes of every seed of ``sentencepiece``."""
    for kind in ("spm", "unigram"):
        yield kind, sentencepiece_bytes(pieces(kind))
    mapped = pieces("unigram", charsmap=charsmap({b"a": "\u00e9".encode()}))
    yield "mapped", sentencepiece_bytes(mapped)
    torn = pieces("unigram", charsmap=charsmap({b"a": b"\xc3"}))
    yield "torn", sentencepiece_bytes(torn)


def tiktoken():
    """Name and bytes of every seed of ``tiktoken``."""
    texts = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"  "]
    lines = [base64.b64encode(text) + b" %d\n" % rank for rank, text in enumerate(texts)]
    yield "ranks", b"".join(lines)
    yield "few", b"".join(lines[97:103])
    yield "holes", b"".join(lines[::2])


def tekken():
    """Name and bytes of every seed of ``tekken``."""
    for version in ("v3", "v7", "v11", "v13"):
        yield version, _compact(tekken_files.document(version, spare=1))
    few = tekken_files.document(joined=tekken_files.JOINED[:2], spare=0, count=20)
    yield "few", _compact(few)
    # The target makes a `tekken.json` of inputs that are not JSON: each line becomes a token.
    yield "joined", "\n".join(tekken_files.JOINED).encode()
    yield "runs", b"\n".join(b"a" * length for length in (2, 3, 4, 5, 7, 60, 128))
    yield "crossing", b"bc\ncd\nab\nabc\nbcd\nabcd\n12\n  \n   \ncdab"


def _compact(document):
    """Bytes of *document* as JSON without spaces."""
    return json.dumps(document, separators=(",", ":")).encode()


def chat_template():
    """Name and bytes of every seed of ``chat-template``."""
    loop = "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}{% endfor %}"
    yield "plain", (loop + "{% if add_generation_prompt %}<|assistant|>{% endif %}").encode()
    yield "macro", b"{% macro f(n) %}{{ n }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"
    yield "tools", b"{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ messages | length }}"
    yield "range", b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    yield (
        "long",
        b"{% set a = 'a' * 999999 %}{% for i in range(99999) %}{% set b = a ~ a %}{% endfor %}",
    )
    yield (
        "namespace",
        b"{% set n = namespace(x=[]) %}{% for i in range(40) %}"
        b"{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    )
    yield "nested", b"{% for a in [1] %}" * 25 + b"x" + b"{% endfor %}" * 25
    yield "refuses", b"{{ raise_exception('no') }}"


def server_body():
    """Name and bytes of every seed of ``server-body``."""
    yield "inference", b'{"prompt": "Hello", "max_tokens": 4, "temperature": 0.5, "stop": ["a"]}'
    yield (
        "completion",
        b'{"prompt": ["a", [1, 2]], "n": 2, "logprobs": 3, "logit_bias": {"5": -100}}',
    )
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "n": 1}
    yield "chat", json.dumps(chat | {"stream": True, "top_logprobs": 2, "logprobs": True}).encode()
    yield "tokens", b'{"text": "Hello", "add_special": false}'
    yield (
        "surrogate",
        b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}',
    )
    yield "nesting", b'{"prompt": ' + b"[" * 2000 + b"]" * 2000 + b"}"


SEEDS = {
    "tokenizer-json": tokenizer_json,
    "sentencepiece": sentencepiece,
    "tiktoken": tiktoken,
    "tekken": tekken,
    "chat-template": chat_template,
    "server-body": server_body,
}

if __name__ == "__main__":
    for target, make in SEEDS.items():
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in make():
            (folder / name).write_bytes(raw)
