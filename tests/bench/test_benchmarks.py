"""Programs of ``benchmarks/``: they import, end their processes, and count what they report."""

import argparse
import asyncio
import importlib
import itertools
import json
import lzma
import os
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from loopback import LoopbackServer, QuietHandler
from waiting import free_port

FOLDER = Path(__file__).parents[2] / "benchmarks"
OF_EXTRAS = ("httpx", "safetensors", "xllamacpp")  # packages that not every environment has
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def load():
    """A function that imports a program by its name."""
    paths = sys.path[:]
    before = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path[:] = paths
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.parametrize("name", NAMES)
def test_every_program_can_be_imported(load, name):
    try:
        assert load(name).__doc__
    except ModuleNotFoundError as error:
        if error.name not in OF_EXTRAS:
            raise
        pytest.skip(f"needs {error.name}")


def test_the_savings_of_the_store_are_measured(load):
    facts = load("download").measure_store(1)
    assert facts["transfer"] == pytest.approx(1, abs=0.01)
    assert 0.1 < facts["rest_transfer"] < 0.2  # the transfer is cut at 86 % and resumed


@pytest.mark.parametrize("requests", [1, 4, 30])
def test_no_two_prompts_that_measure_rates_begin_alike(load, requests):
    serve = load("serve")
    options = argparse.Namespace(turns=5, turn_requests=requests)
    turns = list(serve.turns_of(options))
    # Turn 0 is a warm-up, whose rates are not used.
    assert [(turn, clients) for turn, clients, _ in turns] == [
        *itertools.product(range(6), (1, serve.SLOTS))
    ]
    assert [len(prompts) for _, _, prompts in turns[:2]] == [requests, 8 * requests]
    # A prompt begins with a number of its own, so that no prefix of it is cached.
    numbers = [prompt.partition(".")[0] for _, _, prompts in turns for prompt in prompts]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("count", [1, 2, 4, 19, 100])
def test_percentiles_are_within_the_range_of_the_values(load, count):
    cuts = load("serve").quantiles([float(value) for value in range(1, count + 1)])
    assert cuts["p50"] == (1 + count) / 2
    assert cuts["p50"] <= cuts["p95"] <= count


def test_requests_without_an_answer_are_counted_as_lost_or_raise(load):
    serve = load("serve")
    lost = []
    replies = asyncio.run(serve.load_of(free_port(), 2, ["a", "b", "c"], 1, lost=lost))
    assert (replies, len(lost)) == ([], 3)
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(serve.load_of(free_port(), 2, ["a"], 1))


