"""Build a specification from Hugging Face's ``tokenizer.json``, and check a downloaded one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, Unsupported, VocabMismatch
from bitnet.base.files import read_bytes
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.decoding import decoder_steps
from bitnet.tokenizer.library import load_library, translate_errors
from bitnet.tokenizer.limits import (
    ADDED_TOKEN_BYTES,
    AFFIX_IDS,
    beyond,
    check_id_range,
    damage_error,
    json_fault,
    reading,
    refusal,
)
from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec, parse_added_token, read_steps
from bitnet.tokenizer.tokenizer_class import apply_side_files
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS, LazySequence, pair_merges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bitnet.tokenizer.side_files import SideFiles, TokenizerFile

logger = logging.getLogger(__name__)

_REFETCH = "fetch it again: bitnet tokenizer --source mirror --output models --force"


def spec_from_tokenizer_json(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in a ``tokenizer.json`` and its side files."""
    source = str(file.path)
    with reading(source, "tokenizer.json"):
        _check_model(file.document, source)
        folder_tokenizer = apply_side_files(
            file.document, file.side, source=source, is_byte_level=b'"ByteLevel"' in file.data
        )
        document = folder_tokenizer.document
        roles = folder_tokenizer.roles
        if document is not file.document:  # changed by the side files
            _check_normalized_twice(document, folder_tokenizer.once_normalized, source)
        spec = _spec(document, file.side, source, roles)
        spec = _clean_up(spec, file.side)
    data = file.data if document is file.document else json.dumps(document).encode()
    if file.side.names_roles:  # a role that they do not name has no token: templates see no text
        roles = {"bos_token": "", "eos_token": ""} | roles
    spec = replace(spec, source=source, document=data, template_tokens=tuple(roles.items()))
    return file.side.complete(spec, file.data)


def _check_model(data: dict[str, Any], source: str) -> None:
    """Refuse a ``tokenizer.json`` with a kind of model that is not supported."""
    kind = _kind(data["model"])
    if kind not in _MODELS:
        raise refusal(f"{source} holds a {kind!r} model; supported: {', '.join(_MODELS)}")


def _check_normalized_twice(
    document: dict[str, Any], once_normalized: frozenset[str], source: str
) -> None:
    """Refuse added tokens that the library decodes to another text.

    *once_normalized* are texts that were added at least once to be found in normalized text: the
    library decodes them to their normalized form, even if a later entry says something else.
    """
    normalizer = document.get("normalizer")
    if not normalizer or not once_normalized:
        return
    normalized = {entry["content"] for entry in document["added_tokens"] if entry["normalized"]}
    texts = once_normalized - normalized
    for text, changed in _normalize_texts(sorted(texts), normalizer, source).items():
        if changed != text:
            raise refusal(
                f"{source}: the files beside it add {text!r:.60} twice, with normalized: true, and"
                " its normalizer changes this text"
            )


def _kind(model: dict[str, Any]) -> Any:
    """``type`` of a model, told from its other keys if it is absent."""
    return model.get("type") or ("BPE" if "merges" in model else "WordPiece")


def _clean_up(spec: TokenizerSpec, side: SideFiles) -> TokenizerSpec:
    """*spec* with ``clean_up_tokenization_spaces``, which transformers applies except to BPE."""
    if spec.model == "bpe" or side.config.get("clean_up_tokenization_spaces") is not True:
        return spec
    return replace(spec, decoder=(*spec.decoder, Step("Fuse"), Step("CleanUp")))


