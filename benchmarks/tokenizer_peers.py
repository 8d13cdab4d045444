"""The tokenizer packages to which ours is compared: how each is loaded and called.

JSON, MODEL and :func:`of_openai` map the name of a package to a loader. It takes the path of a
vocabulary, and returns the function that encodes a text. It raises if the package is not installed,
or refuses the vocabulary.
"""

from __future__ import annotations

import base64
import gzip
import importlib
from pathlib import Path


def ours(path):
    """This project's ``encode``, which returns a list."""
    tokenizer = _load_ours(path)
    return lambda text: tokenizer.encode(text, add_special=False)


def ours_as_array(path):
    """This project's ``encode_array``, to compare with packages that return an array."""
    tokenizer = _load_ours(path)
    return lambda text: tokenizer.encode_array(text, add_special=False)


def _load_ours(path):
    """The tokenizer in the file *path*, by this project."""
    from bitnet.tokenizer import load_tokenizer

    return load_tokenizer(path, pre="gpt-4o" if "o200k" in Path(path).name else None)


def _hugging_face(module, **options):
    """Loader of a package with the interface of ``tokenizers``; *options* are those of encoding."""

    def load(path):
        tokenizer = importlib.import_module(module).Tokenizer.from_file(str(path))
        return lambda text: ids_of(tokenizer.encode(text, **options))

    return load


def _gigatoken(path):
    tokenizer = importlib.import_module("gigatoken").Tokenizer(str(path))
    return lambda text: tokenizer.encode(text)


def _kitoken(path):
    module = importlib.import_module("kitoken")
    tokenizer = module.Kitoken.from_tokenizers_file(str(path))
    return lambda text: tokenizer.encode(text, True)


def _sentencepiece(path):
    module = importlib.import_module("sentencepiece")
    return module.SentencePieceProcessor(model_file=str(path)).encode


def _by_name(module, name, encode="encode_ordinary"):
    """Loader of a package that has the vocabulary *name* itself, and needs no file.

    *encode* is the name of its function that encodes a text.
    """

    def load(_path):
        tokenizer = importlib.import_module(module).get_encoding(name)
        return getattr(tokenizer, encode)

    return load


def _rs_bpe(name):
    """Loader of rs-bpe, which has the vocabulary *name* itself."""

    def load(_path):
        return getattr(importlib.import_module("rs_bpe").openai, name)().encode

    return load


def _tiktoken(name, *, as_array=False):
    """Loader of tiktoken for the rank file of *name*; *as_array*: ids are an array."""

    def load(path):
        encoding_class = importlib.import_module("tiktoken").Encoding
        lines = (line.split() for line in Path(path).read_bytes().splitlines() if line)
        ranks = {base64.b64decode(text): int(rank) for text, rank in lines}
        from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

        # cl100k_base splits a text as LLaMA 3 does.
        step = PRE_TOKENIZERS["gpt-4o" if name == "o200k_base" else "llama3"].steps[0]
        pattern = step.options["pattern"]["Regex"]
        encoding = encoding_class(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        if as_array:
            return lambda text: encoding.encode_to_numpy(text, disallowed_special=())
        return encoding.encode_ordinary

    return load


JSON = {
    "ours": ours,
    "ours (array)": ours_as_array,
    "gigatoken": _gigatoken,  # returns an array
    "snaptokens": _hugging_face("snaptokens", add_special_tokens=False),
    "fastokens": _hugging_face("fastokens", add_special_tokens=False),
    "kitoken": _kitoken,
    "tokenizers": _hugging_face("tokenizers", add_special_tokens=False),
}
MODEL = {"ours": ours, "sentencepiece": _sentencepiece}


def of_openai(name):
    """Loaders for one of OpenAI's vocabularies."""
    return {
        "ours": ours,
        "ours (array)": ours_as_array,
        "tiktoken": _tiktoken(name),
        "tiktoken (array)": _tiktoken(name, as_array=True),
        "quicktok": _by_name("quicktok", name),
        "rs-bpe": _rs_bpe(name),
        "bpe-openai": _by_name("bpe_openai", name, encode="encode"),
    }


def ranks_file(name, folder):
    """The tiktoken file of one of OpenAI's vocabularies, from ``bpe-openai``; None without it."""
    try:
        package = Path(importlib.import_module("bpe_openai").__file__).parent
    except ImportError:
        return None
    path = Path(folder) / f"{name}.tiktoken"
    path.write_bytes(gzip.decompress((package / "data" / f"{name}.tiktoken.gz").read_bytes()))
    return path


def ids_of(encoded):
    """Ids in the result of a package, which may be an object that has them."""
    return getattr(encoded, "ids", encoded)
