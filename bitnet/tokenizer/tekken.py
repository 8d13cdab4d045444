"""Mistral's ``tekken.json``: byte tokens in order of rank after a block of special tokens.

Read as by the ``mistral-common`` package: ids begin with the special tokens, those without a name
are called ``<SPECIAL_20>``, and only as many byte tokens count as ``default_vocab_size`` leaves
room for.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.errors import InvalidFormat, Unsupported
from bitnet.tokenizer.byte_alphabet import byte_spelling
from bitnet.tokenizer.fingerprints import spec_key
from bitnet.tokenizer.limits import TOKENS
from bitnet.tokenizer.merges import LazyRankMerges
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer, pre_tokenizer
from bitnet.tokenizer.side_files import read_bytes, read_side_files
from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec
from bitnet.tokenizer.stop_ids import stop_ids

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_tekken", "spec_from_tekken"]

_VERSIONS = ("v1", "v2", "v3", "v7", "v11", "v13", "v15")
_NAMED = ("v1", "v2", "v3", "v7")  # versions whose files may leave out the special tokens
_USUAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
# Hidden special tokens end a character whose bytes are incomplete.
_DECODER = (Step("Bytes", {"respell": False, "apart": True}),)


def is_tekken(document: object) -> bool:
    """True if a JSON value is a ``tekken.json`` rather than a ``tokenizer.json``."""
    if not isinstance(document, dict) or "model" in document:
        return False
    config = document.get("config")
    return isinstance(config, dict) and "default_num_special_tokens" in config


def spec_from_tekken(
    path: Path, document: dict[str, Any], *, pre: str | None = None
) -> TokenizerSpec:
    """The tokenizer in a ``tekken.json`` and its side files.

    Args:
        path: the file.
        document: its content.
        pre: name of the pre-tokenizer, instead of the file's pattern.

    Raises:
        InvalidFormat: a value has the wrong type, or tokens are missing or out of order.
        Unsupported: the version or the pattern is unknown.
    """
    try:
        spec = _spec(path, document, pre)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _damaged(path, f"{type(error).__name__} {error}") from None
    side = read_side_files(path.parent)
    ids = {token.text: token.id for token in spec.added}
    ends = [id for id in side.declared_ends if 0 <= id < spec.vocab_size]
    spec = replace(
        spec,
        stop_ids=stop_ids(ids, (spec.eos_id, *ends)),
        chat_template=side.chat_template,
    )
    return replace(spec, fingerprint=spec_key(spec, read_bytes(path), side.raw))


def _spec(path: Path, document: dict[str, Any], pre: str | None) -> TokenizerSpec:
    config = document["config"]
    version = config.get("version")
    if version not in _VERSIONS:
        raise Unsupported(
            f"{path} has the tekken version {version!r:.40}; supported: {', '.join(_VERSIONS)}",
            hint="name the model's tokenizer.json with --tokenizer FILE",
        )
    name, cut = _pre_tokenizer(path, config["pattern"], pre)
    special = _special(path, document, version)
    own = _whole(path, config, "default_vocab_size") - len(special)
    ranks = _ranks(path, document["vocab"], own)
    tokens = special + ranks
    ids = {text: id for id, text in enumerate(special)}
    return TokenizerSpec(
        model="bpe",
        tokens=tokens,
        merges=LazyRankMerges(tokens, range(len(special), len(tokens)), str(path)),
        added=tuple(AddedToken(id, text) for id, text in enumerate(special)),
        outside=frozenset(range(len(special))),
        normalizer=cut.normalizer,
        pre_tokenizer=cut.steps,
        decoder=_DECODER,
        byte_level=True,
        ignore_merges=True,
        bos_id=ids.get("<s>"),
        eos_id=ids.get("</s>"),
        add_bos="<s>" in ids,
        pre=name,
        source=str(path),
    )


def _pre_tokenizer(path: Path, pattern: object, pre: str | None) -> tuple[str, PreTokenizer]:
    """The pre-tokenizer; a pattern is accepted only if it is known to be supported exactly."""
    if pre is not None:
        return pre, pre_tokenizer(pre)
    usual = PRE_TOKENIZERS["tekken"]
    if pattern == _regex(usual):
        return "tekken", usual
    for name, known in PRE_TOKENIZERS.items():
        if _regex(known) == pattern and known.byte_level and not known.normalizer:
            return name, known
    raise Unsupported(
        f"{path} cuts text with a pattern that is not a known one: {pattern!r:.120}",
        hint="say which one it equals with --pre NAME, or name the model's tokenizer.json with"
        " --tokenizer FILE",
    )


def _regex(pre: PreTokenizer) -> object:
    """The single expression of *pre*, ``None`` if there are other steps."""
    if len(pre.steps) != 2 or pre.steps[0].type != "Split":
        return None
    pattern = pre.steps[0].options["pattern"]
    return pattern.get("Regex") if isinstance(pattern, dict) else None


def _special(path: Path, document: dict[str, Any], version: str) -> list[str]:
    """Texts of the special tokens by id."""
    count = _whole(path, document["config"], "default_num_special_tokens")
    listed = document.get("special_tokens")
    if listed is None:
        if version not in _NAMED:
            raise _damaged(path, f"a file of version {version} without special_tokens")
        texts = list(_USUAL)
    else:
        texts = [entry["token_str"] for entry in listed]
        if [entry["rank"] for entry in listed] != list(range(len(listed))):
            raise _damaged(path, "special tokens that are not in the order of their ids")
    if len(texts) > count:
        raise _damaged(path, f"{len(texts):,} special tokens, and room for {count:,}")
    texts += [f"<SPECIAL_{id}>" for id in range(len(texts), count)]
    if not all(type(text) is str and text for text in texts) or len(set(texts)) != count:
        raise _damaged(path, "special tokens that are not texts, or duplicates")
    return texts


def _ranks(path: Path, vocabulary: list[dict[str, Any]], count: int) -> list[str]:
    """The byte tokens by rank, in GPT-2's byte spelling."""
    if not 256 <= count <= len(vocabulary):
        raise _damaged(path, f"{len(vocabulary):,} byte tokens where {count:,} are expected")
    texts: list[str] = []
    for rank, entry in enumerate(vocabulary[:count]):
        try:
            token = base64.b64decode(entry["token_bytes"], validate=True)
        except binascii.Error:
            token = b""
        is_byte = rank >= 256 or token == bytes([rank])
        if type(entry["rank"]) is not int or entry["rank"] != rank or not token or not is_byte:
            raise _damaged(path, f"the byte token of rank {rank:,} is {entry!r:.80}")
        texts.append(byte_spelling(token))
    if len(set(texts)) != count:
        raise _damaged(path, "a byte token that is there twice")
    return texts


def _whole(path: Path, config: dict[str, Any], name: str) -> int:
    value = config[name]
    if type(value) is not int or not 0 <= value <= TOKENS:
        raise _damaged(path, f"{name} is {value!r:.40}")
    return value


def _damaged(path: Path, what: str) -> InvalidFormat:
    return InvalidFormat(f"{path} is not a tekken.json: {what}", hint="fetch the file again")
