"""Workers of a share group: call a handler with each record, and acknowledge by its outcome.

Records are fetched as handlers become free, no more than can be worked on at once, and their locks are
renewed for as long as it takes. Acknowledgements go out as they come, together with the next request to the
broker.

Invariant: each record that was taken is acknowledged once: accepted, released or rejected.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ottla.client.share.share_completed_fetch import DamagedBatch, RecordDeserializationFailed, ShareRecord
from ottla.client.share.share_consume_request_manager import AcknowledgementResult
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.share import AcknowledgeType
from ottla.runtime.pool import InlinePool, Pool, ThreadPool

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

Handler: TypeAlias = Callable[[ShareRecord[K, V]], Awaitable[object] | object]
OnReject: TypeAlias = Callable[[ShareRecord[Any, Any], Exception], Awaitable[object] | object]

POLL_MS = 1_000.0
# A lock is renewed when a third of it has passed, so that two attempts may fail.
RENEWALS_PER_LOCK = 3
DEFAULT_LOCK_MS = 30_000
MAX_BACKOFF_MS = 60_000.0
# Before `on_reject` is called a second time; doubled with each failure.
HAND_OVER_BACKOFF_MS = 500.0
# Records that wait for their release at a time; more are released at once.
MAX_WAITING = 1_000
_FINISH_S = 5.0


class WorkerRecordSource(Protocol[K, V]):
    """The consumer as its workers see it."""

    @property
    def acquisition_lock_timeout_ms(self) -> int | None: ...

    async def take_for_workers(self, most: int, timeout_ms: float) -> list[ShareRecord[K, V]]: ...

    def acknowledge(self, record: ShareRecord[Any, Any], type: AcknowledgeType = ...) -> None: ...

    def send_acknowledgements(self) -> None: ...

    async def commit(self, *, timeout_ms: float | None = None) -> object: ...

    def note_poll(self) -> None: ...


class WorkerResults:
    """What became of the records. `failed` counts acknowledgements that a broker has refused, or may not
    have: these records are delivered again.
    """

    __slots__ = ("accepted", "failed", "rejected", "released", "renewed")

    def __init__(self) -> None:
        self.accepted = 0
        self.released = 0
        self.rejected = 0
        self.renewed = 0
        self.failed = 0

    def __repr__(self) -> str:
        return "WorkerResults({})".format(", ".join(f"{n}={getattr(self, n)}" for n in self.__slots__))


class WorkerPool(Generic[K, V]):
    """`ShareConsumer.run_workers` says what the options mean."""

    def __init__(
        self,
        source: WorkerRecordSource[K, V],
        handler: Handler[K, V],
        *,
        concurrency: int,
        max_deliveries: int | None,
        reject_on: tuple[type[Exception], ...],
        on_reject: OnReject | None,
        retry_backoff_ms: float,
        grace_ms: float | None,
        threads: bool,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency} must be at least 1")
        if max_deliveries is not None and max_deliveries < 1:
            raise ValueError(f"max_deliveries={max_deliveries} must be at least 1")
        self._source = source
        self._handler = handler
        self._concurrency = concurrency
        self._max_deliveries = max_deliveries
        self._reject_on = reject_on
        self._on_reject = on_reject
        self._retry_backoff_ms = retry_backoff_ms
        self._grace_ms = grace_ms
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        # Once there is a record, the duration of locks is known.
        self._begun = asyncio.Event()
        # Records with their jobs: those that a handler works on, and those that wait for their release.
        self._running: dict[asyncio.Task[None], ShareRecord[K, V]] = {}
        self._waiting: dict[asyncio.Task[None], ShareRecord[K, V]] = {}
        self._is_async = _is_coroutine_function(handler)
        self._pool: Pool | None = None
        if not self._is_async or (on_reject is not None and not _is_coroutine_function(on_reject)):
            self._pool = ThreadPool(concurrency, name="ottla-worker") if threads else InlinePool()
        # In threads.
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._sending = False
        self.ended = asyncio.Event()
        self.results = WorkerResults()

    @property
    def is_called_by_a_worker(self) -> bool:
        task = asyncio.current_task()
        return task in self._running or task in self._waiting

    def stop(self) -> None:
        self._stopping.set()
        self._freed.set()

    def on_result(self, result: AcknowledgementResult) -> None:
        if result.error is not None:
            self.results.failed += sum(last - first + 1 for first, last, _ in result.ranges)

    async def run(self) -> WorkerResults:
        """Work until `stop`, or until a poll raises."""
        loop = asyncio.get_running_loop()
        renewals = loop.create_task(self._renew_locks(), name="ottla-share-renewals")
        try:
            while not self._stopping.is_set():
                self._freed.clear()
                free = self._concurrency - len(self._running)
                if free <= 0:
                    await self._freed.wait()
                    continue
                await self._take(free)
            await self._finish(self._grace_ms)
        finally:
            renewals.cancel()
            try:
                await self._abandon()
            finally:
                self.ended.set()
                if self._pool is not None:
                    # Functions that were given up still run in its threads, and cannot be stopped.
                    if self._calls:
                        await asyncio.wait(list(self._calls))
                    self._pool.close()
        return self.results

    async def _take(self, free: int) -> None:
        """Take records, and begin to work on them; none if the workers are stopped meanwhile."""
        loop = asyncio.get_running_loop()
        poll = loop.create_task(self._source.take_for_workers(free, POLL_MS))
        stop = loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([poll, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            poll.cancel()
            stop.cancel()
            await asyncio.wait([poll, stop])
            # A poll that had records when it was cancelled still returns them: they are released.
            failure = None if poll.cancelled() else poll.exception()
            for record in poll.result() if failure is None and not poll.cancelled() else ():
                self._begin(record, self._work(record))
        if isinstance(failure, RecordDeserializationFailed):
            # The handler cannot have it, but it may be worth a place in a dead-letter topic.
            self._begin(failure.record, self._on_failure(failure.record, failure))
        elif isinstance(failure, DamagedBatch):
            log.warning("%s", failure)
        elif failure is not None:
            raise failure

    def _begin(self, record: ShareRecord[Any, Any], job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._running[task] = record
        self._begun.set()
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        record = self._running.pop(task, None) or self._waiting.pop(task)
        self._freed.set()
        if task.cancelled():
            # Perhaps before it began.
            self._acknowledge(record, AcknowledgeType.RELEASE)
        elif (error := task.exception()) is not None:
            log.error("a worker failed; its record is released", exc_info=error)
            self._acknowledge(record, AcknowledgeType.RELEASE)

    async def _work(self, record: ShareRecord[K, V]) -> None:
        try:
            await self._call(self._handler, self._is_async, record)
        except Exception as error:
            await self._on_failure(record, error)
        else:
            self._acknowledge(record, AcknowledgeType.ACCEPT)

    async def _call(self, function: Callable[..., Any], is_async: bool, *args: Any) -> None:
        if is_async or self._pool is None:
            outcome = function(*args)
        else:
            call = asyncio.ensure_future(self._pool.run(_call_plain, function, *args))
            self._calls[call] = None
            call.add_done_callback(self._on_call_done)
            outcome = await asyncio.shield(call)
        if inspect.isawaitable(outcome):
            await outcome

    def _on_call_done(self, call: asyncio.Future[Any]) -> None:
        del self._calls[call]
        if not call.cancelled():
            call.exception()  # of one that was given up; others have raised it

    async def _on_failure(self, record: ShareRecord[Any, Any], error: Exception) -> None:
        place = f"{record.topic}-{record.partition}, offset {record.offset}"
        limit = self._max_deliveries
        if isinstance(error, self._reject_on) or (limit is not None and record.delivery_count >= limit):
            log.warning("%s: rejected after delivery %d", place, record.delivery_count, exc_info=error)
            handed_over = await self._hand_over(record, error, place)
            self._acknowledge(record, AcknowledgeType.REJECT if handed_over else AcknowledgeType.RELEASE)
            return
        log.warning("%s: released after delivery %d: %r", place, record.delivery_count, error)
        delay_ms = min(self._retry_backoff_ms * 2 ** (record.delivery_count - 1), MAX_BACKOFF_MS)
        if delay_ms > 0:
            await self._pause(delay_ms)
        self._acknowledge(record, AcknowledgeType.RELEASE)

    async def _pause(self, delay_ms: float) -> bool:
        """Have a record wait for so long, with its lock renewed, while others are worked on; False if it is
        to be released now.
        """
        task = asyncio.current_task()
        if task in self._running:
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting[task] = self._running.pop(task)
            self._freed.set()
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    async def _hand_over(self, record: ShareRecord[Any, Any], error: Exception, place: str) -> bool:
        """Give a record to `on_reject`, again and again until that succeeds: if it were released each time,
        it would soon reach the delivery limit and be archived. False if the workers are stopped before.
        """
        if self._on_reject is None:
            return True
        delay_ms = max(self._retry_backoff_ms, HAND_OVER_BACKOFF_MS)
        while True:
            try:
                await self._call(self._on_reject, _is_coroutine_function(self._on_reject), record, error)
            except Exception:
                log.exception("%s: on_reject failed; it is called again in %.1f s", place, delay_ms / 1000)
            else:
                return True
            if not await self._pause(delay_ms):
                return False
            delay_ms = min(2 * delay_ms, MAX_BACKOFF_MS)

    def _acknowledge(self, record: ShareRecord[Any, Any], type: AcknowledgeType) -> None:
        try:
            self._source.acknowledge(record, type)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_RECORD_STATE:
                raise
            self.results.failed += 1
            log.info("%s", error)
            return
        name = {
            AcknowledgeType.ACCEPT: "accepted",
            AcknowledgeType.RELEASE: "released",
            AcknowledgeType.REJECT: "rejected",
            AcknowledgeType.RENEW: "renewed",
        }[type]
        setattr(self.results, name, getattr(self.results, name) + 1)
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._sending = False
        self._source.send_acknowledgements()

    async def _renew_locks(self) -> None:
        """Renew the locks of all records that are worked on or wait, again and again."""
        await self._begun.wait()
        while True:
            lock_ms = self._source.acquisition_lock_timeout_ms or DEFAULT_LOCK_MS
            await asyncio.sleep(lock_ms / RENEWALS_PER_LOCK / 1000)
            self._source.note_poll()
            for task, record in [*self._running.items(), *self._waiting.items()]:
                # One that is done is acknowledged already.
                if not task.done():
                    self._acknowledge(record, AcknowledgeType.RENEW)

    async def _finish(self, grace_ms: float | None) -> None:
        """Wait for the handlers that run, for so long."""
        jobs = [*self._running, *self._waiting]
        if jobs:
            await asyncio.wait(jobs, timeout=None if grace_ms is None else grace_ms / 1000)

    async def _abandon(self) -> None:
        """Cancel what still runs, release its records, and see that all is acknowledged."""
        self._stopping.set()
        jobs = [*self._running, *self._waiting]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        try:
            await self._source.commit(timeout_ms=_FINISH_S * 1000)
        except KafkaError as error:
            log.warning("acknowledgements of the last records are not confirmed: %s", error)


def _call_plain(function: Callable[..., Any], *args: Any) -> Any:
    """Call a plain function, in which `sys.exit` is a failure as any other: in a task it would end the event
    loop, with all workers and without a word to its caller.
    """
    try:
        return function(*args)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"the function has raised {error!r}; `stop_workers` ends workers") from error


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )
