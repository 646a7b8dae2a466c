"""A network that can fall silent: TCP in the midst of two programs, without a reset and without an end.

>>> with SilentProxy(15002) as proxy:  # doctest: +SKIP
...     proxy.fall_silent()  # open connections stay, new ones are accepted, and not a byte comes through
...     proxy.resume()  # what was on its way comes, as a retransmission does
...     proxy.forget()  # as a firewall forgets: what is connected stays silent for good, new connections work
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

LOOPBACK = "127.0.0.1"
_CHUNK = 65_536


class SilentProxy:
    """Passes connections on to a port of this machine, as long as it talks."""

    def __init__(self, target_port, port=0):
        self._target = target_port
        self._listening = socket.create_server((LOOPBACK, port))
        self.port = self._listening.getsockname()[1]
        self._open = []
        self._lock = threading.Lock()
        self._talks = threading.Event()
        self._talks.set()
        self.accepted = 0

    def __enter__(self):
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listening.close()
        with self._lock:
            connections, self._open = self._open, []
        for one in connections:
            one.close()

    def fall_silent(self):
        """From now on not a byte comes through, in either direction."""
        self._talks.clear()

    def resume(self):
        """All goes on."""
        self._talks.set()

    def forget(self):
        """Connections of now stay open and silent for good; new ones come through."""
        with self._lock:
            for one in self._open:
                one.forgotten = True
        self._talks.set()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection((LOOPBACK, self._target))
            except OSError:
                client.close()  # nobody is behind us now
                continue
            one = _Connection(client, server, self._talks)
            with self._lock:
                self._open = [*(other for other in self._open if not other.over), one]
            self.accepted += 1
            one.start()


class _Connection:
    def __init__(self, client, server, talks):
        self._client, self._server, self._talks = client, server, talks
        self.forgotten, self._pumps = False, 2
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self):
        for source, sink in ((self._client, self._server), (self._server, self._client)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @property
    def over(self):
        """Whether both ends have said that they are done."""
        return self._pumps == 0

    def close(self):
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pump(self, source, sink):
        try:
            while chunk := source.recv(_CHUNK):
                self._talks.wait()
                if self.forgotten:
                    return  # the sockets stay open
                sink.sendall(chunk)
            self._talks.wait()
            if self.forgotten:
                return
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            if self.forgotten:
                return
            self.close()  # a reset here is one there
        self._pumps -= 1
        if self.over:
            self.close()
