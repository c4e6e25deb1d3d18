"""Who may ask a node over HTTP on an address that other machines reach."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.support import certificates
from tests.support.tokens import AUDIENCE, ISSUER, Issuer, claims

from ottla.cli.main import main
from ottla.client.admin import Admin
from ottla.client.admin.acls import AclBinding
from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.node_config import NodeConfig
from ottla.node.http import access
from ottla.node.http.mounts import MountAccess
from ottla.node.node import Node
from ottla.protocol import scram
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.scram import ScramMechanism, salted_password
from ottla.runtime.http_server import HttpMount, HttpRoute, HttpServerRequest, HttpServerResponse
from ottla.runtime.runtime import Runtime


async def show(request: HttpServerRequest) -> HttpServerResponse:
    principal = None if request.principal is None else str(request.principal)
    return HttpServerResponse.json({"principal": principal})


async def page() -> HttpMount:
    return HttpMount((HttpRoute("GET", "/{path*}", show),))


@asynccontextmanager
async def serving(directory: Path, **settings: str) -> AsyncIterator[Node]:
    """A node with pages of each kind."""
    runtime = Runtime.real(guest=True)
    node = Node(
        runtime,
        NodeConfig(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(directory / "data"),
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        ),
    )
    node.shared.http.mount("/protected", page)
    node.shared.http.mount("/public", page)
    node.shared.http.mount("/", page, MountAccess.OWN)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()
        runtime.close()


async def ask(
    node: Node,
    path: str,
    user: str | None = None,
    tls: ssl.SSLContext | None = None,
    token: str | None = None,
) -> tuple[int, Any]:
    """The status, and the document or the headers of an error."""
    endpoint = node.shared.http.endpoint
    assert endpoint is not None
    scheme = "https" if endpoint.protocol.tls else "http"
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{endpoint.port}{path}")
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")

    def fetch() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=60, context=tls) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers

    return await asyncio.to_thread(fetch)


def command(*arguments: str) -> Any:
    """What a command prints that asks nodes over HTTP, and no cluster."""
    out = io.StringIO()
    with redirect_stdout(out), patch.dict("os.environ"):
        os.environ.pop("OTTLA_BOOTSTRAP_SERVERS", None)
        assert main([*arguments, "--json"]) == 0
    return json.loads(out.getvalue())


def trusting(directory: Path, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.write_ca(directory, "trusted"))
    if client is not None:
        issued = certificates.client_certificate(client)
        context.load_cert_chain(certificates.write_pem(directory, "client", issued))
    return context


def tls_settings(directory: Path) -> dict[str, str]:
    return {
        "listener.name.http.ssl.keystore.type": "PEM",
        "listener.name.http.ssl.keystore.location": certificates.write_pem(
            directory, "server", certificates.server_certificate()
        ),
        "listener.name.http.ssl.truststore.type": "PEM",
        "listener.name.http.ssl.truststore.location": certificates.write_ca(directory),
        "listener.name.http.ssl.client.auth": "requested",
    }


async def test_without_tls_only_health_and_what_is_public_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path, http_listener="http://0.0.0.0:0", http_public_paths="/public") as node:
        assert await ask(node, "/health/ready") == (200, {"status": "ready"})
        assert await ask(node, "/health/live") == (200, {"status": "live"})
        assert (await ask(node, "/public/x")) == (200, {"principal": "User:ANONYMOUS"})
        for path in ("/protected/x", "/console", "/", "/publicity", "/%70ublic/x", "/public%2Fx"):
            assert (await ask(node, path))[0] == 403, path
            # A password would be there for all to read.
            assert (await ask(node, path, "admin:secret"))[0] == 403, path


@pytest.mark.parametrize("paths", ["/", "/console,/api", "/public,/"])
async def test_no_list_of_public_paths_opens_the_console_without_tls(tmp_path: Path, paths: str) -> None:
    """Its users would send their passwords over the network as text."""
    async with serving(tmp_path, http_listener="http://0.0.0.0:0", http_public_paths=paths) as node:
        for path in ("/", "/console", "/console/", "/api/login"):
            assert (await ask(node, path))[0] == 403, path
        if "," not in paths:
            assert (await ask(node, "/protected/x")) == (200, {"principal": "User:ANONYMOUS"})


@pytest.mark.slow
async def test_with_tls_clients_log_in(tmp_path: Path) -> None:
    settings = {**tls_settings(tmp_path), "http_listener": "https://0.0.0.0:0"}
    async with serving(tmp_path, **settings) as node:
        anonymous = trusting(tmp_path)
        assert await ask(node, "/health/ready", tls=anonymous) == (200, {"status": "ready"})
        status, headers = await ask(node, "/protected", tls=anonymous)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="ottla"')
        # What logs its clients in itself is asked, and is not given a principal.
        assert await ask(node, "/console", tls=anonymous) == (200, {"principal": None})

        async with Admin(f"127.0.0.1:{node.client_endpoints()[0].port}") as admin:
            await admin.users.set_password("alice", "wonder:land", mechanism="SCRAM-SHA-512")
            await admin.users.set_password("alice", "wonderland", mechanism="SCRAM-SHA-256")
        for password in ("wonder:land", "wonderland"):
            for _ in range(2):
                known = await ask(node, "/protected", f"alice:{password}", anonymous)
                assert known == (200, {"principal": "User:alice"})
        for wrong in ("alice:wrong", "bob:wonderland", "alice:", ":", "alice"):
            assert (await ask(node, "/protected", wrong, anonymous))[0] == 401, wrong
        _, ready = await ask(node, "/health/ready", "alice:wonderland", anonymous)
        assert ready["checks"]["started"] == "ok"
        async with Admin(f"127.0.0.1:{node.client_endpoints()[0].port}") as admin:
            await admin.users.set_password("alice", "another", mechanism="SCRAM-SHA-256")
        assert (await ask(node, "/protected", "alice:wonderland", anonymous))[0] == 401

        by_certificate = trusting(tmp_path, "CN=prometheus")
        assert await ask(node, "/protected", tls=by_certificate) == (200, {"principal": "User:CN=prometheus"})

        # Commands log in as clients of Kafka do.
        assert node.shared.http.endpoint is not None
        url = f"https://127.0.0.1:{node.shared.http.endpoint.port}"
        config = tmp_path / "client.properties"
        config.write_text(
            f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.write_ca(tmp_path)}\n"
            "sasl.username=alice\nsasl.password=another\n"
        )
        options = ("--http", url, "--command-config", str(config))
        assert (await asyncio.to_thread(command, "wait", *options))["ready"] == [url]
        top = ("top", "--once", "--interval", "0.1", *options)
        shown = await asyncio.to_thread(command, *top)
        assert shown["nodes"][url]["leaders"] is not None
        config.write_text(config.read_text().replace("another", "wrong"))
        shown = await asyncio.to_thread(command, *top)
        assert "status 401: it needs a login (--command-config)" in shown["nodes"][url]["error"]


@pytest.mark.slow
async def test_a_token_of_the_identity_provider_logs_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer, keys = Issuer(), tmp_path / "jwks.json"
    keys.write_bytes(issuer.jwks())
    settings = {
        **tls_settings(tmp_path),
        "http_listener": "https://0.0.0.0:0",
        "sasl_oauthbearer_jwks_endpoint_url": keys.as_uri(),
        "sasl_oauthbearer_expected_issuer": ISSUER,
        "listener.name.http.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    async with serving(tmp_path, **settings) as node:
        tls = trusting(tmp_path)
        status, headers = await ask(node, "/protected", tls=tls)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="ottla", Bearer realm="ottla"')
        good = issuer.token()
        assert await ask(node, "/protected", tls=tls, token=good) == (200, {"principal": "User:alice"})
        wrong = {
            "it expired": issuer.token(claims(exp=1_700_000_000, iat=1_600_000_000)),
            "its issuer (iss) is not": issuer.token(claims(iss="https://other.example")),
            "it is for another audience": issuer.token(claims(aud="other")),
            "none of the keys": Issuer(key_id="key-2").token(),
            "its signature is wrong": Issuer().token(),
            "the token is refused": good[:20],
        }
        for token in wrong.values():
            status, headers = await ask(node, "/protected", tls=tls, token=token)
            assert status == 401
            assert headers["WWW-Authenticate"] == 'Bearer realm="ottla", error="invalid_token"'
        lines = [record.getMessage() for record in caplog.records if "refused a login" in record.getMessage()]
        assert [why in line for why, line in zip(wrong, lines, strict=True)] == [True] * len(wrong)
        assert node.shared.http.refused_logins == len(wrong)
        assert not any(token in caplog.text for token in wrong.values())


@pytest.mark.slow
async def test_where_no_keys_are_named_a_token_is_no_login(tmp_path: Path) -> None:
    settings = {**tls_settings(tmp_path), "http_listener": "https://0.0.0.0:0"}
    async with serving(tmp_path, **settings) as node:
        status, headers = await ask(node, "/protected", tls=trusting(tmp_path), token=Issuer().token())
        assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="ottla"')


async def test_where_there_are_acls_clients_need_to_describe_the_cluster(tmp_path: Path) -> None:
    settings = {
        **tls_settings(tmp_path),
        "http_listener": "https://0.0.0.0:0",
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    async with serving(tmp_path, **settings) as node:
        by_certificate = trusting(tmp_path, "CN=prometheus")
        assert (await ask(node, "/protected", tls=by_certificate))[0] == 403
        assert await ask(node, "/health/ready", tls=by_certificate) == (200, {"status": "ready"})
        async with Admin(f"127.0.0.1:{node.client_endpoints()[0].port}") as admin:
            describe = AclBinding(
                "User:CN=prometheus", AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME
            )
            await admin.acls.create([describe])
        async with asyncio.timeout(60):
            while (await ask(node, "/protected", tls=by_certificate))[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def add_users(node: Node) -> None:
    async with Admin(f"127.0.0.1:{node.client_endpoints()[0].port}") as admin:
        for name, number, iterations in (
            ("short", 256, 4_096),
            ("long", 512, 4_096),
            ("both", 256, 4_096),
            ("both", 512, 4_096),
        ):
            mechanism = f"SCRAM-SHA-{number}"
            await admin.users.set_password(name, "secret", mechanism=mechanism, iterations=iterations)


@pytest.mark.slow
async def test_a_user_who_does_not_exist_takes_the_same_work_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[tuple[str, int]] = []

    def counted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        work.append((mechanism.name, iterations))
        return salted_password(mechanism, password, salt, iterations)

    settings = {**tls_settings(tmp_path), "http_listener": "https://0.0.0.0:0"}
    async with serving(tmp_path, **settings) as node:
        await add_users(node)
        monkeypatch.setattr(scram, "salted_password", counted)
        tls, refused = trusting(tmp_path), {}
        for name in ("unknown", "short", "long", "both"):
            work.clear()
            assert (await ask(node, "/protected", f"{name}:wrong", tls))[0] == 401
            refused[name] = list(work)
        each_time = [("SCRAM_SHA_256", 4_096), ("SCRAM_SHA_512", 4_096)]
        assert refused == dict.fromkeys(refused, each_time)
        # Nor does it tell, when it fits, by which mechanism.
        work.clear()
        assert (await ask(node, "/protected", "both:secret", tls))[0] == 200
        assert len(work) == 2


@pytest.mark.slow
async def test_each_refused_login_is_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**tls_settings(tmp_path), "http_listener": "https://0.0.0.0:0"}
    async with serving(tmp_path, **settings) as node:
        await add_users(node)
        tls = trusting(tmp_path)
        for login in ("short:hunter2", "two\nlines:hunter2"):
            assert (await ask(node, "/protected", login, tls))[0] == 401
        assert (await ask(node, "/protected", "short:secret", tls))[0] == 200
        lines = [record.getMessage() for record in caplog.records if "refused a login" in record.getMessage()]
        assert [line.partition(": ")[2] for line in lines] == [
            "the name or the password of 'short' is wrong",
            "the name or the password of 'two\\nlines' is wrong",
        ]
        assert all(line.startswith("refused a login from 127.0.0.1:") for line in lines)
        assert "hunter2" not in caplog.text
        assert node.shared.http.refused_logins == 2


async def test_logins_from_one_address_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of clients that do not wait for the answer."""
    settings = {**tls_settings(tmp_path), "http_listener": "https://0.0.0.0:0"}
    async with serving(tmp_path, **settings) as node:
        await add_users(node)
        tls = trusting(tmp_path)
        assert (await ask(node, "/protected", "short:secret", tls))[0] == 200
        monkeypatch.setattr(access, "_FAILURE_SECONDS", 3_000.0)
        monkeypatch.setattr(access, "_MAX_LINE_SECONDS", 4_000.0)
        endpoint = node.shared.http.endpoint
        assert endpoint is not None
        assert node.shared.http._access is not None
        in_line = node.shared.http._access._next_login
        for number in (1, 2):
            _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port, ssl=tls)
            login = b"Authorization: Basic " + base64.b64encode(b"long:guess")
            writer.write(b"\r\n".join((b"GET /protected HTTP/1.1", b"Host: a", login, b"", b"")))
            until = asyncio.get_running_loop().time() + 3_000 * number - 1_500
            async with asyncio.timeout(60):
                while in_line.get("127.0.0.1", 0.0) < until:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            writer.transport.abort()
        assert (await ask(node, "/protected", "long:guess", tls))[0] == 429
        assert node.shared.http.refused_logins >= 1
        # A scraper whose login is known does not wait behind them.
        assert (await ask(node, "/protected", "short:secret", tls))[0] == 200


@pytest.mark.parametrize(
    "text", ["127.0.0.1:9644", "ftp://127.0.0.1:1", "http://127.0.0.1", "http://a:70000", "http://a:1/path"]
)
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.listener: expected http://host:port"):
        NodeConfig({"http.listener": text})
