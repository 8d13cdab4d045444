"""explain-tokenizer, compat-check, verify-tokenizer, export-tokenizer as commands.

Exit codes: 2 wrong usage, 13 damaged or malformed data, 15 a check failed, 19 not found, 20
unsupported.
"""

import json

import pytest
from builders import f32, vocabulary, write_gguf
from tokenizers import Tokenizer as Library

TOKENS = ["a", "b", "c", "ab", "<|end|>"]
NORMAL = 1
CONTROL = 3


def _model(path, *, tokens=TOKENS, rows=None, merges=("a b",), **more):
    """A GGUF file with these *tokens*; *rows* of its embedding, by default as many."""
    keys = vocabulary(
        tokens,
        merges=merges,
        token_types=[NORMAL] * (len(tokens) - 1) + [CONTROL],
        eos_token_id=len(tokens) - 1,
        **{"pre": "gpt-2", **more},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = [f32("token_embd.weight", (rows or len(tokens), 1))]
    return write_gguf(path, {"general.architecture": "llama", **keys}, tensors)


@pytest.fixture
def model(tmp_path):
    return _model(tmp_path / "models" / "one" / "m.gguf")


@pytest.fixture
def nameless(tmp_path):
    """An unknown vocabulary, without ``tokenizer.ggml.pre``."""
    return _model(tmp_path / "models" / "two" / "m.gguf", pre="")


@pytest.fixture
def corpus(tmp_path):
    """Two probe texts, one a line."""
    path = tmp_path / "corpus.txt"
    path.write_text("ab\ncab\n")
    return path


def test_explain_lists_every_place_of_a_tokenizer_with_its_verdict_and_reason(model, bitnet):
    done = bitnet("explain-tokenizer", model)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"{model}: llama model, 5 tokens"
    assert lines[1].split() == ["chosen", "embedded", str(model)]
    assert lines[2].strip() == "5 tokens, as the model needs"
    # Two lines for each place: a verdict and its reason.
    assert [line.split()[1] for line in lines[3::2]] == ["sibling"] * 3 + ["parent"]


def test_explain_names_a_second_tokenizer_that_differs(model, bitnet):
    assert bitnet("export-tokenizer", model, "--into", model.parent).code == 0
    facts = json.loads(bitnet("explain-tokenizer", model, "--json").out)
    verdicts = {entry["path"]: entry for entry in facts["candidates"]}
    sibling = verdicts[str(model.parent / "tokenizer.json")]
    assert (sibling["verdict"], sibling["reason"]) == (
        "not needed",
        "embedded comes first; the same tokenizer",
    )
    assert facts["download"] is None
    other = Library.from_file(sibling["path"]).to_str().replace('"c"', '"d"')
    (model.parent / "tokenizer.json").write_text(other)
    done = bitnet("explain-tokenizer", model)
    assert done.code == 0
    assert "ANOTHER TOKENIZER than the one chosen: 1 id with another text" in done.out
    assert "is another tokenizer than" in done.err


def test_explain_ends_with_the_exit_code_of_a_missing_tokenizer(nameless, bitnet):
    done = bitnet("explain-tokenizer", nameless)
    assert done.code == 19
    assert "rejected   embedded" in done.out
    assert "No compatible tokenizer found for llama model with vocab_size 5 (strict" in done.err
    assert "--pre NAME" in done.err
    done = bitnet("explain-tokenizer", nameless, "--json")
    assert done.code == 19
    assert json.loads(done.out)["candidates"][0]["verdict"] == "rejected"
    assert bitnet("explain-tokenizer", nameless, "--pre", "gpt-2").code == 0


def test_compat_check_reports_a_compatible_tokenizer_in_one_line(model, bitnet):
    done = bitnet("compat-check", model)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 1
    assert done.out.startswith("compatible: ")


def test_compat_check_accepts_padded_rows_and_reports_their_number(tmp_path, bitnet):
    model = _model(tmp_path / "m.gguf", rows=64)
    done = bitnet("compat-check", model, "--json")
    assert done.code == 0
    facts = json.loads(done.out)
    assert (facts["compatible"], facts["padded_rows"]) == (True, 59)  # 64 rows for 5 tokens
    assert "59" in bitnet("compat-check", model).out


@pytest.mark.parametrize("tokens", [["a", "b", "c", "ab"], ["a", "b", "x", "ab", "<|end|>"]])
def test_compat_check_refuses_another_vocabulary(model, tmp_path, bitnet, tokens):
    other = _model(tmp_path / "other.gguf", tokens=tokens)
    done = bitnet("compat-check", model, "--tokenizer", other)
    assert (done.code, done.out) == (15, "")
    assert done.err.count("NOT COMPATIBLE") == 1
    done = bitnet("compat-check", model, "--tokenizer", other, "--json")
    assert (done.code, json.loads(done.out)["compatible"]) == (15, False)


def test_compat_check_compares_the_texts_of_tokens_if_the_pre_tokenizer_is_unknown(
    model, nameless, tmp_path, bitnet
):
    done = bitnet("compat-check", nameless, "--tokenizer", model)
    assert done.code == 0
    assert "cannot be rebuilt" in done.out
    other = _model(tmp_path / "other.gguf", tokens=["a", "b", "x", "ab", "<|end|>"])
    done = bitnet("compat-check", nameless, "--tokenizer", other)
    assert done.code == 15
    assert "first id 2: b'c' and b'x'" in done.err


def test_compat_check_takes_the_pre_tokenizer_from_the_command_line(nameless, bitnet):
    assert bitnet("compat-check", nameless).code == 19
    assert bitnet("compat-check", nameless, "--pre", "gpt-2").code == 0
    of_a_file = ("compat-check", nameless, "--tokenizer", nameless)
    assert bitnet(*of_a_file).code == 19
    assert bitnet(*of_a_file, "--pre", "gpt-2").code == 0


def test_verify_tokenizer_takes_the_pre_tokenizer_of_both_from_the_command_line(
    nameless, bitnet, corpus
):
    words = ("verify-tokenizer", nameless, "--against", nameless, "--corpus", corpus)
    assert bitnet(*words).code == 19
    assert bitnet(*words, "--pre", "gpt-2").code == 0


def test_an_exported_tokenizer_verifies_against_its_source(model, tmp_path, bitnet, corpus):
    done = bitnet("export-tokenizer", model, "--into", tmp_path / "out", "--json")
    assert done.code == 0
    files = json.loads(done.out)["files"]
    assert files[0] == str(tmp_path / "out" / "tokenizer.json")
    assert Library.from_file(files[0]).encode("cab<|end|>").ids == [2, 3, 4]
    done = bitnet("verify-tokenizer", model, "--against", files[0], "--corpus", corpus)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("2 of 2 ")


def test_verify_shows_the_first_difference(model, tmp_path, bitnet, corpus):
    without_merges = _model(tmp_path / "other.gguf", merges=[])
    done = bitnet("verify-tokenizer", model, "--against", without_merges, "--corpus", corpus)
    assert done.code == 15
    assert "first difference: 'ab'" in done.err
    assert "embedded in m.gguf: [3]" in done.err
    assert "embedded in other.gguf: [0, 1]" in done.err
    done = bitnet(
        "verify-tokenizer", model, "--against", without_merges, "--corpus", corpus, "--json"
    )
    assert done.code == 15
    facts = json.loads(done.out)
    assert (facts["equal"], facts["total"], facts["first_difference"]) == (0, 2, "ab")


def test_verify_compares_what_the_same_ids_stand_for(model, tmp_path, bitnet, corpus):
    assert bitnet("export-tokenizer", model, "--into", tmp_path).code == 0
    without_decoder = tmp_path / "tokenizer.json"
    document = json.loads(without_decoder.read_text())
    without_decoder.write_text(json.dumps(document | {"decoder": None}))
    done = bitnet("verify-tokenizer", model, "--against", without_decoder, "--corpus", corpus)
    assert done.code == 15
    assert "2 of 2 probe texts (100%) give the same ids, " in done.out
    assert "the same ids, other texts: [" in done.err
    done = bitnet(
        "verify-tokenizer", model, "--against", without_decoder, "--corpus", corpus, "--json"
    )
    facts = json.loads(done.out)
    assert done.code == 15
    assert 0 < facts["decoded_equal"] < facts["decoded"]


def test_an_empty_corpus_verifies_nothing(model, tmp_path, bitnet):
    empty = tmp_path / "empty.txt"
    empty.touch()
    words = ("verify-tokenizer", model, "--against", model, "--corpus", empty)
    assert bitnet(*words).code == 15
    assert bitnet(*words, "--json").code == 15


def test_export_replaces_nothing_unless_forced(model, tmp_path, bitnet):
    words = ("export-tokenizer", model, "--into", tmp_path / "out")
    assert bitnet(*words).out.splitlines()[0] == str(tmp_path / "out" / "tokenizer.json")
    again = bitnet(*words)
    assert (again.code, again.out) == (2, "")
    assert "add --force" in again.err
    assert bitnet(*words, "--force").code == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["explain-tokenizer"], 2, "needs MODEL"),
        (["explain-tokenizer", "none.gguf"], 19, "no such file or folder: none.gguf"),
        (["compat-check", "none.gguf"], 19, "no such file or folder: none.gguf"),
        (["compat-check", "m.gguf", "--tokenizer", "none"], 19, 'No tokenizer found at "none"'),
        (["compat-check", "m.gguf", "--pre", "nonsense"], 19, "unknown pre-tokenizer 'nonsense'"),
        (["export-tokenizer", "m.gguf", "--into", "out", "--pre", "x"], 20, "pre-tokenizer 'x'"),
        (["verify-tokenizer", "m.gguf"], 2, "needs --against"),
        (["verify-tokenizer", "none", "--against", "m.gguf"], 19, "no model of that name: none"),
        (["export-tokenizer", "m.gguf"], 2, "needs --output"),
        (["export-tokenizer", "none", "--into", "out"], 19, "no model of that name: none"),
        (["export-tokenizer", "torn.gguf", "--into", "out"], 13, "torn.gguf"),
    ],
)
def test_wrong_use_is_one_error_with_its_exit_code(model, monkeypatch, bitnet, words, code, text):
    monkeypatch.chdir(model.parent)
    (model.parent / "torn.gguf").write_bytes(model.read_bytes()[:200])
    done = bitnet(*words)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("Error:") == 1
    assert text in done.err
