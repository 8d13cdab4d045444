"""Write ``bitnet/tokenizer/tokenizer_classes.json`` from the installed transformers.

    python tests/support/tokenizer_classes.py

A tokenizer class of transformers 5 either keeps the steps of a ``tokenizer.json``, or replaces
them with steps of its own, which depend on keys of ``tokenizer_config.json``. This runs every class
with a small vocabulary and every combination of these keys, and records its steps. The special
tokens of the vocabulary are ``{bos_token}`` and so on, which shows where a class uses them.
"""

import base64
import inspect
import io
import itertools
import json
import os
from functools import cache
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import tokenizers
import transformers
from transformers import TokenizersBackend
from transformers.models.auto import tokenization_auto as auto

TABLE = Path(__file__).parents[2] / "bitnet" / "tokenizer" / "tokenizer_classes.json"
ROLES = ("bos_token", "eos_token", "sep_token", "pad_token", "cls_token", "mask_token", "unk_token")
# Keys of tokenizer_config.json that may change a class's steps, with every value they may have.
OPTIONS = ("add_prefix_space", "do_lower_case", "legacy", "strip_accents", "tokenize_chinese_chars")
VALUES = (True, False, None)
CHARSMAP = "_spm_precompiled_charsmap"  # the table of a ``Precompiled`` normalizer of the file
# Parameters that are not unclear: this script or the loader handles them, they have no effect on
# ids or texts, or no file sets them.
_CLEAR = {
    *("self", "args", "kwargs", "vocab", "merges", "vocab_file", "merges_file", "errors"),
    *("use_default_system_prompt", "clean_up_tokenization_spaces", "trim_offsets", "unk_id"),
    *("model_max_length", "add_bos_token", "return_token_type_ids", CHARSMAP, *ROLES, *OPTIONS),
}
# Methods that a class overrides only if it encodes or decodes in Python.
_OWN_CODE = (
    "_encode_plus",
    "_decode",
    "__call__",
    "_post_init",
    "build_inputs_with_special_tokens",
)
# Names of transformers 4 that transformers 5 knows as other classes.
_EARLIER = ("BloomTokenizer", "ElectraTokenizer", "LayoutLMTokenizer", "LongformerTokenizer")
# Names that do not belong to a model: base classes, and classes for files of other libraries.
_OF_NO_MODEL = {
    *("AutoTokenizer", "PreTrainedTokenizer", "MistralCommonBackend", "MistralCommonTokenizer"),
    *("PythonBackend", "SentencePieceBackend"),
}
# Classes whose template depends on more than the texts of special tokens.
_OWN_TEMPLATE = ("T5Tokenizer", "VideoPrismTokenizer", "MBartTokenizer", "NllbTokenizer")
_SECTIONS = ("normalizer", "pre_tokenizer", "decoder")


def class_names() -> list[str]:
    """Names of every tokenizer class of transformers, without the suffix ``Fast``."""
    names = {*auto.TOKENIZER_MAPPING_NAMES.values(), *dir(transformers), *_EARLIER}
    ends = ("Tokenizer", "TokenizerFast", "Backend")
    names = {name.removesuffix("Fast") for name in names if name and name.endswith(ends)}
    return sorted(names - _OF_NO_MODEL)


def describe(name: str) -> dict[str, object]:
    """The row of the class *name*."""
    kind = auto.tokenizer_class_from_name(name)
    if kind is TokenizersBackend or kind is None:
        return {"keeps": True}
    if not (inspect.isclass(kind) and issubclass(kind, TokenizersBackend)):
        return {"refused": "it runs in Python"}
    if kind.__name__ != name:
        return {"same_as": kind.__name__}
    # The methods of CodeLlama's class matter only for texts with its fill token.
    if name != "CodeLlamaTokenizer" and any(method in kind.__dict__ for method in _OWN_CODE):
        return {"refused": "it encodes or decodes in Python"}
    if name in _OWN_TEMPLATE:
        return {"refused": "it writes a template of its own"}
    if "__init__" not in kind.__dict__:
        return {"keeps": True}
    try:
        return build(kind)
    except Exception as error:  # noqa: BLE001 - what such a class needs is not known
        return {"refused": f"it cannot be built from a vocabulary alone ({type(error).__name__})"}


