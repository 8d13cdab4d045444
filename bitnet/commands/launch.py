"""``launch``: start a coding agent with a local model, without changing its settings."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from invoke.exceptions import Exit

from bitnet.base import settings
from bitnet.base.errors import InferenceError, Unsupported, UsageError
from bitnet.base.invocation import isolate
from bitnet.base.options import option
from bitnet.commands.agents import AGENTS, Endpoint
from bitnet.commands.context import Context, open_file, say
from bitnet.commands.declare import task
from bitnet.runtime.model_options import ModelOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.commands.agents import Agent, Setup

_KEY = settings.api_key.names[0]  # variable with the key that clients of a server must send
_KEY_IN_SHELL = f"${_KEY}"
_OK = 200  # statuses of HTTP, whose module takes longer to import than this file
_UNAUTHORIZED = 401
_PLAIN = re.compile('[!"$->A-~]+')  # an address without a user, a query or a fragment
_SIGNALLED = 128  # plus the number of the signal that ended a program: its exit code in a shell
_POLL_S = 0.1  # seconds between two requests for the state of the server
_LOG_CHARS = 2000  # of the end of the server's log, in an error


@task(
    group="Serve",
    example="bitnet launch codex smollm2-135m --print",
)
def launch(
    c,
    agent=option(None, "program to start", choices=tuple(AGENTS), positional=True),
    server=option(
        "", "address of a running server; default: start one, and stop it afterwards", metavar="URL"
    ),
    args=option("", "arguments for the program, as a shell has them", metavar="TEXT"),
    print_=option(False, "print the variables and the command, and start nothing"),
    model=ModelOptions(),
    common=Context(),
):
    """Start a coding agent that uses a model of this machine.

    The agent is told about the server by variables and arguments, and keeps its settings of this
    run in a temporary folder. The user's settings of the agent are not changed, and only aider
    reads them. The exit code is the agent's.
    """
    coding_agent = AGENTS[agent]
    try:
        words = shlex.split(args)
    except ValueError as error:
        raise UsageError(f"--args {args!r}: {error}", hint="close its quotes") from None
    key = (settings.api_key() or "") if server else ""  # a server that is started here needs none
    with ExitStack() as stack:
        stack.enter_context(_exit_on_signals())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bitnet-launch-")))
        if server:
            address = server.rstrip("/").removesuffix("/v1")
            _check_local(address)
            name = _find_model(address, key) if not model.model else model.model
        elif print_:
            address = "http://127.0.0.1:PORT"
            name = model.model or "MODEL"
        else:
            from bitnet.formats.model_files import model_name

            # Report a missing model or program before a server starts, which takes seconds.
            path = open_file(model, common).path
            _check_installed(coding_agent)
            address = stack.enter_context(_serving(path, model, folder))
            name = model_name(path)
        settings_folder = folder / agent
        if key and print_:
            key = _KEY_IN_SHELL  # a secret is not printed
        setup = coding_agent.set_up(Endpoint(address, key or "none"), name, settings_folder)
        command = [coding_agent.program, *setup.arguments, *words]
        if print_:
            _print(setup, command, settings_folder, common)
            return
        _check_installed(coding_agent)
        write_files(setup, settings_folder)
        say(f"{coding_agent.program} uses {name} at {address}")
        environment = settings.child_environment(**setup.environment)
        code = _run(command, environment)
    if code:
        raise Exit(code=code)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run *command*; return its exit code, as a shell gives it.

    This process ignores Ctrl-C, which the program gets as well, and may use to stop an answer.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return _SIGNALLED - code if code < 0 else code


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Make the signals that end this process leave the context first, which stops the server."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(_SIGNALLED + number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), leave) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _print(setup: Setup, command: list[str], folder: Path, common: Context) -> None:
    """Print the files, the variables and the *command* of *setup*."""
    files = {str(folder / name): text for name, text in setup.files.items()}
    lines = [f"# {path}: {text}" for path, text in files.items()]
    # One command of a shell, whose variables are for this program alone.
    lines += [f"{name}={_quote(value)} \\" for name, value in setup.environment.items()]
    lines.append(shlex.join(command))
    facts = {"environment": setup.environment, "files": files, "command": command}
    common.output.finish(facts, lines)


def _quote(word: str) -> str:
    """*word* for a shell, which replaces the variable that stands for the key."""
    parts = [shlex.quote(part) if part else "" for part in word.split(_KEY_IN_SHELL)]
    return f'"{_KEY_IN_SHELL}"'.join(parts)


def write_files(setup: Setup, folder: Path) -> None:
    """Create *folder*, which must not exist yet, and write the files of *setup* to it."""
    folder.mkdir()
    for name, text in setup.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _check_installed(agent: Agent) -> None:
    """Refuse to start an *agent* whose program is not on the search path."""
    if shutil.which(agent.program) is None:
        raise Unsupported(f"{agent.program} is not installed", hint=agent.install)


@contextmanager
def _serving(path: Path, model: ModelOptions, folder: Path) -> Iterator[str]:
    """Serve the model at *path* until the context ends; yield the server's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(path), *_options_of(model)]
    # The working folder is the agent's project: none of its files may be imported.
    command = isolate("bitnet", "serve", *words, "--port", str(port), "--host", "127.0.0.1")
    log = folder / "server.log"
    # The server is started without a key: only the agent knows its address.
    environment = settings.environment_without(settings.api_key)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C is not for the server
        )
    address = f"http://127.0.0.1:{port}"
    try:
        while not _fetch(address, "/health/ready").is_ok:
            if process.poll() is not None:
                text = log.read_text(errors="replace")[-_LOG_CHARS:].strip()
                raise InferenceError(
                    f"the server ended with exit code {process.returncode}: {text}",
                    hint=f"bitnet serve {shlex.join(words)} --port 0",
                )
            time.sleep(_POLL_S)
        yield address
    finally:
        process.terminate()
        process.wait()


