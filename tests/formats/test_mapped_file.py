"""A file that changes while it is read: no signal, no wrong answer, an error that names it."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import waiting
from tiny_models import tiny_gguf

from bitnet.base import native
from bitnet.base.errors import IntegrityError, InvalidFormat, NotFound
from bitnet.formats.mapped_file import MappedFile, expect_unchanged, files_behind

needs_native = pytest.mark.skipif(
    native.module() is None or sys.platform == "win32", reason="needs the compiled module's guard"
)
SIZE = 1 << 20


@pytest.fixture
def path(tmp_path):
    """A file of SIZE bytes, each of them 7."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"\7" * SIZE)
    return path


def cut(path):
    os.truncate(path, 5000)  # within its second page of 4,096 bytes


def grow(path):
    with path.open("ab") as file:
        file.write(b"more")


def write_over(path):
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


@pytest.mark.parametrize("change", [cut, grow, write_over])
def test_a_file_that_changed_is_named(path, change):
    mapped = MappedFile.open(path)
    mapped.check()
    change(path)
    with pytest.raises(IntegrityError, match="changed while it was in use") as raised:
        mapped.check()
    assert str(path) in raised.value.message
    assert "rename the new one over it" in raised.value.hint


def replace(path):
    new = path.with_name("new")
    new.write_bytes(b"\1" * 10)
    new.replace(path)


def read(path):
    path.read_bytes()


@pytest.mark.parametrize("change", [replace, os.unlink, read])
def test_what_leaves_the_mapped_bytes_alone_is_not_a_change(path, change):
    mapped = MappedFile.open(path)
    change(path)
    mapped.check()
    assert mapped[SIZE - 1] == 7


@needs_native
def test_reads_behind_the_new_end_give_zeros_and_an_error(path):
    mapped = MappedFile.open(path)
    array = np.frombuffer(memoryview(mapped), dtype=np.uint8)

    def read():
        with expect_unchanged([array[100:]]):
            cut(path)
            assert (array[: 1 << 12] == 7).all()
            assert (array[1 << 13 :] == 0).all()  # from the third page on; would be SIGBUS

    with pytest.raises(IntegrityError, match="changed while it was in use"):
        read()
    os.truncate(path, SIZE)
    os.utime(path, ns=(mapped.status.st_atime_ns, mapped.status.st_mtime_ns))
    with pytest.raises(IntegrityError, match="a part of it could not be read"):
        mapped.check()  # although size and time are as before


# Other code replaces the handler of SIGBUS again and again, at last by faulthandler. Arguments: the
# file to map, and what replaces the handler. The exit code is 0 if the vanished part is zeros.
REPLACES_THE_HANDLER = """
    import faulthandler, os, signal, sys
    from pathlib import Path
    import numpy as np
    from bitnet.base.errors import IntegrityError
    from bitnet.formats.mapped_file import MappedFile, expect_unchanged

    path = Path(sys.argv[1])
    mapped = MappedFile.open(path)
    array = np.frombuffer(memoryview(mapped), dtype=np.uint8)
    for _ in range(40):
        if sys.argv[2] == "faulthandler": faulthandler.disable(); faulthandler.enable()
        else: signal.signal(signal.SIGBUS, signal.SIG_DFL)
        mapped.check()
    faulthandler.enable()
    try:
        with expect_unchanged([array]):
            os.truncate(path, 5000)
            vanished = int(array[1 << 14])
    except IntegrityError as error:
        print(error.message)
    sys.exit(vanished)
"""


@needs_native
@pytest.mark.parametrize("handler", ["faulthandler", "SIG_DFL"])
def test_a_handler_that_comes_later_does_not_end_the_guard(path, handler):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REPLACES_THE_HANDLER), str(path), handler],
        capture_output=True,
        text=True,
        timeout=waiting.PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "changed while it was in use" in done.stdout


@needs_native
def test_a_closed_file_is_not_guarded_any_more(path):
    module = native.module()
    numbers = []  # of the entries in the module's table of mappings; -1 if there is no room
    for _ in range(3000):  # more than the table can hold at a time
        mapped = MappedFile.open(path)
        numbers.append(mapped._guard[1])
        mapped.close()
    assert min(numbers) >= 0
    assert not module.is_torn(numbers[-1])


@needs_native
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN", "handle", "faulthandler"])
def test_a_bus_error_elsewhere_goes_to_its_usual_handler(path, handler, again):
    """A SIGBUS from another mapping, or one that is sent, reaches the *handler* of the process.

    With *again*, the handler is set after the file was opened, and the guard is set up once more by
    ``check()``. The guard replaced ``SIG_DFL`` when the file was opened; after another handler
    in between, ``SIG_DFL`` has to be the latest one again.
    """
    script = f"""
        import faulthandler, mmap, os, signal, sys
        from pathlib import Path
        from bitnet.formats.mapped_file import MappedFile
        def handle(number, frame): os._exit(7)
        if {again}:
            guarded = MappedFile.open(Path(sys.argv[1]))
            if "{handler}" == "SIG_DFL": signal.signal(signal.SIGBUS, lambda *_: None)
            guarded.check()
        if "{handler}" == "faulthandler": faulthandler.enable()
        elif "{handler}" == "handle": signal.signal(signal.SIGBUS, handle)
        else: signal.signal(signal.SIGBUS, signal.{handler if handler.isupper() else "SIG_DFL"})
        if {again}: guarded.check()
        else: guarded = MappedFile.open(Path(sys.argv[1]))
        if "{handler}" in ("handle", "SIG_IGN"):
            os.kill(os.getpid(), signal.SIGBUS)
            os._exit(8)
        other = mmap.mmap(os.open(sys.argv[2], os.O_RDONLY), 0, access=mmap.ACCESS_READ)
        os.truncate(sys.argv[2], 10)
        print(other[1 << 13])
    """
    other = path.with_name("other")
    other.write_bytes(b"\1" * SIZE)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path), str(other)],
        capture_output=True,
        text=True,
        timeout=waiting.PATIENCE_S,
        check=False,
    )
    # The exit codes that the script has for them; otherwise signal 7, SIGBUS, ends the process.
    expected = {"handle": 7, "SIG_IGN": 8}.get(handler, -7)
    assert done.returncode == expected, done.stderr
    assert ("Bus error" in done.stderr) == (handler == "faulthandler")


