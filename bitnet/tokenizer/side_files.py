"""A tokenizer's file and those next to it: its configuration, chat template and stop ids."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.checkpoint import Inventory
from bitnet.tokenizer.limits import check_id_range, damage_error, json_fault
from bitnet.tokenizer.spec import AddedToken, TokenizerSpec, parse_added_token, stop_ids
from bitnet.tokenizer.vocabularies import spec_key

if TYPE_CHECKING:
    from pathlib import Path

# Side files complete the file of a tokenizer; a folder beside them may hold further chat templates.
SIDE_FILES = (
    "special_tokens_map.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "generation_config.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATE_FOLDER = "additional_chat_templates"
_ID = re.compile("[0-9]{1,10}")  # a key of ``added_tokens_decoder``
# Roles of special tokens, and keys that name the token of each.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Usual texts of BOS and EOS in vocabularies, most specific first, for folders whose files do not
# name them.
_USUAL = {
    "bos": "<|begin_of_text|> <|begin_of_sentence|> <｜begin▁of▁sentence｜> <bos> <s>",
    "eos": "<|end_of_text|> <｜end▁of▁sentence｜> <|endoftext|> <eos> </s> <|return|>",
}
# Special tokens of classes in the code of folders, in the order of their ids, which follow those of
# the vocabulary file: ``tokenization_chatglm.py`` of ChatGLM 3 and of GLM-4.
_ROLES_OF_GLM = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_TOKENS_OF_CODE = {
    "ChatGLMTokenizer": ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *_ROLES_OF_GLM),
    "ChatGLM4Tokenizer": (
        *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
        *_ROLES_OF_GLM,
    ),
}
# Those of them that the code puts before each text.
_PREFIX_OF_CODE = ("[gMASK]", "sop", "<sop>")


class TokenizerFile:
    """A tokenizer's file and, when they are needed, the side files of its folder."""

    def __init__(self, path: Path, pre: str | None = None, files: Inventory | None = None) -> None:
        """*pre* is the pre-tokenizer that the caller names, *files* the inventory of the folder."""
        self.path = path
        self.pre = pre
        self.files = files or Inventory(path.parent)

    @cached_property
    def data(self) -> bytes:
        """Bytes of the file."""
        return _read_bytes(self.files, self.path.name)

    @cached_property
    def document(self) -> Any:
        """The JSON value in the file."""
        return read_json(self.files, self.path.name)

    @cached_property
    def side(self) -> SideFiles:
        """The side files."""
        return _read_side_files(self.files)