def _options_of(model: ModelOptions) -> Iterator[str]:
    """Command-line words for the options of *model* that differ from their default.

    The name of the model is left out.
    """
    default = ModelOptions()
    for entry in fields(model):
        value = getattr(model, entry.name)
        if entry.name == "model" or value == getattr(default, entry.name):
            continue
        name = entry.name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
            continue
        values = value if isinstance(value, list | tuple) else [value]
        for item in values:
            yield from (f"--{name}", str(item))


def _check_local(address: str) -> None:
    """Refuse the *address* of a server unless it is on this machine."""
    try:
        url = urlsplit(address)
        is_local = url.hostname in ("127.0.0.1", "localhost", "::1") and url.scheme == "http"
        is_local = is_local and url.port != 0
        is_local = is_local and _PLAIN.fullmatch(address) is not None
    except ValueError:  # invalid brackets, or an invalid port
        is_local = False
    if not is_local:
        raise UsageError(
            f"--server {address}: expected the address of this machine, http://127.0.0.1:PORT",
            hint="start the agent with its own settings for a server elsewhere",
        )


def _find_model(address: str, key: str) -> str:
    """The name of the first model of the server at *address*, which may require *key*."""
    reply = _fetch(address, "/v1/models", key)
    if reply.status == _UNAUTHORIZED:
        problem = f"the key in {_KEY} is not the server's" if key else "the server requires a key"
        raise UsageError(f"--server {address}: {problem}", hint=f"export {_KEY}=KEY")
    try:
        return str(json.loads(reply.body if reply.is_ok else b"")["data"][0]["id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(
            f"--server {address}: no server with a model answers there", hint="bitnet serve"
        ) from None


class _Reply(NamedTuple):
    """Reply of a server; without a status if none answers."""

    status: int = 0
    body: bytes = b""

    @property
    def is_ok(self) -> bool:
        """True if the server did what was requested."""
        return self.status == _OK


def _fetch(address: str, path: str, key: str = "") -> _Reply:
    """Reply to GET *path* of the server at *address*."""
    import http.client

    url = urlsplit(address)
    assert url.hostname is not None  # it is an address of this machine
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=5)
    headers = {"Authorization": f"Bearer {key}".encode(errors="surrogateescape")} if key else {}
    try:
        connection.request("GET", url.path + path, headers=headers)
        response = connection.getresponse()
        return _Reply(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return _Reply()
    except ValueError:  # the key has a character that a header cannot have
        return _Reply(_UNAUTHORIZED)
    finally:
        connection.close()
