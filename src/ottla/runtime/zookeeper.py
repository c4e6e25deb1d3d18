"""A session with ZooKeeper: reads, conditional writes, transactions, watches and the events of the session.

`ZooKeeperSession` is what components ask for. `KazooSession` is the real one; it runs `kazoo`, which has
threads of its own, and brings every result, watch and event to the event loop that opened it. A watch fires
at most once, after the change that it tells of is readable. When a session expires, its ephemeral znodes and
its watches are gone: the listener hears `EXPIRED`, then `CONNECTED` once there is a session with a new id.

Nothing retries: a caller that lost the connection does not know whether its write took place, and has to
read before it writes again.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The logger of kazoo's own lines: each lost connection is one.
KAZOO_LOGGER: Final = "ottla.zookeeper.kazoo"
# The version of a conditional write that is for any version.
ANY_VERSION: Final = -1
_DEFAULT_PORT: Final = 2181
_PROBE_S: Final = 5.0


class ZNodeStat(NamedTuple):
    """What ZooKeeper knows about a znode. `version` grows with each change of its data, starting at 0."""

    version: int
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    children_version: int
    num_children: int
    # The id of the session that created an ephemeral znode; 0 for others.
    ephemeral_owner: int


class ZNode(NamedTuple):
    data: bytes
    stat: ZNodeStat


class ZNodeAccess(Enum):
    """Who may read and change a znode that is created. The creator is who has logged in."""

    OPEN = "open"
    # The creator may do everything, others may read.
    SECURE = "secure"
    # Only the creator may do anything.
    SENSITIVE = "sensitive"


class SessionEvent(Enum):
    CONNECTED = "connected"
    # The connection is lost; the session may still live, and its ephemeral znodes with it.
    DISCONNECTED = "disconnected"
    # The session is over: its ephemeral znodes and its watches are gone.
    EXPIRED = "expired"
    AUTH_FAILED = "auth failed"


class WatchKind(Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    kind: WatchKind
    path: str


class ZooKeeperErrorCode(Enum):
    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    NO_CHILDREN_FOR_EPHEMERALS = "no children for ephemerals"
    NO_AUTH = "no auth"
    AUTH_FAILED = "auth failed"
    # The outcome of the operation is not known.
    CONNECTION_LOSS = "connection loss"
    SESSION_EXPIRED = "session expired"
    # The operation was not tried, as another one of its transaction failed.
    ROLLED_BACK = "rolled back"
    OTHER = "other"


class ZooKeeperError(Exception):
    """An operation failed. In a transaction `index` is the operation that is the reason."""

    def __init__(self, code: ZooKeeperErrorCode, path: str, message: str = "", *, index: int = 0) -> None:
        super().__init__(message or f"ZooKeeper: {code.value} at {path}")
        self.code: Final = code
        self.path: Final = path
        self.index: Final = index


class CreateZNode(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetZNode(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteZNode(NamedTuple):
    path: str
    version: int = ANY_VERSION


class CheckZNode(NamedTuple):
    """Fails the transaction unless the znode has this version."""

    path: str
    version: int


ZooKeeperOperation: TypeAlias = CreateZNode | SetZNode | DeleteZNode | CheckZNode
Watcher: TypeAlias = Callable[[WatchEvent], None]
SessionListener: TypeAlias = Callable[[SessionEvent], None]


class ZooKeeperSession(Protocol):
    """Paths are below the chroot of the session. Every operation raises `ZooKeeperError`."""

    @property
    def session_id(self) -> int:
        """The id of the current session, which `ZNodeStat.ephemeral_owner` shows; 0 if there is none."""
        ...

    def add_listener(self, listener: SessionListener) -> None:
        """Call `listener` on the event loop for each event from now on."""
        ...

    def remove_listener(self, listener: SessionListener) -> None: ...

    async def get(self, path: str, watch: Watcher | None = None) -> ZNode:
        """Read a znode; the watch fires when its data changes or it is deleted."""
        ...

    async def exists(self, path: str, watch: Watcher | None = None) -> ZNodeStat | None:
        """Return the stat of a znode, if there is one; the watch fires when it comes, changes or goes."""
        ...

    async def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        """List the names of a znode's children, sorted; the watch fires when one comes or goes."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        """Create a znode whose parent exists; returns its path, which a sequential one ends in ten digits."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZNodeStat:
        """Replace the data of a znode, if it has this version."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a znode without children, if it has this version."""
        ...

    async def multi(self, operations: Sequence[ZooKeeperOperation]) -> list[str | ZNodeStat | None]:
        """Do all operations or none. Returns, for each, the path that was created, the stat of what was set,
        or None. The error's `index` is that of the operation that failed.
        """
        ...

    async def close(self) -> None:
        """End the session: its ephemeral znodes are deleted at once. Closing twice is harmless."""
        ...