@dataclass(frozen=True)
class SideFiles:
    """Values of ``tokenizer_config.json`` and the files beside it; empty if they do not exist."""

    tokenizer_config: dict[str, Any]  # ``tokenizer_config.json``
    special_map: dict[str, Any]  # ``special_tokens_map.json``, if transformers would read it
    added_file: dict[str, Any]  # ``added_tokens.json``; empty if the configuration replaces it
    added: tuple[AddedToken, ...]  # of ``added_tokens_decoder``, else ``added_tokens.json``, by id
    model_config: dict[str, Any]  # ``config.json``
    declared_stops: tuple[int, ...]  # EOS ids in ``generation_config.json`` and ``config.json``
    templates: dict[str, str]  # chat templates by name; the usual one is called ``default``
    raw: bytes  # all content that was read, for fingerprints
    added_fault: str = ""  # the first entry for *added* that is not a token, for a message
    # a class builds the tokenizer from a vocabulary without steps; vocabulary_files.py sets it
    from_vocabulary: bool = False

    @cached_property
    def config(self) -> dict[str, Any]:
        """``tokenizer_config.json`` with the values of ``special_tokens_map.json``.

        As in transformers, the second file overrides the first, unless that has the key
        ``added_tokens_decoder``: then ``special_map`` is empty.
        """
        return self.tokenizer_config | self.special_map

    @property
    def tokenizer_class(self) -> Any:
        """``tokenizer_class`` as a file writes it."""
        return self.config.get("tokenizer_class") or self.model_config.get("tokenizer_class")

    @property
    def class_name(self) -> str:
        """The class that the files name, without the suffix ``Fast``; empty if they name none."""
        if not isinstance(self.tokenizer_class, str):
            return ""
        return self.tokenizer_class.removesuffix("Fast")

    @property
    def names_roles(self) -> bool:
        """True if a file that can name special tokens exists, or a chat template.

        A role that these files omit has no token.
        """
        return bool(self.tokenizer_config or self.special_map or self.templates)

    @property
    def roles(self) -> dict[str, str]:
        """Texts of the special tokens that the files name, by key (``bos_token``)."""
        texts = {role: read_token_text(self.config.get(role)) for role in ROLES}
        return {role: text for role, text in texts.items() if text is not None}

    def special_id(
        self, role: str, special: dict[str, int], default: int | None = None
    ) -> int | None:
        """Id of the token *role*, ``bos`` or ``eos``, or None if the model has none.

        It is that of the text in the files, else *default*, else that of a usual text. *special*
        has the ids of special tokens by text.
        """
        named = read_token_text(self.config.get(f"{role}_token"))
        if named is not None:
            return special.get(named, default)
        is_null = f"{role}_token" in self.config  # null: no usual text counts
        if default is not None or is_null:
            return default
        return next((special[text] for text in _USUAL[role].split() if text in special), None)

    def prefix_of_code(self, n_tokens: int, source: str) -> tuple[int, ...] | None:
        """Ids that a class in the folder's code puts before each text; None for other classes.

        Such a class has special tokens of its own behind the *n_tokens* of the file *source*. It is
        refused unless ``added_tokens_decoder`` lists them: it cuts texts at listed tokens only.
        """
        name = str(self.config.get("tokenizer_class") or "")
        if name not in _TOKENS_OF_CODE:
            return None
        ids = {text: id for id, text in enumerate(_TOKENS_OF_CODE[name], start=n_tokens)}
        listed = {token.text: token.id for token in self.added}
        for text, id in ids.items():
            if listed.get(text) != id:
                raise Unsupported(
                    f"{source}: tokenizer_config.json names {name}, code of the folder that gives"
                    f" {text} the id {id}, and does not list it in added_tokens_decoder",
                    hint="take the tokenizer_config.json that the model's author publishes now, "
                    "or name a tokenizer.json of this model with --tokenizer FILE",
                )
        return tuple(id for text, id in ids.items() if text in _PREFIX_OF_CODE)

    def check_added(self, n_tokens: int, source: str) -> None:
        """Refuse added tokens that a vocabulary of *n_tokens* in the file *source* cannot have."""
        if self.added_fault:
            raise damage_error(f"{source}: beside it, {self.added_fault}")
        ids = [token.id for token in self.added]
        check_id_range(ids, n_tokens + len(ids), f"{source}, with the files beside it,")

    def adds(self, role: str) -> bool | None:
        """Value of ``add_{role}_token``; None if it is absent, or if a generic class ignores it."""
        value = self.config.get(f"add_{role}_token")
        is_generic = self.config.get("tokenizer_class") in (None, "PreTrainedTokenizerFast")
        return value if isinstance(value, bool) and not is_generic else None

    def bos_and_eos(
        self, special: dict[str, int], *, bos: tuple[int | None, bool], eos: tuple[int | None, bool]
    ) -> dict[str, Any]:
        """Fields ``bos_id``, ``add_bos``, ``eos_id`` and ``add_eos`` of a specification.

        *bos* and *eos* are the values of the tokenizer's own file, ``(id, is added to texts)``,
        which side files override. *special* has the ids of special tokens by text.
        """
        fields: dict[str, Any] = {}
        for role, (default, is_added) in (("bos", bos), ("eos", eos)):
            id = self.special_id(role, special, default)
            adds = self.adds(role)
            fields[f"{role}_id"] = id
            fields[f"add_{role}"] = id is not None and (is_added if adds is None else adds)
        return fields

    def complete(self, spec: TokenizerSpec, *content: bytes) -> TokenizerSpec:
        """*spec* with what the side files say: stop ids, chat templates, and texts for these.

        The fingerprint covers *content*, which *spec* was read from, and the side files.
        """
        special = {spec.tokens[token.id]: token.id for token in spec.added}
        # The eos_id of a WordPiece is [SEP], which separates texts and does not end an answer.
        eos = None if spec.model == "wordpiece" else spec.eos_id
        declared = (id for id in self.declared_stops if 0 <= id < spec.vocab_size)
        named = {name: text for name, text in self.templates.items() if name != "default"}
        spec = replace(
            spec,
            stop_ids=stop_ids(special, (eos, *declared)),
            chat_template=self.templates.get("default"),
            named_templates=tuple(sorted(named.items())),
            template_tokens=spec.template_tokens or tuple(self.roles.items()),
        )
        return replace(spec, fingerprint=spec_key(spec, *content, self.raw))


