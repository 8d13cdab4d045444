"""Engines to compare with: those that are here, those that are not, and one that is wrong."""

import importlib.util
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny_keys
from conversions import convert
from crossval_evidence import exact_trace, verdict_on_float64
from tiny_keys import VOCAB
from tiny_models import TOKENS, ternary_gguf, tiny_gguf

from bitnet.base.errors import ReferenceUnavailable, UsageError
from bitnet.base.invocation import extra_command
from bitnet.convert.convert_options import ConvertOptions
from bitnet.crossval import ask, float64
from bitnet.crossval.bounds import ROWS
from bitnet.crossval.float64 import Float64
from bitnet.crossval.recording import Recorded
from bitnet.crossval.references import IkLlamaCpp, LlamaCpp, Transformers, choose
from bitnet.crossval.trace import EngineFailed, Prompt, Question
from bitnet.formats.containers import open_checkpoint
from bitnet.shipped import SHIPPED

IDS = (0, 5, 9, 3, 44, 12, 13, 14, 30, 20, 21, 7, 8)


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: an extra of crossval")


@pytest.fixture
def checkpoint(tmp_path):
    return open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture
def ternary(tmp_path):
    return open_checkpoint(ternary_gguf(tmp_path / "ternary.gguf"))


def question(checkpoint, steps=0, **more):
    """A question about the prompt IDS, with *steps* greedy tokens after it."""
    return Question(checkpoint, (Prompt("p", IDS, steps=steps),), **more)


def verdict_by(checkpoint, theirs):
    """The verdict on our float64 pass beside the trace *theirs*."""
    return verdict_on_float64(checkpoint, IDS, theirs)


@needs("xllamacpp")
def test_llama_cpp_gives_logits_tokens_and_continuations(checkpoint):
    request = question(checkpoint, texts=(("ab", True), ("ab", False)), steps=3, threads=1)
    trace = LlamaCpp().trace(request)
    assert trace.engine.name == "llama.cpp"
    # With the beginning-of-text token, 0, and without it.
    assert trace.tokenized == ((0, *map(TOKENS.index, "ab")), tuple(map(TOKENS.index, "ab")))
    (prompt,) = trace.prompts
    assert (prompt.prompt, prompt.ids, len(prompt.positions)) == ("p", IDS, len(IDS))
    assert prompt.greedy[0] == prompt.positions[-1].ids[0]
    assert prompt.top2_gaps[0] == pytest.approx(prompt.positions[-1].gap, abs=1e-4)
    assert len(prompt.greedy) == 3
    assert verdict_by(checkpoint, trace).status == "passed"


@needs("xllamacpp")
def test_llama_cpp_gives_intermediates(checkpoint):
    ids = IDS * 2
    question = Question(checkpoint, (Prompt("p", ids),))
    arrays = LlamaCpp().intermediates(question, Float64().model(checkpoint))
    names = {"embed", "attn_norm-0", "Qcur-1", "kqv_out-1", "ffn_act-0", "l_out-1"}
    assert names | {"result_norm", "result_output"} <= set(arrays)
    # Of the last ROWS positions; keys and values of all, since these positions attend to them.
    assert arrays["result_output"].shape == (ROWS, VOCAB)
    assert arrays["l_out-0"].shape == (ROWS, tiny_keys.DIM)
    whole = {name for name, values in arrays.items() if len(values) == len(ids)}
    assert {"Kcur-0", "Kcur-1", "Vcur-0", "Vcur-1"} <= whole
    assert all(name.startswith(("Kcur", "Vcur")) for name in whole)


class Unconverted(IkLlamaCpp):
    """ik_llama.cpp given the I2_S file itself, which it misreads, and not its conversion."""

    def _file(self, question, folder):
        return question.checkpoint.path


@needs("ik_llama_cpp")
def test_wrong_logits_of_a_file_that_loads_are_rejected(ternary):
    try:
        wrong = Unconverted().trace(question(ternary))
    except EngineFailed as failure:
        pytest.xfail(f"in some runs an assertion of ik_llama.cpp fails: {failure}")
    verdict = verdict_by(ternary, wrong)
    assert verdict.status != "passed"
    (on_reference,) = (entry for entry in verdict.findings if entry.subject == "reference")
    assert on_reference.failed


@needs("ik_llama_cpp")
def test_right_logits_of_the_same_weights_converted_are_accepted(ternary):
    trace = IkLlamaCpp().trace(question(ternary))
    verdict = verdict_by(ternary, trace)
    (on_reference,) = (entry for entry in verdict.findings if entry.subject == "reference")
    assert not on_reference.failed


