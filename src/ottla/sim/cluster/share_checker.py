"""The guarantees of a share group, checked while a cluster runs.

- What is acknowledged survives: an acknowledgement that was answered without an error is committed in
  `__share_group_state` at that moment, and no record that is done is delivered again, unless by a leader that
  does not know yet that another one has followed it, and to which nothing can be acknowledged any more.
- A record has one holder: it is delivered to no other member before the lock of the first has expired, the
  member has acknowledged it, or the member's share session has ended.
- Delivery counts are right: each is one more than the last of the same leader, or than what was persisted
  when the leader took over, and none is above the limit.
- With a backoff, a record that was released is not delivered again before its time, nor is one that was
  delivered before a leader has loaded the state.
- The start offset passes no record that is neither acknowledged nor archived.
- Records are delivered in order, as they are committed, and with nothing missing.
- At the end each record is done, because a member accepted or rejected it, or as it was delivered as often as
  the limit allows.
- With a dead-letter topic, a record that was rejected or used up is in it, once, and a record that was
  accepted is not; also where the group names another topic meanwhile.
- What an operator has released, rejected or skipped is as if a member had, once that is answered.

Three sources are compared: the committed records of `__share_group_state`, from which the checker makes its
own model of the durable state; the acquisitions of leaders, as they happen (`SharePartitionListener`); and
the requests and answers of members. An acquisition is not durable, so another leader, or the same after it
has loaded the state again, may deliver a record once more: it has one holder only as far as one leader knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ottla.client.admin.groups import ShareRecords
from ottla.node.share.dead_letter_topics import OFFSET_HEADER
from ottla.node.share.dead_letters import DELIVERY_COUNT_HEADER, PARTITION_HEADER, TOPIC_HEADER
from ottla.node.share.share_partition import AcquiredRange, RecordState
from ottla.node.share.share_partition_manager import SharePartitionLeader, SharePartitionManager
from ottla.node.share.share_session import ShareSession, ShareSessionKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import SharePartitionKey
from ottla.protocol.share import AcknowledgeType
from ottla.protocol.share_state_records import (
    RECORDS,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
)
from ottla.records._kernel import Record
from ottla.sim.cluster.history import CommittedRecord, PartitionHistory
from ottla.sim.world import World

SHARE_GROUP: Final = "workers"
# The topics for dead letters of the group; it begins with the first one.
DEAD_LETTERS: Final = ("dlq.workers", "dlq.others")
_DONE: Final = frozenset((RecordState.ACKNOWLEDGED, RecordState.ARCHIVED))
_NOT_DELIVERED: Final = frozenset((*_DONE, RecordState.ARCHIVING))
_FINAL_TYPES: Final = frozenset((AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT))
# After these an acknowledgement has changed nothing; after others it may still have been persisted.
_REFUSALS: Final = frozenset((ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST))


@dataclass(frozen=True, slots=True)
class ShareGroupTerms:
    """The settings of the share group of a run, and how many members it has."""

    lock_ms: int
    delivery_limit: int
    read_committed: bool
    workers: int
    # Of the share coordinator: how many updates follow a snapshot.
    updates_per_snapshot: int
    retry_backoff_ms: int = 0
    retry_backoff_max_ms: int = 0
    dead_letters: bool = False
    copies_dead_letters: bool = False

    @classmethod
    def draw(cls, random: Random) -> ShareGroupTerms:
        return cls(
            lock_ms=random.choice((1_000, 1_500, 3_000)),
            delivery_limit=random.choice((2, 3, 5, 5)),
            read_committed=random.random() < 0.4,
            workers=random.choice((2, 3, 3, 5)),
            updates_per_snapshot=random.choice((0, 2, 10, 500)),
            retry_backoff_ms=random.choice((0, 0, 300, 1_500)),
            retry_backoff_max_ms=random.choice((0, 4_000)),
            dead_letters=random.random() < 0.6,
            copies_dead_letters=random.random() < 0.5,
        )

    def least_retry_delay_ms(self, count: int) -> int:
        """How long a record waits at least that was released after so many deliveries."""
        base, most = self.retry_backoff_ms, self.retry_backoff_max_ms
        return base if most <= base else min(base * 2 ** (count - 1), most) * 4 // 5

    def node_settings(self) -> dict[str, str]:
        return {
            "group.share.session.timeout.ms": "3000",
            "group.share.min.session.timeout.ms": "1000",
            "group.share.heartbeat.interval.ms": "500",
            "group.share.min.heartbeat.interval.ms": "100",
            "group.share.record.lock.duration.ms": str(self.lock_ms),
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.delivery.count.limit": str(self.delivery_limit),
            "group.share.initialize.retry.interval.ms": "300",
            "share.coordinator.snapshot.update.records.per.snapshot": str(self.updates_per_snapshot),
            "share.coordinator.state.topic.prune.interval.ms": "1500",
            # Short, so that requests between brokers are repeated while earlier ones are still on their way.
            "share.coordinator.write.timeout.ms": "1000",
            "request.timeout.ms": "1500",
            "share.coordinator.cold.partition.snapshot.interval.ms": "2500",
        }

    def group_settings(self) -> dict[str, str]:
        return {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed" if self.read_committed else "read_uncommitted",
            "share.retry.backoff.ms": str(self.retry_backoff_ms),
            "share.retry.backoff.max.ms": str(self.retry_backoff_max_ms),
            "errors.deadletterqueue.topic.name": DEAD_LETTERS[0] if self.dead_letters else "",
            "errors.deadletterqueue.copy.record.enable": str(self.copies_dead_letters).lower(),
        }


@dataclass(slots=True)
class _DurableState:
    """The state of a share partition by the committed records of `__share_group_state`."""

    state_epoch: int
    # The first offset that may not be done.
    start: int
    # By offset: the delivery count and the state. The higher one wins, as in Kafka.
    cells: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, batches: Sequence[StateBatch]) -> None:
        for batch in batches:
            cell = (batch.delivery_count, batch.delivery_state)
            for offset in range(max(batch.first_offset, self.start), batch.last_offset + 1):
                self.cells[offset] = max(cell, self.cells.get(offset, cell))

    def move_start(self, start: int) -> None:
        self.start = start
        for offset in [offset for offset in self.cells if offset < start]:
            del self.cells[offset]

    def is_done(self, offset: int) -> bool:
        return offset < self.start or (offset in self.cells and self.cells[offset][1] in _DONE)

    def is_delivered_no_more(self, offset: int) -> bool:
        return offset < self.start or (offset in self.cells and self.cells[offset][1] in _NOT_DELIVERED)

    def count(self, offset: int) -> int:
        return self.cells[offset][0] if offset in self.cells else 0


class _Holder:
    """The last member that acquired a record, and what ends its hold."""

    __slots__ = ("deadline_ms", "has_acknowledged", "leader", "member_id", "session")

    def __init__(
        self, leader: SharePartitionLeader, member_id: str, session: ShareSession | None, deadline_ms: int
    ) -> None:
        self.leader = leader
        self.member_id = member_id
        # It ends with the session, if the leader has one of the member.
        self.session = session
        self.deadline_ms = deadline_ms
        self.has_acknowledged = False


class _KnownLeader:
    """A share partition as a leader loaded it, and how often it has delivered each record since."""

    __slots__ = ("acquired_ms", "counts", "loaded", "loaded_ms", "released_ms")

    def __init__(self, loaded: _DurableState, loaded_ms: int) -> None:
        self.loaded = loaded
        self.loaded_ms = loaded_ms
        self.counts: dict[int, int] = {}
        # By the clock of the leader: when a record was delivered, by its count, and when it was released at
        # the earliest, with the count that it had.
        self.acquired_ms: dict[tuple[int, int], int] = {}
        self.released_ms: dict[int, tuple[int, int]] = {}


@dataclass(slots=True)
class _SharePartitionHistory:
    durable: _DurableState | None = None
    holders: dict[int, _Holder] = field(default_factory=dict)
    # The highest count with which each record was delivered.
    most: dict[int, int] = field(default_factory=dict)
    # Acceptances and rejections that were, or may have been, carried out.
    finals: dict[int, int] = field(default_factory=dict)
    # The records that are done by an answer to a member: the answer, and the leader that gave it if known.
    answered: dict[int, tuple[str, SharePartitionLeader | None]] = field(default_factory=dict)
    # The records that were accepted, or may have been, and those that were by an answer to a member.
    accepted: set[int] = field(default_factory=set)
    surely_accepted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    # What an operator may have changed: an acknowledgement of it may have no effect, and yet be no error, if
    # the start offset has passed it.
    altered: set[int] = field(default_factory=set)
    # The delivery count with which an operator has released a record, or may have: it does not wait then.
    freed: dict[int, int] = field(default_factory=dict)
    # The one that has loaded the state last, so that all before it are fenced.
    newest_leader: SharePartitionLeader | None = None


@dataclass(slots=True)
class SentAcknowledgement:
    """The acknowledgements of one share partition in a request of a member."""

    key: SharePartitionKey
    member_id: str
    types: Mapping[int, AcknowledgeType]
    counts: Mapping[int, int]
    # The clock of the leader when the request was sent.
    sent_ms: int


@dataclass(frozen=True, slots=True)
class _DeadLetter:
    value: bytes | None
    deliveries: int


class ShareChecker:
    """`histories` are the committed records of each partition; `catch_up` has them compared now."""

    def __init__(
        self,
        world: World,
        histories: Mapping[tuple[bytes, int], PartitionHistory],
        catch_up: Callable[[], None],
    ) -> None:
        self._world = world
        self._histories = histories
        self._catch_up = catch_up
        # Set if the run has a share group.
        self.terms: ShareGroupTerms | None = None
        self._partitions: dict[SharePartitionKey, _SharePartitionHistory] = {}
        self._leaders: dict[SharePartitionLeader, _KnownLeader] = {}
        # By the name of a partition and an offset: the committed dead letters.
        self._dead_letters: dict[tuple[str, int], list[_DeadLetter]] = {}

    def _of(self, key: SharePartitionKey) -> _SharePartitionHistory:
        return self._partitions.setdefault(key, _SharePartitionHistory())

    @property
    def _terms(self) -> ShareGroupTerms:
        assert self.terms is not None
        return self.terms

    def _name(self, key: SharePartitionKey) -> str:
        history = self._histories.get((key.topic_id, key.partition))
        return f"partition {key.partition}" if history is None else history.name

    def _report(self, key: SharePartitionKey, offset: int, text: str) -> None:
        self._world.report_violation(f"share group {key.group_id}: {self._name(key)} {offset} {text}")

    def _count(self, what: str, times: int = 1) -> None:
        self._world.coverage[f"share: {what}"] += times

    def _entry(self, key: SharePartitionKey, offset: int) -> CommittedRecord | None:
        """The record at an offset that the group is to read; None if there is none."""
        history = self._histories.get((key.topic_id, key.partition))
        entry = None if history is None else history.entries.get(offset)
        hidden = entry is not None and self._terms.read_committed and entry.decided is False
        return None if hidden else entry

    # The durable state

    def on_state_record(self, record: Record) -> None:
        """Apply a committed record of `__share_group_state`."""
        assert record.key is not None
        key, value = RECORDS.decode(record.key, record.value)
        if self.terms is None or not isinstance(key, ShareSnapshotKey | ShareUpdateKey):
            return
        share = SharePartitionKey(key.group_id, bytes(key.topic_id), key.partition)
        history = self._of(share)
        before = history.durable
        if value is None:
            history.durable = None
        elif isinstance(value, ShareSnapshotValue):
            after = _DurableState(value.state_epoch, value.start_offset)
            after.add(value.state_batches)
            history.durable = after
            if before is not None and before.state_epoch == after.state_epoch:
                self._check_change(share, before, after)
                self._check_kept(share, before, after)
        else:
            assert isinstance(value, ShareUpdateValue), value
            if before is None:
                before = _DurableState(0, -1)
            after = _DurableState(before.state_epoch, before.start, dict(before.cells))
            after.add(value.state_batches)
            if value.start_offset != -1:
                self._check_change(share, before, _DurableState(0, value.start_offset, dict(after.cells)))
                after.move_start(value.start_offset)
            history.durable = after

    def on_dead_letter(self, record: Record) -> tuple[str, int]:
        """Note a committed record of the dead-letter topic; return the partition that it comes from."""
        headers = {name: b"" if value is None else bytes(value) for name, value in record.headers}
        topic, index = headers[TOPIC_HEADER].decode(), int(headers[PARTITION_HEADER])
        name = f"{topic}-{index}"
        letter = _DeadLetter(
            None if record.value is None else bytes(record.value), int(headers[DELIVERY_COUNT_HEADER])
        )
        self._dead_letters.setdefault((name, int(headers[OFFSET_HEADER])), []).append(letter)
        self._count("dead letters")
        return topic, index

    def _check_change(self, key: SharePartitionKey, before: _DurableState, after: _DurableState) -> None:
        """Check that the start offset does not go back, and passes only what is done."""
        if after.start < before.start:
            self._report(key, after.start, f"is the start offset, which was {before.start} before")
            return
        for offset in range(max(before.start, 0), after.start):
            if self._entry(key, offset) is None or before.is_done(offset):
                continue
            cell = after.cells.get(offset)
            if (cell is None or cell[1] not in _DONE) and not self._is_used_up(key, offset):
                self._report(
                    key,
                    offset,
                    f"is not done, and the start offset moves from {before.start} to {after.start}",
                )
                return

    def _check_kept(self, key: SharePartitionKey, before: _DurableState, after: _DurableState) -> None:
        for offset, cell in before.cells.items():
            if offset >= after.start and after.cells.get(offset, (-1, 0)) < cell:
                self._report(
                    key, offset, f"has the state {after.cells.get(offset)} in a snapshot, and had {cell}"
                )
                return

    def _is_used_up(self, key: SharePartitionKey, offset: int) -> bool:
        """Whether the record was delivered as often as is allowed. The leader archives it when its last lock
        expires, whether that can be persisted or not; where it is to be a dead letter, it is persisted first.
        """
        return not self._terms.dead_letters and self._has_reached_limit(key, offset)

    def _has_reached_limit(self, key: SharePartitionKey, offset: int) -> bool:
        return self._of(key).most.get(offset, 0) >= self._terms.delivery_limit

    # Leaders

    def on_loaded(self, leader: SharePartitionLeader, now_ms: int) -> None:
        self._catch_up()
        durable = self._of(leader.key).durable or _DurableState(0, -1)
        loaded = _DurableState(durable.state_epoch, durable.start, dict(durable.cells))
        self._leaders[leader] = _KnownLeader(loaded, now_ms)
        self._of(leader.key).newest_leader = leader
        self._count("a leader loads")

    def on_acquired(
        self,
        leader: SharePartitionLeader,
        member_id: str,
        session: ShareSession | None,
        current: Callable[[str], ShareSession | None],
        acquired: Sequence[AcquiredRange],
        now_ms: int,
    ) -> None:
        """Check an acquisition. `current` gives the session that a member has with the leader now."""
        if self.terms is None:
            return
        key, history, known = leader.key, self._of(leader.key), self._leaders[leader]
        deadline_ms = now_ms + self._terms.lock_ms
        previous = -1
        for first, last, count in acquired:
            if first <= previous or last < first:
                self._report(key, first, f"is acquired after {previous}")
            previous = last
            for offset in range(first, last + 1):
                self._check_done(leader, offset, history, known, member_id)
                self._check_count(key, offset, count, history, known)
                self._check_holder(key, offset, leader, member_id, current, now_ms)
                self._check_wait(key, offset, known, now_ms)
                known.counts[offset] = count
                known.acquired_ms[offset, count] = now_ms
                history.most[offset] = max(count, history.most.get(offset, 0))
                history.holders[offset] = _Holder(leader, member_id, session, deadline_ms)
                if count > 1:
                    self._count("delivered again")

    def _check_done(
        self,
        leader: SharePartitionLeader,
        offset: int,
        history: _SharePartitionHistory,
        known: _KnownLeader,
        member_id: str,
    ) -> None:
        key = leader.key
        answer, answered_by = history.answered.get(offset, (None, None))
        if answer is not None and leader is not history.newest_leader and leader is not answered_by:
            self._count("delivered by a leader that another has followed")
        elif answer is not None:
            self._report(key, offset, f"is delivered to {member_id}, and {answer}")
        elif known.loaded.is_delivered_no_more(offset):
            self._report(key, offset, f"is delivered to {member_id}, and was done when the leader took over")

    def _check_count(
        self,
        key: SharePartitionKey,
        offset: int,
        count: int,
        history: _SharePartitionHistory,
        known: _KnownLeader,
    ) -> None:
        before = known.counts.get(offset)
        if before is None:
            before = known.loaded.count(offset)
        if count != before + 1:
            self._report(key, offset, f"has the delivery count {count}, and had {before} before")
        elif count > self._terms.delivery_limit:
            limit = self._terms.delivery_limit
            self._report(key, offset, f"has the delivery count {count}, and the limit is {limit}")

    def _check_wait(self, key: SharePartitionKey, offset: int, known: _KnownLeader, now_ms: int) -> None:
        """Check that a record is not delivered again before it has waited."""
        if not self._terms.retry_backoff_ms:
            return
        if self._of(key).freed.get(offset) == (known.counts.get(offset) or known.loaded.count(offset)):
            known.released_ms.pop(offset, None)
            return
        count = known.loaded.count(offset)
        if offset in known.released_ms:
            since_ms, count = known.released_ms.pop(offset)
        elif offset not in known.counts and count and not known.loaded.is_done(offset):
            since_ms = known.loaded_ms
        else:
            return
        waited_ms, least_ms = now_ms - since_ms, self._terms.least_retry_delay_ms(count)
        if waited_ms < least_ms:
            self._report(
                key, offset, f"is delivered again after {waited_ms} ms, and has to wait for {least_ms} ms"
            )
        self._count("waited for a retry")

    def _check_holder(
        self,
        key: SharePartitionKey,
        offset: int,
        leader: SharePartitionLeader,
        member_id: str,
        current: Callable[[str], ShareSession | None],
        now_ms: int,
    ) -> None:
        holder = self._of(key).holders.get(offset)
        if holder is None or holder.leader is not leader:
            return
        if now_ms >= holder.deadline_ms:
            self._count("a lock has expired")
        elif not holder.has_acknowledged and holder.session is current(holder.member_id):
            self._report(
                key,
                offset,
                f"is delivered to {member_id}, and {holder.member_id} holds it for another "
                f"{holder.deadline_ms - now_ms} ms",
            )

    def on_undelivered(self, leader: SharePartitionLeader, acquired: Sequence[AcquiredRange]) -> None:
        if self.terms is None:
            return
        known, history = self._leaders[leader], self._of(leader.key)
        for first, last, _ in acquired:
            for offset in range(first, last + 1):
                known.counts[offset] -= 1
                history.holders.pop(offset, None)
        self._count("taken back")

    # Members

    def on_delivered(
        self,
        key: SharePartitionKey,
        who: str,
        ranges: Sequence[AcquiredRange],
        values: Sequence[tuple[int, bytes | None]],
    ) -> None:
        """Check what a member has received: `values` are the records of the response, by offset."""
        history = self._histories.get((key.topic_id, key.partition))
        if history is None:
            self._report(key, ranges[0].first_offset, f"is delivered to {who}, and nothing is committed")
            return
        offsets = [offset for offset, _ in values]
        if offsets != sorted(set(offsets)):
            self._report(key, offsets[0], f"and those with it are delivered to {who} out of order: {offsets}")
        found = dict(values)
        for first, last, _ in ranges:
            for offset in range(first, last + 1):
                entry = history.entries.get(offset)
                if (entry is None) != (offset not in found):
                    self._report(
                        key, offset, f"is delivered to {who} as {found.get(offset)!r}, not {entry!r}"
                    )
                elif entry is not None and entry.value != found[offset]:
                    self._report(key, offset, f"is delivered to {who} as {found[offset]!r}, not {entry!r}")
                elif entry is not None and self._terms.read_committed and not entry.decided:
                    self._report(key, offset, f"is delivered to {who}, and its transaction is not committed")
        self._count("delivered", sum(last - first + 1 for first, last, _ in ranges))

    def on_acknowledging(self, sent: SentAcknowledgement) -> None:
        """Note what a member is about to acknowledge."""
        history = self._of(sent.key)
        for offset, type in sent.types.items():
            holder = history.holders.get(offset)
            if type is not AcknowledgeType.RENEW and holder and holder.member_id == sent.member_id:
                holder.has_acknowledged = True
            if type in _FINAL_TYPES:
                history.finals[offset] = history.finals.get(offset, 0) + 1
            if type is AcknowledgeType.ACCEPT:
                history.accepted.add(offset)
            elif type is AcknowledgeType.REJECT:
                history.rejected.add(offset)

    def on_answered(self, sent: SentAcknowledgement, error: ErrorCode | None) -> None:
        """Check the answer to an acknowledgement; None if it is not known."""
        history = self._of(sent.key)
        outcome = "without an answer" if error is None else error.name
        for offset, type in sent.types.items():
            self._count(f"{type.name.lower()} {outcome}")
            if type in _FINAL_TYPES and error in _REFUSALS:
                history.finals[offset] -= 1
        if error is not ErrorCode.NONE:
            return
        if not all(self._is_persisted(sent, offset) for offset in sent.types):
            self._catch_up()
        for offset, type in sent.types.items():
            if not self._is_persisted(sent, offset):
                durable = history.durable
                state = None if durable is None else durable.cells.get(offset)
                self._report(
                    sent.key, offset, f"is acknowledged as {type.name}, and persisted is {state} of {durable}"
                )
                return
            holder = history.holders.get(offset)
            if type in _FINAL_TYPES and not self._has_reached_limit(sent.key, offset):
                text = f"the {type.name} of {sent.member_id} was answered without an error"
                is_holder = holder is not None and holder.member_id == sent.member_id
                history.answered.setdefault(offset, (text, holder.leader if holder and is_holder else None))
                if type is AcknowledgeType.ACCEPT and is_holder and offset not in history.altered:
                    history.surely_accepted.add(offset)
            if type is AcknowledgeType.RELEASE and holder is not None:
                self._on_released(sent, offset, holder.leader)
            if type is AcknowledgeType.RENEW and holder and holder.member_id == sent.member_id:
                holder.deadline_ms = max(holder.deadline_ms, sent.sent_ms + self._terms.lock_ms)

    def _on_released(self, sent: SentAcknowledgement, offset: int, leader: SharePartitionLeader) -> None:
        """Note that a record waits; it may have been delivered again before the answer came."""
        known, count = self._leaders[leader], sent.counts[offset]
        if (offset, count) not in known.acquired_ms:
            return  # it has another leader by now
        if known.counts[offset] <= count + 1:
            known.released_ms[offset] = (sent.sent_ms, count)
        if known.counts[offset] == count + 1:
            self._check_wait(sent.key, offset, known, known.acquired_ms[offset, count + 1])

    # Operators

    def on_altering(self, key: SharePartitionKey, action: AcknowledgeType, records: ShareRecords) -> None:
        """Note that an operator is about to change records in delivery, held or not."""
        history = self._of(key)
        for offset in range(records.first_offset, records.last_offset + 1):
            if (holder := history.holders.get(offset)) is not None:
                holder.has_acknowledged = True
            history.altered.add(offset)
            if action is AcknowledgeType.RELEASE:
                history.freed[offset] = records.delivery_count
                continue
            history.finals[offset] = history.finals.get(offset, 0) + 1
            # What is skipped is done without a dead letter, as what is accepted.
            (history.rejected if action is AcknowledgeType.REJECT else history.accepted).add(offset)

    def on_altered(self, key: SharePartitionKey, action: AcknowledgeType, records: ShareRecords) -> None:
        """Check that all of these records are changed for good, as the answer to an operator says."""
        history = self._of(key)
        self._catch_up()
        for offset in range(records.first_offset, records.last_offset + 1):
            self._count(f"operator: {action.name.lower()}")
            types, counts = {offset: action}, {offset: records.delivery_count}
            if not self._is_persisted(SentAcknowledgement(key, "", types, counts, 0), offset):
                self._report(key, offset, f"is changed by an operator ({action.name}), and not persisted")
            elif action is not AcknowledgeType.RELEASE:
                history.answered.setdefault(offset, (f"an operator's {action.name} was answered", None))
                if action is AcknowledgeType.GAP:
                    history.surely_accepted.add(offset)

    def _is_persisted(self, sent: SentAcknowledgement, offset: int) -> bool:
        """Whether the durable state has what a member has acknowledged.

        Acknowledgements below the start offset are answered without an error and without an effect, and the
        start offset may have passed records that were delivered too often, or that no member is to read.
        """
        type = sent.types[offset]
        if type is AcknowledgeType.RENEW or self._entry(sent.key, offset) is None:
            return True
        durable = self._of(sent.key).durable
        if durable is None or durable.is_delivered_no_more(offset):
            return True
        if self._has_reached_limit(sent.key, offset):
            return True
        return type is AcknowledgeType.RELEASE and durable.count(offset) >= sent.counts[offset]

    # The end

    def reason_not_drained(self, partitions: Sequence[tuple[bytes, int]]) -> str | None:
        """The first record of these partitions that is not done; None if all are. Where an open transaction
        may still be committed, there may be more of them.
        """
        if self._terms.read_committed:
            for key in partitions:
                history = self._histories.get(key)
                if history is not None and history.last_stable_offset < history.end:
                    return f"{history.name} has an open transaction"
        return next((f"{entry!r} of {name} is not done" for name, _, entry in self._left(partitions)), None)

    def verdict(self, partitions: Sequence[tuple[bytes, int]]) -> Iterator[str]:
        """The broken guarantees, one line for each."""
        for name, key, entry in self._left(partitions):
            yield f"share group {key.group_id}: {entry!r} of {name} is not done at the end"
        for topic_id, index in partitions:
            key = SharePartitionKey(SHARE_GROUP, topic_id, index)
            history = self._of(key)
            for entry in self._entries(topic_id, index):
                if not history.finals.get(entry.offset) and not self._has_reached_limit(key, entry.offset):
                    yield (
                        f"share group {key.group_id}: {entry!r} of {self._name(key)} is done, and no member "
                        f"has accepted or rejected it; its highest delivery count was "
                        f"{history.most.get(entry.offset, 0)}"
                    )
            if self._terms.dead_letters:
                yield from self._wrong_dead_letters(key)

    def _wrong_dead_letters(self, key: SharePartitionKey) -> Iterator[str]:
        """What the dead letters of a partition are not as the history says."""
        history, name = self._of(key), self._name(key)
        is_created_again = sum(each.name == name for each in self._histories.values()) > 1
        for entry in self._entries(key.topic_id, key.partition):
            offset = entry.offset
            letters = self._dead_letters.get((name, offset), [])
            if len(letters) > 1 and not is_created_again:
                problem = f"has {len(letters)} dead letters"
            elif not letters and offset not in history.accepted:
                problem = "is done, no member has accepted it, and it has no dead letter"
            elif letters and not is_created_again:
                problem = self._wrong_dead_letter(key, entry, letters[0])
            else:
                problem = ""
            if problem:
                yield f"share group {key.group_id}: {entry!r} of {name} {problem}"

    def _wrong_dead_letter(self, key: SharePartitionKey, entry: CommittedRecord, letter: _DeadLetter) -> str:
        history, offset = self._of(key), entry.offset
        if offset in history.surely_accepted:
            return "has a dead letter, and was accepted"
        if offset not in history.rejected and not self._has_reached_limit(key, offset):
            return "has a dead letter, and was neither rejected nor delivered as often as the limit allows"
        if letter.value != (entry.value if self._terms.copies_dead_letters else None):
            return f"has a dead letter with {letter.value!r}"
        if letter.deliveries > history.most.get(offset, 0):
            return f"has a dead letter with {letter.deliveries} deliveries, more than there were"
        return ""

    def _entries(self, topic_id: bytes, index: int) -> list[CommittedRecord]:
        history = self._histories.get((topic_id, index))
        if history is None:
            return []
        return history.visible() if self._terms.read_committed else list(history.entries.values())

    def _left(
        self, partitions: Sequence[tuple[bytes, int]]
    ) -> Iterator[tuple[str, SharePartitionKey, CommittedRecord]]:
        for topic_id, index in partitions:
            key = SharePartitionKey(SHARE_GROUP, topic_id, index)
            durable = self._of(key).durable
            for entry in self._entries(topic_id, index):
                done = durable is not None and durable.is_done(entry.offset)
                if not done and not self._is_used_up(key, entry.offset):
                    yield self._name(key), key, entry


class ShareWatcher:
    """Observes the share partitions of one process of a node for the checker."""

    def __init__(self, checker: ShareChecker, manager: SharePartitionManager) -> None:
        self._checker = checker
        self._manager = manager
        manager.listener = self

    def on_loaded(self, leader: SharePartitionLeader, /) -> None:
        self._checker.on_loaded(leader, self._manager.now_ms())

    def on_acquired(
        self, leader: SharePartitionLeader, member_id: str, acquired: Sequence[AcquiredRange], /
    ) -> None:
        def current(member_id: str) -> ShareSession | None:
            return self._manager.sessions.get(ShareSessionKey(leader.key.group_id, member_id))

        self._checker.on_acquired(
            leader, member_id, current(member_id), current, acquired, self._manager.now_ms()
        )

    def on_undelivered(self, leader: SharePartitionLeader, acquired: Sequence[AcquiredRange], /) -> None:
        self._checker.on_undelivered(leader, acquired)
