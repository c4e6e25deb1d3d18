"""The share partitions that this broker leads (Kafka's `SharePartitionManager`).

A share partition is loaded when a member first fetches from it: its state is read by the persister, as the
leader of the partition's epoch. It is dropped when the broker leads the partition no longer, when the
persister says that another leader or another state has taken its place, and when the last session of the
group ends. The next fetch then finds the new leader, or loads the state again.

Transitions are persisted in order, one write of a share partition at a time; what comes meanwhile goes
together into the next. The outcome of a write is that of all transitions in it. Locks that have expired are
persisted the same way, but what they release is available at once, and stays so if the write fails.

A share partition knows the sessions that have looked at it, and whatever may make records available (progress
of the partition, released records, expired locks, a start offset that moved) makes it dirty in each of them,
once: a fetch costs what has changed. Fetches that find nothing to acquire wait. Such an event wakes the one
whose look is the longest ago; when that one has taken its share, or could not, the next is woken if there is
something left. So the records of one append cost as many wake-ups as there are fetches that get some, however
many wait. Each waiting fetch is woken at most once for one event.

One timer for each share partition, set while there are locks or records that wait for a retry, ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, Protocol

from ottla.coordinator.share.persister import (
    UNINITIALIZED_START_OFFSET,
    Persister,
    PersisterStateBatch,
    ShareState,
)
from ottla.log.segment.timestamp_search import TimestampSearches
from ottla.metadata.features import SHARE_VERSION
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.fetch.partition_reader import MissingRead, PartitionReader, complete
from ottla.node.share.dead_letters import WRITERS_AT_A_TIME, DeadLetterWriter
from ottla.node.share.share_group_settings import reset_duration_ms, share_group_settings
from ottla.node.share.share_partition import (
    AcknowledgedOffsets,
    AcquiredRange,
    ShareGroupSettings,
    SharePartition,
    ShareRecordCounts,
    StateTransition,
)
from ottla.node.share.share_session import (
    CachedSharePartition,
    ShareSession,
    ShareSessionCache,
    ShareSessionKey,
    ShareSource,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import SharePartitionKey, TopicIdPartition, TopicPartition
from ottla.protocol.share import AcknowledgeType, DeadLetterPlace
from ottla.replication.list_offsets import EARLIEST, LATEST, ListedOffset
from ottla.replication.partition import FetchIsolation, Partition
from ottla.runtime.heavy_work import INLINE_US, HeavyWork
from ottla.runtime.tasks import cancel
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.metadata.image.image import FeaturesImage, MetadataImage
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.network.memory_budget import MemoryPool
    from ottla.node.share.dead_letter_topics import DeadLetterTopics
    from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager
    from ottla.runtime.clock import Clock
    from ottla.runtime.pool import Pool
    from ottla.runtime.random import Random
    from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

# Errors, as a member sees them, after which a share partition is dropped: another leader, another state, or
# none has its place.
_FENCING: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
# What a member sees of an error of the persister; all others are UNKNOWN_SERVER_ERROR.
_PERSISTER_ERRORS: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
# Bounds for one turn of the event loop: transitions of one write, and attempts of fetches.
_TRANSITIONS_AT_A_TIME: Final = 32
_ATTEMPTS_PER_TURN: Final = 32
# Loads at a time, and how long one that takes longer holds up others.
_LOADS_AT_A_TIME: Final = 32
_LOAD_PATIENCE_S: Final = 1.0
# Partitions that a request acknowledges at once; more are in turns.
MANY_ACKNOWLEDGED: Final = 50
# Share partitions of which a member's records are released at once; more are in turns.
_RELEASED_AT_ONCE: Final = 50
# Partitions of a session or a group that are let go of at once; more are in turns.
_AT_ONCE: Final = 500
# The size of records for the first read of a share partition; then what was read says it.
_FIRST_RECORD_BYTES: Final = 512.0


class ShareServices(Protocol):
    """The parts of a broker that share partitions use."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def replicas(self) -> ReplicaManager: ...

    @property
    def replication(self) -> BrokerReplication: ...

    @property
    def heavy_work(self) -> HeavyWork: ...


class SharePartitionListener(Protocol):
    """An observer of the share partitions of a broker. It is called at the moment at which things happen."""

    def on_loaded(self, leader: SharePartitionLeader, /) -> None:
        """The state of a share partition was loaded."""

    def on_acquired(
        self, leader: SharePartitionLeader, member_id: str, acquired: Sequence[AcquiredRange], /
    ) -> None:
        """A member has acquired records, which are about to be sent to it."""

    def on_undelivered(self, leader: SharePartitionLeader, acquired: Sequence[AcquiredRange], /) -> None:
        """Acquired records are not sent after all, and are available again."""


