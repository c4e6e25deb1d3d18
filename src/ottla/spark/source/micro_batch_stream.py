"""The offsets of a stream's micro-batches, decided in the driver.

The next batch follows from three maps of offsets: the position of the stream, the ends of the logs and, with
Trigger.AvailableNow, the ends of the logs when the run began. Asking the cluster is the expensive part, so an
answer is reused for `POLL_INTERVAL_S` while there is no new data, and the list of partitions for
`DISCOVERY_INTERVAL_S`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ottla.protocol.names import TopicPartition
from ottla.spark.source.client import source_client
from ottla.spark.source.data_loss import DataLossPolicy
from ottla.spark.source.division import Division, StreamDivider
from ottla.spark.source.group_commits import GroupOffsetCommitter
from ottla.spark.source.offset_ranges import OffsetRange, split
from ottla.spark.source.offset_reader import OffsetReader, Offsets, SourcePartitions
from ottla.spark.source.offsets import EARLIEST, LATEST, StreamOffset
from ottla.spark.source.options import ReadFrom, SourceOptions

POLL_INTERVAL_S = 0.025
DISCOVERY_INTERVAL_S = 1.0
SIZES_INTERVAL_S = 60.0
# The size in bytes of a smaller range is not asked for.
LARGE_RANGE = 1_000


class MicroBatchStream:
    """Plans the micro-batches of one query, as Spark's interface of this name does."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._offset_reader = OffsetReader(options)
        self._loss = DataLossPolicy(options.fail_on_data_loss)
        self._committer = GroupOffsetCommitter(options.commit_to_group) if options.commit_to_group else None
        self._divider = (
            None if options.read_from is ReadFrom.BROKERS else StreamDivider(options, self._offset_reader)
        )
        self._initial: StreamOffset | None = None
        # The last answers of the cluster, and when they came.
        self._partitions: SourcePartitions | None = None
        self._partitions_at = -math.inf
        self._ends: Offsets | None = None
        self._idle_until = -math.inf
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_at = -math.inf
        self._last_batch_at = -math.inf
        self._available_now = False
        self._stop_at: Offsets | None = None

    # The start of the stream.

    def initial_offset(self) -> StreamOffset:
        """The offset at which a new query begins. The answer never changes."""
        if self._initial is None:
            partitions = self._discover_partitions(known=())
            start = self._offset_reader.start_of(self._options.start, partitions)
            if self._divider is not None:
                start = self._divider.first_offsets(start, partitions.ids)
            self._initial = StreamOffset(start, partitions.ids)
        return self._initial

    def prepare_for_trigger_available_now(self) -> None:
        self._available_now = True

    # The end of the next batch.

    def latest_offset(
        self, start: StreamOffset, *, limited: bool, now: Callable[[], float] = time.monotonic
    ) -> StreamOffset | None:
        """The end of the next batch; None if there is nothing new after `start`."""
        self.commit(start)
        self._wait_while_idle(now)
        partitions = self._current_partitions(start, now)
        ends = self._current_ends(partitions)
        begins = self._new_begins(start, partitions, ends)
        positions = {p: at for p, at in start.positions.items() if p in ends and p not in begins} | begins
        ends_of_batch = self._limit(positions, ends, limited=limited, now=now)
        # The first batch records where it begins even if it is empty: it is kept nowhere else.
        first = self._initial is not None and start == self._initial
        found = StreamOffset(
            ends_of_batch, partitions.ids, {**start.positions, **begins} if first else begins
        )
        if not first and ends_of_batch == start.positions and not begins:
            self._idle_until = now() + POLL_INTERVAL_S
            return None
        self._idle_until = -math.inf
        return found

    def latest_known_offset(self) -> StreamOffset | None:
        return StreamOffset(self._ends) if self._ends else None

    def _wait_while_idle(self, now: Callable[[], float]) -> None:
        wait = self._idle_until - now()
        if wait > 0:
            time.sleep(min(wait, POLL_INTERVAL_S))

    def _discover_partitions(self, known: Mapping[str, bytes] | tuple[()]) -> SourcePartitions:
        self._partitions = self._offset_reader.partitions(known=known)
        return self._partitions

    def _current_partitions(self, start: StreamOffset, now: Callable[[], float]) -> SourcePartitions:
        if self._partitions is None or now() - self._partitions_at >= DISCOVERY_INTERVAL_S:
            known = {partition.topic: b"" for partition in start.positions}
            self._discover_partitions(known)
            self._partitions_at = now()
        assert self._partitions is not None
        return self._partitions

    def _current_ends(self, partitions: SourcePartitions) -> Offsets:
        if self._available_now:
            if self._stop_at is None:
                self._stop_at = self._offset_reader.offsets(dict.fromkeys(partitions.all, LATEST))
            ends = self._stop_at
        else:
            ends = self._offset_reader.offsets(dict.fromkeys(partitions.all, LATEST))
        self._ends = ends
        return ends

    def _new_begins(self, start: StreamOffset, partitions: SourcePartitions, ends: Offsets) -> Offsets:
        """The start offsets of partitions that `start` does not have, or has from a deleted topic of the same
        name. Partitions that appear during an AvailableNow run have no end in it, and are left to the
        next.
        """
        recreated = recreated_topics(start, partitions.ids)
        for topic in recreated:
            self._loss.report_recreated(topic)
        new = [p for p in ends if p not in start.positions or p.topic in recreated]
        return self._offset_reader.offsets(dict.fromkeys(new, EARLIEST)) if new else {}

    def _limit(
        self, positions: Offsets, ends: Offsets, *, limited: bool, now: Callable[[], float]
    ) -> Offsets:
        options = self._options
        if not limited:
            return dict(ends)
        if options.min_offsets_per_trigger is not None and not self._available_now:
            waited_ms = (now() - self._last_batch_at) * 1000
            waiting = sum(end - positions.get(p, end) for p, end in ends.items())
            if waiting < options.min_offsets_per_trigger and waited_ms < options.max_trigger_delay_ms:
                return dict(positions)
            self._last_batch_at = now()
        if options.max_offsets_per_trigger is not None:
            return rate_limited(positions, ends, options.max_offsets_per_trigger)
        return dict(ends)

    # The ranges of a batch.

    def plan_ranges(self, start: StreamOffset, end: StreamOffset) -> Division:
        """What the tasks of a batch read: ranges of offsets, of brokers unless the options say otherwise."""
        recreated = recreated_topics(start, end.ids)
        for topic in recreated:
            self._loss.report_recreated(topic)
        gone = sorted(p for p in start.positions if p not in end.positions)
        if gone:
            self._loss.report_deleted(gone)
        begins = {**start.positions, **end.begins}
        unknown = [p for p in end.positions if p not in begins]
        if unknown:
            begins |= self._offset_reader.offsets(dict.fromkeys(unknown, EARLIEST))
        found = []
        for partition, stop in sorted(end.positions.items()):
            begin = begins.get(partition)
            if begin is None:
                self._loss.report_deleted([partition])
                continue
            if begin > 0 and partition not in start.positions:
                self._loss.report_expired(partition, 0, begin, begin)
            if stop < begin:
                self._report_end_before_start(start, partition, begin, stop)
                continue
            found.append(OffsetRange(partition, end.ids.get(partition.topic), begin, stop))
        if self._divider is None:
            return Division(ranges=self._split(found))
        divided = self._divider.divide(found)
        return replace(divided, ranges=self._split(divided.ranges))

    def _report_end_before_start(
        self, start: StreamOffset, partition: TopicPartition, begin: int, stop: int
    ) -> None:
        """Report that the log ends before the position of the stream: another topic of the same name, or a
        truncated log.
        """
        now = self._discover_partitions(known={partition.topic: b""})
        if partition.topic in recreated_topics(start, now.ids):
            self._loss.report_recreated(partition.topic)
        else:
            self._loss.report_beyond_end(partition, begin, stop)

    def _split(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        options = self._options
        large = [each.partition for each in ranges if each.size >= LARGE_RANGE]
        if large and time.monotonic() - self._sizes_at >= SIZES_INTERVAL_S:
            self._sizes = self._offset_reader.bytes_per_offset(large)
            self._sizes_at = time.monotonic()
        return split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            max_bytes=options.max_bytes_per_partition,
            bytes_per_offset=self._sizes,
        )

    # The progress.

    def commit(self, offset: StreamOffset) -> None:
        """Note that everything before `offset` is processed. Spark says so by `commit`, and by asking for a
        batch that begins there, which also happens after the last batch of an AvailableNow run.
        """
        if self._committer is not None:
            self._committer.commit(source_client(self._options.connection), offset.positions)


def recreated_topics(start: StreamOffset, ids: Mapping[str, bytes]) -> list[str]:
    return sorted(topic for topic, known in start.ids.items() if topic in ids and ids[topic] != known)


def rate_limited(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """Ends about `limit` offsets after the positions, shared by size; each partition gets at least one."""
    sizes = {p: end - positions[p] for p, end in ends.items() if p in positions and end > positions[p]}
    total = sum(sizes.values())
    found = dict(ends)
    for partition, size in sizes.items():
        share = limit * size / total
        found[partition] = min(positions[partition] + max(int(share), 1), ends[partition])
    return found
