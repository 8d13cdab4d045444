"""Every kind of path in a cache, made by the functions that make them."""

import inspect
from pathlib import Path

from bitnet.store import tree

DIGEST = "a" * 64
ARGUMENTS = {
    "cache": Path(),
    "store": tree.store_folder(Path()),
    "key": "llama3-128k",
    "file": "tokenizer.json",
    "sha256": DIGEST,
    "name": DIGEST[:32],
    "fingerprint": DIGEST,
}


def every_place():
    """Places of files in a cache, relative to it: one for each function of the tree, and more.

    In a folder, the place is that of a file whose name fits there.
    """
    places = {
        "models/hf/org/other@main/model.gguf",
        "models/tiny/tiny.gguf",
        "models/url-0123456789abcdef/model.gguf",
        "models/new.gguf",
        "tokenizers/new/tokenizer.json",
        "tokenizers/new.json",
        "prompts/new",
        "CACHEDIR.TAG",
    }
    for function in filter(inspect.isfunction, vars(tree).values()):
        is_own = function.__module__ == tree.__name__
        if is_own and function.__annotations__["return"] == "Path":
            parameters = inspect.signature(function).parameters
            path = function(**{name: ARGUMENTS[name] for name in parameters})
            places.add((path if path.suffix else path / f"{DIGEST[:32]}.json").as_posix())
    return sorted(places)