@dataclass(frozen=True, slots=True)
class ZooKeeperLogin:
    """`digest` is ZooKeeper's own scheme, `sasl-digest` SASL with DIGEST-MD5, `kerberos` SASL with GSSAPI."""

    scheme: str
    user: str = ""
    password: str = field(default="", repr=False)
    service: str = "zookeeper"


def _open_to_all(_: str) -> ZNodeAccess:
    return ZNodeAccess.OPEN


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    # As `zookeeper.connect` has it: `host:port,host:port/chroot`.
    connect: str
    session_timeout_ms: int = 18_000
    connection_timeout_ms: int = 18_000
    login: ZooKeeperLogin | None = None
    tls_context: ssl.SSLContext | None = field(default=None, repr=False)
    # Who may do what with a znode that is created, by its path.
    access: Callable[[str], ZNodeAccess] = _open_to_all

    @property
    def hosts(self) -> str:
        return self.connect.partition("/")[0]

    @property
    def chroot(self) -> str:
        """The path below which everything lies; empty for the root."""
        _, slash, path = self.connect.partition("/")
        return (slash + path).rstrip("/")


KAZOO_IS_MISSING: Final = (
    "The package kazoo, which speaks to ZooKeeper, is not installed. "
    "Install it with: pip install 'ottla[zookeeper]'"
)


def server_addresses(connect: str) -> list[tuple[str, int]]:
    """The servers in `HOST:PORT,HOST:PORT/PATH`; ValueError names what is not one."""
    found = []
    for address in (each.strip() for each in connect.partition("/")[0].split(",")):
        host, colon, port = address.rpartition(":")
        if not colon:
            host, port = address, str(_DEFAULT_PORT)
        if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ValueError(f"{address!r} is not an address: HOST:PORT is expected")
        found.append((host.strip("[]"), int(port)))
    return found


def unreachable(connect: str) -> str | None:
    """Why none of the servers can be reached; None if one can. It blocks, for a command that does not wait
    until servers come.
    """
    try:
        addresses = server_addresses(connect)
    except ValueError as error:
        return str(error)
    reasons: list[str] = []
    timeout_s = max(_PROBE_S / len(addresses), 1.0)
    for address in addresses:
        try:
            socket.create_connection(address, timeout_s).close()
        except OSError as error:
            reasons.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        else:
            return None
    return "; ".join(reasons)


@dataclass(frozen=True, slots=True)
class _KazooWatch:
    """What kazoo calls. It keeps a set of them for each path until they fire, so equal ones are one: a znode
    that is looked at every so often and does not change has one watch.
    """

    session: KazooSession
    watch: Watcher

    def __call__(self, event: Any) -> None:
        self.session.on_watch(self.watch, event)


