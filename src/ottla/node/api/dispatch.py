"""From a frame to its handler and back: one table says which APIs this node serves.

`SERVED` is what ApiVersions announces and what is answered; nothing else is. A handler's module is
imported when its API is first asked for. A request of an unknown API or version, or one that cannot be
read, closes its connection, since a client cannot be answered in a version that it does not expect;
ApiVersions alone is answered in version 0, with the versions that are there.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ottla.node.api.context import Handler, Reply, RequestContext
from ottla.node.api.response_cache import MAX_QUESTION_BYTES, Memo, Question
from ottla.node.network.connection import Parts, PendingRequest, ProtocolViolation
from ottla.protocol.api import API, API_BY_NAME, API_VERSIONS, Api, Listener, api_name
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.fitting import leave_out_what_is_newer
from ottla.protocol.headers import RequestHeader, encoded_response_parts, response_parts
from ottla.protocol.schema import Buffer, Request, Response

if TYPE_CHECKING:
    from ottla.node.config.listeners import Endpoint
    from ottla.node.node import Node

log = logging.getLogger(__name__)

SERVED: Final = frozenset(
    API_BY_NAME[name].key
    for name in (
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "AddRaftVoter",
        "AllocateProducerIds",
        "AlterConfigs",
        "AlterPartition",
        "AlterPartitionReassignments",
        "AlterReplicaLogDirs",
        "ApiVersions",
        "AssignReplicasToDirs",
        "BeginQuorumEpoch",
        "BrokerHeartbeat",
        "BrokerRegistration",
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "ControllerRegistration",
        "CreatePartitions",
        "CreateTopics",
        "DeleteGroups",
        "DeleteRecords",
        "DeleteTopics",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeProducers",
        "DescribeQuorum",
        "DescribeTopicPartitions",
        "DescribeTransactions",
        "ElectLeaders",
        "EndQuorumEpoch",
        "EndTxn",
        "Envelope",
        "Fetch",
        "FetchSnapshot",
        "FindCoordinator",
        "Heartbeat",
        "IncrementalAlterConfigs",
        "InitProducerId",
        "JoinGroup",
        "LeaveGroup",
        "ListConfigResources",
        "ListGroups",
        "ListOffsets",
        "ListPartitionReassignments",
        "ListTransactions",
        "Metadata",
        "OffsetCommit",
        "OffsetDelete",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
        "Produce",
        "RemoveRaftVoter",
        "SyncGroup",
        "TxnOffsetCommit",
        "UnregisterBroker",
        "UpdateFeatures",
        "UpdateRaftVoter",
        "Vote",
        "WriteTxnMarkers",
    )
)

# APIs whose last version Apache Kafka 4.3 keeps back and this node serves; see decision 0030.
_AHEAD: Final = frozenset((API_BY_NAME["InitProducerId"].key,))

# On a controller's listener a Fetch is one of the metadata log.
_OF_CONTROLLER: Final = {API_BY_NAME["Fetch"].key: "fetch_metadata"}

# APIs whose handlers do a part of the work themselves and pass the rest on to the controller.
_SPLIT: Final = frozenset(API_BY_NAME[name].key for name in ("AlterConfigs", "IncrementalAlterConfigs"))

# APIs whose answers follow from the metadata image alone, unless they have to wait for it to change.
_REMEMBERED: Final = frozenset((API_BY_NAME["Metadata"].key,))

_KEY_AND_VERSION: Final = struct.Struct(">hh")
_SIZE_BYTES: Final = 4


class _Route:
    """An API of one listener: its versions, and its code once it has been needed."""

    __slots__ = (
        "_module",
        "api",
        "failed",
        "forwarded",
        "handle",
        "max_version",
        "memo",
        "min_version",
        "request_class",
    )

    def __init__(self, api: Api, kind: Listener, *, unstable: bool) -> None:
        self.api = api
        self._module = handler_module(api, kind)
        # Whether a broker that is not the active controller passes the request on as a whole.
        self.forwarded = kind is Listener.BROKER and api.forwardable and api.key not in _SPLIT
        self.min_version = api.min_version
        self.max_version = api.last_version if unstable else api.max_version
        self.request_class: type[Request] | None = None
        self.handle: Handler | None = None
        self.memo = Memo() if api.key in _REMEMBERED else None

    def load(self) -> Handler:
        module = import_module(self._module)
        self.request_class = self.api.request_class
        self.handle = handle = module.handle
        # How the handler answers when all of a request fails; few APIs need more than the common way.
        self.failed = getattr(module, "failed", _failed)
        return handle  # type: ignore[no-any-return]


def handler_module(api: Api, kind: Listener = Listener.BROKER) -> str:
    name = api.module_name.rpartition(".")[2]
    if kind is Listener.CONTROLLER:
        name = _OF_CONTROLLER.get(api.key, name)
    return f"ottla.node.api.handlers.{name}"


class Dispatcher:
    """The service behind one listener."""

    def __init__(self, node: Node, endpoint: Endpoint, kind: Listener) -> None:
        self.node = node
        self.endpoint = endpoint
        self.kind = kind
        self._unstable = node.config.flag("unstable.api.versions.enable")
        self._routes = {
            key: _Route(API[key], kind, unstable=self._unstable or key in _AHEAD)
            for key in sorted(SERVED)
            if kind in API[key].listeners
        }
        # From when on requests are worked on: those to a controller while its broker is not ready yet, as
        # nothing gets ready without them.
        self._open = node.ready if kind is Listener.BROKER else node.quorum.opened

    def announced(self) -> list[tuple[int, int, int]]:
        """The APIs served here, with their first and last versions."""
        return [
            (key, *route.api.announced(self.kind, unstable=self._unstable or key in _AHEAD))
            for key, route in self._routes.items()
        ]

    def start(self, exchange: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        if len(frame) < _KEY_AND_VERSION.size:
            raise ProtocolViolation(f"it sent a request of {len(frame)} bytes, too short for a header")
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        route = self._routes.get(key)
        if route is None:
            raise ProtocolViolation(
                f"it asked for {api_name(key)} version {version}, which is not served here"
            )
        api = route.api
        try:
            header, position = RequestHeader.decode_from(frame, 0, api.request_header_version(version))
        except MalformedMessage as error:
            raise ProtocolViolation(f"its {api.name} request has no proper header: {error.message}") from None
        supported = route.min_version <= version <= route.max_version
        if not supported and key != API_VERSIONS:
            raise ProtocolViolation(self._unsupported(exchange, route, version, header.client_id))
        context = RequestContext(
            self.node, self, exchange, api, version, header.correlation_id, header.client_id
        )
        handle = route.handle or route.load()
        if not supported:
            from ottla.node.api.handlers.api_versions import unsupported_version

            context.version = 0
            return self._encode(context, unsupported_version())
        assert route.request_class is not None
        question: Question | None = None
        if (
            route.memo is not None
            and len(frame) <= MAX_QUESTION_BYTES
            and self.node.authorizer is None
            and self._open.is_set()
        ):
            question = (version, context.came_by, bytes(frame[position:]))
            answer = route.memo.find(self.node.image, question)
            if answer is not None:
                return encoded_response_parts(api, version, header.correlation_id, answer)
        try:
            # Bytes after the body are ignored, as Kafka does.
            request, _ = route.request_class.decode_from(frame, position, version)
        except MalformedMessage as error:
            raise ProtocolViolation(
                f"its {api.name} version {version} request (client id {header.client_id!r}) "
                f"cannot be read: {error.message}"
            ) from None
        if not self._open.is_set():
            return self._when_ready(context, route, handle, request, frame)
        return self._answer(context, route, handle, request, frame, question)

    async def _when_ready(
        self, context: RequestContext, route: _Route, handle: Handler, request: Request, frame: memoryview
    ) -> Parts | None:
        await self._open.wait()
        reply = self._answer(context, route, handle, request, frame)
        return reply if reply is None or isinstance(reply, list) else await reply

    def _answer(
        self,
        context: RequestContext,
        route: _Route,
        handle: Handler,
        request: Request,
        frame: memoryview,
        question: Question | None = None,
    ) -> Parts | Awaitable[Parts | None] | None:
        if route.forwarded and self.node.active_controller.current is None:
            return self._forward(context, route, request, frame)
        image = self.node.image
        try:
            reply = handle(context, request)
        except Exception as error:
            if route.forwarded and _is_elsewhere(error):
                return self._forward(context, route, request, frame)
            return self._encode(context, self._failure(context, route, request, error))
        if reply is None:
            return None
        if isinstance(reply, Response):
            if question is not None and route.memo is not None:
                answer = reply.encode(context.version)
                route.memo.keep(image, question, answer)
                return encoded_response_parts(context.api, context.version, context.correlation_id, answer)
            return self._encode(context, reply)
        return self._later(context, route, request, frame, reply)

    async def _later(
        self,
        context: RequestContext,
        route: _Route,
        request: Request,
        frame: memoryview,
        reply: Awaitable[Response | None],
    ) -> Parts | None:
        try:
            response = await reply
        except Exception as error:
            if route.forwarded and _is_elsewhere(error):
                return await self._forward(context, route, request, frame)
            response = self._failure(context, route, request, error)
        return None if response is None else self._encode(context, response)

    async def _forward(
        self, context: RequestContext, route: _Route, request: Request, frame: memoryview
    ) -> Parts:
        """Have the active controller answer, wherever it is."""
        from ottla.node.api.forwarding import forward

        try:
            return await forward(context, frame)
        except Exception as error:
            return self._encode(context, self._failure(context, route, request, error))

    async def answer_forwarded(self, frame: Buffer, client_host: str) -> bytes:
        """Answer the request that another broker passed on: the response as it goes to the client, without
        its size. KafkaError NOT_CONTROLLER if it cannot be decided here.
        """
        if len(frame) < _KEY_AND_VERSION.size:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the envelope is empty")
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        route = self._routes.get(key)
        if route is None or not route.api.forwardable:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{api_name(key)} is not passed on")
        if not route.min_version <= version <= route.max_version:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{api_name(key)} version {version}")
        handle = route.handle or route.load()
        assert route.request_class is not None
        try:
            header, position = RequestHeader.decode_from(frame, 0, route.api.request_header_version(version))
            request, _ = route.request_class.decode_from(frame, position, version)
        except MalformedMessage as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
        context = RequestContext.of_forwarded(self, route.api, version, header, client_host)
        try:
            reply = handle(context, request)
            response = reply if reply is None or isinstance(reply, Response) else await reply
            assert response is not None, f"{route.api.name} has no answer"
        except Exception as error:
            if _is_elsewhere(error):
                raise
            response = self._failure(context, route, request, error)
        return b"".join(self._encode(context, response))[_SIZE_BYTES:]

    def _encode(self, context: RequestContext, response: Response) -> Parts:
        try:
            return response_parts(context.api, context.version, context.correlation_id, response)
        except Exception as error:
            log.error(
                "%s version %d: %r cannot be sent",
                context.api.name,
                context.version,
                response,
                exc_info=error,
            )
            raise ProtocolViolation(f"its {context.api.name} request has no proper answer") from None

    def _failure(
        self, context: RequestContext, route: _Route, request: Request, error: Exception
    ) -> Response:
        """The response that says so; a fault of ours is logged with all we know."""
        if isinstance(error, ProtocolViolation):
            raise error
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            log.error(
                "%s version %d of client %r failed",
                context.api.name,
                context.version,
                context.client_id,
                exc_info=error,
            )
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        response: Response | None = route.failed(request, code, message)
        if response is None:
            raise ProtocolViolation(f"its {context.api.name} request failed: {code.name} {message or ''}")
        leave_out_what_is_newer(response, context.version)
        return response

    def _unsupported(
        self, exchange: PendingRequest, route: _Route, version: int, client_id: str | None
    ) -> str:
        software = exchange.connection.attributes.get("software")
        who = f"client id {client_id!r}" + (f", {software}" if software else "")
        return (
            f"it asked for {route.api.name} version {version}; versions {route.min_version} to "
            f"{route.max_version} are served ({who})"
        )


def _is_elsewhere(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER


def failure_response(module: ModuleType, request: Request, code: int, message: str | None) -> Response:
    """How a handler's module says that all of a request failed."""
    response: Response | None = getattr(module, "failed", _failed)(request, code, message)
    assert response is not None, f"{module.__name__} cannot say that it failed"
    return response


def _failed(request: Request, code: int, message: str | None) -> Response | None:
    """The common form: an error code, and mostly a message, at the top of the response."""
    response_class = API[request.API_KEY].response_class
    fields = {field.name for field in response_class.FIELDS}
    if "error_code" not in fields:
        return None
    values: dict[str, Any] = {"error_code": int(code)}
    if "error_message" in fields:
        values["error_message"] = message
    return response_class(**values)


__all__ = ["SERVED", "Dispatcher", "Reply", "failure_response", "handler_module"]
