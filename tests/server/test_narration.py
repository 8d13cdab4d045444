"""The table of events, and events that stand for what others write."""

import ast
import json
import logging
import string
import sys
from pathlib import Path

import pytest

import bitnet
from bitnet.base.progress import Progress
from bitnet.server.narration import ACTIONS, narrator, output_as_events

_OPTIONS = {"level", "actor"}  # of a call, which are not facts


def test_what_is_written_to_stderr_becomes_events():
    lines = []
    narrate = narrator(lines.append, worker_id="w", form="json")
    stderr = sys.stderr
    with output_as_events(narrate):
        print("first", "second", file=sys.stderr)
        print(file=sys.stderr)
        with Progress("model.gguf", 10) as progress:
            progress.reach(10)
        sys.stderr.write("no end")
        assert len(lines) == 2  # the text without a line end waits for more
    events = [json.loads(line) for line in lines]
    # The second event is the progress, tested below.
    assert [event["human"] for event in events][::2] == ["first second", "no end"]
    assert events[1]["human"].startswith("model.gguf: 10 B")
    assert {event["worker_id"] for event in events} == {"w"}
    assert sys.stderr is stderr


@pytest.mark.parametrize("debug", ["0", "1"])
def test_the_traceback_of_a_log_line_is_in_its_event_for_debugging(debug, monkeypatch):
    monkeypatch.setenv("BITNET_DEBUG", debug)
    lines = []
    with output_as_events(narrator(lines.append, form="json")):
        try:
            raise ValueError("the cause")
        except ValueError:
            logging.getLogger("bitnet.server").exception("a pass failed")
    event = json.loads(lines[0])
    assert event["error"] == "ValueError"
    assert event["human"].startswith("a pass failed")
    assert event["human"].endswith("ValueError: the cause") is (debug == "1")


def test_a_wrong_call_of_a_logger_becomes_an_event():
    lines = []
    with output_as_events(narrator(lines.append, form="json")):
        logging.getLogger("x").warning("%d items", "x")
    (event,) = map(json.loads, lines)
    assert event["human"].startswith("%d items (without its values: TypeError")


def calls():
    """Yield place, as file and line, and node of every call in the package that narrates."""
    root = Path(bitnet.__file__).parent
    for folder in ("server", "commands", "adapters"):
        for path in sorted((root / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
                if name.lstrip("_") == "narrate":
                    yield f"{path.name}:{node.lineno}", node


CALLS = dict(calls())


def test_every_action_of_the_table_is_narrated_somewhere():
    assert {node.args[0].value for node in CALLS.values()} == set(ACTIONS)


@pytest.mark.parametrize("place", CALLS)
def test_a_call_has_the_facts_that_its_description_and_its_event_need(place):
    node = CALLS[place]
    (name,) = node.args
    action = ACTIONS[name.value]
    in_description = {fact for _, fact, _, _ in string.Formatter().parse(action.human) if fact}
    named = {keyword.arg for keyword in node.keywords}
    assert in_description <= named
    assert named - _OPTIONS <= in_description | {*action.facts, "request_id"}


def test_an_event_lists_the_facts_of_its_action_and_no_more():
    lines = []
    narrate = narrator(lines.append, worker_id="w", form="json")
    narrate("inference_start", answers="1 answer", prompt_tokens=5, request_id="r", model_name="m")
    narrate("inference_failed", message="no", code=None)
    started, failed = map(json.loads, lines)
    assert list(started)[2:] == [  # after the time and the level
        "actor", "action", "worker_id", "prompt_tokens", "request_id", "model_name", "human", "cute"
    ]  # fmt: skip
    assert (started["level"], started["human"]) == ("INFO", "Writing 1 answer")
    assert (failed["level"], failed["human"]) == ("ERROR", "Inference failed: no")
    assert "code" not in failed


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("action", ["plain", "open", "log", "request_refused"])
def test_an_action_of_a_caller_is_written_with_its_fields_whatever_its_name(
    action, as_json, capsys
):
    bitnet.narrate("pool", action, "Hello", as_json=as_json, tokens=3)
    line = capsys.readouterr().err
    expected = [f'"{action}"', '"Hello"', '"tokens": 3' if as_json else 'tokens="3"']
    assert [text for text in expected if text not in line] == []


def test_a_field_cannot_replace_the_time_of_an_event():
    with pytest.raises(bitnet.UsageError, match="a field called time"):
        bitnet.narrate("pool", "greeting", "Hello", as_json=True, time="noon")
