"""``requests`` and what is used of ``urllib3``, imported without opening a socket.

To see whether the machine has IPv6, ``urllib3`` binds a socket while it is imported (``_has_ipv6``
in ``urllib3/util/connection.py``). Offline means no socket at all, and whether a command is offline
may not be known before this import. It is made to skip that question; an address that cannot be
reached is passed over when connecting.
"""

from __future__ import annotations

import socket

_known = socket.has_ipv6
socket.has_ipv6 = False
try:
    import requests
    import urllib3
    import urllib3.util.connection
finally:
    socket.has_ipv6 = _known
urllib3.util.connection.HAS_IPV6 = _known

__all__ = ["requests", "urllib3"]
