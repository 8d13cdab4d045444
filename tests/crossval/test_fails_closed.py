"""Engines that answer wrongly, too little, too much or not at all: none of it passes.

Exit codes: 15 the verdict is failed, 22 it is "not run".
"""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from crossval_evidence import exact_trace
from tiny_models import tiny_gguf

from bitnet.crossval import ask, ours, references
from bitnet.crossval.references import LlamaCpp
from bitnet.crossval.trace import EngineFacts, EngineFailed, PromptTrace, positions_from

PROMPTS = "abc\nThe quick\nzyx wvu\n"
NOT_NUMBERS = positions_from(np.array([[np.nan, 0.0]]))[0]


class Good(LlamaCpp):
    """A stand-in for llama.cpp: it answers as the float64 pass does, and *change* alters that."""

    package = "json"  # a module that is always installed
    change = staticmethod(lambda trace: trace)

    def trace(self, question):
        exact = exact_trace(question.checkpoint, question.prompts)
        ids = self.tokenizer.encode
        tokenized = tuple(tuple(ids(text, add_special=flag)) for text, flag in question.texts)
        return self.change(
            replace(exact, engine=EngineFacts("peer", "1", "float"), tokenized=tokenized)
        )

    def intermediates(self, question, exact):
        return None


def first_prompt(trace, **changes):
    """*trace* with *changes* to its first prompt."""
    return replace(trace, prompts=(replace(trace.prompts[0], **changes), *trace.prompts[1:]))


def every_prompt(trace, change):
    """*trace* with *change* applied to each prompt."""
    return replace(trace, prompts=tuple(change(prompt) for prompt in trace.prompts))


def skewed(one):
    """Log-probabilities stretched by 6 %, each row normalized again."""
    positions = []
    for at in one.positions:
        logits = tuple(1.06 * logit for logit in at.logits)
        positions.append(replace(at, logits=logits, lse=float(np.logaddexp.reduce(logits))))
    return replace(one, positions=tuple(positions))


def with_unknown_token(one):
    """The likeliest token of each row has an id that no model has."""
    return replace(
        one,
        positions=tuple(replace(at, ids=(10**9, *at.ids[1:])) for at in one.positions),
    )


WRONG = {
    "no prompts": lambda t: replace(t, prompts=()),
    "one prompt less": lambda t: replace(t, prompts=t.prompts[:-1]),
    "one prompt more": lambda t: replace(t, prompts=(*t.prompts, t.prompts[0])),
    "prompts in another order": lambda t: replace(t, prompts=t.prompts[::-1]),
    "one row a prompt": lambda t: every_prompt(t, lambda p: replace(p, positions=p.positions[:1])),
    "no rows": lambda t: every_prompt(t, lambda p: replace(p, positions=())),
    "no rows of one prompt": lambda t: first_prompt(t, positions=()),
    "one row more": lambda t: first_prompt(t, positions=t.prompts[0].positions * 2),
    "rows of one token": lambda t: every_prompt(
        t,
        lambda p: replace(
            p,
            positions=tuple(
                replace(at, ids=at.ids[:1], logits=at.logits[:1]) for at in p.positions
            ),
        ),
    ),
    "not a number": lambda t: first_prompt(t, positions=(NOT_NUMBERS, *t.prompts[0].positions[1:])),
    "not one number": lambda t: every_prompt(
        t, lambda p: replace(p, positions=(NOT_NUMBERS,) * len(p.positions))
    ),
    "no continuations": lambda t: every_prompt(t, lambda p: replace(p, greedy=(), top2_gaps=())),
    "short continuations": lambda t: every_prompt(
        t, lambda p: replace(p, greedy=p.greedy[:1], top2_gaps=p.top2_gaps[:1])
    ),
    "a token outside the vocabulary": lambda t: every_prompt(t, with_unknown_token),
    "a continuation outside the vocabulary": lambda t: every_prompt(
        t, lambda p: replace(p, greedy=(*p.greedy[:-1], 10**9))
    ),
    "an error": lambda t: first_prompt(t, error="it gave up"),
    "no ids of texts": lambda t: replace(t, tokenized=()),
    "ids of one text less": lambda t: replace(t, tokenized=t.tokenized[:-1]),
    "ids of one text more": lambda t: replace(t, tokenized=(*t.tokenized, (1,))),
    "empty ids": lambda t: replace(t, tokenized=((),) * len(t.tokenized)),
}


@pytest.fixture
def run(bitnet, tmp_path, monkeypatch):
    """A function that runs crossval beside an engine whose answer a function changes.

    It returns the exit code and the report.
    """
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    model = tiny_gguf(tmp_path / "tiny.gguf")
    from bitnet.tokenizer import resolve_tokenizer

    monkeypatch.setattr(Good, "tokenizer", resolve_tokenizer(model), raising=False)
    monkeypatch.setattr(references, "CHAIN", (Good,))

    def started(change=lambda trace: trace, *words):
        monkeypatch.setattr(Good, "change", staticmethod(change))
        prompts = ("--prompts", tmp_path / "prompts.txt", "--greedy", 4)
        done = bitnet("crossval", "--model", model, *prompts, "--json", *words)
        report = json.loads(done.out)
        return done.code, report

    return started


def test_the_engine_passes_as_it_is(run):
    code, report = run()
    assert (code, report["verdict"]["status"]) == (0, "passed")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("more", [(), ("--allow-missing",)])
def test_an_answer_that_is_not_whole_fails_with_a_report(run, name, more):
    code, report = run(WRONG[name], *more)
    assert (code, report["verdict"]["status"]) == (15, "failed")


def test_a_reference_skewed_by_six_percent_does_not_judge(run):
    code, report = run(lambda trace: every_prompt(trace, skewed), "--allow-missing")
    assert (code, report["verdict"]["status"]) == (15, "failed")
    assert "it computes wrong logits" in report["verdict"]["reasons"][0]


def test_an_engine_without_a_tokenizer_leaves_that_check_not_run(run):
    code, report = run(lambda trace: replace(trace, tokenized=None), "--allow-missing")
    assert (code, report["verdict"]["status"]) == (22, "not run")
    assert "the reference has no tokenizer" in report["verdict"]["reasons"][0]


# Programs in the place of the process of an engine; the argument is the path of its answer.
ENDINGS = {
    "crashes": "import os; os.abort()",
    "ends with an error": "raise SystemExit(3)",
    "says nothing": "",
    "refuses": "import sys, json; json.dump({'error': 'no'}, open(sys.argv[1], 'w'))",
    "writes something else": "import sys; open(sys.argv[1], 'w').write('{}')",
    "writes no JSON": "import sys; open(sys.argv[1], 'w').write('{')",
    "writes a list": "import sys; open(sys.argv[1], 'w').write('[1]')",
    "names its files": "import sys; sys.exit(f'error: /usr/lib/x.so and {sys.argv[1]}: no')",
    "takes too long": "import signal; signal.alarm(60); signal.pause()",
}


@pytest.mark.parametrize("name", [*ENDINGS, "does not start"])
def test_a_missing_engine_is_excused_and_one_that_fails_is_not(bitnet, tmp_path, monkeypatch, name):
    def stand_in(_module, target):
        if name == "does not start":
            return [str(tmp_path / "no such program")]
        return [sys.executable, "-c", ENDINGS[name], target]

    monkeypatch.setattr(ask, "isolate", stand_in)
    monkeypatch.setattr(LlamaCpp, "package", "json")
    model = tiny_gguf(tmp_path / "tiny.gguf")
    words = ("--greedy", 2, "--json", "--allow-missing")
    if name == "takes too long":
        words = (*words, "--reference-timeout", 1)
    done = bitnet("crossval", "--model", model, *words)
    report = json.loads(done.out)
    assert (done.code, report["verdict"]["status"]) == (15, "failed")
    assert report["no_answer"]["severity"] == "failed"
    assert report["verdict"]["findings"][0]["hint"]
    if name != "refuses":
        assert "/" not in report["no_answer"]["text"]  # reports are published: no folder of ours


@pytest.mark.parametrize("folder", ["/home/someone/env/bin", "/home/some one/env/bin"])
def test_a_report_about_a_missing_engine_names_no_folder(bitnet, tmp_path, monkeypatch, folder):
    monkeypatch.setattr(LlamaCpp, "package", "no_such_package")
    monkeypatch.setattr(sys, "executable", f"{folder}/python")
    model = tiny_gguf(tmp_path / "tiny.gguf")
    words = ("--against", "llama.cpp", "--allow-missing", "--report-dir", tmp_path / "report")
    done = bitnet("crossval", "--model", model, *words)
    assert done.code == 0
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert "python" in report["no_answer"]["hint"]
    for name in ("report.json", "report.md", "report.html"):
        text = (tmp_path / "report" / name).read_text()
        assert "/home" not in text
        assert "one/env" not in text


def test_an_engine_that_fails_at_its_intermediates_fails_with_a_report(run, monkeypatch):
    def too_slow(self, question, exact):
        raise EngineFailed("peer took more than 300 s")

    monkeypatch.setattr(Good, "intermediates", too_slow)
    code, report = run()
    assert (code, report["verdict"]["status"]) == (15, "failed")
    assert "no intermediates: peer took more than 300 s" in report["verdict"]["reasons"][0]


def test_our_own_logits_that_are_not_numbers_are_a_finding(run, monkeypatch):
    def no_numbers(model, prompt, generation):
        count = len(prompt.ids)
        return PromptTrace(prompt.text, prompt.ids, (NOT_NUMBERS,) * count, error="no numbers")

    monkeypatch.setattr(ours, "_our_prompt", no_numbers)
    code, report = run()
    assert (code, report["verdict"]["status"]) == (15, "failed")
    assert "not finite" in str(report["verdict"]["findings"])


def test_a_prompt_that_cannot_be_encoded_fails_and_shifts_none(run, monkeypatch):
    from bitnet.base.errors import InferenceError
    from bitnet.tokenizer import Tokenizer

    encode = Tokenizer.encode

    def refuses(self, text, **options):
        if text == "The quick":
            raise InferenceError("no token for it")
        return encode(self, text, **options)

    _, good = run()
    monkeypatch.setattr(Tokenizer, "encode", refuses)
    # The stand-in encodes texts with the same tokenizer: it answers without ids of texts.
    monkeypatch.setattr(
        Good, "trace", lambda self, q: replace(exact_trace(q.checkpoint, q.prompts), tokenized=None)
    )
    code, report = run()
    assert code == 15
    assert "cannot be encoded: no token for it" in str(report["verdict"]["reasons"])
    rows = {(row["prompt"], row["position"]): row for row in report["rows"]}
    others = [row for row in good["rows"] if row["prompt"] != 1]  # "The quick" is prompt 1
    assert len(others) == len(rows)
    for row in others:
        assert rows[row["prompt"], row["position"]]["theirs"] == row["theirs"]


def test_a_run_with_few_positions_still_compares_every_prompt(run):
    code, report = run(lambda trace: trace, "--max-positions", 5)
    assert code == 0
    assert {row["prompt"] for row in report["rows"]} == {0, 1, 2}
    assert len(report["rows"]) == 5


def test_only_the_compiled_kernels_are_real(run, monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    assert run()[0] == 0
    code, report = run(lambda trace: trace, "--require-real")
    assert code == 15
    assert "--require-real" in report["verdict"]["reasons"][0]
