"""ClientQuotaManager: measure what clients take, and say for how long those above their quota are held back.

One manager is for one kind of quota. It has a sensor for each user, client id or pair of them that a quota is
shared by, from the first use on; those that are not used for an hour are forgotten, and never are there more
than `MAX_SENSORS`: then the ones least recently used go, whose windows are the emptiest. A client without a
limit has no sensor. Nothing is measured while no quota is set, which `is_enabled` says.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from heapq import nsmallest
from typing import Final, Generic, TypeVar

from ottla.metadata.image.entities import QuotaEntity
from ottla.security.quota.limits import QuotaLimits, QuotaTags
from ottla.security.quota.rate import QuotaWindows, Rate, TokenBucket

MAX_SENSORS: Final = 20_000
_EXPIRATION_MS: Final = 3_600_000
_SWEEP_EVERY_MS: Final = 60_000
# Clients whose sensors are remembered by user and client id.
_MAX_RESOLVED: Final = 2 * MAX_SENSORS
# Clients choose their ids, of up to 32 kB: of longer ones a digest is kept.
_MAX_CLIENT_ID: Final = 256
_EVICTED_AT_ONCE: Final = MAX_SENSORS // 10

M = TypeVar("M", Rate, TokenBucket)


class _Sensor(Generic[M]):
    """What those that share a quota have taken, and the quota."""

    __slots__ = ("limit", "measure", "used_ms")

    def __init__(self, measure: M, limit: float, now_ms: int) -> None:
        self.measure: M = measure
        self.limit = limit
        self.used_ms = now_ms


class _SensorTable(Generic[M]):
    """The sensors of one kind of quota."""

    __slots__ = ("_limits", "_make", "_next_sweep_ms", "_resolved", "_sensors", "is_enabled")

    def __init__(self, make: Callable[[float, int], M]) -> None:
        self._make: Final[Callable[[float, int], M]] = make
        self._limits: Final = QuotaLimits()
        self._sensors: Final[dict[QuotaTags, _Sensor[M]]] = {}
        # The sensor of each client that was looked up since the quotas last changed.
        self._resolved: Final[dict[tuple[str, str | None], _Sensor[M] | None]] = {}
        self._next_sweep_ms = 0
        self.is_enabled = False

    def __len__(self) -> int:
        return len(self._sensors)

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        self._limits.update(entity, limit)
        self._resolved.clear()
        self.is_enabled = bool(self._limits)
        if not self.is_enabled:
            self._sensors.clear()

    def find(self, user: str, client_id: str | None, now_ms: int) -> _Sensor[M] | None:
        """The sensor of a client; None if it has no limit."""
        try:
            sensor = self._resolved[user, client_id]
        except KeyError:
            sensor = self._resolve(user, client_id, now_ms)
        if sensor is not None:
            sensor.used_ms = now_ms
        if now_ms >= self._next_sweep_ms:
            self._sweep(now_ms)
        return sensor

    def _resolve(self, user: str, client_id: str | None, now_ms: int) -> _Sensor[M] | None:
        found = self._limits.find(user, client_id or "")
        sensor = None
        is_long = client_id is not None and len(client_id) > _MAX_CLIENT_ID
        if found is not None:
            tags, limit = found
            if is_long and tags.client_id:
                tags = QuotaTags(tags.user, sha256(tags.client_id.encode("utf-8", "replace")).hexdigest())
            sensor = self._sensors.get(tags)
            if sensor is None:
                if len(self._sensors) >= MAX_SENSORS:
                    self._evict()
                sensor = self._sensors[tags] = _Sensor(self._make(limit, now_ms), limit, now_ms)
            sensor.limit = limit
        if is_long:
            return sensor
        if len(self._resolved) >= _MAX_RESOLVED:
            self._resolved.clear()
        self._resolved[user, client_id] = sensor
        return sensor

    def _sweep(self, now_ms: int) -> None:
        self._next_sweep_ms = now_ms + _SWEEP_EVERY_MS
        self._remove([t for t, each in self._sensors.items() if now_ms - each.used_ms >= _EXPIRATION_MS])

    def _evict(self) -> None:
        """Make room for new sensors."""
        oldest = nsmallest(_EVICTED_AT_ONCE, self._sensors.items(), key=lambda item: item[1].used_ms)
        self._remove([tags for tags, _ in oldest])

    def _remove(self, expired: list[QuotaTags]) -> None:
        for tags in expired:
            del self._sensors[tags]
        if expired:
            self._resolved.clear()


class ClientQuotaManager:
    """Rates of what clients take: bytes of requests and responses, or the time of the node."""

    __slots__ = ("_max_throttle_ms", "_table", "_windows", "is_enabled")

    def __init__(self, windows: QuotaWindows, max_throttle_ms: int | None = None) -> None:
        """A client is held back for at most `max_throttle_ms` at once, if that is given."""
        self._windows: Final = windows
        self._max_throttle_ms: Final = max_throttle_ms
        self._table: Final = _SensorTable[Rate](lambda _limit, now_ms: Rate(windows, now_ms))
        # Whether any quota of this kind is set.
        self.is_enabled = False

    @property
    def sensors(self) -> int:
        return len(self._table)

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        """Set or remove the quota of an entity. What was measured stays."""
        self._table.update(entity, limit)
        self.is_enabled = self._table.is_enabled

    def record(self, user: str, client_id: str | None, value: float, now_ms: int) -> int:
        """Count what a client takes; for how many milliseconds it is held back, 0 if it is within its
        quota.
        """
        sensor = self._table.find(user, client_id, now_ms)
        if sensor is None:
            return 0
        throttle_ms = sensor.measure.record_and_throttle_ms(value, sensor.limit, now_ms)
        if self._max_throttle_ms is not None and throttle_ms > self._max_throttle_ms:
            return self._max_throttle_ms
        return throttle_ms

    def unrecord(self, user: str, client_id: str | None, value: float, now_ms: int) -> None:
        """Take back what was counted: the client did not get it."""
        sensor = self._table.find(user, client_id, now_ms)
        if sensor is not None:
            sensor.measure.record(-value, now_ms)

    def most_in_window(self, user: str, client_id: str | None, now_ms: int) -> float:
        """The most that a client may take at once without being held back in any case."""
        sensor = self._table.find(user, client_id, now_ms)
        if sensor is None:
            return float("inf")
        return sensor.limit * (self._windows.samples - 1) * self._windows.window_ms / 1000


class ControllerMutationQuotaManager:
    """Partitions that clients create and delete, by buckets of tokens."""

    __slots__ = ("_table",)

    def __init__(self, windows: QuotaWindows) -> None:
        self._table: Final = _SensorTable[TokenBucket](
            lambda limit, now_ms: TokenBucket(windows, limit, now_ms)
        )

    @property
    def is_enabled(self) -> bool:
        return self._table.is_enabled

    @property
    def sensors(self) -> int:
        return len(self._table)

    def update(self, entity: QuotaEntity, limit: float | None) -> None:
        self._table.update(entity, limit)

    def throttle_ms(self, user: str, client_id: str | None, now_ms: int) -> int:
        """For how long the client may change nothing."""
        sensor = self._table.find(user, client_id, now_ms)
        return 0 if sensor is None else sensor.measure.throttle_ms(sensor.limit, now_ms)

    def take(self, user: str, client_id: str | None, permits: float, now_ms: int) -> None:
        """Count partitions that a client creates or deletes, whether it has tokens left or not."""
        sensor = self._table.find(user, client_id, now_ms)
        if sensor is not None:
            sensor.measure.take(permits, sensor.limit, now_ms)
