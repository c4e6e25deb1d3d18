"""A console that others reach: TLS, a login as one of the cluster's users, and their rights."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from functools import partial

import pytest

from ottla.client.admin.acls import AclBinding
from ottla.client.blocking import Admin
from ottla.console.api_request import ApiRequest, ConsoleError
from ottla.console.config import ConsoleConfig, LoginMode
from ottla.console.console import Console, api_routes
from ottla.console.guard import RequestGuard
from ottla.console.server import ConsoleServer
from ottla.console.sessions import ConsoleSessions, LoginThrottle, credentials
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import LocalNode
from ottla.testing.security import LocalSecurity
from tests.console.api_client import ApiClient
from tests.support.waiting import wait_until

PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    """On all addresses, with SASL, TLS and ACLs; `alice` may read the topic `hers`."""
    security = LocalSecurity("SASL_SSL", client_auth="none")
    settings = {
        "http.listener": "https://0.0.0.0:0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:client;User:ANONYMOUS",
    }
    with LocalNode(settings, security=security) as node:
        with Admin({"bootstrap.servers": node.bootstrap_servers, **node.client_settings}) as admin:
            admin.users.set_password("alice", PASSWORD)
            admin.topics.create("hers", partitions=1)
            admin.topics.create("others", partitions=1)
            admin.acls.create(
                [
                    AclBinding("User:alice", each, AclResourceType.TOPIC, "hers")
                    for each in (AclOperation.READ, AclOperation.WRITE)
                ]
            )
        yield node


@pytest.fixture
def api(node: LocalNode) -> ApiClient:
    assert node.http_url is not None
    port = node.http_url.rpartition(":")[2]
    trusted = ssl.create_default_context(cafile=str(node.security.directory / "ca.crt"))
    return ApiClient(f"https://localhost:{port}", trusted)


def log_in(api: ApiClient, user: str, password: str) -> None:
    answer = api.send("POST", "/api/login", {"username": user, "password": password})
    assert answer.status == 200, answer
    api.token = answer.document["csrfToken"]
    assert answer.document["principal"] == f"User:{user}"


def test_nothing_is_shown_before_a_login(api: ApiClient) -> None:
    session = api.get("/api/session")
    assert (session["login"], session["loggedIn"], session["principal"]) == ("sasl", False, None)
    assert session["bootstrapServers"] is None
    assert session["mechanisms"] == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
    for path in (
        "/api/overview",
        "/api/topics",
        "/api/topics/hers/messages",
        "/api/overview/stream",
        "/api/tasks",
    ):
        answer = api.request("GET", path)
        assert (answer.status, answer.error) == (401, "LOGIN_REQUIRED")
    assert api.request("GET", "/console/").status == 200


def test_wrong_credentials_are_refused_alike(api: ApiClient) -> None:
    answers = [
        api.send("POST", "/api/login", {"username": user, "password": password})
        for user, password in (("alice", "wrong"), ("unknown", PASSWORD))
    ]
    assert [(each.status, each.document["error"]["message"]) for each in answers] == [
        (401, "the user name or the password is wrong")
    ] * 2
    assert api.cookie is None


def test_a_user_has_the_rights_of_their_acls(api: ApiClient) -> None:
    log_in(api, "alice", PASSWORD)
    assert [each["name"] for each in api.get("/api/topics")["items"]] == ["hers"]
    api.post("/api/topics/hers/messages", {"value": {"text": "mine"}})
    (message,) = api.get("/api/topics/hers/messages")["items"]
    assert message["value"]["text"] == "mine"
    for method, path, body in (
        ("GET", "/api/topics/others/messages", None),
        ("GET", "/api/topics/others", None),
        ("GET", "/api/topics/hers/files", None),
        ("GET", "/api/topics/hers/files/rows?name=00000000000000000000.log&records=true", None),
        ("GET", "/api/topics/__cluster_metadata/messages", None),
        ("GET", "/api/topics/__cluster_metadata/files", None),
        ("GET", "/api/topics/__consumer_offsets/messages", None),
        ("GET", "/api/users", None),
        ("GET", "/api/acls", None),
        ("POST", "/api/topics", {"name": "new"}),
        ("DELETE", "/api/topics/hers", None),
        ("POST", "/api/topics/others/messages", {"value": {"text": "x"}}),
        ("POST", "/api/users", {"name": "alice", "password": "x"}),
    ):
        answer = api.send(method, path, body)
        assert answer.status in (403, 404), (path, answer)
        assert "secret" not in answer.body.decode()


def test_the_cookie_is_only_for_this_server_and_ends_with_the_logout(api: ApiClient) -> None:
    answer = api.send("POST", "/api/login", {"username": "alice", "password": PASSWORD})
    cookie = answer.headers["set-cookie"]
    assert all(each in cookie for each in ("HttpOnly", "SameSite=Strict", "Secure"))
    assert PASSWORD not in answer.body.decode()
    old_token, api.token = api.token, answer.document["csrfToken"]
    assert old_token != api.token
    stolen = api.request("POST", "/api/topics", {"name": "x"}, headers={"X-Ottla-Csrf": str(old_token)})
    assert stolen.error == "CSRF"
    kept = api.cookie
    api.post("/api/logout")
    api.cookie = kept
    assert api.request("GET", "/api/topics").error == "LOGIN_REQUIRED"


def test_an_operator_sees_files_and_the_metadata_log(api: ApiClient, node: LocalNode) -> None:
    log_in(api, "client", node.client_settings["sasl.jaas.config"].split('password="')[1].split('"')[0])
    assert api.get("/api/topics/hers/files")["segments"]
    assert api.get("/api/topics/__cluster_metadata/messages")["items"]
    acl = {"principal": "User:bob", "operation": "READ", "resourceType": "TOPIC", "resourceName": "b"}
    api.post("/api/acls", acl)
    (listed,) = api.get("/api/acls", principal="User:bob")["items"]
    assert listed == {**acl, "host": "*", "permission": "ALLOW", "patternType": "LITERAL"}
    assert api.post("/api/acls/delete", listed) == {"deleted": 1}


def test_acls_hold_on_loopback_without_a_login_too() -> None:
    """The node reads its files with rights of its own, which a user of the same machine does not have."""
    settings = {
        "http.listener": "http://127.0.0.1:0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalNode(settings) as node:
        assert node.http_url is not None
        api = ApiClient(node.http_url)
        api.post("/api/topics", {"name": "closed", "partitions": 1})
        api.post("/api/topics/closed/messages", {"value": {"text": "top secret text"}})
        rows = "/api/topics/closed/files/rows?name=00000000000000000000.log&records=true"
        metadata = "/api/topics/__cluster_metadata/"
        shown = [
            "/api/topics/closed/files",
            rows,
            f"{metadata}files",
            f"{metadata}messages",
            f"{metadata}messages/one?partition=0&offset=1",
            "/api/pipelines",
        ]
        assert [api.request("GET", path).status for path in shown] == [200] * len(shown)
        with Admin(node.bootstrap_servers) as admin:
            admin.acls.create(
                [
                    AclBinding("User:alice", AclOperation.READ, AclResourceType.TOPIC, "closed"),
                    AclBinding(
                        "User:ANONYMOUS",
                        AclOperation.CLUSTER_ACTION,
                        AclResourceType.CLUSTER,
                        "kafka-cluster",
                    ),
                ]
            )

        def refused(path: str) -> bool:
            answer = api.request("GET", path)
            assert answer.status == 200 or "top secret" not in answer.body.decode()
            return answer.status == 403

        for path in shown:
            wait_until(partial(refused, path), f"{path} was not refused")


class FakeClock:
    def __init__(self) -> None:
        self.now = 0

    def wall_ms(self) -> int:
        return self.now // 1_000_000

    def monotonic_ns(self) -> int:
        return self.now


def test_passwords_cannot_be_tried_out() -> None:
    clock = FakeClock()
    throttle = LoginThrottle(clock)
    for _ in range(5):
        throttle.check("user a", "address x")
        throttle.on_failure("user a", "address x")
    for name in ("user a", "address x"):
        with pytest.raises(ConsoleError, match="too many attempts"):
            throttle.check("another", name)
    throttle.check("user b", "address y")
    clock.now += 2_000_000_000
    throttle.check("user a", "address x")
    throttle.on_failure("user a", "address x")
    clock.now += 1_500_000_000
    with pytest.raises(ConsoleError):  # the wait doubles
        throttle.check("user a")
    throttle.on_success("user a")
    throttle.check("user a")


def test_a_session_has_no_credentials_but_its_own() -> None:
    settings = {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.location": "/operator.pem",
        "ssl.key.password": "x",
        "sasl.jaas.config": "operator",
        "sasl.mechanism": "PLAIN",
    }
    assert credentials(settings, "alice", "pw", "SCRAM-SHA-256") == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "pw",
    }


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:9644", True),
        ("127.0.0.1:1", True),
        ("[::1]:9644", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.nip.io", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_only_loopback_names_reach_a_loopback_console(host: str, allowed: bool) -> None:
    guard = RequestGuard(b"s", loopback_only=True)
    request = ApiRequest("GET", "/", headers={"host": host})
    if allowed:
        guard.check_host(request)
    else:
        with pytest.raises(ConsoleError):
            guard.check_host(request)


def test_a_console_on_another_loopback_address_is_reached_by_it() -> None:
    with LocalNode({"http.listener": "http://127.0.0.2:0"}) as node:
        assert node.http_url is not None
        assert "//127.0.0.2:" in node.http_url
        api = ApiClient(node.http_url)
        assert api.get("/api/session")["loggedIn"]
        assert api.request("GET", "/console/").status == 200
        assert api.request("GET", "/api/session", headers={"Host": "127.0.0.3"}).status in (403, 421)


async def test_attempts_from_elsewhere_do_not_keep_a_user_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise ConsoleError(401, "SASL_AUTHENTICATION_FAILED", "wrong")

    runtime = Runtime.real(pool_workers=1)
    monkeypatch.setattr(ConsoleSessions, "_authenticated", refuse)
    sessions = ConsoleSessions(runtime, ConsoleConfig({}, LoginMode.SASL, ("PLAIN",)))
    codes = []
    for peer in (*["127.0.0.2"] * 9, "127.0.0.1", "2001:db8::1", "2001:db8::2"):
        with pytest.raises(ConsoleError) as refused:
            await sessions.log_in("admin", "guess", None, peer)
        codes.append(refused.value.code)
    assert codes[5:9] == ["BUSY"] * 4
    assert codes[9:] == ["SASL_AUTHENTICATION_FAILED"] * 3
    for peer in (f"2001:db8::{n}" for n in range(5)):
        with pytest.raises(ConsoleError) as refused:
            await sessions.log_in("admin", "guess", None, peer)
    assert refused.value.code == "BUSY"
    runtime.close()


async def test_an_address_opens_a_console_once_and_the_next_one_is_shown() -> None:
    """Every user of the machine reaches the port: who has not the address that was printed may do nothing."""
    runtime = Runtime.real(pool_workers=1)
    config = ConsoleConfig({"bootstrap.servers": "127.0.0.1:1"}, LoginMode.ADDRESS, principal="User:admin")
    shown: list[str] = []
    try:
        async with ConsoleServer(runtime, config, "127.0.0.1", 0, on_address=shown.append) as server:
            base = f"http://127.0.0.1:{server.port}"

            def visit() -> None:
                other, browser = ApiClient(base), ApiClient(base)
                for path in ("/", "/?token=", "/?token=0", "/?token=" + "0" * 64):
                    assert other.request("GET", path).status == 302
                    assert other.cookie is None
                session = other.get("/api/session")
                assert (session["loggedIn"], session["principal"]) == (False, None)
                assert other.request("GET", "/api/topics").error == "LOGIN_REQUIRED"
                assert other.send("POST", "/api/topics", {"name": "x"}).error == "LOGIN_REQUIRED"
                opening = shown[0].removeprefix(base)
                assert browser.request("GET", opening).headers["location"] == "/console/"
                session = browser.get("/api/session")
                assert (session["loggedIn"], session["principal"]) == (True, "User:admin")
                other.request("GET", opening)
                assert other.cookie is None
                other.request("GET", shown[1].removeprefix(base))
                assert other.get("/api/session")["loggedIn"]

            await asyncio.to_thread(visit)
    finally:
        runtime.close()
    assert len(set(shown)) == 3


@pytest.mark.parametrize("login", list(LoginMode))
async def test_a_read_only_console_changes_nothing_and_one_without_payloads_shows_none(
    login: LoginMode,
) -> None:
    """No endpoint is forgotten: each one that changes something, and each that shows messages."""
    runtime = Runtime.real(pool_workers=1)
    config = ConsoleConfig({"bootstrap.servers": "127.0.0.1:1"}, login, read_only=True, payloads=False)
    console = Console(runtime, config)
    try:
        session = await console.session(ApiRequest("GET", "/api/session", headers={"host": "localhost"}))
        assert isinstance(session.body, bytes)
        token = session.body.decode().partition('"csrfToken":"')[2].partition('"')[0]
        headers = {"host": "localhost", "x-ottla-csrf": token, "content-type": "application/json"}
        changes = shows = 0
        for route in api_routes():
            answer = (
                await console.answer(route, ApiRequest(route.method, route.path, headers=headers, data=b"{}"))
                if (route.method != "GET" or route.payloads)
                else None
            )
            if answer is None:
                continue
            assert isinstance(answer.body, bytes)
            text = answer.body.decode()
            if login is not LoginMode.NONE:
                assert "LOGIN_REQUIRED" in text, route
            elif route.method != "GET":
                changes += 1
                assert "READ_ONLY" in text, route
            else:
                shows += 1
                assert "NO_PAYLOADS" in text, route
        assert login is not LoginMode.NONE or (changes > 15 and shows == 6)
    finally:
        await console.close()
        runtime.close()
