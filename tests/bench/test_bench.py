"""Reports of ``bench``: plans, statistics, comparison with an earlier report, and reading."""

import json

import pytest
from tiny_models import tiny_gguf

import bitnet
from bitnet.base import native
from bitnet.base.errors import BenchmarkError, InvalidFormat, NotFound, Unsupported, UsageError
from bitnet.bench import (
    BenchPlan,
    _decode_s,
    _prefill_s,
    changes,
    measure,
    read_report,
    report_lines,
    spread,
)

REPORT = {
    "schema": 1,
    "model": {"name": "m.gguf", "size_bytes": 1000, "architecture": "llama", "context": 64},
    "machine": {
        "cpu": "Example CPU",
        "cores": 2,
        "backend": "native (avx2)",
        "read_bytes_per_s": {1: 2e10, 2: 3e10},
    },
    "load_s": spread((0.5, 0.4, 0.9)),
    "results": [
        {"test": "pp8", "threads": 1, "tokens_per_s": spread((100.0, 300.0, 200.0))},
        {"test": "tg8", "threads": 2, "tokens_per_s": spread((10.0, 20.0))},
    ],
    "peak_memory_bytes": 5_000_000,
    "tokenize_share": 0.01,
}


def write_report(tmp_path, facts):
    """Path of a report file with these *facts*."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(facts))
    return path


def test_a_spread_has_median_minimum_maximum_and_samples():
    assert spread((10.0, 20.0))["median"] == 15
    assert spread((0.5, 0.4, 0.9)) == {
        "median": 0.5,
        "min": 0.4,
        "max": 0.9,
        "samples": [0.5, 0.4, 0.9],
    }


def test_a_report_that_is_read_back_equals_the_written_one(tmp_path):
    read = read_report(write_report(tmp_path, REPORT))
    assert read == json.loads(json.dumps(REPORT))  # in JSON every key is a text
    assert {change["ratio"] for change in changes(read, REPORT)} == {1.0}


def test_the_table_names_model_machine_and_every_test():
    text = "\n".join(report_lines(REPORT))
    for word in ("m.gguf, 1.0 kB, llama; native (avx2)", "20.0 GB/s with 1 thread,", "200.0"):
        assert word in text
    assert "load 0.500 s (0.400 to 0.900), peak memory 5.0 MB" in text


def test_a_ratio_above_one_is_better():
    faster = REPORT | {
        "results": [
            {"test": test, "threads": 1, "tokens_per_s": spread([rate])}
            for test, rate in (("pp8", 400.0), ("pp9", 1.0))
        ],
        "load_s": spread([1.0]),
        "peak_memory_bytes": 2_500_000,
    }
    # Only tests that both reports have are compared. Less time and less memory are better.
    assert {change["what"]: change["ratio"] for change in changes(REPORT, faster)} == {
        "pp8 @1 tok/s": 2.0,
        "load s": 0.5,
        "peak memory MB": 2.0,
    }


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"schema": 99}, Unsupported),
        ({"schema": None}, Unsupported),
        ({"machine": {}}, InvalidFormat),
        ({"machine": []}, InvalidFormat),
        ({"results": [{"test": "pp8"}]}, InvalidFormat),
        ({"load_s": {"samples": []}}, InvalidFormat),
        ({"load_s": {"median": "fast"}}, InvalidFormat),
        ({"peak_memory_bytes": "much"}, InvalidFormat),
    ],
)
def test_a_report_with_missing_or_wrong_parts_is_refused(tmp_path, change, error):
    with pytest.raises(error, match=r"report\.json"):
        read_report(write_report(tmp_path, REPORT | change))


def test_files_that_are_not_reports_are_refused(tmp_path):
    with pytest.raises(InvalidFormat):
        read_report(write_report(tmp_path, [1, 2]))
    (tmp_path / "report.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidFormat):
        read_report(tmp_path / "report.json")
    with pytest.raises(NotFound):
        read_report(tmp_path / "none.json")


@pytest.mark.skipif(native.module() is None, reason="the compiled module has the threads")
def test_a_plan_measures_with_one_thread_and_with_all():
    plan = BenchPlan.of("pp8,tg4,pp8", "", 3, threads=4)
    assert [test.name for test in plan.tests] == ["pp8", "tg4"]
    assert plan.threads == (1, 4)
    assert BenchPlan.of("pp8", "", 1, threads=1).threads == (1,)
    assert BenchPlan.of("pp8", "3,1,3", 1, threads=4).threads == (3, 1)


def test_the_reference_backend_is_measured_with_numpys_own_threads(monkeypatch):
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    assert BenchPlan.of("pp8", "1,2", 1).threads == (0,)  # 0: as many as NumPy starts


@pytest.mark.parametrize(
    # Names of tests, numbers of threads, and repetitions.
    ("tests", "counts", "repetitions"),
    [
        ("pp", "", 1),
        ("pp0", "", 1),
        ("", "", 1),
        ("pp8,xx9", "", 1),
        ("tg8@", "", 1),
        ("tg8@0", "", 1),
        ("tg8@-1", "", 1),
        ("tg8@99999999999", "", 1),
        ("pp99999999999", "", 1),
        ("pp8", "0", 1),
        ("pp8", "1,x", 1),
        ("pp8", "1,9999", 1),
        ("pp8", "", 0),
    ],
)
def test_a_plan_with_wrong_tests_threads_or_repetitions_is_refused(tests, counts, repetitions):
    with pytest.raises(UsageError):
        BenchPlan.of(tests, counts, repetitions)


@pytest.fixture
def tiny(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf")


def test_every_test_is_repeated_as_often_as_requested(tiny):
    plan = BenchPlan.of("pp16,tg5", "1", 3)
    report = measure(bitnet.load(tiny), plan, reload=lambda: bitnet.load(tiny))
    assert [one["test"] for one in report["results"]] == ["pp16", "tg5"]
    assert [len(one["tokens_per_s"]["samples"]) for one in report["results"]] == [3, 3]
    assert len(report["load_s"]["samples"]) == 3
    assert report["model"]["size_bytes"] == tiny.stat().st_size
    assert 0 < report["tokenize_share"] < 1
    assert report["peak_memory_bytes"] > 1 << 20
    assert report["machine"]["backend"] == bitnet.load(tiny).backend


class Recorder:
    """An engine that records each request: prompt ids, those already cached, tokens to generate."""

    def __init__(self, engine):
        self.engine = engine
        self.asked = []

    def forget(self):
        self.asked = []
        self.engine.forget()

    def generate(self, ids, request):
        self.asked.append((len(ids), self.engine.caches.best(list(ids))[1], request.max_tokens))
        return self.engine.generate(ids, request)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("pp8", [(8, 0, 1)]),
        ("tg8", [(1, 0, 9)]),
        ("tg8@20", [(20, 0, 9)]),
        ("pp8@20", [(20, 0, 1), (28, 20, 1)]),  # only the last eight are read while the clock runs
    ],
)
def test_a_test_reads_its_depth_before_the_measured_tokens(tiny, name, asked):
    (test,) = BenchPlan.of(name, "", 1).tests
    assert test.name == name
    prompt_tokens, _, max_tokens = asked[-1]
    assert test.positions == prompt_tokens + max_tokens - 1  # the last token needs no position
    assert test.depth == (20 if "@" in name else 0)
    with bitnet.load(tiny) as model:
        engine = Recorder(model.engine)
        ids = model.tokenizer.encode("a long text " * 20)
        seconds = (_prefill_s if test.kind == "pp" else _decode_s)(engine, ids, test)
    assert seconds > 0
    assert engine.asked == asked


def test_a_test_with_a_depth_is_measured_and_its_row_is_aligned(tiny):
    plan = BenchPlan.of("tg2@30,pp4@30", "1", 1)
    report = measure(bitnet.load(tiny), plan, reload=lambda: bitnet.load(tiny))
    assert [one["test"] for one in report["results"]] == ["tg2@30", "pp4@30"]
    slow = {"test": "tg32@4096", "threads": 1, "tokens_per_s": spread([5.0])}
    rows = [*report_lines(REPORT | {"results": [slow, *REPORT["results"]]})][3:7]
    assert [row.split()[0] for row in rows] == ["test", "tg32@4096", "pp8", "tg8"]
    assert len({len(row) for row in rows}) == 1


def test_a_context_too_short_for_a_test_is_an_error(tiny):
    with pytest.raises(BenchmarkError, match="tg4@61 needs 65 positions, the context holds 64"):
        measure(
            bitnet.load(tiny), BenchPlan.of("pp64,tg4@61", "", 1), reload=lambda: bitnet.load(tiny)
        )
    with pytest.raises(BenchmarkError, match="tg64 needs 65 positions, the context holds 64"):
        measure(
            bitnet.load(tiny), BenchPlan.of("pp8,tg64", "", 1), reload=lambda: bitnet.load(tiny)
        )
