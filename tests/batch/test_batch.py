"""Rows of a file answered into another, whole, broken and killed in between."""

import json
import signal
import subprocess
import sys

import pytest
from tiny_models import tiny_gguf
from tool_models import CITIES, WEATHER, tool_gguf
from waiting import until

from bitnet import load
from bitnet.base import locks
from bitnet.base.errors import UsageError
from bitnet.batch.batch_options import BatchOptions
from bitnet.batch.files import BatchFiles
from bitnet.batch.ray_engine import cores_per_actor
from bitnet.batch.rows import BatchRow, answers, in_order

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
ROWS = [
    {"id": "a", "prompt": "ab", "max_tokens": 5},
    {"prompt": "cde"},
    {"id": 7, "messages": [{"role": "user", "content": "f"}], "temperature": 9.0, "seed": 3},
    {"id": "stop", "prompt": "ab", "stop": ["b"]},
]
BROKEN = [
    ("{", "not JSON"),
    ("[]", "not a JSON object"),
    ('{"prompt": 1}', "prompt: expected a text"),
    ('{"promt": "a"}', "promt: this field is not known here"),
    (
        '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
        "either prompt or messages",
    ),
    ('{"prompt": "a", "temperature": -1}', "temperature is -1"),
    ('{"prompt": "a", "max_tokens": 1.5}', "max_tokens: expected a whole number"),
    ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
    ('{"prompt": "a", "stop": [1]}', "stop.0: expected a text"),
    ('{"prompt": ""}', "the prompt is empty"),
    ('{"prompt": "' + "a" * 300 + '"}', "the context holds 64"),
    ('{"messages": [{"role": 3}]}', "messages.0.role: expected a text"),
    ('{"messages": [{"role": "user"}]}', "messages.0: content is missing"),
    ('{"messages": [{"role": "user", "content": 1}]}', "messages.0.content: expected a text"),
    ('{"messages": []}', "messages: expected at least 1"),
    ('{"prompt": "a", "temperature": 1' + "0" * 400 + "}", "expected 0 to 100"),
    ('{"prompt": "a", "seed": 1' + "0" * 5000 + "}", "not JSON"),
    ('{"id": null, "prompt": "a"}', "id is neither"),
    ('{"id": true, "prompt": "a"}', "id is neither"),
]


@pytest.fixture
def model_path(tmp_path):
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return path


def lines(path):
    return {facts["id"]: facts for facts in map(json.loads, path.read_text().splitlines())}


def test_every_row_gets_the_answer_it_gets_alone(bitnet, model_path, source, tmp_path):
    target = tmp_path / "deep" / "out.jsonl"
    done = bitnet("batch", "--model", model_path, "--input", source, "--output", target,
                  "--max-tokens", 12, "--json")  # fmt: skip
    assert json.loads(done.out) == {"rows": 4, "answered_before": 0, "failed": 0}
    found = lines(target)
    assert set(found) == {"a", "2", "7", "stop"}
    with load(model_path) as model:
        assert found["a"]["text"] == model.generate("ab", max_tokens=5)
        assert found["2"]["text"] == model.generate("cde", max_tokens=12)
        assert found["stop"]["text"] == model.generate("ab", max_tokens=12, stop=["b"])
    assert found["a"]["finish_reason"] == "length"
    assert found["a"]["tokens"] == 5


def test_a_row_that_cannot_be_answered_says_why_and_harms_no_other(
    bitnet, model_path, source, tmp_path
):
    source.write_text(
        "\n".join(text for text, _ in BROKEN) + "\n" + '{"id": "good", "prompt": "ab"}\n'
    )
    target = tmp_path / "out.jsonl"
    done = bitnet("batch", "--model", model_path, "--input", source, "--output", target, "--json")
    found = lines(target)
    for number, (text, words) in enumerate(BROKEN, 1):
        assert words in found[str(number)].get("error", ""), text
    assert "error" not in found["good"]
    assert json.loads(done.out)["failed"] == sum("error" in facts for facts in found.values())