class KazooSession:
    """A session over `kazoo`. Open it with `KazooSession.connect`, on the loop that is to use it."""

    def __init__(self, settings: ZooKeeperSettings, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._settings: Final = settings
        self._client: Final = client
        self._loop: Final = loop
        self._listeners: Final[list[SessionListener]] = []
        self._closed = False
        # kazoo ends then, and shows no more than that it has.
        self._is_login_refused = False
        self._exceptions: Final = importlib.import_module("kazoo.exceptions")

    @classmethod
    async def connect(cls, settings: ZooKeeperSettings) -> KazooSession:
        """Open a session; ConnectionError if no server answers in time, or refuses the login."""
        try:
            kazoo = importlib.import_module("kazoo.client")
        except ImportError:
            raise ConnectionError(KAZOO_IS_MISSING) from None
        loop = asyncio.get_running_loop()
        attempts = _Connections(settings)
        client = kazoo.KazooClient(**_kazoo_options(settings), handler=attempts.kazoo_handler())
        self = cls(settings, client, loop)
        client.add_listener(self._on_state)
        started = client.start_async()
        timeout_s = settings.connection_timeout_ms / 1000
        try:
            connected = await loop.run_in_executor(None, started.wait, timeout_s)
            if connected and settings.login is not None:
                # The login follows the connection, and requests follow the login.
                async with asyncio.timeout(timeout_s):
                    await self.exists("/")
        except (ZooKeeperError, TimeoutError):
            connected = False
        except BaseException:
            await self.close()
            raise
        if not connected or not client.connected:
            await self.close()
            raise ConnectionError(
                _not_connected(settings, attempts.last_error, refused=self._is_login_refused)
            )
        return self

    @property
    def session_id(self) -> int:
        identity = self._client.client_id
        return int(identity[0]) if identity is not None else 0

    def add_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        self._listeners.remove(listener)

    async def get(self, path: str, watch: Watcher | None = None) -> ZNode:
        data, stat = await self._ask(path, self._client.get_async, path, watch=self._watcher(watch))
        return ZNode(data or b"", _stat(stat))

    async def exists(self, path: str, watch: Watcher | None = None) -> ZNodeStat | None:
        stat = await self._ask(path, self._client.exists_async, path, watch=self._watcher(watch))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        return sorted(
            await self._ask(path, self._client.get_children_async, path, watch=self._watcher(watch))
        )

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        created: str = await self._ask(
            path,
            self._client.create_async,
            path,
            data,
            acl=self._acl(path),
            ephemeral=ephemeral,
            sequence=sequential,
        )
        return created

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> ZNodeStat:
        return _stat(await self._ask(path, self._client.set_async, path, data, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask(path, self._client.delete_async, path, version)

    async def multi(self, operations: Sequence[ZooKeeperOperation]) -> list[str | ZNodeStat | None]:
        if not operations:
            return []
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case CreateZNode(path, data, ephemeral, sequential):
                    transaction.create(path, data, self._acl(path), ephemeral, sequential)
                case SetZNode(path, data, version):
                    transaction.set_data(path, data, version)
                case DeleteZNode(path, version):
                    transaction.delete(path, version)
                case CheckZNode(path, version):
                    transaction.check(path, version)
        results = await self._ask(operations[0].path, transaction.commit_async)
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, Exception):
                code = self._code(result)
                if code is not ZooKeeperErrorCode.ROLLED_BACK:
                    raise ZooKeeperError(code, operation.path, index=index)
        for index, result in enumerate(results):
            if isinstance(result, Exception):
                raise ZooKeeperError(self._code(result), operations[index].path, index=index)
        return [
            result
            if isinstance(operation, CreateZNode)
            else _stat(result)
            if isinstance(operation, SetZNode)
            else None
            for operation, result in zip(operations, results, strict=True)
        ]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # It waits for its threads, and for the server's word that the session is closed.
        await self._loop.run_in_executor(None, self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    async def _ask(self, path: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Start an operation and wait for its result, which comes in a thread of kazoo."""
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            result = call(*args, **options)
        except Exception as error:
            raise self._error(error, path) from error
        result.rawlink(functools.partial(self._on_result, future))
        try:
            return await future
        except self._exceptions.KazooException as error:
            raise self._error(error, path) from error

    def _on_result(self, future: asyncio.Future[Any], result: Any) -> None:
        error = result.exception
        value = None if error is not None else result.value
        self._to_loop(functools.partial(_settle, future, value, error))

    def _watcher(self, watch: Watcher | None) -> Callable[[Any], None] | None:
        return None if watch is None else _KazooWatch(self, watch)

    def on_watch(self, watch: Watcher, event: Any) -> None:
        """Have a watch called on the loop; called by kazoo's thread."""
        kind = _WATCH_KINDS.get(event.type)
        if kind is not None:
            self._to_loop(functools.partial(watch, WatchEvent(kind, event.path)))

    def _on_state(self, state: str) -> None:
        if state == "CONNECTED":
            event = SessionEvent.CONNECTED
        elif state == "SUSPENDED":
            event = SessionEvent.DISCONNECTED
        elif self._client.client_state == "AUTH_FAILED":
            event = SessionEvent.AUTH_FAILED
            self._is_login_refused = True
        else:
            event = SessionEvent.EXPIRED
        self._to_loop(functools.partial(self._tell, event))

    def _tell(self, event: SessionEvent) -> None:
        if self._closed:
            return
        for listener in tuple(self._listeners):
            listener(event)

    def _acl(self, path: str) -> Any:
        security = importlib.import_module("kazoo.security")
        access = self._settings.access(path)
        if access is ZNodeAccess.OPEN:
            return security.OPEN_ACL_UNSAFE
        if access is ZNodeAccess.SENSITIVE:
            return security.CREATOR_ALL_ACL
        # In the order in which Kafka has them.
        return [*security.CREATOR_ALL_ACL, *security.READ_ACL_UNSAFE]

    def _to_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            _log.debug("an event of ZooKeeper came after the event loop was closed")

    def _code(self, error: Exception) -> ZooKeeperErrorCode:
        return next(
            (code for name, code in _CODES.items() if isinstance(error, getattr(self._exceptions, name, ()))),
            ZooKeeperErrorCode.OTHER,
        )

    def _error(self, error: Exception, path: str) -> ZooKeeperError:
        code = self._code(error)
        text = f"ZooKeeper: {code.value} at {path}"
        if code is ZooKeeperErrorCode.OTHER:
            text = f"ZooKeeper: {type(error).__name__} at {path}: {error}"
        return ZooKeeperError(code, path, text)


# In this order: some are kinds of others.
_CODES: Final = {
    "NoNodeError": ZooKeeperErrorCode.NO_NODE,
    "NodeExistsError": ZooKeeperErrorCode.NODE_EXISTS,
    "BadVersionError": ZooKeeperErrorCode.BAD_VERSION,
    "NotEmptyError": ZooKeeperErrorCode.NOT_EMPTY,
    "NoChildrenForEphemeralsError": ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS,
    "NoAuthError": ZooKeeperErrorCode.NO_AUTH,
    "AuthFailedError": ZooKeeperErrorCode.AUTH_FAILED,
    "SessionExpiredError": ZooKeeperErrorCode.SESSION_EXPIRED,
    "ConnectionLoss": ZooKeeperErrorCode.CONNECTION_LOSS,
    "ConnectionClosedError": ZooKeeperErrorCode.CONNECTION_LOSS,
    "OperationTimeoutError": ZooKeeperErrorCode.CONNECTION_LOSS,
    "RolledBackError": ZooKeeperErrorCode.ROLLED_BACK,
    "RuntimeInconsistency": ZooKeeperErrorCode.ROLLED_BACK,
}
_WATCH_KINDS: Final = {
    "CREATED": WatchKind.CREATED,
    "DELETED": WatchKind.DELETED,
    "CHANGED": WatchKind.CHANGED,
    "CHILD": WatchKind.CHILDREN,
}


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _stat(stat: Any) -> ZNodeStat:
    return ZNodeStat(
        version=stat.version,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        children_version=stat.cversion,
        num_children=stat.numChildren,
        ephemeral_owner=stat.ephemeralOwner,
    )


class _Connections:
    """Makes the connections of kazoo, which would read the files of a TLS context for each of them."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._tls: Final = settings.tls_context
        # For one server. A machine that is down answers nothing: the others have to be tried before the
        # session is over, for whose whole time kazoo would wait.
        self._timeout_s: Final = settings.session_timeout_ms / 1000 / (settings.hosts.count(",") + 1)
        # Why the last attempt failed.
        self.last_error: OSError | None = None

    def kazoo_handler(self) -> Any:
        connections = self
        base: Any = importlib.import_module("kazoo.handlers.threading").SequentialThreadingHandler

        class Handler(base):  # type: ignore[misc]
            def create_connection(self, *args: Any, **options: Any) -> Any:
                options["timeout"] = connections._timeout_s
                try:
                    if connections._tls is None:
                        return super().create_connection(*args, **options)
                    return connections._connect(
                        connections._tls, options["address"], options["hostname"], options["timeout"]
                    )
                except OSError as error:
                    connections.last_error = error
                    raise

        return Handler()

    def _connect(
        self, tls: ssl.SSLContext, address: tuple[str, int], host: str, timeout_s: float
    ) -> ssl.SSLSocket:
        connection = socket.create_connection(address, timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return tls.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise


def _not_connected(settings: ZooKeeperSettings, error: OSError | None, *, refused: bool) -> str:
    if refused:
        user = f" of {settings.login.user}" if settings.login is not None and settings.login.user else ""
        return (
            f"ZooKeeper at {settings.hosts} refused the login{user}."
            " Check the user and the password, and that ZooKeeper knows them."
        )
    why = ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f" ({error.verify_message})"
    elif error is not None:
        why = f" ({getattr(error, 'reason', None) or error.strerror or error})"
    tls = settings.tls_context is not None
    seconds = settings.connection_timeout_ms / 1000
    return (
        f"ZooKeeper at {settings.hosts} did not answer within {seconds:g} s{why}."
        f" Check the address, and that it runs{', and its TLS settings' if tls else ''}."
    )


def _is_no_request(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO


def _kazoo_logger() -> logging.Logger:
    """Whatever its level: kazoo's lines of debugging have whole requests, with logins and credentials."""
    logger = logging.getLogger(KAZOO_LOGGER)
    logger.addFilter(_is_no_request)
    return logger


def _kazoo_options(settings: ZooKeeperSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "hosts": settings.hosts + settings.chroot,
        "timeout": settings.session_timeout_ms / 1000,
        # Connecting goes on until the session is closed: servers come back.
        "connection_retry": {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0},
        "logger": _kazoo_logger(),
    }
    login = settings.login
    if login is not None and login.scheme == "digest":
        options["auth_data"] = [("digest", f"{login.user}:{login.password}")]
    elif login is not None:
        mechanism = "GSSAPI" if login.scheme == "kerberos" else "DIGEST-MD5"
        sasl = {"mechanism": mechanism, "service": login.service}
        if login.scheme == "kerberos":
            sasl |= {"principal": login.user} if login.user else {}
        else:
            sasl |= {"username": login.user, "password": login.password}
        options["sasl_options"] = sasl
    if settings.tls_context is not None:
        options["use_ssl"] = True
    return options
