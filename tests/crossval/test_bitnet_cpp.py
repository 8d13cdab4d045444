"""bitnet.cpp as a reference: with a build of the user's, and the errors without one."""

import importlib.util
import os
import shutil
import struct
from pathlib import Path

import pytest
from crossval_evidence import verdict_on_float64
from tiny_models import ternary_gguf, tiny_gguf

from bitnet.base.errors import ReferenceUnavailable, UsageError
from bitnet.crossval.float64 import Float64
from bitnet.crossval.llama_library import Llama, Params
from bitnet.crossval.references import BitnetCpp, choose
from bitnet.crossval.trace import EngineFailed, Prompt, Question
from bitnet.formats.containers import open_checkpoint
from bitnet.shipped import SHIPPED

BUILD = os.environ.get("BITNET_CPP_DIR")
with_a_build = pytest.mark.skipif(
    not BUILD, reason="BITNET_CPP_DIR names no build of bitnet.cpp: docs/how-to/bitnet-cpp.md"
)
IDS = (0, 5, 9, 3, 44, 12, 13, 14, 30, 20, 21, 7, 8)


@pytest.fixture
def ternary(tmp_path):
    return open_checkpoint(ternary_gguf(tmp_path / "ternary.gguf"))


def question(checkpoint, steps=0, **more):
    """A question about the prompt IDS, with *steps* greedy tokens after it."""
    return Question(checkpoint, (Prompt("p", IDS, steps=steps),), **more)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Path at which a build has its library; the file does not exist."""
    place = tmp_path / "build" / "3rdparty" / "llama.cpp" / "src" / "libllama.so"
    place.parent.mkdir(parents=True)
    monkeypatch.setenv("BITNET_CPP_DIR", str(tmp_path))
    return place


def test_without_a_build_bitnet_cpp_says_what_to_set(ternary):
    assert not BitnetCpp().is_installed()
    with pytest.raises(ReferenceUnavailable, match="BITNET_CPP_DIR is not set") as raised:
        choose("bitnet.cpp", ternary).trace(question(ternary))
    assert "docs/how-to/bitnet-cpp.md" in raised.value.hint
    assert Path("docs/how-to/bitnet-cpp.md").is_file()
    assert choose("", ternary).name == "ik_llama.cpp"


def test_a_folder_that_is_not_there_is_a_mistake_and_no_absence(ternary, monkeypatch):
    """Even if no reference was named, it is an error instead of a check that is not run."""
    monkeypatch.setenv("BITNET_CPP_DIR", "/no/such/folder")
    for name in ("", "bitnet.cpp"):
        with pytest.raises(UsageError, match="/no/such/folder: there is no libllama"):
            choose(name, ternary).trace(question(ternary))


def test_a_folder_without_a_library_is_not_a_build(ternary, library):
    with pytest.raises(UsageError, match="there is no libllama"):
        choose("bitnet.cpp", ternary).trace(question(ternary))


def test_a_file_that_is_not_a_library_is_reported(ternary, library):
    library.write_text("not one")
    with pytest.raises(EngineFailed, match=r"cannot run ternary\.gguf: OSError: .*libllama"):
        choose("", ternary).trace(question(ternary))


def test_a_library_of_something_else_is_reported(ternary, library):
    # A shared library that loads in any process.
    shutil.copy(importlib.util.find_spec("numpy.random.mtrand").origin, library)
    with pytest.raises(EngineFailed, match="has no products of I2_S: it is not"):
        choose("", ternary).trace(question(ternary))


def test_bitnet_cpp_is_asked_about_i2_s_alone(tmp_path, library):
    library.touch()
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf"))
    with pytest.raises(UsageError, match=r"bitnet\.cpp cannot be asked about tiny\.gguf"):
        choose("bitnet.cpp", checkpoint)
    assert choose("", checkpoint).name == "llama.cpp"


# llama_context_params of the llama.cpp in bitnet.cpp, with the defaults: n_ctx, n_batch, n_ubatch
# and n_seq_max; the two numbers of threads; three types that are -1 for unset; six floats, an
# integer and a float of rope and YaRN; four bytes of padding; cb_eval and its user data; the types
# of the cache; flags.
PARAMS_2024 = struct.pack(
    "<4I 2i 3i 6f I f 4x 2Q 2i 8?",
    *(512, 2048, 512, 1, 4, 4, -1, -1, -1, 0, 0, -1, 1, 32, 1, 0, -1, 0, 0, 1, 1),
    *(False, False, True, False, True, False, False, False),
)


class LibraryOf2024:
    """A library of 2024, of which only the default parameters of a context are called."""

    def __init__(self, raw):
        self.raw = raw

    def llama_context_default_params(self):
        params = Params()
        params.raw[: len(self.raw)] = list(self.raw)
        return params


def llama_with(raw, batch=0):
    """A ``Llama`` without a model, on a library whose default parameters are the bytes *raw*."""
    model = object.__new__(Llama)
    model._c = LibraryOf2024(raw)
    model.batch = batch
    model._half_cache = True
    return model


def test_parameters_of_2024_are_found_in_their_places():
    params, callback = llama_with(PARAMS_2024, batch=64)._context_params(200, watch=lambda *_: None)
    raw = bytes(params.raw)
    assert struct.unpack_from("<4I", raw) == (200, 200, 64, 1)
    assert callback is not None
    (address,) = struct.unpack_from("<Q", raw, 72)  # cb_eval
    assert address
    # Nothing else was changed.
    assert raw[16:72] + raw[80 : len(PARAMS_2024)] == PARAMS_2024[16:72] + PARAMS_2024[80:]


def test_parameters_of_an_unknown_layout_are_refused():
    # A field more in front of the floats of rope, and another default among them.
    with pytest.raises(EngineFailed, match="laid out in an unknown way"):
        llama_with(PARAMS_2024[:36] + b"\0\0\0\0" + PARAMS_2024[36:])._context_params(200, None)
    with pytest.raises(EngineFailed, match="laid out in an unknown way"):
        llama_with(
            PARAMS_2024.replace(struct.pack("<2f", 32, 1), struct.pack("<2f", 33, 1))
        )._context_params(9, None)


@with_a_build
def test_a_build_agrees_with_the_float64_pass_and_gives_intermediates(ternary, monkeypatch):
    monkeypatch.setenv("BITNET_CPP_DIR", BUILD)
    for checkpoint in (ternary, open_checkpoint(SHIPPED["bitnet-tiny"].path)):
        request = question(checkpoint, texts=(("ab", True),), steps=3)
        engine = choose("", checkpoint)
        assert engine.name == "bitnet.cpp"
        trace = engine.trace(request)
        assert (trace.engine.arithmetic, len(trace.prompts[0].greedy)) == ("int8", 3)
        assert len(trace.tokenized) == len(trace.decoded) == 1
        assert "ggml" in trace.engine.library
        verdict = verdict_on_float64(checkpoint, IDS, trace)
        (on_reference,) = (entry for entry in verdict.findings if entry.subject == "reference")
        assert not on_reference.failed
        arrays = engine.intermediates(request, Float64().model(checkpoint))
        assert {"attn_norm-0", "Qcur-1", "attn_sub_norm-1", "l_out-1"} <= set(arrays)


@with_a_build
def test_more_positions_than_its_stack_holds_are_computed_in_parts(monkeypatch):
    monkeypatch.setenv("BITNET_CPP_DIR", BUILD)
    tiny = open_checkpoint(SHIPPED["bitnet-tiny"].path)
    ids = tuple(number % 2000 for number in range(7, 7 + 13 * 200, 13))  # 200 ids below 2000
    trace = BitnetCpp().trace(Question(tiny, prompts=(Prompt("p", ids),)))
    verdict = verdict_on_float64(tiny, ids, trace)
    (on_reference,) = (entry for entry in verdict.findings if entry.subject == "reference")
    assert len(trace.prompts[0].positions) == 200
    assert not on_reference.failed
