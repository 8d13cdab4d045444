"""Files and names that a reader meets who follows a download, from the command to the lock file."""

import json
import sys
import threading
from pathlib import Path

import pytest

import bitnet as package
from bitnet import sources
from bitnet.sources import Source

ROOT = f"{Path(package.__file__).parent}/"
ROOMS = ("commands", "hub", "store", "cache")
# The story: an order is resolved, obtained, checked, placed and pinned.
STORY = ("commands/tokenizers.py", "hub/provide.py", "hub/fetch.py", "hub/download.py")


@pytest.fixture
def walked(bitnet, hub, tmp_path, monkeypatch):
    """Files and names that the story calls in other files, when a tokenizer is downloaded.

    A name is a function, or the class of a method.
    """
    vocabulary = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}}}
    hub.add("mirror/tiny", "tokenizer.json", json.dumps(vocabulary).encode())
    source = Source("mirror", "mirror/tiny", vocab_size=3, cache_key="tiny", licence="MIT")
    monkeypatch.setitem(sources.TOKENIZERS, "mirror", source)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.chdir(tmp_path)
    names = set()

    def profile(frame, event, _result):
        path = frame.f_code.co_filename
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if event != "call" or caller is None or not path.startswith(ROOT):
            return
        if caller.f_code.co_name == "<module>":
            return  # it is loaded, and does not run yet
        place = path.removeprefix(ROOT)
        above = caller.f_code.co_filename.removeprefix(ROOT)
        owner = frame.f_locals.get("self")
        name = frame.f_code.co_name if owner is None else type(owner).__name__
        if place != above and above in STORY and place.split("/")[0] in ROOMS:
            names.add((place, name))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        done = bitnet("tokenizer", "--source", "mirror")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert done.code == 0, done.err
    return {(place, name) for place, name in names if not name.startswith("<")}


def test_a_download_meets_few_files_and_names(walked):
    assert {place for place, _ in walked} >= {"hub/fetch.py", "store/blobs.py"}
    assert len({place for place, _ in walked} | set(STORY)) <= 20
    assert len(walked) <= 34
