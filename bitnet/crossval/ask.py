"""A reference engine, asked in its own process.

A foreign engine may crash, print, keep threads, or never answer. It gets a request on stdin and
writes its answer into a folder that is deleted afterwards; a process that exceeds its time limit is
killed with all processes that it started.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.base.files import read_json
from bitnet.base.invocation import isolate
from bitnet.crossval.trace import EngineFailed
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.safetensors import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from bitnet.formats.checkpoint import Checkpoint

ANSWER = "answer.json"
INTERMEDIATES = "answer.safetensors"

OTHER_ENGINE = "choose another reference: --against NAME"

# Seconds for one answer: some for starting the engine, and more for each gigabyte of the model.
# transformers takes longest: it loads a model in float32, and computes each token of a continuation
# with all that precede it.
LIMIT_S = 300.0
_LIMIT_PER_GIGABYTE_S = 300.0

# The engines use OpenMP, whose threads spin while they wait for each other, after every operation.
# On a busy machine, two such threads took 151 s for the work of 13 s in one thread.
_WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
_STDERR_CHARACTERS = 300  # of a failed engine's stderr that a message quotes
_MOST_STDERR_BYTES = 1 << 20  # of a failed engine's stderr that are read


def time_limit(checkpoint: Checkpoint, requested: float | None = None) -> float:
    """Time limit for one answer about *checkpoint*, in seconds; *requested* overrides it."""
    if requested is not None:
        return requested
    size_bytes = sum(weight.size_bytes for weight in checkpoint.weights.values())
    return LIMIT_S + _LIMIT_PER_GIGABYTE_S * size_bytes / 1e9


def ask(
    engine: str, request: dict[str, Any], folder: Path, *, model: str, limit_s: float
) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """The answer of *engine* to *request*, and the intermediates that it wrote, by name.

    :mod:`bitnet.crossval.reference_process` runs the engine, and writes into *folder*. *model* is
    the name of the model in messages. Intermediates are ``(rows, width)``. :class:`EngineFailed` is
    raised if the engine crashed, took too long, refused the request, or wrote an answer that cannot
    be read.
    """
    target = folder / ANSWER
    command = isolate("bitnet.crossval.reference_process", str(target))
    completed = run(command, name=engine, limit_s=limit_s, stdin=json.dumps(request))
    if completed.returncode or not target.exists():
        text = f"{engine} did not survive: {describe_ending(completed)}"
        raise EngineFailed(text, hint=OTHER_ENGINE)
    try:
        answer = read_json(target, hint=OTHER_ENGINE)
        # After an error, the file of intermediates may be incomplete: it is not read.
        if "error" in answer:
            text = f"{engine} cannot run {model}: {answer['error']}"
            raise EngineFailed(text, hint=OTHER_ENGINE)
        return answer, _read_intermediates(folder)
    except (InvalidFormat, Unsupported) as error:
        raise EngineFailed(f"{engine}: {error.message}", hint=OTHER_ENGINE) from error


def _read_intermediates(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Arrays in the file of intermediates in *folder*, by name; none without such a file."""
    if not (folder / INTERMEDIATES).exists():
        return {}
    arrays = {}
    for name, tensor in read_file(Inventory(folder), INTERMEDIATES).items():
        if tensor.quant.name != "F32" or len(tensor.shape) != 2:
            text = f"{INTERMEDIATES}: {name} is not a matrix of float32"
            raise InvalidFormat(text, hint=OTHER_ENGINE)
        # A copy, because the file is deleted with its folder.
        arrays[name] = tensor.data.view("<f4").reshape(tensor.shape).copy()
    return arrays


def run(
    command: Sequence[str], *, name: str, limit_s: float, stdin: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run *command*, and return its exit status and stderr; messages call the program *name*.

    After *limit_s* seconds it is killed. All processes that it started are killed with it, also
    when it ends by itself. :class:`EngineFailed` is raised if it was killed, or does not start.
    """
    # Files instead of pipes: a process that outlives the engine may hold a pipe open.
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as errors:
        request.write(stdin.encode())
        request.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=request,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=settings.child_environment(**_WAITING),
                start_new_session=True,  # so that it can be killed together with its children
            )
        except OSError as error:
            raise EngineFailed(f"{name} does not start: {error}", hint=OTHER_ENGINE) from error
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            seconds = math.ceil(limit_s)
            hint = "ask for less: --max-positions N, or wait longer: --reference-timeout SECONDS"
            raise EngineFailed(f"{name} took more than {seconds:,} s", hint=hint) from None
        finally:
            _kill_group(process)
        # Only the end is read: engines write logs of any length.
        errors.seek(0, os.SEEK_END)
        errors.seek(max(errors.tell() - _MOST_STDERR_BYTES, 0))
        return subprocess.CompletedProcess(command, process.returncode, stderr=errors.read())


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill *process*, if it still runs, and all other processes of its group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def describe_ending(completed: subprocess.CompletedProcess[bytes]) -> str:
    """Exit status of a process, and lines of its stderr: those that name an error, or the last."""
    code = completed.returncode
    status = f"signal {-code}" if code < 0 else f"exit code {code}"
    lines = completed.stderr.decode("utf-8", "replace").splitlines()
    # Lines that name a fault: ggml's GGML_ASSERT, and "error" or "Error" of all engines.
    errors = [line for line in lines if "ASSERT" in line or "rror" in line] or lines[-3:]
    text = " ".join(" ".join(errors).split())[:_STDERR_CHARACTERS]
    return f"{status}; {text}" if text else status
