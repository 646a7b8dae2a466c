"""A token server for SASL/OAUTHBEARER: signs JWTs for one client, and serves the keys for the broker's check.

It speaks HTTP on loopback, HTTPS where a certificate is given, and only the client credentials grant of OAuth
2.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from kafka_liveness_dagster.embedded.processes import LOOPBACK

AUDIENCE = "kafka"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _number(number: int) -> str:
    return _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))


class TokenServer:
    """A token server on a free port.

    Attributes:
        seconds: the lifetime of the next tokens.
        audience: whom the next tokens are for.
        status: the HTTP status of the next responses, instead of tokens; None for tokens.
        grants: the user agent and the scope of each issued token.
    """

    def __init__(self, client_id: str, secret: str, seconds: float) -> None:
        self._login = (client_id, secret)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.seconds: float = seconds
        self.audience = AUDIENCE
        self.status: int | None = None
        self.grants: list[tuple[str, str]] = []
        self._servers: list[ThreadingHTTPServer] = []
        self.url = self.listen()

    def listen(self, cert: object = None) -> str:
        """Open another port, with TLS where a certificate of trustme is given; return the token endpoint."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, outer._keys())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if outer.status is not None:
                    self._answer(outer.status, {"error": "temporarily_unavailable"})
                elif self._login() != outer._login:
                    self._answer(401, {"error": "invalid_client", "error_description": "no such client"})
                else:
                    (scope,) = parse_qs(body).get("scope", [""])
                    outer.grants.append((self.headers["User-Agent"] or "", scope))
                    token = outer._token(scope)
                    self._answer(
                        200, {"access_token": token, "token_type": "Bearer", "expires_in": outer.seconds}
                    )

            def _login(self) -> tuple[str, str]:
                kind, _, content = (self.headers["Authorization"] or "").partition(" ")
                assert kind == "Basic"
                name, _, secret = base64.b64decode(content).decode().partition(":")
                return unquote(name), unquote(secret)

            def _answer(self, status: int, content: object) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign] - clients that refuse the certificate
        if cert is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            cert.configure_cert(context)  # type: ignore[attr-defined]
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._servers.append(server)
        return f"http{'s' if cert else ''}://{LOOPBACK}:{server.server_address[1]}/token"

    @property
    def keys_url(self) -> str:
        """The address of the public keys, for the broker."""
        return self.url.replace("/token", "/keys")

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _keys(self) -> object:
        public = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "kid": "1",
            "use": "sig",
            "alg": "RS256",
            "n": _number(public.n),
            "e": _number(public.e),
        }
        return {"keys": [key]}

    def _token(self, scope: str) -> str:
        now = time.time()
        claims = {
            "sub": self._login[0], "iss": self.url, "aud": self.audience, "jti": str(len(self.grants)),
            "iat": int(now), "exp": int(now + self.seconds), **({"scope": scope} if scope else {}),
        }  # fmt: skip
        head = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"
