"""The files, functions and types of a comparison, from its plan to its report.

Their numbers are bounded, so that a reader can follow the way: a bound is the present number or a
little more, and a commit that raises one says why.
"""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from tiny_models import tiny_gguf
from walks import Walk, gguf_to_logits

import bitnet
from bitnet import load
from bitnet.crossval import report
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.crossval.judge import judge
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.run import cross_validate
from bitnet.formats.containers import open_checkpoint

ROOM = f"{Path(bitnet.__file__).parent}/crossval/"

# Classes of the room, in the order of a comparison: plan and question; engines and their answers;
# names of llama.cpp; results of comparing the answers; the verdict.
TYPES = {
    *("CrossvalOptions", "Plan", "Prompt", "Question"),
    *("LlamaCpp", "Float64", "EngineFacts", "Trace", "PromptTrace", "Position"),
    # Values are matched by the weight from which they are computed: in llama.cpp (Node), and here
    # (WeightSource).
    *("Names", "Node", "WeightSource"),
    *("Operation", "Row", "TokenizerParity", "TestedModel", "Evidence"),
    "Verdict",
}


@pytest.fixture
def walked(bitnet, tmp_path):
    """Parts of ``bitnet/crossval`` that a comparison with llama.cpp uses in this process.

    A set of functions (file, name), a set of names of classes, and the number of calls from outside
    of the room for each function called.
    """
    functions = set()
    types = set()
    entries = Counter()

    def profile(frame, event, result):
        path = frame.f_code.co_filename
        if not path.startswith(ROOM):
            return
        name = (path.removeprefix(ROOM), frame.f_code.co_name)
        if event == "call":
            caller = frame.f_back.f_code.co_filename
            if not caller.startswith(ROOM) and name[1] != "<module>":
                entries[name] += 1
        if event == "return":
            functions.add(name)
            for value in [*frame.f_locals.values(), result]:
                types.update(map(type, value if isinstance(value, list | tuple) else [value]))

    model = tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "prompts.txt").write_text("abc\nzyx wvu\n")
    words = ("--against", "llama.cpp", "--prompts", tmp_path / "prompts.txt", "--greedy", 4)
    sys.setprofile(profile)
    try:
        done = bitnet("crossval", "--model", model, *words, "--report-dir", tmp_path / "report")
    finally:
        sys.setprofile(None)
    assert done.code == 0, done.err
    ours = {kind.__name__ for kind in types if kind.__module__.startswith("bitnet.crossval.")}
    return functions, ours, entries


needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)


@needs_llama_cpp
def test_a_comparison_uses_few_types_and_enters_each_step_once(walked):
    functions, types, entries = walked
    assert types <= TYPES
    assert len(TYPES) <= 19
    assert len({file for file, _ in functions}) <= 17
    assert len(functions) <= 191
    steps = {"run.py": "cross_validate", "judge.py": "judge", "report.py": "write"}
    assert {step: entries[step] for step in steps.items()} == dict.fromkeys(steps.items(), 1)
    assert {name for file, name in entries if file == "report.py"} <= {
        *("report_files", "as_json", "as_markdown", "write"),
        *("<lambda>", "_show_blanks", "_worst"),  # called by OutputFile and by the template
    }


@needs_llama_cpp
def test_a_comparison_is_few_files_and_functions_besides_the_answers_of_its_engines(tmp_path):
    """From the plan to the report, without what loads a model, and what continues a text."""
    path = tiny_gguf(tmp_path / "tiny.gguf")
    checkpoint = open_checkpoint(path)
    options = CrossvalOptions(greedy=4)
    compared = Walk()
    answered = Walk()
    answered.run(lambda: gguf_to_logits(path))

    def plan_to_report(model):
        evidence, _ = cross_validate(
            model, checkpoint, LlamaCpp(), options, texts=("abc", "zyx wvu")
        )
        verdict = judge(evidence)
        report.write(evidence, verdict, report.report_files(tmp_path, [], force=False))
        return verdict.status

    with load(path) as model:
        assert compared.run(lambda: plan_to_report(model)) == "passed"
        answered.run(lambda: list(model.generate("abc", max_tokens=4, temperature=0)))
    assert {file for file, _ in compared.functions} >= {
        f"/crossval/{step}.py" for step in ("plan", "run", "evidence", "judge", "report")
    }
    assert len(compared.files - answered.files) <= 29
    assert len(compared.functions.keys() - answered.functions.keys()) <= 242
