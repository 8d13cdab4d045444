"""``inv serve``, also called ``worker``."""

from __future__ import annotations

import logging
import secrets
import sys
from dataclasses import replace
from functools import partial

from invoke.exceptions import Exit

from bitnet.errors import BitnetError, Unsupported
from bitnet.runtime.options import ModelOptions
from bitnet.server.narration import log_as_events, stderr_as_events
from bitnet.server.options import ServeOptions
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import load_model, open_file, say

logger = logging.getLogger(__name__)


@task(group="Serve", example="bitnet serve smollm2-135m --port 9999", aliases=("worker",))
def serve(
    c,
    options=ServeOptions(),
    model=ModelOptions(),
    common=Context(),
):
    """Serve a model over HTTP, as OpenAI's API and a chat page.

    Stop it with Ctrl-C or SIGTERM: answers that run may finish.
    """
    parts = _parts(options)
    if options.narration != "json":
        _serve(parts, options, _for_many(model), common)
        return
    *_, narrate = parts
    with log_as_events(narrate), stderr_as_events(narrate):
        try:
            _serve(parts, options, _for_many(model), common)
        except BitnetError as error:  # as an event; the program would write it as text
            code, hint = error.exit_code, error.hint or None
            narrate("worker_failed", error.message, level="ERROR", hint=hint, exit_code=code)
            raise Exit(code=code) from error


def _serve(parts, options, model, common):
    bind, run, narrated, narrate = parts
    options.key()
    options.check_tls()
    narrate(
        "startup",
        f"Starting worker on port {options.port}",
        "Good morning! Let me put my glasses on! 🌅",
        port=options.port,
    )
    ready = partial(_tell, options, narrate, common.fetch)
    opener, loader = partial(open_file, model, common), partial(load_model, model, common)
    with (
        bind(options.host, options.port) as bound,  # before a client waits for a model
        narrated(opener, loader, narrate) as running,
    ):
        run(running, options, narrate, bound=bound, ready=ready)


def _for_many(model):
    """*model* with the whole output head unless the other one is asked for.

    Clients that sample from the whole vocabulary need all of it at every token.
    """
    return replace(model, exact_head="off") if model.exact_head == "auto" else model


def _parts(options):
    """What serving needs.

    Raises:
        Unsupported: the extra is not installed.
    """
    from bitnet.server.narration import Narrator

    try:
        from bitnet.server.address import bind
        from bitnet.server.loading import narrated
        from bitnet.server.run import run
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"serving needs the package {error.name}",
            hint="pip install 'bitnet-xtask[serve]'",
        ) from None
    worker_id = options.worker_id or f"worker-{secrets.token_hex(4)}"
    write = partial(say, stream=sys.stderr)  # also when something else stands for stderr
    narrate = Narrator(write, worker_id=worker_id, as_json=options.narration == "json")
    return bind, run, narrated, narrate


def _tell(options, narrate, fetch, address):
    """Tell whoever wants to know that the worker is ready; it serves whatever comes of it."""
    if not options.calls_back:
        narrate(
            "test_mode",
            "No callback address beyond this machine: test mode",
            "Running in test mode! No callback needed! 🧪",
        )
        return
    from bitnet.hub.callback import call_back

    facts = {"worker_id": narrate.worker_id, "status": "ready", "address": address}
    try:
        call_back(options.callback_url, facts, fetch)
    except BitnetError as error:
        narrate("callback_failed", error.message, "Nobody picked up the phone! 📵", level="ERROR")
    else:
        narrate("callback_sent", "Told the pool that this worker is ready", "Hello, I am here! 👋")