def _spec(
    data: dict[str, Any], side: SideFiles, source: str, roles: dict[str, str]
) -> TokenizerSpec:
    """The tokenizer in *data*, a ``tokenizer.json``; *roles* are special texts by their role."""
    model = data["model"]
    build = _MODELS[_kind(model)]
    _check_outline(data, source)
    added = tuple(parse_added_token(entry["id"], entry) for entry in data.get("added_tokens") or ())
    vocabulary = _ids_by_text(model["vocab"], source)
    tokens = _texts_by_id(model["vocab"], added, source)
    normalizer = tuple(read_steps(data.get("normalizer"), "normalizers"))
    for step in normalizer:  # an empty text makes the library's offsets wrong
        texts = [step.options.get(name) for name in ("prepend", "pattern")]
        if any(text in ("", {"String": ""}) for text in texts):
            raise refusal(f"{source} has the normalizer {step.type} with an empty text")
    pre_tokenizer = tuple(read_steps(data.get("pre_tokenizer"), "pretokenizers"))
    spec = replace(
        build(model, tokens),
        added=_normalize_added(added, data.get("normalizer"), source),
        outside=_outside(added, vocabulary, len(model["vocab"]), source),
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder=decoder_steps(data.get("decoder")),
        byte_level=any(step.type == "ByteLevel" for step in (*normalizer, *pre_tokenizer)),
    )
    for section in filter(data.get, ("truncation", "padding")):
        text = "%s has a %s section, which is not applied: texts keep their length"
        logger.warning(text, source, section)
    return _with_special(spec, data.get("post_processor"), side, roles)


def _check_outline(data: dict[str, Any], source: str) -> None:
    """Refuse values that the ``tokenizers`` library does not accept, except in the vocabulary.

    The vocabulary is replaced by a minimal one, so that this is fast.
    """
    empty: dict[str, Any] = {"vocab": {}, "merges": []}
    if isinstance(data["model"]["vocab"], list):
        empty = {"vocab": [["?", 0.0]], "unk_id": 0}
    model = data["model"] | {name: value for name, value in empty.items() if name in data["model"]}
    unknown = model.get("unk_token")
    if isinstance(unknown, str) and isinstance(model["vocab"], dict):
        model["vocab"] = {unknown: 0}
    load_library(source, **data | {"model": model, "added_tokens": []})


def _ids_by_text(entries: Any, source: str) -> dict[str, int]:
    """Ids by text of the *entries* of a vocabulary; of equal texts, the last one counts."""
    if isinstance(entries, dict):
        for token, id in entries.items():
            if type(id) is not int:
                raise damage_error(f"{source}: the token {token!r:.60} has the id {id!r:.60}")
        return entries
    for entry in entries:
        kinds = [*map(type, entry)] if isinstance(entry, list) else []
        if kinds not in ([str, int], [str, float]):
            raise damage_error(f"{source}: {entry!r:.80} is not a piece and its score")
    return {piece: id for id, (piece, _) in enumerate(entries)}


def _outside(
    added: Sequence[AddedToken], vocabulary: dict[str, int], size: int, source: str
) -> frozenset[int]:
    """Ids of the added tokens that are not in the model's vocabulary of *size* entries."""
    last = size - 1  # id of the last token so far
    own_ids = set(vocabulary.values())
    outside: dict[str, int] = {}
    for token in added:
        model_id = vocabulary.get(token.text, outside.get(token.text))
        if model_id is None:  # the library gives the token the next id
            last += 1
            model_id = last
            outside[token.text] = last
        if model_id != token.id or (token.text in outside and model_id in own_ids):
            raise refusal(
                f"{source} has the added token {token.text!r:.60} as {token.id:,}, and its model"
                f" gives it the id {model_id:,}"
            )
    return frozenset(outside.values())


def _texts_by_id(vocabulary: Any, added: Sequence[AddedToken], source: str) -> list[str]:
    """Token texts by id; empty for an id without a token."""
    entries = dict(_number(vocabulary))
    entries.update((token.id, token.text) for token in added)
    if not entries:
        raise damage_error(f"{source} has an empty vocabulary")
    check_id_range(entries, len(entries), source)
    return [entries.get(id, "") for id in range(max(entries) + 1)]


def _number(vocabulary: Any) -> Iterator[tuple[Any, str]]:
    """Id and text of each entry of a model's *vocabulary*, in its order."""
    if isinstance(vocabulary, dict):
        return ((id, text) for text, id in vocabulary.items())
    return ((id, entry[0]) for id, entry in enumerate(vocabulary))  # Unigram: text and score