@needs("ik_llama_cpp")
def test_ik_llama_cpp_reads_what_convert_writes_as_iq2_bn(ternary, tmp_path):
    file = tmp_path / "iq2_bn.gguf"
    convert(ternary.path, file, ConvertOptions("IQ2_BN"))
    verdict = verdict_by(ternary, IkLlamaCpp().trace(question(open_checkpoint(file))))
    (on_reference,) = (entry for entry in verdict.findings if entry.subject == "reference")
    assert not on_reference.failed


@needs("ik_llama_cpp")
def test_rows_too_short_for_its_ternary_products_are_given_as_f16():
    tiny = open_checkpoint(SHIPPED["bitnet-tiny"].path)
    verdict = verdict_by(tiny, IkLlamaCpp().trace(question(tiny)))
    (on_reference,) = (entry for entry in verdict.findings if entry.subject == "reference")
    assert not on_reference.failed


def test_ternary_models_are_not_given_to_llama_cpp(ternary):
    assert not LlamaCpp().reads(ternary)
    assert choose("", ternary).name == "ik_llama.cpp"
    with pytest.raises(UsageError, match="cannot be asked"):
        choose("llama.cpp", ternary)


def test_the_first_that_is_installed_is_chosen(checkpoint, monkeypatch):
    monkeypatch.setattr(LlamaCpp, "is_installed", lambda self: False)
    monkeypatch.setattr(IkLlamaCpp, "is_installed", lambda self: True)
    assert choose("", checkpoint).name == "ik_llama.cpp"
    # If none is installed, the first one, whose error says how to install it.
    monkeypatch.setattr(IkLlamaCpp, "is_installed", lambda self: False)
    assert choose("", checkpoint).name == "llama.cpp"
    assert choose("float64", checkpoint).name == "float64"


def test_folders_are_asked_of_transformers(tmp_path, checkpoint):
    (tmp_path / "model").mkdir()
    folder = type(checkpoint)(tmp_path / "model", "llama", {}, {}, "half")
    assert Transformers().reads(folder)
    assert not Transformers().reads(checkpoint)
    assert choose("", folder).name == "transformers"


def test_a_reference_that_is_not_installed_says_how_to(checkpoint, monkeypatch):
    monkeypatch.setattr(LlamaCpp, "package", "no_such_package")
    with pytest.raises(ReferenceUnavailable, match=r"llama\.cpp is not installed") as caught:
        LlamaCpp().trace(question(checkpoint))
    assert extra_command("crossval") in caught.value.hint


@needs("xllamacpp")
def test_a_file_the_engine_refuses_is_not_a_crash_of_ours(checkpoint, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(checkpoint.path.read_bytes()[:2000])
    request = question(replace(checkpoint, path=broken))
    with pytest.raises(EngineFailed, match=r"cannot run broken\.gguf|did not survive"):
        LlamaCpp().trace(request)


def test_an_engine_that_dies_is_named_with_its_last_words(checkpoint, monkeypatch):
    code = "import os,sys; sys.stderr.write('x\\nGGML_ASSERT failed\\ny\\n'); os.abort()"
    monkeypatch.setattr(ask, "isolate", lambda *words: [sys.executable, "-c", code])
    monkeypatch.setattr(LlamaCpp, "package", "json")
    with pytest.raises(EngineFailed, match="signal 6; GGML_ASSERT failed"):
        LlamaCpp().trace(question(checkpoint))


def test_a_recording_gives_what_was_recorded(checkpoint, tmp_path):
    trace = Float64().trace(question(checkpoint, steps=2))
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace.as_json()))
    recorded = Recorded(file).trace(question(checkpoint, steps=2))
    assert recorded.prompts[0].greedy == trace.prompts[0].greedy
    assert choose("", checkpoint, recording=file).name == "recorded"


def test_float64_gives_the_same_logits_if_it_unpacks_weights_piece_by_piece(
    checkpoint, ternary, monkeypatch
):
    for model in (checkpoint, ternary):
        monkeypatch.setattr(float64, "_MOST_BYTES", 1 << 40)
        whole = exact_trace(model, [Prompt("p", IDS)])
        monkeypatch.setattr(float64, "_MOST_BYTES", 0)  # no model fits
        monkeypatch.setattr(float64, "_ROWS", 7)  # which divides no matrix evenly
        piecewise = exact_trace(model, [Prompt("p", IDS)])
        for expected, position in zip(
            whole.prompts[0].positions, piecewise.prompts[0].positions, strict=True
        ):
            assert expected.ids == position.ids
            assert np.allclose(expected.logits, position.logits, rtol=0, atol=1e-9)
