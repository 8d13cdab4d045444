"""``requests`` and parts of ``urllib3``, imported without opening a socket.

To find out whether the machine has IPv6, ``urllib3`` binds a socket on import (``_has_ipv6`` in
``urllib3/util/connection.py``). Offline means no socket at all, and whether a command is offline
may not be known before this import. So the check is skipped; addresses that cannot be reached are
skipped when connecting.
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