class FullQueue(QuietHandler, BaseHTTPRequestHandler):
    """Refuses every request, as a server whose queue is full."""

    status = 503
    reply = b'{"error": {"message": "the queue is full", "param": null}}'

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = self.reply
        self.send_response(self.status)
        self.send_header("X-Request-ID", self.headers["X-Request-ID"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


def test_a_refusal_of_every_kind_of_request_is_raised_with_its_message(load):
    mixed = load("serve_mixed")
    server = LoopbackServer(FullQueue, None)
    server.start()
    try:
        for kind in mixed.KINDS:
            request = mixed.request(server.server_port, kind, "c1-r2", {"a": "b"})
            with pytest.raises(mixed.Mixed, match="queue is full"):
                asyncio.run(request)
    finally:
        server.stop()


@pytest.mark.parametrize("reply", ["{}", '{"choices": []}', '{"choices": null}', "[]", "{"])
@pytest.mark.parametrize("status", [200, 400])
def test_a_reply_of_another_form_counts_as_wrong(load, status, reply):
    mixed = load("serve_mixed")
    handler = type("Handler", (FullQueue,), {"status": status, "reply": reply.encode()})
    server = LoopbackServer(handler, None)
    server.start()
    try:
        worker = argparse.Namespace(port=server.server_port, rss_mb=lambda: 1.0)
        facts = asyncio.run(mixed.load_of(worker, 1, len(mixed.KINDS), {"a": "b"}))
    finally:
        server.stop()
    # A client that leaves reads only the first line: every reply with status 200 is right for it.
    right = facts["counts"].pop("left")
    assert right == (status == 200)
    assert not any(facts["counts"].values())
    assert len(facts["wrong"]) == len(mixed.KINDS) - right


def test_requests_that_end_before_a_stream_has_two_events_are_not_measured(load, monkeypatch):
    mixed = load("serve_mixed")
    stream = b"data: {}\n\ndata: [DONE]\n\n"
    chunk = b"%x\r\n%s\r\n" % (len(stream), stream)
    handler = type("Handler", (FullQueue,), {"status": 200, "reply": chunk})
    server = LoopbackServer(handler, None)
    server.start()
    monkeypatch.setattr(mixed, "attacks", lambda context: {"schema": {}})
    try:
        with pytest.raises(SystemExit, match=r"schema: its requests ended.*--attacks 10"):
            asyncio.run(mixed.gaps(server.server_port, 64, 1))
    finally:
        server.stop()


def test_every_kind_of_request_is_answered_rightly(load, tmp_path):
    pytest.importorskip("httpx", reason="httpx is not installed")
    from server_process import listening

    from bitnet import load as open_model

    mixed = load("serve_mixed")
    path = mixed.tiny_model(tmp_path)
    with open_model(path) as alone:
        expected = {text: alone.generate(text, max_tokens=mixed.TOKENS) for text in ("sea", "owl")}
    with listening(path, max_output_tokens=4 * mixed.TOKENS) as worker:
        server = argparse.Namespace(port=worker.port, rss_mb=lambda: 1.0)
        facts = asyncio.run(mixed.load_of(server, 2, len(mixed.KINDS), expected))
    assert facts["wrong"] == []
    assert set(facts["counts"].values()) == {2}


def test_requests_have_different_words_and_the_same_prompts_in_every_run(load):
    mixed = load("serve_mixed")
    names = [f"c{client}-r{turn}" for client in range(50) for turn in range(200)]
    words = {mixed.word_of(name) for name in names}
    assert len(words) == len(names)
    assert set("".join(words)) <= set(mixed.WRITABLE)
    # Prompts depend on the name alone, not on a random state.
    assert "".join(mixed.prompt_of(name, "abcd") for name in names[:12]) == "cacadbdbacca"


STREAM = b"".join(b"data: {}\n\n" for _ in range(3))


class WithoutPage(QuietHandler, BaseHTTPRequestHandler):
    """A server that is ready and writes streams, but has no ``/openapi.json``."""

    def do_GET(self):
        self.send_response(200 if self.path == "/health/ready" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(STREAM)))
        self.end_headers()
        self.wfile.write(STREAM)


def test_hostile_bodies_need_the_openapi_page_of_the_server(load, monkeypatch):
    pytest.importorskip("httpx", reason="httpx is not installed")
    hostile = load("serve_hostile")
    server = LoopbackServer(WithoutPage, None)
    server.start()
    worker = argparse.Namespace(poll=lambda: None, terminate=lambda: None, wait=lambda: None)
    monkeypatch.setattr(hostile.subprocess, "Popen", lambda *a, **k: worker)
    monkeypatch.setattr(hostile, "free_port", lambda: server.server_port)
    monkeypatch.setattr(sys, "argv", ["serve_hostile.py", "none.gguf"])
    try:
        with pytest.raises(SystemExit, match=r"404.*openapi\.json"):
            hostile.main()
    finally:
        server.stop()


# A fake worker: 2 s for each test, and 3 MB of memory when an empty line ends it.
WORKER = """
import json, sys
print(json.dumps({"load_s": 1.0}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 2.0} if line.strip() else {"peak_mb": 3.0}), flush=True)
    if not line.strip():
        break
"""


@pytest.fixture
def engine(load, tmp_path, monkeypatch):
    """A function that starts an engine of the program ``runtime``, with a fake worker."""
    runtime = load("runtime")
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(runtime, "WORKER", worker)
    return lambda: runtime.Engine("bitnet", sys.executable, tmp_path / "m.gguf", 1, 64)


def test_engines_are_ended_if_the_measurement_fails(load, engine):
    engines = {}

    def measure():
        with load("runtime").killed_at_last(engines):
            engines["first"] = engine()
            engines["second"] = engine()
            engines["absent"] = None
            assert engines["first"].seconds("pp128") == 2.0
            assert engines["second"].stop() == 3.0
            raise SystemExit("an engine died")

    with pytest.raises(SystemExit):
        measure()
    assert all(each.process.returncode is not None for each in engines.values() if each)


def test_an_engine_that_does_not_load_is_ended(load, engine, monkeypatch, tmp_path):
    runtime = load("runtime")
    (tmp_path / "worker.py").write_text("print('not JSON', flush=True); input()")
    processes = []
    popen = runtime.subprocess.Popen
    monkeypatch.setattr(
        runtime.subprocess,
        "Popen",
        lambda *a, **k: processes.append(popen(*a, **k)) or processes[0],
    )
    with pytest.raises(json.JSONDecodeError):
        engine()
    assert processes[0].returncode is not None


@pytest.mark.parametrize("program", ["runtime", "builds"])
def test_disturbed_measurements_are_counted_once_for_each_rate(load, engine, monkeypatch, program):
    runtime = load("runtime")
    disturbed = argparse.Namespace(share=lambda: 1.0)  # other processes use a whole core
    monkeypatch.setattr(runtime, "Others", lambda pids: disturbed)
    options = argparse.Namespace(turns=2, tries=1, minutes=1, wait_for=None)
    engines = {}
    with runtime.killed_at_last(engines):
        engines["bitnet"] = engine()
        # The fake worker takes 2 s for eight tokens of a prompt and for four that are generated.
        rates = load(program).measure_rates(engines, ["pp8", "tg4", "tg4@16"], options)
        assert rates == {"bitnet": {"pp8": [4.0] * 2, "tg4": [2.0] * 2, "tg4@16": [2.0] * 2}}
        assert engines["bitnet"].busy == 3 * 2  # three tests in two turns


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("runtime", ("model.gguf", "--only", "none"), "'none' is not here; there are: bitnet"),
        ("runtime", ("model.gguf", "--tests", "pp128,pq1"), "'pq1', expected tests such as pp128"),
        ("runtime", ("model.gguf", "--turns", "0"), "--turns: 0, expected 1 or more"),
        ("builds", ("model.gguf", "folder", "--tests", "pp"), "'pp', expected tests such as"),
        ("builds", ("model.gguf", "folder", "--tries", "0"), "--tries: 0, expected 1 or more"),
        ("ternary", ("model.gguf", "--tests", "pp512@4096"), "expected tests without a depth"),
        ("embeddings", ("work", "--vocabulary", "v", "--tests", "tg1@2"), "without a depth"),
        ("start", ("model.gguf", "--passes", "10"), "--passes: 10, expected 11 or more"),
        ("tokenizer", ("data", "--runs", "1"), "--runs: 1, expected 2 or more"),
        ("tokenizer", ("data", "--turns", "x"), "--turns: invalid"),
        ("serve_mixed", ("--clients", "0"), "--clients: 0, expected 1 or more"),
        ("machines", ("--add", "none.json", "--build", "b1"), "--build is b1, expected ENGINE="),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(
    load, monkeypatch, capsys, program, words, expected
):
    module = load(program)
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *words])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