def _bpe(model: dict[str, Any], tokens: Sequence[str]) -> TokenizerSpec:
    if model.get("dropout"):
        raise Unsupported(f"a BPE model with dropout = {model['dropout']!r} is not supported")
    prefix = model.get("continuing_subword_prefix") or ""
    merges = model["merges"]
    if not isinstance(merges, list):
        raise TypeError(f"the merges are a {type(merges).__name__}, not a list")

    def load() -> list[tuple[int, int]]:
        if not all(isinstance(merge, str) for merge in merges):
            for merge in merges:
                if not isinstance(merge, list) or [*map(type, merge)] != [str, str]:
                    raise damage_error(f"the merge {merge!r:.80} is not a pair of texts")
        return pair_merges(merges, tokens, prefix)

    return TokenizerSpec(
        model="bpe",
        tokens=tokens,
        merges=LazySequence(len(merges), load, raw=merges),
        byte_fallback=bool(model.get("byte_fallback")),
        fuse_unknown=bool(model.get("fuse_unk")),
        ignore_merges=bool(model.get("ignore_merges")),
        continuing_prefix=prefix,
        word_suffix=model.get("end_of_word_suffix") or "",
        unknown_id=_id_of(tokens, model.get("unk_token")),
    )


def _unigram(model: dict[str, Any], tokens: Sequence[str]) -> TokenizerSpec:
    scores = [float(score) for _, score in model["vocab"]]
    unknown = model.get("unk_id")
    if type(unknown) not in (int, type(None)) or not 0 <= (unknown or 0) < len(scores):
        raise ValueError(f"unk_id is {unknown}, of {len(scores):,} pieces")
    return TokenizerSpec(
        model="unigram",
        tokens=tokens,
        scores=scores + [0.0] * (len(tokens) - len(scores)),
        byte_fallback=bool(model.get("byte_fallback")),
        unknown_id=unknown,
    )


def _wordpiece(model: dict[str, Any], tokens: Sequence[str]) -> TokenizerSpec:
    return TokenizerSpec(
        model="wordpiece",
        tokens=tokens,
        unknown_id=_id_of(tokens, model.get("unk_token", "[UNK]")),
        continuing_prefix=model.get("continuing_subword_prefix", "##"),
        max_chars_per_word=model.get("max_input_chars_per_word", 100),
    )


def _wordlevel(model: dict[str, Any], tokens: Sequence[str]) -> TokenizerSpec:
    unknown = model.get("unk_token", "<unk>")
    unknown_id = _id_of(tokens, unknown) if unknown in model["vocab"] else None
    return TokenizerSpec(model="wordlevel", tokens=tokens, unknown_id=unknown_id)


_MODELS = {"BPE": _bpe, "Unigram": _unigram, "WordPiece": _wordpiece, "WordLevel": _wordlevel}


def _id_of(tokens: Sequence[str], text: str | None) -> int | None:
    """Id of the token *text*, which must be there; None for an empty text or None."""
    return tokens.index(text) if text else None


def _normalize_added(
    added: tuple[AddedToken, ...], normalizer: Any, source: str
) -> tuple[AddedToken, ...]:
    """*added*, with the normalized texts of those tokens that are matched in normalized text."""
    if not normalizer or not any(token.normalized for token in added):
        return added
    raw_texts = [token.text for token in added if token.normalized]
    texts = _normalize_texts(raw_texts, normalizer, source)
    if "" in texts.values() or len(set(texts.values())) < len(raw_texts):
        raise refusal(f"{source} has added tokens that normalization makes empty or the same")
    return tuple(
        replace(token, text=texts[token.text]) if token.normalized else token for token in added
    )


def _normalize_texts(texts: Sequence[str], normalizer: Any, source: str) -> dict[str, str]:
    """Normalized forms of *texts*, those of added tokens, by text.

    A long text is refused before the library's *normalizer* sees it: expressions take quadratic
    time.
    """
    longest = max((len(text.encode("utf-8", "surrogatepass")) for text in texts), default=0)
    if longest > ADDED_TOKEN_BYTES:
        raise beyond(source, f"{longest:,} bytes in an added token", ADDED_TOKEN_BYTES)
    library_normalizer = load_library(source, normalizer=normalizer).normalizer
    with translate_errors(f"the tokenizer {source}"):
        return {text: library_normalizer.normalize_str(text) for text in texts}