def test_what_is_not_a_file_to_map_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    for name, error in ((tmp_path, NotFound), (empty, InvalidFormat), ("none", NotFound)):
        with pytest.raises(error):
            MappedFile.open(tmp_path / name)


def test_arrays_know_their_files(path):
    mapped = MappedFile.open(path)
    whole = np.frombuffer(memoryview(mapped)[8:], dtype=np.uint8)
    assert files_behind([whole[4:90], whole[9:].view("<u1"), np.ones(3, np.uint8)]) == [mapped]
    assert files_behind([whole.copy()]) == []


# The beginning of a script. Arguments: the path of a model, and how `change` changes its file.
RUN = """
    import os, sys
    from pathlib import Path
    from bitnet.base.errors import BitnetError
    from bitnet.formats.containers import open_checkpoint
    from bitnet.kernels.native import select
    from bitnet.models.load import load_model
    from bitnet.runtime.scheduler import Scheduler

    path = Path(sys.argv[1])
    def change():
        if sys.argv[2] == "cut": os.truncate(path, 4096)
        else: os.utime(path, ns=(0, 0))
    def attempt(function):
        try: function()
        except BitnetError as error: print(type(error).__name__, error, flush=True)
        else: print("fine", flush=True)
"""


def lines_of(script, path, change):
    """Lines that RUN and *script* print for the model at *path*."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN) + textwrap.dedent(script), str(path), change],
        capture_output=True,
        text=True,
        timeout=waiting.PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_native
@pytest.mark.parametrize("change", ["cut", "touched"])
def test_a_model_whose_file_changes_ends_its_passes_with_an_error(tmp_path, change):
    """Its embedding is looked up in the file; everything else has been copied."""
    path = tiny_gguf(tmp_path / "tiny.gguf")
    script = """
        engine = Scheduler(load_model(open_checkpoint(path), ops=select(threads=2)))
        ids = [5, 9, 33, 2]
        attempt(lambda: engine.logits(ids))
        change()
        attempt(lambda: engine.logits(ids))
        attempt(lambda: list(engine.generate(ids)))
    """
    first, *lines = lines_of(script, path, change)
    assert first == "fine"
    others = [line for line in lines if not line.startswith("hint: ")]
    assert len(others) == 2  # of the logits, and of the answer
    assert all(line.startswith("IntegrityError") and str(path) in line for line in others)


def test_the_reference_ends_its_passes_with_an_error_if_its_file_changes(tmp_path):
    """It decodes rows of the embedding from the file; everything else has been copied."""
    path = tiny_gguf(tmp_path / "tiny.gguf")
    script = """
        from bitnet.kernels.reference import ReferenceOps
        engine = Scheduler(load_model(open_checkpoint(path), ops=ReferenceOps()))
        attempt(lambda: engine.logits([5, 9, 33, 2]))
        change()
        attempt(lambda: engine.logits([5, 9, 33, 2]))
    """
    before, error, _ = lines_of(script, path, "touched")
    assert before == "fine"
    assert error.startswith("IntegrityError")
    assert str(path) in error


@needs_native
@pytest.mark.parametrize("change", ["cut", "touched"])
def test_a_file_that_changes_before_it_is_loaded_is_not_loaded(tmp_path, change):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    script = """
        checkpoint = open_checkpoint(path)
        change()
        attempt(lambda: load_model(checkpoint, ops=select()))
    """
    error, hint = lines_of(script, path, change)
    assert error.startswith("IntegrityError")
    assert str(path) in error
    assert hint.startswith("hint: ")


@needs_native
def test_a_model_that_was_copied_does_not_need_its_file(tmp_path):
    """The embedding is copied, too, where it is the head, as in a `tiny_gguf` without tokenizer."""
    path = tiny_gguf(tmp_path / "tiny.gguf", tokenizer=False)
    script = """
        engine = Scheduler(load_model(open_checkpoint(path), ops=select(threads=2)))
        change()
        attempt(lambda: engine.logits([5, 9, 33, 2]))
    """
    assert lines_of(script, path, "cut") == ["fine"]


@needs_native
def test_metadata_that_is_gone_when_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "model.gguf"
    tiny_gguf(path)
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from bitnet.base.errors import IntegrityError
        from bitnet.formats.gguf import GGUF

        gguf = GGUF.open(Path(sys.argv[1]))
        os.truncate(sys.argv[1], 0)
        for value in gguf.metadata.values():
            if not isinstance(value, (str, int, float, bool)):
                bytes(value.raw)
        try:
            gguf.close()
        except IntegrityError as error:
            sys.exit(f"{error.exit_code} {error.message}")
    """)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert done.stderr.startswith("13 ")  # exit code of IntegrityError
    assert str(path) in done.stderr


def test_a_path_with_a_nul_names_no_file(tmp_path):
    with pytest.raises(NotFound, match="no such file"):
        MappedFile.open(tmp_path / "a\0b")
