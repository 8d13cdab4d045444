"""Length of the path through the code that a reader follows to understand a download.

Measured are the calls that the STORY files make while `bitnet tokenizer` downloads a tokenizer.
"""

import json
import sys
import threading
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

import bitnet as package
from bitnet import sources
from bitnet.sources import Source

ROOT = f"{Path(package.__file__).parent}/"
ROOMS = ("commands", "hub", "store", "cache")  # subpackages whose calls count
# Files that read as a sequence of steps: an order is resolved, obtained, checked, placed, pinned.
STORY = ("commands/tokenizers.py", "hub/provide.py", "hub/fetch.py")
HOME = "hub"  # the room of most of them; coming back to it does not count


@dataclass
class Walk:
    """Calls of the STORY files into other files, recorded by a profile function.

    ``names`` holds, for each, the file and the name of the function or of the class of a method.
    """

    names: set[tuple[str, str]] = field(default_factory=set)
    rooms: list[str] = field(default_factory=list)  # of each call but those that read a property
    frames: list[object] = field(default_factory=list)  # of the calls seen

    def profile(self, frame, event, _result):
        path = frame.f_code.co_filename
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if event != "call" or caller is None or not path.startswith(ROOT):
            return
        if caller.f_code.co_name == "<module>" or frame.f_code.co_name == "<module>":
            return  # it is loaded, and does not run yet
        place = path.removeprefix(ROOT)
        above = caller.f_code.co_filename.removeprefix(ROOT)
        room = place.split("/")[0]
        if place == above or above not in STORY or room not in ROOMS:
            return
        owner = frame.f_locals.get("self")
        name = frame.f_code.co_name
        self.names.add((place, name if owner is None else type(owner).__name__))
        is_property = isinstance(getattr(type(owner), name, None), property)
        # A generator is called again at the end of a with block.
        is_resumed = any(frame is each for each in self.frames)
        self.frames.append(frame)
        if not (is_property or is_resumed):
            self.rooms.append(room)

    @property
    def returns(self):
        """Number of times that calls come back to a room other than HOME that they had left."""
        visits = [room for room, _ in groupby(self.rooms)]
        away = [room for room in visits if room != HOME]
        return len(away) - len(set(away))


@pytest.fixture
def walk(bitnet, hub, tmp_path, monkeypatch):
    """The walk of a command that downloads a tokenizer."""
    vocabulary = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}}}
    hub.add("mirror/tiny", "tokenizer.json", json.dumps(vocabulary).encode())
    source = Source("mirror", "mirror/tiny", vocab_size=3, cache_key="tiny", licence="MIT")
    monkeypatch.setitem(sources.TOKENIZERS, "mirror", source)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(tmp_path)
    walk = Walk()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        done = bitnet("tokenizer", "--source", "mirror")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert done.code == 0, done.err
    return walk


def test_a_download_calls_few_files_and_names_and_seldom_comes_back_to_a_room(walk):
    files = {place for place, _ in walk.names} | set(STORY)
    assert files >= {"hub/transfer.py", "store/blobs.py", "store/partial.py", "cache/prune.py"}
    # Bounds at or above what was measured: docs/adr/0026-six-nouns-for-a-file.md.
    assert len(files) <= 12
    assert len(walk.names) <= 25
    assert 0 < walk.returns <= 6
