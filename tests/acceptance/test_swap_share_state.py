"""The state of share groups changes hands with its data directory, between Ottla and Apache Kafka.

Snapshots, updates after them, tombstones and records that were pruned: the next coordinator reads the same
states, fences the same epochs, and goes on writing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_share_group_state import DeleteShareGroupStateResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateResponse
from ottla.protocol.messages.read_share_group_state import ReadShareGroupStateResponse
from ottla.protocol.messages.read_share_group_state_summary import ReadShareGroupStateSummaryResponse
from ottla.protocol.messages.write_share_group_state import WriteShareGroupStateResponse
from tests.acceptance.changing_hands import Lives, every_exchange, life
from tests.support import share_state as state
from tests.support.kafka_corpus import Broker
from tests.support.share_state import ACKNOWLEDGED, ARCHIVED, AVAILABLE
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.exhaustive]

GROUP = "sharers"
PARTITIONS = 6
# A snapshot after four updates, and what is before the last snapshots of all goes soon.
SHARE_SETTINGS = {
    "share.coordinator.snapshot.update.records.per.snapshot": "4",
    "share.coordinator.state.topic.prune.interval.ms": "500",
    "share.coordinator.cold.partition.snapshot.interval.ms": "500",
    "share.coordinator.state.topic.num.partitions": "2",
}


@dataclass
class Sharers:
    """What the leader of share partitions does over the lives of their coordinators."""

    topic_id: bytes = b""
    life: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def set_up(self, wire: WireClient) -> None:
        topic = CreatableTopic(name="jobs", num_partitions=PARTITIONS, replication_factor=1)
        made = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7, CreateTopicsResponse)
        assert made.topics[0].error_code == 0
        self.topic_id = made.topics[0].topic_id

    def find(self, wire: WireClient) -> None:
        """Wait for the coordinators of all share partitions, until they have loaded their state."""

        def found() -> bool:
            find = state.find(GROUP, self.topic_id, range(PARTITIONS))
            answer = wire.get(find, 6, FindCoordinatorResponse)
            if any(each.error_code for each in answer.coordinators):
                return False
            summary = wire.get(
                state.summary(GROUP, self.topic_id, range(PARTITIONS)), 1, ReadShareGroupStateSummaryResponse
            )
            return not any(each.error_code for each in summary.results[0].partitions)

        wait_until(found, "a share partition has no coordinator")

    def see(self, wire: WireClient) -> tuple[object, object]:
        """All states as any coordinator must give them; read at the leader epoch of the last life."""
        self.find(wire)
        epochs = dict.fromkeys(range(PARTITIONS), self.life)
        return (
            wire.get(state.read(GROUP, self.topic_id, epochs), 0, ReadShareGroupStateResponse),
            wire.get(
                state.summary(GROUP, self.topic_id, range(PARTITIONS)), 1, ReadShareGroupStateSummaryResponse
            ),
        )

    def work(self, wire: WireClient) -> None:
        """One life's work: each share partition is initialized, or written on by a new leader; one is deleted
        and one is begun again.
        """
        self.find(wire)
        self.life += 1
        life = self.life
        fresh = [index for index in range(PARTITIONS) if index not in self.offsets]
        if fresh:
            answer = wire.get(
                state.initialize(GROUP, self.topic_id, {index: (life, index) for index in fresh}),
                0,
                InitializeShareGroupStateResponse,
            )
            assert not any(each.error_code for each in answer.results[0].partitions), answer
            self.offsets |= {index: index for index in fresh}
        epochs = dict.fromkeys(range(PARTITIONS), life)
        wire.get(state.read(GROUP, self.topic_id, epochs), 0, ReadShareGroupStateResponse)
        for index in range(PARTITIONS):
            # From none to many updates after the last snapshot.
            for number in range(3 * index):
                at = self.offsets[index]
                batches = (
                    (at, at + 4, ACKNOWLEDGED, 1),
                    (at + 5, at + 5, ARCHIVED, 5),
                    (at + 6, at + 9, AVAILABLE, 1 + number % 3),
                )
                start = at if number % 4 == 3 else -1
                write = state.write(
                    GROUP,
                    self.topic_id,
                    index,
                    *batches,
                    state_epoch=100,
                    leader_epoch=life,
                    start=start,
                    complete=6,
                )
                result = wire.get(write, 1, WriteShareGroupStateResponse).results[0].partitions[0]
                assert result.error_code == 0, result
                self.offsets[index] = at + 10
        gone = life % PARTITIONS
        deleted = wire.get(state.delete(GROUP, self.topic_id, [gone]), 0, DeleteShareGroupStateResponse)
        assert deleted.results[0].partitions[0].error_code == 0
        del self.offsets[gone]

    def check_fencing(self, wire: WireClient) -> None:
        """A leader of the life before is fenced wherever a state is left."""
        for index in self.offsets:
            write = state.write(
                GROUP, self.topic_id, index, (0, 0, ARCHIVED, 9), leader_epoch=self.life - 1, state_epoch=100
            )
            result = wire.get(write, 1, WriteShareGroupStateResponse).results[0].partitions[0]
            assert result.error_code == 74, f"FENCED_LEADER_EPOCH is missing: {result}"


def state_files(broker: Broker) -> set[str]:
    return {each.name for each in broker.data_dir.glob("__share_group_state-*")}


@every_exchange
def test_share_states_change_hands(tmp_path: Path, lives: Lives) -> None:
    sharers = Sharers()
    before: tuple[object, object] | None = None
    for number, (who, end) in enumerate(lives):
        with (
            life(tmp_path / "data", who, end, SHARE_SETTINGS) as broker,
            WireClient(broker.bootstrap) as wire,
        ):
            if before is None:
                sharers.set_up(wire)
            else:
                assert sharers.see(wire) == before, f"life {number}"
                sharers.check_fencing(wire)
            sharers.work(wire)
            before = sharers.see(wire)
            assert state_files(broker) == {"__share_group_state-0", "__share_group_state-1"}
