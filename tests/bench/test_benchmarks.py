"""The programs of ``benchmarks/``: they start, end what they started, and count what they say."""

import argparse
import asyncio
import importlib
import itertools
import json
import lzma
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
def test_every_program_finds_what_it_imports(load, name):
    try:
        assert load(name).__doc__
    except ModuleNotFoundError as error:
        if error.name not in OF_EXTRAS:
            raise
        pytest.skip(f"needs {error.name}")


def test_the_savings_of_the_store_are_measured(load):
    facts = load("download").measure_store(1)
    assert facts["transfer"] == pytest.approx(1, abs=0.01)
    assert 0.1 < facts["rest_transfer"] < 0.2


@pytest.mark.parametrize("requests", [1, 4, 30])
def test_no_prompt_of_the_rates_begins_like_one_before(load, requests):
    serve = load("serve")
    options = argparse.Namespace(turns=5, turn_requests=requests)
    turns = list(serve.turns_of(options))
    assert [(turn, clients) for turn, clients, _ in turns] == [
        *itertools.product(range(6), (1, serve.SLOTS))
    ]
    assert [len(prompts) for _, _, prompts in turns[:2]] == [requests, 8 * requests]
    numbers = [prompt.partition(".")[0] for _, _, prompts in turns for prompt in prompts]
    assert len(set(numbers)) == len(numbers)


def test_requests_without_an_answer_are_lost(load):
    serve = load("serve")
    lost = []
    replies = asyncio.run(serve.load_of(free_port(), 2, ["a", "b", "c"], 1, lost=lost))
    assert (replies, len(lost)) == ([], 3)
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(serve.load_of(free_port(), 2, ["a"], 1))


class FullQueue(QuietHandler, BaseHTTPRequestHandler):
    """Refuses every request, as a server whose queue is full."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"error": {"message": "the queue is full", "param": null}}'
        self.send_response(503)
        self.send_header("X-Request-ID", self.headers["X-Request-ID"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


def test_every_kind_of_request_can_be_refused(load):
    mixed = load("serve_mixed")
    server = LoopbackServer(FullQueue, None)
    server.start()
    try:
        for kind in mixed.KINDS:
            request = mixed.request(server.server_port, kind, "c1-r2", {"a": "b"})
            with pytest.raises(mixed.Mixed, match=r"queue is full|None, expected"):
                asyncio.run(request)
    finally:
        server.stop()


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


def test_engines_end_with_the_measurement_that_fails(load, engine):
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


def test_an_engine_that_does_not_load_ends(load, engine, monkeypatch, tmp_path):
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


@pytest.mark.parametrize(("name", "is_left_out"), [("bitnet", 0), ("bitnet q8", 0), ("llama", 1)])
def test_only_a_peer_is_left_out(load, monkeypatch, tmp_path, name, is_left_out):
    runtime = load("runtime")
    monkeypatch.setattr(runtime, "WORKER", tmp_path / "none.py")
    entry = (sys.executable, "bitnet", "q8")
    if is_left_out:
        assert runtime.start_engine(name, entry, tmp_path, 1, 64) is None
    else:
        with pytest.raises(SystemExit):
            runtime.start_engine(name, entry, tmp_path, 1, 64)


def test_each_form_of_keys_is_compared_with_the_same_form(load):
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
def test_a_mixture_has_the_types_of_published_files(load, name, encoding):
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


@pytest.mark.parametrize("read_gb_s", [10.0, 400.0])
def test_a_picture_of_any_memory_can_be_drawn(load, read_gb_s):
    point = {"shape": [6912, 2560], "layout": "TERNARY", "level": "avx2", "tokens": 1,
             "gmac_s": 100.0, "read_gb_s": read_gb_s}  # fmt: skip
    points = [point | {"threads": threads} for threads in (1, 2)]
    picture = load("ternary_kernels").roofline({"measurements": points})
    assert ("memory, 2" in picture) is (read_gb_s < 250)
