"""`/brokers/ids/N`: the ephemeral znode by which a broker says that it lives.

It has Kafka's members, and two that Kafka's readers pass over: the incarnation and the epoch with which the
controller has registered the broker, so that the next controller knows it without asking. A broker creates it
when it is ready to serve; where its session expires, it creates it again in the next one. Invariant: the
znode belongs to the session of this process. A znode of another session, such as that of a process that was
killed, is left alone until ZooKeeper removes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.metadata.features import SUPPORTED_FEATURES
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
_RETRY_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """What the znode of a broker says."""

    znode: znodes.BrokerIdZNode
    epoch: int
    incarnation_id: bytes
    # The session of the broker.
    owner: int = 0

    @property
    def id(self) -> int:
        return self.znode.id

    def encode(self) -> bytes:
        value: dict[str, Any] = znodes.decode_json(znodes.broker_path(self.id), self.znode.encode())
        value[_EPOCH] = self.epoch
        value[_INCARNATION] = uuid_text(self.incarnation_id)
        return znodes.encode_json(value)

    @classmethod
    def decode(cls, id: int, node: ZNode) -> RegisteredBroker | None:
        """None if another kind of broker, such as Apache Kafka, has written it."""
        value = znodes.decode_json(znodes.broker_path(id), node.data)
        epoch, incarnation = value.get(_EPOCH), value.get(_INCARNATION)
        if not isinstance(epoch, int) or not isinstance(incarnation, str):
            return None
        return cls(
            znodes.BrokerIdZNode.decode(id, node.data),
            epoch,
            parse_uuid(incarnation),
            node.stat.ephemeral_owner,
        )

    def to_record(self) -> RegisterBrokerRecord:
        """The registration of the broker, which serves."""
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
            fenced=False,
        )


def own_features() -> Mapping[str, Mapping[str, int]]:
    return {
        name: {"min_version": levels.min, "max_version": levels.max}
        for name, levels in SUPPORTED_FEATURES.items()
    }


@dataclass(slots=True)
class _Wanted:
    epoch: int = -1
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class BrokerZNode:
    """Keeps the znode of this broker. `run` is a background task; `announce` says with which epoch."""

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
        self._incarnation_id: Final = incarnation_id
        self._znode: Final = znodes.BrokerIdZNode(
            id, tuple(endpoints), rack, clock.wall_ms(), features=own_features()
        )
        self._path: Final = znodes.broker_path(id)
        self._wanted: Final = _Wanted()
        self._waits_for_owner: int | None = None
        session.add_listener(self._on_session_event)

    def announce(self, epoch: int) -> None:
        """Say that this broker serves, registered with this epoch."""
        if self._wanted.epoch != epoch:
            self._wanted.epoch = epoch
            self._wanted.changed.set()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._wanted.changed.set()

    def _on_change(self, event: WatchEvent) -> None:
        self._wanted.changed.set()

    async def run(self) -> None:
        """Create the znode and create it again, until this is cancelled."""
        while True:
            await self._wanted.changed.wait()
            self._wanted.changed.clear()
            if self._wanted.epoch < 0:
                continue
            try:
                await self._write()
            except ZooKeeperError as error:
                _log.info("%s is tried again: %s", self._path, error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._wanted.changed.set()

    async def _write(self) -> None:
        data = RegisteredBroker(self._znode, self._wanted.epoch, self._incarnation_id).encode()
        try:
            current = await self._session.get(self._path, self._on_change)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            await self._session.create(self._path, data, ephemeral=True)
            self._waits_for_owner = None
            _log.info("broker %d is registered in ZooKeeper as %s", self._znode.id, self._path)
            await self._session.exists(self._path, self._on_change)
            return
        owner = current.stat.ephemeral_owner
        if owner == self._session.session_id:
            if current.data != data:
                await self._session.set(self._path, data, current.stat.version)
        elif self._waits_for_owner != owner:
            # Its deletion calls `_on_change`.
            self._waits_for_owner = owner
            _log.warning(
                "%s belongs to another session (0x%x): of a process that was killed, whose session ends by "
                "itself, or of a second broker with this id; this broker waits until it is gone",
                self._path,
                owner,
            )
