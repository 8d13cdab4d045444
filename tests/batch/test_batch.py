"""Batches: rows of a file are answered into another one, also after errors and kills."""

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
# A row without an id gets the number of its line as one.
ROWS = [
    {"id": "a", "prompt": "ab", "max_tokens": 5},
    {"prompt": "cde"},
    {"id": 7, "messages": [{"role": "user", "content": "f"}], "temperature": 9.0, "seed": 3},
    {"id": "stop", "prompt": "ab", "stop": ["b"]},
]
# A line of the input, and a part of the error that it gets instead of an answer.
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


def answers_by_id(path):
    """Answers in the file *path*, by the id of their row."""
    return {facts["id"]: facts for facts in map(json.loads, path.read_text().splitlines())}


def test_every_row_has_the_answer_that_it_has_alone(bitnet, model_path, source, tmp_path):
    target = tmp_path / "deep" / "out.jsonl"
    done = bitnet("batch", "--model", model_path, "--input", source, "--output", target,
                  "--max-tokens", 12, "--json")  # fmt: skip
    assert json.loads(done.out) == {"rows": 4, "answered_before": 0, "failed": 0}
    by_id = answers_by_id(target)
    assert set(by_id) == {"a", "2", "7", "stop"}
    with load(model_path) as model:
        assert by_id["a"]["text"] == model.generate("ab", max_tokens=5)
        assert by_id["2"]["text"] == model.generate("cde", max_tokens=12)
        assert by_id["stop"]["text"] == model.generate("ab", max_tokens=12, stop=["b"])
    assert by_id["a"]["finish_reason"] == "length"
    assert by_id["a"]["tokens"] == 5


def test_a_row_that_cannot_be_answered_has_an_error_and_affects_no_other_row(
    bitnet, model_path, source, tmp_path
):
    source.write_text(
        "\n".join(text for text, _ in BROKEN) + "\n" + '{"id": "good", "prompt": "ab"}\n'
    )
    target = tmp_path / "out.jsonl"
    done = bitnet("batch", "--model", model_path, "--input", source, "--output", target, "--json")
    by_id = answers_by_id(target)
    for number, (text, words) in enumerate(BROKEN, 1):
        assert words in by_id[str(number)].get("error", ""), text
    assert "error" not in by_id["good"]
    assert json.loads(done.out)["failed"] == sum("error" in facts for facts in by_id.values())


def test_rows_end_at_newlines_and_not_at_other_line_separators_of_unicode(
    bitnet, model_path, tmp_path
):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_bytes(
        '{"id": "a\u2028", "prompt": "a", "stop": ["\x85"], "max_tokens": 2}\r\n'
        '{"id": "\\ud800", "prompt": "b", "max_tokens": 2}\r\n'.encode()
    )
    words = ("batch", "--model", model_path, "--input", source, "--output", target, "--json")
    for before in (0, 2):  # rows answered before: none in the first run, all in the second
        done = bitnet(*words)
        assert json.loads(done.out) == {"rows": 2, "answered_before": before, "failed": 0}
    written = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert {facts["id"] for facts in written} == {"a\u2028", "\ud800"}


def test_a_folder_for_the_answers_is_refused(bitnet, source, tmp_path):
    done = bitnet("batch", "--input", source, "--output", tmp_path)
    assert done.code == 2
    assert "is a folder" in done.err
    inside_a_file = bitnet("batch", "--input", source, "--output", source / "out.jsonl")
    assert inside_a_file.code == 2
    assert "a file is where a folder belongs" in inside_a_file.err


def test_options_that_processes_of_ray_do_not_get_are_refused(bitnet, source, tmp_path):
    for option, value in (("--tokenizer", "t.json"), ("--context", "32"), ("--i2-s-layout", "arm")):
        target = tmp_path / "out.jsonl"
        done = bitnet("batch", "--input", source, "--output", target, "--engine", "ray",
                      option, value)  # fmt: skip
        assert done.code == 2
        assert f"{option} is not known to the processes" in done.err
        assert not target.exists()


def test_options_of_ray_are_refused_without_it(bitnet, source, tmp_path):
    for option, value in (("--actors", "4"), ("--address", "auto")):
        done = bitnet("batch", "--input", source, "--output", tmp_path / "o.jsonl", option, value)
        assert done.code == 2
        assert f"{option} needs --engine ray" in done.err


