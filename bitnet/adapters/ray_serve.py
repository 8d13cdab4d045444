"""The worker as a Ray Serve application: replicas on the nodes of a cluster, behind one address.

    ray start --head
    serve run bitnet.adapters.ray_serve:app model=smollm2-135m max_replicas=4

Each replica is a worker with its own copy of the model. Ray places replicas, adds and removes them
by the length of their queues, and lets one finish its answers before it is removed. The ``Door``,
which receives all requests, sends each to the replica that answered the beginning of its
conversation last, since its cache holds that prefix. If a replica is lost before anything of its
answer was sent on, the request is repeated. A stream that has begun is not repeated: it ends with
an error event in its dialect.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.exceptions import RayActorError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.commands.context import Context
from bitnet.server.exchange import last_event
from bitnet.server.refusals import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from bitnet.server.guard import Event, Receive, Scope, Send

logger = logging.getLogger(__name__)

PREFIX_CHARACTERS = 256  # beginning of a long prompt that decides which replica gets it
TRIES = 4  # most replicas that a request is sent to, one after another
# The door only waits, so it takes no CPU; if the head node is lost, so is the cluster.
ON_HEAD = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
# Options of app, and their defaults.
_NUMBERS = {
    "min_replicas": 1, "max_replicas": 1, "max_batch": 8, "queue": 64, "threads": 0, "drain": 30,
    "max_output_tokens": 4096, "cpus": 1,
}  # fmt: skip
_MAY_BE_0 = ("min_replicas", "threads", "drain")  # the others are at least 1
# Errors after which another attempt may succeed: the replica is gone, or as many requests as the
# deployment admits already wait for one.
_LOST = (RayActorError, WorkerCrashedError, BackPressureError)


class Replica:
    """A worker in a process of the cluster."""

    def __init__(self, model: str, options: Mapping[str, int], api_key: str) -> None:
        """Load *model*, a name or a path that this node knows, with the numbers of :func:`app`."""
        from bitnet.formats.containers import open_checkpoint
        from bitnet.formats.model_files import model_name
        from bitnet.runtime.language_model import load_checkpoint
        from bitnet.server.app import create_app
        from bitnet.server.metrics import Metrics
        from bitnet.server.models import Models
        from bitnet.server.narration import narrator
        from bitnet.server.serve_options import ServeOptions
        from bitnet.server.slot import Slot

        path = Context().model(model)
        threads = options["threads"]
        slot = Slot(
            model_name(path),
            path,
            lambda: open_checkpoint(path),
            lambda checkpoint: load_checkpoint(checkpoint, threads=threads),
            aliases=(model,),
        )
        worker_id = ray.get_runtime_context().get_actor_id() or "worker"
        narrate = narrator(_write, worker_id=worker_id, form="json")
        metrics = Metrics()
        self._models = Models(
            [slot],
            metrics,
            narrate,
            max_batch=options["max_batch"],
            queue=options["queue"],
            max_output_tokens=options["max_output_tokens"],
        )
        self._models.load_first()
        # The door passes on requests with whatever Host header their clients sent.
        access = ServeOptions(
            host="*", api_key=api_key, allow_unauthenticated=True, worker_id=worker_id
        )
        self._app = create_app(self._models, metrics, narrate, access)

    @serve.multiplexed(max_num_models_per_replica=256)
    async def remember(self, prefix: str) -> str:
        """Note that this replica holds *prefix*; Ray tells the door, which sends more of it here.

        Ray forgets the prefixes that were used least recently, as the cache of prefixes does.
        """
        return prefix

    async def respond(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Event]:
        """The ASGI events of the response to the request *scope* with *body*."""
        if prefix := serve.get_multiplexed_model_id():
            await self.remember(prefix)
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        disconnected = asyncio.Event()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Event:
            if parts:
                return parts.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app({**scope, "app": self._app}, receive, events.put)
            finally:
                await events.put(None)

        running = asyncio.ensure_future(run())
        try:
            while (event := await events.get()) is not None:
                yield dict(event)
            await running
        finally:
            disconnected.set()  # the client has gone, or everything is sent
            await asyncio.wait([running])

    def check_health(self) -> None:
        """Have Ray replace a replica whose model's thread has ended."""
        if self._models.dead is not None:
            raise RuntimeError("the model's thread has ended")

    def __del__(self) -> None:
        """End what runs, once Ray has let the answers finish."""
        if models := getattr(self, "_models", None):
            models.close()


