"""The first phase, in a task: write the rows in a transaction, flush it, and leave its end to the driver.

A transaction is opened late: when many rows are there, or all of them. A task without rows costs nothing, and
one whose few rows take long to compute holds no reader back meanwhile. Before a task of a streaming query
opens one, it looks at the decision log. If its batch is decided, it writes nothing. If its run does not own
the scope yet, it claims it; from then on no driver of an earlier run can decide anything, and what those have
left open is ended.

Transactional ids are not shared between two tasks that can be alive at once: they contain the partition, the
attempt, and a *lane* that changes with each run, and within a run after each batch in which a task was tried
again. So a task that was given up, and lives on, never disturbs the one that has replaced it.

What an attempt that loses leaves open is ended by the driver right after the batch; so the driver has to know
of it. A later attempt says so in the log before it takes its id over, and looks at the log again afterwards:
it finds the batch decided, or whoever decides finds the attempt. Of a first attempt the driver knows anyway;
that one looks again only if taking its id over took so long that another may have replaced it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.client.producer import Producer, QueuedRows
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.sink.columns import largest_field, rows_by_topic
from ottla.spark.sink.endings import transactional_id
from ottla.spark.sink.ledger import Entry, Kind, Transaction
from ottla.spark.sink.messages import Prepared, TaskMessage
from ottla.spark.sink.process import Client, client_of
from ottla.spark.sink.recovery import end_what_is_left
from ottla.spark.sink.stops import Place, stop_at

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.spark.sink.options import SinkOptions

__all__ = ["Fenced", "TaskPlace", "write_at_least_once", "write_prepared"]

log = logging.getLogger(__name__)

MOST_UNDER_WAY = 64
HELD_BYTES = 4 * 1024 * 1024
CLAIMS = 20
ABORT_SECONDS = 10
# Spark starts a second attempt, which has to write all its rows before the batch can be decided.
LOOK_AGAIN_SECONDS = 0.25


class Fenced(KafkaError):
    """Another run of the same query has taken over."""

    def __init__(self, scope: str, run: str, owner: str | None) -> None:
        super().__init__(
            ErrorCode.PRODUCER_FENCED,
            f"{scope}: run {run} of this query has been replaced by run {owner}; nothing of this batch was "
            "committed here. Is the query running twice on one checkpoint?",
        )


class GivenUp(KafkaError):
    """The driver has ended this batch without the task."""

    def __init__(self, scope: str, run: str) -> None:
        super().__init__(
            ErrorCode.PRODUCER_FENCED, f"{scope}: run {run} has ended while this task was about to write"
        )


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task stands. A batch write is alone in its scope, and has no `batch`."""

    scope: str
    run: str
    partition: int
    attempt: int
    batch: int | None = None


def new_token() -> str:
    return uuid4().hex[:12]


def write_at_least_once(
    options: SinkOptions, columns: tuple[str, ...], partition: int, batches: Iterable[pa.RecordBatch]
) -> TaskMessage:
    client = client_of(options)
    rows: _Rows | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if rows is None:
            rows = _Rows(client.call(client.plain_producer()))
        for topic, data in rows_by_topic(batch, columns, options.topic):
            client.call(rows.add(topic, data))
    if rows is not None:
        client.call(rows.finish())
    return TaskMessage(partition, rows.count if rows is not None else 0)


def write_prepared(
    options: SinkOptions, columns: tuple[str, ...], place: TaskPlace, batches: Iterable[pa.RecordBatch]
) -> TaskMessage:
    """Writes the rows in a transaction that is left open for the driver to end."""
    client = client_of(options)
    task = _Task(client, place)
    try:
        for held in _held(batches):
            if task.is_new:
                client.call(task.open())
                stop_at(Place.OPENED)
            if task.decided_at is not None:
                continue  # what is left is read, so that Spark can use this worker again
            for batch in held:
                for topic, data in rows_by_topic(batch, columns, options.topic):
                    client.call(task.rows.add(topic, data))
        if task.is_new:
            return task.empty()
        stop_at(Place.BEFORE_FLUSH)
        message = client.call(task.prepare())
        stop_at(Place.FLUSHED)
        return message
    except BaseException:
        client.call(task.abort())
        raise


