"""Folders that users have, by name: saved, edited, converted and copied by other programs.

Their tokenizers are small; the tests are about the files beside them.
"""

from copy import deepcopy

from tokenizer_folders import Folder, byte_vocabulary

_JSON = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"
_MODEL = "config.json"
_ADDED = "added_tokens.json"
_JINJA = "chat_template.jinja"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ eos_token }}|{{ pad_token }}|"
    "{{ unk_token }}|{{ image_token }}|{{ extra_special_tokens }}"
)
NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<s>", "</s>")
TEXTS = (
    *("Hello the man", " x  y", "", "naïve \U0001f600", "<new><s>a</s>", "  "),
    "<|im_start|>user\nhi<|im_end|>\n<tool_call>x</s> ",
)


def _token(text: str, **flags: bool) -> dict[str, object]:
    """The token *text* as a ``tokenizer.json`` describes added tokens; all but one are special."""
    usual = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": text, **usual, "special": text != "<tool_call>", **flags}


def _bytes(**sections: object) -> dict[str, object]:
    """A byte-level ``tokenizer.json`` with the tokens of ``NAMES`` behind its vocabulary."""
    tokens, merges = byte_vocabulary()
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = True
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "added_tokens": [
            {"id": id, **_token(text)} for id, text in enumerate(NAMES, start=len(tokens))
        ],
        "pre_tokenizer": level,
        "decoder": level,
        "post_processor": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "fuse_unk": False,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: id for id, text in enumerate(tokens)},
            "merges": merges,
        },
    }
    return document | deepcopy(sections)


_FIRST = 263  # id of the first of NAMES
_IDS = {text: _FIRST + at for at, text in enumerate(NAMES)}
_BOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [_IDS["<s>"]], "tokens": ["<s>"]}},
}
_DECODER = {str(id): _token(text) for text, id in _IDS.items()}
_NAMED = [{"name": name, "template": f"{name} {TEMPLATE}"} for name in ("rag", "tool_use")]
_EOS = {"eos_token": "</s>"}
_CHAT = {**_EOS, "chat_template": TEMPLATE}


def _added(text: str, **flags: bool) -> dict[str, object]:
    """The token *text* as a ``tokenizer_config.json`` describes it."""
    return {"__type": "AddedToken", **_token(text, **flags)}


