"""The znodes of a broker: `/brokers/ids/N`, by which it says that it lives, and its registration.

The ephemeral one has Kafka's members, and one that Kafka's readers pass over: the incarnation of the broker.
A broker creates it when it is ready to serve; where its session expires, it creates it again in the next one.
Invariant: it belongs to the session of this process. A znode of another session, such as that of a process
that was killed, is left alone until ZooKeeper removes it.

Kafka has no more than that. Here a broker is also registered with the controller, which gives it an epoch
that must last as long as its process, and never go back. So the controller writes what it has registered to
`/ottla/brokers/N`, which Kafka has not. The next controller takes the broker for one that serves if its
ephemeral znode is there and of the same incarnation, and for a fenced one if not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.metadata.image.entities import BrokerRegistration
from ottla.protocol.metadata_records import BrokerEndpoint, BrokerFeature, RegisterBrokerRecord
from ottla.protocol.names import parse_uuid, uuid_text
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.runtime.clock import Clock
from ottla.runtime.zookeeper import (
    SessionEvent,
    WatchEvent,
    ZNode,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperSession,
)
from ottla.zookeeper import znodes

_log = logging.getLogger(__name__)

_EPOCH: Final = "ottla_broker_epoch"
_INCARNATION: Final = "ottla_incarnation_id"
REGISTRATIONS: Final = "/ottla/brokers"
_RETRY_SECONDS: Final = 0.2
_MAX_RETRY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """What the znode of a broker says."""

    znode: znodes.BrokerIdZNode
    incarnation_id: bytes
    # With which the controller has registered it; -1 in the ephemeral znode, which does not have it.
    epoch: int = -1

    @classmethod
    def of(cls, broker: BrokerRegistration) -> RegisteredBroker:
        """The registration of a broker, to be written."""
        endpoints = tuple(
            znodes.BrokerZNodeEndpoint(
                each.name, each.host, each.port, SecurityProtocol(each.security_protocol).name
            )
            for each in broker.listeners.values()
        )
        features = {
            name: {"min_version": levels.min, "max_version": levels.max}
            for name, levels in broker.supported_features.items()
        }
        znode = znodes.BrokerIdZNode(broker.id, endpoints, broker.rack, features=features)
        return cls(znode, broker.incarnation_id, broker.epoch)

    @property
    def id(self) -> int:
        return self.znode.id

    def encode(self) -> bytes:
        value: dict[str, Any] = znodes.decode_json(znodes.broker_path(self.id), self.znode.encode())
        value[_INCARNATION] = uuid_text(self.incarnation_id)
        if self.epoch >= 0:
            value[_EPOCH] = self.epoch
        return znodes.encode_json(value)

    @classmethod
    def decode(cls, id: int, node: ZNode) -> RegisteredBroker | None:
        """None if another kind of broker, such as Apache Kafka, has written it."""
        value = znodes.decode_json(znodes.broker_path(id), node.data)
        incarnation, epoch = value.get(_INCARNATION), value.get(_EPOCH, -1)
        if not isinstance(incarnation, str) or not isinstance(epoch, int):
            return None
        try:
            incarnation_id = parse_uuid(incarnation)
        except ValueError:
            raise znodes.ZNodeFormatError(
                f"{znodes.broker_path(id)}: {incarnation[:80]!r} is no id of an incarnation"
            ) from None
        return cls(znodes.BrokerIdZNode.decode(id, node.data), incarnation_id, epoch)

    def to_record(self, *, fenced: bool) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(
            broker_id=self.id,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                BrokerEndpoint(
                    name=each.listener,
                    host=each.host,
                    port=each.port,
                    security_protocol=int(SecurityProtocol[each.security_protocol]),
                )
                for each in self.znode.endpoints
            ],
            features=[
                BrokerFeature(
                    name=name,
                    min_supported_version=levels["min_version"],
                    max_supported_version=levels["max_version"],
                )
                for name, levels in self.znode.features.items()
            ],
            rack=self.znode.rack,
            fenced=fenced,
        )


def registration_path(id: int) -> str:
    return f"{REGISTRATIONS}/{id}"


def own_features() -> Mapping[str, Mapping[str, int]]:
    return {
        name: {"min_version": levels.min, "max_version": levels.max}
        for name, levels in SUPPORTED_FEATURES.items()
    }


class BrokerZNode:
    """Keeps the znode of this broker. `run` is a background task; `announce` says that it is time."""

    def __init__(
        self,
        session: ZooKeeperSession,
        clock: Clock,
        id: int,
        incarnation_id: bytes,
        endpoints: Sequence[znodes.BrokerZNodeEndpoint],
        rack: str | None,
    ) -> None:
        self._session: Final = session
        znode = znodes.BrokerIdZNode(id, tuple(endpoints), rack, clock.wall_ms(), features=own_features())
        self._id: Final = id
        self._data: Final = RegisteredBroker(znode, incarnation_id).encode()
        self._path: Final = znodes.broker_path(id)
        self._is_wanted = False
        self._changed: Final = asyncio.Event()
        self._waits_for_owner: int | None = None
        session.add_listener(self._on_session_event)

    def announce(self) -> None:
        """Say that this broker is ready to serve."""
        if not self._is_wanted:
            self._is_wanted = True
            self._changed.set()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._changed.set()

    def _on_change(self, event: WatchEvent) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Create the znode and create it again, until this is cancelled."""
        pause = _RETRY_SECONDS
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._is_wanted:
                continue
            try:
                await self._write()
                pause = _RETRY_SECONDS
            except ZooKeeperError as error:
                if error.code in (ZooKeeperErrorCode.CONNECTION_LOSS, ZooKeeperErrorCode.SESSION_EXPIRED):
                    pause = _RETRY_SECONDS
                    _log.info("%s is tried again: %s", self._path, error)
                else:
                    _log.error(
                        "broker %d cannot register in ZooKeeper: %s; it tries again in %.1f s",
                        self._id,
                        error,
                        pause,
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_SECONDS)
                self._changed.set()

    async def _write(self) -> None:
        try:
            current = await self._session.get(self._path, self._on_change)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            await self._session.create(self._path, self._data, ephemeral=True)
            self._waits_for_owner = None
            _log.info("broker %d is registered in ZooKeeper as %s", self._id, self._path)
            await self._session.exists(self._path, self._on_change)
            return
        owner = current.stat.ephemeral_owner
        if owner == self._session.session_id:
            if current.data != self._data:
                await self._session.set(self._path, self._data, current.stat.version)
        elif self._waits_for_owner != owner:
            # Its deletion calls `_on_change`.
            self._waits_for_owner = owner
            _log.warning(
                "%s belongs to another session (0x%x): of a process that was killed, whose session ends by "
                "itself, or of a second broker with this id; this broker waits until it is gone",
                self._path,
                owner,
            )
