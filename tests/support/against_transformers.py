"""Ids, texts and templates that the installed transformers makes of a folder.

    python tests/support/against_transformers.py CASE...

writes those of the drawn folders CASE (a seed, or a seed and the version that saved the folder:
``17`` or ``17@4.46.3``) as JSON lines, in the form that ``folder_expectations`` reads. It needs
transformers alone, of any version since 4.46.
"""

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import transformers
from folder_expectations import MESSAGES, TOOLS
from tokenizer_folders import Folder
from transformers import AutoTokenizer


def expectation(folder: Path, texts: list[str]) -> dict[str, object] | None:
    """Results of transformers for *texts*, ``None`` if it does not read *folder*."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception:  # noqa: BLE001 - transformers has no base class for these
        return None
    templates = []
    for tools in (None, TOOLS):
        rendered = None
        with suppress(Exception):  # a template that is missing
            rendered = tokenizer.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
        templates.append(rendered)
    return {
        "transformers": transformers.__version__,
        "texts": {text: _results(tokenizer, text) for text in texts},
        "templates": templates,
    }


def _results(tokenizer, text: str) -> list[object] | None:
    """Ids without and with special tokens, and both texts of the latter."""
    try:
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = tokenizer(text)["input_ids"]
    except Exception:  # noqa: BLE001 - the library needs an unknown token that is not there
        return None
    shown = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
    return [plain, ids, *shown]


def main(seeds: list[int]) -> None:
    """Write the results for the folders drawn with *seeds*."""
    for seed in seeds:
        folder = Folder(seed)
        with tempfile.TemporaryDirectory() as path:
            found = expectation(folder.write(Path(path)), folder.texts())
        print(json.dumps([seed, found]))


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
