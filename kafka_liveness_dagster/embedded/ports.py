"""Which loopback port? Free ones, below the range that outgoing connections take theirs from."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
_CHOICE = range(20_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a service could listen there now; a connection that is only closing does not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port nobody listens on.

    Not port 0: the system's answer lies where a client's next connection may take it before the service does.
    """
    tried = random.SystemRandom()
    return next(port for port in iter(lambda: tried.choice(_CHOICE), None) if is_free(port))


def answers(port: int, host: str = LOOPBACK) -> bool:
    """Whether something accepts a connection within a second."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
