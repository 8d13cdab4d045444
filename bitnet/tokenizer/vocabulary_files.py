"""A byte-level BPE in ``vocab.json`` and ``merges.txt``.

The files say neither how text is cut into words nor what is put around it. The class of
transformers that a folder names decides on both, as for a ``tokenizer.json``, if it builds them
from a vocabulary. Without such a class, published vocabularies are recognised by their merges.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from bitnet.base.errors import TokenizerNotFound
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.class_table import builds_byte_level, builds_ends
from bitnet.tokenizer.former_classes import (
    SAME_FROM_VOCABULARY,
    former_version,
    template_processor,
)
from bitnet.tokenizer.limits import damage_error, refusal
from bitnet.tokenizer.side_files import TokenizerFile
from bitnet.tokenizer.spec import END_OF_GENERATION, AddedToken, TokenizerSpec
from bitnet.tokenizer.tokenizer_json import spec_from_tokenizer_json
from bitnet.tokenizer.vocabularies import LazySequence, bpe_spec, pair_merges

# Texts that are special tokens in any vocabulary, for files that do not say which ones are.
_USUAL_SPECIAL = END_OF_GENERATION | {"<s>", "<pad>", "<unk>", "<mask>"}
_ADDING = ("add_bos_token", "add_eos_token")


def spec_from_vocabulary(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in ``vocab.json`` and ``merges.txt``, one of which is *file*."""
    vocab, merges = (
        TokenizerFile(file.path.with_name(name), file.pre, file.files)
        for name in ("vocab.json", "merges.txt")
    )
    vocabulary = vocab.document
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    if {*map(type, ids)} != {int} or sorted(ids) != [*range(len(ids))]:
        raise damage_error(f"{vocab.path} is not a vocabulary: ids from 0 on by token are expected")
    lines = [line.removesuffix("\r") for line in merges.data.decode("utf-8", "replace").split("\n")]
    lines = [line for line in lines if line and not line.startswith("#version")]
    if any(line.endswith("</w>") for line in lines):
        raise refusal(
            f"{vocab.path} is a vocabulary like CLIP's, with the ends of words in its tokens: it"
            " does not say how text is normalized and cut"
        )
    if not vocab.pre and builds_byte_level(vocab.side.class_name):
        _check_version(vocab)
        return _as_class(vocab, vocabulary, lines, merges.data)
    return _as_known(vocab, vocabulary, lines, merges.data)


def _as_class(
    vocab: TokenizerFile, vocabulary: dict[str, int], lines: list[str], merges: bytes
) -> TokenizerSpec:
    """The tokenizer that the class of the folder builds from *vocabulary* and *lines*, its merges.

    *merges* is the content of ``merges.txt``.
    """
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [line.split(" ") for line in lines],
        },
    }
    return spec_of_built(vocab, document, merges)


def spec_of_built(file: TokenizerFile, document: dict[str, Any], content: bytes) -> TokenizerSpec:
    """The tokenizer that the class of a folder builds from *document*, a vocabulary without steps.

    *file* is that of the vocabulary, *content* what its fingerprint covers besides *document*. The
    post-processor of *document* is filled in if side files decide on BOS or EOS.
    """
    spec = spec_from_tokenizer_json(_Built(file, document, content))
    config = file.side.config
    stated = [key for key in _ADDING if key in config]
    if not stated:
        return spec

    # With one of the keys, BOS and EOS replace all that the class puts around a text.
    if builds_ends(file.side.class_name):
        raise refusal(
            f"{file.path}: tokenizer_config.json has {stated[0]}, and its class puts other tokens"
            " around a text"
        )
    roles = dict(spec.template_tokens)
    ids = {spec.tokens[id]: id for id in (token.id for token in spec.added)}
    is_former = former_version(file.side.model_config) is not None
    around = []
    for role in ("bos", "eos"):
        text = roles.get(f"{role}_token") if config.get(f"add_{role}_token") else None
        if is_former and text is not None and text not in document["model"]["vocab"]:
            raise refusal(
                f"{file.path}: tokenizer_config.json has add_{role}_token: true, and {text!r:.40}"
                " is not in the vocabulary"
            )
        around.append((text, ids[text]) if text in ids else None)
    document["post_processor"] = template_processor(*around)
    return spec_from_tokenizer_json(_Built(file, document, content))


class _Built(TokenizerFile):
    """A ``tokenizer.json`` that exists only in memory, made of what :func:`spec_of_built` gets."""

    def __init__(self, file: TokenizerFile, document: dict[str, Any], content: bytes) -> None:
        super().__init__(file.path, file.pre, file.files)
        self.document = document
        self.data = json.dumps(document).encode() + content
        self.side = replace(file.side, from_vocabulary=True)


def _check_version(vocab: TokenizerFile) -> None:
    """Refuse a folder of transformers 4 whose class may build another tokenizer there than in 5."""
    side = vocab.side
    if former_version(side.model_config) is None:
        return
    if side.class_name not in SAME_FROM_VOCABULARY:
        raise refusal(
            f"{vocab.path}: {side.class_name} builds other steps in transformers 4, which"
            " wrote this folder (transformers_version), than in 5"
        )
    if side.config.get("add_eos_token"):
        raise refusal(
            f"{vocab.path}: tokenizer_config.json has add_eos_token: true, which only some versions"
            " of transformers follow"
        )


def _as_known(
    vocab: TokenizerFile, vocabulary: dict[str, int], lines: list[str], merges: bytes
) -> TokenizerSpec:
    """The tokenizer of *vocabulary*, with the pre-tokenizer ``vocab.pre`` or a published one.

    *lines* are its merges, *merges* the content of ``merges.txt``.
    """
    side = vocab.side
    name = vocab.pre or _recognize_pre(lines, vocab)
    side.check_added(len(vocabulary), str(vocab.path))
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    usual = (text for text in _USUAL_SPECIAL if text in vocabulary)
    special = {vocabulary[text]: AddedToken(vocabulary[text], text) for text in usual}
    special.update((token.id, token) for token in side.added)
    tokens += [""] * (max(special, default=-1) + 1 - len(tokens))
    for token in special.values():
        tokens[token.id] = token.text
    by_text = {token.text: id for id, token in sorted(special.items())}
    spec = bpe_spec(
        name,
        tokens=tokens,
        merges=LazySequence(len(lines), lambda: pair_merges(lines, tokens), raw=lines),
        added=tuple(special[id] for id in sorted(special)),
        byte_level=True,
        source=str(vocab.path),
        **side.bos_and_eos(by_text, bos=(None, False), eos=(None, False)),
    )
    return side.complete(spec, vocab.data, merges)


def _recognize_pre(lines: list[str], vocab: TokenizerFile) -> str:
    """Name of the pre-tokenizer of the published vocabulary whose merges are *lines*."""
    vocabulary = vocabularies.identify_merges(len(lines), lambda: vocabularies.fingerprint(lines))
    if vocabulary is not None:
        return vocabulary.pre
    raise TokenizerNotFound(
        f"{vocab.path} and its {len(lines):,} merges are not a known vocabulary, and the files do"
        " not say how text is cut into words",
        hint="say which with --pre NAME, or name the model's own tokenizer.json",
    )
