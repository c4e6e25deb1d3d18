"""The controller and the quorum: who leads, how far the metadata log is, and what the cluster looks like.

As in Kafka every controller reports the cluster as its own image has it, the active one and the others. The
walk over all partitions of the cluster is done in turns, once for each image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.metadata.image.image import MetadataImage, TopicsImage
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.raft.states import Role
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import MetricsText
from ottla.runtime.turns import Turns

_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_RAFT: Final = "kafka_server_raftmetrics_"
_METADATA: Final = "kafka_server_brokermetadatametrics_"


class ControllerCollector:
    def __init__(
        self, clock: Clock, quorum: QuorumMember, unclean_elections: Callable[[], int], *, is_controller: bool
    ) -> None:
        self._clock: Final = clock
        self._quorum: Final = quorum
        self._unclean_elections: Final = unclean_elections
        self._is_controller: Final = is_controller
        # The topics that were walked last, and what was found.
        self._walked: TopicsImage | None = None
        self._partitions = 0
        self._offline = 0
        self._imbalanced = 0

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        metadata = self._quorum.metadata
        _write_quorum(text, metadata)
        self._write_image(text, metadata.image, metadata)
        if self._is_controller:
            active = self._quorum.active_controller.current is not None
            text.gauge(f"{_CONTROLLER}activecontrollercount", "1 at the active controller", int(active))
            text.counter(
                "kafka_controller_controllerstats_uncleanleaderelections_total",
                "Leaders that this controller has elected although they may lack records",
                self._unclean_elections(),
            )
            await self._write_cluster(text, turns, metadata.image)

    def _write_image(self, text: MetricsText, image: MetadataImage, metadata: MetadataLog) -> None:
        applied = image.provenance
        text.gauge(
            f"{_METADATA}last_applied_record_offset",
            "The offset of the last metadata record that this node has applied",
            applied.last_contained_offset,
        )
        text.gauge(
            f"{_METADATA}last_applied_record_timestamp",
            "When that record was written, in milliseconds",
            applied.last_contained_log_time_ms,
        )
        lag_ms = 0
        if applied.last_contained_log_time_ms >= 0:
            lag_ms = max(0, self._clock.wall_ms() - applied.last_contained_log_time_ms)
        text.gauge(f"{_METADATA}last_applied_record_lag_ms", "How long ago that was", lag_ms)
        text.gauge(
            "ottla_metadata_lag_records",
            "Metadata records that are committed and not applied here yet",
            max(0, metadata.high_watermark - applied.last_contained_offset - 1),
        )
        text.gauge(
            "ottla_metadata_snapshots", "Snapshots of the metadata that are kept", len(metadata.snapshots.ids)
        )
        text.histogram(
            "ottla_metadata_commit_seconds",
            "Time until the records of a decision of the active controller were committed",
            "",
            metadata.commit_times,
        )
        text.gauge(
            "kafka_brokers",
            "Brokers of the cluster that are registered and not fenced",
            sum(broker.is_active for broker in image.cluster.brokers.values()),
        )

    async def _write_cluster(self, text: MetricsText, turns: Turns, image: MetadataImage) -> None:
        if image.topics is not self._walked:
            await self._walk(image.topics, turns)
        gauge = text.gauge
        gauge(f"{_CONTROLLER}globaltopiccount", "Topics of the cluster", len(image.topics.by_id))
        gauge(f"{_CONTROLLER}globalpartitioncount", "Partitions of the cluster", self._partitions)
        gauge(f"{_CONTROLLER}offlinepartitionscount", "Partitions without a leader", self._offline)
        gauge(
            f"{_CONTROLLER}preferredreplicaimbalancecount",
            "Partitions that another broker leads than the preferred one",
            self._imbalanced,
        )
        brokers = image.cluster.brokers.values()
        fenced = sum(broker.fenced for broker in brokers)
        gauge(f"{_CONTROLLER}activebrokercount", "Brokers that are not fenced", len(brokers) - fenced)
        gauge(f"{_CONTROLLER}fencedbrokercount", "Brokers that are fenced", fenced)

    async def _walk(self, topics: TopicsImage, turns: Turns) -> None:
        partitions = offline = imbalanced = 0
        for topic in list(topics.by_id.values()):
            for registration in topic.partitions.values():
                partitions += 1
                offline += registration.leader < 0
                imbalanced += not registration.has_preferred_leader
                if turns.is_due():
                    await turns.pause()
        self._walked = topics
        self._partitions, self._offline, self._imbalanced = partitions, offline, imbalanced


def _write_quorum(text: MetricsText, metadata: MetadataLog) -> None:
    status = metadata.client.status
    voters = status.voters
    is_voter = voters is not None and status.node_id in voters.ids
    role = status.role.value
    if status.role is Role.FOLLOWER and not is_voter:
        role = "observer"
    text.gauge(
        f"{_RAFT}current_state", "The role of this node in the quorum", [((role,), 1)], ("current_state",)
    )
    text.gauge(
        f"{_RAFT}current_leader",
        "The leader of the quorum; -1 if there is none",
        -1 if status.leader_id is None else status.leader_id,
    )
    text.gauge(f"{_RAFT}current_epoch", "The epoch of the quorum", status.epoch)
    text.gauge(
        f"{_RAFT}high_watermark",
        "Where the committed part of the metadata log ends; -1 if that is not known yet",
        -1 if status.high_watermark is None else status.high_watermark,
    )
    text.gauge(f"{_RAFT}log_end_offset", "Where the metadata log ends here", status.log_end.offset)
    text.gauge(f"{_RAFT}number_of_voters", "Voters of the quorum", 0 if voters is None else len(voters.ids))
    text.gauge(
        "ottla_metadata_log_failed",
        "1 if the metadata log cannot be written any more: the node ends",
        int(metadata.failure is not None),
    )