class FetchAdmission:
    """Let a bounded number of attempts of fetches run in one turn of the event loop, the others in the next
    ones, in the order in which they came: a thousand members may fetch at the same time.

    Invariant: a turn is scheduled whenever fetches wait, and whenever some have run in this one.
    """

    __slots__ = ("_left", "_scheduled", "_waiting")

    def __init__(self) -> None:
        self._left = _ATTEMPTS_PER_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def is_open(self) -> bool:
        """Count an attempt of this turn; False if it has to wait for its own."""
        self._schedule()
        if self._waiting or self._left == 0:
            return False
        self._left -= 1
        return True

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._scheduled = False
        self._left = _ATTEMPTS_PER_TURN
        while self._waiting and self._left:
            future = self._waiting.popleft()
            if not future.done():
                self._left -= 1
                future.set_result(None)
        if self._left < _ATTEMPTS_PER_TURN:
            self._schedule()


class _QueuedWrite:
    """What is to be persisted. Where `is_final` is set the states hold whatever comes of the write."""

    __slots__ = ("future", "is_final", "transition")

    def __init__(
        self, transition: StateTransition, future: asyncio.Future[KafkaError | None], *, is_final: bool
    ) -> None:
        self.transition = transition
        self.future = future
        self.is_final = is_final


class SharePartitionLeader:
    """One share partition on this broker: its records in delivery, its writes, its timer, and the sessions
    that read it.

    Invariants: a write is in progress whenever there is one to do; a timer is set whenever there are locks or
    records that wait for a retry; the partition is watched whenever a session is to be woken or made dirty; a
    session that waits is in `_seen` or `_unseen` with each of its partitions.
    """

    __slots__ = (
        "_manager",
        "_seen",
        "_serve_scheduled",
        "_timer",
        "_timer_deadline_ms",
        "_to_write",
        "_unseen",
        "_watching",
        "dead_letters",
        "error",
        "is_dropped",
        "is_unused",
        "key",
        "leader_epoch",
        "loaded",
        "partition",
        "record_bytes",
        "share",
        "task",
    )

    def __init__(self, manager: SharePartitionManager, key: SharePartitionKey, partition: Partition) -> None:
        self._manager: Final = manager
        self.key: Final = key
        self.partition: Final = partition
        self.leader_epoch = partition.leader_epoch
        # None until it is loaded.
        self.share: SharePartition | None = None
        # Why it could not be loaded.
        self.error: KafkaError | None = None
        # Done once one of the two is known.
        self.loaded: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.is_dropped = False
        # The load, or the writes in progress.
        self.task: asyncio.Task[None] | None = None
        # How large a record is, of late: a read takes as much as is likely to be acquired.
        self.record_bytes = _FIRST_RECORD_BYTES
        self._to_write: deque[_QueuedWrite] = deque()
        self._timer: asyncio.TimerHandle | None = None
        # What the timer was set for.
        self._timer_deadline_ms = 0
        # The sessions that have looked since the last event, and those that waited at an event and have not
        # looked since; both in the order of their looks. A session that is in neither has it dirty.
        self._seen: dict[CachedSharePartition, None] = {}
        self._unseen: dict[CachedSharePartition, None] = {}
        self._serve_scheduled = False
        self._watching = False
        # Made for the first dead letter.
        self.dead_letters: DeadLetterWriter[SharePartitionLeader] | None = None
        # Whether the group has no members any longer, so that the state may be altered: dead letters are
        # still written, and the next member that joins has the state loaded again.
        self.is_unused = False

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.key.topic_id, self.key.partition)

    # The sessions that read it

    def on_look(self, cached: CachedSharePartition) -> None:
        """Note that a session looks at it now: it is to hear of the next event."""
        self._unseen.pop(cached, None)
        self._seen[cached] = None
        self._watch()

    def unsubscribe(self, cached: CachedSharePartition) -> None:
        self._seen.pop(cached, None)
        self._unseen.pop(cached, None)

    def _watch(self) -> None:
        if not self._watching and not self.is_dropped:
            self._watching = True
            self.partition.watch(self)

    @property
    def waiting(self) -> int:
        """How many sessions have a fetch that waits."""
        return sum(bool(each.session.waiters) for each in (*self._seen, *self._unseen))

    def on_partition_progress(self) -> None:
        self._watching = False
        if self._manager.still_leads(self):
            self.notify()
            if self._unseen:
                self._watch()

    def notify(self) -> None:
        """Make it dirty for the sessions that have looked at it, and have a fetch woken if there is something
        to acquire by now.
        """
        if self._seen:
            seen, self._seen = self._seen, {}
            for cached in seen:
                cached.session.mark_dirty(cached)
                if cached.session.waiters:
                    self._unseen[cached] = None
        self.serve_next()

    def serve_next(self) -> None:
        """Have the next fetch woken that has not looked yet, if there is something left to acquire."""
        if self._unseen and not self._serve_scheduled:
            self._serve_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._serve_scheduled = False
        unseen = self._unseen
        if self.is_dropped or self.error is not None:
            self._unseen = {}
            for cached in unseen:
                cached.session.wake(self)
        elif self.has_acquirable():
            while unseen:
                cached = next(iter(unseen))
                del unseen[cached]
                if cached.session.wake(self):
                    break

    def has_locks_of(self, member_id: str) -> bool:
        return not self.is_dropped and self.share is not None and self.share.has_locks_of(member_id)

    def has_acquirable(self) -> bool:
        """Whether a fetch would find something: records, a start of the log that has passed them, or that the
        broker does not lead the partition any longer.
        """
        share = self.share
        if share is None:
            return False
        if not self.partition.is_leader:
            return True
        if not share.can_acquire_records():
            return False
        log, offset = self.partition.log, share.next_fetch_offset()
        end = log.last_stable_offset if share.settings.read_committed else log.high_watermark
        return offset < end or offset < log.log_start_offset

    # Writes

    def begin_transition(self, transition: StateTransition) -> asyncio.Future[KafkaError | None] | None:
        """Persist a transition, and complete it; the future gets the error, or None. None where there is
        nothing to persist.
        """
        return self._persist(transition, is_final=False) if transition else None

    def persist_final(self, transition: StateTransition) -> asyncio.Future[KafkaError | None]:
        """Persist what holds whatever comes of the write; the future gets the error, or None."""
        return self._persist(transition, is_final=True)

    def write_dead_letters(self) -> None:
        """Have the dead letters written that there are."""
        if self.share is not None and self.share.dead_letters and not self.is_dropped:
            if self.dead_letters is None:
                self.dead_letters = DeadLetterWriter(self._manager, self)
            self.dead_letters.start()

    def _persist(self, transition: StateTransition, *, is_final: bool) -> asyncio.Future[KafkaError | None]:
        future: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        self._to_write.append(_QueuedWrite(transition, future, is_final=is_final))
        if self.task is None:
            self.task = self._manager.start_task(self._write(), self._on_task_done)
        return future

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("share partition %s: its writes failed", self.key, exc_info=error)
            self._manager.drop(self)
        if not self._to_write:
            return
        if self.is_dropped or task.cancelled():
            self._fail_writes(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            # They came after the last write had ended, and before this call.
            self.task = self._manager.start_task(self._write(), self._on_task_done)

    async def _write(self) -> None:
        share = self.share
        assert share is not None, self.key
        while self._to_write and not self.is_dropped:
            taken, batches = self._take_writes()
            error: KafkaError | None = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            try:
                places = (each.transition.dead_letter_place for each in reversed(taken))
                place = next((place for place in places if place is not None), None)
                error = await self._manager.write(self, batches, place)
            finally:
                # Also where the broker stops meanwhile.
                transitions = [each.transition for each in taken if not each.is_final]
                final = [each.transition for each in taken if each.is_final]
                share.complete(*transitions, persisted=error is None)
                share.complete_final(*final, persisted=error is None)
                self.set_timer()
                for each in taken:
                    if not each.future.done():
                        each.future.set_result(error)
            if error is not None and error.code in _FENCING:
                _log.info("share partition %s is fenced: %s", self.key, error)
                self._manager.drop(self)
            self.write_dead_letters()
            self.notify()

    def _take_writes(self) -> tuple[list[_QueuedWrite], list[PersisterStateBatch]]:
        """Take what goes into the next write: what waits, up to what concerns the same offsets again, as that
        happens to records whose lock has expired.

        All that wait for a write go on in the same turn of the event loop once it has ended, so there is a
        bound on them.
        """
        taken = [self._to_write.popleft()]
        batches = taken[0].transition.batches
        may_overlap = taken[0].is_final
        while self._to_write and len(taken) < _TRANSITIONS_AT_A_TIME:
            more = self._to_write[0].transition.batches
            if may_overlap and _overlap(batches, more):
                break
            may_overlap = may_overlap or self._to_write[0].is_final
            taken.append(self._to_write.popleft())
            batches += more
        return taken, batches

    def _fail_writes(self, error: KafkaError) -> None:
        while self._to_write:
            each = self._to_write.popleft()
            if not each.is_final and self.share is not None:
                self.share.complete(each.transition, persisted=False)
            if not each.future.done():
                each.future.set_result(error)

    # Time

    def set_timer(self) -> None:
        """Have locks expire, and waits end, when they are due. A timer that is set may be too late, for
        longer locks: the duration of locks can change.
        """
        if self.share is None or self.is_dropped:
            return
        deadline_ms = self.share.next_deadline_ms
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_deadline_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_deadline_ms = deadline_ms
        delay_ms = max(1, deadline_ms + 1 - self._manager.now_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.share is None or self.is_dropped:
            return
        try:
            self.share.settings = self._manager.settings(self.key.group_id)
            # Times are rounded down, and no lock may be shorter than it should be.
            expired = self.share.expire_locks(self._manager.now_ms() - 1)
            has_waited = self.share.end_waits(self._manager.now_ms() - 1)
        except Exception:
            # Locks that never expire would hold records back for good.
            _log.exception("share partition %s: its locks could not be expired", self.key)
            self._manager.drop(self)
            return
        if expired:
            self._persist(expired, is_final=True)
        if expired or has_waited:
            self.notify()
        self.set_timer()

    def end_load(self) -> None:
        if not self.loaded.done():
            self.loaded.set_result(None)

    def close(self) -> None:
        """End without a trace; writes that wait fail."""
        self.is_dropped = True
        self.end_load()
        if self.dead_letters is not None:
            self.dead_letters.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watching:
            self._watching = False
            self.partition.unwatch(self)
        self._fail_writes(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.notify()


def _overlap(some: Sequence[PersisterStateBatch], others: Sequence[PersisterStateBatch]) -> bool:
    ranges = sorted((*some, *others))
    return any(before.last_offset >= after.first_offset for before, after in pairwise(ranges))


class PendingAcknowledgements:
    """Acknowledgements of a member that are being persisted."""

    __slots__ = ("_begun", "_key", "_manager")

    def __init__(self, manager: SharePartitionManager, key: ShareSessionKey) -> None:
        self._manager = manager
        self._key = key
        # What is acknowledged, and its write; the error where that was refused at once, and None where there
        # is nothing to persist.
        self._begun: dict[
            TopicIdPartition,
            tuple[Sequence[AcknowledgedOffsets], asyncio.Future[KafkaError | None] | KafkaError | None],
        ] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, partition: TopicIdPartition, batches: Sequence[AcknowledgedOffsets]) -> None:
        """Begin to acknowledge what the member holds of a partition."""
        try:
            self._begun[partition] = batches, self._manager.acknowledge(self._key, partition, batches)
        except KafkaError as error:
            self._begun[partition] = batches, error

    async def results(self) -> dict[TopicIdPartition, KafkaError | None]:
        """The error of each partition, once all that can be is persisted."""
        results: dict[TopicIdPartition, KafkaError | None] = {}
        turns = Turns(self._manager.clock, check_every=8) if len(self) > MANY_ACKNOWLEDGED else None
        for partition, (batches, write) in self._begun.items():
            error = await asyncio.shield(write) if isinstance(write, asyncio.Future) else write
            results[partition] = error
            if error is None:
                self._manager.count_acknowledged(batches)
            if turns is not None and turns.is_due():
                await turns.pause()
        return results


class SharePartitionManager:
    """`persister` keeps the state of share partitions; `memory` is the pool of the node's clients."""

    def __init__(
        self,
        broker: ShareServices,
        persister: Callable[[], Persister],
        memory: MemoryPool,
        dead_letter_topics: Callable[[], DeadLetterTopics],
    ) -> None:
        self._broker: Final = broker
        self._make_dead_letter_topics: Final = dead_letter_topics
        self._dead_letter_topics: DeadLetterTopics | None = None
        self.dead_letter_writers: Final = asyncio.Semaphore(WRITERS_AT_A_TIME)
        self._persister: Final = persister
        self._clock: Final = broker.runtime.clock
        self.sessions: Final = ShareSessionCache(
            lambda: broker.config.number("group.share.max.share.sessions"),
            memory,
            self._on_member_leave,
            self._on_group_empty,
            self._on_session_end,
        )
        self.admission: Final = FetchAdmission()
        self._leaders: Final[dict[SharePartitionKey, SharePartitionLeader]] = {}
        # By group, and by partition.
        self._of_group: Final[dict[str, dict[SharePartitionKey, None]]] = {}
        self._of_partition: Final[dict[TopicPartition, dict[SharePartitionKey, None]]] = {}
        self._settings: dict[
            str, tuple[NodeConfig, Mapping[str, str], FeaturesImage, ShareGroupSettings]
        ] = {}
        # The writes in progress of share partitions that were dropped.
        self._last_writes: Final[dict[SharePartitionKey, asyncio.Task[None]]] = {}
        self._tasks: Final[dict[asyncio.Task[None], None]] = {}
        # By group: how many members have left whose records are being released in turns.
        self._releasing: Final[dict[str, int]] = {}
        # Share partitions whose load is to begin when others have ended.
        self._to_load: Final[dict[SharePartitionLeader, None]] = {}
        self._loads_in_progress = 0
        self._has_loaded: Final = asyncio.Event()
        self._closed = False
        # Since the start: records acquired, those acknowledged by type, and what all share partitions count.
        self.acquired = 0
        self.acknowledged: Final[dict[AcknowledgeType, int]] = dict.fromkeys(AcknowledgeType, 0)
        self.loads = 0
        self.load_ns = 0
        self.counts: Final = ShareRecordCounts()
        # None but in the simulator.
        self.listener: SharePartitionListener | None = None

    def __len__(self) -> int:
        return len(self._leaders)

    def __iter__(self) -> Iterator[SharePartitionLeader]:
        return iter(list(self._leaders.values()))

    def now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def pool(self) -> Pool:
        return self._broker.runtime.pool

    def reader(self, isolation: FetchIsolation) -> PartitionReader:
        """Make a reader of the partitions that this broker leads."""
        return PartitionReader(self._broker, isolation)

    @property
    def random(self) -> Random:
        return self._broker.runtime.random

    @property
    def heavy_work(self) -> HeavyWork:
        return self._broker.heavy_work

    @property
    def dead_letter_topics(self) -> DeadLetterTopics:
        if self._dead_letter_topics is None:
            self._dead_letter_topics = self._make_dead_letter_topics()
        return self._dead_letter_topics

    def settings(self, group_id: str) -> ShareGroupSettings:
        """The settings of a group, as they are now."""
        config, image = self._broker.config, self._broker.image
        overrides = image.config(ConfigResource(ConfigResourceType.GROUP, group_id))
        features = image.features
        known = self._settings.get(group_id)
        if known is not None and known[0] is config and known[1] is overrides and known[2] is features:
            return known[3]
        level = features.levels.get(SHARE_VERSION, 0)
        settings = share_group_settings(config, overrides, share_version=level)
        if group_id in self._of_group:
            self._settings[group_id] = config, overrides, features, settings
        return settings

    # Share partitions

    def find(self, group_id: str, partition: TopicIdPartition) -> SharePartitionLeader | None:
        return self._leaders.get(SharePartitionKey(group_id, *partition))

    def get_or_load(self, group_id: str, partition: TopicIdPartition) -> SharePartitionLeader:
        """Find a share partition, or begin to load it; KafkaError if this broker does not lead the
        partition.
        """
        key = SharePartitionKey(group_id, *partition)
        known = self._leaders.get(key)
        if known is not None and known.is_unused and self.sessions.has_members(group_id):
            self.drop(known)
        elif known is not None and self.still_leads(known):
            return known
        if self._closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker is stopping.")
        found = self._broker.replicas.partition_by_id(*partition)
        found.check_leader()
        leader = SharePartitionLeader(self, key, found)
        self._leaders[key] = leader
        self._of_group.setdefault(group_id, {})[key] = None
        self._of_partition.setdefault(found.topic_partition, {})[key] = None
        if self._loads_in_progress < _LOADS_AT_A_TIME and not self._to_load:
            self._start_load(leader)
        else:
            self._to_load[leader] = None
            if len(self._to_load) == 1:
                self.start_task(self._start_loads(), _log_failure)
        return leader

    def still_leads(self, leader: SharePartitionLeader) -> bool:
        """Whether a share partition can be used; if not it is dropped.

        A leader that is elected again in the next epoch was never followed by another. If it was, the state
        may have changed elsewhere.
        """
        partition = leader.partition
        if partition.leader_epoch != leader.leader_epoch and partition.is_leader:
            if partition.leader_epoch == leader.leader_epoch + 1 and leader.share is not None:
                leader.leader_epoch = partition.leader_epoch
            else:
                self.drop(leader)
        elif not partition.is_leader:
            self.drop(leader)
        return not leader.is_dropped

    def drop(self, leader: SharePartitionLeader) -> None:
        """Forget a share partition; fetches that wait for it look again."""
        if self._leaders.get(leader.key) is leader:
            del self._leaders[leader.key]
            _discard(self._of_group, leader.key.group_id, leader.key)
            _discard(self._of_partition, leader.partition.topic_partition, leader.key)
            if leader.key.group_id not in self._of_group:
                self._settings.pop(leader.key.group_id, None)
            if leader.share is not None and leader.task is not None:
                self._last_writes[leader.key] = leader.task
                leader.task.add_done_callback(partial(self._on_last_write, leader.key))
        if not leader.is_dropped:
            leader.close()

    def _on_last_write(self, key: SharePartitionKey, task: asyncio.Task[None]) -> None:
        if self._last_writes.get(key) is task:
            del self._last_writes[key]

    def apply(self, changes: ReplicaChanges) -> None:
        """Drop what this broker leads no longer."""
        if not self._leaders:
            return
        for partition in changes.followers:
            self._drop_all(self._of_partition.get(partition.topic_partition, ()))
        for deleted in changes.deleted:
            self._drop_all(self._of_partition.get(deleted, ()))

    def _drop_all(self, keys: Iterable[SharePartitionKey]) -> None:
        for key in list(keys):
            self.drop(self._leaders[key])

    # Loading

    def _start_load(self, leader: SharePartitionLeader) -> None:
        self._loads_in_progress += 1
        leader.task = self.start_task(self._load(leader), partial(self._on_loaded, leader))

    async def _start_loads(self) -> None:
        """Start the loads that wait, a bounded number at a time. A coordinator that does not answer does not
        hold up those of other coordinators: after a moment the next begin all the same.
        """
        while self._to_load:
            if self._loads_in_progress >= _LOADS_AT_A_TIME:
                self._has_loaded.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOAD_PATIENCE_S):
                        await self._has_loaded.wait()
            for leader in list(islice(self._to_load, _LOADS_AT_A_TIME)):
                if not leader.is_dropped:
                    self._start_load(leader)
                del self._to_load[leader]

    async def _load(self, leader: SharePartitionLeader) -> None:
        began_ns = self._clock.monotonic_ns()
        key, partition = leader.key, leader.topic_id_partition
        while (last_write := self._last_writes.get(key)) is not None:
            # A read that overtakes it would not see what a member takes for acknowledged.
            await asyncio.wait((last_write,))
        try:
            answers = await self._persister().read_state(key.group_id, {partition: leader.leader_epoch})
            state = answers[partition]
            if state.error:
                raise _member_error(state.error, state.error_message)
            settings = self.settings(key.group_id)
            start_offset = await self._start_offset(leader, state, settings)
            leader.share = SharePartition(
                start_offset,
                state.state_epoch,
                settings,
                state.batches,
                counts=self.counts,
                dead_letter_place=state.dead_letter_place,
            )
            leader.share.wait_before_retries(self.now_ms())
            leader.set_timer()
            leader.write_dead_letters()
            if self.listener is not None:
                self.listener.on_loaded(leader)
        except KafkaError as error:
            _log.info("share partition %s could not be loaded: %s", key, error)
            leader.error = error.again()
        self.loads += 1
        self.load_ns += self._clock.monotonic_ns() - began_ns

    def _on_loaded(self, leader: SharePartitionLeader, task: asyncio.Task[None]) -> None:
        leader.task = None
        self._loads_in_progress -= 1
        if self._loads_in_progress < _LOADS_AT_A_TIME:
            self._has_loaded.set()
        if task.cancelled():
            leader.error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif (error := task.exception()) is not None:
            _log.error("share partition %s could not be loaded", leader.key, exc_info=error)
            leader.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if leader.error is not None:
            self.drop(leader)
        leader.end_load()
        leader.notify()

    async def _start_offset(
        self, leader: SharePartitionLeader, state: ShareState, settings: ShareGroupSettings
    ) -> int:
        """The start offset of the state, or the one that `share.auto.offset.reset` says."""
        if state.start_offset != UNINITIALIZED_START_OFFSET:
            return state.start_offset
        reset = settings.auto_offset_reset
        duration_ms = reset_duration_ms(reset)
        if duration_ms is not None:
            timestamp = max(0, self._clock.wall_ms() - duration_ms)
        else:
            timestamp = EARLIEST if reset == "earliest" else LATEST

        searches = TimestampSearches(INLINE_US)
        reader = self.reader(FetchIsolation.HIGH_WATERMARK)

        def look_up(*, may_wait: bool) -> ListedOffset | MissingRead | KafkaError | None:
            searches.left_us = INLINE_US
            return reader.find_offset(
                leader.partition,
                timestamp,
                current_leader_epoch=leader.leader_epoch,
                searches=searches,
                may_wait=may_wait,
            )

        found = await complete(self.pool, look_up, partial(self._broker.heavy_work.run, leader.key.group_id))
        if isinstance(found, KafkaError):
            # A member asks again after this one.
            is_late = found.code is ErrorCode.REQUEST_TIMED_OUT
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, found.message) if is_late else found
        # None: all records are older.
        return leader.partition.log.high_watermark if found is None else found.offset

    # Writing

    async def write(
        self,
        leader: SharePartitionLeader,
        batches: Sequence[PersisterStateBatch],
        dead_letter_place: DeadLetterPlace | None,
    ) -> KafkaError | None:
        """Persist batches of a share partition, and where its dead letters are written from now on; return
        the error.
        """
        assert leader.share is not None, leader.key
        if not self.still_leads(leader):
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = leader.topic_id_partition
        write = leader.share.write_state(leader.leader_epoch, batches, dead_letter_place)
        answers = await self._persister().write_state(leader.key.group_id, {partition: write})
        result = answers[partition]
        return _member_error(result.error, result.error_message) if result.error else None

    async def check_leadership(self, leader: SharePartitionLeader) -> None:
        """Ask the coordinator whether this broker still has the state of a share partition: KafkaError if it
        has not, and then the share partition is dropped.
        """
        partition = leader.topic_id_partition
        answers = await self._persister().read_state(leader.key.group_id, {partition: leader.leader_epoch})
        state = answers[partition]
        if leader.is_dropped or leader.share is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error = _member_error(state.error, state.error_message) if state.error else None
        if error is None and state.state_epoch != leader.share.state_epoch:
            error = KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the state of the share partition was altered"
            )
        if error is not None:
            if error.code in _FENCING:
                self.drop(leader)
            raise error

    # What members do

    def acknowledge(
        self, key: ShareSessionKey, partition: TopicIdPartition, batches: Sequence[AcknowledgedOffsets]
    ) -> asyncio.Future[KafkaError | None] | None:
        """Begin to acknowledge what a member holds of a partition: the future gets the error, or None. None
        where there is nothing to persist. KafkaError if it is refused.
        """
        leader = self.find(key.group_id, partition)
        if leader is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not self.still_leads(leader):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader.share is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        leader.share.settings = self.settings(key.group_id)
        transition = leader.share.acknowledge(key.member_id, batches, self.now_ms())
        leader.set_timer()
        return leader.begin_transition(transition)

    # What operators do

    @contextlib.asynccontextmanager
    async def loaded(self, group_id: str, partition: TopicIdPartition) -> AsyncIterator[SharePartitionLeader]:
        """Have a share partition in memory meanwhile, also one of a group without members; KafkaError if it
        cannot be loaded.
        """
        leader = self.get_or_load(group_id, partition)
        try:
            await asyncio.shield(leader.loaded)
            if leader.error is not None:
                raise leader.error
            if leader.is_dropped or leader.share is None or not self.still_leads(leader):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            leader.share.settings = self.settings(group_id)
            yield leader
        finally:
            if not leader.is_dropped and not self.sessions.has_members(group_id):
                self._drop_when_unused(leader)

    async def alter_records(
        self,
        leader: SharePartitionLeader,
        ranges: Iterable[tuple[int, int, int]],
        type: AcknowledgeType,
        *,
        most_looks: int,
    ) -> tuple[int, int | None]:
        """Release, reject or skip (GAP) records in delivery: ranges of offsets, each with the delivery count
        that is meant, or -1. Return how many are changed for good, and from which offset on there is more to
        do; None if there is not.
        """
        share = leader.share
        assert share is not None, leader.key
        done = share.alter_records(ranges, int(type), self.now_ms(), most_looks=most_looks)
        write = leader.begin_transition(done.transition)
        leader.notify()
        error = None if write is None else await asyncio.shield(write)
        if error is not None:
            raise error
        return done.size, done.next_offset

    def count_acknowledged(self, batches: Sequence[AcknowledgedOffsets]) -> None:
        counts = self.acknowledged
        for batch in batches:
            types = batch.acknowledge_types
            if len(types) == 1:
                counts[AcknowledgeType(types[0])] += batch.last_offset - batch.first_offset + 1
            else:
                for type in types:
                    counts[AcknowledgeType(type)] += 1

    def release_session(self, key: ShareSessionKey) -> None:
        """End the session of a member, and begin to release what it holds.

        Without members nothing keeps the state of a group current, as its offsets can be altered meanwhile:
        the next session loads it.
        """
        session = self.sessions.end(key)
        if session is not None:
            self._on_member_leave(session)
            if not self.sessions.has_members(key.group_id):
                self._on_group_empty(key.group_id)

    def _on_member_leave(self, session: ShareSession) -> None:
        if self._closed:
            return
        held = session.sources_held
        if len(held) <= _RELEASED_AT_ONCE:
            for source in held:
                self._release(source, session.key)
        else:
            group_id = session.key.group_id
            self._releasing[group_id] = self._releasing.get(group_id, 0) + 1
            self.start_task(self._release_in_turns(session.key, held), partial(self._on_released, group_id))

    def _release(self, source: ShareSource, key: ShareSessionKey) -> None:
        assert isinstance(source, SharePartitionLeader), source
        if not source.is_dropped and source.share is not None and self.still_leads(source):
            source.share.settings = self.settings(key.group_id)
            source.begin_transition(source.share.release_acquired_records(key.member_id))

    async def _release_in_turns(self, key: ShareSessionKey, held: list[ShareSource]) -> None:
        turns = Turns(self._clock)
        for at, source in enumerate(held):
            again = self.sessions.get(key)
            if again is not None:
                # The member has come back, and goes on to hold the rest: it may have acquired more by now.
                for rest in held[at:]:
                    again.note_acquired(rest)
                return
            self._release(source, key)
            if turns.is_due():
                await turns.pause()

    def _on_released(self, group_id: str, task: asyncio.Task[None]) -> None:
        _log_failure(task)
        left = self._releasing[group_id] - 1
        if left:
            self._releasing[group_id] = left
            return
        del self._releasing[group_id]
        if not self.sessions.has_members(group_id):
            self._on_group_empty(group_id)

    def _on_session_end(self, session: ShareSession) -> None:
        if len(session.partitions) <= _AT_ONCE or self._closed:
            session.close()
        else:
            self.start_task(self._close_session(session), _log_failure)

    async def _close_session(self, session: ShareSession) -> None:
        turns = Turns(self._clock, check_every=8)
        for cached in list(session.partitions.values()):
            cached.leave_source()
            if turns.is_due():
                await turns.pause()
        session.close()

    def _on_group_empty(self, group_id: str) -> None:
        if group_id in self._releasing and not self._closed:
            return  # what its last members held is persisted first
        if len(self._of_group.get(group_id, ())) <= _AT_ONCE or self._closed:
            for key in list(self._of_group.get(group_id, ())):
                self._drop_when_unused(self._leaders[key])
        else:
            self.start_task(self._drop_group(group_id), _log_failure)

    async def _drop_group(self, group_id: str) -> None:
        turns = Turns(self._clock)
        for key in list(self._of_group.get(group_id, ())):
            leader = self._leaders.get(key)
            if self.sessions.has_members(group_id):
                return
            if leader is not None:
                self._drop_when_unused(leader)
            if turns.is_due():
                await turns.pause()

    def _drop_when_unused(self, leader: SharePartitionLeader) -> None:
        leader.is_unused = True
        letters = leader.dead_letters
        task = leader.task or (None if letters is None else letters.task)
        if task is None:
            self.drop(leader)
        else:
            # What its last members held is being released, or written to the dead-letter topic.
            task.add_done_callback(partial(self._drop_if_unused, leader))

    def _drop_if_unused(self, leader: SharePartitionLeader, _: asyncio.Task[None]) -> None:
        if leader.is_dropped:
            return
        if self.sessions.has_members(leader.key.group_id):
            leader.is_unused = False
        else:
            self._drop_when_unused(leader)

    # Tasks

    def start_task(
        self, work: Coroutine[object, object, None], on_done: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="share partition")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        task.add_done_callback(on_done)
        return task

    async def close(self) -> None:
        """Drop everything, with the broker."""
        self._closed = True
        self._to_load.clear()
        for task in list(self._tasks):
            cancel(task)
        for leader in list(self._leaders.values()):
            self.drop(leader)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._dead_letter_topics is not None:
            await self._dead_letter_topics.close()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("share partitions: a task failed", exc_info=error)


def _discard(
    index: dict[str, dict[SharePartitionKey, None]] | dict[TopicPartition, dict[SharePartitionKey, None]],
    at: str | TopicPartition,
    key: SharePartitionKey,
) -> None:
    keys = index[at]  # type: ignore[index]
    del keys[key]
    if not keys:
        del index[at]  # type: ignore[arg-type]


def _member_error(code: ErrorCode, message: str | None) -> KafkaError:
    """The error of a member for one of the persister."""
    return KafkaError(_PERSISTER_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR), message)