def build(kind: type) -> dict[str, object]:
    """The row of a class that builds its own steps."""
    parameters = parameters_of(kind)
    keys = [key for key in OPTIONS if key in parameters]
    charsmaps = (False, True) if CHARSMAP in parameters else (False,)
    results = {
        (values, charsmap): run(kind, dict(zip(keys, values, strict=True)), charsmap=charsmap)
        for values in itertools.product(*(("absent", *VALUES) for key in keys))
        for charsmap in charsmaps
    }
    effective = [at for at in range(len(keys)) if _changes(results, at)]
    rows: list[object] = []
    variants: dict[str, int] = {}
    for (values, charsmap), sections in results.items():
        if any(value != "absent" for at, value in enumerate(values) if at not in effective):
            continue
        if sections not in rows:
            rows.append(sections)
        names = [json.dumps(values[at]).strip('"') for at in effective]
        variants[" ".join([*names, *["charsmap"] * charsmap])] = rows.index(sections)
    plain = make(kind, {}, vocabulary(kind, roles=()))
    # Of tokens with the same text, only the first is added, so its flags count for all of them.
    added = {str(value): value for value in plain.added_tokens_decoder.values()}
    special = {
        role: value if isinstance(value, str) else added[str(value)]
        for role, value in plain._special_tokens_map.items()
        if value is not None
    }
    return {
        "model": kind.model.__name__ if kind.model else "Unigram",
        "options": [keys[at] for at in effective],
        "variants": variants,
        "sections": rows,
        "special": {role: token(value) for role, value in special.items()},
        "named": named_tokens(kind),
        "extra": [token(value) for value in plain._extra_special_tokens],
        "adds_again": added_again(kind),
        "unclear": sorted(parameters.keys() - _CLEAR),
    }


def parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """Parameters of a class and of its base classes, to which it passes other arguments on."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if issubclass(base, TokenizersBackend) and base is not TokenizersBackend:
            own = base.__dict__.get("__init__")
            parameters = dict(inspect.signature(own).parameters if own else {}) | parameters
    return parameters


def _changes(results: dict, at: int) -> bool:
    """True if the option at the place *at* changes a result."""
    rest: dict[object, list[object]] = {}
    for (values, charsmap), sections in results.items():
        rest.setdefault((*values[:at], *values[at + 1 :], charsmap), []).append(sections)
    return any(sections.count(sections[0]) != len(sections) for sections in rest.values())


def make(kind: type, arguments: dict[str, object], vocab: object) -> TokenizersBackend:
    """An instance of the class *kind*."""
    if kind.model is not None and kind.model.__name__ == "BPE":
        arguments = {"merges": [], **arguments}
    return kind(vocab=vocab, **arguments)


def vocabulary(kind: type, *, roles: tuple[str, ...] = ROLES, first: tuple[str, ...] = ()):
    """A vocabulary with the special tokens of *roles*, and those that the class names itself."""
    texts = [*first, *(f"{{{role}}}" for role in roles), "a", "b", "\u2581"]
    for parameter in parameters_of(kind).values():
        default = parameter.default
        if parameter.name.endswith("_token") and default and default is not parameter.empty:
            texts.append(str(default))
    texts = list(dict.fromkeys(texts))
    if kind.model is None or kind.model.__name__ == "Unigram":
        return [(text, -float(at)) for at, text in enumerate(texts)]
    return {text: at for at, text in enumerate(texts)}


def run(kind: type, options: dict[str, object], *, charsmap: bool) -> object:
    """Sections of the class with *options*, or the name of the error that it raises."""
    arguments: dict[str, object] = {role: f"{{{role}}}" for role in ROLES}
    arguments |= {key: value for key, value in options.items() if value != "absent"}
    if charsmap:
        arguments[CHARSMAP] = trained_charsmap()
    marker = tokenizers.processors.ByteLevel(trim_offsets=True)
    results = []
    for first in ((), ("c", "d")):
        vocab = vocabulary(kind, first=first)
        try:
            made = make(kind, {**arguments, "post_processor": marker}, vocab)
        except Exception as error:  # noqa: BLE001 - recorded: transformers does not accept the options
            return type(error).__name__
        results.append(sections_of(made, ROLES.index("unk_token") + len(first)))
    if results[0] != results[1]:
        raise ValueError("its steps depend on the vocabulary")
    return results[0]


def sections_of(made: TokenizersBackend, unknown: int) -> dict[str, object]:
    """Sections of an instance; *unknown* is the id of the unknown token in its vocabulary."""
    document = json.loads(made._tokenizer.to_str())
    model = {k: v for k, v in document["model"].items() if k not in ("vocab", "merges")}
    if model.get("unk_id") == unknown:
        model["unk_id"] = "{unk_token}"
    processor = document["post_processor"]
    if processor["type"] == "ByteLevel":
        processor = "that of the file"
    elif "special_tokens" in processor:
        processor["special_tokens"] = sorted(processor["special_tokens"])
    for role in ("cls", "sep"):  # text and id, which depends on the vocabulary
        if isinstance(processor, dict) and role in processor:
            processor[role] = processor[role][0]
    sections = {name: document[name] for name in _SECTIONS}
    text = json.dumps({**sections, "model": model, "post_processor": processor})
    table_text = base64.b64encode(trained_charsmap()).decode()
    return json.loads(text.replace(table_text, "{charsmap}"))


@cache
def trained_charsmap() -> bytes:
    """The character map of SentencePiece's usual normalization."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g h"] * 50),
        model_writer=model,
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def named_tokens(kind: type) -> dict[str, object]:
    """Special tokens with flags that a class makes from plain texts, by role."""
    arguments = {role: f"{{{role}}}" for role in ROLES}
    made = make(kind, arguments, vocabulary(kind))
    values = made._special_tokens_map.items()
    tokens = {role: token(value) for role, value in values if role in ROLES and value is not None}
    return {role: value for role, value in tokens.items() if isinstance(value, dict)}


def added_again(kind: type) -> str:
    """Way in which a class adds known special tokens again: ``plain``, ``special`` or ``no``.

    ``plain``: without their flags; ``special``: made special; ``no``: it does not add them.
    """
    arguments: dict[str, object] = {role: f"{{{role}}}" for role in ROLES}
    arguments["eos_token"] = tokenizers.AddedToken("{eos_token}", lstrip=True, special=False)
    arguments["added_tokens_decoder"] = {1: arguments["eos_token"]}
    made = make(kind, arguments, vocabulary(kind))
    tokens = {str(token): token for token in made.added_tokens_decoder.values()}
    again = tokens["{eos_token}"]
    if not again.lstrip:
        return "plain"
    # Named tokens become special in any case, so only an extra token shows what the class does.
    extra = tokenizers.AddedToken("{extra}", lstrip=True, special=False)
    arguments |= {"extra_special_tokens": [extra], "added_tokens_decoder": {1: extra}}
    made = make(kind, arguments, vocabulary(kind, first=("{extra}",)))
    tokens = {str(token): token for token in made.added_tokens_decoder.values()}
    return "special" if tokens["{extra}"].special else "no"


def token(value):
    """A special token as JSON: its text, or its fields if it has flags."""
    if isinstance(value, str):
        return value
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: getattr(value, name) for name in names}


def table() -> dict[str, object]:
    """The whole table."""
    return {
        "transformers": transformers.__version__,
        "classes": {name: describe(name) for name in class_names()},
        "model_types": {
            model_type: name.removesuffix("Fast")
            for model_type, name in sorted(auto.TOKENIZER_MAPPING_NAMES.items())
            if name
        },
        "wrong_in_files": sorted(auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS),
    }


def main() -> None:
    """Write the table."""
    TABLE.write_text(json.dumps(table(), ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
