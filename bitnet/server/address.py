"""The listening address: bound before the model is loaded, accepting connections after."""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bitnet.base.errors import UsageError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["address_of", "bind", "listen"]

_HOSTS = "--host takes an address of this machine: 127.0.0.1, or 0.0.0.0 for every one"


def bind(host: str, port: int) -> socket.socket:
    """A socket at *host* and *port* that does not accept connections yet.

    Args:
        host: a name or address of this machine.
        port: 0: a free one.

    Raises:
        UsageError: the address is in use, or does not belong to this machine.
        BitnetError: the system does not permit it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UsageError(f"--host {host}: {error.strerror}", hint=_HOSTS) from None
    with _explain_errors(f"{host}:{port}"):
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Accept connections at *bound*."""
    with _explain_errors(address_of(bound)):
        bound.listen(backlog)


def address_of(bound: socket.socket) -> str:
    """Host and port, as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _explain_errors(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        known = from_os_error(error, address)
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(known.message, hint=_HOSTS) from error
        refusal = UsageError if error.errno == errno.EADDRINUSE else type(known)
        raise refusal(known.message, hint="choose another port; a free one: --port 0") from error
