"""Tokens for tests: an issuer with its keys, and servers of OAuth on loopback."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"
_SIZES = {"ES256": 32, "ES384": 48, "ES512": 66}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def compact(header: object, claims: object, signature: bytes = b"") -> str:
    """A token of these parts; texts are taken as they are."""
    parts = [each if isinstance(each, str) else json.dumps(each) for each in (header, claims)]
    return ".".join([*(encoded(part.encode()) for part in parts), encoded(signature)])


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token; None takes one away."""
    now = time.time()
    given = {
        "sub": "alice",
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": int(now),
        "exp": int(now) + 3600,
    } | changes
    return {name: value for name, value in given.items() if value is not None}


class Issuer:
    """Signs tokens with one key."""

    def __init__(self, algorithm: str = "RS256", key_id: str | None = "key-1") -> None:
        self.algorithm = algorithm
        self.key_id = key_id
        self.key: Any
        if algorithm[:2] in ("RS", "PS"):
            self.key = rsa.generate_private_key(65537, 2048)
        elif algorithm == "EdDSA":
            self.key = ed25519.Ed25519PrivateKey.generate()
        else:
            curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
            self.key = ec.generate_private_key(curves[algorithm])

    def jwk(self) -> dict[str, str]:
        public = self.key.public_key()
        head = {"use": "sig", "alg": self.algorithm} | ({} if self.key_id is None else {"kid": self.key_id})
        if isinstance(public, rsa.RSAPublicKey):
            numbers = public.public_numbers()
            return head | {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}
        if isinstance(public, ed25519.Ed25519PublicKey):
            return head | {"kty": "OKP", "crv": "Ed25519", "x": encoded(public.public_bytes_raw())}
        point, size = public.public_numbers(), _SIZES[self.algorithm]
        return head | {
            "kty": "EC",
            "crv": _CURVES[self.algorithm],
            "x": encoded(point.x.to_bytes(size, "big")),
            "y": encoded(point.y.to_bytes(size, "big")),
        }

    def jwks(self) -> bytes:
        return json.dumps({"keys": [self.jwk()]}).encode()

    def sign(self, signed: bytes) -> bytes:
        digest = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}.get(
            self.algorithm[2:]
        )
        if self.algorithm.startswith("RS"):
            return bytes(self.key.sign(signed, padding.PKCS1v15(), digest))
        if self.algorithm.startswith("PS"):
            assert digest is not None
            scheme = padding.PSS(padding.MGF1(digest), digest.digest_size)
            return bytes(self.key.sign(signed, scheme, digest))
        if self.algorithm == "EdDSA":
            return bytes(self.key.sign(signed))
        assert digest is not None
        numbers = utils.decode_dss_signature(self.key.sign(signed, ec.ECDSA(digest)))
        return b"".join(each.to_bytes(_SIZES[self.algorithm], "big") for each in numbers)

    def token(self, given: object = None, **header: Any) -> str:
        """A signed token; `given` are its claims, good ones if there are none. None takes a header away."""
        head: dict[str, Any] = {"alg": self.algorithm, "kid": self.key_id, "typ": "JWT"} | header
        unsigned = compact(
            {n: v for n, v in head.items() if v is not None}, claims() if given is None else given
        )
        signed = unsigned.removesuffix(".")
        return f"{signed}.{encoded(self.sign(signed.encode()))}"


Answer = Callable[[str, dict[str, list[str]], dict[str, str]], tuple[int, bytes]]


@contextlib.contextmanager
def http_server(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server on loopback: `answer` gets path, form and headers, and gives status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._respond(parse_qs(body.decode()))

        def _respond(self, form: dict[str, list[str]]) -> None:
            status, body = answer(self.path, form, dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