# The part of a row that identifies it.
OURS = {"model": "m", "threads": 1, "engine": "bitnet"}


# Rates recorded before, rates of the new measurement, and the completed row.
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"turns": 5, "busy": 1, "pp128": 1.0}, {"turns": 3, "busy": 2, "pp512": 2.0},
         {"turns": 3, "busy": 3, "pp128": 1.0, "pp512": 2.0}),
        ({"pp128": 1.0}, {"turns": 3, "busy": 2, "pp512": 2.0}, {"pp128": 1.0, "pp512": 2.0}),
        ({"pp128": 1.0}, {"turns": 3, "busy": 2, "pp128": 2.0},
         {"turns": 3, "busy": 2, "pp128": 2.0}),
    ],
    ids=["both", "old rate of unknown turns", "all rates are new"],
)  # fmt: skip
def test_new_rates_are_added_to_the_row_of_a_machine(load, old, new, expected):
    machines = load("machines")
    entry = {"machine": "x", "date": "", "builds": {}}
    old_entry = entry | {"rows": [OURS | old]}
    new_entry = entry | {"rows": [OURS | new]}
    assert machines.complete_entry(new_entry, old_entry)["rows"] == [OURS | expected]


def test_every_recorded_machine_can_be_completed(load):
    machines = load("machines")
    for old in json.loads(machines.RECORDS.read_text(encoding="utf-8")):
        row = {name: old["rows"][0][name] for name in OURS}
        new = old | {"rows": [row | {"turns": 1, "busy": 0, "pp128": 1.0}]}
        assert len(machines.complete_entry(new, old)["rows"]) == len(old["rows"])


def test_peers_alone_have_rows_without_ratios(load):
    machines = load("machines")
    rows = [OURS | {"engine": "llama.cpp", "pp128": 1.0}]
    assert list(machines.ratios(rows)) == [(rows, {})]


def test_a_table_that_is_not_current_is_named(load, monkeypatch, tmp_path, capsys):
    machines = load("machines")
    (tmp_path / "machines.md").write_text("old")
    monkeypatch.setattr(machines, "TABLE", tmp_path / "machines.md")
    monkeypatch.setattr(sys, "argv", ["machines.py", "--check"])
    assert machines.main() == 1
    assert "benchmarks/machines.py" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "is_left_out"), [("bitnet", 0), ("bitnet q8", 0), ("llama", 1)])
