"""Command-line options of the server; cheap to import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from bitnet.base import settings
from bitnet.base.errors import UsageError, from_os_error
from bitnet.base.files import read_bytes
from bitnet.base.machine import total_memory
from bitnet.base.options import check_bounds, option, parse_duration
from bitnet.base.trust import address, is_loopback


def _is_address(text: str) -> bool:
    """True if *text* is an address, as :func:`bitnet.base.trust.address` accepts it."""
    try:
        address(text)
    except ValueError:
        return False
    return True


def _memory() -> int:
    """Bytes of memory of this machine; 8 GB if the system does not tell."""
    return total_memory() or 8 * 10**9


@dataclass(frozen=True)
class ServeOptions:
    """Address, access and limits of a worker."""

    SECTIONS: ClassVar = {
        "Address": ("host", "port", "tls_cert", "tls_key"),
        "Access": ("api_key", "allow_unauthenticated", "allow_origin"),
        "Limits": (
            *("max_batch", "queue", "kv_memory", "max_output_tokens"),
            *("max_body", "deadline", "drain"),
        ),
        "Several models": (
            *("models", "alias", "models_idle", "memory_budget", "strict_model_name"),
        ),
        "Events": ("narration", "access_log", "worker_id", "callback_url"),
    }

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0: all", metavar="ADDRESS")
    port: int = option(9999, "port to listen on; 0: any free one", bounds=(0, 65535))
    worker_id: str = option("", "name of the worker in its events; default: random")
    callback_url: str = option(
        "",
        "URL that receives a POST when the worker is ready, unless it is on this machine",
        metavar="URL",
    )
    api_key: str = option(
        "", "key that clients must send; default: BITNET_API_KEY", metavar="KEY", needs_text=True
    )
    allow_unauthenticated: bool = option(False, "accept other machines without a key")
    tls_cert: str = option(
        "",
        "PEM file with the certificate and its chain; enables HTTPS",
        metavar="FILE",
        needs_text=True,
    )
    tls_key: str = option(
        "", "key of the certificate as PEM; default: in the same file", metavar="FILE"
    )
    max_batch: int = option(8, "answers generated at the same time", bounds=(1, None))
    queue: int = option(64, "answers that may wait; further ones get status 429", bounds=(1, None))
    kv_memory: int = option(
        0,
        "megabytes for keys and values of each loaded model; 0: a quarter of the machine's memory",
        bounds=(0, None),
    )
    max_output_tokens: int = option(4096, "most tokens of one answer", bounds=(1, None))
    max_body: int = option(16 << 20, "largest request body in bytes", bounds=(1, None))
    deadline: float = option(600.0, "seconds an answer may take")
    drain: float = option(30.0, "seconds that running answers have to finish at shutdown")
    allow_origin: list[str] = option(
        [], "web origin that may call from a browser; *: all; default: none",
        synonyms=("cors-origin",), metavar="ORIGIN",
    )  # fmt: skip
    alias: list[str] = option(
        [], "another name of the model for clients, NAME=MODEL of one of --models; may be repeated",
        metavar="NAME",
    )  # fmt: skip
    models: str = option(
        "",
        "models separated by commas, or a folder of models; each is loaded on its first request",
        metavar="MODEL,MODEL",
        needs_text=True,
    )
    models_idle: str = option(
        "10m", "unload a model of --models after this idle time: 45s, 10m, 2h, never",
        metavar="TIME",
    )  # fmt: skip
    memory_budget: int = option(
        0, "megabytes for all loaded models; 0: three quarters of the machine's memory",
        bounds=(0, None),
    )  # fmt: skip
    strict_model_name: bool = option(
        False, "refuse other names than the model's own, also if only one model is served"
    )
    access_log: bool = option(False, "write an event for each request, with status and duration")
    narration: str = option(
        "auto", "format of events on stderr; auto: console, on a terminal the address and problems",
        choices=("auto", "console", "json"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_bounds(self)
        _ = self.idle_s  # refuses a --models-idle that is not a duration
        for name in ("deadline", "drain"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"--{name} is {getattr(self, name)}, expected a number above 0")
        if self.tls_key and not self.tls_cert:
            raise UsageError("--tls-key needs --tls-cert", hint="--tls-cert FILE --tls-key FILE")
        if self.callback_url and not _is_address(self.callback_url):
            raise UsageError(f"--callback-url expects an address, got {self.callback_url!r}")
        for origin in self.allow_origin:
            if origin != "*" and (not _is_address(origin) or urlsplit(origin).path):
                raise UsageError(
                    f"--allow-origin expects a scheme and a host, got {origin!r}",
                    hint="--allow-origin https://chat.example.org, or * for every page",
                )

    def key(self) -> str:
        """Key that clients must send; empty if none is required."""
        key = self.api_key or settings.api_key() or ""
        if not key and not is_loopback(self.host) and not self.allow_unauthenticated:
            raise UsageError(
                f"--host {self.host} can be reached from other machines and there is no key",
                hint="set BITNET_API_KEY, or accept it with --allow-unauthenticated",
            )
        return key

    def check_tls(self) -> None:
        """Check the certificate and its key, before a model is loaded."""
        if not self.tls_cert:
            return
        import ssl

        def passphrase() -> str:
            raise UsageError(
                f"{self.tls_key or self.tls_cert}: the key has a passphrase",
                hint="give a key without one, in a file that only this user can read",
            )

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for file in filter(None, (self.tls_cert, self.tls_key)):
            read_bytes(Path(file))  # refuses a pipe, for which the library would wait
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key or None, passphrase)
        except ssl.SSLError as error:
            reason = error.reason or "unreadable"
            raise UsageError(
                f"--tls-cert {self.tls_cert}: no certificate with its key, as PEM ({reason})",
                hint="--tls-cert takes the server's certificate first, then its intermediates",
            ) from None
        except OSError as error:  # it does not have the name of the file
            name = self.tls_cert if not os.access(self.tls_cert, os.R_OK) else self.tls_key
            raise from_os_error(error, name) from None

    @property
    def kv_budget_bytes(self) -> int:
        """Memory budget of the KV caches in bytes."""
        return self.kv_memory * 10**6 or _memory() // 4

    @property
    def memory_bytes(self) -> int:
        """Bytes that loaded models may take."""
        return self.memory_budget * 10**6 or _memory() // 4 * 3

    @property
    def idle_s(self) -> float:
        """Seconds without a request after which a model is unloaded."""
        if self.models_idle.strip().lower() == "never":
            return float("inf")
        return parse_duration(self.models_idle, "--models-idle")

    @property
    def calls_back(self) -> bool:
        """True if another machine is to be told that the worker is ready.

        For an address on this machine the worker only writes the event ``test_mode``.
        """
        host = urlsplit(self.callback_url).hostname or ""
        return bool(host) and not is_loopback(host)
