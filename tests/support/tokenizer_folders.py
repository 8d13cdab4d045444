"""Random folders of a tokenizer and its side files, as transformers reads them."""

import json
import random
from pathlib import Path

from bitnet.tokenizer.spec import BYTE_TO_CHARACTER

CLASSES = (
    *("PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "SomebodysTokenizer"),
    *("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer"),
    *("GemmaTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer"),
    *("GPTNeoXTokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast", "CohereTokenizer"),
    *("CohereTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3_5Tokenizer"),
    *("RobertaTokenizer", "RobertaTokenizerFast", "BartTokenizer", "LongformerTokenizer"),
    *("BlenderbotTokenizer", "DebertaTokenizer", "CLIPTokenizer", "BloomTokenizerFast"),
    *("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer"),
    *("MPNetTokenizer", "MobileBertTokenizer", "FunnelTokenizer", "LayoutLMTokenizer"),
    *("XLMRobertaTokenizer", "XLMRobertaTokenizerFast", "AlbertTokenizer", "T5Tokenizer"),
    *("DebertaV2Tokenizer", "CamembertTokenizer", "BarthezTokenizer", "XGLMTokenizer"),
    *("NllbTokenizer", "WhisperTokenizer", "BertweetTokenizer", "MarianTokenizer"),
)
MODEL_TYPES = (
    *("llama", "mistral", "gemma2", "qwen2", "qwen3", "gpt2", "gpt_neox", "phi3", "bert", "t5"),
    *("roberta", "xlm-roberta", "cohere", "falcon", "deepseek_v3", "bitnet", "nobody_knows"),
)
# Classes of which a folder may have ``vocab.json`` and ``merges.txt`` alone.
VOCABULARY_CLASSES = (
    *("GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "Qwen2Tokenizer"),
    *("Qwen2TokenizerFast", "DebertaTokenizer", "RobertaTokenizer", "RobertaTokenizerFast"),
    *("BartTokenizer", "LongformerTokenizer", "LEDTokenizer", "MvpTokenizer"),
    *("BlenderbotTokenizer", "GPTNeoXTokenizer", "CohereTokenizer", "CLIPTokenizer"),
)
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
USUAL = ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]")
MORE = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<new>", "<tool>", "the", " x ", "Hello")
WORDS = ("the", "he", "in", "an", "er", "on", "at", "ing", "th", "re", "Hel", "lo", "wor", "ld")
PIECES = (
    *(
        "Hello world",
        " the man",
        "in\u00efve caf\u00e9",
        "\u4f60\u597d\u4e16\u754c",
        "  two  spaces ",
        "\n",
        "x",
        "",
    ),
    *("don't", " , . ! 's n't", "ABC thing", "12345", "\U0001f600", "\u2581", "I 'm here ."),
)
TEMPLATE = (
    "{% for m in messages %}NAME{{ bos_token }}{{ m.content }}{{ eos_token }}{{ pad_token }}"
    "{{ unk_token }}{% endfor %}"
)


class Folder:
    """Files of a random folder, by name; *seed* decides all of them."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.files: dict[str, object] = {}
        kind = draw.choice(("bytes", "llama", "unigram", "wordpiece", "bytes", "llama"))
        self.files["tokenizer.json"] = self._document(kind)
        suited = [name for name in CLASSES if draw.random() < 0.4 or self._suits(name, kind)]
        if draw.random() < 0.85:
            self.files["tokenizer_config.json"] = self._config(draw.choice(suited))
        if draw.random() < 0.35:
            self.files["special_tokens_map.json"] = self._map()
        if draw.random() < 0.3:
            texts = draw.sample((*MORE, *USUAL), draw.randint(0, 3))
            first = draw.choice((0, 40, 700))
            self.files["added_tokens.json"] = {text: first + at for at, text in enumerate(texts)}
        if draw.random() < 0.6:
            config: dict[str, object] = {"model_type": draw.choice(MODEL_TYPES)}
            if draw.random() < 0.1:
                config["tokenizer_class"] = draw.choice(suited)
            self.files["config.json"] = config
        self._templates()

    def _suits(self, name: str, kind: str) -> bool:
        """True if the class *name* is usual for a tokenizer of *kind*."""
        words = {
            "bytes": ("GPT", "Qwen", "Roberta", "Cohere", "Code", "Fast", "Backend"),
            "llama": ("Llama", "Gemma", "PreTrained", "Backend", "Nllb"),
            "unigram": ("XLM", "Albert", "T5", "V2", "Cam", "Bar", "XGLM", "PreTrained"),
            "wordpiece": ("Bert", "Electra", "MPNet", "Funnel", "LayoutLM", "PreTrained"),
        }
        return any(word in name for word in words[kind])

    def _document(self, kind: str) -> dict[str, object]:
        """A random ``tokenizer.json`` of *kind*; its added tokens are kept in ``_added``."""
        draw = self.draw
        special = draw.sample(USUAL, draw.randint(2, 6))
        if kind == "bytes" and draw.random() < 0.7:
            special.append("<|endoftext|>")
        tokens, merges = byte_vocabulary() if kind == "bytes" else _word_vocabulary(kind)
        in_vocabulary = [text for text in special if draw.random() < 0.7 or kind != "bytes"]
        at = draw.choice((0, len(tokens)))
        if kind == "unigram":
            at = 0
            in_vocabulary = list(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *in_vocabulary]))
        elif kind == "wordpiece":
            in_vocabulary = list(dict.fromkeys(["[UNK]", *in_vocabulary]))
        elif kind == "llama":
            in_vocabulary = list(dict.fromkeys(["<unk>", *in_vocabulary]))
        texts = [*tokens[:at], *in_vocabulary, *tokens[at:]]
        ids = {text: id for id, text in enumerate(texts)}
        added = [text for text in (*in_vocabulary, *special) if draw.random() < 0.9]
        if kind in ("unigram", "wordpiece", "llama"):
            added = [*dict.fromkeys([*added, *in_vocabulary])]
        entries = []
        following = len(texts)
        for text in sorted(dict.fromkeys(added), key=lambda text: ids.get(text, 10**6)):
            id = ids.get(text)
            if id is None:
                id, following = following, following + 1
            entries.append({"id": id, **self._flags(text)})
        self._added = entries
        added_ids = {entry["content"]: entry["id"] for entry in entries}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": entries,
            **self._sections(kind),
            "post_processor": self._post_processor(added_ids),
            "model": self._model(kind, texts, merges),
        }

    def _flags(self, text: str) -> dict[str, object]:
        """The added token *text* with random flags."""
        draw = self.draw
        special = draw.random() < 0.85
        return {
            "content": text,
            "single_word": draw.random() < 0.05,
            "lstrip": draw.random() < 0.1,
            "rstrip": draw.random() < 0.1,
            "normalized": draw.random() < 0.1,
            "special": special,
        }

    def _sections(self, kind: str) -> dict[str, object]:
        """Normalizer, pre-tokenizer and decoder that are usual for *kind*."""
        draw = self.draw
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        prepend = {"type": "Prepend", "prepend": "\u2581"}
        plain = [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]
        metaspace = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": draw.choice(("always", "first", "never")),
            "split": kind == "unigram",
        }
        if kind == "bytes":
            level = {"type": "ByteLevel", "add_prefix_space": draw.random() < 0.2}
            level |= {"trim_offsets": True, "use_regex": True}
            normalizer = {"type": "NFC"} if draw.random() < 0.3 else None
            return {"normalizer": normalizer, "pre_tokenizer": level, "decoder": level}
        if kind == "wordpiece":
            options = {"clean_text": True, "handle_chinese_chars": draw.random() < 0.8}
            options |= {"strip_accents": None, "lowercase": draw.random() < 0.5}
            return {
                "normalizer": {"type": "BertNormalizer", **options},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": draw.random() < 0.8},
            }
        if kind == "unigram":
            return {"normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace}
        if draw.random() < 0.5:
            both = {"type": "Sequence", "normalizers": [prepend, replace]}
            decoder = {"type": "Sequence", "decoders": plain}
            return {"normalizer": both, "pre_tokenizer": None, "decoder": decoder}
        steps = plain if metaspace["prepend_scheme"] != "never" else plain[:-1]
        decoder = {"type": "Sequence", "decoders": steps}
        return {"normalizer": None, "pre_tokenizer": metaspace, "decoder": decoder}

    def _post_processor(self, known: dict[str, int]) -> object:
        """A random post-processor; *known* are ids of added tokens."""
        draw = self.draw
        way = draw.random()
        if way < 0.3 or not known:
            return None
        if way < 0.5:
            return {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": False,
                "use_regex": True,
            }
        first = draw.choice(list(known))
        last = draw.choice(list(known))
        single: list[object] = [{"Sequence": {"id": "A", "type_id": 0}}]
        used = []
        if draw.random() < 0.8:
            single.insert(0, {"SpecialToken": {"id": first, "type_id": 0}})
            used.append(first)
        if draw.random() < 0.5:
            single.append({"SpecialToken": {"id": last, "type_id": 0}})
            used.append(last)
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [known[t]], "tokens": [t]} for t in used},
        }

    def _model(self, kind: str, texts: list[str], merges: list[list[str]]) -> dict[str, object]:
        """The model of *kind* with the vocabulary *texts*."""
        ids = {text: id for id, text in enumerate(texts)}
        if kind == "wordpiece":
            return {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": ids,
            }
        if kind == "unigram":
            scores = [[text, -float(at % 17) / 3 - 1] for at, text in enumerate(texts)]
            return {
                "type": "Unigram",
                "unk_id": ids["<unk>"],
                "byte_fallback": False,
                "vocab": scores,
            }
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>" if kind == "llama" else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": kind == "llama",
            "byte_fallback": kind == "llama",
            "ignore_merges": self.draw.random() < 0.2,
            "vocab": ids,
            "merges": merges,
        }

    def _config(self, name: str) -> dict[str, object]:
        """A random ``tokenizer_config.json`` of the class *name*."""
        draw = self.draw
        config: dict[str, object] = {}
        if draw.random() < 0.9:
            config["tokenizer_class"] = name
        for role in ROLES:
            if draw.random() < 0.35:
                config[role] = self._value()
        if draw.random() < 0.5:
            config["added_tokens_decoder"] = self._decoder()
        for key in ("extra_special_tokens", "additional_special_tokens"):
            if draw.random() < 0.2:
                config[key] = self._extra()
        flags = (
            *("add_bos_token", "add_eos_token", "add_prefix_space", "legacy", "do_lower_case"),
            *("strip_accents", "tokenize_chinese_chars", "clean_up_tokenization_spaces"),
        )
        for key in flags:
            if draw.random() < 0.25:
                config[key] = draw.choice((True, False, True, False, None))
        if draw.random() < 0.05:
            config["split_special_tokens"] = draw.random() < 0.5
        if draw.random() < 0.1:
            config["image_token"] = draw.choice(("<image>", "<new>"))
        return config

    def _value(self) -> object:
        """A random special token: null, a text, or a text with flags."""
        draw = self.draw
        text = draw.choice((*USUAL, *MORE[:4]))
        way = draw.random()
        if way < 0.1:
            return None
        return text if way < 0.85 else {"__type": "AddedToken", **self._flags(text)}

    def _decoder(self) -> dict[str, object]:
        """A random ``added_tokens_decoder``."""
        draw = self.draw
        entries: dict[str, object] = {}
        for entry in self._added:
            if draw.random() < 0.85:
                token = {key: value for key, value in entry.items() if key != "id"}
                if draw.random() < 0.15:
                    token["lstrip"] = not token["lstrip"]
                entries[str(entry["id"])] = token
        for text in draw.sample(MORE, draw.randint(0, 2)):
            entries[str(draw.choice((30, 900, 901, 902)))] = self._flags(text)
        return entries

    def _extra(self) -> object:
        """Random extra special tokens: null, an object or a list."""
        draw = self.draw
        texts = draw.sample((*MORE, *USUAL), draw.randint(0, 3))
        way = draw.random()
        if way < 0.1:
            return None
        if way < 0.25:
            return {f"{number}_token": text for number, text in enumerate(texts)}
        return texts

    def _map(self) -> dict[str, object]:
        """A random ``special_tokens_map.json``."""
        draw = self.draw
        content: dict[str, object] = {}
        for role in ROLES:
            if draw.random() < 0.4:
                text = draw.choice((*USUAL, *MORE[:4]))
                token = {key: value for key, value in self._flags(text).items() if key != "special"}
                content[role] = text if draw.random() < 0.6 else token
        if draw.random() < 0.2:
            content["additional_special_tokens"] = draw.sample(MORE, 2)
        return content

    def _templates(self) -> None:
        """Add random chat templates to the files."""
        draw = self.draw
        config = self.files.get("tokenizer_config.json")
        if isinstance(config, dict) and draw.random() < 0.6:
            text = TEMPLATE.replace("NAME", "config ")
            named = [
                {"name": name, "template": TEMPLATE.replace("NAME", f"config {name} ")}
                for name in draw.sample(("default", "tool_use", "rag"), draw.randint(1, 3))
            ]
            config["chat_template"] = draw.choice((text, named, None))
        if draw.random() < 0.3:
            self.files["chat_template.jinja"] = TEMPLATE.replace("NAME", "file ")
        for name in ("tool_use", "other"):
            if draw.random() < 0.15:
                path = f"additional_chat_templates/{name}.jinja"
                self.files[path] = TEMPLATE.replace("NAME", f"file {name} ")

    def write(self, path: Path) -> Path:
        """Write the files into the folder *path*."""
        for name, content in self.files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            file.write_text(text, "utf-8")
        return path

    def texts(self) -> list[str]:
        """Texts on which tokenizers of this folder are compared."""
        draw = self.draw
        parts = (*PIECES, *USUAL, *MORE)
        drawn = ["".join(draw.choices(parts, k=draw.randint(1, 6))) for _ in range(25)]
        return [*PIECES, *drawn]


class VocabularyFolder(Folder):
    """Files of a random folder with ``vocab.json`` and without ``tokenizer.json``."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        tokens, merges = byte_vocabulary()
        special = [*draw.sample(USUAL, draw.randint(2, 9)), "<|endoftext|>"]
        texts = [*special, *tokens] if draw.random() < 0.5 else [*tokens, *special]
        ids = {text: id for id, text in enumerate(texts)}
        self._added = [{"id": ids[text], **self._flags(text)} for text in special]
        self.files = {
            "vocab.json": ids,
            "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges),
            "tokenizer_config.json": self._config(draw.choice(VOCABULARY_CLASSES)),
        }
        if draw.random() < 0.35:
            self.files["special_tokens_map.json"] = self._map()
        if draw.random() < 0.2:
            added = {text: len(texts) + at for at, text in enumerate(draw.sample(MORE, 2))}
            self.files["added_tokens.json"] = added
        if draw.random() < 0.6:
            self.files["config.json"] = {"model_type": draw.choice(MODEL_TYPES)}
        self._templates()


def byte_vocabulary() -> tuple[list[str], list[list[str]]]:
    """Tokens and merges of a small byte-level BPE."""
    tokens = list(BYTE_TO_CHARACTER)
    merges = [
        ["t", "h"],
        ["th", "e"],
        ["i", "n"],
        ["in", "g"],
        ["\u0120", "t"],
        ["l", "o"],
        ["\u0120", "the"],
    ]
    return [*tokens, *("".join(pair) for pair in merges)], merges


def _word_vocabulary(kind: str) -> tuple[list[str], list[list[str]]]:
    """Tokens and merges of another *kind*, in which only ``llama`` has merges."""
    letters = "abcdefghijklmnopqrstuvwxyzABCHI0123.,!'"
    if kind == "wordpiece":
        words = [
            *letters,
            *(f"##{letter}" for letter in letters),
            *WORDS,
            "##ing",
            "\u4f60",
            "cafe",
        ]
        return list(dict.fromkeys(words)), []
    if kind == "unigram":
        return list(dict.fromkeys(["\u2581", *letters, *WORDS, *(f"\u2581{w}" for w in WORDS)])), []
    merges = [
        ["t", "h"],
        ["th", "e"],
        ["\u2581", "the"],
        ["i", "n"],
        ["\u2581", "\u2581"],
        ["l", "o"],
    ]
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["\u2581", *letters, *("".join(pair) for pair in merges)]
    return tokens, merges
