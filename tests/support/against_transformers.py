"""Ids, texts and rendered templates of the installed transformers (4.46 or later) for a folder."""

import os
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import transformers
from folder_expectations import MESSAGES, TOOLS
from transformers import AutoTokenizer


def expectation(folder: Path, texts: list[str]) -> dict[str, object] | None:
    """Results of transformers for *texts*, and MESSAGES rendered without tools and with TOOLS.

    None if transformers does not read *folder*.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception:  # noqa: BLE001 - transformers has no base class for these
        return None
    templates = []
    for tools in (None, TOOLS):
        rendered = None
        with suppress(Exception):  # the folder has no template
            rendered = tokenizer.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
        templates.append(rendered)
    return {
        "transformers": transformers.__version__,
        "texts": {text: _results(tokenizer, text) for text in texts},
        "templates": templates,
    }


def _results(tokenizer, text: str) -> list[object] | None:
    """Ids without and with special tokens, and the latter decoded with and without them.

    None if the library cannot encode *text*.
    """
    try:
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = tokenizer(text)["input_ids"]
    except Exception:  # noqa: BLE001 - the library needs an unknown token that is not there
        return None
    decoded_texts = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
    return [plain, ids, *decoded_texts]
