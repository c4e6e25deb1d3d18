"""The guarantees of a quorum, checked while it runs.

- An epoch has at most one leader, and all nodes that name the leader of an epoch name the same.
- A batch that is committed once is never lost or changed: all logs are equal below any high watermark.
- A new leader has everything that was committed before, and so every append that was acknowledged.
- The values that a node has applied are a prefix of one history, also through snapshots.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.raft.driver.kafka_raft_log import KafkaRaftLog
from ottla.records.batch import iter_batches, read_records
from ottla.sim.world import World


class _Batch(NamedTuple):
    next_offset: int
    epoch: int
    crc: int


class QuorumChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[int, int] = {}  # epoch -> leader
        self._committed: dict[int, _Batch] = {}  # base offset -> batch
        self.committed_end = 0
        self._commits: list[tuple[int, int]] = []  # (epoch, up to which offset it was committed then)
        self._values: list[bytes] = []  # the history of values, in order
        self._seen_values: set[bytes] = set()
        self.acknowledged: dict[bytes, int] = {}  # value -> the offset below which it is
        self.elections = 0

    # Leaders

    def on_leader_named(self, epoch: int, leader: int, by: int) -> None:
        known = self._leaders.setdefault(epoch, leader)
        if known != leader:
            self._world.report_violation(
                f"node {by} names {leader} as the leader of epoch {epoch}, which had the leader {known}"
            )

    def on_elected(self, node: int, epoch: int, log: KafkaRaftLog) -> None:
        """Check that a new leader has all that was committed in earlier epochs.

        With a slow disk it handles its election late, and a later leader may have committed more by then.
        """
        self.elections += 1
        self.on_leader_named(epoch, node, node)
        end = max((end for committed_in, end in self._commits if committed_in < epoch), default=0)
        if log.end.offset < end:
            self._world.report_violation(
                f"node {node} leads epoch {epoch} with a log that ends at {log.end.offset}, but everything "
                f"below {end} was committed before"
            )
            return
        self._compare(node, log, log.start_offset, end, "leads with")

    # Commits

    def on_committed(self, node: int, log: KafkaRaftLog, start: int, high_watermark: int, epoch: int) -> None:
        """Compare what a node commits, in `epoch`, from `start`, its last high watermark, on."""
        before = self.committed_end
        self._compare(node, log, max(start, log.start_offset), high_watermark, "commits")
        if self.committed_end > before:
            self._commits.append((epoch, self.committed_end))

    def _compare(self, node: int, log: KafkaRaftLog, start: int, end: int, what: str) -> None:
        for data in log.batches(start):
            for position, header in iter_batches(data):
                if header.base_offset >= end:
                    return
                batch = _Batch(header.next_offset, header.leader_epoch, header.crc)
                known = self._committed.get(header.base_offset)
                if known is not None and known != batch:
                    self._world.report_violation(
                        f"node {node} {what} {batch} at {header.base_offset}, where {known} was committed"
                    )
                    return
                if known is None and header.base_offset != self.committed_end:
                    self._world.report_violation(
                        f"node {node} {what} a batch at {header.base_offset} that begins where none did; "
                        f"everything below {self.committed_end} is committed"
                    )
                    return
                if known is None and header.next_offset <= end:
                    self._committed[header.base_offset] = batch
                    self.committed_end = header.next_offset
                    if not header.is_control:
                        self._add_values([record.value or b"" for record in read_records(data, position)])

    def _add_values(self, values: list[bytes]) -> None:
        self._values += values
        self._seen_values.update(values)

    def on_acknowledged(self, value: bytes, end_offset: int) -> None:
        if value not in self._seen_values:
            self._world.report_violation(f"{value!r} is acknowledged at {end_offset} and was not committed")
        self.acknowledged[value] = end_offset

    # States

    def on_applied(self, node: int, at: int, values: list[bytes]) -> None:
        """Check values that a node applied, from the `at`-th of its history on."""
        if values != self._values[at : at + len(values)]:
            self._world.report_violation(f"node {node} applied another history from its {at}th value on")

    @property
    def values(self) -> int:
        return len(self._values)

    def check_final(self, node: int, values: list[bytes]) -> None:
        """Check the values of a node at the end, when all nodes have caught up."""
        if len(values) != len(self._values):
            self._world.report_violation(f"node {node} applied {len(values)} of {len(self._values)} values")
        self.on_applied(node, 0, values)
        missing = [value for value in self.acknowledged if value not in self._seen_values]
        if missing:
            self._world.report_violation(f"acknowledged and lost: {missing[:5]}")
