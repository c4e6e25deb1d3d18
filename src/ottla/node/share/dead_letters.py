"""The dead letters of one share partition, on their way to the dead-letter topic (KIP-1191).

A record that was rejected, or delivered too often, is persisted as archiving before anything is written, and
as archived once its dead letter is committed. Between the two a broker may die, so the next leader has to
know what is written already. Each share partition therefore has a producer id of its own, made of its name
and the epoch of its state. A writer begins with an epoch that no one had before: a marker in the dead-letter
partition makes it refuse what an earlier writer has sent (`DeadLetterTopics.fence`). Then it asks the share
coordinator whether it is still the leader, and reads what the producer id has written. What it finds there is
archived; the rest it writes. After any failure it begins again in the same way.

The group may name another topic meanwhile, or the topic get more partitions. So the state says where dead
letters are written, before the first one is: those that are not archived can be there and nowhere else. A
writer that is to write elsewhere ends that place first, as above, and then has the state say the new one.

Why no dead letter is written twice: of two leaders, the later has loaded the state before it has looked at
the epoch. If the earlier one still got the answer that it leads, its marker is older than that look, and
the later one has the higher epoch: whatever the earlier one has written lies before the marker of the later,
which reads it. A writer that does not lead, by that answer, writes nothing. Why none is lost: it is archived
only after its dead letter was committed.

A dead-letter topic that does not exist, may not be used or cannot be written holds its dead letters back, and
with them the start of the share partition: as many records may be in delivery as
`share.partition.max.record.locks` says, and then the group waits for the operator. Where the group has no
dead-letter topic any longer, its records are archived without.

Memory: one batch, and what it is made of, for each of `WRITERS_AT_A_TIME` share partitions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ottla.node.fetch.partition_reader import MissingRead, PartitionReader, complete
from ottla.node.share.dead_letter_topics import (
    MAX_PLAIN_BYTES,
    OFFSET_HEADER,
    DeadLetterTarget,
    DeadLetterTopics,
    ProducerMark,
)
from ottla.node.share.share_partition import (
    DeadLetters,
    ShareGroupSettings,
    SharePartition,
    ShareRecordCounts,
    StateTransition,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import SharePartitionKey
from ottla.protocol.share import DeadLetterPlace
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.records.cost import likely_bytes, walk_cost
from ottla.records.types import FIRST_BROKER_PRODUCER_ID
from ottla.replication.partition import FetchIsolation, LogReadInfo, Partition
from ottla.rpc.backoff import ExponentialBackoff
from ottla.runtime.clock import Clock
from ottla.runtime.heavy_work import HeavyWork
from ottla.runtime.pool import Pool
from ottla.runtime.random import Random

_log = logging.getLogger(__name__)

TOPIC_HEADER: Final = "__dlq.errors.topic"
PARTITION_HEADER: Final = "__dlq.errors.partition"
GROUP_HEADER: Final = "__dlq.errors.group"
DELIVERY_COUNT_HEADER: Final = "__dlq.errors.delivery.count"
MESSAGE_HEADER: Final = "__dlq.errors.message"

WRITERS_AT_A_TIME: Final = 16
_BATCH_BYTES: Final = 512 * 1024
_BATCH_RECORDS: Final = 1_000
_READ_BYTES: Final = 256 * 1024
# What a record takes in a batch besides its key, its value and its headers, at most.
_RECORD_OVERHEAD: Final = 64
_HEADER_OVERHEAD: Final = 10
_BATCH_OVERHEAD: Final = 128
_FIRST_PAUSE_MS: Final = 100
_MAX_PAUSE_MS: Final = 15_000
# Epochs of a producer id; then the next id takes over.
_MAX_EPOCH: Final = 32_766

_Headers = tuple[tuple[str, bytes | None], ...]


class LetterSource(Protocol):
    """A share partition, as the writer of its dead letters sees it."""

    @property
    def key(self) -> SharePartitionKey: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def share(self) -> SharePartition | None: ...

    @property
    def is_dropped(self) -> bool: ...

    def persist_final(self, transition: StateTransition, /) -> Awaitable[KafkaError | None]: ...

    def notify(self) -> None: ...


L_contra = TypeVar("L_contra", bound=LetterSource, contravariant=True)
L = TypeVar("L", bound=LetterSource)


class LetterManager(Protocol[L_contra]):
    """What the writers of a broker share."""

    @property
    def clock(self) -> Clock: ...

    @property
    def random(self) -> Random: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def heavy_work(self) -> HeavyWork: ...

    @property
    def counts(self) -> ShareRecordCounts: ...

    @property
    def dead_letter_topics(self) -> DeadLetterTopics: ...

    @property
    def dead_letter_writers(self) -> asyncio.Semaphore: ...

    def settings(self, group_id: str, /) -> ShareGroupSettings: ...

    def reader(self, isolation: FetchIsolation, /) -> PartitionReader: ...

    def start_task(
        self, work: Coroutine[object, object, None], on_done: Callable[[asyncio.Task[None]], None], /
    ) -> asyncio.Task[None]: ...

    async def check_leadership(self, leader: L_contra, /) -> None: ...

    def drop(self, leader: L_contra, /) -> None: ...


@dataclass(frozen=True, slots=True)
class _Source:
    """A record that is to be a dead letter, as its topic has it; nothing of it if it is gone there."""

    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: _Headers = ()


@dataclass(frozen=True, slots=True)
class _Session:
    """The right to write to a partition of a dead-letter topic, until someone begins with a higher epoch."""

    target: DeadLetterTarget
    producer_id: int
    epoch: int


def producer_id(key: SharePartitionKey, state_epoch: int, era: int) -> int:
    """The producer id of the dead letters of a share partition. A next era begins when the epochs of an id
    are used up.
    """
    name = f"{len(key.group_id)}:{key.group_id}:{key.topic_id.hex()}:{key.partition}:{state_epoch}:{era}"
    digest = hashlib.sha256(name.encode()).digest()
    return FIRST_BROKER_PRODUCER_ID | int.from_bytes(digest[:8], "big") >> 2


class DeadLetterWriter(Generic[L]):
    """Writes the dead letters of a share partition, in a task of its own for as long as there are some."""

    __slots__ = (
        "_leader",
        "_manager",
        "_problem",
        "_sequence",
        "_session",
        "_topics",
        "task",
    )

    def __init__(self, manager: LetterManager[L], leader: L) -> None:
        self._manager: Final = manager
        self._leader: Final = leader
        self._topics: Final[DeadLetterTopics] = manager.dead_letter_topics
        self.task: asyncio.Task[None] | None = None
        self._session: _Session | None = None
        # Of the next record, in this session.
        self._sequence = 0
        # Why dead letters are held back, as it was logged.
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why dead letters are held back; None if they are not."""
        return self._problem

    def start(self) -> None:
        if self.task is None:
            self.task = self._manager.start_task(self._run(), self._on_done)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("share partition %s: its dead letters failed", self._leader.key, exc_info=error)
            self._manager.drop(self._leader)

    @property
    def _share(self) -> SharePartition:
        share = self._leader.share
        assert share is not None, self._leader.key
        return share

    async def _run(self) -> None:
        leader, manager = self._leader, self._manager
        pauses = ExponentialBackoff(manager.random, _FIRST_PAUSE_MS, _MAX_PAUSE_MS)
        while not leader.is_dropped and self._share.dead_letters:
            try:
                async with manager.dead_letter_writers:
                    await self._write_some()
            except (KafkaError, OSError) as error:
                self._session = None
                self._note_problem(error)
                await asyncio.sleep(pauses.next_ms() / 1000)
            else:
                pauses.reset()
                self._problem = None

    def _note_problem(self, error: KafkaError | OSError) -> None:
        text = (error.message or error.code.text) if isinstance(error, KafkaError) else str(error)
        if text != self._problem:
            self._problem = text
            _log.warning(
                "The dead letters of %s of share group %s wait, as they cannot be written: %s",
                self._leader.partition.topic_partition,
                self._leader.key.group_id,
                text,
            )

    async def _write_some(self) -> None:
        """Write one batch of dead letters, or do what has to be done before."""
        leader, share = self._leader, self._share
        unpersisted = share.unpersisted_dead_letters()
        if unpersisted is not None:
            _check(await leader.persist_final(unpersisted))
            return
        group_id, partition = leader.key.group_id, leader.partition.topic_partition
        topic = self._manager.settings(group_id).dead_letter_topic
        if not topic or topic == partition.topic:
            # The operator wants none, or the record stays where dead letters are.
            await self._archive(list(share.dead_letters.values()))
            return
        target = await self._topics.target(group_id, topic, partition.partition)
        session = self._session
        if session is None or session.target[:3] != target[:3]:
            await self._begin_session(target)
            return
        letters, sources = await self._collect(target)
        if sources:
            batch = self._build(session, letters, sources, target.max_message_bytes)
            await self._topics.append(target, batch)
            self._sequence += len(sources)
            await self._archive(letters)
            self._manager.counts.dead_letters += len(sources)
        else:
            await self._archive(letters)  # there are no records at these offsets

    async def _begin_session(self, target: DeadLetterTarget) -> None:
        """Take over from earlier writers, where they have written and where this one will."""
        share, topics, place = self._share, self._topics, self._share.dead_letter_place
        if place is None or (target.topic_id, target.partition) != (place.topic_id, place.partition):
            former = None if place is None else topics.former(place)
            if place is not None and former is not None:
                await self._take_over(former, place.first_offset)
            end = await topics.committed_end(target)
            place = DeadLetterPlace(target.topic_id, target.partition, end)
            _check(await self._leader.persist_final(StateTransition(dead_letter_place=place)))
            assert share.dead_letter_place == place, (share.dead_letter_place, place)
        self._session = await self._take_over(target, place.first_offset)
        self._sequence = 0

    async def _take_over(self, target: DeadLetterTarget, first_offset: int) -> _Session:
        """Have a partition refuse what earlier writers have sent, and archive what it has of them, which is
        nothing before `first_offset`. The last batch is the only one whose records may not be archived yet:
        each writer archives all that was written before it writes the first of its own.
        """
        topics = self._topics
        ids, mark = await self._last_producer(target)
        begin = first_offset if mark.last_batch_offset is None else mark.last_batch_offset
        await topics.fence(target, ids[-1], mark.epoch + 1)
        await self._manager.check_leadership(self._leader)
        written = await topics.written(target, frozenset(ids), begin, await topics.committed_end(target))
        await self._archive(_chosen(self._share.dead_letters.values(), written))
        return _Session(target, ids[-1], mark.epoch + 1)

    async def _last_producer(self, target: DeadLetterTarget) -> tuple[list[int], ProducerMark]:
        """The ids that earlier writers may have used in a partition, and what it knows of the last one."""
        ids: list[int] = []
        for era in range(1 << 16):
            ids.append(producer_id(self._leader.key, self._share.state_epoch, era))
            mark = await self._topics.producer(target, ids[-1])
            if mark.epoch < _MAX_EPOCH:
                break
        return ids, mark

    async def _archive(self, letters: Sequence[DeadLetters]) -> None:
        if not letters:
            return
        leader, share = self._leader, self._share
        _check(await leader.persist_final(share.archived(letters)))
        share.complete_dead_letters(letters)
        leader.notify()

    # The records

    async def _collect(self, target: DeadLetterTarget) -> tuple[list[DeadLetters], list[_Source]]:
        """Take dead letters for one batch, and read their records; return those too that turn out to have no
        record.
        """
        copies = self._manager.settings(self._leader.key.group_id).dead_letters_copy_records
        limit = min(_BATCH_BYTES, target.max_message_bytes) - _BATCH_OVERHEAD
        taken: list[DeadLetters] = []
        sources: list[_Source] = []
        size = 0
        for letters in sorted(self._share.dead_letters.values()):
            if not letters.is_persisted:
                continue
            offset = letters.first_offset
            while offset <= letters.last_offset:
                found, end = await self._read(offset, letters.last_offset, copies=copies)
                for source in found:
                    more = self._size(source)
                    if sources and (size + more > limit or len(sources) >= _BATCH_RECORDS):
                        if letters.first_offset < source.offset:
                            taken.append(letters._replace(last_offset=source.offset - 1))
                        return taken, sources
                    size += more
                    sources.append(source)
                offset = end + 1
            taken.append(letters)
        return taken, sources

    async def _read(self, first: int, last: int, *, copies: bool) -> tuple[list[_Source], int]:
        """Read records from `first` to `last` at most; return them, and up to which offset they are all there
        are. What the topic does not have any longer is a dead letter without content.
        """
        manager, partition, group_id = self._manager, self._leader.partition, self._leader.key.group_id
        log = partition.log
        if first < log.log_start_offset:
            end = min(last, log.log_start_offset - 1, first + _BATCH_RECORDS)
            return [_Source(offset) for offset in range(first, end + 1)], end

        reader = manager.reader(FetchIsolation.HIGH_WATERMARK)

        def attempt(*, may_wait: bool) -> LogReadInfo | MissingRead | KafkaError:
            return reader.read(partition, first, _READ_BYTES, may_wait=may_wait)

        read: LogReadInfo | KafkaError = await complete(manager.pool, attempt)
        if isinstance(read, KafkaError):
            raise read
        records = read.records
        if read.is_remote and not records:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"remote storage did not give record {first} in time"
            )
        sources: list[_Source] = []
        end = first - 1
        for position, header in iter_batches(records):
            low, high = max(first, header.base_offset), min(last, header.last_offset)
            end = max(end, min(last, header.last_offset))
            if header.base_offset > last:
                return sources, last
            if low > high or header.is_control:
                continue
            is_whole = header.count == header.last_offset - header.base_offset + 1
            if is_whole and not copies:
                sources += [_Source(offset) for offset in range(low, high + 1)]
                continue
            plain = likely_bytes(header)
            sources += await manager.heavy_work.run(
                group_id,
                walk_cost(header, plain),
                _sources_of,
                records,
                position,
                (low, high),
                copies,
                memory_bytes=plain,
            )
        # A read without a batch: there are no records up to the end of what is committed.
        return sources, end if end >= first else last

    def _build(
        self, session: _Session, letters: Sequence[DeadLetters], sources: Sequence[_Source], most: int
    ) -> bytes:
        now_ms = self._manager.clock.wall_ms()
        each = iter(letters)
        # The last one may be taken in part, and is in `letters` only then with what is taken.
        current = next(each)
        records: list[tuple[int, bytes | None, bytes | None, _Headers]] = []
        for source in sources:
            while source.offset > current.last_offset:
                current = next(each)
            is_too_large = self._size(source) + _BATCH_OVERHEAD > most
            headers = self._headers(source.offset, current, is_too_large=is_too_large)
            if is_too_large:
                records.append((now_ms, None, None, headers))
            else:
                records.append((now_ms, source.key, source.value, (*source.headers, *headers)))
        return build_batch(
            records,
            producer_id=session.producer_id,
            producer_epoch=session.epoch,
            base_sequence=self._sequence,
        )

    def _headers(self, offset: int, letters: DeadLetters, *, is_too_large: bool) -> _Headers:
        key, partition = self._leader.key, self._leader.partition.topic_partition
        message = (
            "Rejected by a consumer."
            if letters.is_rejected
            else "The record was delivered as often as the group allows."
        )
        if is_too_large:
            message += " It is not copied, as it is larger than this topic allows."
        return (
            (TOPIC_HEADER, partition.topic.encode()),
            (PARTITION_HEADER, b"%d" % partition.partition),
            (OFFSET_HEADER, b"%d" % offset),
            (GROUP_HEADER, key.group_id.encode()),
            (DELIVERY_COUNT_HEADER, b"%d" % letters.delivery_count),
            (MESSAGE_HEADER, message.encode()),
        )

    def _size(self, source: _Source) -> int:
        """What a dead letter takes at most."""
        key, partition = self._leader.key, self._leader.partition.topic_partition
        own = 256 + len(key.group_id.encode()) + len(partition.topic.encode())
        headers = sum(
            len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD for name, value in source.headers
        )
        return own + _RECORD_OVERHEAD + len(source.key or b"") + len(source.value or b"") + headers