async def forward(scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a request on to the door of this process."""
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    await serve.get_replica_context().servable_object.answer(scope, receive, send)


@serve.ingress(lambda: forward)  # Ray calls this function to get the ASGI application
class Door:
    """Sends each request to a replica, and to another one if the first is lost."""

    def __init__(self, replicas: Any, max_body: int = 16 << 20) -> None:
        """A door to *replicas*, a handle of Ray Serve's, for bodies up to *max_body* bytes."""
        self._replicas = replicas.options(stream=True)
        self._max_body = max_body

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = b""
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event.get("body", b"")
            if len(body) > self._max_body:
                await _refuse(
                    send, scope["path"], 413, f"the body has more than {self._max_body:,} bytes"
                )
                return
            if not event.get("more_body"):
                break
        names = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string",
                 "headers", "client", "server")  # fmt: skip
        facts = {name: scope[name] for name in names if name in scope}
        facts.setdefault("raw_path", scope["path"].encode())
        replicas = self._replicas.options(multiplexed_model_id=prefix_of(body))
        for attempt in range(TRIES):
            parts = 0  # parts of the body that were sent on
            held: list[Event] = []  # events not sent on yet: the status waits for the first part
            try:
                async for event in replicas.respond.remote({**facts, "root_path": ""}, body):
                    held.append(event)
                    while held and event["type"] == "http.response.body":
                        parts += held[0]["type"] == "http.response.body"
                        await send(held.pop(0))
                # If the replica sent nothing, *event* is not a part of a body: it is what was
                # received above, or an event of an earlier attempt.
                if event["type"] != "http.response.body" or event.get("more_body"):
                    raise RayActorError(error_msg="the replica left its answer unfinished")
                return
            except Exception as error:
                if parts:
                    logger.warning("a stream was cut: %s", error)
                    message = "the replica that wrote this answer was lost"
                    lost = Refused(502, message, kind="server_error")
                    last = last_event(scope["path"], lost, parts).encode()
                    await send({"type": "http.response.body", "body": last, "more_body": False})
                    return
                if not isinstance(error, _LOST):
                    raise
                if attempt + 1 == TRIES:
                    if isinstance(error, BackPressureError):
                        message = "every replica is busy, and too many requests wait for one"
                        await _refuse(
                            send, scope["path"], 429, message, "rate_limit_error", "queue_full"
                        )
                    else:
                        message = "the replicas were lost"
                        await _refuse(send, scope["path"], 503, message, "server_error")
                    return
                await asyncio.sleep(0.1 * 2**attempt)


def prefix_of(body: bytes) -> str:
    """Digest of what *body* shares with later requests of its conversation; empty if nothing.

    They share the model, the field ``system`` and the first two messages, or the first characters
    of a long prompt.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    beginning = [fields.get("system")]
    for turns in (fields.get("messages"), fields.get("input"), fields.get("prompt")):
        if isinstance(turns, list):
            beginning += turns[:2]
        elif isinstance(turns, str) and len(turns) >= PREFIX_CHARACTERS:
            beginning.append(turns[:PREFIX_CHARACTERS])
    if not any(beginning):
        return ""
    identity = json.dumps([fields.get("model"), beginning])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def app(args: Mapping[str, str]) -> Any:
    """The application that ``serve run bitnet.adapters.ray_serve:app model=NAME`` deploys.

    Args:
        args: ``model``, a name that ``bitnet serve`` takes, or a path that exists on every node;
            and as far as they are given ``min_replicas`` and ``max_replicas`` (1), ``cpus`` (1)
            and ``threads`` (0: as many as *cpus*) of a replica, its ``max_batch`` (8) and ``queue``
            (64), ``max_output_tokens`` (4096), and ``drain``, seconds for the answers of a replica
            that is removed (30). The key of clients is ``BITNET_API_KEY``. If all replicas are
            full, as many requests as ``max_replicas`` of them hold may wait; further ones get
            status 429.
    """
    if unknown := sorted({*args} - {*_NUMBERS, "model"}):
        raise UsageError(f"{unknown[0]} is not an option", hint=", ".join(["model", *_NUMBERS]))
    if "model" not in args:
        raise UsageError("model is missing", hint="serve run bitnet.adapters.ray_serve:app model=M")
    try:
        options = _NUMBERS | {name: int(text) for name, text in args.items() if name != "model"}
    except ValueError as error:
        raise UsageError(f"an option is not a whole number: {error}") from None
    for name, number in options.items():
        least = 0 if name in _MAY_BE_0 else 1
        if number < least:
            raise UsageError(f"{name} is {number}, expected at least {least}", field=name)
    options["threads"] = options["threads"] or options["cpus"]
    places = options["max_batch"] + options["queue"]
    most = max(options["max_replicas"], options["min_replicas"])
    waiting = places * most  # requests that may wait in the door, while every replica is full
    replicas = serve.deployment(
        Replica,
        name="Replica",
        ray_actor_options={"num_cpus": options["cpus"]},
        max_ongoing_requests=places,
        max_queued_requests=waiting,
        graceful_shutdown_timeout_s=options["drain"],
        health_check_period_s=2,
        autoscaling_config={
            "min_replicas": options["min_replicas"],
            "max_replicas": most,
            "target_ongoing_requests": options["max_batch"],
        },
    ).bind(args["model"], options, settings.api_key() or "")
    # In the door are the requests of all replicas, those that wait, and those it will refuse.
    in_door = max(4096, 4 * waiting)
    return serve.deployment(Door, max_ongoing_requests=in_door, ray_actor_options=ON_HEAD).bind(
        replicas
    )


async def _refuse(
    send: Send,
    path: str,
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
) -> None:
    """Refuse a request of *path*, in the form of its dialect."""
    body = json.dumps(Refused(status, message, kind=kind, code=code).body(path)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"retry-after", b"1")] if status in (429, 503) else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
