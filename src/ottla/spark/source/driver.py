"""The decisions of a stream's driver side, apart from Spark's classes.

What may be read next is worked out from three maps of offsets: where the stream stands, where the logs end,
and, with Trigger.AvailableNow, where they ended when the run began. Asking the cluster is the costly part, so
an answer is used for `POLL_INTERVAL_S` while nothing is new, and the list of partitions for
`DISCOVERY_INTERVAL_S`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from ottla.protocol.names import TopicPartition
from ottla.spark.source.limits import EARLIEST, LATEST, StreamOffset
from ottla.spark.source.link import link_to
from ottla.spark.source.loss import LossPolicy
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.planning import Offsets, Partitions, Planner
from ottla.spark.source.progress import GroupProgress
from ottla.spark.source.splitting import OffsetRange, split

__all__ = ["StreamDriver", "rate_limited"]

POLL_INTERVAL_S = 0.025
DISCOVERY_INTERVAL_S = 1.0
SIZES_INTERVAL_S = 60.0
# Below this, no range is worth asking how many bytes it has.
LARGE_RANGE = 1_000


class StreamDriver:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner = Planner(options)
        self._loss = LossPolicy(options.fail_on_data_loss)
        self._progress = GroupProgress(options.commit_to_group) if options.commit_to_group else None
        self._initial: StreamOffset | None = None
        # What the cluster said last, and when.
        self._partitions: Partitions | None = None
        self._partitions_at = -math.inf
        self._ends: Offsets | None = None
        self._idle_until = -math.inf
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_at = -math.inf
        self._last_batch_at = -math.inf
        self._available_now = False
        self._stop_at: Offsets | None = None

    # Where to begin.

    def initial(self) -> StreamOffset:
        """Where a new query begins. Asked more than once, and the same each time."""
        if self._initial is None:
            partitions = self._discovered(known=())
            self._initial = StreamOffset(
                self._planner.start_of(self._options.start, partitions), partitions.ids
            )
        return self._initial

    def stop_at_what_is_there(self) -> None:
        self._available_now = True

    # Where to end.

    def latest(
        self, start: StreamOffset, *, limited: bool, now: Callable[[], float] = time.monotonic
    ) -> StreamOffset | None:
        """The end of the next batch; None if it would be where `start` is."""
        self.reached(start)
        self._pace(now)
        partitions = self._current_partitions(start, now)
        ends = self._current_ends(partitions)
        begins = self._new_begins(start, partitions, ends)
        stands = {p: at for p, at in start.positions.items() if p in ends and p not in begins} | begins
        reach = self._reach(stands, ends, limited=limited, now=now)
        # A first batch says where it begins even if it is empty: nobody else will know.
        first = self._initial is not None and start == self._initial
        found = StreamOffset(reach, partitions.ids, {**start.positions, **begins} if first else begins)
        if not first and reach == start.positions and not begins:
            self._idle_until = now() + POLL_INTERVAL_S
            return None
        self._idle_until = -math.inf
        return found

    def known_ends(self) -> StreamOffset | None:
        return StreamOffset(self._ends) if self._ends else None

    def _pace(self, now: Callable[[], float]) -> None:
        wait = self._idle_until - now()
        if wait > 0:
            time.sleep(min(wait, POLL_INTERVAL_S))

    def _discovered(self, known: Mapping[str, bytes] | tuple[()]) -> Partitions:
        self._partitions = self._planner.partitions(known=known)
        return self._partitions

    def _current_partitions(self, start: StreamOffset, now: Callable[[], float]) -> Partitions:
        if self._partitions is None or now() - self._partitions_at >= DISCOVERY_INTERVAL_S:
            known = {partition.topic: b"" for partition in start.positions}
            self._discovered(known)
            self._partitions_at = now()
        assert self._partitions is not None
        return self._partitions

    def _current_ends(self, partitions: Partitions) -> Offsets:
        if self._available_now:
            if self._stop_at is None:
                self._stop_at = self._planner.offsets(dict.fromkeys(partitions.all, LATEST))
            ends = self._stop_at
        else:
            ends = self._planner.offsets(dict.fromkeys(partitions.all, LATEST))
        self._ends = ends
        return ends

    def _new_begins(self, start: StreamOffset, partitions: Partitions, ends: Offsets) -> Offsets:
        """Where to begin in partitions that `start` does not know, or knows from a topic of the same name.
        Those that were found after an AvailableNow run began have no end in it, and are left to the next.
        """
        recreated = recreated_topics(start, partitions.ids)
        for topic in recreated:
            self._loss.recreated(topic)
        new = [p for p in ends if p not in start.positions or p.topic in recreated]
        return self._planner.offsets(dict.fromkeys(new, EARLIEST)) if new else {}

    def _reach(self, stands: Offsets, ends: Offsets, *, limited: bool, now: Callable[[], float]) -> Offsets:
        options = self._options
        if not limited:
            return dict(ends)
        if options.min_offsets_per_trigger is not None and not self._available_now:
            waited_ms = (now() - self._last_batch_at) * 1000
            waiting = sum(end - stands.get(p, end) for p, end in ends.items())
            if waiting < options.min_offsets_per_trigger and waited_ms < options.max_trigger_delay_ms:
                return dict(stands)
            self._last_batch_at = now()
        if options.max_offsets_per_trigger is not None:
            return rate_limited(stands, ends, options.max_offsets_per_trigger)
        return dict(ends)

    # What to read.

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The tasks of a batch."""
        recreated = recreated_topics(start, end.ids)
        for topic in recreated:
            self._loss.recreated(topic)
        gone = sorted(p for p in start.positions if p not in end.positions)
        if gone:
            self._loss.gone(gone)
        begins = {**start.positions, **end.begins}
        unknown = [p for p in end.positions if p not in begins]
        if unknown:
            begins |= self._planner.offsets(dict.fromkeys(unknown, EARLIEST))
        found = []
        for partition, stop in sorted(end.positions.items()):
            begin = begins.get(partition)
            if begin is None:
                self._loss.gone([partition])
                continue
            if begin > 0 and partition not in start.positions:
                self._loss.expired(partition, 0, begin, begin)
            if stop < begin:
                self._went_back(start, partition, begin, stop)
                continue
            found.append(OffsetRange(partition, end.ids.get(partition.topic), begin, stop))
        return self._cut(found)

    def _went_back(self, start: StreamOffset, partition: TopicPartition, begin: int, stop: int) -> None:
        """The log ends before where the stream stands: another topic of the same name, or a truncated log."""
        now = self._discovered(known={partition.topic: b""})
        if partition.topic in recreated_topics(start, now.ids):
            self._loss.recreated(partition.topic)
        else:
            self._loss.beyond_the_end(partition, begin, stop)

    def _cut(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        options = self._options
        large = [each.partition for each in ranges if each.size >= LARGE_RANGE]
        if large and time.monotonic() - self._sizes_at >= SIZES_INTERVAL_S:
            self._sizes = self._planner.bytes_per_offset(large)
            self._sizes_at = time.monotonic()
        return split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
            max_bytes=options.max_bytes_per_partition,
            bytes_per_offset=self._sizes,
        )

    # What has been read.

    def reached(self, offset: StreamOffset) -> None:
        """Everything before `offset` has been processed: Spark says so by `commit`, and by asking for a batch
        that begins there. The second comes after the last batch of an AvailableNow run too.
        """
        if self._progress is not None:
            self._progress.publish(link_to(self._options.connection), offset.positions)


def recreated_topics(start: StreamOffset, ids: Mapping[str, bytes]) -> list[str]:
    return sorted(topic for topic, known in start.ids.items() if topic in ids and ids[topic] != known)


def rate_limited(
    stands: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> Offsets:
    """Ends that are about `limit` offsets away, each partition with its share; a small one is not starved."""
    sizes = {p: end - stands[p] for p, end in ends.items() if p in stands and end > stands[p]}
    total = sum(sizes.values())
    found = dict(ends)
    for partition, size in sizes.items():
        share = limit * size / total
        found[partition] = min(stands[partition] + max(int(share), 1), ends[partition])
    return found
