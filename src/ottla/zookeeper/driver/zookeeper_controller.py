"""The active controller of the legacy mode: decisions as with a quorum, and the znodes that it watches.

A broker serves as long as its ephemeral znode is there: the controller unfences no broker without one, and
fences a broker whose znode is gone, without waiting for heartbeats. What operators write by hand is honoured
as Kafka's controllers did: topics under `/admin/delete_topics`, `/admin/reassign_partitions`,
`/admin/preferred_replica_election`, and configurations that a notification under `/config/changes` names.

A watch fires once, and several changes may cause one event, so an event only says where to look again.
Invariant: each look sets the watch before it reads, so no change after it goes unseen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

from ottla.metadata.controller.brokers import HeartbeatReply
from ottla.metadata.controller.controller import Controller
from ottla.metadata.controller.quorum_controller import QuorumController
from ottla.metadata.controller.state import Result
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    BrokerRegistration,
    ConfigResource,
    ConfigResourceType,
    QuotaEntity,
    config_record,
)
from ottla.metadata.image.image import MetadataImage, quota_record
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.metadata_records import ConfigRecord
from ottla.protocol.names import TopicPartition
from ottla.runtime.clock import Clock
from ottla.runtime.turns import Turns
from ottla.runtime.zookeeper import (
    SessionEvent,
    WatchEvent,
    ZNode,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperSession,
)
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.broker_znode import RegisteredBroker
from ottla.zookeeper.driver.zookeeper_log_driver import LedEpoch

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1
_MAX_RETRY_SECONDS: Final = 30.0
# How often a reassignment that an operator wrote is looked at until it is done.
_REASSIGNMENT_SECONDS: Final = 0.5
# How long notifications of changed configurations are kept, as Kafka does.
_NOTIFICATION_MS: Final = 15 * 60 * 1000
# How often a configuration is read again, as the controller has written meanwhile, before others have a turn.
_CONFIG_ATTEMPTS: Final = 5
_PREFERRED: Final = 0


class ZooKeeperController(QuorumController):
    """`live` are the incarnations of the brokers whose znodes are there."""

    live: Mapping[int, bytes] = {}

    async def process_broker_heartbeat(self, request: BrokerHeartbeatRequest) -> HeartbeatReply:
        """The same, but a broker without a znode stays fenced."""
        serves = not request.want_fence and not request.want_shut_down
        registered = self.decided_image.cluster.brokers.get(request.broker_id)
        if serves and registered is not None and not self.is_live(registered):
            request = BrokerHeartbeatRequest(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                current_metadata_offset=request.current_metadata_offset,
                want_fence=True,
                want_shut_down=False,
            )
        return await super().process_broker_heartbeat(request)

    def is_live(self, broker: BrokerRegistration) -> bool:
        """Whether the znode of a broker is there, and of this incarnation."""
        return self.live.get(broker.id) == broker.incarnation_id


class ControllerWatches:
    """What an active controller does about znodes. `run` is a background task, until it is active no more."""

    def __init__(
        self, clock: Clock, session: ZooKeeperSession, controller: ZooKeeperController, led: LedEpoch
    ) -> None:
        self._clock: Final = clock
        self._session: Final = session
        self._controller: Final = controller
        self._led: Final = led
        controller.live = {id: broker.incarnation_id for id, broker in led.brokers.items()}
        self._looks: Final[Mapping[str, Callable[[], Awaitable[None]]]] = {
            znodes.BROKER_IDS: self._look_at_brokers,
            znodes.DELETE_TOPICS: self._look_at_deletions,
            znodes.PREFERRED_REPLICA_ELECTION: self._look_at_elections,
            znodes.REASSIGN_PARTITIONS: self._look_at_reassignments,
            znodes.CONFIG_CHANGES: self._look_at_config_changes,
        }
        # One for each name: ZooKeeper's client keeps those that have not fired.
        self._watchers: Final = {name: partial(self._on_watch, name) for name in self._looks}
        self._wanted: dict[str, None] = dict.fromkeys(self._looks)
        # How often in a row a look has failed.
        self._failures: dict[str, int] = {}
        self._changed: Final = asyncio.Event()
        self._changed.set()
        # The reassignment in ZooKeeper that was begun.
        self._begun_reassignment: bytes | None = None
        # When each notification that was seen was created.
        self._notifications: dict[str, int] = {}

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._want(*self._looks)

    def _want(self, *names: str) -> None:
        for name in names:
            self._wanted[name] = None
        self._changed.set()

    def _watch(self, name: str) -> Callable[[WatchEvent], None]:
        return self._watchers[name]

    def _on_watch(self, name: str, event: WatchEvent) -> None:
        self._want(name)

    def on_leader_change(self) -> None:
        """Look whether this controller is still active."""
        self._changed.set()

    @property
    def _is_active(self) -> bool:
        return self._controller.log.led_epoch == self._controller.epoch

    async def run(self) -> None:
        self._session.add_listener(self._on_session_event)
        try:
            # It may have been begun before, and ended by an error.
            self._want(*self._looks)
            await self._take_over()
            await self._look_until_inactive()
        finally:
            self._session.remove_listener(self._on_session_event)

    async def _look_until_inactive(self) -> None:
        while self._is_active:
            await self._changed.wait()
            self._changed.clear()
            while self._wanted and self._is_active:
                name = next(iter(self._wanted))
                del self._wanted[name]
                try:
                    await self._looks[name]()
                    self._failures.pop(name, None)
                except ZooKeeperError as error:
                    if error.code in (ZooKeeperErrorCode.CONNECTION_LOSS, ZooKeeperErrorCode.SESSION_EXPIRED):
                        _log.debug("%s is looked at again: %s", name, error)
                        self._again(name)
                    else:
                        _log.warning("%s cannot be watched: %s; it is tried again", name, error)
                        self._again_later(name)
                except KafkaError as error:
                    if error.code is not ErrorCode.NOT_CONTROLLER:
                        _log.warning("what ZooKeeper has at %s is not done: %s", name, error)
                        self._again_later(name)
                except znodes.ZNodeFormatError as error:
                    _log.warning("%s", error)
                except Exception as error:
                    _log.error("%s could not be looked at; it is tried again", name, exc_info=error)
                    self._again_later(name)

    def _again(self, name: str, seconds: float = _RETRY_SECONDS) -> None:
        """Look again after a while; other looks do not wait for it."""
        asyncio.get_running_loop().call_later(seconds, self._want, name)

    def _again_later(self, name: str) -> None:
        """The same, after a time that doubles with each failure in a row."""
        failures = self._failures.get(name, 0)
        self._failures[name] = min(failures + 1, 30)
        self._again(name, min(_RETRY_SECONDS * 2**failures, _MAX_RETRY_SECONDS))

    # Brokers

    async def _take_over(self) -> None:
        """Do what the previous controller may not have come to: take brokers that are gone out of in-sync
        sets, and elect leaders among those that have come back.
        """
        image = self._controller.decided_image
        turns = Turns(self._clock)
        absent: dict[int, None] = {}
        serving = {broker.id for broker in image.cluster.brokers.values() if not broker.fenced}
        for _, _, partition in image.topics.partitions():
            absent.update((id, None) for id in partition.isr if id not in serving)
            if turns.is_due():
                await turns.pause()
        try:
            for id in absent:
                await self._controller.decide(
                    lambda controller, id=id: controller.take_leave_of_broker(id),  # type: ignore[misc]
                    for_client=False,
                )
            await self._controller.decide(Controller.elect_leaders_where_there_is_none, for_client=False)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise

    async def _look_at_brokers(self) -> None:
        names = await self._session.children(znodes.BROKER_IDS, self._watch(znodes.BROKER_IDS))
        live: dict[int, bytes] = {}
        for name in names:
            if not name.isdecimal():
                continue
            node = await self._get(f"{znodes.BROKER_IDS}/{name}", znodes.BROKER_IDS)
            try:
                broker = None if node is None else RegisteredBroker.decode(int(name), node)
            except znodes.ZNodeFormatError as error:
                _log.warning("%s: it is no broker", error)
                continue
            if broker is not None:
                live[broker.id] = broker.incarnation_id
        self._controller.live = live
        for registered in list(self._controller.decided_image.cluster.brokers.values()):
            if registered.fenced or self._controller.is_live(registered):
                continue
            if await self._controller.fence_gone_broker(registered.id, registered.epoch):
                path = znodes.broker_path(registered.id)
                _log.warning("broker %d is fenced: its znode %s is gone", registered.id, path)

    async def _get(self, path: str, watch: str) -> ZNode | None:
        try:
            return await self._session.get(path, self._watch(watch))
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            return None

    async def _get_or_await(self, path: str) -> ZNode | None:
        """Read a znode; if there is none, its creation is watched."""
        while True:
            node = await self._get(path, path)
            if node is not None:
                return node
            if await self._session.exists(path, self._watch(path)) is None:
                return None

    async def _delete(self, path: str, version: int = -1) -> None:
        try:
            await self._session.delete(path, version)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise

    # What operators write

    async def _look_at_deletions(self) -> None:
        name = znodes.DELETE_TOPICS
        topics = await self._session.children(name, self._watch(name))
        known = self._controller.decided_image.topics.by_name
        wanted = [topic for topic in topics if topic in known]
        for topic in topics:
            if topic in known:
                continue
            if self._is_writing:
                # It may be the note of a deletion that is being written.
                self._again(name)
                return
            await self._delete(znodes.delete_topic_path(topic))
        if not wanted:
            return
        for topic in wanted:
            self._led.writer.note_deletion(topic)
        request = DeleteTopicsRequest(topic_names=wanted, timeout_ms=0)
        try:
            await self._controller.decide(
                lambda controller: controller.delete_topics(request, version=5), for_client=False
            )
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_DELETION_DISABLED:
                raise
            _log.warning("%s", error)
            for topic in wanted:
                self._led.writer.forget_deletion(topic)
                await self._delete(znodes.delete_topic_path(topic))

    @property
    def _is_writing(self) -> bool:
        return self._led.is_writing or bool(self._led.queued)

    async def _look_at_elections(self) -> None:
        node = await self._get_or_await(znodes.PREFERRED_REPLICA_ELECTION)
        if node is None:
            return
        partitions = znodes.decode_partitions(znodes.PREFERRED_REPLICA_ELECTION, node.data)
        request = ElectLeadersRequest(
            election_type=_PREFERRED,
            topic_partitions=[
                TopicPartitions(topic=topic, partitions=numbers)
                for topic, numbers in _by_topic(partitions).items()
            ],
        )
        await self._controller.decide(lambda controller: controller.elect_leaders(request), for_client=False)
        await self._delete(znodes.PREFERRED_REPLICA_ELECTION, node.stat.version)
        self._want(znodes.PREFERRED_REPLICA_ELECTION)

    async def _look_at_reassignments(self) -> None:
        path = znodes.REASSIGN_PARTITIONS
        node = await self._get_or_await(path)
        if node is None:
            self._begun_reassignment = None
            return
        targets = znodes.decode_reassign_partitions(node.data)
        if self._begun_reassignment != node.data:
            request = AlterPartitionReassignmentsRequest(
                topics=[
                    ReassignableTopic(
                        name=topic,
                        partitions=[
                            ReassignablePartition(
                                partition_index=number, replicas=list(targets[TopicPartition(topic, number)])
                            )
                            for number in numbers
                        ],
                    )
                    for topic, numbers in _by_topic(targets).items()
                ]
            )
            response = await self._controller.decide(
                lambda controller: controller.alter_partition_reassignments(request), for_client=False
            )
            for refused in response.responses:
                for each in refused.partitions:
                    if each.error_code:
                        _log.warning(
                            "the reassignment of %s-%d is refused: %s",
                            refused.name,
                            each.partition_index,
                            each.error_message,
                        )
            self._begun_reassignment = node.data
        topics = self._controller.decided_image.topics.by_name
        is_running = any(
            partition.is_reassigning
            for tp in targets
            if tp.topic in topics
            if (partition := topics[tp.topic].partitions.get(tp.partition)) is not None
        )
        if is_running:
            self._again(path, _REASSIGNMENT_SECONDS)
            return
        await self._delete(path, node.stat.version)
        self._want(path)

    # Configurations

    async def _look_at_config_changes(self) -> None:
        name = znodes.CONFIG_CHANGES
        notifications = await self._session.children(name, self._watch(name))
        for each in notifications:
            if each in self._notifications:
                continue
            path = f"{name}/{each}"
            try:
                node = await self._session.get(path)
            except ZooKeeperError as error:
                if error.code is not ZooKeeperErrorCode.NO_NODE:
                    raise
                continue
            try:
                if not await self._apply_config_change(znodes.decode_config_change(path, node.data)):
                    self._again(name)
                    return
            except znodes.ZNodeFormatError as error:
                _log.warning("%s", error)
            self._notifications[each] = node.stat.ctime_ms
        now_ms = self._clock.wall_ms()
        present = set(notifications)
        for each, created_ms in list(self._notifications.items()):
            if each not in present:
                del self._notifications[each]
            elif now_ms - created_ms > _NOTIFICATION_MS:
                await self._delete(f"{name}/{each}")
                del self._notifications[each]

    async def _apply_config_change(self, entity_path: str) -> bool:
        """Bring what the znode of an entity says into the metadata, if this controller did not write it.
        Return whether that is done: a controller that writes all the time has to be asked again.
        """
        path = f"{znodes.CONFIG}/{entity_path}"
        for _ in range(_CONFIG_ATTEMPTS):
            changes = self._led.changes
            try:
                data = (await self._session.get(path)).data
            except ZooKeeperError as error:
                if error.code is not ZooKeeperErrorCode.NO_NODE:
                    raise
                data = b""
            configs = znodes.decode_config(path, data)
            _check_numbers(path, entity_path, configs)
            applied = await self._controller.decide(
                partial(self._config_records, entity_path, configs, changes), for_client=False
            )
            if applied:
                return True
            await asyncio.sleep(_RETRY_SECONDS)
        return False

    def _config_records(
        self, entity_path: str, configs: Mapping[str, str], changes: int, controller: Controller
    ) -> Result[bool]:
        """The records for what a znode said; False if the controller has written since it was read."""
        if self._led.changes != changes or self._is_writing:
            return Result([], False)
        return Result(list(_differences(controller.image, entity_path, configs)), True)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


def _differences(
    image: MetadataImage, entity_path: str, configs: Mapping[str, str]
) -> Iterable[MetadataRecord]:
    kind, _, name = entity_path.partition("/")
    if kind in ("topics", "brokers"):
        type = ConfigResourceType.TOPIC if kind == "topics" else ConfigResourceType.BROKER
        resource = CLUSTER_DEFAULT if name == znodes.DEFAULT_ENTITY else ConfigResource(type, name)
        if type is ConfigResourceType.TOPIC and name not in image.topics.by_name:
            return
        before = image.config(resource)
        for key in before:
            if key not in configs:
                yield ConfigRecord(
                    resource_type=resource.type, resource_name=resource.name, name=key, value=None
                )
        for key, value in configs.items():
            if before.get(key) != value:
                yield config_record(resource, key, value)
        return
    entity = _quota_entity(entity_path)
    if entity is None:
        return
    quotas = image.client_quotas.get(entity, {})
    wanted = {key: float(value) for key, value in configs.items() if not key.startswith("SCRAM-")}
    for key in quotas:
        if key not in wanted:
            yield quota_record(entity, key, None)
    for key, quota in wanted.items():
        if quotas.get(key) != quota:
            yield quota_record(entity, key, quota)


def _check_numbers(path: str, entity_path: str, configs: Mapping[str, str]) -> None:
    """ZNodeFormatError if a quota that was written by hand is no number."""
    if _quota_entity(entity_path) is None:
        return
    for key, value in configs.items():
        try:
            if not key.startswith("SCRAM-"):
                float(value)
        except ValueError:
            raise znodes.ZNodeFormatError(f"{path}: {key}={value} is no number") from None


def _quota_entity(entity_path: str) -> QuotaEntity | None:
    def named(name: str) -> str | None:
        return None if name == znodes.DEFAULT_ENTITY else znodes.desanitize(name)

    match entity_path.split("/"):
        case ["clients", client]:
            return (("client-id", named(client)),)
        case ["ips", ip]:
            return (("ip", None if ip == znodes.DEFAULT_ENTITY else ip),)
        case ["users", user]:
            return (("user", named(user)),)
        case ["users", user, "clients", client]:
            return (("client-id", named(client)), ("user", named(user)))
    return None
