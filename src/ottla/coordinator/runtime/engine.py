"""The engine of every coordinator: machines over the partitions of an internal topic that this node leads.

For each such partition, a shard, the engine loads what the log holds into a machine and then gives it one
event at a time: the machine says what shall happen, the records are appended as one batch, replayed into the
machine, and the answers are given when the high watermark has passed the batch. Invariants:

* the state of a machine is the state of its log: nothing is replayed that was not appended;
* nobody is told of a state that could still be lost: an answer without records waits as well, for whatever
  was appended before it was computed;
* who waits is answered: on resignation with NOT_COORDINATOR, while loading with COORDINATOR_LOAD_IN_PROGRESS,
  and with COORDINATOR_NOT_AVAILABLE if the replicas take longer than `commit_timeout_ms`.

Whoever owns the partitions calls `elected`, `resigned` and `progressed`. The machines' deadlines share one
timer of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from ottla.coordinator.runtime.effects import (
    CoordinatorRecord,
    Effects,
    Machine,
    Now,
    Producer,
    ReplayedRecord,
)
from ottla.coordinator.runtime.loader import load
from ottla.coordinator.runtime.shard import Pending, Shard, Ticket
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

M = TypeVar("M", bound=Machine)

DEFAULT_COMMIT_TIMEOUT_MS: Final = 5_000
DEFAULT_LOAD_BYTES: Final = 5 * 1024 * 1024
_SPREAD_BYTES: Final = 512 * 1024
_TIMER_ROUNDS: Final = 1_000
_TICK: Final = 1_000_000

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


class Engine(Generic[M]):
    """The shards of one internal topic on this node.

    `make_machine` is called with a partition's number and its leader epoch; `on_sends` is given what a
    machine sent, with the number of its partition, once that is committed.
    """

    def __init__(
        self,
        records: CoordinatorRecords,
        make_machine: Callable[[int, int], M],
        clock: Clock,
        pool: Pool,
        *,
        on_sends: Callable[[int, list[Any]], None] | None = None,
        codec: Codec = Codec.NONE,
        commit_timeout_ms: int = DEFAULT_COMMIT_TIMEOUT_MS,
        load_bytes: int = DEFAULT_LOAD_BYTES,
    ) -> None:
        self._records: Final = records
        self._make_machine: Final = make_machine
        self._clock: Final = clock
        self._pool: Final = pool
        self._on_sends: Final = on_sends
        self._codec: Final = codec
        self._commit_timeout_ms: Final = commit_timeout_ms
        self._load_bytes: Final = load_bytes
        self._shards: dict[int, Shard[M]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0  # when the timer goes off; meaningless without one

    # The partitions

    def elected(self, partition: Partition) -> None:
        """This node leads the partition: load it. In a new leader epoch it is loaded again."""
        index = partition.topic_partition.partition
        shard = self._shards.get(index)
        if shard is not None:
            if shard.leader_epoch >= partition.leader_epoch and not shard.failed:
                return
            self._unload(shard)
        shard = Shard(index, partition, self._make_machine(index, partition.leader_epoch))
        self._shards[index] = shard
        shard.loading = asyncio.get_running_loop().create_task(self._load(shard))

    def resigned(self, index: int, leader_epoch: int | None = None) -> None:
        """This node leads the partition no more; `leader_epoch` is the one in which it lost it."""
        shard = self._shards.get(index)
        if shard is not None and (leader_epoch is None or shard.leader_epoch < leader_epoch):
            self._unload(shard)

    def progressed(self, index: int) -> None:
        """The partition's high watermark may have moved."""
        shard = self._shards.get(index)
        if shard is not None and shard.pending:
            self._deliver(shard)

    async def close(self) -> None:
        """Give up all partitions."""
        tasks = [shard.loading for shard in self._shards.values() if shard.loading is not None]
        for shard in list(self._shards.values()):
            self._unload(shard)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await asyncio.gather(*tasks, return_exceptions=True)

    async def loaded(self, index: int) -> None:
        """Wait until the partition, if it is led here, has been loaded or has failed."""
        shard = self._shards.get(index)
        if shard is not None and shard.loading is not None:
            await asyncio.wait([shard.loading])

    def machine(self, index: int) -> M:
        """The machine of a partition, to look at; the error that a request to it would get, if there is
        none.
        """
        return self._active(index).machine

    @property
    def partitions(self) -> list[int]:
        """The partitions that are led here, loaded or not."""
        return sorted(self._shards)

    def now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.monotonic_ns() // _TICK)

    # Events

    def submit(self, index: int, request: Any, *, guard: VerificationGuard = SENTINEL_GUARD) -> Ticket:
        """Give a request to the machine of a partition; the ticket has or will have the answer."""
        ticket = Ticket()
        try:
            shard = self._active(index)
        except KafkaError as error:
            ticket.resolve(error)
            return ticket
        self._event(shard, partial(shard.machine.handle, ticket, request), ticket, guard)
        return ticket

    def submit_all(self, request: Any) -> list[Ticket]:
        """The same request to every partition that is led here."""
        return [self.submit(index, request) for index in self.partitions]

    def notify(self, event: Any) -> None:
        """Tell every loaded machine what nobody waits for an answer to."""
        for shard in list(self._shards.values()):
            if shard.is_active:
                self._event(shard, partial(shard.machine.handle, None, event))

    def end_transaction(
        self,
        index: int,
        producer: Producer,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> Ticket:
        """Write the marker that ends a transaction in a partition; the answer is None, or an error."""
        ticket = Ticket()
        try:
            shard = self._active(index)
        except KafkaError as error:
            ticket.resolve(error)
            return ticket
        now = self.now()
        shard.waiting.add(ticket)
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        batch = build_end_transaction_marker(
            EndTransactionMarker(kind, coordinator_epoch),
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            timestamp=now.wall_ms,
        )
        try:
            info = shard.partition.append_records_to_leader(
                batch,
                now_ms=now.wall_ms,
                origin=AppendOrigin.COORDINATOR,
                transaction_version=transaction_version,
            )
        except KafkaError as error:
            shard.resolve(ticket, error)
            return ticket
        shard.written_end = info.last_offset + 1
        try:
            shard.machine.replay_end_transaction(producer, commit)
        except Exception:
            self._diverged(shard)
            return ticket
        shard.pending.append(Pending(shard.written_end, self._commit_deadline(now), [(ticket, None)], []))
        self._deliver(shard)
        self._arm(shard, now)
        return ticket

    def _active(self, index: int) -> Shard[M]:
        shard = self._shards.get(index)
        if shard is None or shard.failed:
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"partition {index} of the coordinator is not led by this node"
            )
        if shard.loading is not None:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{shard.name} is being loaded; ask again"
            )
        return shard

    def _event(
        self,
        shard: Shard[M],
        work: Callable[[Now], Effects],
        ticket: Ticket | None = None,
        guard: VerificationGuard = SENTINEL_GUARD,
    ) -> None:
        now = self.now()
        if ticket is not None:
            shard.waiting.add(ticket)
        try:
            effects = work(now)
        except KafkaError as error:
            effects = Effects()
            effects.reply(ticket, error)
        except Exception as error:
            _log.exception("%s: an event failed", shard.name)
            effects = Effects()
            effects.reply(ticket, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{shard.name}: {error!r}"))
        self._carry_out(shard, effects, now, guard)
        self._arm(shard, now)

    def _carry_out(
        self, shard: Shard[M], effects: Effects, now: Now, guard: VerificationGuard = SENTINEL_GUARD
    ) -> None:
        if effects.records:
            try:
                self._append(shard, effects, now, guard)
            except KafkaError as error:
                self._not_appended(shard, effects, error, now)
                return
            except Exception:
                self._diverged(shard)
                return
        self._answer(shard, effects, now)
        if effects.applied is not None:
            then = effects.applied(now)
            if then is not None:
                self._carry_out(shard, then, now)

    def _append(self, shard: Shard[M], effects: Effects, now: Now, guard: VerificationGuard) -> None:
        """Append and replay. A KafkaError means that nothing was appended that was not replayed."""
        producer = effects.producer
        try:
            parts = list(_batches(effects))
        except ValueError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{shard.name}: {error}") from error
        for part in parts:
            batch = build_batch(
                [(now.wall_ms, key, value) for _, key, value in part],
                codec=self._codec,
                producer_id=-1 if producer is None else producer.id,
                producer_epoch=-1 if producer is None else producer.epoch,
                transactional=producer is not None,
            )
            try:
                info = shard.partition.append_records_to_leader(
                    batch, now_ms=now.wall_ms, origin=AppendOrigin.COORDINATOR, guard=guard
                )
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{shard.name}: {error}") from error
            shard.written_end = info.last_offset + 1
            try:
                for offset, (record, _, _) in enumerate(part, info.first_offset):
                    shard.machine.replay(
                        ReplayedRecord(record.key, record.value, offset, now.wall_ms, producer)
                    )
            except KafkaError as error:
                raise RuntimeError(f"{shard.name}: its own record cannot be replayed") from error

    def _not_appended(self, shard: Shard[M], effects: Effects, error: KafkaError, now: Now) -> None:
        told = coordinator_error(error)
        _log.warning("%s: %d records could not be written: %s", shard.name, len(effects.records), error)
        for ticket, _ in effects.replies:
            shard.resolve(ticket, told)
        if effects.failed is not None:
            then = effects.failed(told, now)
            assert not then.records, "what follows a failed write must not write"
            self._carry_out(shard, then, now)

    def _diverged(self, shard: Shard[M]) -> None:
        """The state is no longer that of the log: begin again from the log."""
        _log.exception("%s: a record that was written cannot be replayed; loading it again", shard.name)
        self._unload(shard)
        if shard.partition.is_leader:
            self.elected(shard.partition)

    # Answers

    def _answer(self, shard: Shard[M], effects: Effects, now: Now) -> None:
        """Answer now if all that the state holds is committed, and otherwise when it is."""
        if not effects.replies and not effects.sends:
            return
        if not shard.pending and shard.partition.log.high_watermark >= shard.written_end:
            self._give(shard, effects.replies, effects.sends)
            return
        shard.pending.append(
            Pending(shard.written_end, self._commit_deadline(now), effects.replies, effects.sends)
        )
        self._deliver(shard)

    def _commit_deadline(self, now: Now) -> int:
        return now.tick_ms + self._commit_timeout_ms

    def _deliver(self, shard: Shard[M]) -> None:
        """Give the answers that the high watermark has passed, in order."""
        high_watermark = shard.partition.log.high_watermark
        pending = shard.pending
        while pending and pending[0].end_offset <= high_watermark:
            entry = pending.popleft()
            self._give(shard, entry.replies, entry.sends)

    def _give(self, shard: Shard[M], replies: list[tuple[Any, Any]], sends: list[Any]) -> None:
        for ticket, response in replies:
            shard.resolve(ticket, response)
        if sends and self._on_sends is not None:
            self._on_sends(shard.index, sends)

    # Loading

    async def _load(self, shard: Shard[M]) -> None:
        try:
            shard.written_end = await load(
                shard.partition, shard.machine, self._records, self._pool, self._load_bytes
            )
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("%s cannot be loaded; its groups and transactions stay unavailable", shard.name)
            shard.failed = True
            shard.loading = None
            return
        shard.loading = None
        if self._shards.get(shard.index) is shard:
            self._event(shard, shard.machine.on_loaded)

    def _unload(self, shard: Shard[M]) -> None:
        if self._shards.get(shard.index) is shard:
            del self._shards[shard.index]
        if shard.loading is not None:
            shard.loading.cancel()
            shard.loading = None
        shard.machine.on_unloaded()
        shard.pending.clear()
        gone = KafkaError(ErrorCode.NOT_COORDINATOR, f"{shard.name} is led by another node now")
        for ticket in list(shard.waiting):
            shard.resolve(ticket, gone)

    # Deadlines

    def _arm(self, shard: Shard[M], now: Now) -> None:
        """Have the one timer go off no later than the shard's earliest deadline; too early does no harm."""
        deadline = _earliest(shard)
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
        for shard in list(self._shards.values()):
            if not shard.is_active:
                continue
            self._time_out(shard, now)
            for _ in range(_TIMER_ROUNDS):
                deadline = shard.machine.next_deadline_ms()
                if deadline is None or deadline > now.tick_ms or not shard.is_active:
                    break
                self._event(shard, shard.machine.on_timer)
            self._arm(shard, now)

    def _time_out(self, shard: Shard[M], now: Now) -> None:
        """Tell those whose records wait too long for the replicas; the records themselves stay."""
        for entry in shard.pending:
            if entry.deadline_ms > now.tick_ms:
                break
            if not entry.timed_out:
                entry.timed_out = True
                late = KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{shard.name}: the write up to offset {entry.end_offset} is not committed after "
                    f"{self._commit_timeout_ms} ms",
                )
                for ticket, _ in entry.replies:
                    shard.resolve(ticket, late)
                entry.replies.clear()


def _earliest(shard: Shard[M]) -> int | None:
    deadline: int | None = shard.machine.next_deadline_ms()
    if not shard.pending:
        return deadline
    late = next((entry.deadline_ms for entry in shard.pending if not entry.timed_out), None)
    return min((moment for moment in (deadline, late) if moment is not None), default=None)


def coordinator_error(error: KafkaError) -> KafkaError:
    """What a failed write to the coordinator's own topic means to the one who asked."""
    code = _APPEND_ERRORS.get(error.code)
    return error if code is None else KafkaError(code, error.message)


_Encoded = tuple[CoordinatorRecord, bytes, bytes | None]


def _batches(effects: Effects) -> Iterator[list[_Encoded]]:
    """The records, encoded: one batch, or several of bounded size where they may be spread."""
    part: list[_Encoded] = []
    size = 0
    for record in effects.records:
        key = encode_key(record.key)
        value = None if record.value is None else encode_value(record.value, record.version)
        record_size = len(key) + (0 if value is None else len(value)) + 20
        if part and not effects.atomic and size + record_size > _SPREAD_BYTES:
            yield part
            part, size = [], 0
        part.append((record, key, value))
        size += record_size
    yield part
