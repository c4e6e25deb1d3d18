"""The console's server: from a request to its endpoint, with the checks that all of them share.

A `Console` belongs to one event loop. Its routes can be served by the same loop, or by that of a node through
`host`, which runs a console in a thread of its own.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib import import_module, resources
from typing import Any, Final, TypeAlias

from ottla import __version__
from ottla.console.api_request import ApiRequest, ConsoleError, error_of
from ottla.console.config import ConsoleConfig, LoginMode
from ottla.console.context import MAX_BODY_BYTES, ApiContext, ConsoleRoute, ConsoleServices, WorkLimits
from ottla.console.files.inspector import NodeInspector
from ottla.console.guard import CSRF_HEADER, SAFE_METHODS, SECURITY_HEADERS, RequestGuard
from ottla.console.messages.payload import PayloadDecoder
from ottla.console.sessions import COOKIE, KEY, ConsoleSession, ConsoleSessions
from ottla.protocol.errors import KafkaError
from ottla.runtime.http_server import HttpRoute, HttpServerRequest, HttpServerResponse
from ottla.runtime.runtime import Runtime
from ottla.schemas.registry import SchemaRegistry

_log = logging.getLogger(__name__)

_PAGES: Final = (
    "overview",
    "topics",
    "configs",
    "messages",
    "groups",
    "transactions",
    "security",
    "storage",
    "schemas",
)
_STATIC: Final = "/console"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json; charset=utf-8",
    "png": "image/png",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
}
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_HEADERS: Final = ("host", "origin", "sec-fetch-site", "content-type", CSRF_HEADER)
_JSON: Final = "application/json; charset=utf-8"

Run: TypeAlias = Callable[[Coroutine[Any, Any, HttpServerResponse]], Awaitable[HttpServerResponse]]
Endpoint: TypeAlias = Callable[[ApiRequest], Coroutine[Any, Any, HttpServerResponse]]


def api_routes() -> list[ConsoleRoute]:
    """All endpoints that need a session."""
    found: list[ConsoleRoute] = []
    for page in (*_PAGES, "pipelines"):
        found += import_module(f"ottla.console.api.{page}").ROUTES
    return found


class Console:
    def __init__(
        self,
        runtime: Runtime,
        config: ConsoleConfig,
        inspector: NodeInspector | None = None,
        on_new_key: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_new_key` is called when the address with `key` has opened a session, and there is another."""
        url = config.registry_url or config.schemas.registry_url
        registry = None if url is None else SchemaRegistry(url, runtime.pool, runtime.clock)
        self._config: Final = config
        self._services: Final = ConsoleServices(
            runtime, config, PayloadDecoder(config.schemas, registry, runtime.pool), inspector, WorkLimits()
        )
        self._on_new_key: Final = on_new_key
        self._sessions: Final = ConsoleSessions(runtime, config)
        self._guard: Final = RequestGuard(
            runtime.random.randbytes(32), loopback_only=config.loopback_only, own_host=config.own_host
        )

    async def close(self) -> None:
        await self._sessions.close()

    @property
    def key(self) -> str | None:
        """What the address of the console must have to open a session; None if it needs nothing."""
        return self._sessions.key if self._config.login is LoginMode.ADDRESS else None

    # Requests

    async def answer(self, route: ConsoleRoute, request: ApiRequest) -> HttpServerResponse:
        """Answer a request to an endpoint that needs a session."""

        async def endpoint() -> HttpServerResponse:
            session = await self._session(request)
            if session is None:
                raise ConsoleError(401, "LOGIN_REQUIRED", "this needs a login")
            self._guard.check_token(request, session.id)
            if self._config.read_only and request.method not in SAFE_METHODS:
                raise ConsoleError(403, "READ_ONLY", "this console is read-only")
            if route.payloads and not self._config.payloads:
                raise ConsoleError(403, "NO_PAYLOADS", "this console does not show what messages hold")
            if request.method not in SAFE_METHODS:
                who = session.access.principal or "the console"
                _log.info("%s: %s %s", ascii(who)[1:-1], request.method, ascii(request.path)[1:-1][:200])
            found = await route.handle(ApiContext(self._services, session), request)
            return found if isinstance(found, HttpServerResponse) else _document(found)

        return await self._guarded(request, endpoint)

    async def session(self, request: ApiRequest) -> HttpServerResponse:
        async def endpoint() -> HttpServerResponse:
            return _document(self._description(await self._session(request)))

        return await self._guarded(request, endpoint)

    async def login(self, request: ApiRequest) -> HttpServerResponse:
        async def endpoint() -> HttpServerResponse:
            before = await self._session(request)
            self._guard.check_token(request, "" if before is None else before.id)
            body = request.body()
            session = await self._sessions.log_in(
                body.text("username"), body.text("password"), body.optional_text("mechanism"), request.peer
            )
            if before is not None:
                await self._sessions.log_out(before)
            response = _document(self._description(session))
            response.cookies.append(_cookie(session.id, secure=request.is_tls))
            return response

        return await self._guarded(request, endpoint)

    async def logout(self, request: ApiRequest) -> HttpServerResponse:
        async def endpoint() -> HttpServerResponse:
            session = await self._session(request)
            self._guard.check_token(request, "" if session is None else session.id)
            if session is not None:
                await self._sessions.log_out(session)
            response = _document({})
            response.cookies.append(_cookie("", secure=request.is_tls))
            return response

        return await self._guarded(request, endpoint)

    async def static(self, request: ApiRequest) -> HttpServerResponse:
        async def endpoint() -> HttpServerResponse:
            return static_file(request.params.get("path", ""))

        return await self._guarded(request, endpoint, is_page=True)

    async def root(self, request: ApiRequest) -> HttpServerResponse:
        async def endpoint() -> HttpServerResponse:
            response = HttpServerResponse(302, headers={"Location": f"{_STATIC}/"})
            if key := request.query.get(KEY):
                session = await self._sessions.open(key)
                if session is not None:
                    response.cookies.append(_cookie(session.id, secure=request.is_tls))
                    self._on_new_key()
            return response

        return await self._guarded(request, endpoint, is_page=True)

    async def nothing(self, request: ApiRequest) -> HttpServerResponse:
        async def endpoint() -> HttpServerResponse:
            raise ConsoleError(404, "NOT_FOUND", "there is no such endpoint")

        return await self._guarded(request, endpoint)

    async def _session(self, request: ApiRequest) -> ConsoleSession | None:
        return await self._sessions.find(request.cookies.get(COOKIE))

    async def _guarded(
        self,
        request: ApiRequest,
        endpoint: Callable[[], Awaitable[HttpServerResponse]],
        *,
        is_page: bool = False,
    ) -> HttpServerResponse:
        """Run an endpoint for a request that may come here, and turn errors into answers."""
        try:
            self._guard.check_host(request)
            if not is_page:  # a link on another page may lead to the console's pages
                self._guard.check_origin(request)
            response = await endpoint()
        except ConsoleError as error:
            response = _document(error.to_json(), error.status)
        except KafkaError as error:
            found = error_of(error)
            response = _document(found.to_json(), found.status)
        except (RuntimeError, ValueError, OSError) as error:
            # Of clients that a session was closing, and of files that are going.
            _log.warning("%s %s failed", request.method, ascii(request.path)[:200], exc_info=error)
            failed = ConsoleError(500, "INTERNAL", "the console failed; its log says why")
            response = _document(failed.to_json(), failed.status)
        response.headers = {**SECURITY_HEADERS, **response.headers}
        return response

    def _description(self, session: ConsoleSession | None) -> dict[str, Any]:
        config, inspector = self._config, self._services.inspector
        logged_in = session is not None
        return {
            "version": __version__,
            "login": config.login.value,
            "loggedIn": logged_in,
            "principal": None if session is None else session.access.principal,
            "mechanisms": list(config.mechanisms) if config.login is LoginMode.SASL else [],
            "readOnly": config.read_only,
            "payloads": config.payloads,
            "csrfToken": self._guard.csrf_token("" if session is None else session.id),
            "bootstrapServers": config.bootstrap_servers if logged_in else None,
            "features": {
                "files": inspector is not None,
                "metrics": inspector is not None and inspector.node_id is not None,
                "pipelines": bool(config.pipelines),
                "schemas": config.managed_registry_url is not None,
                "metadataLog": inspector is not None,
            },
        }