def test_only_an_engine_of_others_may_fail_to_start(load, monkeypatch, tmp_path, name, is_left_out):
    runtime = load("runtime")
    monkeypatch.setattr(runtime, "WORKER", tmp_path / "none.py")
    entry = (sys.executable, "bitnet", "q8")
    if is_left_out:
        assert runtime.start_engine(name, entry, tmp_path, 1, 64) is None
    else:
        with pytest.raises(SystemExit):
            runtime.start_engine(name, entry, tmp_path, 1, 64)


def test_rates_are_compared_with_the_best_peer_of_the_same_kv_type(load):
    runtime = load("runtime")
    rates = {"bitnet f16": 30, "bitnet q8": 40, "llama.cpp f16": 20, "llama.cpp q8": 10,
             "mistral.rs": 5}  # fmt: skip
    medians = {name: {"pp128": rate} for name, rate in rates.items()}
    assert runtime.ratio_lines(medians, ["pp128"]) == [
        "| | | ours f16 / best peer | 1.50 | | |",
        "| | | ours q8 / best peer | 4.00 | | |",
    ]
    plain = {"bitnet": {"pp128": 30}, "llama.cpp": {"pp128": 20}}
    assert runtime.ratio_lines(plain, ["pp128"]) == ["| | | ours / best peer | 1.50 | | |"]
    assert runtime.ratio_lines({"bitnet": {"pp128": 30}}, ["pp128"]) == []


def test_every_folder_of_a_build_has_a_name(load):
    folders = [Path("/x/bitnet"), Path("/y/bitnet"), Path("/z"), Path("/z")]
    names = load("builds").names_of(folders)
    assert list(names) == ["/x/bitnet", "/y/bitnet", "z #1", "z #2"]
    assert list(names.values()) == folders


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("output", "Q6_K"), ("attn_v", "Q6_K"), ("ffn_down_exps", "Q6_K"), ("ffn_down", "Q6_K"),
     ("attn_output", "Q4_K"), ("attn_q", "Q4_K"), ("ffn_gate_exps", "Q4_K")],
)  # fmt: skip
def test_tensors_of_a_mixture_have_the_encodings_of_published_files(load, name, encoding):
    encoding_of = load("synthetic_shapes").encoding_of
    assert encoding_of("Q4_K_M", name, -1 if name == "output" else 0) == encoding
    assert encoding_of("Q8_0", name, 0) == "Q8_0"
    assert encoding_of("MXFP4", name, 0) == ("MXFP4" if name.endswith("_exps") else "Q8_0")


def test_there_are_as_many_texts_of_prose_as_of_code(load, tmp_path):
    trees = load("draft_trees")
    book = tmp_path / "book.xz"
    book.write_bytes(lzma.compress(b"".join(b"%09d " % number for number in range(10_000))))
    texts = dict(trees.beginnings(book))
    assert len(set(texts["prose"])) == len(texts["code"]) == trees.TEXTS
    assert {len(text) for text in texts["prose"]} == {6000}


def test_a_saved_state_belongs_to_one_model_and_one_build(load, tmp_path):
    state_name = load("peer_engine").state_name
    model = tmp_path / "model.gguf"
    library = tmp_path / "libllama.so"
    other_library = tmp_path / "libggml.so"
    model.write_bytes(bytes(10_000_000))
    library.write_bytes(b"a")
    other_library.write_bytes(b"a")
    names = [state_name(library, model, "f16"), state_name(library, model, "q8")]
    assert state_name(library, model, "f16") == names[0]
    # A change at the beginning, in the middle or at the end of a large model changes the name.
    content = bytearray(10_000_000)
    for at in (0, len(content) // 2, len(content) - 1):
        content[at] = 1
        model.write_bytes(content)
        names.append(state_name(library, model, "f16"))
    for path in (library, other_library):
        os.utime(path, ns=(1, 1))
        names.append(state_name(library, model, "f16"))
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("read_gb_s", [10.0, 400.0])
def test_a_roofline_is_drawn_with_its_memory_line_only_within_the_range(load, read_gb_s):
    point = {"shape": [6912, 2560], "layout": "TERNARY", "level": "avx2", "tokens": 1,
             "gmac_s": 100.0, "read_gb_s": read_gb_s}  # fmt: skip
    points = [point | {"threads": threads} for threads in (1, 2)]
    picture = load("ternary_kernels").roofline({"measurements": points})
    assert ("memory, 2" in picture) is (read_gb_s < 250)
