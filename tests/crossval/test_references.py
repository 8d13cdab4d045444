"""Engines to compare with: those that are here, those that are not, and one that is wrong."""

import importlib.util
import json
import sys
from contextlib import suppress
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
    return Question(checkpoint, (Prompt("p", IDS, steps=steps),), **more)


def judged(checkpoint, theirs):
    return verdict_on_float64(checkpoint, IDS, theirs)


@needs("xllamacpp")
def test_llama_cpp_gives_logits_tokens_and_continuations(checkpoint):
    asked = question(checkpoint, texts=(("ab", True), ("ab", False)), steps=3, threads=1)
    found = LlamaCpp().trace(asked)
    assert found.engine.name == "llama.cpp"
    assert found.tokenized == ((0, *map(TOKENS.index, "ab")), tuple(map(TOKENS.index, "ab")))
    (prompt,) = found.prompts
    assert (prompt.prompt, prompt.ids, len(prompt.positions)) == ("p", IDS, len(IDS))
    assert prompt.greedy[0] == prompt.positions[-1].ids[0]
    assert prompt.top2_gaps[0] == pytest.approx(prompt.positions[-1].gap, abs=1e-4)
    assert len(prompt.greedy) == 3
    assert judged(checkpoint, found).status == "passed"


@needs("xllamacpp")
def test_llama_cpp_gives_intermediates(checkpoint):
    ids = IDS * 2
    question = Question(checkpoint, (Prompt("p", ids),))
    found = LlamaCpp().intermediates(question, Float64().model(checkpoint))
    names = {"embed", "attn_norm-0", "Qcur-1", "kqv_out-1", "ffn_act-0", "l_out-1"}
    assert names | {"result_norm", "result_output"} <= set(found)
    assert found["result_output"].shape == (ROWS, VOCAB)
    assert found["l_out-0"].shape == (ROWS, tiny_keys.DIM)
    whole = {name for name, values in found.items() if len(values) == len(ids)}
    assert {"Kcur-0", "Kcur-1", "Vcur-0", "Vcur-1"} <= whole
    assert all(name.startswith(("Kcur", "Vcur")) for name in whole)


class Unconverted(IkLlamaCpp):
    """ik_llama.cpp given the file as it is, which it misreads."""

    def _file(self, question, folder):
        return question.checkpoint.path


@needs("ik_llama_cpp")
def test_wrong_logits_of_a_file_that_loads_are_rejected(ternary):
    with suppress(EngineFailed):  # in some runs what it reads trips an assertion of its own
        silent = Unconverted().trace(question(ternary))
        verdict = judged(ternary, silent)
        assert verdict.status != "passed"
        (checked,) = (one for one in verdict.findings if one.subject == "reference")
        assert checked.failed


@needs("ik_llama_cpp")
def test_the_same_weights_converted_are_accepted(ternary):
    found = IkLlamaCpp().trace(question(ternary))
    verdict = judged(ternary, found)
    (checked,) = (one for one in verdict.findings if one.subject == "reference")
    assert not checked.failed


@needs("ik_llama_cpp")
def test_what_convert_writes_as_iq2_bn_is_read_as_it_is(ternary, tmp_path):
    file = tmp_path / "iq2_bn.gguf"
    convert(ternary.path, file, ConvertOptions("IQ2_BN"))
    verdict = judged(ternary, IkLlamaCpp().trace(question(open_checkpoint(file))))
    (checked,) = (one for one in verdict.findings if one.subject == "reference")
    assert not checked.failed


@needs("ik_llama_cpp")
def test_rows_too_short_for_its_ternary_products_are_given_as_f16():
    tiny = open_checkpoint(SHIPPED["bitnet-tiny"].path)
    verdict = judged(tiny, IkLlamaCpp().trace(question(tiny)))
    (checked,) = (one for one in verdict.findings if one.subject == "reference")
    assert not checked.failed


def test_ternary_models_are_not_given_to_llama_cpp(ternary):
    assert not LlamaCpp().reads(ternary)
    assert choose("", ternary).name == "ik_llama.cpp"
    with pytest.raises(UsageError, match="cannot be asked"):
        choose("llama.cpp", ternary)


def test_the_first_that_is_installed_is_chosen(checkpoint, monkeypatch):
    monkeypatch.setattr(LlamaCpp, "is_installed", lambda self: False)
    monkeypatch.setattr(IkLlamaCpp, "is_installed", lambda self: True)
    assert choose("", checkpoint).name == "ik_llama.cpp"
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
    asked = question(replace(checkpoint, path=broken))
    with pytest.raises(EngineFailed, match=r"cannot run broken\.gguf|did not survive"):
        LlamaCpp().trace(asked)


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
    found = Recorded(file).trace(question(checkpoint, steps=2))
    assert found.prompts[0].greedy == trace.prompts[0].greedy
    assert choose("", checkpoint, recording=file).name == "recorded"


def test_float64_unpacks_as_it_goes_where_a_model_does_not_fit(checkpoint, ternary, monkeypatch):
    for model in (checkpoint, ternary):
        monkeypatch.setattr(float64, "_MOST_BYTES", 1 << 40)
        whole = exact_trace(model, [Prompt("p", IDS)])
        monkeypatch.setattr(float64, "_MOST_BYTES", 0)
        monkeypatch.setattr(float64, "_ROWS", 7)
        piecewise = exact_trace(model, [Prompt("p", IDS)])
        for one, two in zip(
            whole.prompts[0].positions, piecewise.prompts[0].positions, strict=True
        ):
            assert one.ids == two.ids
            assert np.allclose(one.logits, two.logits, rtol=0, atol=1e-9)
