"""`ZooKeeperLogDriver` orders and stores metadata records by ZooKeeper: the legacy driver beside raft.

The node that creates the ephemeral `/controller` is the active controller; the same transaction counts
`/controller_epoch` up. It rebuilds the metadata from the znodes, and from then on each batch of records is
written as znodes in a transaction that also checks the version of `/controller_epoch`: once another
controller is elected, no write of this one succeeds. Only what is written is committed. The other nodes watch
`/controller`, and fetch from the active controller what it has committed, after a snapshot of what it has
read, by the requests by which brokers follow a quorum.

A controller that does not know whether a write took place, or whose write is refused, stops leading, and the
next one, perhaps itself, reads the znodes again. Where it is not the connection that fails but what is in
ZooKeeper, a node leaves the election to others for a time that doubles, and says why. Invariant: of two
controllers that both believe in themselves, only the one with the higher epoch can commit anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.delta import apply_records
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import encode_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    decode_metadata_record,
)
from ottla.protocol.schema import Request as WireRequest
from ottla.protocol.schema import Response as WireResponse
from ottla.protocol.schema import drop_newer_fields
from ottla.raft import messages as m
from ottla.raft.config import QuorumConfig
from ottla.raft.driver import wire
from ottla.raft.driver.kafka_raft_client import QuorumDescription, QuorumReplicaInfo, RaftListener
from ottla.raft.quorum_state import RaftStatus
from ottla.raft.snapshot import SnapshotId, encode_snapshot
from ottla.raft.states import Role
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.records.batch import iter_batches, read_records
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns
from ottla.runtime.zookeeper import (
    CheckZNode,
    CreateZNode,
    SessionEvent,
    SetZNode,
    WatchEvent,
    ZNodeStat,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperOperation,
    ZooKeeperSession,
)
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.broker_znode import RegisteredBroker
from ottla.zookeeper.driver.cluster_znodes import other_metadata, read_metadata_id
from ottla.zookeeper.driver.metadata_stream import MetadataStream, first_offset
from ottla.zookeeper.driver.znode_reader import STORED_METADATA_VERSION, ZNodeReader
from ottla.zookeeper.driver.znode_writer import ZNodeWriter, check_storable, transactions

_log = logging.getLogger(__name__)

_EPOCH: Final = "ottla_epoch"
_ENDPOINTS: Final = "ottla_endpoints"
_RETRY_SECONDS: Final = 0.1
_FETCH_RETRY_SECONDS: Final = 0.05
# How long a node leaves the election to others because of what is in ZooKeeper, at most; and how long all has
# to be well after that until it begins with the shortest time again.
_MAX_BACKOFF_SECONDS: Final = 30.0
_HEALTHY_SECONDS: Final = 60.0
# Errors that pass with the connection.
_PASSING: Final = frozenset((ZooKeeperErrorCode.CONNECTION_LOSS, ZooKeeperErrorCode.SESSION_EXPIRED))
# Of a session: how often a controller asks whether it still is the newest, and how long the answer counts.
_CONFIRM_PART: Final = 1 / 9
_CONFIRMED_PART: Final = 3 / 9
# The most batches whose writes are not done yet; what comes beyond that waits for the controller's next turn.
_MAX_QUEUED_BATCHES: Final = 10_000
# Batches are written together until there are this many writes.
_OPERATIONS_TOGETHER: Final = 500
# Kinds of records that may have no znode, by the second byte of an encoded record.
_CHECKED_KINDS: Final = frozenset((ConfigRecord.API_KEY, FeatureLevelRecord.API_KEY))


@dataclass(frozen=True, slots=True)
class ElectedController:
    """What `/controller` says."""

    id: int
    epoch: int
    endpoints: Mapping[str, Address] = field(default_factory=dict)

    def encode(self, now_ms: int) -> bytes:
        value: dict[str, Any] = znodes.decode_json(
            znodes.CONTROLLER, znodes.ControllerZNode(self.id, now_ms).encode()
        )
        # Kafka's readers pass over these.
        value[_EPOCH] = self.epoch
        value[_ENDPOINTS] = {name: str(at) for name, at in self.endpoints.items()}
        return znodes.encode_json(value)

    @classmethod
    def decode(cls, data: bytes) -> ElectedController | None:
        """None if another kind of controller, such as Apache Kafka, has written it."""
        value = znodes.decode_json(znodes.CONTROLLER, data)
        epoch, endpoints = value.get(_EPOCH), value.get(_ENDPOINTS)
        if not isinstance(epoch, int) or not isinstance(endpoints, dict):
            return None
        found = {}
        for name, text in endpoints.items():
            host, _, port = str(text).rpartition(":")
            if not port.isdecimal():
                raise znodes.ZNodeFormatError(f"{znodes.CONTROLLER}: {text!r} is no address")
            found[name] = Address(host.strip("[]"), int(port))
        return cls(znodes.ControllerZNode.decode(data).broker_id, epoch, found)


@dataclass(slots=True)
class LedEpoch:
    """The epoch that this node leads. `brokers` are those whose znodes were there at its election."""

    epoch: int
    # The version of `/controller_epoch` that every write checks.
    version: int
    writer: ZNodeWriter
    brokers: dict[int, RegisteredBroker]
    # (offset after the batch, the batch) of what is not written yet.
    queued: deque[tuple[int, bytes]] = field(default_factory=deque)
    is_writing: bool = False
    # Counts what was appended, without records that change nothing.
    changes: int = 0
    # When the last request was sent by whose success this controller knows that no other is elected.
    confirmed_ns: int = 0
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    # The last fetch of each follower: its end, and when, of the monotonic clock.
    followers: dict[int, tuple[ReplicaKey, int, int]] = field(default_factory=dict)


class ZooKeeperLogDriver:
    """A `MetadataLogDriver`. Make it, give it its listener, then `start`."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskSupervisor,
        session: ZooKeeperSession,
        stream: MetadataStream,
        local: Voter,
        listener: RaftListener,
        *,
        cluster_id: str,
        config: QuorumConfig,
        listener_name: str,
        session_timeout_ms: int,
        channel: InterNodeClient,
        can_lead: bool = True,
        metadata_id: str = "",
    ) -> None:
        self._runtime: Final = runtime
        self._tasks: Final = tasks
        self.session: Final = session
        self._stream: Final = stream
        self.local: Final = local
        self._listener: Final = listener
        self._cluster_id: Final = cluster_id
        self._config: Final = config
        self._listener_name: Final = listener_name
        self._session_timeout_ms: Final = session_timeout_ms
        self._channel: Final = channel
        self._can_lead: Final = can_lead
        # The id of the metadata that this node belongs to, and the session in which ZooKeeper was seen to
        # have the same.
        self._metadata_id: Final = metadata_id
        self._checked_session = 0
        # Why this node neither leads nor follows, if it is for what is in ZooKeeper; how often in a row, and
        # until when, of the monotonic clock, it leaves the election to others.
        self.problem: str | None = None
        self._problems = 0
        self._stand_again_ns = 0
        self._stand_timer: asyncio.TimerHandle | None = None
        self.failure: BaseException | None = None
        self._closed = False
        self._connected = True
        self._led: LedEpoch | None = None
        # Whom this node follows; None while there is no controller, or it is this node.
        self._followed: ElectedController | None = None
        self._epoch = 0
        # The high watermark of the controller that is followed; None until it has answered.
        self._leader_high_watermark: int | None = None
        self._elections: Final = asyncio.Event()  # something has changed that the election has to look at
        self._committed: Final = asyncio.Condition()
        self._expiry: asyncio.TimerHandle | None = None
        self._started: list[SupervisedTask] = []
        self._of_epoch: list[SupervisedTask] = []
        self._refused_controller: bytes | None = None
        session.add_listener(self._on_session_event)

    # Queries

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_leader(self) -> bool:
        return self._led is not None

    @property
    def led(self) -> LedEpoch | None:
        return self._led

    @property
    def leader_address(self) -> Address | None:
        return None if self._followed is None else self._followed.endpoints.get(self._listener_name)

    @property
    def _leader_id(self) -> int | None:
        if self._led is not None:
            return self.local.key.id
        return None if self._followed is None else self._followed.id

    @property
    def status(self) -> RaftStatus:
        led = self._led
        return RaftStatus(
            node_id=self.local.key.id,
            role=Role.FOLLOWER if led is None else Role.LEADER,
            epoch=self._epoch,
            leader_id=self._leader_id,
            high_watermark=self._leader_high_watermark if led is None else self._stream.high_watermark,
            log_end=self._stream.end,
            epoch_start_offset=None if led is None else first_offset(led.epoch) - 1,
            kraft_version=0,
            voters=VoterSet.of(self.local),
        )

    def describe(self) -> QuorumDescription | None:
        """Describe the active controller as a quorum of one, with those who follow it as observers."""
        led = self._led
        if led is None:
            return None
        now_ns, wall_ms = self._runtime.clock.monotonic_ns(), self._runtime.clock.wall_ms()
        own = QuorumReplicaInfo(self.local.key, self._stream.end.offset, wall_ms, wall_ms)
        observers = []
        for key, end, fetched_ns in led.followers.values():
            at_ms = wall_ms - (now_ns - fetched_ns) // 1_000_000
            observers.append(QuorumReplicaInfo(key, end, at_ms, at_ms))
        return QuorumDescription(self.local.key.id, led.epoch, self._stream.high_watermark, [own], observers)

    def is_followed_since(self, since_ns: int) -> bool:
        """Whether this node leads, and ZooKeeper has said so since: one that is cut off cannot commit."""
        return self._led is not None and self._led.confirmed_ns >= since_ns

    @property
    def is_confirmed(self) -> bool:
        """Whether this node leads and ZooKeeper has said so a moment ago. A controller that is cut off may
        not tell brokers, such as that of its own node, that they are still counted on.
        """
        limit_ns = int(self._session_timeout_ms * _CONFIRMED_PART * 1_000_000)
        return self.is_followed_since(self._runtime.clock.monotonic_ns() - limit_ns)

    def describe_missing_leader(self, voters: str) -> str:
        """Say why there may be no controller, for an operator."""
        if self.problem is not None:
            return f"there is no controller: {self.problem}"
        if not self._connected:
            return "ZooKeeper cannot be reached"
        return "ZooKeeper has no /controller"

    def check_usable(self) -> None:
        if self.failure is not None:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"the metadata cannot be written any more: {self.failure}"
            ) from self.failure

    # Starting and stopping

    def start(self) -> None:
        self._started.append(self._tasks.start("election of the controller", self._elect))
        self._elections.set()

    def fail(self, error: BaseException) -> None:
        if self.failure is not None or self._closed:
            return
        expected = isinstance(error, OSError | KafkaError | StorageError)
        _log.error("the metadata failed: %s", error, exc_info=None if expected else error)
        self._stop_leading()
        self.failure = error
        self._listener.on_failure(error)

    async def resign(self, timeout_ms: int) -> None:
        """Leave the election to others; the end of the session removes `/controller`."""

    async def close(self) -> None:
        """Stop taking part, and end the session: its ephemeral znodes are gone at once."""
        self._closed = True
        for timer in (self._expiry, self._stand_timer):
            if timer is not None:
                timer.cancel()
        await self._tasks.stop([*self._started, *self._of_epoch])
        self._channel.close()
        await self._notify_committed()
        await self.session.close()

    def upgrade_kraft_version(self, kraft_version: int, *, validate_only: bool) -> None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, "With metadata.store=zookeeper there is no quorum to upgrade."
        )

    # Events of the session

    def _on_session_event(self, event: SessionEvent) -> None:
        if self._closed:
            return
        if event is SessionEvent.CONNECTED:
            self._connected = True
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
        elif event is SessionEvent.DISCONNECTED:
            self._connected = False
            if self._expiry is None:
                # ZooKeeper may have ended the session by then, and another controller may be elected.
                loop = asyncio.get_running_loop()
                self._expiry = loop.call_later(self._session_timeout_ms / 1000, self._on_silence)
        elif event is SessionEvent.EXPIRED:
            self._connected = False
            self._stop_leading("its session with ZooKeeper has expired")
        else:
            self.fail(ConnectionError("ZooKeeper refuses the login: check it, and start the node again"))
        self._elections.set()

    def _on_silence(self) -> None:
        self._expiry = None
        self._stop_leading("it has lost ZooKeeper for the time of a session")

    def _on_watch(self, event: WatchEvent) -> None:
        self._elections.set()

    # The election

    async def _elect(self) -> None:
        """Look at `/controller` whenever it may have changed: lead, follow, or wait."""
        self._elections.set()  # what an error has ended in the middle begins again
        while self.failure is None:
            await self._elections.wait()
            self._elections.clear()
            try:
                await self._look_at_controller()
            except ZooKeeperError as error:
                if error.code is ZooKeeperErrorCode.AUTH_FAILED:
                    self.fail(ConnectionError(f"ZooKeeper refuses the login: {error}"))
                    return
                pause = _RETRY_SECONDS
                if error.code in _PASSING or _is_fenced(error):
                    _log.debug("the election is tried again: %s", error)
                else:
                    pause = self._note_problem(str(error))
                await asyncio.sleep(pause)
                self._elections.set()
            except (znodes.ZNodeFormatError, StorageError) as error:
                self._stop_leading(str(error))
                self._follow_none()
                await asyncio.sleep(self._note_problem(str(error)))
                self._elections.set()

    def _note_problem(self, text: str) -> float:
        """Keep out of the election for a while: it is no use with what is in ZooKeeper. Returns the seconds,
        which grow with each time in a row.
        """
        now_ns = self._runtime.clock.monotonic_ns()
        if now_ns - self._stand_again_ns >= _HEALTHY_SECONDS * 1_000_000_000:
            self._problems = 0
        pause: float = min(_RETRY_SECONDS * 2**self._problems, _MAX_BACKOFF_SECONDS)
        self._problems = min(self._problems + 1, 30)
        self.problem = text
        self._stand_again_ns = now_ns + int(pause * 1_000_000_000)
        _log.error("this node cannot be the controller now: %s; it tries again in %.1f s", text, pause)
        return pause

    async def _check_metadata_id(self) -> None:
        """Check in each session that ZooKeeper still has the metadata that this node belongs to: an empty
        one, or that of another cluster, would have the node put its logs aside. StorageError if not.
        """
        session_id = self.session.session_id
        if self._checked_session == session_id:
            return
        found = await read_metadata_id(self.session)
        if found != self._metadata_id:
            raise StorageError(other_metadata(self._metadata_id, found))
        self._checked_session = session_id

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise StorageError(
                f"{znodes.CONTROLLER_EPOCH} in ZooKeeper has gone back from {self._epoch} to {epoch}: its "
                "data are older than what this node has seen. Restore the newest copy; or, to go on with "
                "what is there, start the node again"
            )

    async def _look_at_controller(self) -> None:
        await self._check_metadata_id()
        try:
            node = await self.session.get(znodes.CONTROLLER, self._on_watch)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            if self.session.session_id != self._checked_session:
                self._elections.set()
                return
            self._stop_leading("its znode /controller is gone")
            self._follow_none()
            if self._can_lead and not self._leaves_it_to_others():
                await self._stand_for_election()
            elif await self.session.exists(znodes.CONTROLLER, self._on_watch) is not None:
                self._elections.set()
            return
        if self.session.session_id != self._checked_session:
            self._elections.set()
            return
        if node.stat.ephemeral_owner == self.session.session_id:
            if self._led is None:
                # Left from a term that has ended, or whose beginning was not certain.
                await self._delete_controller(node.stat.version)
            return
        self._stop_leading("another controller is elected")
        controller = ElectedController.decode(node.data)
        if controller is None:
            if node.data != self._refused_controller:
                self._refused_controller = node.data
                self.problem = (
                    f"/controller was written by another kind of broker: {node.data[:200]!r}; brokers of "
                    "Apache Kafka and of Ottla cannot share one ZooKeeper path, use another chroot in "
                    "zookeeper.connect"
                )
                _log.error("%s", self.problem)
            return
        self._follow(controller)

    def _follow_none(self) -> None:
        if self._followed is not None:
            self._followed = None
            self._listener.on_leader_change(None, self._epoch)

    def _leaves_it_to_others(self) -> bool:
        """Whether it is too early to stand for election again; the election is looked at when it is not."""
        if self._stand_timer is not None:
            self._stand_timer.cancel()
            self._stand_timer = None
        left_ns = self._stand_again_ns - self._runtime.clock.monotonic_ns()
        if left_ns <= 0:
            return False
        loop = asyncio.get_running_loop()
        self._stand_timer = loop.call_later(left_ns / 1_000_000_000, self._elections.set)
        return True

    async def _delete_controller(self, version: int) -> None:
        try:
            await self.session.delete(znodes.CONTROLLER, version)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
        self._elections.set()

    async def _stand_for_election(self) -> None:
        session = self.session
        self._checked_session = 0  # who leads decides what others have, so it looks again
        await self._check_metadata_id()
        try:
            current = await session.get(znodes.CONTROLLER_EPOCH)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            try:
                await session.create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(0))
            except ZooKeeperError as taken:
                if taken.code is not ZooKeeperErrorCode.NODE_EXISTS:
                    raise
            current = await session.get(znodes.CONTROLLER_EPOCH)
        epoch = znodes.decode_controller_epoch(current.data) + 1
        self._check_epoch(epoch - 1)
        elected = ElectedController(self.local.key.id, epoch, self.local.endpoints)
        try:
            _, stat = await session.multi(
                [
                    CreateZNode(
                        znodes.CONTROLLER, elected.encode(self._runtime.clock.wall_ms()), ephemeral=True
                    ),
                    SetZNode(
                        znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch), current.stat.version
                    ),
                ]
            )
        except ZooKeeperError as error:
            # Whether it was elected or another node: the next look tells.
            self._elections.set()
            if error.code not in (ZooKeeperErrorCode.NODE_EXISTS, ZooKeeperErrorCode.BAD_VERSION):
                raise
            return
        assert isinstance(stat, ZNodeStat)
        self._elections.set()  # the next look sets the watch
        try:
            await self._begin_to_lead(epoch, stat.version)
        except ZooKeeperError as error:
            if error.code in _PASSING or _is_fenced(error):
                raise
            self._note_problem(f"{error}; what is there does not fit together")
        except (ValueError, LookupError, KafkaError) as error:
            self._note_problem(f"{error or type(error).__name__}; mend the znode, or delete it")

    async def _begin_to_lead(self, epoch: int, version: int) -> None:
        """Rebuild the metadata from the znodes, then lead."""
        began_ns = self._runtime.clock.monotonic_ns()
        session_id = self._checked_session
        reader = ZNodeReader(self.session, epoch, self._runtime.random.uuid, Turns(self._runtime.clock))
        found = await reader.read()
        for part in transactions(found.writes):
            await self.session.multi([CheckZNode(znodes.CONTROLLER_EPOCH, version), *part])
        if self.session.session_id != session_id or not self._connected or self.failure is not None:
            return
        turns = Turns(self._runtime.clock)
        values = []
        for record in found.records:
            values.append(encode_record(record, STORED_METADATA_VERSION))
            if turns.is_due():
                await turns.pause()
        image = await self._runtime.pool.run(apply_records, MetadataImage.EMPTY, found.records)
        now_ms = self._runtime.clock.wall_ms()
        id = SnapshotId(first_offset(epoch), epoch)
        batches = encode_snapshot(values, epoch=epoch, timestamp=now_ms, last_contained_log_timestamp=now_ms)
        data = await self._runtime.pool.run(b"".join, batches)
        if self.session.session_id != session_id or not self._connected or self._closed:
            return
        await self._stop_tasks_of_epoch()
        writer = ZNodeWriter(image, found.paths, epoch)
        self._led = led = LedEpoch(epoch, version, writer, found.brokers, confirmed_ns=began_ns)
        self._followed = self.problem = None
        self._epoch = epoch
        self._stream.start_after(id, data)
        _log.info(
            "this node is the controller of epoch %d by /controller in ZooKeeper; it has read %d records in "
            "%d ms",
            epoch,
            len(values),
            (self._runtime.clock.monotonic_ns() - began_ns) // 1_000_000,
        )
        self._of_epoch.append(
            self._tasks.start(f"writes of controller epoch {epoch}", lambda: self._write_queued(led))
        )
        self._of_epoch.append(
            self._tasks.start(f"confirmation of controller epoch {epoch}", lambda: self._confirm(led))
        )
        self._listener.on_load_snapshot(id)
        self._listener.on_leader_change(self.local.key.id, epoch)
        await self._notify_committed()

    def _stop_leading(self, why: str = "") -> None:
        """Lead no longer, at once: callers whose changes are not committed learn that they may not be."""
        led, self._led = self._led, None
        if led is None:
            return
        if why:
            _log.warning("the controller of epoch %d stops: %s", led.epoch, why)
        led.queued.clear()
        self._stream.truncate_to_high_watermark()
        self._leader_high_watermark = None
        self._listener.on_leader_change(None, led.epoch)
        self._elections.set()

    async def _stop_tasks_of_epoch(self) -> None:
        stopped, self._of_epoch = self._of_epoch, []
        await self._tasks.stop(stopped)

    # Committing

    def append(self, batch: bytes) -> int:
        """Take a batch of this controller's epoch; it is written to znodes in the background."""
        self.check_usable()
        led = self._led
        if led is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this node is not the controller")
        if len(led.queued) >= _MAX_QUEUED_BATCHES:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "ZooKeeper does not keep up; try again")
        is_change = False
        for position, _ in iter_batches(batch):
            for each in read_records(batch, position):
                kind = _kind(each.value)
                is_change |= kind != NoOpRecord.API_KEY
                if kind in _CHECKED_KINDS and not self._is_bootstrap(led):
                    check_storable(decode_metadata_record(each.value or b"")[0])
        self._stream.append(batch)
        led.changes += is_change
        led.queued.append((self._stream.end.offset, batch))
        led.wanted.set()
        return self._stream.end.offset

    @staticmethod
    def _is_bootstrap(led: LedEpoch) -> bool:
        """Whether the first records of a new cluster are still to come; they set all features."""
        return led.writer.image.is_empty and not led.queued

    async def _write_queued(self, led: LedEpoch) -> None:
        """Write what was appended, in order, as long as this node leads the epoch."""
        turns = Turns(self._runtime.clock)
        while self._led is led:
            await led.wanted.wait()
            led.wanted.clear()
            turns.begin()
            while led.queued and self._led is led:
                led.is_writing = True
                try:
                    end = await self._write_some(led, turns)
                except (ZooKeeperError, KafkaError) as error:
                    if self._led is led:
                        self._stop_leading(f"a write to ZooKeeper failed ({error})")
                        if isinstance(error, KafkaError) or not (error.code in _PASSING or _is_fenced(error)):
                            self._note_problem(str(error))
                    return
                except BaseException as error:
                    # What was taken from the queue may not be written: what is behind it must not be either.
                    if self._led is led and not self._closed:
                        self._stop_leading(f"a write to ZooKeeper was cut off ({error!r})")
                    raise
                finally:
                    led.is_writing = False
                if self._led is not led:
                    return
                self._stream.update_high_watermark(end)
                self._listener.on_commit(end)
                await self._notify_committed()

    async def _write_some(self, led: LedEpoch, turns: Turns) -> int:
        """Write what is queued, several batches in one transaction if they fit; the offset after them."""
        operations: list[ZooKeeperOperation] = []
        end = self._stream.high_watermark
        is_checked = False
        while led.queued and len(operations) < _OPERATIONS_TOGETHER:
            end, batch = led.queued.popleft()
            records = []
            for position, _ in iter_batches(batch):
                for each in read_records(batch, position):
                    records.append(decode_metadata_record(each.value or b"")[0])
                    await turns.pause_if_due()
            is_checked |= any(not isinstance(record, NoOpRecord) for record in records)
            operations += await in_turns(led.writer.translate(records), turns)
        if is_checked and not operations:
            await self._commit(led, [])
        for part in transactions(operations):
            await self._commit(led, part)
        return end

    async def _commit(self, led: LedEpoch, part: list[ZooKeeperOperation]) -> None:
        sent_ns = self._runtime.clock.monotonic_ns()
        await self.session.multi([CheckZNode(znodes.CONTROLLER_EPOCH, led.version), *part])
        led.confirmed_ns = sent_ns

    async def _confirm(self, led: LedEpoch) -> None:
        """Ask ZooKeeper again and again whether this is still the newest controller."""
        while self._led is led:
            await asyncio.sleep(self._session_timeout_ms * _CONFIRM_PART / 1000)
            try:
                await self._commit(led, [])
            except ZooKeeperError as error:
                if error.code is ZooKeeperErrorCode.BAD_VERSION and self._led is led:
                    self._stop_leading("another controller is elected")

    async def _notify_committed(self) -> None:
        async with self._committed:
            self._committed.notify_all()

    # Answering those who follow

    async def handle(
        self, message: WireRequest, version: int | None = None, listener: str | None = None
    ) -> WireResponse:
        self.check_usable()
        request = wire.decode_request(message, self._cluster_id)
        if isinstance(request, m.Fetch):
            reply: m.Reply = await self._answer_fetch(request)
        elif isinstance(request, m.FetchSnapshot):
            reply = self._answer_fetch_snapshot(request)
        else:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "This cluster keeps its metadata in ZooKeeper (metadata.store=zookeeper): it has no quorum.",
            )
        response = wire.encode_reply(message, reply, listener or self._listener_name)
        if version is not None and version < wire.VERSIONS[message.API_KEY]:
            drop_newer_fields(response, version)
        return response

    def _error(self, epoch: int) -> ErrorCode:
        if self._led is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch < self._led.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > self._led.epoch else ErrorCode.NONE

    def _known_leader(self) -> int:
        leader = self._leader_id
        return m.NO_LEADER_ID if leader is None else leader

    async def _answer_fetch(self, request: m.Fetch) -> m.FetchReply:
        error = self._error(request.epoch)
        if error is not ErrorCode.NONE:
            return m.FetchReply(self._epoch, self._known_leader(), error=error)
        led, stream = self._led, self._stream
        assert led is not None
        led.followers[request.replica.id] = (
            request.replica,
            request.end.offset,
            self._runtime.clock.monotonic_ns(),
        )
        if not self._continues(request.end):
            return self._fetch_reply(led, snapshot=stream.snapshots.newest)
        if request.end.offset >= stream.high_watermark and request.max_wait_ms > 0:
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000), self._committed:
                    await self._committed.wait_for(
                        lambda: (
                            self._closed or self._led is not led or stream.high_watermark > request.end.offset
                        )
                    )
            except TimeoutError:
                pass
            if self._led is not led:
                return m.FetchReply(self._epoch, self._known_leader(), error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if not self._continues(request.end):
                return self._fetch_reply(led, snapshot=stream.snapshots.newest)
        return self._fetch_reply(led, records=stream.read_committed(request.end.offset, request.max_bytes))

    def _continues(self, end: m.OffsetAndEpoch) -> bool:
        """Whether the stream has everything after this end, and the end is of this stream."""
        stream = self._stream
        return end.epoch == self._epoch and stream.start_offset <= end.offset <= stream.high_watermark

    def _fetch_reply(
        self, led: LedEpoch, *, records: bytes = b"", snapshot: SnapshotId | None = None
    ) -> m.FetchReply:
        return m.FetchReply(
            led.epoch,
            self.local.key.id,
            self._stream.high_watermark,
            self._stream.start_offset,
            records,
            snapshot=snapshot,
            endpoints=self.local.endpoints,
        )

    def _answer_fetch_snapshot(self, request: m.FetchSnapshot) -> m.FetchSnapshotReply:
        error = self._error(request.epoch)
        data = self._stream.snapshots.data(request.id)
        if error is ErrorCode.NONE and data is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        if error is not ErrorCode.NONE or data is None:
            return m.FetchSnapshotReply(self._epoch, self._known_leader(), request.id, error=error)
        if not 0 <= request.position < len(data):
            error = ErrorCode.POSITION_OUT_OF_RANGE
            return m.FetchSnapshotReply(self._epoch, self._known_leader(), request.id, error=error)
        piece = data[request.position : request.position + request.max_bytes]
        return m.FetchSnapshotReply(
            self._epoch, self.local.key.id, request.id, len(data), request.position, piece
        )

    # Following

    def _follow(self, controller: ElectedController) -> None:
        if self._followed == controller:
            return
        self._check_epoch(controller.epoch)
        self._followed = controller
        self.problem = None
        self._epoch = controller.epoch
        self._leader_high_watermark = None
        self._listener.on_leader_change(controller.id, controller.epoch)
        self._of_epoch = [task for task in self._of_epoch if not task.is_done]
        self._of_epoch.append(
            self._tasks.start(
                f"metadata of controller {controller.id}, epoch {controller.epoch}",
                lambda: self._fetch_from(controller),
            )
        )
        _log.info("the controller is node %d, of epoch %d", controller.id, controller.epoch)

    def _follows(self, controller: ElectedController) -> bool:
        return self._followed is controller and self._led is None and not self._closed

    async def _fetch_from(self, controller: ElectedController) -> None:
        """Fetch the records of a controller as long as it is the one to follow."""
        address = controller.endpoints.get(self._listener_name)
        if address is None:
            _log.error("controller %d has no listener %s", controller.id, self._listener_name)
            return
        while self._follows(controller):
            try:
                is_progress = await self._fetch_once(controller, address)
            except OSError as error:
                _log.debug("the controller at %s cannot be asked: %s", address, error)
                is_progress = False
            except KafkaError as error:
                _log.info("the controller at %s cannot answer: %s", address, error)
                is_progress = False
            if not is_progress:
                await asyncio.sleep(_FETCH_RETRY_SECONDS)

    async def _ask(self, address: Address, request: m.Request) -> m.Reply:
        message = wire.encode_request(request, self._cluster_id)
        response = await self._channel.request(
            address, message, wire.VERSIONS[message.API_KEY], timeout_ms=self._config.request_timeout_ms
        )
        return wire.decode_reply(response, self._listener_name)

    async def _fetch_once(self, controller: ElectedController, address: Address) -> bool:
        config, stream = self._config, self._stream
        reply = await self._ask(
            address,
            m.Fetch(
                self.local.key,
                controller.epoch,
                stream.end,
                config.fetch_max_wait_ms,
                config.fetch_max_bytes,
            ),
        )
        assert isinstance(reply, m.FetchReply)
        if not self._follows(controller) or reply.error is not ErrorCode.NONE:
            return False
        self._leader_high_watermark = reply.high_watermark
        if reply.snapshot is not None:
            data = await self._fetch_snapshot(controller, address, reply.snapshot)
            if data is None or not self._follows(controller):
                return False
            stream.start_after(reply.snapshot, data)
            self._listener.on_load_snapshot(reply.snapshot)
        elif reply.records:
            stream.append(reply.records)
            stream.update_high_watermark(stream.end.offset)
        self._listener.on_commit(stream.high_watermark)
        return True

    async def _fetch_snapshot(
        self, controller: ElectedController, address: Address, id: SnapshotId
    ) -> bytes | None:
        data = bytearray()
        while self._follows(controller):
            reply = await self._ask(
                address,
                m.FetchSnapshot(
                    self.local.key, controller.epoch, id, len(data), self._config.fetch_snapshot_max_bytes
                ),
            )
            assert isinstance(reply, m.FetchSnapshotReply)
            if reply.error is not ErrorCode.NONE:
                return None
            data += reply.data
            if len(data) >= reply.size:
                return bytes(data)
        return None


def _is_fenced(error: ZooKeeperError) -> bool:
    """Whether a write was refused as another controller is elected: each begins with that check."""
    return error.code is ZooKeeperErrorCode.BAD_VERSION and error.index == 0


def _kind(value: bytes | None) -> int:
    """The number of an encoded record's kind; all are small, so it is one byte, after that of the frame."""
    return value[1] if value is not None and len(value) > 1 else -1
