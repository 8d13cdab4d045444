"""Operations of every family against every engine: the right graph passes, a wrong one fails."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asked_here import share_this_process
from cases_of_engines import THEIRS
from llama_cpp_models import IDS, written
from sensitivity import (
    ENCODINGS,
    LIMITS,
    OTHERWISE,
    OURS,
    READ_BY_IK,
    REFUSED,
    TERNARY,
    assert_only_right_passes,
    faults,
    names_of,
    of_llama_cpp,
    of_ours,
)
from tiny_models import tiny

from bitnet.base import native
from bitnet.base.errors import ReferenceUnavailable, UsageError
from bitnet.crossval.bounds import ROWS
from bitnet.crossval.operations import (
    check_operations,
    describe,
    list_planned,
    missing_operations,
    our_intermediates,
)
from bitnet.crossval.references import IkLlamaCpp, choose, references_for
from bitnet.crossval.trace import Prompt, Question
from bitnet.families.family import families
from bitnet.kernels.program import Mark
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import config_from, load_model
from bitnet.models.transformer import Model

TABLE = Path(__file__).parents[2] / "benchmarks/results/sensitivity.json"
needs_native = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
needs_ik = pytest.mark.skipif(
    importlib.util.find_spec("ik_llama_cpp") is None,
    reason="ik-llama-cpp-python is not installed: an extra of crossval",
)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    share_this_process(monkeypatch)  # a process for each model takes longer than the model


def check_only_the_right_model_passes(engine, checkpoint, judged, *, all_of_them):
    """Assert that the operations of the right model pass, and fail with each mistake in the graph.

    Args:
        engine: name of the engine, for messages.
        checkpoint: the tiny model.
        judged: function that compares the engine's operations with those of a float64 model.
        all_of_them: the engine gives every planned value.
    """
    exact = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))

    def verdict(model):
        steps = judged(model)
        planned = list_planned(exact.program)
        missing = missing_operations(steps, planned, all_of_them=all_of_them)
        return describe(engine, (*steps, *missing), exact.config.n_layers)

    assert_only_right_passes(checkpoint, exact, verdict)


@pytest.mark.parametrize("architecture", OURS)
def test_no_two_intermediates_have_one_name(architecture):
    program = load_model(tiny(architecture), ops=ReferenceOps()).program
    names = [step.name for step in program.instructions if isinstance(step, Mark)]
    assert len(names) == len(set(names))
    # Each planned operation is a group of names of which an engine may give any.
    planned = [name for group in list_planned(program) for name in group]
    assert planned == [*names, "result_output"]


def test_operations_that_see_later_positions_are_those_of_the_whole_text():
    checkpoint = tiny("qwen2")
    config = replace(config_from(checkpoint), causal=False)
    exact = Model(checkpoint, config, ops=ReferenceOps(dtype=np.float64))
    ids = list(range(ROWS + 4))
    theirs = our_intermediates(Model(checkpoint, config, ops=ReferenceOps()), ids)
    assert len(theirs["result_output"]) == len(ids)
    steps = check_operations(exact, checkpoint, ids, theirs, arithmetic="float", half_cache=False)
    missing = missing_operations(steps, list_planned(exact.program), all_of_them=True)
    is_right, text = describe("bitnet", (*steps, *missing), config.n_layers)
    assert is_right, text


@needs_native
@pytest.mark.parametrize("architecture", OURS)
@pytest.mark.parametrize("encoding", ["Q8_0", pytest.param("F32", marks=pytest.mark.slow)])
def test_our_operations_pass_and_with_a_mistake_fail(architecture, encoding):
    checkpoint, judged = of_ours(architecture, encoding)
    check_only_the_right_model_passes("bitnet", checkpoint, judged, all_of_them=True)


QUICK = ("phi3", "lfm2", "gpt-oss-experts")  # run without --slow: fused, recurrent, with experts


@needs_llama_cpp
@pytest.mark.parametrize(
    "case",
    [
        case if case in QUICK else pytest.param(case, marks=pytest.mark.slow)
        for case in THEIRS
        if case not in (*REFUSED, *OTHERWISE)
    ],
)
@pytest.mark.parametrize("encoding", ["Q8_0", pytest.param("F32", marks=pytest.mark.slow)])
def test_operations_of_llama_cpp_pass_and_with_a_mistake_fail(case, encoding, tmp_path):
    checkpoint, judged = of_llama_cpp(case, encoding, tmp_path)
    check_only_the_right_model_passes("llama.cpp", checkpoint, judged, all_of_them=False)


@needs_ik
@pytest.mark.slow
@pytest.mark.parametrize("case", READ_BY_IK)
@pytest.mark.parametrize("encoding", ["Q8_0", "F32"])
def test_operations_of_ik_llama_cpp_pass_and_with_a_mistake_fail(case, encoding, tmp_path):
    checkpoint, judged = of_llama_cpp(case, encoding, tmp_path, IkLlamaCpp)
    check_only_the_right_model_passes("ik_llama.cpp", checkpoint, judged, all_of_them=False)


@pytest.mark.parametrize("case", [*REFUSED, *OTHERWISE])
def test_what_llama_cpp_refuses_or_computes_otherwise_is_not_compared_with_it(case, tmp_path):
    path = tmp_path / "tiny.gguf"
    checkpoint = written(path, case, {})
    read_by_ik = IkLlamaCpp().computes(checkpoint)
    assert [engine.name for engine in references_for(checkpoint)] == [
        *(["ik_llama.cpp"] if read_by_ik else []),
        "float64",
    ]
    if not read_by_ik:
        with pytest.raises(ReferenceUnavailable, match=f"does not compute {case} models"):
            choose("", checkpoint).trace(Question(checkpoint, prompts=(Prompt("", IDS),)))
        with pytest.raises(UsageError) as raised:
            choose("llama.cpp", checkpoint)
        assert raised.value.hint == "choose one that reads it: --against float64"
        assert choose("llama.cpp", checkpoint, tokenizer_only=True).name == "llama.cpp"


@needs_llama_cpp
@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_does_not_load_it_refuses_with_these_words(case, tmp_path):
    checkpoint = written(tmp_path / "tiny.gguf", *THEIRS[case])
    # In the fields of reference_process, without the checks that would refuse the model before.
    request = {
        "engine": "llama.cpp",
        "model": str(checkpoint.path),
        "prompts": [["", [3, 4], 0, 0]],
        "texts": [],
        "threads": 1,
        "arithmetic": "float",
        "causal": True,
        "headless": False,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bitnet.crossval.reference_process", str(tmp_path / "answer.json")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert REFUSED[case] in done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer == {"error": "the engine does not load the file"}


def test_every_bound_has_its_margin_in_the_measured_table():
    table = json.loads(TABLE.read_text())
    assert table["bounds"] == {kind: bound._asdict() for kind, bound in LIMITS.items()}
    assert list(faults(table)) == []


def test_the_table_has_every_family_in_every_engine_and_encoding_that_reads_it():
    """A family that is registered is measured, and no model of the table is gone."""
    measured = json.loads(TABLE.read_text())["measured"]
    for title, row in measured.items():
        engine, encoding = title.split()
        assert len(row["models"]) == len(row["families"]) == len(set(row["models"])), title
        if engine == "transformers":
            continue  # its list needs torch, as test_every_folder.py has it
        assert set(row["models"]) == set(names_of(engine, encoding)), title
    assert any(title.startswith("transformers ") for title in measured)
    assert {*ENCODINGS, *TERNARY} == {
        title.split()[1] for title in measured if title.startswith("bitnet ")
    }
    for family in families():
        if family.in_gguf:
            assert family.architecture in measured["bitnet F32"]["models"], family.title
