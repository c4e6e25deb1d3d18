"""The records of one partition that are in delivery to one share group (Kafka's `SharePartition`).

The leader of a partition keeps one of these for each share group that reads it. From the share partition
start offset (SPSO) up to the end offset each record has a state: available, acquired by a member,
acknowledged, or archived. What is below the start is done; what is above the end was not delivered yet.

Records are kept by batch, as they were fetched, and a batch has one state as long as all of its records
have: only where they differ does it get arrays with one entry for each offset. Nothing here walks over all
that is in delivery: batches are found by bisection, batches with available records are listed apart
(`_available`), and the acquisitions of a member are found by the member. A fetch costs what it acquires and
an acknowledgement what it covers, however many records are in delivery.

An acquisition is a lock with a deadline. Locks of one duration expire in the order in which they were
taken, so a dict for each duration, in the order of insertion, is all that timing needs.

An acknowledgement changes states at once, but provisionally (`StateTransition`): the caller persists the
batches of the transition and calls `complete` with the outcome, and until then the records are neither
available nor can they be acknowledged again. A transition that could not be persisted is taken back: the
records are acquired again, or available if their lock has expired meanwhile. The start offset moves when a
transition is complete.

Where the group has a backoff for retries, a record that a member has released waits before it is available
again. It waits in memory only, and is persisted as available: a leader that loads the state has all records
that were delivered before wait from then on. Runs of records wait together, in the order of their ends.

Where the group has a dead-letter topic, a record that is rejected, or was delivered too often, is first
persisted as archiving (`dead_letters`). Once it is in the dead-letter topic it is archived; the start offset
waits for that.

The object is deterministic: it does no I/O, and the time is passed in.

Invariants:

* batches do not overlap; the end offset is the last offset of the last one, unless there are none: then
  start and end are both the next offset to fetch, unless the start of the log has passed them;
* each record that is acquired, or in a transition, has exactly one lock, and `AcquisitionLock.held` counts
  the records of a lock; a lock that holds none is forgotten;
* `delivery_complete_count` is the number of records from the start offset on that are acknowledged or
  archived, provisionally or not;
* each batch with an available record is in `_available`;
* each record that waits is in one run of `_waits`;
* each record that is archiving is in one range of `dead_letters`, or in a transition that is being persisted.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from ottla.coordinator.share.persister import PersisterStateBatch, WriteState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.share import AcknowledgeType, DeadLetterPlace, ShareAcquireMode
from ottla.runtime import invariants


class RecordState(IntEnum):
    """The states of a record, with their numbers in `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class InFlightState(IntEnum):
    """What a record in delivery does, for operators."""

    AVAILABLE = 0
    HELD = 1
    # For its dead letter to be written.
    DEAD = 3
    # For its next delivery.
    WAITING = 16


# Members of an enum take longer to find, and compare slower.
_AVAILABLE: Final = int(RecordState.AVAILABLE)
_ACQUIRED: Final = int(RecordState.ACQUIRED)
_ACKNOWLEDGED: Final = int(RecordState.ACKNOWLEDGED)
_ARCHIVING: Final = int(RecordState.ARCHIVING)
_ARCHIVED: Final = int(RecordState.ARCHIVED)
# Added to a state that is not persisted yet.
_PENDING: Final = 0x80
# Of a record that is not to be delivered again yet; available where it is persisted.
_WAITING: Final = 0x10
_DONE: Final = bytes((_ACKNOWLEDGED, _ARCHIVED))
_IN_FLIGHT_STATES: Final = {
    _AVAILABLE: InFlightState.AVAILABLE,
    _ACQUIRED: InFlightState.HELD,
    _ARCHIVING: InFlightState.DEAD,
    _WAITING: InFlightState.WAITING,
}
_RENEW: Final = int(AcknowledgeType.RENEW)
_RELEASE: Final = int(AcknowledgeType.RELEASE)
# Of which an operator may have the states changed; what is being persisted is no longer as it was.
_ALTERABLE: Final = bytes((_ACQUIRED, _AVAILABLE, _WAITING))
# The member of the locks that a change by an operator has until it is persisted; no member has this id.
_OPERATOR: Final = ""
# Records of one batch whose locks, or the ends of whose waits, are compared at a time.
_ALIKE_AT_A_TIME: Final = 1_024
_REJECT: Final = int(AcknowledgeType.REJECT)
_STATE_OF_TYPE: Final = (_ARCHIVED, _ACKNOWLEDGED, _AVAILABLE, _ARCHIVING)
_MAX_COUNT: Final = 255
_NO_OFFSET: Final = 1 << 63
_MAX_DOUBLINGS: Final = 40
# Of Knuth's multiplicative hash.
_HASH_FACTOR: Final = 2_654_435_761
_BY_FIRST: Final = attrgetter("first")
_RUN: Final = re.compile(rb"(.)\1*+", re.DOTALL)

NOT_ACQUIRED: Final = "The batch cannot be acknowledged. The batch is not in the acquired state."


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """The settings of a share group that its leaders use: the group's own, or those of the broker."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2000
    renew_acknowledge_enable: bool = True
    read_committed: bool = False
    auto_offset_reset: str = "latest"
    # How long a released record waits after its first delivery; 0 if it does not. It is doubled with each
    # further delivery where there is a maximum above it.
    retry_backoff_ms: int = 0
    retry_backoff_max_ms: int = 0
    # The topic that records go to which could not be processed; empty if there is none.
    dead_letter_topic: str = ""
    dead_letters_copy_records: bool = False

    @property
    def throttle_delivery_count(self) -> int:
        """The number of deliveries from which on a batch is delivered in smaller and smaller parts, so that
        one bad record does not have all others of its batch archived.
        """
        return max(2, -(-self.delivery_count_limit // 2))

    def retry_delay_ms(self, delivery_count: int, offset: int) -> int:
        """How long records from an offset on wait after so many deliveries. A delay that grows is spread by a
        fifth up and down, by the offset: what has failed together does not come back all at once.
        """
        base, most = self.retry_backoff_ms, self.retry_backoff_max_ms
        if most <= base:
            return base
        delay_ms = min(base << min(max(delivery_count - 1, 0), _MAX_DOUBLINGS), most)
        spread = ((offset * _HASH_FACTOR) >> 16) % 401
        return max(1, delay_ms * (800 + spread) // 1000)


class LogBatch(NamedTuple):
    """The offsets of a batch of the log, first and last included."""

    base_offset: int
    last_offset: int


class AcquiredRange(NamedTuple):
    """Offsets that a member has acquired, first and last included, and how often they were delivered."""

    first_offset: int
    last_offset: int
    delivery_count: int


class DeadLetters(NamedTuple):
    """Records that are to go to the dead-letter topic, first and last included: how often they were
    delivered, whether a member has rejected them, and whether it is persisted that they are archiving.
    """

    first_offset: int
    last_offset: int
    delivery_count: int
    is_rejected: bool
    is_persisted: bool = True


class RecordsInFlight(NamedTuple):
    """Records in delivery that are alike, first and last included.

    `age_ms` is for how long they are held, or wait for a retry, and `left_ms` when that ends; -1 where there
    is no such time.
    """

    first_offset: int
    last_offset: int
    state: InFlightState
    delivery_count: int
    member_id: str | None
    age_ms: int
    left_ms: int


class InFlightPage(NamedTuple):
    """Some of the records in delivery, and from which offset on there may be more; None if there are none."""

    records: list[RecordsInFlight]
    next_offset: int | None


class AlteredRecords(NamedTuple):
    """What an operator has changed: what of it is to be persisted, how many records it is, and from which
    offset on there is more to do; None if all was looked at.
    """

    transition: StateTransition
    size: int
    next_offset: int | None


class AcknowledgedOffsets(Protocol):
    """A range of offsets that a member acknowledges, with one type for all or one for each."""

    @property
    def first_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def acknowledge_types(self) -> Sequence[int]: ...


class AcquisitionLock:
    """The hold of a member on records of one batch that it acquired at one time."""

    __slots__ = ("batch", "deadline_ms", "duration_ms", "expired", "first", "held", "last", "member_id")

    def __init__(
        self, batch: InFlightBatch, first: int, last: int, member_id: str, now_ms: int, duration_ms: int
    ) -> None:
        self.batch = batch
        # Its records are among these; those that refer to it are its own.
        self.first = first
        self.last = last
        self.member_id = member_id
        self.duration_ms = duration_ms
        self.deadline_ms = now_ms + duration_ms
        # Its records, also those in a transition.
        self.held = 0
        self.expired = False


class InFlightBatch:
    """The state of a batch in delivery: one for all of its records, or one for each."""

    __slots__ = (
        "count",
        "counts",
        "first",
        "last",
        "listed",
        "lock",
        "locks",
        "max_count",
        "state",
        "states",
        "wait",
        "waits",
    )

    def __init__(self, first: int, last: int, state: int, count: int) -> None:
        self.first: Final = first
        self.last: Final = last
        # For all records, as long as `states` is None.
        self.state = state
        self.count = count
        self.lock: AcquisitionLock | None = None
        # For each record.
        self.states: bytearray | None = None
        self.counts = bytearray()
        self.locks: list[AcquisitionLock | None] = []
        # Of records that wait: since when, and until when. For all records; and for each once some wait
        # apart: the beginnings, then the ends.
        self.wait = (0, 0)
        self.waits: array[int] | None = None
        # No record of it was delivered more often.
        self.max_count = count
        # Whether it is in the list of batches with available records.
        self.listed = False

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def split(self) -> bytearray:
        """Have a state for each record."""
        if self.states is None:
            size = self.size
            self.states = bytearray((self.state,)) * size
            self.counts = bytearray((self.count,)) * size
            self.locks = [self.lock] * size
            self.lock = None
            if self.state == _WAITING:
                self.note_wait(self.first, self.last, *self.wait)
        return self.states

    def note_wait(self, first: int, last: int, since_ms: int, until_ms: int) -> None:
        """Note from when to when records wait; the batch is split unless they are all of it."""
        size = self.size
        if self.states is None:
            self.wait = since_ms, until_ms
            return
        if self.waits is None:
            self.waits = array("q", bytes(16 * size))
        begin, end = first - self.first, last - self.first + 1
        self.waits[begin:end] = array("q", (since_ms,)) * (end - begin)
        self.waits[size + begin : size + end] = array("q", (until_ms,)) * (end - begin)

    def wait_of(self, offset: int) -> tuple[int, int]:
        """From when to when a record waits."""
        if self.waits is None:
            return self.wait
        at = offset - self.first
        return self.waits[at], self.waits[self.size + at]

    def due_waits(self, first: int, last: int, now_ms: int) -> Iterator[tuple[int, int]]:
        """Those of these offsets whose wait, if they wait, has ended, as ranges."""
        first, last = max(first, self.first), min(last, self.last)
        if self.waits is None:
            if self.wait[1] <= now_ms:
                yield first, last
            return
        ends = self.waits[self.size + first - self.first : self.size + last - self.first + 1]
        if ends[0] <= now_ms and ends == array("q", (ends[0],)) * len(ends):
            yield first, last  # as nearly always; there may be a million of them
            return
        for is_due, alike in groupby(ends, lambda until_ms: until_ms <= now_ms):
            count = sum(1 for _ in alike)
            if is_due:
                yield first, first + count - 1
            first += count

    def first_available(self) -> int | None:
        """The offset of the first record that can be acquired."""
        if self.states is None:
            return self.first if self.state == _AVAILABLE else None
        found = self.states.find(_AVAILABLE)
        return None if found < 0 else self.first + found

    def first_not_done(self) -> int | None:
        """The offset of the first record that is not acknowledged or archived for good; None if all are."""
        if self.states is None:
            return None if self.state in _DONE else self.first
        left = len(self.states.lstrip(_DONE))
        return None if left == 0 else self.last - left + 1

    def done_between(self, first: int, last: int) -> int:
        """Count the records among these that are acknowledged or archived, provisionally or not."""
        first, last = max(first, self.first), min(last, self.last)
        if first > last:
            return 0
        if self.states is None:
            return last - first + 1 if self.state & ~_PENDING in _DONE else 0
        part = self.states[first - self.first : last - self.first + 1]
        return sum(part.count(state | pending) for state in _DONE for pending in (0, _PENDING))


class StateTransition:
    """A change of states that is not persisted yet, by ranges of records with the same outcome."""

    __slots__ = (
        "dead_letter_place",
        "delivered_too_often",
        "ranges",
        "rejected",
        "waited",
        "waits_since_ms",
    )

    def __init__(
        self, waits_since_ms: int | None = None, *, dead_letter_place: DeadLetterPlace | None = None
    ) -> None:
        self.ranges: list[tuple[InFlightBatch, PersisterStateBatch]] = []
        # The first offsets of ranges that a member has rejected, and that go to the dead-letter topic.
        self.rejected: set[int] = set()
        # Records that are archived instead of made available.
        self.delivered_too_often = 0
        # From when on the released records wait; None if they do not.
        self.waits_since_ms = waits_since_ms
        # Records that waited when an operator changed them, from when to when.
        self.waited: list[tuple[InFlightBatch, int, int, int, int]] = []
        # Where dead letters are to be written from now on; None if that does not change.
        self.dead_letter_place = dead_letter_place

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def add(
        self,
        batch: InFlightBatch,
        first: int,
        last: int,
        state: int,
        count: int,
        *,
        is_rejected: bool = False,
    ) -> None:
        ranges = self.ranges
        is_rejected = is_rejected and state == _ARCHIVING
        if ranges:
            before, known = ranges[-1]
            if (
                before is batch
                and known == (known.first_offset, first - 1, state, count)
                and (known.first_offset in self.rejected) == is_rejected
            ):
                ranges[-1] = batch, PersisterStateBatch(known.first_offset, last, state, count)
                return
        ranges.append((batch, PersisterStateBatch(first, last, state, count)))
        if is_rejected:
            self.rejected.add(first)

    @property
    def batches(self) -> list[PersisterStateBatch]:
        """What is to be persisted."""
        return [each for _, each in self.ranges]


class _Acquisition:
    """One `acquire`: what is asked for, and what was acquired so far."""

    __slots__ = (
        "base",
        "batch_size",
        "count",
        "last",
        "log_batches",
        "member_id",
        "most",
        "now_ms",
        "record_limit",
        "result",
    )

    def __init__(
        self,
        member_id: str,
        mode: ShareAcquireMode,
        batch_size: int,
        log_batches: Sequence[LogBatch],
        last: int,
        most: int,
        now_ms: int,
    ) -> None:
        self.member_id = member_id
        self.record_limit = mode is ShareAcquireMode.RECORD_LIMIT
        self.batch_size = max(1, batch_size)
        self.log_batches = log_batches
        self.base = log_batches[0].base_offset
        self.last = last
        # Nothing more is acquired once `count` has reached it.
        self.most = most
        self.now_ms = now_ms
        self.count = 0
        self.result: list[AcquiredRange] = []

    def last_offset_of_batch_with(self, offset: int) -> int:
        """The end of the batch of the log that has an offset; the offset if none has it."""
        index = bisect_right(self.log_batches, (offset, _NO_OFFSET)) - 1
        return max(offset, self.log_batches[index].last_offset) if index >= 0 else offset


class ShareRecordCounts:
    """What share partitions count together: a reader of the sums does not have to walk over them."""

    __slots__ = ("archived", "dead_letters", "expired")

    def __init__(self) -> None:
        # Records that were written to dead-letter topics.
        self.dead_letters = 0
        # Records whose locks have expired.
        self.expired = 0
        # Records that were archived as their deliveries had reached the limit.
        self.archived = 0


class SharePartition:
    __slots__ = (
        "_available",
        "_batches",
        "_by_member",
        "_firsts",
        "_gap_end",
        "_gap_start",
        "_locks",
        "_waits",
        "counts",
        "dead_letter_place",
        "dead_letters",
        "delivery_complete_count",
        "end_offset",
        "settings",
        "start_offset",
        "state_epoch",
        "waiting_records",
    )

    def __init__(
        self,
        start_offset: int,
        state_epoch: int,
        settings: ShareGroupSettings,
        batches: Iterable[PersisterStateBatch] = (),
        *,
        counts: ShareRecordCounts | None = None,
        dead_letter_place: DeadLetterPlace | None = None,
    ) -> None:
        """Begin with the state that was persisted. KafkaError UNKNOWN_SERVER_ERROR if it contradicts itself.

        Records between its batches were acquired before, by members that this leader does not know: they are
        to be delivered again (`_gap_start`).
        """
        self.settings = settings
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.state_epoch: Final = state_epoch
        self.delivery_complete_count = 0
        self.counts: Final = ShareRecordCounts() if counts is None else counts
        # The batches by their first offsets, which are also in order.
        self._batches: dict[int, InFlightBatch] = {}
        self._firsts: list[int] = []
        # In order, the first offsets of batches with available records; some may have none any longer.
        self._available: list[int] = []
        # Below `_gap_end`, offsets between batches from `_gap_start` on are to be fetched; None if there are
        # no such gaps, as all that was persisted follows each other or has been fetched since.
        self._gap_start: int | None = None
        self._gap_end = -1
        # By duration, each in the order of deadlines; and by member.
        self._locks: dict[int, dict[AcquisitionLock, None]] = {}
        self._by_member: dict[str, dict[AcquisitionLock, None]] = {}
        # When a wait ends, and the first and last of its offsets: a heap. Some may not wait any longer.
        self._waits: list[tuple[int, int, int]] = []
        # The records that are not to be delivered again yet.
        self.waiting_records = 0
        # What is archiving, by its first offset.
        self.dead_letters: dict[int, DeadLetters] = {}
        # Where they are written, as it is persisted: those that are not archived yet may be there already,
        # and nowhere else. None if none was ever written.
        self.dead_letter_place = dead_letter_place
        self._load(batches)

    def _load(self, batches: Iterable[PersisterStateBatch]) -> None:
        previous = self.start_offset - 1
        for first, last, state, count in batches:
            if first <= previous or last < first or state not in (_AVAILABLE, _ARCHIVING, *_DONE):
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"Failed to initialize the share partition: the persisted batch {first}-{last} in state "
                    f"{state} is invalid after offset {previous}",
                )
            if self._gap_start is None and first > previous + 1:
                self._gap_start = previous + 1
            previous = last
            batch = InFlightBatch(first, last, state, min(count, _MAX_COUNT))
            self._batches[first] = batch
            self._firsts.append(first)
            if state == _AVAILABLE:
                self._list_available(batch)
            elif state == _ARCHIVING:
                is_rejected = count < self.settings.delivery_count_limit
                self.dead_letters[first] = DeadLetters(first, last, batch.count, is_rejected)
            else:
                self.delivery_complete_count += batch.size
        if self._firsts:
            self.end_offset = self._gap_end = previous
            self._advance_start()

    # What to fetch

    @property
    def in_flight_records(self) -> int:
        """The records from the start to the end offset, with those that are done but follow others that are
        not.
        """
        return self.end_offset - self.start_offset + 1 if self._firsts else 0

    @property
    def in_flight_batches(self) -> int:
        return len(self._firsts)

    @property
    def acquired_records(self) -> int:
        """The records that members hold."""
        return sum(lock.held for locks in self._by_member.values() for lock in locks)

    @property
    def dead_records(self) -> int:
        """The records whose dead letters are not written yet."""
        return sum(each.last_offset - each.first_offset + 1 for each in self.dead_letters.values())

    def has_locks_of(self, member_id: str) -> bool:
        """Whether a member holds records."""
        return member_id in self._by_member

    def next_fetch_offset(self) -> int:
        """The offset of the first record that can be acquired, or that was not fetched yet."""
        if not self._firsts or self.start_offset > self._last_batch.last:
            return self.end_offset
        available, gap = self._first_available(), self._first_gap()
        if available is not None and gap is not None:
            return min(available, gap)
        if available is not None:
            return available
        return self.end_offset + 1 if gap is None else gap

    def can_acquire_records(self) -> bool:
        """Whether a fetch may acquire something: records that were delivered before, or new ones within the
        limit on records in delivery.
        """
        return (
            self.next_fetch_offset() != self.end_offset + 1
            or self.in_flight_records < self.settings.partition_max_record_locks
        )

    def _first_available(self) -> int | None:
        listed = self._available
        while listed:
            batch = self._batches.get(listed[0])
            if batch is not None:
                found = batch.first_available()
                if found is not None:
                    return found
                batch.listed = False
            del listed[0]
        return None

    def _first_gap(self) -> int | None:
        gap = self._gap_start
        if gap is None:
            return None
        firsts = self._firsts
        if self._gap_end != self.end_offset:
            self._gap_start = None
            return None
        index = bisect_right(firsts, gap) - 1
        if index >= 0:
            gap = max(gap, self._batches[firsts[index]].last + 1)
        gap = max(gap, self.start_offset)
        index = bisect_left(firsts, gap)
        while index < len(firsts) and firsts[index] == gap:
            gap = self._batches[gap].last + 1
            index += 1
        self._gap_start = gap if index < len(firsts) else None
        return self._gap_start

    @property
    def _last_batch(self) -> InFlightBatch:
        return self._batches[self._firsts[-1]]

    def _list_available(self, batch: InFlightBatch) -> None:
        if not batch.listed:
            batch.listed = True
            insort(self._available, batch.first)

    # Acquiring

    def acquire(
        self,
        member_id: str,
        mode: ShareAcquireMode,
        batch_size: int,
        max_records: int,
        fetch_offset: int,
        log_batches: Sequence[LogBatch],
        now_ms: int,
        aborted: Sequence[LogBatch] = (),
    ) -> list[AcquiredRange]:
        """Acquire records for a member out of what a read of the log from `fetch_offset` has found.

        Whole batches are acquired, so there may be more records than `max_records`, unless the mode is
        RECORD_LIMIT. `aborted` has the batches of aborted transactions, which are archived instead where
        the group reads committed records only.
        """
        if max_records <= 0 or not log_batches:
            return []
        last = log_batches[-1].last_offset
        most = min(max_records, self.settings.partition_max_record_locks - self.in_flight_records)
        if most <= 0:
            # Only what was in delivery before: nothing beyond the end.
            if fetch_offset > self.end_offset:
                return []
            most = min(max_records, self.end_offset - fetch_offset + 1)
            last = min(last, self.end_offset)
        self._archive_missing(fetch_offset, log_batches[0].base_offset)
        request = _Acquisition(member_id, mode, batch_size, log_batches, last, most, now_ms)
        self._acquire(request)
        acquired = request.result
        if acquired:
            self._move_gap(acquired[-1].last_offset + 1)
            if aborted:
                acquired = self._archive_aborted(acquired, aborted)
        if invariants.thorough:
            self.check_invariants()
        return acquired

    def _acquire(self, request: _Acquisition) -> None:
        base, last, firsts = max(request.base, self.start_offset), request.last, self._firsts
        index = bisect_right(firsts, base) - 1
        if index >= 0 and self._batches[firsts[index]].last >= base:
            base = firsts[index]
        low, high = bisect_left(firsts, base), bisect_right(firsts, last)
        if low >= high:
            self._acquire_new(request, base, last)
            return
        end = self._batches[firsts[high - 1]].last
        if self._has_gaps:
            self._acquire_with_gaps(request, base, firsts[low:high])
        else:
            self._acquire_listed(request, base)
        if request.count < request.most and end < last:
            self._acquire_new(request, end + 1, last)

    def _acquire_listed(self, request: _Acquisition, base: int) -> None:
        """Acquire what is available of the batches from `base` on."""
        listed, batches, last = self._available, self._batches, request.last
        begin = at = bisect_left(listed, base)
        while at < len(listed) and listed[at] <= last and request.count < request.most:
            batch = batches.get(listed[at])
            if batch is not None:
                self._acquire_batch(request, batch)
            at += 1
        left = []
        for first in listed[begin:at]:
            batch = batches.get(first)
            if batch is not None and batch.listed:
                batch.listed = batch.first_available() is not None
                if batch.listed:
                    left.append(first)
        listed[begin:at] = left

    def _acquire_with_gaps(self, request: _Acquisition, base: int, firsts: list[int]) -> None:
        """Acquire what is available of some batches, and what is between them and was not fetched yet."""
        gap = base
        for first in firsts:
            batch = self._batches[first]
            if gap < first and self._has_gaps:
                self._acquire_new(request, gap, first - 1)
            gap = batch.last + 1
            if request.count >= request.most:
                break
            self._acquire_batch(request, batch)

    def _acquire_batch(self, request: _Acquisition, batch: InFlightBatch) -> None:
        """Acquire what is available of a batch."""
        settings = self.settings
        left = request.most - request.count
        is_throttled = batch.max_count >= settings.throttle_delivery_count and self._is_throttled(
            batch, request.base, request.last
        )
        if is_throttled and request.count > 0:
            # It is delivered alone, by the next fetch.
            request.most = 0
            return
        is_whole = request.base <= batch.first and batch.last <= request.last
        if (
            not is_whole
            or batch.states is not None
            or is_throttled
            or (request.record_limit and batch.size > left)
        ):
            if batch.states is None and batch.state != _AVAILABLE:
                return
            acquired = self._acquire_offsets(request, batch, left)
            request.count += acquired
            if is_throttled and acquired:
                request.most = 0
        elif batch.state == _AVAILABLE:
            batch.state = _ACQUIRED
            batch.count = batch.max_count = min(batch.count + 1, _MAX_COUNT)
            batch.lock = self._lock(batch, batch.first, batch.last, request.member_id, request.now_ms)
            batch.lock.held = batch.size
            request.result.append(AcquiredRange(batch.first, batch.last, batch.count))
            request.count += batch.size

    def _is_throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Whether a record that would be acquired was delivered so often that few are to be delivered with
        it.
        """
        limit = self.settings.throttle_delivery_count
        if batch.states is None:
            return batch.state & ~_PENDING == _AVAILABLE and batch.count >= limit
        low, high = max(0, first - batch.first), min(last, batch.last) - batch.first
        return any(
            count >= limit and state & ~_PENDING == _AVAILABLE
            for state, count in zip(batch.states[low : high + 1], batch.counts[low : high + 1], strict=True)
        )

    def _acquire_offsets(self, request: _Acquisition, batch: InFlightBatch, left: int) -> int:
        """Acquire the available records of a batch one by one; return how many."""
        states, counts, locks = batch.split(), batch.counts, batch.locks
        limit, throttle_from = self.settings.delivery_count_limit, self.settings.throttle_delivery_count
        end = min(request.last, batch.last) - batch.first + 1
        at = states.find(_AVAILABLE, max(0, request.base - batch.first), end)
        if at < 0:
            return 0
        lock = self._lock(batch, batch.first + at, batch.first + at, request.member_id, request.now_ms)
        most = left if request.record_limit else batch.size
        throttled_most = 0
        result = request.result
        begin = len(result)
        while at >= 0:
            count, offset = counts[at], batch.first + at
            is_last_attempt = limit > 2 and count >= limit - 1
            if is_last_attempt and lock.held:
                break  # it is delivered alone, by the next fetch
            if count >= throttle_from and not throttled_most:
                throttled_most = max(1, batch.size >> (count - throttle_from + 1))
                most = min(most, throttled_most)
            count = min(count + 1, _MAX_COUNT)
            states[at], counts[at], locks[at] = _ACQUIRED, count, lock
            lock.held += 1
            lock.last = offset
            batch.max_count = max(batch.max_count, count)
            if len(result) > begin and result[-1] == (result[-1].first_offset, offset - 1, count):
                result[-1] = AcquiredRange(result[-1].first_offset, offset, count)
            else:
                result.append(AcquiredRange(offset, offset, count))
            if is_last_attempt or lock.held >= most:
                break
            at = states.find(_AVAILABLE, at + 1, end)
        return lock.held

    def _acquire_new(self, request: _Acquisition, first: int, last: int) -> None:
        """Acquire offsets that are in no batch yet."""
        first = max(first, self.start_offset)
        if not self._firsts:
            first = max(first, self.end_offset)
        most = request.most - request.count
        if first > last or most <= 0:
            return
        if last - first + 1 > most:
            last = min(last, request.last_offset_of_batch_with(first + most - 1))
        if request.record_limit:
            self._add_batch(request, first, last, most)
        else:
            for part, end in _parts(request.log_batches, first, last, request.batch_size):
                self._add_batch(request, part, end, end - part + 1)
        if self._firsts[0] == first:
            self.start_offset = first
        self.end_offset = max(self.end_offset, last)

    def _add_batch(self, request: _Acquisition, first: int, last: int, most: int) -> None:
        """Add a batch of which the first `most` records are acquired; the others are available."""
        batch = InFlightBatch(first, last, _ACQUIRED, 1)
        self._batches[first] = batch
        if not self._firsts or first > self._firsts[-1]:
            self._firsts.append(first)
        else:
            insort(self._firsts, first)
        size = min(batch.size, most)
        lock = self._lock(batch, first, first + size - 1, request.member_id, request.now_ms)
        lock.held = size
        batch.lock = lock
        if size < batch.size:
            states = batch.split()
            rest = batch.size - size
            states[size:] = bytes(rest)
            batch.counts[size:] = bytes(rest)
            batch.locks[size:] = [None] * rest
            self._list_available(batch)
        request.result.append(AcquiredRange(first, first + size - 1, 1))
        request.count += size

    @property
    def _has_gaps(self) -> bool:
        return self._gap_start is not None and self._gap_end == self.end_offset

    def _archive_missing(self, fetch_offset: int, base_offset: int) -> None:
        """Archive available records that a read did not find, as compaction has removed them."""
        if fetch_offset >= base_offset or not self._firsts:
            return
        archived = 0
        for batch in self._overlapping(fetch_offset, base_offset - 1):
            archived += self._archive(batch, fetch_offset, base_offset - 1, _AVAILABLE)
            archived += self._archive(batch, fetch_offset, base_offset - 1, _WAITING)
        self.delivery_complete_count += archived
        self._move_gap(base_offset)
        self._advance_start()

    def _archive_aborted(
        self, acquired: list[AcquiredRange], aborted: Sequence[LogBatch]
    ) -> list[AcquiredRange]:
        """Archive what belongs to aborted transactions; return what is left."""
        left: list[AcquiredRange] = []
        index = 0
        for first, last, count in acquired:
            while index < len(aborted) and aborted[index].last_offset < first:
                index += 1
            at = index
            while at < len(aborted) and aborted[at].base_offset <= last:
                base, end = max(aborted[at].base_offset, first), min(aborted[at].last_offset, last)
                for batch in self._overlapping(base, end):
                    self.delivery_complete_count += self._archive(batch, base, end, _ACQUIRED)
                if first < base:
                    left.append(AcquiredRange(first, base - 1, count))
                first = end + 1
                at += 1
            if first <= last:
                left.append(AcquiredRange(first, last, count))
        self._advance_start()
        return left

    def _archive(self, batch: InFlightBatch, first: int, last: int, state: int) -> int:
        """Archive the records of a batch among these that are in a state, provisionally or not; return how
        many are, from the start offset on.
        """
        first, last = max(first, batch.first), min(last, batch.last)
        if batch.states is None:
            if batch.state & ~_PENDING != state:
                return 0
            if first == batch.first and last == batch.last:
                self._unlock(batch.lock, batch.size)
                self.waiting_records -= batch.size * (batch.state == _WAITING)
                batch.state, batch.lock = _ARCHIVED, None
                return max(0, last - max(first, self.start_offset) + 1)
        states, counted = batch.split(), 0
        for offset in range(first, last + 1):
            at = offset - batch.first
            if states[at] & ~_PENDING == state:
                self.waiting_records -= states[at] == _WAITING
                states[at] = _ARCHIVED
                lock, batch.locks[at] = batch.locks[at], None
                self._unlock(lock, 1)
                counted += offset >= self.start_offset
        return counted

    def release_undelivered(self, member_id: str, acquired: Iterable[AcquiredRange]) -> None:
        """Take back an acquisition whose records are not sent to the member after all. Records whose lock has
        expired since may be another member's by now: they stay as they are. Those that the start of the log
        has passed meanwhile are archived.
        """
        start = self.start_offset
        for first, last, count in acquired:
            for batch in self._overlapping(first, last):
                states = batch.split()
                for offset in range(max(first, batch.first), min(last, batch.last) + 1):
                    at = offset - batch.first
                    lock = batch.locks[at]
                    if (
                        states[at] == _ACQUIRED
                        and batch.counts[at] == count
                        and lock is not None
                        and lock.member_id == member_id
                    ):
                        states[at] = _AVAILABLE if offset >= start else _ARCHIVED
                        batch.counts[at] -= 1
                        batch.locks[at] = None
                        self._unlock(lock, 1)
                self._list_available(batch)
        self._advance_start()

    def _overlapping(self, first: int, last: int) -> Iterator[InFlightBatch]:
        """The batches with offsets among these."""
        firsts, batches = self._firsts, self._batches
        index = bisect_right(firsts, first) - 1
        if index < 0 or batches[firsts[index]].last < first:
            index += 1
        end = bisect_right(firsts, last)
        return (batches[each] for each in firsts[index:end])

    def _move_gap(self, offset: int) -> None:
        """Note that what is below was fetched, if it exists."""
        if self._gap_start is not None:
            if self._gap_end == self.end_offset and offset <= self._gap_end:
                self._gap_start = max(self._gap_start, offset)
            else:
                self._gap_start = None

    def _lock(
        self, batch: InFlightBatch, first: int, last: int, member_id: str, now_ms: int
    ) -> AcquisitionLock:
        """Make a lock that holds nothing yet."""
        duration_ms = self.settings.record_lock_duration_ms
        lock = AcquisitionLock(batch, first, last, member_id, now_ms, duration_ms)
        self._locks.setdefault(duration_ms, {})[lock] = None
        self._by_member.setdefault(member_id, {})[lock] = None
        return lock

    def _unlock(self, lock: AcquisitionLock | None, records: int) -> None:
        if lock is None:
            return
        lock.held -= records
        assert lock.held >= 0, (lock.first, lock.last, lock.held)
        if lock.held == 0:
            self._stop_timing(lock)
            locks = self._by_member[lock.member_id]
            del locks[lock]
            if not locks:
                del self._by_member[lock.member_id]

    def _stop_timing(self, lock: AcquisitionLock) -> None:
        locks = self._locks.get(lock.duration_ms)
        if locks is not None:
            locks.pop(lock, None)
            if not locks:
                del self._locks[lock.duration_ms]

    # Acknowledging

    def acknowledge(
        self, member_id: str, acknowledged: Iterable[AcknowledgedOffsets], now_ms: int
    ) -> StateTransition:
        """Begin the transition of what a member acknowledges, and renew its locks where it asks for that.
        KafkaError if the member does not hold one of the records; then no state has changed.
        """
        transition = StateTransition(now_ms if self.settings.retry_backoff_ms else None)
        try:
            for each in acknowledged:
                if each.last_offset >= self.start_offset:
                    self._acknowledge(member_id, each, now_ms, transition)
        except KafkaError:
            self._roll_back(transition)
            raise
        return transition

    def _acknowledge(
        self, member_id: str, acknowledged: AcknowledgedOffsets, now_ms: int, transition: StateTransition
    ) -> None:
        first, last, types = (
            acknowledged.first_offset,
            acknowledged.last_offset,
            acknowledged.acknowledge_types,
        )
        start = self.start_offset
        for batch in self._acknowledgeable(first, last):
            if batch.last < start:
                continue
            lock = batch.lock
            if batch.states is None:
                if batch.state != _ACQUIRED or lock is None:
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, NOT_ACQUIRED)
                if lock.member_id != member_id:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of batch record"
                    )
                if len(types) == 1 and first <= batch.first and batch.last <= last and batch.first >= start:
                    self._acknowledge_batch(batch, types[0], now_ms, transition)
                    continue
                batch.split()
            low, high = max(first, batch.first, start), min(last, batch.last)
            if low <= high:
                self._acknowledge_offsets(member_id, batch, low, high, first, types, now_ms, transition)

    def _acknowledgeable(self, first: int, last: int) -> Iterator[InFlightBatch]:
        """The batches that an acknowledgement of these offsets concerns."""
        firsts = self._firsts
        begin = first
        if not firsts or firsts[0] > first:
            begin = self.start_offset
            if not (first < begin <= last) or not firsts or firsts[0] > begin:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    "Batch record not found. The request batch offsets are not found in the cache.",
                )
        end = self._batches[firsts[bisect_right(firsts, last) - 1]].last
        if end < first:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The first offset in request is past acquired records.",
            )
        if end < last:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The last offset in request is past acquired records.",
            )
        return self._overlapping(begin, last)

    def _acknowledge_batch(
        self, batch: InFlightBatch, type: int, now_ms: int, transition: StateTransition
    ) -> None:
        lock = batch.lock
        assert lock is not None, batch.first
        if type == _RENEW:
            self._check_renewal()
            batch.lock = renewed = self._lock(batch, batch.first, batch.last, lock.member_id, now_ms)
            renewed.held = batch.size
            self._unlock(lock, batch.size)
            return
        state = self._outcome(_STATE_OF_TYPE[type], batch.count)
        if type == _RELEASE and state != _AVAILABLE:
            transition.delivered_too_often += batch.size
        batch.state = state | _PENDING
        transition.add(batch, batch.first, batch.last, state, batch.count, is_rejected=type == _REJECT)
        if state in _DONE:
            self.delivery_complete_count += batch.size

    def _acknowledge_offsets(
        self,
        member_id: str,
        batch: InFlightBatch,
        low: int,
        high: int,
        first: int,
        types: Sequence[int],
        now_ms: int,
        transition: StateTransition,
    ) -> None:
        batch.split()
        if len(types) == 1:
            self._acknowledge_run(member_id, batch, low, high, types[0], now_ms, transition)
            return
        offset = low
        while offset <= high:
            type, end = types[offset - first], offset
            while end < high and types[end + 1 - first] == type:
                end += 1
            self._acknowledge_run(member_id, batch, offset, end, type, now_ms, transition)
            offset = end + 1

    def _acknowledge_run(
        self,
        member_id: str,
        batch: InFlightBatch,
        low: int,
        high: int,
        type: int,
        now_ms: int,
        transition: StateTransition,
    ) -> None:
        """Acknowledge offsets of a batch in the same way."""
        states, locks = batch.split(), batch.locks
        begin, end = low - batch.first, high - batch.first + 1
        if low == high and type != _RENEW and states[begin] == _ACQUIRED:
            # As below, for one record: some members acknowledge one by one.
            alone = locks[begin]
            if alone is not None and alone.member_id == member_id:
                count = batch.counts[begin]
                state = self._outcome(_STATE_OF_TYPE[type], count)
                if type == _RELEASE and state != _AVAILABLE:
                    transition.delivered_too_often += 1
                states[begin] = state | _PENDING
                transition.add(batch, low, low, state, count, is_rejected=type == _REJECT)
                if state in _DONE:
                    self.delivery_complete_count += 1
                return
        if states.count(_ACQUIRED, begin, end) < end - begin:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "The offset cannot be acknowledged. The offset is not acquired.",
            )
        holds = Counter(locks[begin:end])
        if any(lock is None or lock.member_id != member_id for lock in holds):
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of offset")
        if type == _RENEW:
            self._check_renewal()
            renewed = self._lock(batch, low, high, member_id, now_ms)
            renewed.held = end - begin
            locks[begin:end] = [renewed] * renewed.held
            for lock, records in holds.items():
                self._unlock(lock, records)
            return
        for at, until, count in _runs(batch.counts, begin, end):
            state = self._outcome(_STATE_OF_TYPE[type], count)
            if type == _RELEASE and state != _AVAILABLE:
                transition.delivered_too_often += until - at
            states[at:until] = bytes((state | _PENDING,)) * (until - at)
            first, last = batch.first + at, batch.first + until - 1
            transition.add(batch, first, last, state, count, is_rejected=type == _REJECT)
            if state in _DONE:
                self.delivery_complete_count += until - at

    def _check_renewal(self) -> None:
        if not self.settings.renew_acknowledge_enable:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group."
            )

    def _outcome(self, state: int, count: int) -> int:
        """The state of a record that is to get a state: archiving, if it was delivered too often to be
        available again, and archived at once if there is no dead-letter topic.
        """
        if state == _AVAILABLE and count >= self.settings.delivery_count_limit:
            state = _ARCHIVING
        return _ARCHIVED if state == _ARCHIVING and not self.settings.dead_letter_topic else state

    def release_acquired_records(self, member_id: str) -> StateTransition:
        """Begin the transition of all records that a member holds: they become available to others."""
        transition = StateTransition()
        for lock in sorted(self._by_member.get(member_id, ()), key=_BY_FIRST):
            self._release(lock, transition, _PENDING)
        return transition

    def _release(self, lock: AcquisitionLock, transition: StateTransition, pending: int) -> None:
        """Make the records of a lock available, or archived; with `pending` that is provisional, and without
        the lock ends.
        """
        batch, start = lock.batch, self.start_offset
        if batch.states is None:
            if batch.state != _ACQUIRED:
                return
            if batch.last < start or batch.first >= start:
                count = batch.count
                state = _ARCHIVED if batch.last < start else self._outcome(_AVAILABLE, count)
                batch.state = state | pending
                transition.add(batch, batch.first, batch.last, state, count)
                if state != _AVAILABLE and batch.first >= start:
                    transition.delivered_too_often += batch.size
                    self.delivery_complete_count += batch.size * (state in _DONE)
                if not pending:
                    batch.lock = None
                    self._unlock(lock, batch.size)
                return
        states = batch.split()
        for begin, end, count in _held(batch, lock, start):
            first, last = batch.first + begin, batch.first + end - 1
            state = _ARCHIVED if last < start else self._outcome(_AVAILABLE, count)
            states[begin:end] = bytes((state | pending,)) * (end - begin)
            transition.add(batch, first, last, state, count)
            if state != _AVAILABLE and first >= start:
                transition.delivered_too_often += end - begin
                self.delivery_complete_count += (end - begin) * (state in _DONE)
            if not pending:
                batch.locks[begin:end] = [None] * (end - begin)
                self._unlock(lock, end - begin)

    def complete(self, *transitions: StateTransition, persisted: bool) -> None:
        """End transitions with the outcome of their write."""
        for transition in transitions:
            if not persisted:
                self._roll_back(transition)
                continue
            since_ms = transition.waits_since_ms
            for batch, (first, last, state, count) in transition.ranges:
                self._commit(batch, first, last, state)
                if state == _ARCHIVING:
                    is_rejected = first in transition.rejected
                    self.dead_letters[first] = DeadLetters(first, last, count, is_rejected)
                if state != _AVAILABLE:
                    continue
                if since_ms is None:
                    self._list_available(batch)
                else:
                    until_ms = since_ms + self.settings.retry_delay_ms(count, first)
                    self._begin_wait(batch, first, last, since_ms, until_ms)
            self.counts.archived += transition.delivered_too_often
        if persisted:
            self._advance_start()
        if invariants.thorough:
            self.check_invariants()

    def _commit(self, batch: InFlightBatch, first: int, last: int, state: int) -> None:
        states = batch.states
        if states is None:
            if batch.state & _PENDING:
                batch.state = state
                lock, batch.lock = batch.lock, None
                self._unlock(lock, batch.size)
        else:
            locks = batch.locks
            begin, end = first - batch.first, last - batch.first + 1
            if end - begin > 1 and states.count(state | _PENDING, begin, end) == end - begin:
                held = locks[begin:end]
                if held.count(held[0]) == end - begin:
                    self._unlock(held[0], end - begin)
                else:
                    for each, records in Counter(held).items():
                        self._unlock(each, records)
                states[begin:end] = bytes((state,)) * (end - begin)
                locks[begin:end] = [None] * (end - begin)
            else:
                # It is one, or some were archived meanwhile, as the log starts after them.
                for at in range(begin, end):
                    if states[at] & _PENDING:
                        states[at] = state
                        lock, locks[at] = locks[at], None
                        self._unlock(lock, 1)

    def _roll_back(self, transition: StateTransition) -> None:
        """Take a transition back: records are acquired again, unless their lock has expired."""
        start = self.start_offset
        for batch, (first, last, state, _) in transition.ranges:
            if batch.first < start <= batch.last:
                batch.split()  # of what expired, only the records below the start are archived
            states = batch.states
            if states is None:
                if not batch.state & _PENDING:
                    continue
                lock = batch.lock
                assert lock is not None, batch.first
                batch.state = self._state_before(lock, batch.count, batch.first)
                if batch.state == _ARCHIVING:
                    self._note_unpersisted(batch.first, batch.last, batch.count)
                if lock.expired:
                    batch.lock = None
                    self._unlock(lock, batch.size)
                self._recount(batch.first, batch.last, state, batch.state)
            else:
                for at in range(first - batch.first, last - batch.first + 1):
                    if not states[at] & _PENDING:
                        continue
                    lock = batch.locks[at]
                    assert lock is not None, batch.first + at
                    states[at] = self._state_before(lock, batch.counts[at], batch.first + at)
                    if states[at] == _ARCHIVING:
                        self._note_unpersisted(batch.first + at, batch.first + at, batch.counts[at])
                    if lock.expired:
                        batch.locks[at] = None
                        self._unlock(lock, 1)
                    self._recount(batch.first + at, batch.first + at, state, states[at])
            if batch.first_available() is not None:
                self._list_available(batch)
        for each in transition.waited:
            self._begin_wait(*each)

    def _state_before(self, lock: AcquisitionLock, count: int, offset: int) -> int:
        if not lock.expired:
            return _ACQUIRED
        return _ARCHIVED if offset < self.start_offset else self._outcome(_AVAILABLE, count)

    def _recount(self, first: int, last: int, before: int, after: int) -> None:
        change = (after in _DONE) - (before in _DONE)
        if change:
            self.delivery_complete_count += change * max(0, last - max(first, self.start_offset) + 1)

    # Operators

    def _runs_in_flight(
        self, first: int, last: int
    ) -> Iterator[tuple[InFlightBatch, int, int, int, int, AcquisitionLock | None]]:
        """Divide offsets from the start on into records that are alike, in order: the first and the last,
        their state, delivery count and lock.
        """
        for batch in self._overlapping(max(first, self.start_offset), last):
            low, high = max(first, batch.first, self.start_offset), min(last, batch.last)
            if batch.states is None:
                yield batch, low, high, batch.state, batch.count, batch.lock
                continue
            base = batch.first
            for begin, end, state in _runs(batch.states, low - base, high - base + 1):
                for at, until, count in _runs(batch.counts, begin, end):
                    for part in range(at, until, _ALIKE_AT_A_TIME):
                        stop, offset = min(part + _ALIKE_AT_A_TIME, until), base + part
                        for lock, size in _alike(batch, state, part, stop):
                            yield batch, offset, offset + size - 1, state, count, lock
                            offset += size

    def records_in_flight(
        self, first: int, states: Container[int], now_ms: int, *, most: int, most_looks: int
    ) -> InFlightPage:
        """List records in delivery from an offset on, those in some states: `most` ranges at most, and no
        more after a look at so many.
        """
        found: list[RecordsInFlight] = []
        last_offset = self.end_offset
        for looks, (batch, low, high, state, count, lock) in enumerate(
            self._runs_in_flight(first, last_offset)
        ):
            if looks == most_looks or len(found) == most:
                return InFlightPage(found, low)
            kind = _IN_FLIGHT_STATES.get(state)
            if kind is None or kind not in states:
                continue
            age_ms = left_ms = -1
            if lock is not None:
                age_ms = max(0, now_ms - lock.deadline_ms + lock.duration_ms)
                left_ms = max(0, lock.deadline_ms - now_ms)
            elif state == _WAITING:
                since_ms, until_ms = batch.wait_of(low)
                age_ms, left_ms = max(0, now_ms - since_ms), max(0, until_ms - now_ms)
            member_id = None if lock is None else lock.member_id
            if found:
                before = found[-1]
                alike = before.last_offset + 1 == low and before[2:] == (
                    kind,
                    count,
                    member_id,
                    age_ms,
                    left_ms,
                )
                if alike:
                    found[-1] = before._replace(last_offset=high)
                    continue
            found.append(RecordsInFlight(low, high, kind, count, member_id, age_ms, left_ms))
        return InFlightPage(found, None)

    def alter_records(
        self, ranges: Iterable[tuple[int, int, int]], type: int, now_ms: int, *, most_looks: int
    ) -> AlteredRecords:
        """Begin the transition of records that an operator releases, rejects or skips (GAP), held or
        not: those from a first to a last offset that are available, held or waiting, and were delivered so
        often; -1 for any count. It ends after a look at so many ranges of records.

        What a member holds is acknowledged in its stead, and the member is refused afterwards. What no member
        holds has a lock of its own until the change is persisted.
        """
        transition, altered, next_offset = StateTransition(), 0, None
        for first, last, delivery_count in ranges:
            runs = list(islice(self._runs_in_flight(first, last), most_looks + 1))
            if most_looks == 0 or len(runs) > most_looks:
                next_offset = runs.pop()[1] if runs else first
            most_looks -= len(runs) or 1
            for run in runs:
                if run[3] in _ALTERABLE and delivery_count in (-1, run[4]):
                    altered += self._alter(run, type, now_ms, transition)
            if next_offset is not None:
                break
        if invariants.thorough:
            self.check_invariants()
        return AlteredRecords(transition, altered, next_offset)

    def _alter(
        self,
        run: tuple[InFlightBatch, int, int, int, int, AcquisitionLock | None],
        type: int,
        now_ms: int,
        transition: StateTransition,
    ) -> int:
        """Begin to change records that are alike; return how many."""
        batch, low, high, state, count, lock = run
        size = high - low + 1
        if type == _RELEASE and lock is None:
            return size if state == _WAITING and self._end_wait(batch, low, high) else 0
        if state == _WAITING:
            self.waiting_records -= size
            transition.waited.append((batch, low, high, *batch.wait_of(low)))
        if lock is None:
            lock = self._lock(batch, low, high, _OPERATOR, now_ms)
            lock.held, lock.expired = size, True
            self._stop_timing(lock)
        outcome = self._outcome(_STATE_OF_TYPE[type], count)
        if batch.states is None and size == batch.size:
            batch.state, batch.lock = outcome | _PENDING, lock
        else:
            states, begin = batch.split(), low - batch.first
            states[begin : begin + size] = bytes((outcome | _PENDING,)) * size
            batch.locks[begin : begin + size] = [lock] * size
        if type == _RELEASE and outcome != _AVAILABLE:
            transition.delivered_too_often += size
        if outcome in _DONE:
            self.delivery_complete_count += size
        transition.add(batch, low, high, outcome, count, is_rejected=type == _REJECT)
        return size

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lock expires, or the next wait ends; None if there is neither."""
        deadlines = [next(iter(locks)).deadline_ms for locks in self._locks.values()]
        if self._waits:
            deadlines.append(self._waits[0][0])
        return min(deadlines, default=None)

    def _begin_wait(self, batch: InFlightBatch, first: int, last: int, since_ms: int, until_ms: int) -> None:
        """Have the available records among these wait."""
        count = self._replace(batch, first, last, _AVAILABLE, _WAITING)
        if count:
            self.waiting_records += count
            batch.note_wait(first, last, since_ms, until_ms)
            heappush(self._waits, (until_ms, first, last))

    def _end_wait(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Make the waiting records among these available; whether there are any."""
        count = self._replace(batch, first, last, _WAITING, _AVAILABLE)
        if count:
            self.waiting_records -= count
            self._list_available(batch)
        return count > 0

    def _replace(self, batch: InFlightBatch, first: int, last: int, old: int, new: int) -> int:
        """Give the records of a batch among these that are in a state another one; return how many."""
        first, last = max(first, batch.first), min(last, batch.last)
        if batch.states is None:
            if batch.state != old:
                return 0
            if first == batch.first and last == batch.last:
                batch.state = new
                return batch.size
        states = batch.split()
        part = states[first - batch.first : last - batch.first + 1]
        count = part.count(old)
        if count:
            states[first - batch.first : last - batch.first + 1] = part.replace(bytes((old,)), bytes((new,)))
        return count

    def wait_before_retries(self, now_ms: int) -> None:
        """Have all records wait that were delivered before: how long they have waited is not persisted."""
        if not self.settings.retry_backoff_ms:
            return
        for batch in self._batches.values():
            if batch.states is None and batch.state == _AVAILABLE and batch.count:
                until_ms = now_ms + self.settings.retry_delay_ms(batch.count, batch.first)
                batch.state, batch.wait = _WAITING, (now_ms, until_ms)
                self.waiting_records += batch.size
                self._waits.append((until_ms, batch.first, batch.last))
        heapify(self._waits)

    def end_waits(self, now_ms: int) -> bool:
        """Make the records available that have waited long enough; whether there are any."""
        found = False
        waits = self._waits
        while waits and waits[0][0] <= now_ms:
            _, first, last = heappop(waits)
            for batch in self._overlapping(first, last):
                # Of a wait that an operator has ended the records may be in a later one by now.
                for begin, end in batch.due_waits(first, last, now_ms):
                    found = self._end_wait(batch, begin, end) or found
        if found and invariants.thorough:
            self.check_invariants()
        return found

    def expire_locks(self, now_ms: int) -> StateTransition:
        """Release what is held beyond its deadline. The states are final at once; they are to be persisted
        if that is possible.

        A lock whose records are in a transition expires too: that counts if the transition is taken back.
        """
        released = StateTransition()
        for duration_ms in list(self._locks):
            locks = self._locks[duration_ms]
            due = []
            for lock in locks:
                if lock.deadline_ms > now_ms:
                    break
                due.append(lock)
            for lock in due:
                lock.expired = True
                self._stop_timing(lock)
                held = lock.held
                self._release(lock, released, 0)
                self.counts.expired += held - lock.held
        self.counts.archived += released.delivered_too_often
        for batch, (_, _, state, _) in released.ranges:
            if state == _AVAILABLE:
                self._list_available(batch)
        if invariants.thorough:
            self.check_invariants()
        return released

    # Offsets

    def complete_final(self, *transitions: StateTransition, persisted: bool) -> None:
        """Move the start offset, after the write of what has expired. What becomes available is that whatever
        the outcome; what is to be a dead letter has to be persisted as archiving first.
        """
        for transition in transitions:
            if persisted and transition.dead_letter_place is not None:
                self.dead_letter_place = transition.dead_letter_place
            for _, (first, last, state, count) in transition.ranges:
                if state == _ARCHIVING:
                    known = self.dead_letters.get(first)
                    is_rejected = known is not None and known.is_rejected
                    for each in [at for at in self.dead_letters if first < at <= last]:
                        del self.dead_letters[each]
                    self.dead_letters[first] = DeadLetters(first, last, count, is_rejected, persisted)
        self._advance_start()

    # Dead letters

    def _note_unpersisted(self, first: int, last: int, count: int) -> None:
        """Note that records are archiving whose transition was taken back, after their lock had expired."""
        self.dead_letters[first] = DeadLetters(first, last, count, is_rejected=False, is_persisted=False)

    def unpersisted_dead_letters(self) -> StateTransition | None:
        """The transition of what is not persisted as archiving yet; None if all is."""
        transition = StateTransition()
        for first, last, count, _, is_persisted in self.dead_letters.values():
            if not is_persisted:
                for batch in self._overlapping(first, last):
                    transition.add(batch, first, last, _ARCHIVING, count)
        return transition if transition else None

    def archived(self, letters: Iterable[DeadLetters]) -> StateTransition:
        """The transition of dead letters that are in their topic; `complete_dead_letters` ends it."""
        transition = StateTransition()
        for first, last, count, _, _ in letters:
            for batch in self._overlapping(first, last):
                transition.add(batch, max(first, batch.first), min(last, batch.last), _ARCHIVED, count)
        return transition

    def complete_dead_letters(self, letters: Iterable[DeadLetters]) -> None:
        """Archive dead letters, once that is persisted. A range of them may be a part of what was noted."""
        for first, last, _, _, _ in letters:
            for batch in self._overlapping(first, last):
                if self._replace(batch, first, last, _ARCHIVING, _ARCHIVED):
                    self._recount(max(first, batch.first), min(last, batch.last), _ARCHIVING, _ARCHIVED)
            begin = first if first in self.dead_letters else max(at for at in self.dead_letters if at < first)
            known = self.dead_letters.pop(begin)
            if known.first_offset < first:
                self.dead_letters[begin] = known._replace(last_offset=first - 1)
            if last < known.last_offset:
                self.dead_letters[last + 1] = known._replace(first_offset=last + 1)
        self._advance_start()
        if invariants.thorough:
            self.check_invariants()

    def update_log_start_offset(self, log_start_offset: int) -> None:
        """Begin at the start of the log, which has passed the next offset to fetch.

        Records that members hold stay acquired until they are acknowledged or their locks expire; none of
        what is below the start is delivered again.
        """
        start = self.start_offset
        if log_start_offset <= start:
            return
        for batch in self._overlapping(start, log_start_offset - 1):
            self.delivery_complete_count -= batch.done_between(start, log_start_offset - 1)
        self.start_offset = log_start_offset
        for batch in list(self._overlapping(start, log_start_offset - 1)):
            self._archive(batch, start, log_start_offset - 1, _AVAILABLE)
            self._archive(batch, start, log_start_offset - 1, _WAITING)
        self.end_offset = max(self.end_offset, log_start_offset)
        self._advance_start()
        if invariants.thorough:
            self.check_invariants()

    def _advance_start(self) -> bool:
        """Move the start offset past what is done, and forget that; whether it moved."""
        firsts, batches = self._firsts, self._batches
        gap = self._first_gap()
        start = self.start_offset
        done_batches = 0
        not_done: int | None = None
        for first in firsts:
            batch = batches[first]
            if gap is not None and batch.last >= gap:
                not_done = gap
                break
            not_done = batch.first_not_done()
            if not_done is not None:
                break
            done_batches += 1
        if not_done is None:
            if not firsts:
                return False
            end = max(start, self._last_batch.last + 1)
            self._firsts, self._available, self._waits = [], [], []
            batches.clear()
            self.start_offset = self.end_offset = end
            self.delivery_complete_count = 0
            self._gap_start = None
            return True
        moved = max(start, not_done)
        if moved > start:
            self.delivery_complete_count -= sum(
                batches[first].done_between(start, moved - 1)
                for first in firsts[: bisect_left(firsts, moved)]
            )
            self.start_offset = moved
        if done_batches:
            for first in firsts[:done_batches]:
                del batches[first]
            del firsts[:done_batches]
        return moved > start

    def write_state(
        self,
        leader_epoch: int,
        batches: Sequence[PersisterStateBatch],
        dead_letter_place: DeadLetterPlace | None = None,
    ) -> WriteState:
        """The write that persists these batches, with the offsets of now. Dead letters count as done with the
        write that says so.
        """
        done = self.delivery_complete_count
        for first, last, state, _ in batches:
            if state == _ARCHIVED and self.dead_letters:
                done += self._archiving_between(max(first, self.start_offset), last)
        return WriteState(
            self.state_epoch, leader_epoch, self.start_offset, done, tuple(batches), dead_letter_place
        )

    def _archiving_between(self, first: int, last: int) -> int:
        found = 0
        for batch in self._overlapping(first, last):
            low, high = max(first, batch.first), min(last, batch.last)
            if batch.states is None:
                found += (high - low + 1) * (batch.state == _ARCHIVING)
            else:
                found += batch.states.count(_ARCHIVING, low - batch.first, high - batch.first + 1)
        return found

    def check_invariants(self) -> None:
        """Assert what the module's docstring says. It walks over everything, so a running node does not."""
        firsts, batches = self._firsts, self._batches
        assert sorted(batches) == firsts, (sorted(batches), firsts)
        done, previous = 0, -1
        held: dict[AcquisitionLock, int] = {}
        for first in firsts:
            batch = batches[first]
            assert previous < batch.first <= batch.last, (previous, batch.first, batch.last)
            previous = batch.last
            done += batch.done_between(self.start_offset, batch.last)
            states = bytes((batch.state,)) if batch.states is None else bytes(batch.states)
            locks = [batch.lock] if batch.states is None else batch.locks
            size = batch.size if batch.states is None else 1
            for state, lock in zip(states, locks, strict=True):
                assert (lock is not None) == (state == _ACQUIRED or bool(state & _PENDING)), (first, state)
                if lock is not None:
                    held[lock] = held.get(lock, 0) + size
            if batch.first_available() is not None:
                assert batch.listed, first
                assert first in self._available, first
        waiting = sum(
            batch.size * (batch.state == _WAITING) if batch.states is None else batch.states.count(_WAITING)
            for batch in batches.values()
        )
        assert waiting == self.waiting_records, (waiting, self.waiting_records, self._waits)
        for first, last, *_ in self.dead_letters.values():
            for batch in self._overlapping(first, last):
                low, high = max(first, batch.first) - batch.first, min(last, batch.last) - batch.first + 1
                found = bytes((batch.state,)) if batch.states is None else bytes(batch.states[low:high])
                assert set(found) == {_ARCHIVING}, (first, last, found)
        known = [lock for locks in self._by_member.values() for lock in locks]
        assert len(known) == len(held), (len(known), len(held))
        for lock in known:
            assert lock.held == held[lock] > 0, (lock.first, lock.held, held.get(lock))
            assert lock.expired != (lock in self._locks.get(lock.duration_ms, ())), lock.first
        assert done == self.delivery_complete_count, (done, self.delivery_complete_count)
        if firsts:
            end = previous if self.start_offset <= previous else self.start_offset
            assert self.end_offset == end, (self.end_offset, previous, self.start_offset)
        else:
            assert self.start_offset == self.end_offset, (self.start_offset, self.end_offset)


def _runs(values: bytearray, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Divide positions into runs of equal values: where each begins and ends, and its value. Values of a run
    may be changed once it was given.
    """
    for run in _RUN.finditer(values, begin, end):
        begin = run.start()
        yield begin, run.end(), values[begin]


def _alike(
    batch: InFlightBatch, state: int, begin: int, end: int
) -> Iterator[tuple[AcquisitionLock | None, int]]:
    """Divide records of a split batch with the same state by their lock, or by when their wait ends: the lock
    of each part, and its size.
    """
    if state == _ACQUIRED:
        held = batch.locks[begin:end]
        if held.count(held[0]) == end - begin:
            yield held[0], end - begin
        else:
            for lock, alike in groupby(held):
                yield lock, sum(1 for _ in alike)
    elif state == _WAITING and batch.waits is not None:
        for _, waiting in groupby(batch.waits[batch.size + begin : batch.size + end]):
            yield None, sum(1 for _ in waiting)
    else:
        yield None, end - begin


def _held(batch: InFlightBatch, lock: AcquisitionLock, start: int) -> Iterator[tuple[int, int, int]]:
    """Divide what a lock holds of a batch, and is in no transition, into runs of equal delivery counts, none
    of them around the start offset: where each begins and ends, and its count. A run is one piece whatever
    its size, as a batch may have millions of records.
    """
    assert batch.states is not None
    locks, counts = batch.locks, batch.counts
    for low, high, state in _runs(batch.states, lock.first - batch.first, lock.last - batch.first + 1):
        if state != _ACQUIRED:
            continue
        is_all = locks[low:high].count(lock) == high - low
        for begin, end, count in _runs(counts, low, high):
            if not is_all:
                for at in range(begin, end):
                    if locks[at] is lock:
                        yield at, at + 1, count
                continue
            middle = start - batch.first
            if begin < middle < end:
                yield begin, middle, count
                begin = middle
            yield begin, end, count


def _parts(
    log_batches: Sequence[LogBatch], first: int, last: int, batch_size: int
) -> Iterator[tuple[int, int]]:
    """Divide offsets into parts of at least `batch_size`, at the boundaries of the log's batches."""
    if last - first + 1 > batch_size:
        for index in range(max(0, bisect_right(log_batches, (first, _NO_OFFSET)) - 1), len(log_batches)):
            base = log_batches[index].base_offset
            if base > last:
                break
            if base - first >= batch_size:
                yield first, base - 1
                first = base
    yield first, last
