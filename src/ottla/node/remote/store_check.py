"""Tries the store of tiered storage once after the start of a broker, so that an operator hears of one that
cannot be used before the first segment is to be copied.

What a copy needs is tried: an object of a few bytes is written and deleted. If that fails, one warning says
why and what to do; it is tried again with pauses that grow, until it works, which is logged too. The start
waits for none of it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.errors import KafkaError
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.store_settings import RemoteStorageSettings
from ottla.rpc.backoff import ExponentialBackoff
from ottla.runtime.object_store import ObjectStoreKind
from ottla.runtime.random import Random

_log = logging.getLogger(__name__)


class StoreCheck:
    """`run` ends once the store could be used."""

    def __init__(
        self,
        random: Random,
        config: DynamicBrokerConfig,
        settings: RemoteStorageSettings,
        storage: ObjectStorageManager,
    ) -> None:
        self._random: Final = random
        self._config: Final = config
        self._storage: Final = storage
        self._settings: Final = settings
        # One for each broker, and always the same: what a kill leaves behind is deleted by the next start.
        self._object_name: Final = f"ottla-check-{config.current.node_id}"

    async def run(self) -> None:
        config = self._config.current
        pauses = ExponentialBackoff(
            self._random,
            config.number("remote.log.manager.task.retry.backoff.ms"),
            config.number("remote.log.manager.task.retry.backoff.max.ms"),
        )
        has_failed = False
        while True:
            try:
                await self._storage.try_store(self._object_name)
                break
            except (KafkaError, OSError) as error:
                if not has_failed:
                    self._warn(error.message if isinstance(error, KafkaError) else str(error))
                has_failed = True
                await asyncio.sleep(pauses.next_ms() / 1000)
        if has_failed:
            _log.info("the store of tiered storage, %s, can be used now", self._name)

    @property
    def _name(self) -> str:
        store = self._settings.store
        if store.kind is ObjectStoreKind.DIRECTORY:
            return store.location
        return f"{store.kind.value}://{store.location}/{self._settings.prefix}".rstrip("/")

    def _warn(self, why: str) -> None:
        prefix = self._config.current.text("remote.log.storage.manager.impl.prefix")
        if self._settings.store.kind is ObjectStoreKind.DIRECTORY:
            advice = (
                "Make it a directory that the user of this broker can write to, or name another one by "
                f"{prefix}storage.url"
            )
        else:
            advice = (
                f"Look at the bucket, the region and the endpoint in {prefix}storage.*, and at whether the "
                "credentials allow to write and to delete objects there"
            )
        _log.warning(
            "the store of tiered storage, %s, cannot be used, and segments stay on the disk until it can: "
            "%s. %s. It is tried again, and the log says when it works",
            self._name,
            why.rstrip("."),
            advice,
        )
