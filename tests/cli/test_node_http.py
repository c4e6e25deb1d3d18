"""What commands send to a node's HTTP listener: a password over TLS only, a delegation token never."""

from __future__ import annotations

import base64
import io
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import pytest

from ottla.cli.main import main
from tests.support import certificates

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
LOGINS = {
    "librdkafka": "sasl.username=admin\nsasl.password=top-secret\n",
    "jaas": f'sasl.jaas.config={SCRAM} username="admin" password="top-secret";\n',
    "token": f'sasl.jaas.config={SCRAM} username="admin" password="top-secret" tokenauth="true";\n',
}


@contextmanager
def listener(tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str | None]]]:
    """A port that answers each request, and the logins that came with them."""
    logins: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, logins
        finally:
            server.shutdown()
            thread.join()


def logins_of(url: str, logins: list[str | None], config: Path) -> set[str | None]:
    """What came with the requests of commands that ask this address, and no cluster."""
    with patch.dict("os.environ"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        os.environ.pop("OTTLA_BOOTSTRAP_SERVERS", None)
        for options in (["wait", "--timeout", "0"], ["top", "--once", "--interval", "0.1"]):
            asked = len(logins)
            main([*options, "--http", url, "--command-config", str(config)])
            assert len(logins) > asked, options
    return set(logins)


@pytest.mark.slow
@pytest.mark.parametrize("login", sorted(LOGINS))
def test_no_password_is_sent_without_tls(tmp_path: Path, login: str) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n{LOGINS[login]}")
    for text in ("http://127.0.0.1:{}", "HTTP://127.0.0.1:{}", "127.0.0.1:{}"):
        with listener() as (port, logins):
            assert logins_of(text.format(port), logins, config) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("login", sorted(LOGINS))
def test_over_tls_a_password_is_sent_and_a_token_is_not(tmp_path: Path, login: str) -> None:
    config = tmp_path / "client.properties"
    trust = f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.write_ca(tmp_path)}\n"
    config.write_text(f"{trust}{LOGINS[login]}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.write_pem(tmp_path, "server", certificates.server_certificate()))
    basic = "Basic " + base64.b64encode(b"admin:top-secret").decode()
    with listener(context) as (port, logins):
        sent = logins_of(f"https://127.0.0.1:{port}", logins, config)
    assert sent == {None if login == "token" else basic}
