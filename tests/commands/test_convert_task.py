"""convert, as a user types it.

Exit codes: 2 wrong usage, 13 damaged or malformed data, 19 not found, 20 unsupported.
"""

import json

import pytest
from hf_folders import tiny_folder, tokenizer_folder
from tiny_models import TOKENS, tiny_gguf


@pytest.fixture
def folder(tmp_path):
    return tokenizer_folder(tiny_folder(tmp_path / "model", "llama"), TOKENS)


def test_a_folder_becomes_a_file_that_answers(bitnet, folder, tmp_path):
    output = tmp_path / "new" / "model.gguf"
    done = bitnet("convert", "--model", folder, "--output", output, "--type", "Q8_0")
    assert done.code == 0
    assert done.out == f"{output}\n"
    assert f"{output}: " in done.err.splitlines()[0]
    assert "\n  15 tensors F32 -> Q8_0, " in done.err  # the plan
    assert "\n15 tensors F32 -> Q8_0, rounded" in done.err  # the result
    assert bitnet("infer", "--model", output, "--prompt", "ab", "--max-tokens", 2).code == 0
    again = bitnet("convert", "--model", folder, "--output", output)
    assert again.code == 2
    assert "exists" in again.err


def test_json_lists_every_tensor(bitnet, tmp_path):
    model = tiny_gguf(tmp_path / "in.gguf")
    words = ("--model", model, "--output", tmp_path / "out.gguf", "--type", "F32", "--json")
    report = json.loads(bitnet("convert", *words, "--no-progress").out)
    assert report["exact"] is True
    assert report["warnings"] == []
    assert report["size_bytes"] == (tmp_path / "out.gguf").stat().st_size
    assert {tensor["after"] for tensor in report["tensors"]} == {"F32"}


def test_engines_that_compute_a_model_differently_are_named_before_it_is_written(bitnet, tmp_path):
    model = tiny_folder(tmp_path / "model", "mistral", sliding_window=9)
    words = ("--model", model, "--output", tmp_path / "out.gguf", "--no-tokenizer")
    done = bitnet("convert", *words)
    lines = done.err.splitlines()
    warning = (
        "Warning: every engine: ignores the sliding window of llama models: beyond 9 positions"
    )
    (warned,) = [number for number, line in enumerate(lines) if warning in line]
    assert any("exactly" in line or "rounded" in line for line in lines[warned:])
    assert done.code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--type", "TQ2_0"), 20, "is not ternary"),
        (("--type", "Q9"), 2, "--type expects one of"),
        (("--tokenizer", "none"), 19, "none"),
        (("--no-tokenizer", "--pre", "gpt-2"), 2, "--no-tokenizer goes with neither"),
        (("--output", ""), 2, "needs --output"),
        (("--model", "none.gguf"), 19, "none.gguf"),
    ],
)
def test_what_cannot_be_converted_is_one_error(bitnet, folder, tmp_path, words, code, said):
    defaults = {"--model": folder, "--output": tmp_path / "out.gguf"}
    pairs = [
        part for name, value in defaults.items() if name not in words for part in (name, value)
    ]
    done = bitnet("convert", *pairs, *words)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("cut", [1, 100, 5000, -1])  # bytes that are left
def test_a_damaged_source_leaves_nothing_behind(bitnet, tmp_path, cut):
    model = tiny_gguf(tmp_path / "in.gguf")
    model.write_bytes(model.read_bytes()[:cut])
    done = bitnet("convert", "--model", model, "--output", tmp_path / "out.gguf")
    assert done.code in (13, 20)
    assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf"]
