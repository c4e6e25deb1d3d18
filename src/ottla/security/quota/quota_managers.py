"""The client quotas of a node, of all kinds, as the metadata have them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Final

from ottla.metadata.image.entities import QuotaEntity
from ottla.protocol.api import API_BY_NAME, FETCH, PRODUCE
from ottla.protocol.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.clock import Clock
from ottla.security.quota.client_quota_manager import ClientQuotaManager, ControllerMutationQuotaManager
from ottla.security.quota.rate import QuotaWindows

_NS_PER_MS: Final = 1_000_000
_ALL_APIS: Final = range(2**15)
_MUTATIONS: Final = tuple(
    API_BY_NAME[name].key for name in ("CreateTopics", "DeleteTopics", "CreatePartitions")
)


class QuotaManagers:
    """One manager for each kind of quota. While `is_active` is False no client has any quota, and only
    requests with a key in `metered` are concerned otherwise.
    """

    __slots__ = (
        "_by_key",
        "controller_mutation",
        "fetch",
        "is_active",
        "metered",
        "monotonic_ns",
        "produce",
        "request",
    )

    def __init__(
        self,
        clock: Clock,
        windows: QuotaWindows | None = None,
        controller_windows: QuotaWindows | None = None,
    ) -> None:
        windows = windows or QuotaWindows()
        self.monotonic_ns: Final = clock.monotonic_ns
        self.produce: Final = ClientQuotaManager(windows)
        self.fetch: Final = ClientQuotaManager(windows)
        # In percents of the time of the event loop.
        self.request: Final = ClientQuotaManager(windows, max_throttle_ms=windows.window_ms)
        self.controller_mutation: Final = ControllerMutationQuotaManager(controller_windows or QuotaWindows())
        self._by_key: Final[dict[str, ClientQuotaManager | ControllerMutationQuotaManager]] = {
            PRODUCER_BYTE_RATE: self.produce,
            CONSUMER_BYTE_RATE: self.fetch,
            REQUEST_PERCENTAGE: self.request,
            CONTROLLER_MUTATION_RATE: self.controller_mutation,
        }
        self.is_active = False
        self.metered: Container[int] = ()

    def now_ms(self) -> int:
        return self.monotonic_ns() // _NS_PER_MS

    def update(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], changed: Iterable[QuotaEntity]
    ) -> None:
        """Take up the quotas of entities that have changed."""
        for entity in changed:
            if any(type == IP for type, _ in entity):
                continue
            values = quotas.get(entity, {})
            for key, manager in self._by_key.items():
                value = values.get(key)
                manager.update(entity, value if value is not None and math.isfinite(value) else None)
        self.is_active = any(manager.is_enabled for manager in self._by_key.values())
        self.metered = (
            _ALL_APIS
            if self.request.is_enabled
            else frozenset(
                (
                    *((PRODUCE,) if self.produce.is_enabled else ()),
                    *((FETCH,) if self.fetch.is_enabled else ()),
                    *(_MUTATIONS if self.controller_mutation.is_enabled else ()),
                )
            )
        )

    def mutation_quota(self, user: str, client_id: str | None, *, is_strict: bool) -> ControllerMutationQuota:
        return ControllerMutationQuota(self, user, client_id, is_strict=is_strict)


class ControllerMutationQuota:
    """The quota of one request that creates or deletes partitions.

    A strict one refuses what comes while tokens are owed. The other kind, for clients that do not know the
    error, lets everything pass and holds the client back afterwards.
    """

    __slots__ = ("_client_id", "_is_strict", "_quotas", "_throttled_until_ms", "_user")

    def __init__(self, quotas: QuotaManagers, user: str, client_id: str | None, *, is_strict: bool) -> None:
        self._quotas: Final = quotas
        self._user: Final = user
        self._client_id: Final = client_id
        self._is_strict: Final = is_strict
        self._throttled_until_ms = 0

    def record(self, permits: int) -> None:
        """Count partitions. THROTTLING_QUOTA_EXCEEDED if a strict quota is used up."""
        manager, now_ms = self._quotas.controller_mutation, self._quotas.now_ms()
        if not self._is_strict:
            manager.take(self._user, self._client_id, permits, now_ms)
        throttle_ms = manager.throttle_ms(self._user, self._client_id, now_ms)
        if throttle_ms > 0:
            self._throttled_until_ms = now_ms + throttle_ms
            if self._is_strict:
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
                )
        elif self._is_strict:
            manager.take(self._user, self._client_id, permits, now_ms)

    @property
    def throttle_ms(self) -> int:
        """For how long the client is held back from now on."""
        return max(0, self._throttled_until_ms - self._quotas.now_ms()) if self._throttled_until_ms else 0
