r"""Pre-tokenizers by their ``tokenizer.ggml.pre`` name, for byte-level BPE vocabularies.

The names are those of llama.cpp's ``src/llama-vocab.cpp``. The steps are those of the model's own
``tokenizer.json`` where it is known, in Hugging Face's terms; llama.cpp rewrites some of them, with
different results for rare characters. Two equivalent rewritings keep the expressions simple: no
possessive quantifiers where backtracking cannot succeed, and ``(?!\p{Han})`` instead of a class
intersection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bitnet.base.errors import Unsupported
from bitnet.tokenizer.spec import SPACE_SYMBOL, Step

__all__ = ["PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]


@dataclass(frozen=True)
class PreTokenizer:
    """Properties implied by a ``pre`` name, besides the vocabulary itself.

    Attributes:
        steps: split normalized text into pieces.
        normalizer: steps before that.
        ignore_merges: a piece that is a token as a whole becomes that token.
        add_bos: default if the file has no ``tokenizer.ggml.add_bos_token``.
        byte_level: token texts are in GPT-2's byte spelling; else they are plain UTF-8 with U+2581
            for the space and ``<0xNN>`` for bytes.
        has_bos: a file without ``tokenizer.ggml.bos_token_id`` has the default BOS nevertheless.
    """

    steps: tuple[Step, ...]
    normalizer: tuple[Step, ...] = ()
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    has_bos: bool = True


def _split(regex: str) -> Step:
    return Step("Split", {"pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})


def _byte_level(*, use_regex: bool) -> Step:
    return Step(
        "ByteLevel", {"add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    )


_NFC = (Step("NFC"),)
_BYTES = _byte_level(use_regex=False)
_GPT2 = _byte_level(use_regex=True)  # GPT-2's own expression is built into this step
_DIGIT = Step("Digits", {"individual_digits": True})

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_K2_HORIZON = _LLAMA3.replace(r"?\p{L}+", r"?[\p{L}\p{M}\u200c\u200d]+")
_LONG_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    + _LONG_SPACES
    + r"|\s{1,2}(?!\S)|\s{1}"
)


def _case_pattern(numbers: str, contractions: str, punctuation: str = r"[\r\n/]*") -> str:
    """The o200k family: an upper-case start and a lower-case rest form one piece."""
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    optional = contractions and contractions + "?"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{optional}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{optional}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{punctuation}|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_O200K = _case_pattern(r"\p{N}{1,3}", _CONTRACTIONS)
_KIMI = r"\p{Han}+|" + _case_pattern(r"\p{N}{1,3}", _CONTRACTIONS, r"[\r\n]*").replace(
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
).replace(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])")

_ASCII_WORD = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
_LETTERS_AND_MARKS = r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = _ASCII_WORD + _LETTERS_AND_MARKS + r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPARK = _ASCII_WORD + _LETTERS_AND_MARKS + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"


def _characters(ranges: str) -> str:
    """Content of a character class, from hexadecimal code points and ranges of them."""
    return "".join(
        "-".join(chr(int(end, 16)) for end in part.split("-")) for part in ranges.split()
    )


# Code points, not characters: normalization changes several of these.
_KANA = "3040-309F 30A0-30FF"
_CJK_AND_KANA = f"[{_characters('4E00-9FA5 ' + _KANA)}]+"
_CJK = f"[{_characters('4E00-9FA5 800-4E00 AC00-D7FF')}]+"
_DEEPSEEK_PUNCTUATION = _characters("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_LETTERS = _characters(  # cased scripts
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F "
    "386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 "
    "2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 "
    "2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 "
    "A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943 "
)
_YOUTU_SCRIPTS = "|".join(
    f"[{_characters(ranges)}]+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 " + _KANA,
    )
)
_AFMOE_SCRIPTS = _characters(
    "4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF "
    "1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
)
_BLOOM = f" ?[^(\\s|.,!?{_characters('2026 3002 FF0C 3001 964 6D4 60C')})]+"
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MINICPM5 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|" + _TAIL

_STARCODER = PreTokenizer((_DIGIT, _GPT2))
_OF_GPT2 = PreTokenizer((_GPT2,))
_OF_LLAMA3 = PreTokenizer((_split(_LLAMA3), _BYTES), ignore_merges=True, add_bos=True)
_OF_QWEN2 = PreTokenizer((_split(_QWEN2), _BYTES))
_OF_DEEPSEEK3 = PreTokenizer(
    (_split(r"\p{N}{1,3}"), _split(_CJK_AND_KANA), _split(_DEEPSEEK3), _BYTES)
)
_OF_BLOOM = PreTokenizer((_split(_BLOOM), _BYTES))
_OF_O200K = PreTokenizer((_split(_O200K), _BYTES))
_OF_TINY_AYA = PreTokenizer((_split(r"\d{1,3}(?=(?:\d{3})*\b)"), _split(_O200K), _BYTES))
_OF_CHATGLM = PreTokenizer((_split(_LLAMA3), _BYTES), has_bos=False)
_OF_BAILING = PreTokenizer((_split(_BAILING), _BYTES))
# SentencePiece-like text with a merge list: spaces become U+2581, only line breaks cut.
_OF_SPM_MERGES = PreTokenizer(
    (_split(r"[^\n]+|[\n]+"),),
    normalizer=(Step("Replace", {"pattern": {"String": " "}, "content": SPACE_SYMBOL}),),
    byte_level=False,
)
# Metaspace on every line: each begins with U+2581, and so does each word in it.
_OF_MMBERT = replace(
    _OF_SPM_MERGES,
    steps=(_split(f"[\n]+|{SPACE_SYMBOL}?[^\n{SPACE_SYMBOL}]+|{SPACE_SYMBOL}"),),
    normalizer=(
        *_OF_SPM_MERGES.normalizer,
        Step(
            "Replace",
            {"pattern": {"Regex": f"^(?=[^\n{SPACE_SYMBOL}])"}, "content": SPACE_SYMBOL},
        ),
    ),
)


def _nfc(pre: PreTokenizer) -> PreTokenizer:
    return replace(pre, normalizer=_NFC)


_GROUPS: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon_e falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        _OF_LLAMA3,
    ),
    ("dbrx smaug-bpe", replace(_OF_LLAMA3, ignore_merges=False, add_bos=False)),
    ("chatglm-bpe", _OF_CHATGLM),
    ("glm4 glm5", replace(_OF_CHATGLM, ignore_merges=True)),
    ("k2-horizon", PreTokenizer((_split(_K2_HORIZON), _BYTES))),
    ("jais-2", PreTokenizer((_split(_JAIS2), _BYTES))),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                _split("[\r\n]"),
                _split(rf"\s?[{_DEEPSEEK_LETTERS}]+"),
                _split(rf"\s?[{_DEEPSEEK_PUNCTUATION}]+"),
                _split(r"\s+$"),
                _split(_CJK),
                _DIGIT,
                _BYTES,
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer(
            (
                _split("[\r\n]"),
                _split(r"\s?\p{L}+"),
                _split(r"\s?\p{P}+"),
                _split(_CJK),
                _DIGIT,
                _BYTES,
            )
        ),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _OF_DEEPSEEK3),
    (
        "spark2_5",
        PreTokenizer(
            (
                _split(r"\p{N}{1,3}"),
                _split(_CJK_AND_KANA),
                _split(_SPARK),
                _split(r"\p{N}"),
                _BYTES,
            )
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            (_split(_YOUTU_SCRIPTS), _split(_case_pattern(r"\p{N}", _CONTRACTIONS)), _BYTES),
            ignore_merges=True,
        ),
    ),
    (
        "falcon",
        PreTokenizer(
            (
                Step("Punctuation", {"behavior": "Contiguous"}),
                _GPT2,
                Step("Digits", {"individual_digits": False}),
                _split("[0-9][0-9][0-9]"),
            )
        ),
    ),
    ("starcoder refact smollm codeshell minerva-7b mellum2", _STARCODER),
    ("command-r exaone", _nfc(_STARCODER)),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum jais trillion"
        " granite-docling jina-v1-en jina-v2-code roberta-bpe",
        _OF_GPT2,
    ),
    ("mpt olmo modern-bert exaone4", _nfc(_OF_GPT2)),
    ("qwen2 stablelm2 hunyuan megrez kormo f2llmv2", _nfc(_OF_QWEN2)),
    ("deepseek-r1-qwen solar-open grok-2", _OF_QWEN2),
    ("qwen35", _nfc(PreTokenizer((_split(_QWEN35), _BYTES)))),
    (
        "ufakzeka",
        PreTokenizer((_split(_QWEN2.removeprefix(_CONTRACTIONS + "|")), _BYTES)),
    ),
    ("laguna", PreTokenizer((_split(r"[^\n]+|[\n]+"), _split(_QWEN2), _BYTES))),
    ("poro-chat bloom gpt3-finnish", _OF_BLOOM),
    ("viking", PreTokenizer((_split(_BLOOM), _split(r"\p{N}"), _BYTES))),
    (
        "tekken",
        PreTokenizer(
            (_split(_case_pattern(r"\p{N}", "")), _BYTES), ignore_merges=True, add_bos=True
        ),
    ),
    (
        "chameleon",
        PreTokenizer(
            (
                _split("<sentinel:[0-9]+>"),
                _split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                _split("([\t\n]|    |  )"),
                _DIGIT,
                Step("Punctuation", {"behavior": "Isolated"}),
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("gpt-4o", replace(_OF_O200K, ignore_merges=True)),
    ("llama4 granite-embed-multi-97m", replace(_OF_O200K, ignore_merges=True)),
    ("kanana2 talkie minimax-m2", _OF_O200K),
    ("tiny_aya cohere2moe", _nfc(_OF_TINY_AYA)),
    ("kimi-k2", PreTokenizer((_split(_KIMI), _BYTES), ignore_merges=True)),
    (
        "superbpe",
        PreTokenizer((_split(r"\p{N}+"), _split(r"(?=(\d{3})+(?!\d))"), _BYTES)),
    ),
    ("bailingmoe bailingmoe2 llada-moe", _OF_BAILING),
    ("seed-coder", PreTokenizer((_split(_SEED), _BYTES))),
    (
        "afmoe",
        PreTokenizer(
            (
                # Threes counted from the right: 1234567 is 1, 234, 567.
                _split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
                _split(f"[{_AFMOE_SCRIPTS}]+"),
                _split(_DEEPSEEK3),
                _BYTES,
            )
        ),
    ),
    ("exaone-moe", PreTokenizer((_split(_EXAONE_MOE), _BYTES))),
    (
        "minicpm5",
        PreTokenizer((_split(r"\p{N}{1,3}"), _split(_MINICPM5), _BYTES), ignore_merges=True),
    ),
    ("gemma4 granite-embed-multi-311m", replace(_OF_SPM_MERGES, add_bos=True)),
    ("sarvam-moe", _OF_SPM_MERGES),
    ("mmbert", _OF_MMBERT),
    ("whitespace", PreTokenizer((Step("WhitespaceSplit"),), byte_level=False)),
    (
        # llama.cpp's fallback. No model was trained with it: used only if requested by name.
        "default",
        PreTokenizer(
            (
                _split(r"[\p{P}\$\+<=>\^~\|]+"),
                _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                _split(r"\p{N}+"),
                _split("[0-9][0-9][0-9]"),
                _BYTES,
            )
        ),
    ),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: pre for names, pre in _GROUPS for name in names.split()
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer named *name* in ``tokenizer.ggml.pre``.

    Raises:
        Unsupported: the name is unknown.
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise Unsupported(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre)",
            hint=f"choose a known one with --pre NAME: {', '.join(sorted(PRE_TOKENIZERS))}",
        ) from None