def _sources_of(records: bytes, position: int, between: tuple[int, int], copies: bool) -> list[_Source]:
    """The records of a batch between two offsets, in a thread."""
    low, high = between
    try:
        found = read_records(records, position, max_decompressed_bytes=MAX_PLAIN_BYTES)
    except KafkaError:
        # It is too large to be copied, or cannot be decompressed: what is known of it is where it is.
        return [_Source(offset) for offset in range(low, high + 1)]
    return [
        _Source(
            record.offset,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((name, None if value is None else bytes(value)) for name, value in record.headers),
        )
        if copies
        else _Source(record.offset)
        for record in found
        if low <= record.offset <= high
    ]


def _chosen(letters: Iterable[DeadLetters], offsets: set[int]) -> list[DeadLetters]:
    """Those parts of dead letters that have one of these offsets."""
    return [part for each in letters for part in _parts(each, offsets)]


def _parts(letters: DeadLetters, offsets: set[int]) -> Iterator[DeadLetters]:
    first: int | None = None
    for offset in range(letters.first_offset, letters.last_offset + 2):
        is_chosen = offset <= letters.last_offset and offset in offsets
        if is_chosen and first is None:
            first = offset
        elif not is_chosen and first is not None:
            yield letters._replace(first_offset=first, last_offset=offset - 1)
            first = None


def _check(error: KafkaError | None) -> None:
    if error is not None:
        raise error