FOLDERS: dict[str, dict[str, object]] = {
    "plain": {_CONFIG: {**_CHAT, "tokenizer_class": "PreTrainedTokenizerFast"}},
    "saved-by-5": {
        _CONFIG: {
            "tokenizer_class": "Qwen2Tokenizer",
            "backend": "tokenizers",
            "is_local": True,
            "extra_special_tokens": ["<|im_start|>"],
            "eos_token": "<|im_end|>",
        },
        _JINJA: TEMPLATE,
        _MODEL: {"model_type": "qwen2", "transformers_version": "5.24.0"},
    },
    "roles-as-objects": {
        _JSON: _bytes(post_processor=_BOS),
        _CONFIG: {
            "bos_token": _added("<s>"),
            "eos_token": _added("</s>", lstrip=True),
            "pad_token": _added("<pad>"),
            "chat_template": TEMPLATE,
        },
    },
    "roles-in-map": {
        _MAP: {"bos_token": _token("<s>"), "eos_token": _token("</s>", rstrip=True)},
        _CONFIG: {"chat_template": TEMPLATE},
    },
    "roles-null": {
        _JSON: _bytes(post_processor=_BOS),
        _CONFIG: {
            "bos_token": None,
            "eos_token": None,
            "unk_token": None,
            "chat_template": TEMPLATE,
        },
    },
    "role-empty": {_CONFIG: {**_CHAT, "bos_token": ""}},
    "role-of-a-plain-token": {_CONFIG: {**_CHAT, "eos_token": "the"}},
    "role-outside": {_CONFIG: {**_CHAT, "eos_token": "<|eot|>", "pad_token": "<pad>"}},
    "map-empty": {_CONFIG: _CHAT, _MAP: {}},
    "templates-in-list": {
        _CONFIG: {
            **_EOS,
            "chat_template": [{"name": "default", "template": TEMPLATE}, *_NAMED],
        }
    },
    "templates-without-default": {_CONFIG: {**_EOS, "chat_template": _NAMED}},
    "templates-as-object": {
        _CONFIG: {**_EOS, "chat_template": {"default": TEMPLATE, "tool_use": f"T{TEMPLATE}"}}
    },
    "template-of-one-name": {_CONFIG: {**_EOS, "chat_template": _NAMED[:1]}},
    "template-twice": {
        _CONFIG: {
            **_EOS,
            "chat_template": [
                {"name": "default", "template": f"{at} {TEMPLATE}"} for at in ("first", "last")
            ],
        }
    },
    "template-of-a-number": {_CONFIG: {**_EOS, "chat_template": 5}},
    "templates-beside": {
        _CONFIG: _CHAT,
        "additional_chat_templates/tool_use.jinja": "x" + TEMPLATE,
    },
    "templates-in-three-places": {
        _CONFIG: _CHAT,
        _JINJA: "file" + TEMPLATE,
        "additional_chat_templates/tool_use.jinja": "beside" + TEMPLATE,
        "additional_chat_templates/README.md": "text",
    },
    "template-with-cr-lf": {_CONFIG: _EOS, _JINJA: TEMPLATE.replace("\n", "\r\n") + "\r\n"},
    "template-with-bom": {_CONFIG: _EOS, _JINJA: "\ufeff" + TEMPLATE},
    "template-of-a-processor": {_CONFIG: _CHAT, "chat_template.json": {"chat_template": "x"}},
    "template-with-generation": {
        _CONFIG: {
            **_EOS,
            "chat_template": "{% for m in messages %}{% generation %}{{ m.content }}"
            "{% endgeneration %}{% endfor %}",
        }
    },
    "added-beside": {_CONFIG: _CHAT, _ADDED: {"<new>": _FIRST + 6, "<tool_call>": _FIRST + 3}},
    "added-with-other-ids": {_CONFIG: _CHAT, _ADDED: {"<new>": _FIRST + 60, "<|im_end|>": 3}},
    "added-with-decoder": {
        _CONFIG: {**_CHAT, "added_tokens_decoder": _DECODER},
        _ADDED: {"<new>": _FIRST + 6},
    },
    "decoder-of-another-id": {
        _CONFIG: {**_EOS, "added_tokens_decoder": {"3": _token("<tool_call>")}}
    },
    "decoder-with-other-flags": {
        _CONFIG: {
            **_EOS,
            "added_tokens_decoder": {
                str(_FIRST + 3): _token("<tool_call>", special=True, lstrip=True, rstrip=True)
            },
        }
    },
    "extra-objects": {_CONFIG: {**_EOS, "extra_special_tokens": [_added("<x>"), "<tool_call>"]}},
    "named-tokens": {
        _CONFIG: {
            **_EOS,
            "image_token": "<image>",
            "extra_special_tokens": {"boi_token": "<boi>"},
            "chat_template": TEMPLATE + "{{ boi_token }}",
        }
    },
    "cut-and-padded": {
        _JSON: _bytes(
            truncation={
                "direction": "Right",
                "max_length": 4,
                "strategy": "LongestFirst",
                "stride": 0,
            },
            padding={
                "strategy": {"Fixed": 8},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": _FIRST,
                "pad_type_id": 0,
                "pad_token": "<|endoftext|>",
            },
        ),
        _CONFIG: {**_EOS, "model_max_length": 2, "padding_side": "left"},
    },
    "vocabulary-beside": {
        _CONFIG: {**_EOS, "tokenizer_class": "GPT2Tokenizer"},
        "vocab.json": {"a": 0},
        "merges.txt": "#version: 0.2\na b\n",
    },
    "class-of-the-model": {
        _CONFIG: _EOS,
        _MODEL: {"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"},
    },
    "outer-model": {
        _CONFIG: {**_EOS, "processor_class": "LlavaProcessor", "tokenizer_class": "LlamaTokenizer"},
        _MODEL: {"model_type": "llava", "text_config": {"model_type": "llama"}},
    },
    "code-of-a-known-class": {
        _CONFIG: {
            **_EOS,
            "tokenizer_class": "Qwen2Tokenizer",
            "auto_map": {"AutoTokenizer": ["x.Y", None]},
        }
    },
}


class UsualFolder(Folder):
    """The folder *name* of ``FOLDERS``."""

    def __init__(self, name: str) -> None:
        self.files = {_JSON: _bytes(), **deepcopy(FOLDERS[name])}

    def texts(self) -> list[str]:
        """Texts on which tokenizers of this folder are compared."""
        return [*TEXTS]
