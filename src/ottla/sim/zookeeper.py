"""A model of ZooKeeper: a tree of znodes, sessions that expire, watches that fire once, and its clients.

One server stands for the ensemble, on a machine of its own: it can be killed, paused and cut off, and keeps
what it has acknowledged, as the disks of a real one do. Clients speak to it over the simulated network, so a
request may be lost before or after it took effect. Sessions that send nothing for their time end, with their
ephemeral znodes. The order of a connection's responses and watch events is the order of the changes, as
ZooKeeper guarantees.

The server also checks one thing about its users: no state of a partition is written by a controller that is
not the newest one.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ottla.runtime.network import Network
from ottla.runtime.runtime import Runtime
from ottla.runtime.zookeeper import (
    ANY_VERSION,
    CheckZNode,
    CreateZNode,
    DeleteZNode,
    SessionEvent,
    SetZNode,
    WatchEvent,
    WatchKind,
    ZNode,
    ZNodeStat,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperOperation,
    ZooKeeperSession,
    ZooKeeperSettings,
)
from ottla.sim.world import SimMachine, World

HOST, PORT = "zookeeper", 2181
_LENGTH: Final = struct.Struct(">I")
_RECONNECT_S: Final = 0.1
_EXPIRY_CHECK_S: Final = 0.05


def _frame(message: Any) -> bytes:
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


class _Frames(asyncio.Protocol):
    """Cuts the bytes of a connection into messages."""

    def __init__(
        self,
        on_message: Callable[[_Frames, Any], None],
        on_lost: Callable[[_Frames], None] = lambda _: None,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._data = bytearray()
        self.transport: asyncio.Transport | None = None
        self.session: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data)
            if len(self._data) < _LENGTH.size + size:
                return
            message = pickle.loads(bytes(self._data[_LENGTH.size : _LENGTH.size + size]))
            del self._data[: _LENGTH.size + size]
            self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost(self)

    def send(self, message: Any) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(_frame(message))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


# The server


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    ctime_ms: int
    owner: int = 0
    version: int = 0
    children_version: int = 0
    sequence: int = 0
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> ZNodeStat:
        return ZNodeStat(
            self.version,
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.ctime_ms,
            self.children_version,
            len(self.children),
            self.owner,
        )


@dataclass(slots=True)
class _Session:
    timeout_s: float
    heard_at: float


class SimZooKeeper:
    """The znodes and sessions, and the machine that serves them. `boot` starts it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0)}
        self._zxid = 0
        self._sessions: dict[int, _Session] = {}
        self._last_session = 0
        # (session, kind of watch, path): they end with a connection, as clients here set them again.
        self._watches: dict[tuple[str, str], dict[_Frames, None]] = {}
        self._connections: dict[_Frames, None] = {}
        self.machine: SimMachine = world.machine(HOST, self._main)
        self.expired = 0

    def boot(self) -> None:
        self.machine.boot()

    async def _main(self, runtime: Runtime) -> None:
        self._connections.clear()
        self._watches.clear()
        for session in self._sessions.values():
            session.heard_at = self._world.loop.time()  # a new leader gives every session its whole time
        await runtime.network.listen(self._accept, HOST, PORT)
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_S)
            now = self._world.loop.time()
            for id, session in list(self._sessions.items()):
                if now - session.heard_at > session.timeout_s:
                    self.expire(id)

    def _accept(self) -> _Frames:
        return _Frames(self._on_message, self._on_lost)

    def _on_lost(self, connection: _Frames) -> None:
        self._connections.pop(connection, None)
        for watchers in self._watches.values():
            watchers.pop(connection, None)

    def expire(self, id: int) -> None:
        """End a session, and delete its ephemeral znodes."""
        if self._sessions.pop(id, None) is None:
            return
        self.expired += 1
        self._world.trace.add(HOST, f"session {id} has expired")
        self._end_session(id)

    def _end_session(self, id: int) -> None:
        for path in [path for path, node in self._nodes.items() if node.owner == id]:
            self._delete(path)
        for connection in [each for each in self._connections if each.session == id]:
            connection.close()

    @property
    def sessions(self) -> list[int]:
        return list(self._sessions)

    def _on_message(self, connection: _Frames, message: Any) -> None:
        xid, operation, arguments = message
        if operation == "connect":
            self._connect(connection, *arguments)
            return
        session = self._sessions.get(connection.session)
        if session is None:
            connection.close()
            return
        session.heard_at = self._world.loop.time()
        if operation == "close":
            self._sessions.pop(connection.session, None)
            connection.send((xid, None))
            self._end_session(connection.session)
            return
        try:
            result = self._perform(connection, operation, arguments)
        except ZooKeeperError as error:
            result = _Failure(error.code, error.path, error.index)
        connection.send((xid, result))

    def _connect(self, connection: _Frames, id: int, timeout_s: float) -> None:
        if id and id not in self._sessions:
            connection.send((0, 0))
            return
        if not id:
            self._last_session += 1
            id = self._last_session
        for other in [each for each in self._connections if each.session == id]:
            other.close()
        self._sessions[id] = _Session(timeout_s, self._world.loop.time())
        connection.session = id
        self._connections[connection] = None
        connection.send((0, id))

    # Operations

    def _perform(self, connection: _Frames, operation: str, arguments: Any) -> Any:
        match operation:
            case "ping":
                return None
            case "get":
                path, watch = arguments
                node = self._find(path)
                self._watch("data", path, connection, watch)
                return ZNode(node.data, node.stat())
            case "exists":
                path, watch = arguments
                self._watch("data", path, connection, watch)
                found = self._nodes.get(path)
                return None if found is None else found.stat()
            case "children":
                path, watch = arguments
                node = self._find(path)
                self._watch("children", path, connection, watch)
                return sorted(node.children)
            case "multi":
                return self._multi(arguments, connection.session)
        raise AssertionError(operation)

    def _watch(self, kind: str, path: str, connection: _Frames, wanted: bool) -> None:
        if wanted:
            self._watches.setdefault((kind, path), {})[connection] = None

    def _find(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
        return node

    def _multi(self, operations: Sequence[ZooKeeperOperation], session: int) -> list[Any]:
        """Do all or none: the operations are checked on a copy of what they touch first."""
        shadow: dict[str, tuple[int, int] | None] = {}  # path -> (version, children), None if deleted

        def look(path: str) -> tuple[int, int] | None:
            if path in shadow:
                return shadow[path]
            node = self._nodes.get(path)
            return None if node is None else (node.version, len(node.children))

        for index, operation in enumerate(operations):
            try:
                self._check(operation, look, shadow)
            except ZooKeeperError as error:
                raise ZooKeeperError(error.code, error.path, index=index) from None
        results: list[str | ZNodeStat | None] = []
        for operation in operations:
            match operation:
                case CreateZNode(path, data, ephemeral, sequential):
                    results.append(self._create(path, data, session if ephemeral else 0, sequential))
                case SetZNode(path, data, _):
                    results.append(self._set(path, data))
                case DeleteZNode(path, _):
                    self._delete(path)
                    results.append(None)
                case CheckZNode():
                    results.append(None)
        return results

    def _check(
        self,
        operation: ZooKeeperOperation,
        look: Callable[[str], tuple[int, int] | None],
        shadow: dict[str, tuple[int, int] | None],
    ) -> None:
        path = operation.path
        above = path.rpartition("/")[0] or "/"
        found = look(path)
        if isinstance(operation, CreateZNode):
            parent = look(above)
            if parent is None:
                raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
            if found is not None and not operation.sequential:
                raise ZooKeeperError(ZooKeeperErrorCode.NODE_EXISTS, path)
            if not operation.sequential:
                shadow[path] = (0, 0)
            shadow[above] = (parent[0], parent[1] + 1)
            return
        if found is None:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
        if operation.version not in (ANY_VERSION, found[0]):
            raise ZooKeeperError(ZooKeeperErrorCode.BAD_VERSION, path)
        if isinstance(operation, SetZNode):
            shadow[path] = (found[0] + 1, found[1])
        elif isinstance(operation, DeleteZNode):
            if found[1]:
                raise ZooKeeperError(ZooKeeperErrorCode.NOT_EMPTY, path)
            parent = look(above)
            assert parent is not None
            shadow[path] = None
            shadow[above] = (parent[0], parent[1] - 1)

    def _create(self, path: str, data: bytes, owner: int, sequential: bool) -> str:
        above, _, name = path.rpartition("/")
        parent = self._nodes[above or "/"]
        if sequential:
            name = f"{name}{parent.sequence:010d}"
            path = f"{above}/{name}"
        parent.sequence += 1
        self._zxid += 1
        self._check_controller(path, data)
        self._nodes[path] = _Node(data, self._zxid, self._zxid, self._now_ms(), owner)
        parent.children[name] = None
        parent.children_version += 1
        self._fire("data", path, WatchKind.CREATED)
        self._fire("children", above or "/", WatchKind.CHILDREN)
        return path

    def _set(self, path: str, data: bytes) -> ZNodeStat:
        node = self._nodes[path]
        self._zxid += 1
        self._check_controller(path, data)
        node.data, node.version, node.mzxid = data, node.version + 1, self._zxid
        self._fire("data", path, WatchKind.CHANGED)
        return node.stat()

    def _delete(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        self._zxid += 1
        del self._nodes[path]
        parent = self._nodes[above or "/"]
        del parent.children[name]
        parent.children_version += 1
        self._fire("data", path, WatchKind.DELETED)
        self._fire("children", path, WatchKind.DELETED)
        self._fire("children", above or "/", WatchKind.CHILDREN)

    def _fire(self, kind: str, path: str, what: WatchKind) -> None:
        for connection in self._watches.pop((kind, path), {}):
            connection.send((-1, (kind, WatchEvent(what, path))))

    def _now_ms(self) -> int:
        return int(self._world.loop.time() * 1000)

    def _check_controller(self, path: str, data: bytes) -> None:
        """Check that the newest controller has written the state of a partition."""
        if not path.endswith("/state") or "/controller_epoch" not in self._nodes:
            return
        newest = int(self._nodes["/controller_epoch"].data)
        epoch = json.loads(data)["controller_epoch"]
        if epoch != newest:
            self._world.report_violation(
                f"ZooKeeper takes {path} of the controller of epoch {epoch}; the newest is {newest}"
            )

    def delete(self, path: str) -> None:
        """Delete a znode, as an operator does."""
        self._delete(path)

    def data(self, path: str) -> bytes | None:
        node = self._nodes.get(path)
        return None if node is None else node.data


@dataclass(frozen=True, slots=True)
class _Failure:
    code: ZooKeeperErrorCode
    path: str
    index: int


# The client


class SimZooKeeperSession:
    """A `ZooKeeperSession` over the simulated network: it connects again, and tells of it, as kazoo does."""

    def __init__(self, network: Network, timeout_s: float) -> None:
        self._network = network
        self._timeout_s = timeout_s
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._id = 0
        self._connection: _Frames | None = None
        self._next_xid = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._watchers: dict[tuple[str, str], list[Callable[[WatchEvent], None]]] = {}
        self._heard_at = 0.0
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, network: Network, settings: ZooKeeperSettings) -> ZooKeeperSession:
        self = cls(network, settings.session_timeout_ms / 1000)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="session with ZooKeeper")
        await self._first
        return self

    @property
    def session_id(self) -> int:
        return self._id

    def add_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listeners.remove(listener)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            try:
                _, connection = await self._network.connect(
                    lambda: _Frames(self._on_message, self._on_lost),
                    HOST,
                    PORT,
                    timeout_ms=int(self._timeout_s * 1000),
                )
            except OSError:
                await asyncio.sleep(_RECONNECT_S)
                continue
            self._connection = connection
            self._heard_at = loop.time()
            self._ask_now(connection, 0, "connect", (self._id, self._timeout_s))
            while self._connection is connection and not self._closed:
                await asyncio.sleep(self._timeout_s / 4)
                if loop.time() - self._heard_at > self._timeout_s * 2 / 3:
                    connection.close()
                    self._on_lost(connection)
                elif connection.session:
                    self._ask_now(connection, -2, "ping", ())
            await asyncio.sleep(_RECONNECT_S)

    def _ask_now(self, connection: _Frames, xid: int, operation: str, arguments: Any) -> None:
        connection.send((xid, operation, arguments))

    def _on_lost(self, connection: _Frames) -> None:
        if connection is not self._connection:
            return
        was_connected = bool(connection.session)
        self._connection = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS, "/"))
        if was_connected:
            self._tell(SessionEvent.DISCONNECTED)

    def _on_message(self, connection: _Frames, message: Any) -> None:
        if connection is not self._connection:
            return
        self._heard_at = asyncio.get_running_loop().time()
        xid, result = message
        if xid == 0:
            self._on_connected(connection, result)
        elif xid == -1:
            kind, event = result
            for watcher in self._watchers.pop((kind, event.path), []):
                watcher(event)
        elif xid > 0:
            future = self._waiting.pop(xid, None)
            if future is not None and not future.done():
                if isinstance(result, _Failure):
                    future.set_exception(ZooKeeperError(result.code, result.path, index=result.index))
                else:
                    future.set_result(result)

    def _on_connected(self, connection: _Frames, id: int) -> None:
        if id == 0:
            # The session is over; the next connection begins another one.
            self._id = 0
            self._watchers.clear()
            self._connection = None
            connection.close()
            self._tell(SessionEvent.EXPIRED)
            return
        connection.session = id
        self._id = id
        if not self._first.done():
            self._first.set_result(None)
        # Something may have changed while it was not connected: every watch fires, as if it had.
        watchers, self._watchers = self._watchers, {}
        for (kind, path), called in watchers.items():
            what = WatchKind.CHANGED if kind == "data" else WatchKind.CHILDREN
            for watcher in called:
                watcher(WatchEvent(what, path))
        self._tell(SessionEvent.CONNECTED)

    def _tell(self, event: SessionEvent) -> None:
        if not self._closed:
            for listener in tuple(self._listeners):
                listener(event)

    async def _ask(self, operation: str, arguments: Any) -> Any:
        connection = self._connection
        if connection is None or not connection.session or self._closed:
            await asyncio.sleep(0)
            raise ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS, "/")
        self._next_xid += 1
        future = self._waiting[self._next_xid] = asyncio.get_running_loop().create_future()
        self._ask_now(connection, self._next_xid, operation, arguments)
        return await future

    def _register(self, kind: str, path: str, watch: Callable[[WatchEvent], None] | None) -> None:
        if watch is not None:
            known = self._watchers.setdefault((kind, path), [])
            if watch not in known:
                known.append(watch)

    async def get(self, path: str, watch: Callable[[WatchEvent], None] | None = None) -> ZNode:
        self._register("data", path, watch)
        node: ZNode = await self._ask("get", (path, watch is not None))
        return node

    async def exists(self, path: str, watch: Callable[[WatchEvent], None] | None = None) -> ZNodeStat | None:
        self._register("data", path, watch)
        stat: ZNodeStat | None = await self._ask("exists", (path, watch is not None))
        return stat

    async def children(self, path: str, watch: Callable[[WatchEvent], None] | None = None) -> list[str]:
        self._register("children", path, watch)
        names: list[str] = await self._ask("children", (path, watch is not None))
        return names

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        (created,) = await self._ask("multi", [CreateZNode(path, data, ephemeral, sequential)])
        return str(created)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZNodeStat:
        (stat,) = await self._ask("multi", [SetZNode(path, data, version)])
        assert isinstance(stat, ZNodeStat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask("multi", [DeleteZNode(path, version)])

    async def multi(self, operations: Sequence[ZooKeeperOperation]) -> list[str | ZNodeStat | None]:
        results: list[str | ZNodeStat | None] = await self._ask("multi", list(operations))
        return results

    async def close(self) -> None:
        if self._closed:
            return
        connection = self._connection
        if connection is not None and connection.session:
            self._ask_now(connection, -2, "close", ())
            await asyncio.sleep(0.01)
        self._closed = True
        if self._task is not None:
            self._task.cancel()


def connector(network: Network) -> Callable[[ZooKeeperSettings], Any]:
    """What a simulated process opens sessions with."""
    return partial(SimZooKeeperSession.connect, network)
