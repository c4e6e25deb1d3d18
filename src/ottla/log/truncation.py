"""Changes of a log in steps, of which the slow ones run off the event loop: truncations, and swaps of
compacted segments.

A truncation waits for the disk several times (a checkpoint, the names of removed segments, the end of the
last one) and replays the producer state. `UnifiedLog` describes it as a generator, which runs on the event
loop and yields each call that may block; `LogChange` makes these calls, one after the other: in the pool
(`run`), or here and now (`finish`). The order is that of the generator in both cases, so a crash at any point
leaves the same files. Until the last step the log belongs to its truncation: what would change the log
finishes the truncation first, and periodic work passes it over. During a swap the log takes appends and
flushes, which touch other segments; what would change the same ones finishes the swap first. A segment that
remote storage has is removed in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from ottla.log.directory.directory import LogDirectory
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.pool import CallOnce, Pool

REPLAYED_AT_ONCE: Final = 128
"""Batches that one step replays: a few milliseconds, as the pool and the event loop share an interpreter."""


class CheckpointOffsets:
    """A step: make offsets of one log durable in the checkpoints of its directory before its files change.
    Those of several logs share a write.
    """

    __slots__ = ("_directory", "_is_wanted", "_log_start", "_partition", "_recovery_point")

    def __init__(
        self, directory: LogDirectory, partition: TopicPartition, recovery_point: int, log_start: int | None
    ) -> None:
        """The recovery point may be at most `recovery_point`, and so may the offset up to which the log is
        clean; the log start has to be `log_start`, unless that is None.
        """
        self._directory: Final = directory
        self._partition: Final = partition
        self._recovery_point: Final = recovery_point
        self._log_start: Final = log_start
        self._is_wanted = True

    def cancel(self) -> None:
        self._is_wanted = False

    def __call__(self) -> None:
        """Write them here and now, also if `run` is under way."""
        self._is_wanted = False
        self._directory.lower_recovery_points({self._partition: self._recovery_point})
        if self._log_start is not None:
            self._directory.set_log_starts({self._partition: self._log_start})

    async def run(self, pool: Pool) -> None:
        directory, partition = self._directory, self._partition
        await directory.recovery_point_changes.write(
            partition, self._recovery_point, lambda: self._is_wanted, pool
        )
        await directory.cleaned_offset_changes.write(
            partition, self._recovery_point, lambda: self._is_wanted, pool
        )
        if self._log_start is not None:
            await directory.log_start_changes.write(partition, self._log_start, lambda: self._is_wanted, pool)


class RaiseRecoveryPoint:
    """A step: make sure that the durable recovery point of a log is not below one that was reached."""

    __slots__ = ("_directory", "_is_wanted", "_partition", "_recovery_point")

    def __init__(self, directory: LogDirectory, partition: TopicPartition, recovery_point: int) -> None:
        self._directory: Final = directory
        self._partition: Final = partition
        self._recovery_point: Final = recovery_point
        self._is_wanted = True

    def __call__(self) -> None:
        """Write it here and now, also if `run` is under way."""
        self._is_wanted = False
        self._directory.raise_recovery_points({self._partition: self._recovery_point})

    def cancel(self) -> None:
        self._is_wanted = False

    async def run(self, pool: Pool) -> None:
        await self._directory.recovery_point_raises.write(
            self._partition, self._recovery_point, lambda: self._is_wanted, pool
        )


Step: TypeAlias = Callable[[], Any] | CheckpointOffsets | RaiseRecoveryPoint
Steps: TypeAlias = Generator[Step, Any, bool]


def run_here(steps: Generator[Step, Any, Any]) -> Any:
    """Make the calls of a generator here and now; return its result."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


class LogChange:
    """One change from its first step to its last. Belongs to the event loop."""

    __slots__ = ("_error", "_is_running", "_result", "_step", "_steps", "_waiting")

    def __init__(self, steps: Steps) -> None:
        self._steps: Final = steps
        # The call under way; None once the change has ended.
        self._step: CallOnce[object] | CheckpointOffsets | RaiseRecoveryPoint | None = None
        self._result = False
        self._error: Exception | None = None
        self._is_running = False
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Run to the first call that may block."""
        self._resume(None, None)

    @property
    def is_done(self) -> bool:
        return self._step is None

    def finish(self) -> bool:
        """Make the remaining calls here and now; whether anything was changed."""
        while (step := self._step) is not None:
            try:
                result = step()
            except Exception as error:
                self._resume(None, error)
            else:
                self._resume(result, None)
        return self._outcome()

    async def run(self, pool: Pool) -> bool:
        """Make the remaining calls in the pool; whether anything was changed."""
        self._is_running = True
        try:
            while (step := self._step) is not None:
                result, failure = None, None
                try:
                    if isinstance(step, CheckpointOffsets | RaiseRecoveryPoint):
                        await step.run(pool)
                    else:
                        result = await pool.run(step)
                except Exception as error:
                    failure = error
                if self._step is step:  # otherwise `finish` went on with it
                    self._resume(result, failure)
        finally:
            self._is_running = False
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        return self._outcome()

    def abandon(self, reason: str) -> None:
        """Make no further call, as after a crash at this point; one that is being made is waited for."""
        step, self._step = self._step, None
        if step is None:
            return
        if isinstance(step, CallOnce):
            step.settle(None)
        else:
            step.cancel()
        self._error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self._steps.close()

    async def wait(self) -> None:
        """Return once it no longer runs in the pool. What it has left, if anything, is for `finish`."""
        if self._is_running:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def _resume(self, result: object, failure: Exception | None) -> None:
        """Go on with the outcome of a call, to the next one or to the end."""
        self._step = None
        try:
            step = self._steps.send(result) if failure is None else self._steps.throw(failure)
        except StopIteration as end:
            self._result = bool(end.value)
        except Exception as error:
            self._error = error
        else:
            if isinstance(step, CheckpointOffsets | RaiseRecoveryPoint):
                self._step = step
            else:
                self._step = CallOnce(step)

    def _outcome(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._result


class LogTruncation(LogChange):
    """A truncation, and what it lets others know of the log meanwhile."""

    __slots__ = ("log_start", "reopens_transactions")

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps)
        # What checkpoints are to hold as the log start from now on; None if that of the log.
        self.log_start: int | None = None
        # True while it is unknown which transactions below the high watermark are open.
        self.reopens_transactions = False
