"""The ``tokenizer.json`` of a folder as transformers reads it, with the files beside it.

transformers opens a folder with the class that its files name. Some classes keep the steps of
``tokenizer.json``; most take the vocabulary alone, and build steps of their own, with options of
``tokenizer_config.json``. Both then add the special tokens that the side files declare. The rules
are those of transformers 5.24: ``AutoTokenizer.from_pretrained`` chooses the class,
``PreTrainedTokenizerBase._from_pretrained`` reads the files, ``TokenizersBackend.__init__`` adds
tokens. ``tests/support/tokenizer_classes.py`` runs the classes and writes what they build into
``tokenizer_classes.json``. What these rules leave open is refused with the name of the key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.added_vocabulary import (
    TOKEN_KEYS,
    AddedVocabulary,
    Token,
    find_default_tokens,
    make_token,
    plain_token,
    read_flags,
)
from bitnet.tokenizer.class_table import REFUSED_KEYS, FolderClass, class_table
from bitnet.tokenizer.former_classes import (
    FormerClass,
    former_class,
    former_version,
    template_processor,
    vocabulary_row,
)
from bitnet.tokenizer.limits import refusal
from bitnet.tokenizer.sentencepiece_model import find_charsmap
from bitnet.tokenizer.side_files import ROLES, read_token_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.base.errors import Unsupported
    from bitnet.tokenizer.side_files import SideFiles

_CONFIG = "tokenizer_config.json"
# Registered classes for which AutoTokenizer takes TokenizersBackend.
_GENERIC = ("TokenizersBackend", "PythonBackend", "PreTrainedTokenizer", "MistralCommonBackend")
_STRIP = ("CLIPTokenizer",)  # classes that remove white space around a decoded text
# Reason to refuse a key on which versions of transformers 4 differ.
_BETWEEN = "only some versions of transformers 4 follow"
_KEEPS: dict[str, Any] = {"keeps": True}  # the row of a class that keeps the steps of the file


def apply_side_files(
    document: dict[str, Any], side: SideFiles, *, source: str, is_byte_level: bool
) -> FolderTokenizer:
    """The ``tokenizer.json`` that transformers makes of *document* and the files beside it.

    *is_byte_level* is true if the file has the text ``"ByteLevel"``, for which transformers looks.
    A key whose effect is not known, or that transformers refuses, is refused with its name.
    """
    return _Reading(document, side, source, is_byte_level=is_byte_level).result()


def read_class(side: SideFiles, source: str) -> FolderClass:
    """The class that transformers takes for a folder without ``tokenizer.json``, with its tokens.

    *side* are the files beside *source*. Keys are refused as by :func:`apply_side_files`.
    """
    reading = _Reading({}, side, source, is_byte_level=False)
    extra = tuple(str(token["content"]) for token in reading.extra)
    return FolderClass(reading.name, reading.row, reading.roles, extra)


@dataclass(frozen=True)
class FolderTokenizer:
    """A ``tokenizer.json`` with the changes that the files beside it make."""

    document: dict[str, Any]
    roles: dict[str, str]  # texts of the special tokens by their role (``bos_token``)
    # Texts of added tokens that were once added to be found in normalized text. The library shows
    # these in their normalized form, even if they are added again in another way.
    once_normalized: frozenset[str] = frozenset()


class _Reading:
    """One reading of a ``tokenizer.json`` with its side files."""

    def __init__(
        self, document: dict[str, Any], side: SideFiles, source: str, *, is_byte_level: bool
    ) -> None:
        self._file = document
        self._side = side
        self._source = source
        self._is_byte_level = is_byte_level
        self._named_extra: dict[str, Any] = {}  # ``extra_special_tokens`` as an object
        self._config: dict[str, Any] = {}
        self._declared_special: list[Any] = []  # special tokens without a role, as files write them
        self._declared_texts: dict[str, Token] = {}  # declared tokens; of equal texts, the last one
        self._move_additional_tokens()
        self.name, self.row = self._choose_class()
        self._check_keys()
        self._declared = self._read_declared()
        self._special = self._special_tokens()
        self.extra = self._extra_tokens()

    @property
    def roles(self) -> dict[str, str]:
        """Text of each special token by its role."""
        return {role: str(token["content"]) for role, token in self._special.items()}

    @property
    def keeps_steps(self) -> bool:
        """True if the class takes the steps of the file."""
        return "keeps" in self.row

    def result(self) -> FolderTokenizer:
        """The document with all changes, and facts that it does not express."""
        built = self._file if self.keeps_steps else self._rebuild()
        vocabulary = AddedVocabulary.of(built, self._file if self.keeps_steps else None)
        # Tokens of these texts become special, whatever their flags say.
        extra = self.extra if "former" in self.row else ()
        named = {token["content"] for token in (*self._special.values(), *extra)}
        for token in [*self._missing(vocabulary)]:  # listed first: it reads the vocabulary
            is_named = token["content"] in named
            vocabulary.add({**token, "special": token["special"] or is_named})
        added = vocabulary.entries()
        self._check_added(added)
        former = self.row.get("former")
        if former is not None:
            built = self._as_former(built, former, vocabulary)
        elif self.keeps_steps and added == (self._file.get("added_tokens") or []):
            return FolderTokenizer(self._file, self.roles)
        changed = {**built, "added_tokens": added}
        if not self.keeps_steps:
            changed["post_processor"] = self._post_processor(built["post_processor"], vocabulary)
        return FolderTokenizer(changed, self.roles, frozenset(vocabulary.once_normalized))

    def _check_added(self, added: list[dict[str, Any]]) -> None:
        """Refuse tokens that a class which strips decoded text would not decode to their text."""
        if self.name not in _STRIP:
            return
        for token in added:
            if token["content"] != token["content"].strip():
                why = f"has the token {token['content']!r}, and it removes spaces around a text"
                raise self._refuse("tokenizer_class", self.name, why)

    def _as_former(
        self, document: dict[str, Any], former: FormerClass, vocabulary: AddedVocabulary
    ) -> dict[str, Any]:
        """*document* with the changes of *former*, a class of transformers 4."""
        document = dict(document)
        pre_tokenizer = document.get("pre_tokenizer")
        stated = pre_tokenizer.get("add_prefix_space") if isinstance(pre_tokenizer, dict) else None
        prefix = bool(self._config.get("add_prefix_space", False))
        # A null keeps the option of the file.
        is_null = self._config.get("add_prefix_space", False) is None
        follows = former.prefix_space != "converts" and not is_null
        # With ``both``, versions 4.46 and 4.57 set the option; with ``new``, only 4.57 does.
        if stated is not None and stated != prefix and follows:
            if former.prefix_space == "new" and former.is_between:
                raise self._refuse("add_prefix_space", prefix, _BETWEEN)
            if former.prefix_space == "both" or not former.is_old:
                changed = {**document["pre_tokenizer"], "add_prefix_space": prefix}
                document["pre_tokenizer"] = changed
        if former.has_template:
            around = []
            for role, default in (("bos", former.add_bos), ("eos", False)):
                token = self._special.get(f"{role}_token")
                is_added = self._config.get(f"add_{role}_token", default)
                if is_added and token is None:
                    raise self._refuse(f"add_{role}_token", True, "adds a token without a name")
                text = str(token["content"]) if token is not None and is_added else ""
                around.append((text, self._id_of(text, vocabulary)) if text else None)
            document["post_processor"] = template_processor(*around)
        if former.normalizer_keys:
            document["normalizer"] = self._set_options(document.get("normalizer"), former)
        return document

    def _set_options(self, normalizer: Any, former: FormerClass) -> dict[str, Any]:
        """The *normalizer* of the file with the options that the side files set."""
        if not isinstance(normalizer, dict):
            raise self._refuse("tokenizer_class", self.name, "needs a normalizer")
        wrong_key = former.wrong_option(self._config)
        if wrong_key is not None:
            raise self._refuse(wrong_key, self._config[wrong_key], "is not true or false")
        return former.set_options(normalizer, self._config)

    def _missing(self, vocabulary: AddedVocabulary) -> Iterator[Token]:
        """Tokens that transformers adds to *vocabulary*, in its order.

        It adds every declared token, known ones too: it compares tokens with the known ids.
        """
        declared = [token for _, token in sorted(self._declared.items())]
        tokens = [*vocabulary.tokens.values(), *declared]
        texts = {token["content"] for token in tokens}
        yield from declared
        special = [*self._special.values(), *self.extra]
        yield from (token for token in special if token["content"] not in texts)
        adds_again = self.row.get("adds_again")
        if adds_again == "plain":
            yield from (make_token(token["content"], special=True) for token in special)
        elif adds_again == "special":
            yield from ({**token, "special": True} for token in special)
        elif adds_again == "defaults":
            yield from find_default_tokens(self._special, self._config)

    # The class.

    def _choose_class(self) -> tuple[str, dict[str, Any]]:
        """Name of the class that AutoTokenizer takes, and its row in ``tokenizer_classes.json``."""
        table = class_table()
        model = self._side.model_config
        model_type = model.get("model_type")
        registered = table["model_types"].get(model_type) if isinstance(model_type, str) else None
        named = self._side.tokenizer_class
        if named is not None and not isinstance(named, str):
            raise self._refuse("tokenizer_class", named, "is not the name of a class")
        name = self._side.class_name or None
        self._check_auto_map(name, model_type)
        minor = former_version(model)
        if self._side.from_vocabulary and name is not None and minor is not None:
            own_name, row = self._row_of(name)
            return own_name, vocabulary_row(name, minor, row)
        former = former_class(name or registered, model, self._config)
        if former is not None:  # messages name its version
            return f"transformers {model['transformers_version']}", former.row()
        is_wrong_in_files = model_type in table["wrong_in_files"]  # tokenizer_class is ignored
        # LlamaTokenizer builds Metaspace: a byte-level file, as LLaMA-3's, is kept instead.
        is_llama = name == "LlamaTokenizer" and registered != "MistralCommonBackend"
        if is_llama and not is_wrong_in_files and self._is_byte_level:
            return "TokenizersBackend", _KEEPS
        if name is not None and registered not in (None, name):
            if registered in _GENERIC:
                return "TokenizersBackend", _KEEPS
            name = registered if is_wrong_in_files else name
        elif name is None:
            name = registered
        return self._row_of(name or "TokenizersBackend")

    def _row_of(self, name: str) -> tuple[str, dict[str, Any]]:
        """Name and row of the class *name*, or of the class that it equals."""
        classes = class_table()["classes"]
        row = classes.get(name, _KEEPS)
        name = row.get("same_as", name)
        row = classes.get(name, _KEEPS)
        if "refused" in row:
            raise self._refuse("tokenizer_class", name, f"cannot be followed: {row['refused']}")
        return name, row

    def _check_auto_map(self, name: str | None, model_type: Any) -> None:
        """Refuse code of the folder's author as the class, unless transformers ignores it."""
        mapped = self._config.get("auto_map")
        if isinstance(mapped, dict):
            mapped = mapped.get("AutoTokenizer")
        if not mapped or model_type in class_table()["wrong_in_files"]:
            return
        if name not in class_table()["classes"]:
            raise self._refuse("auto_map", mapped, "names code of the folder's author")

    # Keys.

    def _move_additional_tokens(self) -> None:
        """Rename the former name of ``extra_special_tokens`` as transformers does.

        It renames the key of ``tokenizer_config.json`` if the new name has no value, then reads
        ``special_tokens_map.json``, and renames again if the new name is absent.
        """
        former = "additional_special_tokens"
        name = "extra_special_tokens"
        own = dict(self._side.tokenizer_config)
        if former in own and not own.get(name):
            own[name] = own.pop(former)
        extra = own.get(name)
        if isinstance(extra, dict):
            self._named_extra = own.pop(name)
        config = own | self._side.special_map
        if isinstance(config.get(name), dict):
            self._named_extra |= config.pop(name)
        self._declared_special = config.get(name) or []
        if not isinstance(self._declared_special, list):
            raise self._refuse(name, self._declared_special, "is not a list")
        if former in config and name not in config:
            config[name] = config.pop(former)
        self._config = config

    def _check_keys(self) -> None:
        """Refuse keys that replace parts of the tokenizer, or whose effect is not known."""
        config = self._config
        for key, effect in REFUSED_KEYS.items():
            if config.get(key):
                raise self._refuse(key, config[key], effect)
        versions = config.get("fast_tokenizer_files")
        if versions not in (None, [], ["tokenizer.json"]):
            raise self._refuse("fast_tokenizer_files", versions, "may choose another file")
        for key in self.row.get("unclear", ()):
            if config.get(key) is not None:
                text = f"is an option of {self.name} whose effect is not known"
                raise self._refuse(key, config[key], text)

    def _refuse(self, key: str, value: Any, why: str) -> Unsupported:
        printable = json.dumps(value, ensure_ascii=False)
        return refusal(f"{self._source}: {_CONFIG} has {key}: {printable:.80}, which {why}")

    # Tokens.

    def _read_declared(self) -> dict[int, Token]:
        """Tokens of ``added_tokens_decoder`` by id; without it, those of the other files."""
        decoder = self._config.get("added_tokens_decoder")
        if "added_tokens_decoder" in self._config:
            if not isinstance(decoder, dict):
                raise self._refuse("added_tokens_decoder", decoder, "is not an object")
            return dict(self._decoder_entry(key, value) for key, value in decoder.items())
        special = {self._text_when_declared(role, self._config.get(role)) for role in ROLES}
        special |= {
            self._text_when_declared("extra_special_tokens", value)
            for value in self._declared_special
        }
        tokens: dict[int, Token] = {}
        for text, id in self._side.added_file.items():
            if type(id) is not int:
                raise refusal(
                    f"{self._source}: added_tokens.json has the id {id!r:.40} of {text!r}"
                )
            tokens[id] = self._declare(make_token(text, special=text in special))
        for entry in self._file.get("added_tokens") or ():
            tokens[entry["id"]] = self._declare(make_token(entry["content"], **read_flags(entry)))
        return tokens

    def _text_when_declared(self, key: str, value: Any) -> str | None:
        """Text of the special token *value*, if transformers knows it before ``added_tokens.json``.

        It knows texts, and objects of ``special_tokens_map.json``, but not those of the other file.
        """
        is_text = isinstance(value, str) or key in self._side.special_map
        return read_token_text(value) if is_text else None

    def _declare(self, token: Token) -> Token:
        """Remember *token* by its text, even if another one takes its id, and return it."""
        self._declared_texts[token["content"]] = token
        return token

    def _decoder_entry(self, key: str, value: Any) -> tuple[int, Token]:
        is_token = isinstance(value, dict) and value.keys() <= TOKEN_KEYS and key.isdecimal()
        if not is_token or not isinstance(value.get("content"), str):
            raise self._refuse("added_tokens_decoder", {key: value}, "is not an added token")
        return int(key), self._declare(make_token(value["content"], **read_flags(value)))

    def _special_tokens(self) -> dict[str, Token]:
        """Special tokens by role; for a role that no file names, that of the class."""
        by_text = self._declared_texts
        tokens: dict[str, Token] = {}
        for role, value in self.row.get("special", {}).items():
            if role not in self._config:
                tokens[role] = plain_token(value)
        other_roles = [key for key in self._config if key.endswith("_token") and key not in ROLES]
        former = self.row.get("former")
        if former is not None:  # transformers 4 takes others from ``extra_special_tokens`` alone
            other_roles = []
        for role in [*ROLES, *other_roles]:
            value = self._config.get(role)
            if value is None or (role not in ROLES and not isinstance(value, (str, dict))):
                continue
            token = self._parse_token(role, value)
            if role in ROLES:
                token = by_text.get(token["content"], token)
            if isinstance(value, str) and token["content"] not in by_text:
                flags = self.row.get("named", {}).get(role)  # of the class, for a text alone
                token = {**flags, "content": value} if flags else token
            tokens[role] = token
        extra = self._config.get("extra_special_tokens")
        named = {**(extra if isinstance(extra, dict) else {}), **self._named_extra}
        if former is not None and named:
            named = self._check_named(named, former)
        tokens |= {role: self._parse_token(role, value) for role, value in named.items()}
        order = [*ROLES, *(role for role in tokens if role not in ROLES)]
        return {role: tokens[role] for role in order if role in tokens}

    def _check_named(self, named: dict[str, Any], former: FormerClass) -> dict[str, Any]:
        """Tokens of *named*, ``extra_special_tokens`` as an object; old versions ignore that."""
        texts = {read_token_text(value) for value in named.values()}
        if former.is_between and not texts <= self._declared_texts.keys():
            raise self._refuse("extra_special_tokens", named, _BETWEEN)
        return {} if former.is_old else named

    def _extra_tokens(self) -> list[Token]:
        """Tokens of ``extra_special_tokens``, or those of the class."""
        extra = self._config.get("extra_special_tokens")
        if isinstance(extra, dict):
            return []
        listed = self._side.tokenizer_config.get("extra_special_tokens")
        if "former" in self.row and isinstance(listed, list) and listed:
            raise self._refuse("extra_special_tokens", listed, _BETWEEN)
        own, mapped = (
            table.get("additional_special_tokens")
            for table in (self._side.tokenizer_config, self._side.special_map)
        )
        if "former" in self.row and own and mapped and own != mapped:
            why = "special_tokens_map.json contradicts"
            raise self._refuse("additional_special_tokens", own, why)
        if extra is None:
            return [plain_token(value) for value in self.row.get("extra", ())]
        if not isinstance(extra, list):
            raise self._refuse("extra_special_tokens", extra, "is not a list")
        return [self._parse_token("extra_special_tokens", value) for value in extra]

    def _parse_token(self, key: str, value: Any) -> Token:
        """The token that *value* of *key* describes, by its text or as an object."""
        if isinstance(value, str):
            return make_token(value, special=True)
        from_map = key in self._side.special_map and key != "extra_special_tokens"
        if not isinstance(value, dict) or not isinstance(value.get("content"), str):
            raise self._refuse(key, value, "is not a token")
        flags = {**read_flags(value), **({"special": True} if from_map else {})}
        return make_token(value["content"], **flags)

    # Steps of a class.

    def _rebuild(self) -> dict[str, Any]:
        """The document with the steps of the class and the vocabulary of the file."""
        model = self._file["model"]
        kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
        if kind != self.row["model"]:
            text = f"builds a {self.row['model']} model, and tokenizer.json has a {kind} model"
            raise self._refuse("tokenizer_class", self.name, text)
        charsmap = find_charsmap(self._file.get("normalizer"))
        sections = self._fill(self._variant(charsmap is not None), charsmap)
        section = {**sections["model"], "vocab": model["vocab"]}
        if kind == "BPE":
            section["merges"] = model["merges"]
        if isinstance(section.get("unk_id"), str):
            texts = [entry[0] for entry in model["vocab"]]
            if section["unk_id"] not in texts:
                raise self._refuse("unk_token", section["unk_id"], "is not in the vocabulary")
            section["unk_id"] = texts.index(section["unk_id"])
        return {**self._file, **sections, "model": section}

    def _variant(self, charsmap: bool) -> dict[str, Any]:
        """Sections that the class builds with the options of the folder, and perhaps a charsmap."""
        values = []
        for key in self.row["options"]:
            value = self._config.get(key, "absent")
            if value != "absent" and value is not None and not isinstance(value, bool):
                raise self._refuse(key, value, "is not true, false or null")
            values.append("absent" if value == "absent" else json.dumps(value))
        variants = self.row["variants"]
        at = variants.get(" ".join(values))
        if charsmap:
            at = variants.get(" ".join([*values, "charsmap"]), at)
        sections = self.row["sections"][at]
        if isinstance(sections, str):
            keys = ", ".join(self.row["options"])
            raise self._refuse(keys, values, f"{self.name} does not accept ({sections})")
        return dict(sections)

    def _fill(self, sections: Any, charsmap: str | None) -> Any:
        """*sections* with the texts of special tokens in the places of their roles."""
        if isinstance(sections, dict):
            return {key: self._fill(value, charsmap) for key, value in sections.items()}
        if isinstance(sections, list):
            return [self._fill(value, charsmap) for value in sections]
        if sections == "{charsmap}":
            return charsmap
        if isinstance(sections, str) and sections[:1] == "{" and sections[1:-1] in ROLES:
            role = sections[1:-1]
            if role not in self._special:
                raise self._refuse(role, None, f"is needed by {self.name}")
            return self._special[role]["content"]
        return sections

    def _post_processor(self, processor: Any, vocabulary: AddedVocabulary) -> Any:
        """The post-processor of the class, with the ids of its tokens."""
        own = self._file.get("post_processor")
        # If the document was made from a vocabulary file, *own* is made of keys of side files, and
        # replaces that of the class.
        if processor == "that of the file" or (self._side.from_vocabulary and own is not None):
            return own
        processor = dict(processor)
        if "special_tokens" in processor:
            texts = processor["special_tokens"]
            processor["special_tokens"] = {
                text: {"id": text, "ids": [self._id_of(text, vocabulary)], "tokens": [text]}
                for text in texts
            }
        for role in ("cls", "sep"):
            if role in processor:
                text = processor[role]
                processor[role] = [text, self._id_of(text, vocabulary)]
        return processor

    def _id_of(self, text: str, vocabulary: AddedVocabulary) -> int:
        """Id of a token that is put around a text."""
        id = vocabulary.id_of(text)
        is_own = text in self._file["model"]["vocab"]
        if self._side.from_vocabulary and "former" in self.row and not is_own:
            why = f"puts {text!r:.40} around a text, which is not in the vocabulary"
            raise self._refuse("tokenizer_class", self.name, why)
        if id is None:
            raise self._refuse("tokenizer_class", self.name, f"needs the token {text!r:.40}")
        return id
