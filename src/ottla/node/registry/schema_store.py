"""The registry's state on a node: read from its topic, and written by any node, one after the other.

Every node that is asked keeps the state in memory, and follows the topic. A write is decided on the node
that got the request, on all that is committed, and appended at the partition's leader with acks=all. That
nothing was written in between is what the leader checks by the sequences of idempotent producers: all nodes
append as one producer, and each gives its batch the number after the last one in the log that it has read.
Of two that have decided on the same state the leader takes the first; the other one reads it, and decides
again. So ids and versions are given once, whichever node leads, dies or is slow, and a batch that is sent
again, as its outcome is not known, is in the log once.

Invariants: `_sequence` is the number after the last batch of which `state` has all records; a decision that
was taken on a state is appended with the sequence which that state had before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from ottla.node.cluster.internal_topic import InternalTopic, TopicRead
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader, iter_batches, read_records, verify_crc
from ottla.records.builder import build_batch
from ottla.records.types import NO_PRODUCER_ID
from ottla.registry.errors import RegistryError
from ottla.registry.registry import Changes
from ottla.registry.state import Record, RegistryState
from ottla.replication.partition import NO_EPOCH
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The producer that all nodes are; the controller counts up from 0, and never gets there.
PRODUCER_ID: Final = int.from_bytes(b"ottla-sr", "big")
_PRODUCER_EPOCH: Final = 0
_MAX_SEQUENCE: Final = 2**31 - 1
_PARTITION: Final = 0
# How long a request waits for the leader of the partition, or for its turn to write.
_READ_SECONDS: Final = 15.0
_WRITE_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.01
_MAX_PAUSE_SECONDS: Final = 0.5
# Reads below the end of the log that find nothing, after which it is a gap that compaction has left.
_EMPTY_READS: Final = 3
_TOO_LARGE: Final = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
_REFUSED: Final = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_RECORD,
    )
)


class _Batch(NamedTuple):
    header: BatchHeader
    # Keys, values and timestamps.
    records: list[tuple[bytes, bytes | None, int]]


def _batches(data: bytes, position: int) -> list[_Batch]:
    """The batches of a fetch, with the records from an offset on."""
    found = []
    for at, header in iter_batches(data):
        if header.last_offset < position:
            continue
        verify_crc(data, at, header)
        records = [] if header.is_control else read_records(data, at)
        found.append(
            _Batch(
                header,
                [
                    (
                        bytes(each.key or b""),
                        None if each.value is None else bytes(each.value),
                        each.timestamp,
                    )
                    for each in records
                    if each.offset >= position
                ],
            )
        )
    return found


class SchemaStore:
    """`RegistryStore` over a topic."""

    def __init__(self, runtime: Runtime, tasks: TaskSupervisor, topic: InternalTopic) -> None:
        self._clock: Final = runtime.clock
        self._pool: Final = runtime.pool
        self._tasks: Final = tasks
        self._topic: Final = topic
        self._state = RegistryState()
        self._topic_id: bytes | None = None
        # What of the topic was read: up to here, the epoch of the leader that wrote the last batch, and the
        # sequence that a batch after it has.
        self._position = 0
        self._epoch = NO_EPOCH
        self._sequence = 0
        self._empty_reads = 0
        # Whether everything has been read once.
        self._is_open = False
        self._reading: Final = asyncio.Lock()
        self._writing: Final = asyncio.Lock()
        # The sequence of a batch that was sent and not read yet, and the batch that was then found with it.
        self._claim: int | None = None
        self._claimed: list[Record] | None = None
        self._following: SupervisedTask | None = None
        self._topic_appeared: Final = asyncio.Event()
        self.appends = 0
        self.conflicts = 0

    @property
    def state(self) -> RegistryState:
        return self._state

    async def close(self) -> None:
        if self._following is not None:
            await self._following.stop()
        await self._topic.close()

    async def open(self) -> None:
        if not self._is_open or self._topic_id != self._topic.topic_id:
            await self.refresh()

    async def refresh(self) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                await self._refresh()
        except TimeoutError:
            raise RegistryError.store(
                f"The leader of {self._topic.name} could not be read in time."
            ) from None

    async def _refresh(self) -> None:
        """Read to the end of what is committed now; where that fails, again, until the caller gives up."""
        if self._following is None:
            self._following = self._tasks.start("the schema registry's reader", self._follow)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            topic_id = self._topic.topic_id
            try:
                if topic_id is not None:
                    await self._catch_up(await self._topic.committed_end(_PARTITION))
                elif self._topic_id is not None:
                    self._begin(None)
                if topic_id == self._topic_id:
                    self._is_open = True
                    return
            except (KafkaError, OSError) as error:
                _log.debug("%s could not be read: %s", self._topic.name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    # Reads

    async def _follow(self) -> None:
        """Read what is written, from the first request on."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            if self._topic.topic_id is None:
                self._topic_appeared.clear()
                await self._topic_appeared.wait()
                continue
            position, epoch, topic_id = self._position, self._epoch, self._topic_id
            if topic_id != self._topic.topic_id:
                position, epoch = 0, NO_EPOCH
            try:
                read = await self._topic.read(_PARTITION, position, waits=True, last_epoch=epoch)
                async with self._reading:
                    self._begin_if_other()
                    if (position, self._topic_id) == (self._position, self._topic.topic_id):
                        await self._take(read)
                pause = _FIRST_PAUSE_SECONDS
            except (KafkaError, OSError) as error:
                _log.debug("%s could not be followed: %s", self._topic.name, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _catch_up(self, end: int) -> None:
        """Read up to an offset of the topic as it is now."""
        self._topic_appeared.set()
        async with self._reading:
            self._begin_if_other()
            while self._position < end:
                read = await self._topic.read(_PARTITION, self._position, waits=False, last_epoch=self._epoch)
                if self._topic.topic_id != self._topic_id:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{self._topic.name} is another one now")
                await self._take(read)

    def _begin_if_other(self) -> None:
        if self._topic.topic_id != self._topic_id:
            self._begin(self._topic.topic_id)

    def _begin(self, topic_id: bytes | None) -> None:
        """Begin again from the start of the topic, which may be another one than before."""
        self._state = RegistryState()
        self._topic_id = topic_id
        self._position, self._epoch, self._sequence, self._empty_reads = 0, NO_EPOCH, 0, 0
        self._is_open = False

    async def _take(self, read: TopicRead) -> None:
        """Take over what was read at `_position`."""
        if read.is_truncated:
            _log.warning("%s has lost records; it is read again from its start", self._topic.name)
            self._begin(self._topic_id)
            return
        turns = Turns(self._clock)
        before = self._position
        for batch in await self._pool.run(_batches, read.records, before):
            for key, value, timestamp_ms in batch.records:
                self._state.apply(key, value, timestamp_ms)
                await turns.pause_if_due()
            header = batch.header
            if header.producer_id == PRODUCER_ID:
                records = [(key, value) for key, value, _ in batch.records]
                self._note_sequence(header.base_sequence, header.last_offset_delta + 1, records)
            self._position = header.last_offset + 1
            self._epoch = header.leader_epoch
        if self._position > before:
            self._empty_reads = 0
            return
        if self._position < read.log_start_offset:
            self._position = read.log_start_offset
        elif self._position < read.high_watermark:
            self._empty_reads += 1
            if self._empty_reads >= _EMPTY_READS:
                self._position, self._empty_reads = read.high_watermark, 0

    def _note_sequence(self, first: int, count: int, records: list[Record]) -> None:
        if first == self._claim:
            self._claimed = records
        self._sequence = (first + count) & _MAX_SEQUENCE

    # Writes

    async def write(self, decide: Callable[[RegistryState], Awaitable[Changes[T]]]) -> T:
        try:
            async with asyncio.timeout(_WRITE_SECONDS), self._writing:
                while True:
                    await self._refresh()
                    sequence = self._sequence
                    changes = await decide(self._state)
                    if not changes.records:
                        return changes.answer
                    if self._topic_id is None:
                        await self._create_topic()
                    elif await self._append(sequence, changes.records):
                        return changes.answer
        except TimeoutError:
            raise RegistryError.timed_out(
                f"The write to {self._topic.name} timed out; whether it was done is not known."
            ) from None

    async def _create_topic(self) -> None:
        await self._topic.create()
        if self._topic.topic_id is None:
            await asyncio.sleep(_FIRST_PAUSE_SECONDS)

    async def _append(self, sequence: int, records: Sequence[Record]) -> bool:
        """Append a batch at this sequence, and wait until the state has it. False if the sequence is that of
        another batch, which the state has then.
        """
        now_ms = self._clock.wall_ms()
        batch = build_batch(
            [(now_ms, key, value) for key, value in records],
            producer_id=PRODUCER_ID,
            producer_epoch=_PRODUCER_EPOCH,
            base_sequence=sequence,
        )
        self._claim, self._claimed = sequence, None
        pause = _FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    await self._topic.append_batch(_PARTITION, batch)
                except KafkaError as error:
                    if error.code in _TOO_LARGE:
                        raise RegistryError.too_large() from None
                    if error.code in _REFUSED:
                        raise RegistryError.store(f"{self._topic.name}: {error.message}") from None
                    _log.debug("%s could not be appended to: %s", self._topic.name, error)
                except OSError as error:
                    _log.debug("%s could not be appended to: %s", self._topic.name, error)
                # Whatever came back: what counts is what the log has.
                await self._refresh()
                if self._claimed is not None:
                    is_own = self._claimed == list(records)
                    self.appends += is_own
                    self.conflicts += not is_own
                    return is_own
                if self._sequence != sequence:
                    self.conflicts += 1
                    return False
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        finally:
            self._claim = self._claimed = None


assert PRODUCER_ID > NO_PRODUCER_ID
