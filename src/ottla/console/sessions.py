"""Who uses the console: sessions, each with clients of its own that act as its principal.

Without a login there is one session for all. Where the address is the key, each address that the console
shows opens one session: one that was used, and is in the history of a browser, opens nothing. With a login, a
session begins when the cluster has accepted a user's credentials. Sessions end by a logout, after a time
without requests, or when there are too many. Failed attempts are slowed down, by address and by user from
there, so that passwords cannot be tried out through the console.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from ottla.client.errors import AuthenticationFailed
from ottla.console.api_request import ConsoleError, error_of
from ottla.console.cluster_access import ClusterAccess
from ottla.console.config import ConsoleConfig, LoginMode
from ottla.console.history import SampledHistories, SampledHistory
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.clock import Clock
from ottla.runtime.runtime import Runtime

COOKIE: Final = "ottla_console"
# The parameter of an address that opens a session.
KEY: Final = "token"
MAX_SESSIONS: Final = 200
MAX_NAME: Final = 512
IDLE_NS: Final = 60 * 60 * 1_000_000_000
LONGEST_NS: Final = 24 * 60 * 60 * 1_000_000_000
_SESSION_BYTES: Final = 32
_FREE_FAILURES: Final = 5
_FIRST_WAIT_NS: Final = 1_000_000_000
_MAX_WAIT_NS: Final = 300 * 1_000_000_000
_MAX_THROTTLED: Final = 10_000
# The first line of a request has at most 8 KiB, and other parameters are in it too.
MAX_CURSOR_TEXT: Final = 2_000
_MAX_CURSORS: Final = 100
_NAMED: Final = "~"


class LongCursors:
    """Cursors that are too long for an address, by short names: where a search of a thousand partitions goes
    on. The oldest go first.
    """

    def __init__(self) -> None:
        self._texts: Final[OrderedDict[str, bytes]] = OrderedDict()

    def shorten(self, text: str) -> str:
        """Return a name for a cursor, or the cursor if it is short."""
        if len(text) <= MAX_CURSOR_TEXT:
            return text
        packed = zlib.compress(text.encode(), 1)
        name = f"{_NAMED}{hashlib.sha256(packed).hexdigest()[:32]}"
        self._texts[name] = packed
        self._texts.move_to_end(name)
        if len(self._texts) > _MAX_CURSORS:
            self._texts.popitem(last=False)
        return name

    def expand(self, text: str) -> str:
        """Return the cursor of a name. ValueError if it is forgotten."""
        if not text.startswith(_NAMED):
            return text
        packed = self._texts.get(text)
        if packed is None:
            raise ValueError("the console has forgotten where this search was: read again")
        self._texts.move_to_end(text)
        return zlib.decompress(packed).decode()


@dataclass(slots=True)
class ConsoleSession:
    """`id` is empty for the session of a console without login."""

    id: str
    access: ClusterAccess
    created_ns: int
    used_ns: int
    # Histories that its pages look at; made by the pages.
    overview: SampledHistory | None = None
    lags: SampledHistories | None = None
    rates: dict[str, Any] = field(default_factory=dict)
    cursors: LongCursors = field(default_factory=lambda: LongCursors())

    async def close(self) -> None:
        if self.overview is not None:
            await self.overview.close()
        if self.lags is not None:
            await self.lags.close()
        await self.access.close()


class LoginThrottle:
    """Counts failures by name: an address, a user from there. After some, each more doubles the wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        # The number of failures, and when the next attempt is allowed.
        self._failures: Final[OrderedDict[str, tuple[int, int]]] = OrderedDict()

    def check(self, *names: str) -> None:
        """Refuse an attempt that comes too early."""
        now = self._clock.monotonic_ns()
        until = max((self._failures[name][1] for name in names if name in self._failures), default=0)
        if until > now:
            seconds = (until - now) // 1_000_000_000 + 1
            raise ConsoleError(429, "BUSY", f"too many attempts have failed; try again in {seconds} s")

    def on_failure(self, *names: str) -> None:
        now = self._clock.monotonic_ns()
        for name in names:
            count = self._failures.get(name, (0, 0))[0] + 1
            wait = 0
            if count >= _FREE_FAILURES:
                wait = min(_FIRST_WAIT_NS << min(count - _FREE_FAILURES, 20), _MAX_WAIT_NS)
            self._failures[name] = count, now + wait
            self._failures.move_to_end(name)
        while len(self._failures) > _MAX_THROTTLED:
            self._failures.popitem(last=False)

    def on_success(self, *names: str) -> None:
        for name in names:
            self._failures.pop(name, None)


