"""A ``tokenizer.model`` of SentencePiece with the files beside it.

transformers 4 and the authors of models run the file with the SentencePiece library. transformers 5
takes the pieces alone, and builds steps of the ``tokenizers`` library for them.
``docs/adr/0051-two-readings-of-a-model-file.md`` says which of the two readings a folder gets. The
rules for version 5 are those of 5.24, ``TokenizersBackend``'s ``_convert_from_sentencepiece``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.base.invocation import shell_quote
from bitnet.tokenizer.class_table import class_table, leaves_file
from bitnet.tokenizer.former_classes import former_version
from bitnet.tokenizer.sentencepiece_model import parse_model
from bitnet.tokenizer.side_files import TokenizerFile, read_token_text
from bitnet.tokenizer.spec import AddedToken, TokenizerSpec, TokenType
from bitnet.tokenizer.tokenizer_class import read_class
from bitnet.tokenizer.vocabularies import find_halves
from bitnet.tokenizer.vocabulary_files import spec_of_built

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bitnet.tokenizer.class_table import FolderClass
    from bitnet.tokenizer.side_files import SideFiles

# Classes of transformers 4 that read a model as SentencePiece does.
_OF_SENTENCEPIECE = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "T5Tokenizer")
# Classes of transformers 5 whose steps are built here from the pieces.
_REBUILT = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
# Files that may state a class. A folder without any of them is read as SentencePiece reads it.
_STATING = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "config.json",
)
# Present and former name of a key of tokenizer_config.json.
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
# Python program of the hint: transformers reads a folder and saves it as tokenizer.json.
_SAVE = (
    "import sys, transformers as t; a = t.AutoTokenizer.from_pretrained(sys.argv[1]);"
    " t.PreTrainedTokenizerFast(tokenizer_object=a.backend_tokenizer,"
    " **a.special_tokens_map).save_pretrained(sys.argv[2])"
)


def spec_from_sentencepiece(file: TokenizerFile) -> TokenizerSpec:
    """The tokenizer in a ``tokenizer.model`` of SentencePiece and its side files."""
    side = file.side
    spec = parse_model(file.data, source=str(file.path))
    side.check_added(len(spec.tokens), str(file.path))
    prefix = side.prefix_of_code(len(spec.tokens), str(file.path))
    if prefix is not None:
        return _as_chatglm(file, spec, prefix)
    states_class = any(name in file.files for name in _STATING)
    # Who names this file where transformers would read tokenizer.json wants the library's reading.
    if "tokenizer.json" in file.files or not states_class or side.config.get("auto_map"):
        return _as_library(file, spec)
    if former_version(side.model_config) is not None:
        _check_former(file)
        return _as_library(file, spec)
    try:
        chosen = read_class(side, str(file.path))
    except Unsupported as error:
        raise Unsupported(error.message, hint=_hint(file)) from None
    if "keeps" not in chosen.row:
        return _as_class(file, spec, chosen)

    # The class keeps what SentencePiece does, and adds the tokens of the side files.
    _check_kept(file, spec, chosen)
    if "added_tokens_decoder" not in side.config:  # added_tokens.json has no flags
        named = {*chosen.roles.values(), *chosen.extra}
        added = tuple(replace(token, special=token.text in named) for token in side.added)
        file = TokenizerFile(file.path, file.pre, file.files)
        file.side = replace(side, added=added)
    adds = {f"add_{role}": side.config.get(f"add_{role}_token") is True for role in ("bos", "eos")}
    # In transformers 5 the unknown token is an added one, which is decoded to its piece.
    unknown = spec.tokens[spec.unknown_id or 0]
    roles = {"unk_token": unknown}
    for role, id in (("bos_token", spec.bos_id), ("eos_token", spec.eos_id)):
        roles.update({role: spec.tokens[id]} if id is not None else {})
    tokens = tuple({**roles, **chosen.roles}.items())
    spec = replace(spec, unknown_text=unknown, template_tokens=tokens)
    return _as_library(file, spec, adds)


def _as_chatglm(file: TokenizerFile, spec: TokenizerSpec, prefix: tuple[int, ...]) -> TokenizerSpec:
    """*spec* as the code of ChatGLM 3 reads its file, with *prefix* before each text.

    Texts are cut only at tokens behind the pieces, which are found in raw text whatever their flags
    say. Special are those that ``additional_special_tokens`` names; what follows one of the others
    is decoded alone. Control pieces and the unknown one have no text. A role such as ``eos_token``
    adds no token: transformers would give one that is not listed the id of another.
    """
    side = file.side
    extra = side.config.get(_EXTRA[1])
    special = {read_token_text(entry) for entry in extra} if isinstance(extra, list) else set()
    added = tuple(
        replace(token, normalized=False, special=token.text in special)
        for token in side.added
        if token.id >= len(spec.tokens)
    )
    roles = {"eos_token": spec.eos_id, "pad_token": spec.unknown_id, "unk_token": spec.unknown_id}
    of_roles = {role: spec.tokens[id] for role, id in roles.items() if id is not None}
    texts = [
        "" if kind == TokenType.CONTROL else text
        for text, kind in zip(spec.tokens, spec.token_types, strict=True)
    ]
    spec = replace(
        _with_tokens_behind(replace(spec, tokens=texts), added),
        added=added,
        prefix_ids=prefix,
        restarts=frozenset(token.id for token in added if not token.special),
        unknown_text="",
        template_tokens=tuple(of_roles.items()),
    )
    return side.complete(spec, file.data)


def _with_tokens_behind(spec: TokenizerSpec, added: Iterable[AddedToken]) -> TokenizerSpec:
    """*spec* with those of the *added* tokens whose ids are behind its pieces."""
    by_id = {token.id: token for token in added}
    behind = range(len(spec.tokens), max(by_id, default=-1) + 1)
    texts = (by_id[id].text if id in by_id else "" for id in behind)
    return replace(
        spec,
        tokens=[*spec.tokens, *texts],
        scores=[*spec.scores, *[0.0] * len(behind)],
        token_types=[*spec.token_types, *(_kind_behind(by_id.get(id)) for id in behind)],
    )


def _as_library(
    file: TokenizerFile, spec: TokenizerSpec, adds: dict[str, bool] | None = None
) -> TokenizerSpec:
    """*spec* as SentencePiece reads its file, with the tokens of the side files.

    *adds*, with the keys ``add_bos`` and ``add_eos``, says whether these are put around a text;
    without it, the model and the side files say so.
    """
    side = file.side
    pieces = [*zip(spec.tokens, spec.token_types, strict=True)]
    spec = _with_tokens_behind(spec, side.added)
    tokens = spec.tokens
    is_bpe = spec.model == "spm"
    # A Unigram model prefers its user-defined pieces but does not split at them.
    user = TokenType.USER_DEFINED
    cut_out = {TokenType.UNKNOWN, TokenType.CONTROL}
    if is_bpe:
        cut_out.add(user)
    added = {
        id: AddedToken(id, piece, special=kind != user, normalized=kind == user)
        for id, (piece, kind) in enumerate(pieces)
        if kind in cut_out
    }
    added.update((token.id, token) for token in side.added if token.text == tokens[token.id])
    is_t5 = "T5" in str(side.config.get("tokenizer_class", ""))
    by_text = {tokens[id]: id for id in added}
    ends = side.bos_and_eos(by_text, bos=(spec.bos_id, is_bpe), eos=(spec.eos_id, is_t5))
    for name, is_added in (adds or {}).items():
        ends[name] = is_added and ends[f"{name.removeprefix('add_')}_id"] is not None
    spec = replace(spec, added=tuple(added[id] for id in sorted(added)), **ends)
    return side.complete(spec, file.data)


def _kind_behind(token: AddedToken | None) -> TokenType:
    """Type of an id behind the pieces: decoding can leave out control tokens, but no others."""
    return TokenType.CONTROL if token is None or token.special else TokenType.UNUSED


def _check_former(file: TokenizerFile) -> None:
    """Refuse a folder of transformers 4 whose class reads *file* otherwise than SentencePiece."""
    model_type = file.side.model_config.get("model_type")
    registered = class_table()["model_types"].get(str(model_type), "")
    name = file.side.class_name or registered
    if name not in _OF_SENTENCEPIECE and not leaves_file(name):
        raise _refuse_class(file, name)


def _check_kept(file: TokenizerFile, spec: TokenizerSpec, chosen: FolderClass) -> None:
    """Refuse what makes transformers 5 change the pieces of a model whose class keeps them."""
    side = file.side
    special_texts = {  # of pieces that are not normal, and of added tokens
        text
        for text, kind in zip(spec.tokens, spec.token_types, strict=True)
        if kind != TokenType.NORMAL
    }
    size = len(spec.tokens)
    for token in side.added:
        if token.id > size or (token.id < size and spec.tokens[token.id] != token.text):
            raise _refuse_key(file, "added_tokens_decoder or added_tokens.json", token.text)
        size = max(size, token.id + 1)
        special_texts.add(token.text)
    named = [*chosen.roles.items(), *((_EXTRA[0], text) for text in chosen.extra)]
    for key, text in named:
        if text not in special_texts:
            raise _refuse_key(file, key, text)
    for role in ("bos_token", "eos_token", "unk_token"):
        if role in side.config and role not in chosen.roles:
            raise _refuse_key(file, role, side.config[role])
    for token in side.added:
        if token.id == spec.unknown_id and (token.lstrip or token.rstrip or token.single_word):
            raise _refuse_key(file, "added_tokens_decoder", token.text)
    if spec.remove_extra_whitespaces:
        text = f"{file.path.name} removes spaces (remove_extra_whitespaces) and transformers 5"
        raise _refuse(file, f"{text} cuts and decodes some texts otherwise")
    if TokenType.UNUSED in spec.token_types:
        raise _refuse(file, f"{file.path.name} has unused pieces, which transformers 5 uses")
    if spec.add_space_prefix and not side.config.get("legacy", True):
        raise _refuse_key(file, "legacy", side.config["legacy"])


def _as_class(file: TokenizerFile, spec: TokenizerSpec, chosen: FolderClass) -> TokenizerSpec:
    """The tokenizer that the class of transformers 5 builds from the pieces of *spec*."""
    if chosen.name not in _REBUILT:
        raise _refuse_class(file, chosen.name)
    vocabulary = {text: id for id, text in enumerate(spec.tokens)}
    merges = _merges(vocabulary, spec.source)
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    changed = TokenizerFile(file.path, file.pre, file.files)
    changed.side = _with_pieces(file.side, spec)
    return spec_of_built(changed, document, file.data)


def _merges(vocabulary: dict[str, int], source: str) -> list[list[str]]:
    """Merges whose halves and result are in *vocabulary*, in the order of the result's id.

    Of one result, those with a short left half come first. *source* is the tokenizer's name in
    errors.
    """
    ranked = []
    for text, left, right in find_halves(vocabulary, vocabulary, source):
        order = (vocabulary[text], len(left), len(right), vocabulary[left], vocabulary[right])
        ranked.append((order, [left, right]))
    return [parts for _, parts in sorted(ranked)]


def _with_pieces(side: SideFiles, spec: TokenizerSpec) -> SideFiles:
    """*side* with the control and user-defined pieces as ``additional_special_tokens``.

    It is unchanged if ``extra_special_tokens`` of either file is a list; in
    ``tokenizer_config.json``, the key may have its former name, ``additional_special_tokens``. That
    name is dropped from ``special_tokens_map.json``.
    """
    name, former = _EXTRA
    own = side.tokenizer_config
    listed = own[former] if former in own and not own.get(name) else own.get(name, {})
    if not isinstance(listed, dict) or not isinstance(side.special_map.get(name, {}), dict):
        return side
    mapped = {key: value for key, value in side.special_map.items() if key != former}
    config = {**own, former: _special_pieces(spec), **({name: listed} if listed else {})}
    return replace(side, tokenizer_config=config, special_map=mapped)


def _special_pieces(spec: TokenizerSpec) -> list[dict[str, Any]]:
    """Control and user-defined pieces of *spec*, as added tokens."""
    return [
        {"content": text, "normalized": False, "special": kind == TokenType.CONTROL}
        for text, kind in zip(spec.tokens, spec.token_types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]


def _refuse_class(file: TokenizerFile, name: str) -> Unsupported:
    text = f"tokenizer_class is {name}, and what that class makes of {file.path.name} is not known"
    return _refuse(file, text)


def _refuse_key(file: TokenizerFile, key: str, value: object) -> Unsupported:
    text = f"{key} is {value!r:.60}, which changes the tokenizer that transformers 5 builds of"
    return _refuse(file, f"{text} {file.path.name}")


def _refuse(file: TokenizerFile, text: str) -> Unsupported:
    return Unsupported(f"{file.path.parent}: {text}", hint=_hint(file))


def _hint(file: TokenizerFile) -> str:
    """Hint: the command by which transformers writes a ``tokenizer.json``, and how to name it."""
    folder = file.path.parent
    rebuilt = folder / "rebuilt"
    named = shell_quote(rebuilt / "tokenizer.json")
    return (
        "let transformers write a tokenizer.json (pip install transformers sentencepiece protobuf):"
        f' python3 -c "{_SAVE}" {shell_quote(folder)} {shell_quote(rebuilt)}'
        f" and name it: --tokenizer {named}"
    )
