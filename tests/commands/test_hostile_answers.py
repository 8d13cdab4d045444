"""Model files with values made to confuse: a clear answer, and nothing that steers a terminal.

Exit codes: 13 damaged or malformed data, 15 a check failed, 19 not found, 20 unsupported.
"""

import re

import pytest
from builders import Typed, gguf_bytes, llama_metadata, vocabulary

# Escape sequences that set the title and a colour, a bell, and a right-to-left override.
STEERS = "\x1b]0;title\x07\x1b[31m\u202e"
# Characters that must not reach a terminal; of control characters only tab and newline may.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
ORDINARY = {
    **llama_metadata("llama"),
    **vocabulary(["<s>", "a", "b", "ab"], merges=["a b"]),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.token_type": Typed(5, [3, 1, 1, 1]),
}
NAN = [float("nan")] * 4
INFINITE = [float("inf")] * 4
TOKENS = [STEERS, "a", "b", f"a{STEERS}"]
STEERING = {
    "architecture": {"general.architecture": STEERS},
    "name": {"general.name": STEERS},
    "pre": {"tokenizer.ggml.pre": STEERS},
    "model": {"tokenizer.ggml.model": STEERS},
    "model as an array": {"tokenizer.ggml.model": [STEERS]},
    "tokens": {"tokenizer.ggml.tokens": TOKENS},
    "tokens alone": {"tokenizer.ggml.tokens": STEERS},
    "merges": {"tokenizer.ggml.merges": [f"{STEERS} b"]},
    "merges without a space": {"tokenizer.ggml.merges": [STEERS]},
    "types": {"tokenizer.ggml.token_type": [STEERS] * 4},
    "scores": {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [STEERS] * 4},
    "a flag": {"tokenizer.ggml.add_bos_token": STEERS},
    "an id": {"tokenizer.ggml.bos_token_id": STEERS},
    "template": {"tokenizer.chat_template": STEERS},
    "repository": {"general.source.url": f"https://h/{STEERS}/{STEERS}"},
    "parts": {"split.count": STEERS},
    "parts as an array": {"split.count": [STEERS]},
    "a key": {f"tokenizer.ggml.{STEERS}": [STEERS]},
}


def _file(tmp_path, **values):
    """A GGUF file with ORDINARY metadata, except for *values*."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(ORDINARY | values))
    return path


@pytest.mark.parametrize("what", STEERING)
def test_no_value_of_a_file_steers_the_terminal(what, tmp_path, bitnet):
    path = _file(tmp_path, **STEERING[what])
    for words in (["explain-tokenizer", "-vv"], ["compat-check"], ["inspect-gguf"]):
        shown = bitnet(*words, path)
        assert not CONTROL.search(shown.out + shown.err)
        assert shown.code in (0, 13, 15, 19, 20)
        assert "internal error" not in shown.err


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"tokenizer.ggml.pre": "llama-9"}, "unknown pre-tokenizer 'llama-9'.*--pre NAME"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": Typed(6, NAN)},
            "a score that is not a number",
        ),
        (
            {"tokenizer.ggml.model": "t5", "tokenizer.ggml.scores": Typed(6, INFINITE)},
            "a score that is not a number",
        ),
    ],
    ids=["pre", "nan", "inf"],
)  # fmt: skip
def test_a_tokenizer_with_impossible_values_is_refused_with_the_reason(
    values, why, tmp_path, bitnet
):
    shown = bitnet("explain-tokenizer", _file(tmp_path, **values))
    assert shown.code in (19, 20)
    assert re.search(why, shown.out + shown.err, re.DOTALL)


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (Typed(10, 2**64 - 1), "part 0 (from 0) of 18446744073709551615, its name says 0 of 1"),
        (Typed(5, -1), "part 0 (from 0) of -1, its name says 0 of 1"),
        (Typed(6, float("nan")), "part 0 (from 0) of nan, its name says 0 of 1"),
        ("many", "part 0 (from 0) of 'many', its name says 0 of 1"),
        (Typed(2, 65535), "part 0 (from 0) of 65535, its name says 0 of 1"),
    ],
    ids=["huge", "negative", "nan", "text", "most"],
)  # fmt: skip
def test_parts_that_cannot_be_counted_are_refused(count, why, tmp_path, bitnet):
    shown = bitnet("explain-tokenizer", _file(tmp_path, **{"split.count": count}))
    assert shown.code == 13
    assert why in shown.err


def test_a_first_part_of_very_many_says_how_many_are_missing(tmp_path, bitnet):
    path = tmp_path / "model-00001-of-99999.gguf"
    path.write_bytes(gguf_bytes(ORDINARY))
    shown = bitnet("explain-tokenizer", path)
    assert shown.code == 19
    assert "99998 of them missing: model-00002-of-99999.gguf" in shown.err
    # Not all missing files are listed.
    assert len(shown.err) < 2000
