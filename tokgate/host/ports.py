"""TCP ports: a free one, and who holds a taken one."""

from __future__ import annotations

import random
import socket
import threading

from tokgate.errors import PortTaken
from tokgate.host import proc

# SGLang takes port + 10000 for gRPC and others near by, so the port must leave room below 65536; above 32768
# Linux gives ports to outgoing connections, which could take one in between.
FIRST, LAST = 20000, 32000

# Not the generator that everybody shares: two processes that seed it alike (as hypothesis does) would be given the
# same ports, and each would take the other's server for its own.
_random = random.SystemRandom()
_given: set[int] = set()
_lock = threading.Lock()


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens and that this process has not given out before.

    Another process can still take it before the engine binds it; the engine then dies and the launch
    says :class:`~tokgate.errors.PortTaken`.

    Raises:
        PortTaken: none was found.
    """
    with _lock:
        for _ in range(1000):
            port = _random.randint(FIRST, LAST)
            if port not in _given and is_free(port, host):
                _given.add(port)
                return port
    raise PortTaken(f"no free port between {FIRST} and {LAST} on {host} in 1000 tries")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind the port now. Connections in TIME_WAIT do not hold it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Who listens on the port, for messages: ``pid 123 (python)``, or why that is not known."""
    inodes = proc.listeners(port)
    if not inodes:
        return "no listening socket is visible"
    found = proc.holders(inodes)
    if not found:
        return "its holder is not visible from here (another user or container)"
    return ", ".join(f"pid {process.pid} ({proc.title(process)})" for process in found)
