"""An HTTP server in front of another one, which answers in its place, or loses its answers, as a test says.

>>> with Unreliable("http://127.0.0.1:8181") as proxy:  # doctest: +SKIP
...     proxy.fails = lambda method, path: 503 if method == "POST" else None  # nothing comes through
...     # The request is done, but its answer is lost
...     proxy.loses = lambda method, path: 0 if path.endswith("/orders") else None
"""

from __future__ import annotations

import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
_OF_THE_CONNECTION = ("connection", "transfer-encoding", "content-length", "keep-alive")
_NOT_PASSED_ON = (*_OF_THE_CONNECTION, "expect", "accept-encoding")  # so that bodies can be read here


class FailingProxy:
    """Passes requests on to a server of this machine.

    Attributes:
        fails: told method and path; the status to answer with instead, 0 to close the connection, None to
            pass it on.
        changes: told an answer's body; the body to give in its place.
        loses: told method and path of what was done; the status to answer with in place of its answer, or 0,
            or None.
        holds: told method and path; whether to close the connection and send it when ``release`` is called.
        asked: what came, for tests to count.
    """

    def __init__(self, target):
        self.target = urlsplit(target)
        self.asked, self.held = [], []
        self.repair()
        self._server = ThreadingHTTPServer((LOOPBACK, 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # who was to be disappointed has gone

    def repair(self):
        """From now on all comes through."""
        self.fails = self.loses = lambda _method, _path: None
        self.holds = lambda _method, _path: False
        self.changes = lambda body: body

    def release(self):
        """Send what was held back; the status of each answer."""
        held, self.held = self.held, []
        return [self.send(*request)[0].status for request in held]

    def send(self, method, path, headers, body):
        """The server's answer, and its body."""
        connection = HTTPConnection(self.target.hostname, self.target.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                if name.lower() not in _NOT_PASSED_ON:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    @property
    def url(self):
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, name="unreliable", daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FailingProxy

    def log_message(self, *_):
        """Say nothing."""

    def _any(self):
        body = self._body()
        self.proxy.asked.append((self.command, self.path))
        if self.proxy.holds(self.command, self.path):
            self.proxy.held.append((self.command, self.path, self.headers.items(), body))
            self.close_connection = True
        elif not self._is_refused(self.proxy.fails(self.command, self.path)):
            self._pass_on(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815 - http.server's names

    def _is_refused(self, status):
        if status == 0:
            self.close_connection = True
        elif status is not None:
            self._answer(status, (), b"")
        return status is not None

    def _body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _pass_on(self, body):
        answer, content = self.proxy.send(self.command, self.path, self.headers.items(), body)
        content = self.proxy.changes(content)
        if self._is_refused(self.proxy.loses(self.command, self.path)):
            return
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, answer.getheaders(), content, length)

    def _answer(self, status, headers, content, length=None):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OF_THE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