def test_rows_end_where_lines_do_and_nowhere_else(bitnet, model_path, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_bytes(
        '{"id": "a\u2028", "prompt": "a", "stop": ["\x85"], "max_tokens": 2}\r\n'
        '{"id": "\\ud800", "prompt": "b", "max_tokens": 2}\r\n'.encode()
    )
    words = ("batch", "--model", model_path, "--input", source, "--output", target, "--json")
    for before in (0, 2):
        done = bitnet(*words)
        assert json.loads(done.out) == {"rows": 2, "answered_before": before, "failed": 0}
    found = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert {facts["id"] for facts in found} == {"a\u2028", "\ud800"}


def test_a_folder_for_the_answers_is_refused(bitnet, source, tmp_path):
    done = bitnet("batch", "--input", source, "--output", tmp_path)
    assert done.code == 2
    assert "is a folder" in done.err
    inside_a_file = bitnet("batch", "--input", source, "--output", source / "out.jsonl")
    assert inside_a_file.code == 2
    assert "a file is where a folder belongs" in inside_a_file.err


def test_what_processes_of_ray_do_not_know_is_refused(bitnet, source, tmp_path):
    for option, value in (("--tokenizer", "t.json"), ("--context", "32"), ("--i2-s-layout", "arm")):
        target = tmp_path / "out.jsonl"
        done = bitnet("batch", "--input", source, "--output", target, "--engine", "ray",
                      option, value)  # fmt: skip
        assert done.code == 2
        assert f"{option} is not known to the processes" in done.err
        assert not target.exists()


def test_what_is_answered_is_never_computed_again(model_path, source, tmp_path):
    target = tmp_path / "out.jsonl"
    with load(model_path) as model:
        with BatchFiles(source, target) as files:
            for count, (row, facts) in enumerate(
                answers(files.remaining_rows(), model, max_tokens=4)
            ):
                files.write(row, facts)
                if count == 1:
                    break
        before = target.read_bytes()
        target.write_bytes(before + b'{"id": "half of a li')
        with BatchFiles(source, target) as files:
            assert files.done == 2
            rest = list(files.remaining_rows())
            assert len(rest) == 2
            for row, facts in answers(rest, model, max_tokens=4):
                files.write(row, facts)
    assert target.read_bytes().startswith(before)
    assert set(lines(target)) == {"a", "2", "7", "stop"}
    with BatchFiles(source, target) as files:
        assert list(files.remaining_rows()) == []


def test_failed_rows_are_answered_again_when_asked_to(tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_text('{"id": 1, "prompt": "a"}\n{"id": 2, "prompt": "b"}\n')
    with BatchFiles(source, target) as files:
        first, second = files.remaining_rows()
        files.write(first, {"error": "x"})
        files.write(second, {"text": "y"})
    with BatchFiles(source, target) as files:
        assert (files.done, len(files.errors)) == (2, 1)
    with BatchFiles(source, target, retry_errors=True) as files:
        (row,) = files.remaining_rows()
        assert (row.id, len(files.errors)) == ("1", 0)
        files.write(row, {"text": "z"})
    with BatchFiles(source, target) as files:
        assert (files.done, len(files.errors)) == (2, 0)


def test_answers_to_other_rows_are_not_mixed_with_these(tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_text('{"id": 1, "prompt": "a"}\n')
    with BatchFiles(source, target) as files:
        files.write(next(files.remaining_rows()), {"text": "y"})
    kept = target.read_bytes()
    source.write_text('{"id": 1, "prompt": "other"}\n')
    with pytest.raises(UsageError, match="another row '1'"):
        BatchFiles(source, target)
    target.write_text("my diary\n")
    with pytest.raises(UsageError, match="something other than answers"):
        BatchFiles(source, target)
    assert target.read_text() == "my diary\n"
    target.write_text('{"id": ["of", "another", "program"], "row": ""}\n')
    with pytest.raises(UsageError, match="something other than answers"):
        BatchFiles(source, target)
    source.write_text('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n')
    target.write_bytes(kept)
    with pytest.raises(UsageError, match="two rows have the id '1'"):
        BatchFiles(source, target)
    assert target.read_bytes() == kept


@pytest.mark.parametrize(
    "first",
    ["not json", "[]", '{"id": [1], "prompt": "a"}', '{"prompt": ""}', '{"prompt": "a"}'],
)
def test_a_line_without_an_id_leaves_every_id_to_the_row_that_states_it(first, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    stated = [{"id": 1, "prompt": "x"}, {"id": "line 1", "prompt": "y"}]
    source.write_text("\n".join([first, *map(json.dumps, stated)]))
    with BatchFiles(source, target) as files:
        rows = list(files.remaining_rows())
        assert [row.id for row in rows] == ["line line 1", "1", "line 1"]
        assert [row.problem for row in rows[1:]] == ["", ""]
        for row in rows:
            files.write(row, {"error": row.problem} if row.problem else {"text": "z"})
    with BatchFiles(source, target) as files:
        assert files.done == 3


NOT_ANSWERS = {
    "nested": b'{"id": "a", "row": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "nested, unfinished": b'{"id": "a", "row": ' + b"[" * 200_000,
    "digits": b'{"id": "a", "row": "b", "tokens": 1' + b"0" * 5000 + b"}\n",
    "half a surrogate pair": '{"id": "\ud800", "row": "b"}\n'.encode(errors="surrogatepass"),
    "a list": b'{"id": "a", "row": "b"}\n[]\n',
}


@pytest.mark.parametrize("content", NOT_ANSWERS.values(), ids=NOT_ANSWERS)
def test_a_file_of_something_other_than_answers_is_refused_and_kept(content, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_text('{"id": "a", "prompt": "a"}\n')
    target.write_bytes(content)
    with pytest.raises(UsageError, match="contains something other than answers"):
        BatchFiles(source, target)
    assert target.read_bytes() == content


def test_a_killed_run_goes_on(model_path, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    rows = [{"id": n, "prompt": "ab", "max_tokens": 40, "seed": n} for n in range(200)]
    source.write_text("\n".join(map(json.dumps, rows)))
    words = [sys.executable, "-m", "bitnet", "batch", "--model", str(model_path), "--input",
             str(source), "--output", str(target)]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: target.exists() and target.stat().st_size, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = target.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["answered_before"] == whole.count(b"\n")
    assert target.read_bytes().startswith(whole)
    found = lines(target)
    assert len(found) == 200
    assert len({facts["text"] for facts in found.values()}) == 1


def test_two_runs_do_not_write_the_same_file_and_leave_no_other(
    bitnet, model_path, source, tmp_path
):
    folder = tmp_path / "answers"
    folder.mkdir()
    target = folder / "out.jsonl"
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    words = ["batch", "--model", str(model_path), "--output"]
    # It holds the file until its rows, on stdin, have come.
    first = subprocess.Popen(
        [sys.executable, "-m", "bitnet", *words, str(target), "--input", "-"],
        stdin=subprocess.PIPE,
    )
    lock = folder / ".out.jsonl.bitnet-lock"
    until(lambda: locks.is_held(lock), first)  # written once it is held
    for name in (target, link):
        done = bitnet(*words, name, "--input", source)
        assert done.code == 21
        assert f"{name} is held by process {first.pid} on " in done.err
        assert "choose another --output" in done.err
    assert not target.exists()
    first.communicate(source.read_bytes())
    assert first.returncode == 0
    assert set(lines(target)) == {"a", "2", "7", "stop"}
    assert [path.name for path in folder.iterdir()] == ["out.jsonl"]


def test_what_a_killed_run_leaves_goes_with_the_next_one(bitnet, model_path, source, tmp_path):
    folder = tmp_path / "answers"
    folder.mkdir()
    target = folder / "out.jsonl"
    words = ["batch", "--model", str(model_path), "--output", str(target), "--input"]
    target.write_text('{"id": "half')
    killed = subprocess.Popen([sys.executable, "-m", "bitnet", *words, "-"], stdin=subprocess.PIPE)
    lock = folder / ".out.jsonl.bitnet-lock"
    until(lambda: locks.is_held(lock), killed)  # written once it is held
    killed.kill()
    killed.communicate()
    assert lock.exists()
    done = bitnet(*words, source)
    assert done.code == 0, done.err
    assert set(lines(target)) == {"a", "2", "7", "stop"}
    assert [path.name for path in folder.iterdir()] == ["out.jsonl"]


def test_when_the_disk_is_full_what_was_written_counts(model_path, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    rows = [{"id": n, "prompt": "ab", "max_tokens": 9} for n in range(40)]
    source.write_text("\n".join(map(json.dumps, rows)))
    words = ["-m", "bitnet", "batch", "--model", str(model_path), "--input", str(source)]
    words += ["--output", str(target)]
    limited = (
        "import resource, runpy, signal, sys;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        f"sys.argv = {words[1:]!r};"
        "runpy.run_module('bitnet', run_name='__main__', alter_sys=True)"
    )
    full = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True)
    assert full.returncode == 10, full.stderr
    assert 0 < target.stat().st_size <= 2000
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    assert len(lines(target)) == 40


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"actors": 0}, {"address": "auto"}])
def test_bad_options_are_refused(options):
    with pytest.raises(UsageError):
        BatchOptions(**options)


def test_the_digest_of_a_row_is_of_all_of_it():
    assert (
        BatchRow.parse('{"prompt": "a"}', 1).digest != BatchRow.parse('{"prompt": "b"}', 1).digest
    )


def test_rows_that_failed_are_named_and_have_an_exit_code_of_their_own(
    bitnet, model_path, source, tmp_path
):
    target = tmp_path / "out.jsonl"
    source.write_text('{"id": "x", "prompt": ""}\n{"id": "good", "prompt": "ab"}\n')
    words = ("batch", "--model", model_path, "--input", source, "--output", target)
    for _ in range(2):  # a row that failed before still failed
        done = bitnet(*words)
        assert done.code == 24
        assert "row 'x': the prompt is empty" in done.err
        assert "1 of 2 rows failed: 'x'" in done.err
        assert "--retry-errors" in done.err
    source.write_text('{"id": "good", "prompt": "ab"}\n')
    target.write_text("".join(one for one in target.read_text().splitlines(True) if "good" in one))
    assert bitnet(*words).code == 0


def test_rows_come_from_stdin(model_path, tmp_path):
    target = tmp_path / "out.jsonl"
    words = [sys.executable, "-m", "bitnet", "batch", "--model", str(model_path), "--input", "-",
             "--output", str(target), "--json"]  # fmt: skip
    rows = '{"id": "a", "prompt": "ab", "max_tokens": 2}\n'
    for before in (0, 1):
        done = subprocess.run(words, input=rows, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["answered_before"] == before
    assert set(lines(target)) == {"a"}


def test_ordered_answers_are_in_the_order_of_the_rows(bitnet, model_path, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    lengths = [30, 1, 5, 2, 20, 1]
    rows = [{"id": n, "prompt": "ab", "max_tokens": count} for n, count in enumerate(lengths)]
    source.write_text("\n".join(map(json.dumps, rows)))
    words = ("batch", "--model", model_path, "--input", source, "--output", target)
    assert bitnet(*words, "--ordered").code == 0
    assert list(lines(target)) == [str(n) for n in range(6)]
    free = tmp_path / "free.jsonl"
    assert bitnet(*words[:-1], free).code == 0
    assert next(iter(lines(free))) != "0"  # short ones end first
    assert lines(free) == lines(target)


def test_an_answer_that_is_early_waits_for_those_before_it():
    rows = [BatchRow(str(n), "") for n in range(4)]
    finished = iter([(rows[n], {"n": n}) for n in (2, 0, 3, 1)])
    found = in_order(rows, finished)
    assert [facts["n"] for _, facts in found] == [0, 1, 2, 3]


def test_schemas_tools_and_log_probabilities_are_done(tmp_path):
    pytest.importorskip("llguidance")
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": {"a": 1}}}}
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300}
    named = {"type": "function", "function": {"name": "weather"}}
    rows = [
        {"id": "schema", "response_format": schema, "logprobs": 1, **ask},
        {"id": "any", "response_format": {"type": "text"}, "prompt": "a", "max_tokens": 1},
        {"id": "tool", "tools": [WEATHER], "tool_choice": named, **ask},
        {"id": "wrong", "response_format": {"type": "xml"}, **ask},
        {"id": "both", "response_format": schema, "json_schema": {}, **ask},
    ]
    parsed = [BatchRow.parse(json.dumps(row), number) for number, row in enumerate(rows)]
    with load(tool_gguf(tmp_path / "tools.gguf")) as model:
        found = {row.id: facts for row, facts in answers(parsed, model)}
    assert json.loads(found["schema"]["text"]) == {"a": 1}
    said = "".join(token["token"] for token in found["schema"]["logprobs"])
    assert said == found["schema"]["text"]
    assert all(len(token["top"]) == 1 for token in found["schema"]["logprobs"])
    assert "logprobs" not in found["any"]
    (call,) = found["tool"]["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])["city"] in CITIES) == ("weather", True)
    assert "response_format is none of text, json_object and json_schema" in found["wrong"]["error"]
    assert "both given" in found["both"]["error"]


@pytest.mark.parametrize(
    ("nodes", "actors", "cores"),
    [([8, 8], 1, 8), ([8, 8], 2, 8), ([8, 8], 3, 4), ([16, 2], 3, 5), ([2], 4, 1), ([], 1, 1)],
)
def test_an_actor_on_a_cluster_has_cores_of_one_node(nodes, actors, cores):
    assert cores_per_actor(nodes, actors) == cores
