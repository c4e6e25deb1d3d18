"""The runtime of every coordinator: shards over the partitions of an internal topic that this broker leads.

For each such partition the runtime loads the log into a `CoordinatorShard` and then gives it one event at a
time: the shard returns `Effects`, the runtime appends their records as one batch, replays them into the
shard, and gives the replies when the high watermark has passed the batch. Invariants:

* the state of a shard is the state of its log: nothing is replayed that was not appended;
* a reply never speaks of state that could still be lost: a reply without records waits as well, for all that
  was appended before it was computed;
* every request gets a reply: NOT_COORDINATOR after the broker lost the partition,
  COORDINATOR_LOAD_IN_PROGRESS while it is loaded, and COORDINATOR_NOT_AVAILABLE if the replicas take longer
  than `commit_timeout_ms`.

The owner of the partitions calls `load`, `unload` and `on_partition_progress`. The deadlines of all shards
share one timer of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from ottla.coordinator.runtime.effects import (
    CoordinatorOperation,
    CoordinatorRecord,
    CoordinatorShard,
    Effects,
    EventTime,
    ProducerIdAndEpoch,
    ReplayedRecord,
    ReplyTo,
)
from ottla.coordinator.runtime.loader import load_partition
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.protocol.coordinator_records import CoordinatorRecords, encode_key, encode_value
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.types import Codec
from ottla.records.validation import AppendOrigin
from ottla.replication.partition import Partition
from ottla.runtime.clock import Clock
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=CoordinatorShard)
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_COMMIT_TIMEOUT_MS: Final = 5_000
DEFAULT_LOAD_BYTES: Final = 5 * 1024 * 1024
_SPREAD_BYTES: Final = 512 * 1024
_TIMER_ROUNDS: Final = 1_000
_TICK: Final = 1_000_000
# A load that failed is tried again: for lack of file handles or of room, it may succeed next time.
_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 30.0

_APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_UNRESOLVED: Final = object()


class Ticket(Generic[R]):
    """The reply to an operation, now or later: `done` and `result()`, or `await ticket`.

    It is resolved once; a second value is ignored.
    """

    __slots__ = ("_value", "_waiters")

    def __init__(self) -> None:
        self._value: Any = _UNRESOLVED  # then a reply, or a KafkaError
        self._waiters: list[asyncio.Future[None]] | None = None  # one for each task that waits, mostly none

    @classmethod
    def failed(cls, error: KafkaError) -> Ticket[R]:
        """A ticket that is resolved with an error."""
        ticket: Ticket[R] = cls()
        ticket._value = error.again()
        return ticket

    @property
    def done(self) -> bool:
        return self._value is not _UNRESOLVED

    def resolve(self, value: R | KafkaError) -> None:
        if self._value is not _UNRESOLVED:
            return
        self._value = value.again() if isinstance(value, KafkaError) else value
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None

    def result(self) -> R:
        """The reply; raises if it is an error."""
        value = self._value
        if value is _UNRESOLVED:
            raise asyncio.InvalidStateError("there is no answer yet")
        if isinstance(value, KafkaError):
            raise value.again()
        return value  # type: ignore[no-any-return]

    def now_or_later(self) -> R | Awaitable[R]:
        """The reply if it is there, or this ticket to await; an error is raised either way."""
        return self.result() if self._value is not _UNRESOLVED else self

    def then(self, convert: Callable[[R], T]) -> T | Awaitable[T]:
        """The converted reply if it is there, or an awaitable of it; an error is raised either way."""
        if self._value is not _UNRESOLVED:
            return convert(self.result())
        return self._convert_later(convert)

    async def _convert_later(self, convert: Callable[[R], T]) -> T:
        return convert(await self)

    def __await__(self) -> Generator[Any, None, R]:
        if self._value is _UNRESOLVED:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            yield from waiter
        return self.result()


class _DeferredReplies:
    """Replies that wait until the high watermark has reached `end_offset`."""

    __slots__ = ("deadline_ms", "end_offset", "replies", "sends", "timed_out")

    def __init__(
        self, end_offset: int, deadline_ms: int, replies: list[tuple[ReplyTo[Any], Any]], sends: list[Any]
    ) -> None:
        self.end_offset = end_offset
        self.deadline_ms = deadline_ms
        self.replies = replies
        self.sends = sends
        self.timed_out = False


class CoordinatorContext(Generic[S]):
    """One partition of the coordinator's topic as the runtime holds it, with the requests that wait."""

    __slots__ = (
        "deferred",
        "failed",
        "index",
        "leader_epoch",
        "loading",
        "name",
        "partition",
        "shard",
        "waiting",
        "written_end",
    )

    def __init__(self, index: int, partition: Partition, shard: S) -> None:
        self.index: Final = index
        self.partition: Final = partition
        self.leader_epoch: Final = partition.leader_epoch
        self.shard: Final = shard
        self.name: Final = str(partition.topic_partition)
        self.loading: asyncio.Task[None] | None = None
        self.failed = False
        # The end of the last batch that the state holds; replies wait until it is committed.
        self.written_end = 0
        self.deferred: deque[_DeferredReplies] = deque()  # in the order of end_offset
        # Every ticket that has no reply yet, in the order of their operations.
        self.waiting: dict[ReplyTo[Any], None] = {}

    @property
    def is_active(self) -> bool:
        return self.loading is None and not self.failed

    def resolve(self, to: ReplyTo[R], value: R | KafkaError) -> None:
        self.waiting.pop(to, None)
        to.resolve(value)


