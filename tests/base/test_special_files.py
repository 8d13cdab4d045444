"""Files that users and checkouts name are opened by ``open_file``, which refuses special files."""

import ast
import os
import socket
from pathlib import Path

import pytest

import bitnet
from bitnet.base.errors import InvalidFormat, UsageError
from bitnet.base.files import digest_of, git_oid, open_file, read_bytes, sha256_of

PACKAGE = Path(bitnet.__file__).parent

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="Windows has no pipes with a path"
)


@pytest.fixture(params=["pipe", "link to a pipe", "socket", "link to /dev/zero"])
def special(request, tmp_path, monkeypatch):
    """Path of a special file, which could block a reader or never end."""
    path = tmp_path / "special"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "link to a pipe":
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe")
    elif request.param == "socket":
        monkeypatch.chdir(tmp_path)  # the path of a socket has at most about 100 bytes
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("special")
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("read", [open_file, read_bytes, sha256_of, git_oid, digest_of])
def test_what_is_not_a_regular_file_is_refused_before_it_is_opened(special, read):
    with pytest.raises(InvalidFormat, match="is not a regular file but a"):
        read(special)


def test_a_folder_is_refused_as_a_folder(tmp_path):
    with pytest.raises(UsageError, match="Is a directory"):
        read_bytes(tmp_path)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)


# Calls that open a file by its name, each with the reason why it need not be `open_file`.
OTHER_CALLS = {
    "base/files.py write_bytes": "writes",
    "base/files.py create": "writes",
    "base/files.py open_file": "this is it",
    "base/locks.py _open": "a lock file, opened for writing, which does not wait",
    "base/locks.py _try_locks": "a temporary file",
    "base/locks.py boot_id": "a file of the system",
    "base/locks.py report": "writes a lock file that this process holds",
    "base/machine.py": "files of the system",
    "base/native.py": "files of this package, and of the system",
    "base/growing.py __enter__": "refuses what is not a regular file, and appends to it",
    "base/invocation.py": "files of the installation",
    "base/outputs.py write": "writes a new file",
    "base/terminal.py": "/dev/null",
    "base/trust.py open_folder": "folders",
    "batch/files.py __init__": "appends to the file of answers, which was read by then",
    "ci/templates.py plan_files": "files of this package",
    "commands/context.py edit_text": "a file that this program made for the editor",
    "commands/crossval.py": "appends to the summary of a job",
    "commands/launch.py _serving": "the log of a server, in a folder that this process made",
    "crossval/plan.py": "files of this package",
    "crossval/reference_process.py": "writes a new file",
    "crossval/report.py": "files of this package",
    "families/config_defaults.py read_table": "a file of this package",
    "formats/mapped_file.py open": "refuses what is not a regular file, and maps it",
    "formats/gguf_write.py": "writes a new file",
    "hub/bundles.py": "writes a new file, or a part that this process made",
    "hub/fetch.py": "a partial file that this process wrote",
    "hub/trailing_hash.py _read": "a partial file that this process writes",
    "hub/wheels.py": "files that pip wrote for this process",
    "kernels/packing.py": "files of the system",
    "models/exact_head/kept_copies.py problem_of": "read again, after `open_file`",
    "server/serve_options.py check_tls": "read by the library of certificates, after `read_bytes`",
    "server/pages.py": "files of this package",
    "store/links.py": "writes a new file",
    "store/partial.py": "files of the store, opened for writing",
    "tokenizer/chat_child.py": "files of the system",
    "tokenizer/probes.py": "files of this package",
    "tokenizer/tiktoken_file.py": "files of this package",
    "tokenizer/class_table.py class_table": "files of this package",
    "tokenizer/vocabularies.py": "files of this package",
    "verify/attest.py attestations_by_name": "files of this package",
    "tokenizer/chat.py _abandon": "/dev/null",
}
READERS = {"read_bytes", "read_text", "load_cert_chain", "fromfile", "memmap", "ZipFile"}
# Objects whose method `open` opens no file by name, or does so with `open_file`.
OF_OURS = {"GGUF", "MappedFile", "PromptFile", "cls", "self", "session", "archive", "webbrowser"}


def is_opening(call):
    """True if *call* may open a file by its name."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ("open", "ZipFile")
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    owner_name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    if function.attr == "load":
        return owner_name in ("np", "numpy")
    if function.attr == "open":
        return owner_name not in OF_OURS
    return function.attr in READERS


def opening_calls():
    """File, innermost function and line of each call in the package that may open a file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if is_opening(call):
                around = [f for f in functions if f.lineno <= call.lineno <= f.end_lineno]
                name = max(around, key=lambda f: f.lineno).name if around else ""
                yield path.relative_to(PACKAGE).as_posix(), name, call.lineno


def test_every_call_that_opens_a_file_is_listed_with_a_reason_and_every_entry_is_used():
    calls = list(opening_calls())
    unknown = [
        f"{file}:{line} {name}"
        for file, name, line in calls
        if not {file, f"{file} {name}"} & OTHER_CALLS.keys()
    ]
    assert unknown == []
    places = {file for file, _, _ in calls} | {f"{file} {name}" for file, name, _ in calls}
    assert OTHER_CALLS.keys() - places == set()
