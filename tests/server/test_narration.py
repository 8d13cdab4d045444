"""Events that stand for what others write."""

import json
import sys

from bitnet.base.progress import Progress
from bitnet.server.narration import narrator, output_as_events


def test_what_is_written_to_stderr_becomes_events():
    lines = []
    narrate = narrator(lines.append, worker_id="w", form="json")
    with output_as_events(narrate):
        print("first", "second", file=sys.stderr)
        print(file=sys.stderr)
        with Progress("model.gguf", 10) as progress:
            progress.reach(10)
        sys.stderr.write("no end")
        assert len(lines) == 2
    events = [json.loads(line) for line in lines]
    assert [event["human"] for event in events][::2] == ["first second", "no end"]
    assert events[1]["human"].startswith("model.gguf: 10 B")
    assert {event["worker_id"] for event in events} == {"w"}
    assert sys.stderr is not None