class CoordinatorRuntime(Generic[S]):
    """The shards of one internal topic on this broker.

    `make_shard` is called with a partition's number and its leader epoch; `on_sends` is called with
    the number of a partition and the work that its shard sends, after its records are committed.
    """

    def __init__(
        self,
        records: CoordinatorRecords,
        make_shard: Callable[[int, int], S],
        clock: Clock,
        pool: Pool,
        *,
        on_sends: Callable[[int, list[Any]], None] | None = None,
        codec: Codec = Codec.NONE,
        commit_timeout_ms: int = DEFAULT_COMMIT_TIMEOUT_MS,
        load_bytes: int = DEFAULT_LOAD_BYTES,
    ) -> None:
        self._records: Final = records
        self._make_shard: Final = make_shard
        self._clock: Final = clock
        self._pool: Final = pool
        self._on_sends: Final = on_sends
        self._codec: Final = codec
        self._commit_timeout_ms: Final = commit_timeout_ms
        self._load_bytes: Final = load_bytes
        self._contexts: dict[int, CoordinatorContext[S]] = {}
        # How often the load of a partition has failed since it last succeeded.
        self._load_failures: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0  # when the timer goes off; meaningless without one

    # The partitions

    def load(self, partition: Partition) -> None:
        """Load a partition that this broker leads. In a new leader epoch it is loaded again."""
        index = partition.topic_partition.partition
        context = self._contexts.get(index)
        if context is not None:
            if context.leader_epoch >= partition.leader_epoch and not context.failed:
                return
            self._unload(context)
        context = CoordinatorContext(index, partition, self._make_shard(index, partition.leader_epoch))
        self._contexts[index] = context
        context.loading = asyncio.get_running_loop().create_task(self._load(context))

    def unload(self, index: int, leader_epoch: int | None = None) -> None:
        """Unload a partition that this broker no longer leads; `leader_epoch` is that of the new leader."""
        context = self._contexts.get(index)
        if context is not None and (leader_epoch is None or context.leader_epoch < leader_epoch):
            self._unload(context)

    def on_partition_progress(self, index: int) -> None:
        """Give the replies that wait for the high watermark of a partition, if it has moved far enough."""
        context = self._contexts.get(index)
        if context is not None and context.deferred:
            self._complete_deferred(context)

    async def close(self) -> None:
        """Unload all partitions."""
        tasks = [context.loading for context in self._contexts.values() if context.loading is not None]
        for context in list(self._contexts.values()):
            self._unload(context)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_until_loaded(self, index: int) -> None:
        """Wait until a partition that this broker leads has been loaded, or its load has failed."""
        context = self._contexts.get(index)
        if context is not None and context.loading is not None:
            await asyncio.wait([context.loading])

    def shard(self, index: int) -> S:
        """The shard of a partition, to look at; raises the error that a request to it would get."""
        return self._active(index).shard

    @property
    def partitions(self) -> list[int]:
        """The partitions that this broker leads, loaded or not."""
        return sorted(self._contexts)

    def now(self) -> EventTime:
        return EventTime(self._clock.wall_ms(), self._clock.monotonic_ns() // _TICK)

    # Events

    def submit(
        self, index: int, operation: CoordinatorOperation[R], *, guard: VerificationGuard = SENTINEL_GUARD
    ) -> Ticket[R]:
        """Give an operation to the shard of a partition; the ticket has or will have the reply."""
        try:
            context = self._active(index)
        except KafkaError as error:
            return Ticket.failed(error)
        ticket: Ticket[R] = Ticket()
        self._run_event(context, partial(context.shard.handle, ticket, operation), ticket, guard)
        return ticket

    def submit_all(self, operation: CoordinatorOperation[R]) -> list[Ticket[R]]:
        """Give the same operation to every shard on this broker."""
        return [self.submit(index, operation) for index in self.partitions]

    def notify(self, event: CoordinatorOperation[None]) -> None:
        """Give an event that expects no reply to every loaded shard."""
        for context in list(self._contexts.values()):
            if context.is_active:
                self._run_event(context, partial(context.shard.handle, None, event))

    def complete_transaction(
        self,
        index: int,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Ticket[None]:
        """Write the marker that ends a transaction in a partition; the reply is None, or an error."""
        try:
            context = self._active(index)
        except KafkaError as error:
            return Ticket.failed(error)
        ticket: Ticket[None] = Ticket()
        now = self.now()
        context.waiting[ticket] = None
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        batch = build_end_transaction_marker(
            EndTransactionMarker(kind, coordinator_epoch),
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            timestamp=now.wall_ms,
        )
        try:
            info = context.partition.append_records_to_leader(
                batch,
                now_ms=now.wall_ms,
                origin=AppendOrigin.COORDINATOR,
                transaction_version=transaction_version,
            )
        except KafkaError as error:
            context.resolve(ticket, error)
            return ticket
        context.written_end = info.last_offset + 1
        try:
            context.shard.replay_end_transaction(producer, commit)
        except Exception:
            self._reload(context)
            return ticket
        context.deferred.append(
            _DeferredReplies(context.written_end, self._commit_deadline(now), [(ticket, None)], [])
        )
        self._complete_deferred(context)
        self._schedule_timer(context, now)
        return ticket

    def _active(self, index: int) -> CoordinatorContext[S]:
        context = self._contexts.get(index)
        if context is None or context.failed:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR,
                f"This is not the correct coordinator: this broker does not lead partition {index}",
            )
        if context.loading is not None:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"The coordinator is loading {context.name}; try again",
            )
        return context

    def _run_event(
        self,
        context: CoordinatorContext[S],
        work: Callable[[EventTime], Effects],
        ticket: Ticket[Any] | None = None,
        guard: VerificationGuard = SENTINEL_GUARD,
    ) -> None:
        now = self.now()
        if ticket is not None:
            context.waiting[ticket] = None
        try:
            effects = work(now)
        except KafkaError as error:
            effects = Effects()
            effects.reply(ticket, error.again())
        except Exception as error:
            _log.exception("%s: an event failed", context.name)
            effects = Effects()
            effects.reply(ticket, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{context.name}: {error!r}"))
        self._carry_out(context, effects, now, guard)
        self._schedule_timer(context, now)

    def _carry_out(
        self,
        context: CoordinatorContext[S],
        effects: Effects,
        now: EventTime,
        guard: VerificationGuard = SENTINEL_GUARD,
    ) -> None:
        if effects.records:
            try:
                self._append(context, effects, now, guard)
            except KafkaError as error:
                self._on_append_failed(context, effects, error, now)
                return
            except Exception:
                self._reload(context)
                return
        self._reply_when_committed(context, effects, now)
        if effects.on_applied is not None:
            then = effects.on_applied(now)
            if then is not None:
                self._carry_out(context, then, now)

    def _append(
        self, context: CoordinatorContext[S], effects: Effects, now: EventTime, guard: VerificationGuard
    ) -> None:
        """Append and replay. After a KafkaError nothing is appended that was not replayed."""
        producer = effects.producer
        try:
            parts = list(_batches(effects))
        except ValueError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{context.name}: {error}") from error
        for part in parts:
            batch = build_batch(
                [(now.wall_ms, key, value) for _, key, value in part],
                codec=self._codec,
                producer_id=-1 if producer is None else producer.id,
                producer_epoch=-1 if producer is None else producer.epoch,
                transactional=producer is not None,
            )
            try:
                info = context.partition.append_records_to_leader(
                    batch, now_ms=now.wall_ms, origin=AppendOrigin.COORDINATOR, guard=guard
                )
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{context.name}: {error}") from error
            context.written_end = info.last_offset + 1
            try:
                for offset, (record, _, _) in enumerate(part, info.first_offset):
                    context.shard.replay(
                        ReplayedRecord(record.key, record.value, offset, now.wall_ms, producer)
                    )
            except KafkaError as error:
                raise RuntimeError(
                    f"{context.name}: a record of the coordinator cannot be replayed"
                ) from error

    def _on_append_failed(
        self, context: CoordinatorContext[S], effects: Effects, error: KafkaError, now: EventTime
    ) -> None:
        reply = coordinator_error(error)
        _log.warning("%s: %d records could not be written: %s", context.name, len(effects.records), error)
        for ticket, _ in effects.replies:
            context.resolve(ticket, reply)
        if effects.on_failed is not None:
            then = effects.on_failed(reply, now)
            assert not then.records, "the follow-up of a failed write must not write"
            self._carry_out(context, then, now)

    def _reload(self, context: CoordinatorContext[S]) -> None:
        """Load a partition again whose state is no longer that of its log."""
        _log.exception("%s: its state is not that of its log; the partition is loaded again", context.name)
        self._unload(context)
        if context.partition.is_leader:
            self.load(context.partition)

    # Replies

    def _reply_when_committed(self, context: CoordinatorContext[S], effects: Effects, now: EventTime) -> None:
        """Reply now if all that the state holds is committed, and otherwise when it is."""
        if not effects.replies and not effects.sends:
            return
        if not context.deferred and context.partition.log.high_watermark >= context.written_end:
            self._send_replies(context, context.written_end, effects.replies, effects.sends)
            return
        context.deferred.append(
            _DeferredReplies(context.written_end, self._commit_deadline(now), effects.replies, effects.sends)
        )
        self._complete_deferred(context)

    def _commit_deadline(self, now: EventTime) -> int:
        return now.tick_ms + self._commit_timeout_ms

    def _complete_deferred(self, context: CoordinatorContext[S]) -> None:
        """Give the replies that the high watermark has passed, in order."""
        high_watermark = context.partition.log.high_watermark
        deferred = context.deferred
        while deferred and deferred[0].end_offset <= high_watermark:
            entry = deferred.popleft()
            self._send_replies(context, entry.end_offset, entry.replies, entry.sends)

    def _send_replies(
        self,
        context: CoordinatorContext[S],
        end_offset: int,
        replies: list[tuple[ReplyTo[Any], Any]],
        sends: list[Any],
    ) -> None:
        high_watermark = context.partition.log.high_watermark
        assert end_offset <= high_watermark, (context.name, end_offset, high_watermark)
        for ticket, response in replies:
            context.resolve(ticket, response)
        if sends and self._on_sends is not None:
            self._on_sends(context.index, sends)

    # Loading

    async def _load(self, context: CoordinatorContext[S]) -> None:
        try:
            context.written_end = await load_partition(
                context.partition, context.shard, self._records, self._pool, self._load_bytes
            )
        except asyncio.CancelledError:
            raise
        except Exception:
            failures = self._load_failures.get(context.index, 0)
            delay = min(_FIRST_RETRY_S * 2**failures, _MAX_RETRY_S)
            _log.exception(
                "%s cannot be loaded; its groups and transactions are unavailable until it can, tried again "
                "in %.1f s",
                context.name,
                delay,
            )
            self._load_failures[context.index] = failures + 1
            context.failed = True
            context.loading = None
            asyncio.get_running_loop().call_later(delay, self._load_again, context)
            return
        context.loading = None
        self._load_failures.pop(context.index, None)
        if self._contexts.get(context.index) is context:
            self._run_event(context, context.shard.on_loaded)

    def _load_again(self, context: CoordinatorContext[S]) -> None:
        """Load a partition once more whose load has failed, unless another broker leads it by now."""
        if self._contexts.get(context.index) is context and context.partition.is_leader:
            self.load(context.partition)

    def _unload(self, context: CoordinatorContext[S]) -> None:
        if self._contexts.get(context.index) is context:
            del self._contexts[context.index]
        if context.loading is not None:
            context.loading.cancel()
            context.loading = None
        context.shard.on_unloaded()
        context.deferred.clear()
        gone = KafkaError(
            ErrorCode.NOT_COORDINATOR,
            f"This is not the correct coordinator: another broker leads {context.name} now",
        )
        for ticket in list(context.waiting):
            context.resolve(ticket, gone)

    # Deadlines

    def _schedule_timer(self, context: CoordinatorContext[S], now: EventTime) -> None:
        """Set the timer to a shard's earliest deadline, unless it fires before; too early does no harm."""
        deadline = _earliest(context)
        if deadline is None or (self._timer is not None and self._timer_tick <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = deadline
        delay_ms = max(0, deadline - now.tick_ms)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self.now()
        for context in list(self._contexts.values()):
            if not context.is_active:
                continue
            try:
                self._fail_timed_out(context, now)
                for _ in range(_TIMER_ROUNDS):
                    deadline = context.shard.next_deadline_ms()
                    if deadline is None or deadline > now.tick_ms or not context.is_active:
                        break
                    self._run_event(context, context.shard.on_timer)
                self._schedule_timer(context, now)
            except Exception:
                # The other shards have their deadlines all the same, and this one loads its state again.
                self._reload(context)

    def _fail_timed_out(self, context: CoordinatorContext[S], now: EventTime) -> None:
        """Fail the requests whose records wait too long for the replicas; the records themselves stay."""
        for entry in context.deferred:
            if entry.deadline_ms > now.tick_ms:
                break
            if not entry.timed_out:
                entry.timed_out = True
                late = KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{context.name}: the write up to offset {entry.end_offset} is not committed after "
                    f"{self._commit_timeout_ms} ms",
                )
                for ticket, _ in entry.replies:
                    context.resolve(ticket, late)
                entry.replies.clear()


def _earliest(context: CoordinatorContext[Any]) -> int | None:
    deadline: int | None = context.shard.next_deadline_ms()
    if not context.deferred:
        return deadline
    late = next((entry.deadline_ms for entry in context.deferred if not entry.timed_out), None)
    return min((moment for moment in (deadline, late) if moment is not None), default=None)


def coordinator_error(error: KafkaError) -> KafkaError:
    """The error for the client when a write to the coordinator's own topic fails."""
    code = _APPEND_ERRORS.get(error.code)
    return error if code is None else KafkaError(code, error.message)


_Encoded = tuple[CoordinatorRecord, bytes, bytes | None]


def _batches(effects: Effects) -> Iterator[list[_Encoded]]:
    """The records, encoded: one batch, or several of bounded size where they may be spread."""
    part: list[_Encoded] = []
    size = 0
    # Many members of a group may have the same value.
    values: dict[tuple[int, int], bytes] = {}
    for record in effects.records:
        key = encode_key(record.key)
        value: bytes | None = None
        if record.value is not None:
            which = id(record.value), record.version
            value = values.get(which)
            if value is None:
                value = values[which] = encode_value(record.value, record.version)
        record_size = len(key) + (0 if value is None else len(value)) + 20
        if part and not effects.atomic and size + record_size > _SPREAD_BYTES:
            yield part
            part, size = [], 0
        part.append((record, key, value))
        size += record_size
    yield part
