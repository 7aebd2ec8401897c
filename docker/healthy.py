"""Whether a service answers: `healthy.py https://HOST:PORT CA`, `healthy.py http://HOST:PORT`; `healthy.py HOST:PORT`
only connects."""

from __future__ import annotations

import socket
import ssl
import sys
import urllib.request

address, *certificate = sys.argv[1:]
if address.startswith("http"):
    trusted = ssl.create_default_context(cafile=certificate[0]) if certificate else None
    urllib.request.urlopen(f"{address}/health", timeout=8, context=trusted).close()
else:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=8).close()