def _cookie(session_id: str, *, secure: bool) -> str:
    age = "" if session_id else "; Max-Age=0"
    return f"{COOKIE}={session_id}; Path=/; HttpOnly; SameSite=Strict{age}{'; Secure' if secure else ''}"


def _document(value: dict[str, Any], status: int = 200) -> HttpServerResponse:
    # Streams and documents are ASCII: half a character of a message cannot break them.
    return HttpServerResponse(status, json.dumps(value, separators=(",", ":")).encode(), _JSON)


def static_file(path: str) -> HttpServerResponse:
    """A file of the pages. 404 if there is none, which includes each name that leads elsewhere."""
    parts = (path or "index.html").split("/")
    kind = _TYPES.get(parts[-1].rpartition(".")[2])
    missing = ConsoleError(404, "NOT_FOUND", "there is no such page")
    if kind is None or any(not _NAME.fullmatch(part) for part in parts):
        raise missing
    file = resources.files("ottla.console").joinpath("static", *parts)
    try:
        data = file.read_bytes()
    except (OSError, ValueError):
        raise missing from None
    # Small files of this machine, or of the next: pages of another release must not be mixed with these.
    return HttpServerResponse(200, data, kind, {"Cache-Control": "no-cache"})


def console_routes(console: Console, run: Run | None = None) -> list[HttpRoute]:
    """The routes of a console, for an HTTP server. `run` runs a coroutine on the console's loop, if that is
    not the server's.
    """

    def route(method: str, path: str, endpoint: Endpoint, max_body_bytes: int = MAX_BODY_BYTES) -> HttpRoute:
        async def handle(request: HttpServerRequest) -> HttpServerResponse:
            answer = endpoint(await _request(request))
            return await (answer if run is None else run(answer))

        return HttpRoute(method, path, handle, max_body_bytes)

    def session_route(each: ConsoleRoute) -> HttpRoute:
        return route(
            each.method, each.path, lambda request: console.answer(each, request), each.max_body_bytes
        )

    unknown: Sequence[HttpRoute] = [
        route(method, "/api/{path*}", console.nothing) for method in ("GET", "POST", "DELETE")
    ]
    return [
        *(session_route(each) for each in api_routes()),
        route("GET", "/api/session", console.session),
        route("POST", "/api/login", console.login, 16 * 1024),
        route("POST", "/api/logout", console.logout, 16 * 1024),
        *unknown,
        route("GET", "/", console.root),
        route("GET", _STATIC, console.root),
        route("GET", f"{_STATIC}/{{path*}}", console.static),
    ]


async def _request(request: HttpServerRequest) -> ApiRequest:
    """What a console looks at of a request; its body is read whole, within the bound of its route."""
    data = b"" if request.method in SAFE_METHODS else await request.read()
    cookie = request.cookie(COOKIE)
    return ApiRequest(
        request.method,
        request.path,
        dict(request.params),
        request.query(),
        {name: value for name in _HEADERS if (value := request.headers.get(name)) is not None},
        {} if cookie is None else {COOKIE: cookie},
        request.peer.host,
        request.is_tls,
        data,
    )