def _with_special(
    spec: TokenizerSpec, processor: dict[str, Any] | None, side: SideFiles, roles: dict[str, str]
) -> TokenizerSpec:
    """*spec* with BOS, EOS, prefix and suffix ids.

    *roles* are the texts of the special tokens by role. The post-processor decides which tokens are
    put around a text; without one, a vocabulary that is known by its fingerprint does.
    """
    special = {spec.tokens[token.id]: token.id for token in spec.added}
    around = _ids_around(processor, special)
    bos = _role_id("bos", special, side, roles)
    eos = _role_id("eos", special, side, roles)
    pre = ""
    if spec.byte_level and spec.model == "bpe":
        vocabulary = vocabularies.identify(vocabularies.fingerprint(spec.tokens), len(spec.merges))
        pre = vocabulary.pre if vocabulary else ""
    adds_bos = bool(pre) and PRE_TOKENIZERS[pre].add_bos
    first: tuple[int, ...] = (bos,) if adds_bos and bos is not None else ()
    last: tuple[int, ...] = ()
    if around is not None:
        first, last = around
    # A single token before or after a text is BOS or EOS in WordPiece, and in a folder without
    # files that could name the two.
    has_roles_of_processor = spec.model == "wordpiece" or not side.names_roles
    if len(first) == 1 and has_roles_of_processor:
        bos = first[0]
    if len(last) == 1 and has_roles_of_processor:
        eos = last[0]
    middle, second_type = _ids_between(processor, special)
    inputs = side.config.get("model_input_names")
    if isinstance(inputs, list) and "token_type_ids" not in inputs:
        second_type = 0  # transformers gives the model no types
    return replace(
        spec,
        middle_ids=middle,
        second_type=second_type,
        bos_id=bos,
        eos_id=eos,
        add_bos=bool(first),
        add_eos=bool(last),
        prefix_ids=_unless_usual(first, bos),
        suffix_ids=_unless_usual(last, eos),
        pre=pre,
    )


def _unless_usual(ids: tuple[int, ...], usual: int | None) -> tuple[int, ...] | None:
    """*ids*, or ``None`` if they are the *usual* one alone, or empty."""
    return None if not ids or ids == (usual,) else ids


def _role_id(
    role: str, special: dict[str, int], side: SideFiles, roles: dict[str, str]
) -> int | None:
    """Id of the special token *role*; a usual name counts if no file says which one it is."""
    text = roles.get(f"{role}_token")
    if text is not None:
        return special.get(text)
    return None if side.names_roles else side.special_id(role, special)


