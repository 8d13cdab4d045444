"""``requests`` and parts of ``urllib3``, imported without opening a socket.

To find out whether the machine has IPv6, ``urllib3`` binds a socket on import (``_has_ipv6`` in
``urllib3/util/connection.py``). Offline means no socket at all, and whether a command is offline
may not be known before this import. So the check is skipped; addresses that cannot be reached are
skipped when connecting.

:class:`Transport` adds a limit in time to the headers of a reply: the time-out of a socket only
limits the silence between two bytes of them.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

_known = socket.has_ipv6
socket.has_ipv6 = False
try:
    import requests
    import urllib3
    import urllib3.util.connection
finally:
    socket.has_ipv6 = _known
urllib3.util.connection.HAS_IPV6 = _known

__all__ = ["Transport", "requests", "urllib3"]


class _TimedHeaders:
    """A connection that ends when the headers of a reply take longer than its time-out."""

    def getresponse(self) -> Any:
        """The reply, with its headers read."""
        late = threading.Event()
        connection: Any = self.sock  # type: ignore[attr-defined]

        def end() -> None:
            late.set()
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(float(self.timeout or 60.0), end)  # type: ignore[attr-defined]
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()  # type: ignore[misc]
        except Exception:
            if late.is_set():
                raise TimeoutError("the headers are not complete") from None
            raise
        finally:
            timer.cancel()
        if late.is_set():
            raise TimeoutError("the headers are not complete")
        return response


class _Http(_TimedHeaders, urllib3.connection.HTTPConnection):
    pass


class _Https(_TimedHeaders, urllib3.connection.HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


class Transport(requests.adapters.HTTPAdapter):
    """The transport of every request: as that of ``requests``, with a limit for headers."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Create the pool of direct connections."""
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        """The pool of connections through a proxy."""
        manager = super().proxy_manager_for(*args, **options)
        if not hasattr(manager, "proxy_config"):  # SOCKS has connections of its own
            return manager
        manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        return manager