def _held(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Rows, the first of them held back until there are many or no more will come."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= HELD_BYTES:
            yield held
            held = []  # what follows goes on its way as it comes
    if held:
        yield held


class _Rows:
    """Rows on their way through one producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._under_way: deque[QueuedRows] = deque()
        self._wrote: dict[tuple[str, int], tuple[int, int]] = {}
        self.count = 0

    async def add(self, topic: str, data: pa.RecordBatch) -> None:
        self._check_size(topic, data)
        while len(self._under_way) >= MOST_UNDER_WAY:
            await self._settle()
        self._under_way.append(await self._producer.queue_arrow(topic, data))

    async def finish(self) -> None:
        while self._under_way:
            await self._settle()

    def _check_size(self, topic: str, data: pa.RecordBatch) -> None:
        limit = self._producer.config.max_request_size
        size = largest_field(data)
        if size > limit:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"topic {topic!r}: a key or value of {size} bytes is larger than "
                f"kafka.max.request.size={limit}; raise that, and max.message.bytes of the topic",
            )

    async def _settle(self) -> None:
        try:
            sent = await self._under_way.popleft().delivered()
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            raise KafkaError(
                error.code, f"{error.message} Raise it for the topic, or write smaller values."
            ) from None
        for topic, partition, offset, rows in sent:
            first, last = self._wrote.get((topic, partition), (offset, -1))
            self._wrote[topic, partition] = min(first, offset), max(last, offset + rows - 1)
            self.count += rows

    @property
    def wrote(self) -> tuple[tuple[str, int, int, int], ...]:
        return tuple((topic, index, *ends) for (topic, index), ends in sorted(self._wrote.items()))


class _Task:
    def __init__(self, client: Client, place: TaskPlace) -> None:
        self._client = client
        self._place = place
        self._producer: Producer | None = None
        self._id = ""
        self._lane = 0
        self._began = -1
        self._former: tuple[str, ...] = ()
        self._claimed = False
        self.is_new = True
        self.decided_at: int | None = None

    async def open(self) -> None:
        """Leaves either a transaction open or `decided_at` set."""
        place = self._place
        self.is_new = False
        loop = asyncio.get_running_loop()
        began = loop.time()
        if place.batch is not None:
            await self._take_place(place.batch)
            if self.decided_at is not None:
                return
        self._id = transactional_id(place.scope, self._lane, place.partition, place.attempt, place.batch or 0)
        if place.attempt and place.batch is not None:
            token = self._id.removeprefix(place.scope)
            await self._client.decisions.append(Entry(Kind.ATTEMPT, place.scope, place.run, token=token))
        producer = await self._client.transactional_producer(self._id)
        try:
            if place.attempt or loop.time() - began > LOOK_AGAIN_SECONDS:
                await self._look_again()
        except BaseException:
            await producer.close(timeout_ms=0)
            raise
        if self.decided_at is not None:
            await producer.close()
            return
        self._producer = producer
        producer.transactions.begin()
        self.rows = _Rows(producer)

    async def _look_again(self) -> None:
        """Nothing was written yet, and nobody may come to end it if the batch is over."""
        place = self._place
        ledger = await self._client.decisions.read(place.scope)
        if place.batch is None:
            if ledger.has_ended:
                raise GivenUp(place.scope, place.run)
            return
        decided = ledger.decided()
        if decided is not None and decided[1].batch >= place.batch:
            self.decided_at = decided[0]
        elif ledger.owner != place.run:
            raise Fenced(place.scope, place.run, ledger.owner)
        elif ledger.is_fenced(place.run):
            raise GivenUp(place.scope, place.run)

    async def _take_place(self, batch: int) -> None:
        """Makes sure of the scope, or finds the batch decided."""
        scope, run = self._place.scope, self._place.run
        decisions = self._client.decisions
        ledger = await decisions.read(scope)
        for _ in range(CLAIMS):
            decided = ledger.decided()
            if decided is not None and decided[1].batch >= batch:
                self.decided_at = decided[0]
                return
            if ledger.is_fenced(run):
                raise GivenUp(scope, run)
            if ledger.owner == run:
                self._began = ledger.began(run)
                self._lane, self._former = ledger.lane_of(run), ledger.former
                if self._claimed:
                    await end_what_is_left(decisions, self._client.endings, scope, run, but_lane=self._lane)
                return
            if ledger.has_replaced(run):
                break
            self._claimed = True
            claim = ledger.claim(run, new_token())
            ledger = await decisions.read(scope, through=await decisions.append(claim))
            found = ledger.decided()
            if found is not None and found[1] != claim.decision and ledger.owner == run:
                # Decided between the look and the claim: a claim has to carry on all that is decided.
                claim = ledger.claim(run, new_token())
                ledger = await decisions.read(scope, through=await decisions.append(claim))
        raise Fenced(scope, run, ledger.owner)

    def empty(self) -> TaskMessage:
        """There were no rows. That there was an attempt before matters all the same: it may have had some."""
        place = self._place
        if not place.attempt:
            return TaskMessage(place.partition)
        return Prepared(place.partition, scope=place.scope, run=place.run, attempt=place.attempt)

    async def prepare(self) -> Prepared:
        place = self._place
        transaction = None
        if self._producer is not None:
            await self.rows.finish()
            prepared = await self._producer.transactions.prepare()
            transaction = Transaction(
                self._id, prepared.producer_id, prepared.epoch, self.rows.count, self.rows.wrote
            )
            await self._producer.close()
            if place.batch is None:
                self._client.endings.forget([self._id])
        return Prepared(
            place.partition,
            self.rows.count if transaction is not None else 0,
            scope=place.scope,
            run=place.run,
            began=self._began,
            lane=self._lane,
            former=self._former,
            claimed=self._claimed,
            attempt=place.attempt,
            transaction=transaction,
            decided_at=self.decided_at,
        )

    async def abort(self) -> None:
        """At once, so that nobody waits for it; if that fails, the driver or a timeout will."""
        if self._producer is None:
            return
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._producer.transactions.abort()
        except (KafkaError, TimeoutError) as error:
            log.warning("transaction %r could not be aborted by its own task: %s", self._id, error)
        finally:
            await self._producer.close(timeout_ms=0)