def _ids_around(
    processor: dict[str, Any] | None, special: dict[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Ids before and after a text; ``None`` if the post-processor does not define them.

    *special* has the ids of special tokens by text.
    """
    if processor is None:
        return None
    kind = processor["type"]
    if kind == "Sequence":
        affixes = [_ids_around(inner, special) for inner in processor["processors"]]
        adding = [around for around in affixes if around is not None]
        if len(adding) > 1:
            raise _odd_template("are several")
        return adding[0] if adding else None
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (int(processor["cls"][1]),), (int(processor["sep"][1]),)
    if kind != "TemplateProcessing":
        return None
    items = processor["single"]
    if sum("Sequence" in item for item in items) != 1:
        raise _odd_template("does not have the text once")
    before: list[int] = []
    after: list[int] = []
    affix = before
    for item in items:
        if "Sequence" in item:
            affix = after
            continue
        affix += _ids_of_special(item["SpecialToken"]["id"], processor, special)
        if len(before) + len(after) > AFFIX_IDS:
            raise _odd_template(f"has more than {AFFIX_IDS:,} of them")
    return tuple(before), tuple(after)


def _ids_of_special(name: str, processor: dict[str, Any], special: dict[str, int]) -> list[int]:
    """Ids of the special token *name* of a template: those listed in it, else that of its text."""
    ids: list[int] | None = processor["special_tokens"].get(name, {}).get("ids")
    return ids if ids is not None else [special[name]]


def _ids_between(
    processor: dict[str, Any] | None, special: dict[str, int]
) -> tuple[tuple[int, ...] | None, int]:
    """Ids between two texts, and ``token_type_ids`` of the second.

    The ids are ``None`` if *processor* does not define them, or joins two texts in a way that
    models here cannot follow.
    """
    if processor is None:
        return None, 0
    kind = processor["type"]
    if kind == "Sequence":
        pairs = [_ids_between(inner, special) for inner in processor["processors"]]
        return next((pair for pair in pairs if pair[0] is not None), (None, 0))
    if kind == "BertProcessing":
        return (int(processor["sep"][1]),), 1
    if kind == "RobertaProcessing":
        return (int(processor["sep"][1]),) * 2, 0
    items = processor.get("pair") if kind == "TemplateProcessing" else None
    if not items:
        return None, 0
    texts_at = [at for at, item in enumerate(items) if "Sequence" in item]
    if [items[at]["Sequence"]["id"] for at in texts_at] != ["A", "B"]:
        return None, 0
    first, second = texts_at

    # The parts of the template before, between and after the texts.
    single = processor["single"]
    single_text = next(at for at, item in enumerate(single) if "Sequence" in item)
    around_pair = [_names(items[:first]), _names(items[second + 1 :])]
    around_single = [_names(single[:single_text]), _names(single[single_text + 1 :])]
    between = _names(items[first + 1 : second])
    if around_pair != around_single:
        return None, 0  # a second text would change what is around the first
    second_type = int(items[second]["Sequence"].get("type_id", 0))
    if second_type > 1:
        return None, 0  # models here have two types

    middle: list[int] = []
    for name in between:
        middle += _ids_of_special(name, processor, special)
        if len(middle) > AFFIX_IDS:
            raise _odd_template(f"has more than {AFFIX_IDS:,} of them between two")
    return tuple(middle), second_type


def _names(items: list[dict[str, Any]]) -> list[str]:
    """Names of special tokens in a part of a template."""
    return [item["SpecialToken"]["id"] for item in items]


def _odd_template(what: str) -> Unsupported:
    """Error for a post-processor, with the end of the sentence."""
    return refusal(f"a post-processor that puts tokens around a text {what}")


def check_vocabulary(path: Path, vocab_size: int) -> None:
    """Check that *path* is a ``tokenizer.json`` whose ids are exactly 0 to ``vocab_size - 1``."""
    try:
        raw = read_bytes(path)
        document = json.loads(raw) if raw.strip() else None
    except (ValueError, RecursionError) as error:
        text = f"Invalid JSON in downloaded tokenizer: {json_fault(error)} ({path})"
        raise InvalidFormat(text, hint=_REFETCH) from error
    if document is None:
        raise InvalidFormat(f"Downloaded tokenizer file is empty: {path}", hint=_REFETCH)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        text = f"{path} is JSON, but not a tokenizer: it has no 'model'"
        raise InvalidFormat(text, hint=_REFETCH)
    vocabulary = document["model"].get("vocab") or {}
    added = document.get("added_tokens") or []
    pieces = vocabulary if isinstance(vocabulary, list) else []
    if (
        not isinstance(vocabulary, (dict, list))
        or not isinstance(added, list)
        or not all(isinstance(piece, list) and piece for piece in pieces)
        or not all(isinstance(token, dict) for token in added)
    ):
        text = f"{path} is JSON, but not a tokenizer: its tokens are not listed by their ids"
        raise InvalidFormat(text, hint=_REFETCH)
    ids = [id for id, _ in _number(vocabulary)]
    ids += [token.get("id") for token in added]
    if odd := [id for id in ids if type(id) is not int or not 0 <= id < 2**32]:
        raise damage_error(f"{path} has the id {odd[0]!r:.60}, which is not a 32-bit id")
    missing = sorted({*range(vocab_size)} - {*ids})
    if missing or max(ids, default=-1) >= vocab_size:
        detail = f", the first id missing is {missing[0]:,}" if missing else ""
        raise VocabMismatch(
            f"Vocabulary size mismatch: expected {vocab_size}, got {len({*ids})} "
            f"({path}: ids up to {max(ids, default=-1):,}{detail})",
            hint=_REFETCH,
        )