def test_answered_rows_are_not_computed_again_after_a_run_was_cut_short(
    model_path, source, tmp_path
):
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
        # A killed run may leave a part of a line, which is dropped.
        target.write_bytes(before + b'{"id": "half of a li')
        with BatchFiles(source, target) as files:
            assert files.done == 2
            remaining = list(files.remaining_rows())
            assert len(remaining) == 2
            for row, facts in answers(remaining, model, max_tokens=4):
                files.write(row, facts)
    assert target.read_bytes().startswith(before)
    assert set(answers_by_id(target)) == {"a", "2", "7", "stop"}
    with BatchFiles(source, target) as files:
        assert list(files.remaining_rows()) == []


def test_failed_rows_are_answered_again_only_with_retry_errors(tmp_path):
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


def test_an_output_with_other_content_is_refused_and_not_changed(tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_text('{"id": 1, "prompt": "a"}\n')
    with BatchFiles(source, target) as files:
        files.write(next(files.remaining_rows()), {"text": "y"})
    content = target.read_bytes()
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
    target.write_bytes(content)
    with pytest.raises(UsageError, match="two rows have the id '1'"):
        BatchFiles(source, target)
    assert target.read_bytes() == content


@pytest.mark.parametrize(
    "first",
    ["not json", "[]", '{"id": [1], "prompt": "a"}', '{"prompt": ""}', '{"prompt": "a"}'],
)
def test_a_line_without_an_id_never_takes_the_id_that_another_row_states(first, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    stated = [{"id": 1, "prompt": "x"}, {"id": "line 1", "prompt": "y"}]
    source.write_text("\n".join([first, *map(json.dumps, stated)]))
    with BatchFiles(source, target) as files:
        rows = list(files.remaining_rows())
        # "1" and "line 1" are stated by other rows, so the first line gets a third name.
        assert [row.id for row in rows] == ["line line 1", "1", "line 1"]
        assert [row.problem for row in rows[1:]] == ["", ""]
        for row in rows:
            files.write(row, {"error": row.problem} if row.problem else {"text": "z"})
    with BatchFiles(source, target) as files:
        assert files.done == 3


DAMAGED_OUTPUTS = {
    "nested": b'{"id": "a", "row": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "nested, unfinished": b'{"id": "a", "row": ' + b"[" * 200_000,
    "digits": b'{"id": "a", "row": "b", "tokens": 1' + b"0" * 5000 + b"}\n",
    "half a surrogate pair": '{"id": "\ud800", "row": "b"}\n'.encode(errors="surrogatepass"),
    "a list": b'{"id": "a", "row": "b"}\n[]\n',
}


@pytest.mark.parametrize("content", DAMAGED_OUTPUTS.values(), ids=DAMAGED_OUTPUTS)
def test_a_file_of_something_other_than_answers_is_refused_and_kept(content, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_text('{"id": "a", "prompt": "a"}\n')
    target.write_bytes(content)
    with pytest.raises(UsageError, match="contains something other than answers"):
        BatchFiles(source, target)
    assert target.read_bytes() == content


def test_a_run_continues_where_a_killed_one_has_stopped(model_path, tmp_path):
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
    whole_lines = before[: before.rfind(b"\n") + 1]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["answered_before"] == whole_lines.count(b"\n")
    assert target.read_bytes().startswith(whole_lines)
    by_id = answers_by_id(target)
    assert len(by_id) == 200
    # All rows have the same prompt and are greedy.
    assert len({facts["text"] for facts in by_id.values()}) == 1


def test_a_second_run_with_the_same_output_is_refused_and_leaves_no_file(
    bitnet, model_path, source, tmp_path
):
    folder = tmp_path / "answers"
    folder.mkdir()
    target = folder / "out.jsonl"
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    words = ["batch", "--model", str(model_path), "--output"]
    # It holds the lock of the output until stdin, with its rows, has ended.
    with subprocess.Popen(
        [sys.executable, "-m", "bitnet", *words, str(target), "--input", "-"],
        stdin=subprocess.PIPE,
    ) as first:
        lock = folder / ".out.jsonl.bitnet-lock"
        until(lambda: locks.is_held(lock), first)
        for name in (target, link):
            done = bitnet(*words, name, "--input", source)
            assert done.code == 21
            assert f"{name} is held by process {first.pid} on " in done.err
            assert "choose another --output" in done.err
        assert not target.exists()
        first.communicate(source.read_bytes())
    assert first.returncode == 0
    assert set(answers_by_id(target)) == {"a", "2", "7", "stop"}
    assert [path.name for path in folder.iterdir()] == ["out.jsonl"]


def test_the_next_run_removes_the_lock_file_of_a_killed_one(bitnet, model_path, source, tmp_path):
    folder = tmp_path / "answers"
    folder.mkdir()
    target = folder / "out.jsonl"
    words = ["batch", "--model", str(model_path), "--output", str(target), "--input"]
    target.write_text('{"id": "half')
    lock = folder / ".out.jsonl.bitnet-lock"
    command = [sys.executable, "-m", "bitnet", *words, "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as killed:
        until(lambda: locks.is_held(lock), killed)
        killed.kill()
    assert lock.exists()
    done = bitnet(*words, source)
    assert done.code == 0, done.err
    assert set(answers_by_id(target)) == {"a", "2", "7", "stop"}
    assert [path.name for path in folder.iterdir()] == ["out.jsonl"]


def test_answers_written_before_the_disk_was_full_are_kept(model_path, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    rows = [{"id": n, "prompt": "ab", "max_tokens": 9} for n in range(40)]
    source.write_text("\n".join(map(json.dumps, rows)))
    words = ["-m", "bitnet", "batch", "--model", str(model_path), "--input", str(source)]
    words += ["--output", str(target)]
    # A limit of 2,000 bytes on files stands for a full disk; without SIGXFSZ, writing fails.
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
    assert len(answers_by_id(target)) == 40


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"actors": 0}, {"address": "auto"}])
def test_bad_options_are_refused(options):
    with pytest.raises(UsageError):
        BatchOptions(**options)


def test_rows_with_different_prompts_have_different_digests():
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
    assert set(answers_by_id(target)) == {"a"}


def test_ordered_answers_are_in_the_order_of_the_rows(bitnet, model_path, tmp_path):
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    lengths = [30, 1, 5, 2, 20, 1]
    rows = [{"id": n, "prompt": "ab", "max_tokens": count} for n, count in enumerate(lengths)]
    source.write_text("\n".join(map(json.dumps, rows)))
    words = ("batch", "--model", model_path, "--input", source, "--output", target)
    assert bitnet(*words, "--ordered").code == 0
    assert list(answers_by_id(target)) == [str(n) for n in range(6)]
    free = tmp_path / "free.jsonl"  # the same rows without --ordered
    assert bitnet(*words[:-1], free).code == 0
    assert next(iter(answers_by_id(free))) != "0"  # short ones end first
    assert answers_by_id(free) == answers_by_id(target)


def test_an_answer_that_is_early_waits_for_those_before_it():
    rows = [BatchRow(str(n), "") for n in range(4)]
    finished = iter([(rows[n], {"n": n}) for n in (2, 0, 3, 1)])  # the order in which they end
    ordered = in_order(rows, finished)
    assert [facts["n"] for _, facts in ordered] == [0, 1, 2, 3]


def test_rows_with_schemas_tools_and_log_probabilities_are_answered(tmp_path):
    pytest.importorskip("llguidance")
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": {"a": 1}}}}
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300}
    choice = {"type": "function", "function": {"name": "weather"}}
    rows = [
        {"id": "schema", "response_format": schema, "logprobs": 1, **ask},
        {"id": "any", "response_format": {"type": "text"}, "prompt": "a", "max_tokens": 1},
        {"id": "tool", "tools": [WEATHER], "tool_choice": choice, **ask},
        {"id": "wrong", "response_format": {"type": "xml"}, **ask},
        {"id": "both", "response_format": schema, "json_schema": {}, **ask},
    ]
    parsed = [BatchRow.parse(json.dumps(row), number) for number, row in enumerate(rows)]
    with load(tool_gguf(tmp_path / "tools.gguf")) as model:
        by_id = {row.id: facts for row, facts in answers(parsed, model)}
    assert json.loads(by_id["schema"]["text"]) == {"a": 1}
    spelled = "".join(token["token"] for token in by_id["schema"]["logprobs"])
    assert spelled == by_id["schema"]["text"]
    assert all(len(token["top"]) == 1 for token in by_id["schema"]["logprobs"])
    assert "logprobs" not in by_id["any"]
    (call,) = by_id["tool"]["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])["city"] in CITIES) == ("weather", True)
    assert "response_format is none of text, json_object and json_schema" in by_id["wrong"]["error"]
    assert "both given" in by_id["both"]["error"]


@pytest.mark.parametrize(
    # Cores of each node, number of actors, and cores of an actor.
    ("nodes", "actors", "cores"),
    [([8, 8], 1, 8), ([8, 8], 2, 8), ([8, 8], 3, 4), ([16, 2], 3, 5), ([2], 4, 1), ([], 1, 1)],
)
def test_an_actor_gets_the_most_cores_with_which_all_actors_fit_on_nodes(nodes, actors, cores):
    assert cores_per_actor(nodes, actors) == cores
