"""Decode a request, call its handler and encode the response, as Kafka's `KafkaApis` and `ControllerApis`.

A request of an unknown API or version, or one that cannot be decoded, closes its connection: its client could
not read a response in another version than the one it expects. ApiVersions alone is answered then, in version
0, with the versions that are served. `routes.ROUTES` says what is served.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from ottla.log.segment.sparse_index import CorruptIndex
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.audit import AUDITED, log_changes
from ottla.node.api.context import ELEMENTS_OF_A_TURN, RequestContext, RequestListener
from ottla.node.api.request_gate import RequestGate
from ottla.node.api.request_meter import RequestMeter
from ottla.node.api.response_cache import MAX_REQUEST_BYTES, CacheKey, ResponseCache
from ottla.node.api.response_errors import error_codes
from ottla.node.api.responses import (
    encode,
    has_many_parts,
    make_failure_response,
    unsupported_api_versions,
)
from ottla.node.api.routes import ROUTES, ApiRoute, FailureResponse, Forwarding, Handler
from ottla.node.api.services import ApiServices
from ottla.node.network.connection import (
    ClientConnection,
    Parts,
    PendingRequest,
    ProtocolViolation,
    RequestLane,
)
from ottla.node.network.request_statistics import TIME_BOUNDS_NS, ListenerStatistics, RequestStatistics
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.api import API_VERSIONS, FETCH, PRODUCE, ListenerType, api_name
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, TooManyElements
from ottla.protocol.headers import (
    RequestHeader,
    encoded_response_parts,
    request_header_version,
    response_parts,
)
from ottla.protocol.names import INTERNAL_TOPICS, TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.records._kernel import FetchLane, ProduceLane, RequestLanes
from ottla.records.checksum import crc32c
from ottla.runtime import invariants
from ottla.runtime.disk import NotInMemory, waiting
from ottla.runtime.heavy_work import SHORT_US
from ottla.runtime.tasks import close_unstarted
from ottla.security.principal import KafkaPrincipal
from ottla.security.quota.quota_managers import QuotaManagers

# Members of an enum take longer to find.
_READ: Final = int(AclOperation.READ)
_WRITE: Final = int(AclOperation.WRITE)
_TOPIC: Final = int(AclResourceType.TOPIC)
_KEY_AND_VERSION: Final = struct.Struct(">hh")
_CORRELATION_ID: Final = struct.Struct(">i")
_NOT_TAKEN: Final[Parts] = []
# Their handlers count errors as they meet them: most responses have none, and all have partitions.
_COUNT_THEIR_ERRORS: Final = frozenset((PRODUCE, FETCH))
# Kafka's names for the fetches of its dashboards.
_FETCH_OF_CONSUMER: Final = "FetchConsumer"
_FETCH_OF_FOLLOWER: Final = "FetchFollower"
# How many bulky responses of a listener are made at once; the others wait. Each is objects for thousands of
# partitions until it is encoded, which no budget counts.
_BULKY_AT_ONCE: Final = 2
# For whom code is imported: everyone who asks for the API.
_MODULES: Final = "modules"


class _ServedApi:
    """A route of one listener: its versions, and its code once that has been imported."""

    __slots__ = (
        "_listener",
        "_route",
        "api",
        "audited",
        "cache",
        "counts_errors",
        "failure_response",
        "forwarded",
        "handle",
        "loaded",
        "max_version",
        "min_version",
        "request_class",
        "statistics",
        "statistics_of_nodes",
    )

    def __init__(self, route: ApiRoute, listener: RequestListener) -> None:
        self._route = route
        self._listener = listener.kind
        self.api = route.api
        # Whether a broker that is not the active controller forwards the request as a whole.
        self.forwarded = listener.kind is ListenerType.BROKER and route.forwarding is Forwarding.WHOLE
        self.min_version = self.api.min_version
        self.max_version = route.max_version(unstable=listener.serves_unstable_versions)
        self.cache = ResponseCache() if route.cached else None
        # Whether what it changes goes to the audit log.
        self.audited = route.name in AUDITED
        # Whether the errors in its responses are counted here.
        self.counts_errors = self.api.key not in _COUNT_THEIR_ERRORS
        # By version, as they are needed; the fetches of other nodes count apart.
        versions = self.max_version + 1
        self.statistics: list[RequestStatistics | None] = [None] * versions
        self.statistics_of_nodes: list[RequestStatistics | None] = (
            [None] * versions if self.api.key == FETCH else self.statistics
        )
        # The versions whose code is there; what it is, `load` has set before.
        self.loaded: set[int] = set()
        self.handle: Handler
        self.request_class: type[Request]
        self.failure_response: FailureResponse

    def load(self, version: int) -> None:
        """Import what answers a version, and make what decodes and encodes it. Called in a thread."""
        if version in self.loaded:
            return
        self.handle = self._route.load_handler(self._listener)
        self.failure_response = self._route.load_failure_response(self._listener)
        self.request_class = self.api.request_class
        self.request_class.prepare_decoder(version)
        self.api.response_class.prepare_encoder(version)
        self.loaded.add(version)


def _untimed() -> int:
    return 0


class _Sender:
    """The sender of a request that a lane answers, as an authorizer knows it."""

    __slots__ = ("_connection", "client_id", "request_name")

    def __init__(self, connection: ClientConnection, client_id: str | None, request_name: str) -> None:
        self._connection: Final = connection
        self.client_id: Final = client_id
        self.request_name: Final = request_name

    @property
    def client_host(self) -> str:
        return self._connection.peer[0]

    @property
    def principal(self) -> KafkaPrincipal:
        return self._connection.principal


class Dispatcher:
    """The service behind one listener. Requests that come before the gate is open wait for it."""

    def __init__(
        self,
        gate: RequestGate,
        listener: RequestListener,
        quotas: QuotaManagers,
        statistics: ListenerStatistics | None = None,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """`statistics` is where requests and their errors are counted, and `now_ns` the clock that times
        them.
        """
        self._now_ns = now_ns
        self._gate = gate
        self._statistics = statistics
        self._listener = listener
        self._quotas = quotas
        self._bulky = asyncio.Semaphore(_BULKY_AT_ONCE)
        self._served = {
            key: _ServedApi(route, listener)
            for key, route in ROUTES.items()
            if listener.kind in route.listeners
        }
        self._lanes: RequestLanes | None = None
        self._produce_lane: ProduceLane | None = None

    @property
    def lane(self) -> RequestLane | None:
        return self._lanes

    def open_lane(self) -> None:
        """Let plain Produce and Fetch requests be answered by the kernel."""
        if PRODUCE in self._served:
            from ottla.replication.partition import FetchIsolation  # a controller alone has none

            self._produce_lane = ProduceLane(*self._lane_parts(PRODUCE, _WRITE), invariants)
            fetch = FetchLane(
                *self._lane_parts(FETCH, _READ),
                waiting(False),
                (OSError, KafkaError, NotInMemory, CorruptIndex),
                (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED),
            )
            self._lanes = RequestLanes(self._produce_lane, fetch)

    def _lane_parts(self, key: int, operation: int) -> tuple[Any, ...]:
        """What each lane is made of. Its requests need the permission for an operation."""
        served = self._served[key]
        return (
            self._gate,
            self._quotas,
            partial(self._lane_statistics, served),
            _untimed if self._statistics is None or self._now_ns is None else self._now_ns,
            TIME_BOUNDS_NS,
            crc32c,
            INTERNAL_TOPICS,
            TopicPartition,
            partial(self._is_allowed, served.api.name, operation),
            served.max_version,
        )

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        if len(frame) < _KEY_AND_VERSION.size:
            raise ProtocolViolation(f"it sent a request of {len(frame)} bytes, too short for a header")
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        served = self._served.get(key)
        if served is None:
            raise ProtocolViolation(
                f"it asked for {api_name(key)} version {version}, which is not served here"
            )
        if key == PRODUCE and self._produce_lane is not None and pending.appended is None:
            reply = self._start_in_lane(self._produce_lane, pending, frame, version)
            if reply is not _NOT_TAKEN:
                return reply
        api = served.api
        try:
            header, position = RequestHeader.decode_from(frame, 0, request_header_version(api, version))
        except MalformedMessage as error:
            raise ProtocolViolation(f"its {api.name} request has no proper header: {error.message}") from None
        supported = served.min_version <= version <= served.max_version
        if not supported and key != API_VERSIONS:
            raise ProtocolViolation(_unsupported_version_message(pending, served, version, header.client_id))
        services = self._gate.services
        if services is None:
            pending.connection.hold_back()
            return self._start_after(self._gate.opened.wait, pending, frame)
        answered = version if supported else 0
        if answered not in served.loaded:
            # In a thread, as an import takes many turns of the loop.
            load = partial(services.node.heavy_work.run, _MODULES, SHORT_US, served.load, answered)
            pending.connection.hold_back()
            return self._start_after(load, pending, frame)
        handle = served.handle
        context = RequestContext(
            services, self._listener, api, answered, header.correlation_id, header.client_id, pending
        )
        if not supported:
            return encode(context, unsupported_api_versions())
        if self._statistics is not None:
            by_version = (
                served.statistics_of_nodes
                if key == FETCH and pending.connection.is_inter_broker
                else served.statistics
            )
            pending.statistics = by_version[version] or self._measure(served, by_version, version)
        cache_key: CacheKey | None = None
        if (
            served.cache is not None
            and len(frame) <= MAX_REQUEST_BYTES
            and not self._quotas.request.is_enabled
        ):
            permissions = _permission_key(context)
            cache_key = (version, pending.connection.local, bytes(frame[position:]), permissions)
            cached = served.cache.get(services.node.image, cache_key)
            if cached is not None:
                return encoded_response_parts(api, version, header.correlation_id, cached)
        try:
            # Bytes after the body are ignored, as Kafka does.
            request, _ = served.request_class.decode_from(frame, position, version, ELEMENTS_OF_A_TURN)
        except TooManyElements:
            pending.connection.hold_back()
            return self._answer_long(context, served, handle, frame, position, cache_key)
        except MalformedMessage as error:
            raise _unreadable(context, error) from None
        if self._quotas.is_active and key in self._quotas.metered:
            context.meter = RequestMeter(self._quotas, context, self._listener.kind)
        return self._answer(context, served, handle, request, frame, cache_key)

    async def _answer_long(
        self,
        context: RequestContext,
        served: _ServedApi,
        handle: Handler,
        frame: memoryview,
        position: int,
        cache_key: CacheKey | None,
    ) -> Parts | None:
        """Decode a request with so many elements that it would take a turn of the loop, in a thread, and
        answer it. The next request of its connection is started after that, as in Kafka: the handler may
        take many turns.
        """
        context.is_long = True
        if self._quotas.is_active and context.api.key in self._quotas.metered:
            context.meter = RequestMeter(self._quotas, context, self._listener.kind)
        decode = partial(served.request_class.decode_from, frame, position, context.version)
        try:
            request, _ = await context.run_heavy(min(len(frame), SHORT_US), decode)
        except MalformedMessage as error:
            raise _unreadable(context, error) from None
        reply = self._answer(context, served, handle, request, frame, cache_key)
        parts = reply if reply is None or isinstance(reply, list) else await reply
        context.connection.go_on()
        return parts

    def _start_in_lane(
        self, lane: ProduceLane, pending: PendingRequest, frame: memoryview, version: int
    ) -> Parts | Awaitable[Parts | None] | None:
        """Have the lane answer a Produce request that comes while others of its connection are in progress,
        or has to wait; `_NOT_TAKEN` if it is for the handler.
        """
        connection = pending.connection
        if connection.last_produce is not None:
            return _NOT_TAKEN
        response = lane.answer(connection, frame)
        if response is None:
            pending.appended = lane.appended
            return _NOT_TAKEN
        pending.statistics = self._lane_statistics(self._served[PRODUCE], version)
        waiting = lane.waiting
        if waiting is None:
            return [response] if response else None
        from ottla.node.api.produce_outcome import wait_for_replicas

        services = self._gate.services
        assert services is not None
        api = self._served[PRODUCE].api
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame, _KEY_AND_VERSION.size)
        context = RequestContext(services, self._listener, api, version, correlation_id, None, pending)
        return wait_for_replicas(context, response, waiting, lane.timeout_ms)

    def _lane_statistics(self, served: _ServedApi, version: int) -> RequestStatistics | None:
        """Where the requests of a lane count."""
        if self._statistics is None:
            return None
        return served.statistics[version] or self._measure(served, served.statistics, version)

    def _is_allowed(
        self,
        request_name: str,
        operation: int,
        connection: ClientConnection,
        client_id: str | None,
        topic: str,
        count: int,
    ) -> bool:
        """Whether the client may do this to a topic. Where it may not, or that is not known yet, the
        handler says what becomes of it; so it does where all that is allowed is logged, as the lane may hand
        the request on to it after this.
        """
        services = self._gate.services
        assert services is not None
        authorizer = services.node.authorizer
        assert authorizer is not None
        if authorizer.logs_allowed:
            return False
        sender = _Sender(connection, client_id, request_name)
        try:
            return authorizer.allowed(sender, operation, _TOPIC, topic, count=count, log_denied=False)
        except KafkaError:
            return False

    def _measure(
        self, served: _ServedApi, by_version: list[RequestStatistics | None], version: int
    ) -> RequestStatistics:
        """Begin to count the requests of a version."""
        assert self._statistics is not None
        name = served.api.name
        if by_version is not served.statistics:
            name = _FETCH_OF_FOLLOWER
        elif served.api.key == FETCH:
            name = _FETCH_OF_CONSUMER
        found = by_version[version] = self._statistics.of(name, version)
        return found

    def _count_errors(self, served: _ServedApi, version: int, response: Response) -> None:
        if served.counts_errors and self._statistics is not None:
            for code in error_codes(response):
                self._statistics.count_error(served.api.name, version, code)

    async def _start_after(
        self, wait: Callable[[], Awaitable[object]], pending: PendingRequest, frame: memoryview
    ) -> Parts | None:
        """Start a request once something that it needs is there. Its connection was held back until then."""
        await wait()
        reply = self.start(pending, frame)
        pending.connection.go_on()
        return reply if reply is None or isinstance(reply, list) else await reply

    def _answer(
        self,
        context: RequestContext,
        served: _ServedApi,
        handle: Handler,
        request: Request,
        frame: memoryview,
        cache_key: CacheKey | None = None,
    ) -> Parts | Awaitable[Parts | None] | None:
        """Call the handler; keep a response that did not have to wait, if there is a key for it."""
        if served.forwarded and context.services.controller.active_controller.current is None:
            return self._forward(context, served, request, frame)
        image = None if cache_key is None else context.image
        denials = 0 if cache_key is None else _denials(context)
        try:
            reply = handle(context, request)
        except Exception as error:
            if served.forwarded and _is_not_controller(error):
                return self._forward(context, served, request, frame)
            cache_key = None
            failed = _failed_long if context.is_long else _failed
            reply = failed(context, served, request, error)
        if context.meter is not None and (reply is None or isinstance(reply, Response)):
            context.meter.finish(request, reply)
        if reply is None:
            return None
        if isinstance(reply, Response):
            self._count_errors(served, context.version, reply)
            if context.is_long and cache_key is None:
                return context.services.node.runtime.pool.run(
                    _log_and_encode, context, served, request, reply
                )
            if served.audited:
                log_changes(context, request, reply, context.forwarded)
            if (
                cache_key is None
                or image is None
                or served.cache is None
                # Each denial is logged, also that of the next request.
                or _denials(context) != denials
            ):
                try:
                    return response_parts(context.api, context.version, context.correlation_id, reply)
                except Exception:
                    return encode(context, reply)
            encoded = reply.encode(context.version)
            served.cache.put(image, cache_key, encoded)
            return encoded_response_parts(context.api, context.version, context.correlation_id, encoded)
        if context.is_bulky and cache_key is not None and image is not None and isinstance(reply, Coroutine):
            return self._answer_once(context, served, request, reply, cache_key, image, denials)
        if context.is_bulky:
            return self._answer_in_place(context, served, request, frame, reply)
        return self._answer_later(context, served, request, frame, reply)

    async def _answer_in_place(
        self,
        context: RequestContext,
        served: _ServedApi,
        request: Request,
        frame: memoryview,
        reply: Awaitable[Response | None],
    ) -> Parts | None:
        """Make a bulky response when there is a place for it."""
        try:
            await self._bulky.acquire()
        except asyncio.CancelledError:
            close_unstarted(reply)
            raise
        try:
            return await self._answer_later(context, served, request, frame, reply)
        finally:
            self._bulky.release()

    async def _answer_later(
        self,
        context: RequestContext,
        served: _ServedApi,
        request: Request,
        frame: memoryview,
        reply: Awaitable[Response | None],
    ) -> Parts | None:
        meter = context.meter
        try:
            response = await (reply if meter is None else meter.timed(reply))
        except Exception as error:
            if served.forwarded and _is_not_controller(error):
                return await self._forward(context, served, request, frame)
            if context.is_long:
                response = await _failed_long(context, served, request, error)
            else:
                response = _failed(context, served, request, error)
        if response is not None:
            self._count_errors(served, context.version, response)
        if meter is not None:
            meter.finish(request, response)
        if response is None:
            return None
        if context.is_bulky or context.is_long or has_many_parts(response):
            pool = context.services.node.runtime.pool
            return await pool.run(_log_and_encode, context, served, request, response)
        return _log_and_encode(context, served, request, response)

    async def _answer_once(
        self,
        context: RequestContext,
        served: _ServedApi,
        request: Request,
        reply: Coroutine[Any, Any, Response | None],
        cache_key: CacheKey,
        image: MetadataImage,
        denials: int,
    ) -> Parts | None:
        """Make a bulky response and keep it, or wait for the same response to another request."""
        cache = served.cache
        assert cache is not None
        while (in_work := cache.in_work(image, cache_key)) is not None:
            # The other request may be given up, with its connection: then one of those who wait makes it.
            try:
                encoded = await asyncio.shield(in_work)
            except asyncio.CancelledError:
                reply.close()
                raise
            if encoded is not None:
                reply.close()
                return encoded_response_parts(context.api, context.version, context.correlation_id, encoded)
        in_work = cache.begin(image, cache_key)
        encoded = None
        meter = context.meter
        try:
            await self._bulky.acquire()
        except asyncio.CancelledError:
            cache.end(cache_key, in_work, None)
            reply.close()
            raise
        try:
            response = await (reply if meter is None else meter.timed(reply))
            assert response is not None, f"a cached API, {served.api.name}, has no response"
            if meter is not None:
                meter.finish(request, response)
            encoded = await context.services.node.runtime.pool.run(response.encode, context.version)
            self._count_errors(served, context.version, response)
        except Exception as error:
            return encode(context, _failed(context, served, request, error))
        finally:
            self._bulky.release()
            cache.end(cache_key, in_work, encoded)
        if context.image is image and _denials(context) == denials:
            cache.put(image, cache_key, encoded)
        return encoded_response_parts(context.api, context.version, context.correlation_id, encoded)

    async def _forward(
        self, context: RequestContext, served: _ServedApi, request: Request, frame: memoryview
    ) -> Parts:
        """Have the active controller answer, which is on another node."""
        from ottla.node.api.forwarding import forward, read_forwarded

        meter = context.meter
        try:
            parts = await forward(context, frame)
            if meter is None:
                return parts
            # The controller has said for how long; this broker throttles.
            if context.is_long:
                response = await context.services.node.runtime.pool.run(read_forwarded, context, parts)
            else:
                response = read_forwarded(context, parts)
        except Exception as error:
            response = _failed(context, served, request, error)
        self._count_errors(served, context.version, response)
        if meter is not None:
            meter.finish(request, response)
        if context.is_long:
            return await context.services.node.runtime.pool.run(encode, context, response)
        return encode(context, response)


def _failed(context: RequestContext, served: _ServedApi, request: Request, error: Exception) -> Response:
    """The response to a request that failed."""
    _note_denial(context, error)
    return make_failure_response(context, served.failure_response, request, error)


async def _failed_long(
    context: RequestContext, served: _ServedApi, request: Request, error: Exception
) -> Response:
    """As `_failed`, of a request with many parts, each of which has failed."""
    _note_denial(context, error)
    make, pool = served.failure_response, context.services.node.runtime.pool
    return await pool.run(make_failure_response, context, make, request, error)


def _note_denial(context: RequestContext, error: Exception) -> None:
    if (
        context.meter is not None
        and isinstance(error, KafkaError)
        and error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    ):
        context.meter.on_denied()


def _log_and_encode(
    context: RequestContext, served: _ServedApi, request: Request, response: Response
) -> Parts:
    """Encode a response, and log what it says was changed. Of a long one both take more than a turn."""
    if served.audited:
        log_changes(context, request, response, context.forwarded)
    return encode(context, response)


def _unreadable(context: RequestContext, error: MalformedMessage) -> ProtocolViolation:
    return ProtocolViolation(
        f"its {context.api.name} version {context.version} request (client id {context.client_id!r}) "
        f"cannot be read: {error.message}"
    )


def _denials(context: RequestContext) -> int:
    authorizer = context.services.node.authorizer
    return 0 if authorizer is None else authorizer.audit.denials


def _permission_key(context: RequestContext) -> tuple[int, str, str, str] | None:
    authorizer = context.services.node.authorizer
    if authorizer is None:
        return None
    principal = context.principal
    return authorizer.version, principal.type, principal.name, context.client_host


def _unsupported_version_message(
    pending: PendingRequest, served: _ServedApi, version: int, client_id: str | None
) -> str:
    software = pending.connection.client_software
    client = f"client id {client_id!r}" + (f", {software}" if software else "")
    return (
        f"it asked for {served.api.name} version {version}; versions {served.min_version} to "
        f"{served.max_version} are served ({client})"
    )


def _is_not_controller(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER


async def decide_locally(services: ApiServices, request: Request, version: int) -> Response | None:
    """Answer a request of this node's own broker as the active controller on this node; None if the active
    controller is on another node by now.
    """
    route = ROUTES[request.API_KEY]
    try:
        return await route.load_decision()(services, request, version)
    except KafkaError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            return None
        response = route.load_failure_response(ListenerType.CONTROLLER)(request, error.code, error.message)
        assert response is not None, f"{route.name} cannot say that it failed"
        return response