def _read_side_files(files: Inventory) -> SideFiles:
    """The side files among *files*; one that exists must be valid if it counts."""
    named = template_files(files)
    raw = {name: files.read(name) for name in (*SIDE_FILES, *named) if name in files}

    def load(name: str) -> dict[str, Any]:
        value = read_json(files, name) if name in raw else {}
        if isinstance(value, dict):
            return value
        raise damage_error(f"{files.path(name)} holds {value!r:.60}, expected a JSON object")

    config = load("tokenizer_config.json")
    has_decoder = "added_tokens_decoder" in config
    added_file = {} if has_decoder else load("added_tokens.json")
    added, added_fault = _read_added(config, added_file)
    stops: list[int] = []
    for name in ("generation_config.json", "config.json"):
        outer = load(name)
        # A model for pictures or sound has the text model's configuration in text_config.
        for table in (outer, outer.get("text_config")):
            if isinstance(table, dict):
                stops += _stop_ids(table.get("eos_token_id"), files, name)

    def template(name: str) -> str:
        try:
            return raw[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise damage_error(f"{files.path(name)} is not UTF-8: {error}") from None

    templates = {name.rsplit("/", 1)[-1].removesuffix(".jinja"): template(name) for name in named}
    if "chat_template.jinja" in raw:
        templates["default"] = template("chat_template.jinja")
    return SideFiles(
        tokenizer_config=config,
        special_map={} if has_decoder else load("special_tokens_map.json"),
        added_file=added_file,
        added=added,
        added_fault=added_fault,
        model_config=load("config.json"),
        declared_stops=tuple(dict.fromkeys(stops)),
        templates=templates or templates_in(config, load("chat_template.json")),
        raw=b"".join(name.encode() + content for name, content in raw.items()),
    )


def _stop_ids(value: Any, files: Inventory, name: str) -> list[int]:
    """Ids in *value*, the ``eos_token_id`` of the file *name*: an id, a list of them, or null."""
    ids = value if isinstance(value, list) else [value]
    if all(id is None or type(id) is int for id in ids):
        return [id for id in ids if id is not None]
    raise InvalidFormat(
        f"{files.path(name)}: eos_token_id is {value!r:.60}, expected a token id or a list of them",
        hint="compare the file with the one that the model's author publishes",
    )


def template_files(files: Inventory) -> list[str]:
    """Names of the templates in ``additional_chat_templates``, in order."""
    folder = files.root / TEMPLATE_FOLDER
    if not folder.is_dir():
        return []
    return sorted(f"{TEMPLATE_FOLDER}/{path.name}" for path in folder.glob("*.jinja"))


def templates_in(config: dict[str, Any], processor: dict[str, Any]) -> dict[str, str]:
    """Templates by name in *config*, the ``tokenizer_config.json``, else in *processor*.

    *processor* is ``chat_template.json``, which has one template, called ``default``.
    """
    template = config.get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        template = {entry.get("name"): entry.get("template") for entry in entries}
    if isinstance(template, dict):
        named = {str(name): text for name, text in template.items() if isinstance(text, str)}
        if named:
            return named
    if not isinstance(template, str):
        template = processor.get("chat_template")
    return {"default": template} if isinstance(template, str) else {}


def _read_added(
    config: dict[str, Any], ids_by_text: dict[str, Any]
) -> tuple[tuple[AddedToken, ...], str]:
    """Added tokens in the order of their ids, and the first entry that is not one, in words.

    As in transformers, *ids_by_text*, the ``added_tokens.json``, counts only if *config* has no
    ``added_tokens_decoder``.
    """
    tokens: dict[int, AddedToken] = {}
    faults = []
    if "added_tokens_decoder" in config:
        decoder = config["added_tokens_decoder"]
        if not isinstance(decoder, dict):
            return (), f"added_tokens_decoder is {decoder!r:.60}, expected an object"
        for key, entry in decoder.items():
            is_token = isinstance(entry, dict) and isinstance(entry.get("content"), str)
            if not is_token or not _ID.fullmatch(key):
                faults.append(f"added_tokens_decoder has {key!r:.40}: {entry!r:.80}")
            elif entry["content"]:
                tokens[int(key)] = parse_added_token(int(key), entry)
    else:
        for text, id in ids_by_text.items():
            if type(id) is int:
                # The file has no flags: texts such as <|im_end|> are taken for special tokens.
                tokens[id] = AddedToken(id, text, special=text.startswith("<|"))
            else:
                faults.append(f"added_tokens.json has the id {id!r:.40} of {text!r:.40}")
    fault = f"{faults[0]}, which is not a token and its id" if faults else ""
    return tuple(tokens[id] for id in sorted(tokens)), fault


def read_token_text(value: Any) -> str | None:
    """Text of a special token, whose *value* in a side file is a text or an object; else None."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _read_bytes(files: Inventory, name: str) -> bytes:
    """Bytes of the file *name*, which must not be empty."""
    if data := files.read(name):
        return data
    raise InvalidFormat(f"{files.root_as_given / name} is empty", hint="fetch the file again")


def read_json(files: Inventory, name: str) -> Any:
    """JSON value in the file *name*."""
    data = _read_bytes(files, name)
    path = files.path(name)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damage_error(f"Invalid JSON in {path}: {json_fault(error)}") from None
