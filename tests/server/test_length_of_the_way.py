"""The files, functions and types that a streamed chat passes, from the guard to its last event."""

import threading
from pathlib import Path

import pytest
from walks import NOT_FUNCTIONS

import bitnet

ROOT = f"{Path(bitnet.__file__).parent}/"
CHAT = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 5, "stream": True}
#: Rooms that know of requests; below them, floats and ids are computed.
ROOMS = ("server", "wire", "runtime")


@pytest.fixture
def passed(serving):
    """Functions, with their files, and classes that a second chat passes, in every thread.

    A class is passed if a value of it is a variable, an argument or a result of a function that
    runs, or is in a list or a tuple that is one.
    """
    functions = set()
    types = set()
    records = threading.Event()

    def profile(frame, event, result):
        path = frame.f_code.co_filename
        if not records.is_set() or event != "return" or not path.startswith((ROOT, "<string>")):
            return
        # Methods that a dataclass generates are in "<string>": only their values are recorded.
        if path.startswith(ROOT):
            # Python 3.10 has no qualified name.
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            functions.add((path.removeprefix(ROOT), name))
        for value in [*frame.f_locals.values(), result]:
            types.update(map(type, value if isinstance(value, list | tuple) else [value]))

    threading.setprofile(profile)
    try:
        worker = serving()
        worker.post("/v1/chat/completions", CHAT)
        records.set()
        assert worker.post("/v1/chat/completions", CHAT).text.endswith("data: [DONE]\n\n")
        records.clear()
    finally:
        threading.setprofile(None)
    ours = {entry for entry in types if entry.__module__.startswith("bitnet.")}
    return functions, ours


#: Types that a chat passes, from the guard on. BodyRequests keeps the numbers that the client's own
#: messages have, since a preset may put others before them.
TYPES = {
    *("Guard", "Form", "Models", "Slot", "LanguageModel", "BodyRequests"),
    *("Request", "Scheduler", "PassTimes", "PrefixCache", "Sequence", "Sampler", "Piece"),
    *("Answer", "TextDelta"),  # the second is a part of the answer, in the order of all parts
    *("Turns", "Turn"),  # these place messages as a template takes them
}


def test_a_streamed_chat_passes_few_files_functions_and_types(passed):
    functions, types = passed
    functions = {(file, name) for file, name in functions if file.split("/")[0] in ROOMS}
    # Limits that keep the path short; a change that needs more has to raise them.
    assert len({file for file, _ in functions}) <= 25
    named = [name for _, name in functions if name.rpartition(".")[2] not in NOT_FUNCTIONS]
    assert len(named) <= 212  # 203 to 206: a busy machine runs a few more
    names = {entry.__name__ for entry in types if entry.__module__.split(".")[1] in ROOMS}
    # The first is the connection's; the second is a row of the table of events.
    assert names - {"PatientProtocol", "Action"} == TYPES
