"""Write a tokenizer in the files that Hugging Face's tools read, if they can express it exactly.

    tokenizer.json            vocabulary, merges, pre-tokenizer, added tokens, BOS and EOS
    tokenizer_config.json     special tokens by role, chat template
    generation_config.json    every id that ends a generation

The files are read back with the ``tokenizers`` library and compared with the original on the probe
texts before they are kept: an approximate file is not written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported, UsageError, from_os_error
from bitnet.tokenizer.comparison import prove_same
from bitnet.tokenizer.document import tokenizer_json
from bitnet.tokenizer.probes import probe_texts

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.tokenizer.spec import TokenizerSpec


def export_tokenizer(spec: TokenizerSpec, folder: Path, *, force: bool = False) -> list[Path]:
    """Write *spec* into *folder*.

    Args:
        spec: any tokenizer.
        folder: created if it is missing.
        force: replace files that are there.

    Returns:
        The files written.

    Raises:
        Unsupported: the ``tokenizers`` library would give different ids.
        UsageError: a file is there already and *force* is off.
    """
    document = tokenizer_json(spec)
    _prove(document, spec)
    files = {
        "tokenizer.json": document,
        "tokenizer_config.json": _config(spec),
        "generation_config.json": {
            "bos_token_id": spec.bos_id,
            "eos_token_id": sorted(spec.stop_ids),
        },
    }
    there = [folder / name for name in files if (folder / name).exists()]
    if there and not force:
        raise UsageError(f"{there[0]} exists already", hint="choose another folder, or add --force")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            draft = folder / f"{name}.partial"
            draft.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", "utf-8")
            draft.replace(folder / name)
    except OSError as error:
        raise from_os_error(error, error.filename or folder) from error
    return [folder / name for name in files]


def _config(spec: TokenizerSpec) -> dict[str, Any]:
    def text(id: int | None) -> str | None:
        return None if id is None else spec.tokens[id]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": spec.add_bos,
        "add_eos_token": spec.add_eos,
        "bos_token": text(spec.bos_id),
        "eos_token": text(spec.eos_id),
        "unk_token": text(spec.unknown_id),
        "chat_template": spec.chat_template,
    }


def _prove(document: dict[str, Any], spec: TokenizerSpec) -> None:
    """Compare the ``tokenizers`` library on *document* with the original.

    Raises:
        Unsupported: they differ; the message names the first difference.
    """
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise Unsupported(f"{spec.source} cannot be said as tokenizer.json: {error}") from None
    prove_same(
        spec,
        lambda text, _: list(library.encode(text, add_special_tokens=False).ids),
        texts=probe_texts(),
        specials=(True,),
        form="as tokenizer.json",
        hint="use the original file: it can be read as it is",
    )