class ConsoleSessions:
    def __init__(self, runtime: Runtime, config: ConsoleConfig) -> None:
        self._runtime: Final = runtime
        self._config: Final = config
        self._throttle: Final = LoginThrottle(runtime.clock)
        # By the hash of the id: one that is looked up is not compared byte by byte. The oldest use first.
        self._sessions: Final[OrderedDict[bytes, ConsoleSession]] = OrderedDict()
        self._common: ConsoleSession | None = None
        # Opens the next session, where the address is the key.
        self.key: str = self._random_text()

    def _random_text(self) -> str:
        return self._runtime.random.randbytes(_SESSION_BYTES).hex()

    async def find(self, cookie: str | None) -> ConsoleSession | None:
        """The session of a request; None if there has to be a login first."""
        now = self._runtime.clock.monotonic_ns()
        if self._config.login is LoginMode.NONE:
            if self._common is None:
                access = ClusterAccess(self._runtime, self._config.client_settings, self._config.principal)
                self._common = ConsoleSession("", access, now, now)
            return self._common
        await self._end_old(now)
        if not cookie or len(cookie) > 200:
            return None
        key = _key(cookie)
        session = self._sessions.get(key)
        if session is not None:
            session.used_ns = now
            self._sessions.move_to_end(key)
        return session

    async def log_in(self, username: str, password: str, mechanism: str | None, peer: str) -> ConsoleSession:
        """Begin a session as a user of the cluster. ConsoleError if the cluster does not accept the login."""
        if self._config.login is not LoginMode.SASL:
            raise ConsoleError(400, "BAD_REQUEST", "this console has no login")
        if not username or not password or max(len(username), len(password)) > MAX_NAME:
            raise ConsoleError(400, "BAD_REQUEST", "a user name and a password are needed")
        network = _network(peer)
        # By both: a user whom others try out from elsewhere is not kept out.
        names = f"address {network}", f"user {username} from {network}"
        self._throttle.check(*names)
        mechanisms = self._config.mechanisms
        if mechanism:
            if mechanism not in mechanisms:
                raise ConsoleError(400, "BAD_REQUEST", f"mechanism has to be one of {', '.join(mechanisms)}")
            mechanisms = (mechanism,)
        # Counted before it is tried: attempts at the same time must not all be free.
        self._throttle.on_failure(*names)
        access = await self._authenticated(username, password, mechanisms)
        self._throttle.on_success(*names)
        return await self._begin(access)

    async def open(self, key: str) -> ConsoleSession | None:
        """Begin a session by the key of the address that was shown last; None if it is another one. The next
        session needs another key.
        """
        if self._config.login is not LoginMode.ADDRESS or not hmac.compare_digest(
            key.encode(), self.key.encode()
        ):
            return None
        self.key = self._random_text()
        return await self._begin(
            ClusterAccess(self._runtime, self._config.client_settings, self._config.principal)
        )

    async def _begin(self, access: ClusterAccess) -> ConsoleSession:
        now = self._runtime.clock.monotonic_ns()
        session = ConsoleSession(self._random_text(), access, now, now)
        self._sessions[_key(session.id)] = session
        while len(self._sessions) > MAX_SESSIONS:
            _, oldest = self._sessions.popitem(last=False)
            await oldest.close()
        return session

    async def _authenticated(
        self, username: str, password: str, mechanisms: tuple[str, ...]
    ) -> ClusterAccess:
        refused: KafkaError | None = None
        for mechanism in mechanisms:
            settings = credentials(self._config.client_settings, username, password, mechanism)
            access = ClusterAccess(self._runtime, settings, f"User:{username}")
            try:
                await access.admin()
                return access
            except AuthenticationFailed as error:
                await access.close()
                refused = error
            except KafkaError as error:
                await access.close()
                if error.code is not ErrorCode.UNSUPPORTED_SASL_MECHANISM:
                    raise error_of(error) from None
                refused = error
            except BaseException:
                await access.close()
                raise
        del refused  # its text may name what exists and what does not
        raise ConsoleError(
            401, ErrorCode.SASL_AUTHENTICATION_FAILED.name, "the user name or the password is wrong"
        )

    async def log_out(self, session: ConsoleSession) -> None:
        if session.id and self._sessions.pop(_key(session.id), None) is not None:
            await session.close()

    async def _end_old(self, now: int) -> None:
        old = [
            key
            for key, session in self._sessions.items()
            if now - session.used_ns > IDLE_NS or now - session.created_ns > LONGEST_NS
        ]
        for key in old:
            await self._sessions.pop(key).close()

    async def close(self) -> None:
        sessions = [*self._sessions.values(), *(() if self._common is None else (self._common,))]
        self._sessions.clear()
        self._common = None
        await asyncio.gather(*(session.close() for session in sessions))


def _network(peer: str) -> str:
    """The part of an address that one client cannot change at will.

    >>> _network("127.0.0.1"), _network("2001:db8:1:2:3::4"), _network("no address")
    ('127.0.0.1', '2001:db8:1:2::/64', 'no address')
    """
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        return (
            str(ip_network((address, 64), strict=False))
            if address.ipv4_mapped is None
            else str(address.ipv4_mapped)
        )
    return peer


def _key(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode()).digest()


def credentials(settings: Mapping[str, str], username: str, password: str, mechanism: str) -> dict[str, str]:
    """The settings of a client that logs in as a user."""
    kept = {name: value for name, value in settings.items() if not _is_login(name)}
    return {
        **kept,
        "sasl.mechanism": mechanism,
        "sasl.username": username,
        "sasl.password": password,
    }


def _is_login(name: str) -> bool:
    """Whether a setting is what another user logs in with: none of it may be left in a user's session."""
    return name.startswith(("sasl.", "ssl.keystore", "ssl.key."))
