"""Deliberate bugs of a cluster, to test whether the simulator finds them.

As in `ottla.sim.quorum.planted_bugs`, a bug replaces one function for the duration of a run. Each has a
scenario in which it shows within a few seeds; other scenarios find it with more seeds.
"""

# ruff: noqa: ARG001, ARG005 - a replacement has the arguments of what it replaces

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

from ottla.coordinator.group.offset_metadata_manager import OffsetMetadataManager
from ottla.coordinator.group.streams.task_reconciliation import TaskReconciliation
from ottla.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from ottla.coordinator.share.share_coordinator_shard import ShareCoordinatorShard
from ottla.coordinator.share.share_group_offset import ShareGroupOffset
from ottla.coordinator.transaction.pending_markers import PendingTransactionMarkers
from ottla.coordinator.transaction.requests import InitProducerId
from ottla.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from ottla.log import unified_log
from ottla.log.cleaner.compaction import CleanedTransactionMetadata
from ottla.log.local_log import FlushPlan
from ottla.log.producers.state_entry import ProducerAppendInfo, ProducerStateEntry
from ottla.log.producers.state_manager import ProducerAppend
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.controller import brokers as control_brokers
from ottla.metadata.controller.partition_change_builder import PartitionChangeBuilder
from ottla.metadata.image.delta import MetadataDelta
from ottla.node.cluster import damaged_replicas
from ottla.node.cluster.damaged_replicas import DamagedReplicas
from ottla.node.share import share_partition
from ottla.node.share.dead_letter_topics import DeadLetterTopics
from ottla.node.share.share_partition import (
    AcquiredRange,
    AcquisitionLock,
    InFlightBatch,
    RecordState,
    ShareGroupSettings,
    SharePartition,
)
from ottla.node.share.share_partition_manager import SharePartitionLeader, SharePartitionManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.metadata_records import ConfigRecord
from ottla.protocol.share import AcknowledgeType
from ottla.records.validation import AppendOrigin
from ottla.replication.partition import FetchIsolation, Partition
from ottla.runtime.zookeeper import SetZNode
from ottla.security.authorizer.standard_authorizer import StandardAuthorizer
from ottla.sim.cluster.planted_tier_bugs import TIER_BUGS
from ottla.sim.cluster.scenario import ClusterScenario
from ottla.sim.loop import current_process
from ottla.sim.nemesis import NemesisConfig
from ottla.zookeeper.driver.zookeeper_controller import ControllerWatches
from ottla.zookeeper.driver.zookeeper_log_driver import LedEpoch, ZooKeeperLogDriver
from ottla.zookeeper.znodes import BROKER_IDS

Patch = tuple[Any, str, Any]


def _sync_skipped() -> list[Patch]:
    """Not in the metadata log, which belongs to the quorum."""
    original = UnifiedLog.run_flush

    def run_flush(self: UnifiedLog, plan: FlushPlan) -> None:
        if self.topic_partition.topic == "__cluster_metadata":
            original(self, plan)

    return [(UnifiedLog, "run_flush", run_flush)]


def _unsynced_records_of_the_leader_count() -> list[Patch]:
    """Its own records that are not synced yet count for the high watermark; followers still sync theirs."""
    increment = Partition._maybe_increment_high_watermark
    committable = UnifiedLog.committable_offset
    counting: list[UnifiedLog] = []

    def committable_offset(self: UnifiedLog) -> int:
        return self.log_end_offset if self in counting else committable.__get__(self)

    def counts_all(self: Partition, now_ms: int) -> bool:
        counting.append(self.log)
        try:
            return increment(self, now_ms)
        finally:
            counting.pop()

    return [
        (UnifiedLog, "committable_offset", property(committable_offset)),
        (Partition, "_maybe_increment_high_watermark", counts_all),
    ]


def _acknowledged_before_replicas_have_it() -> list[Patch]:
    def replicated(self: Partition, required_offset: int) -> ErrorCode:
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    return [(Partition, "check_enough_replicas_reach_offset", replicated)]


def _committed_by_the_leader_alone() -> list[Patch]:
    def advance(self: Partition, now_ms: int) -> bool:
        if self.log.log_end_offset <= self.log.high_watermark:
            return False
        self.log.update_high_watermark(self.log.log_end_offset)
        return True

    return [(Partition, "_maybe_increment_high_watermark", advance)]


def _min_insync_ignored() -> list[Patch]:
    return [(Partition, "min_isr", property(lambda self: 1))]


def _never_joins_again() -> list[Patch]:
    return [(Partition, "maybe_expand_isr", lambda self, follower: None)]


def _divergence_not_noticed() -> list[Patch]:
    return [(Partition, "_divergence", lambda self, offset, epoch: None)]


def _leader_from_outside_the_in_sync_set() -> list[Patch]:
    def may_lead(self: PartitionChangeBuilder, replica: int) -> bool:
        return replica in self.partition.replicas and self.is_acceptable_leader(replica)

    return [(PartitionChangeBuilder, "_may_lead", may_lead)]


def _unclean_stop_taken_for_clean() -> list[Patch]:
    original = control_brokers._handle_broker_shutdown

    def records(state: Any, broker: int, *, clean: bool) -> Any:
        return original(state, broker, clean=True)

    return [(control_brokers, "_handle_broker_shutdown", records)]


def _duplicates_written_again() -> list[Patch]:
    return [
        (ProducerStateEntry, "find_duplicate", lambda self, batch: None),
        (ProducerAppendInfo, "_check_sequence", lambda self, batch: None),
    ]


def _followers_forget_producers() -> list[Patch]:
    original = UnifiedLog._analyze_and_validate_producer_state

    def analyze(
        self: UnifiedLog, data: Any, batches: Any, origin: AppendOrigin, *args: Any
    ) -> ProducerAppend | None:
        return None if origin is AppendOrigin.REPLICATION else original(self, data, batches, origin, *args)

    return [(UnifiedLog, "_analyze_and_validate_producer_state", analyze)]


def _open_transactions_shown() -> list[Patch]:
    return _isolation({FetchIsolation.TXN_COMMITTED: FetchIsolation.HIGH_WATERMARK})


def _read_above_the_high_watermark() -> list[Patch]:
    return _isolation({FetchIsolation.HIGH_WATERMARK: FetchIsolation.LOG_END})


def _isolation(instead: Mapping[FetchIsolation, FetchIsolation]) -> list[Patch]:
    original = Partition.fetch_records

    def fetch(self: Partition, *args: Any, isolation: FetchIsolation, **options: Any) -> Any:
        return original(self, *args, isolation=instead.get(isolation, isolation), **options)

    return [(Partition, "fetch_records", fetch)]


def _aborted_records_shown() -> list[Patch]:
    return [(Partition, "_aborted_transactions", lambda self, offset, last_stable, records: ())]


def _marker_dropped() -> list[Patch]:
    return [
        (
            PendingTransactionMarkers,
            "_unconfirmed_partitions",
            lambda self, marker, results: frozenset(),
        )
    ]


def _markers_not_driven_again() -> list[Patch]:
    from ottla.coordinator.runtime.effects import Effects

    return [(TransactionCoordinator, "on_loaded", lambda self, now: Effects())]


def _coordinator_answers_too_soon() -> list[Patch]:
    def answer(self: Any, context: Any, effects: Any, now: Any) -> None:
        for to, response in effects.replies:
            context.resolve(to, response)
        if effects.sends and self._on_sends is not None:
            self._on_sends(context.index, effects.sends)

    return [(CoordinatorRuntime, "_reply_when_committed", answer)]


def _generations_not_checked() -> list[Patch]:
    return [
        (OffsetMetadataManager, "_validate_offset_commit", lambda self, request, now: None),
        (OffsetMetadataManager, "_validate_transactional_offset_commit", lambda self, body: None),
    ]


def _aborted_offsets_kept() -> list[Patch]:
    original = OffsetMetadataManager.replay_end_transaction

    def end(self: OffsetMetadataManager, producer_id: int, commit: bool) -> list[str]:
        return original(self, producer_id, True)

    return [(OffsetMetadataManager, "replay_end_transaction", end)]


def _metadata_record_skipped() -> list[Patch]:
    original = MetadataDelta.replay

    def replay(self: MetadataDelta, record: Any) -> None:
        process = current_process()
        if not (isinstance(record, ConfigRecord) and process is not None and process.name == "node2"):
            original(self, record)

    return [(MetadataDelta, "replay", replay)]


def _decisions_kept_when_acls_change() -> list[Patch]:
    def on_change(self: StandardAuthorizer) -> None:
        self.version += 1

    return [(StandardAuthorizer, "_on_change", on_change)]


def _allowed_stays_allowed() -> list[Patch]:
    def on_change(self: StandardAuthorizer) -> None:
        self.version += 1
        self._younger = {key: rule for key, rule in self._younger.items() if rule.is_allowed}
        self._older.clear()

    return [(StandardAuthorizer, "_on_change", on_change)]


def _locks_never_expire() -> list[Patch]:
    return [(SharePartitionLeader, "set_timer", lambda self: None)]


def _locks_expire_early() -> list[Patch]:
    original = AcquisitionLock.__init__

    def init(self: AcquisitionLock, *args: Any) -> None:
        original(self, *args)
        self.deadline_ms -= self.duration_ms // 2

    return [(AcquisitionLock, "__init__", init)]


def _renewals_forgotten() -> list[Patch]:
    original = SharePartition._acknowledge_batch

    def acknowledge(self: SharePartition, batch: InFlightBatch, type: int, *args: Any) -> None:
        if type != AcknowledgeType.RENEW:
            original(self, batch, type, *args)

    return [(SharePartition, "_acknowledge_batch", acknowledge)]


def _acknowledged_before_it_is_persisted() -> list[Patch]:
    original = SharePartitionLeader.begin_transition

    def begin(self: SharePartitionLeader, transition: Any) -> asyncio.Future[KafkaError | None] | None:
        original(self, transition)
        return None

    return [(SharePartitionLeader, "begin_transition", begin)]


def _deliveries_not_counted() -> list[Patch]:
    original = SharePartition.acquire

    def acquire(self: SharePartition, *args: Any, **options: Any) -> list[AcquiredRange]:
        acquired = original(self, *args, **options)
        for first, last, count in acquired:
            for batch in self._overlapping(first, last):
                batch.split()
                for offset in range(max(first, batch.first), min(last, batch.last) + 1):
                    batch.counts[offset - batch.first] = max(1, count - 1)
        return [each._replace(delivery_count=max(1, each.delivery_count - 1)) for each in acquired]

    return [(SharePartition, "acquire", acquire)]


def _delivery_limit_ignored() -> list[Patch]:
    return [(SharePartition, "_outcome", lambda self, state, count: state)]


def _start_offset_passes_released_records() -> list[Patch]:
    original = InFlightBatch.first_not_done

    def first_not_done(self: InFlightBatch) -> int | None:
        found = original(self)
        while found is not None and self.states is not None and found <= self.last:
            if (
                self.states[found - self.first] == RecordState.ACQUIRED
                or self.counts[found - self.first] == 0
            ):
                return found
            found += 1
        return None if found is None or found > self.last else found

    return [(InFlightBatch, "first_not_done", first_not_done)]


def _rejected_records_come_back() -> list[Patch]:
    gap, accept, release, _ = share_partition._STATE_OF_TYPE
    return [(share_partition, "_STATE_OF_TYPE", (gap, accept, release, release))]


def _dead_letters_not_looked_for() -> list[Patch]:
    async def written(self: DeadLetterTopics, *args: Any) -> set[int]:
        return set()

    return [(DeadLetterTopics, "written", written)]


def _operators_answered_too_soon() -> list[Patch]:
    async def alter_records(
        self: SharePartitionManager, leader: SharePartitionLeader, ranges: Any, type: Any, *, most_looks: int
    ) -> Any:
        assert leader.share is not None
        done = leader.share.alter_records(ranges, int(type), self.now_ms(), most_looks=most_looks)
        leader.begin_transition(done.transition)
        return done.size, done.next_offset

    return [(SharePartitionManager, "alter_records", alter_records)]


def _used_up_records_get_no_dead_letter() -> list[Patch]:
    original = SharePartition._outcome

    def outcome(self: SharePartition, state: int, count: int) -> int:
        found = original(self, state, count)
        is_used_up = state == RecordState.AVAILABLE and found == RecordState.ARCHIVING
        return RecordState.ARCHIVED if is_used_up else found

    return [(SharePartition, "_outcome", outcome)]


def _new_leader_without_states() -> list[Patch]:
    return [(SharePartition, "_load", lambda self, batches: None)]


def _share_leaders_not_fenced() -> list[Patch]:
    original = ShareCoordinatorShard._write_error

    def error(self: ShareCoordinatorShard, key: Any, write: Any) -> Any:
        return original(self, key, replace(write, leader_epoch=-1))

    return [(ShareCoordinatorShard, "_write_error", error)]


def _snapshot_without_states() -> list[Patch]:
    original = ShareGroupOffset.snapshot_record

    def record(self: ShareGroupOffset, key: Any) -> Any:
        return original(replace(self, batches=()), key)

    return [(ShareGroupOffset, "snapshot_record", record)]


def _retries_do_not_wait() -> list[Patch]:
    return [(ShareGroupSettings, "retry_delay_ms", lambda self, delivery_count, offset: 0)]


def _new_leader_does_not_wait() -> list[Patch]:
    return [(SharePartition, "wait_before_retries", lambda self, now_ms: None)]


def _controller_not_checked_by_writes() -> list[Patch]:
    """Without the conditions: of the epoch of the controller, and of the version of what is replaced."""

    async def commit(self: ZooKeeperLogDriver, led: LedEpoch, part: list[Any]) -> None:
        unconditional = [each._replace(version=-1) if isinstance(each, SetZNode) else each for each in part]
        await self.session.multi(unconditional or [SetZNode("/brokers", b"")])
        led.confirmed_ns = self._runtime.clock.monotonic_ns()

    return [(ZooKeeperLogDriver, "_commit", commit)]


def _brokers_not_watched() -> list[Patch]:
    original = ControllerWatches._watch

    def watch(self: ControllerWatches, name: str) -> Any:
        return (lambda _: None) if name == BROKER_IDS else original(self, name)

    return [(ControllerWatches, "_watch", watch)]


def _prepared_not_kept() -> list[Patch]:
    """The next producer aborts what the one before has prepared."""
    original = TransactionCoordinator._init_while_ongoing

    def init(self: TransactionCoordinator, to: Any, request: InitProducerId, *args: Any) -> Any:
        return original(self, to, replace(request, keep_prepared=False), *args)

    return [(TransactionCoordinator, "_init_while_ongoing", init)]


def _aborted_records_supersede() -> list[Patch]:
    """The cleaner takes the records of aborted transactions for the last ones of their keys."""
    return [(CleanedTransactionMetadata, "on_batch_read", lambda _self, _header: False)]


def _streams_tasks_given_too_soon() -> list[Patch]:
    return [(TaskReconciliation, "_is_unreleased_active", lambda *_: False)]


def _rot_served() -> list[Patch]:
    return [(UnifiedLog, "_sound_part", lambda self, segment, found, data, bound: data)]


def _mended_from_a_bad_copy() -> list[Patch]:
    """Neither the leader nor the follower looks at what is copied."""
    return [*_rot_served(), (unified_log, "verify_crc", lambda data, at, header: None)]


def _damaged_leader_begins_again() -> list[Patch]:
    """Without waiting for another leader."""
    return [
        (damaged_replicas, "is_led_without", lambda registration, id: True),
        (DamagedReplicas, "_has_another", lambda self, tp: True),
    ]


CLUSTER_BUGS: Mapping[str, Callable[[], list[Patch]]] = {
    "sync-skipped": _sync_skipped,
    "unsynced-counts": _unsynced_records_of_the_leader_count,
    "rot-served": _rot_served,
    "mended-from-a-bad-copy": _mended_from_a_bad_copy,
    "damaged-leader-begins-again": _damaged_leader_begins_again,
    "acknowledged-before-replicas-have-it": _acknowledged_before_replicas_have_it,
    "committed-by-the-leader-alone": _committed_by_the_leader_alone,
    "min-insync-ignored": _min_insync_ignored,
    "never-joins-again": _never_joins_again,
    "divergence-not-noticed": _divergence_not_noticed,
    "leader-from-outside-the-in-sync-set": _leader_from_outside_the_in_sync_set,
    "unclean-stop-taken-for-clean": _unclean_stop_taken_for_clean,
    "duplicates-written-again": _duplicates_written_again,
    "followers-forget-producers": _followers_forget_producers,
    "open-transactions-shown": _open_transactions_shown,
    "read-above-the-high-watermark": _read_above_the_high_watermark,
    "aborted-records-shown": _aborted_records_shown,
    "marker-dropped": _marker_dropped,
    "markers-not-driven-again": _markers_not_driven_again,
    "coordinator-answers-too-soon": _coordinator_answers_too_soon,
    "generations-not-checked": _generations_not_checked,
    "aborted-offsets-kept": _aborted_offsets_kept,
    "metadata-record-skipped": _metadata_record_skipped,
    "decisions-kept-when-acls-change": _decisions_kept_when_acls_change,
    "allowed-stays-allowed": _allowed_stays_allowed,
    "locks-never-expire": _locks_never_expire,
    "locks-expire-early": _locks_expire_early,
    "renewals-forgotten": _renewals_forgotten,
    "acknowledged-before-it-is-persisted": _acknowledged_before_it_is_persisted,
    "deliveries-not-counted": _deliveries_not_counted,
    "delivery-limit-ignored": _delivery_limit_ignored,
    "start-offset-passes-released-records": _start_offset_passes_released_records,
    "rejected-records-come-back": _rejected_records_come_back,
    "dead-letters-not-looked-for": _dead_letters_not_looked_for,
    "operators-answered-too-soon": _operators_answered_too_soon,
    "used-up-records-get-no-dead-letter": _used_up_records_get_no_dead_letter,
    "new-leader-without-states": _new_leader_without_states,
    "share-leaders-not-fenced": _share_leaders_not_fenced,
    "snapshot-without-states": _snapshot_without_states,
    "retries-do-not-wait": _retries_do_not_wait,
    "new-leader-does-not-wait": _new_leader_does_not_wait,
    "controller-not-checked-by-writes": _controller_not_checked_by_writes,
    "brokers-not-watched": _brokers_not_watched,
    "prepared-not-kept": _prepared_not_kept,
    "aborted-records-supersede": _aborted_records_supersede,
    "streams-tasks-given-too-soon": _streams_tasks_given_too_soon,
    **TIER_BUGS,
}

_KILLS = {"kill a process": 3, "kill it after some steps": 2, "power loss": 2, "isolate a machine": 3}


def _scenario(
    *clients: str,
    features: tuple[str, ...] = (),
    synced: bool = False,
    longest_s: float = 2.0,
    ambush: float = 0.0,
    **weights: int,
) -> ClusterScenario:
    """`ambush` is how likely a node is to be killed right after it has committed records."""
    chosen = {name.replace("_", " "): weight for name, weight in weights.items()}
    return ClusterScenario(
        nodes=3,
        separate=False,
        dynamic=False,
        synced=synced,
        min_insync=2,
        timeout_scale=0.1,
        clients=clients,
        features=features,
        nemesis=NemesisConfig(
            interval_s=0.3, longest_s=longest_s, ambush={"commits": ambush}, weights=chosen or _KILLS
        ),
    )


_WRITERS = _scenario("acks-all", "idempotent", "follower")
_TRANSACTIONS = _scenario("transactional", "rivals", "committed-follower")
_COPIES = _scenario(
    "idempotent", "copy-classic", "copy-consumer", pause_a_client=4, kill_a_client=2, kill_a_process=1
)
_ACCESS = replace(_scenario("idempotent", sever_connections=1), features=("secured",))
_SHARES = replace(
    _scenario("idempotent", kill_a_process=2, sever_connections=2, kill_a_client=2, pause_a_client=2),
    features=("share-groups",),
)
# The leader of a share partition is killed right after its dead letter was committed.
_DEAD_LETTERS = replace(
    _SHARES,
    nemesis=NemesisConfig(
        interval_s=0.3, longest_s=2.0, ambush={"writes a dead letter": 0.3}, weights={"kill a process": 1}
    ),
)
# A leader is cut off from the active controller, and not from members and coordinators.
_SHARE_LEADERS = replace(
    _scenario("idempotent", longest_s=5.0, cut_one_link=2, cut_one_direction=1),
    separate=True,
    features=("share-groups",),
)
_ON_ZOOKEEPER = replace(
    _scenario("idempotent", "topics", "settings", kill_a_process=1, isolate_a_machine=1, slow_link=1),
    features=("zookeeper",),
)
_DELETED_CONTROLLERS = replace(
    _scenario("idempotent", "topics", "settings", "moves"),
    features=("zookeeper",),
    nemesis=NemesisConfig(
        interval_s=0.3,
        longest_s=2.0,
        weights={"delete /controller": 8, "cut off from ZooKeeper": 4, "kill a process": 1},
    ),
)
_TIERED = replace(
    _scenario("idempotent", "transactional", kill_a_process=2, sever_connections=1), features=("tiered",)
)
# Replicas move to nodes that have nothing of the partition, and most of it is in the store only.
_TIERED_FOLLOWERS = replace(
    _scenario("idempotent", "moves", longest_s=1.0, kill_a_process=3), nodes=4, features=("tiered",)
)
_ROTTEN = replace(
    _scenario("idempotent", "acks-all", "follower", bits_rot=8, kill_a_process=2, stop_and_start=2),
    synced=True,
    features=("rotten",),
)
SCENARIOS: Mapping[str, ClusterScenario] = {
    **dict.fromkeys(("rot-served", "mended-from-a-bad-copy", "damaged-leader-begins-again"), _ROTTEN),
    "sync-skipped": _scenario("idempotent", synced=True, power_loss=3, kill_all=2),
    # The power goes right after the leader has committed records.
    "unsynced-counts": _scenario(
        "idempotent", "follower", synced=True, ambush=0.02, power_loss_everywhere=3, slow_disk=2
    ),
    "divergence-not-noticed": _scenario("acks-1", "idempotent", longest_s=4.0, split_the_network=1),
    "duplicates-written-again": _scenario("idempotent", sever_connections=3, slow_link=2),
    "followers-forget-producers": _TRANSACTIONS,
    "open-transactions-shown": _TRANSACTIONS,
    "aborted-records-shown": _TRANSACTIONS,
    # Markers take long to arrive, and their connections break.
    "marker-dropped": _scenario("transactional", "rivals", longest_s=4.0, slow_link=3, sever_connections=5),
    "unclean-stop-taken-for-clean": replace(
        _scenario("idempotent", "acks-all", longest_s=1.0, power_loss=4, kill_a_process=4),
        nodes=2,
        separate=True,
    ),
    # The coordinator is killed right after it has committed the end of a transaction.
    "markers-not-driven-again": _scenario(
        "transactional", "rivals", ambush=0.03, kill_a_process=1, isolate_a_machine=1
    ),
    "coordinator-answers-too-soon": _scenario(
        "idempotent", "classic-group", "consumer-group", longest_s=4.0, split_the_network=3
    ),
    "generations-not-checked": _scenario("idempotent", "copy-classic", longest_s=6.0, pause_a_client=1),
    "aborted-offsets-kept": _COPIES,
    "metadata-record-skipped": _scenario("idempotent", "settings"),
    "decisions-kept-when-acls-change": _ACCESS,
    "allowed-stays-allowed": _ACCESS,
    "locks-never-expire": _SHARES,
    "locks-expire-early": _SHARES,
    "renewals-forgotten": _SHARES,
    "acknowledged-before-it-is-persisted": _SHARES,
    "deliveries-not-counted": _SHARES,
    "delivery-limit-ignored": _SHARES,
    "start-offset-passes-released-records": _SHARES,
    "rejected-records-come-back": _SHARES,
    "dead-letters-not-looked-for": _DEAD_LETTERS,
    "operators-answered-too-soon": _SHARES,
    "used-up-records-get-no-dead-letter": _SHARES,
    "new-leader-without-states": _SHARES,
    "share-leaders-not-fenced": _SHARE_LEADERS,
    "snapshot-without-states": _SHARES,
    "retries-do-not-wait": _SHARES,
    "new-leader-does-not-wait": _SHARES,
    # The controller learns late, or not at all, that its znode was deleted, and goes on.
    "controller-not-checked-by-writes": _DELETED_CONTROLLERS,
    "brokers-not-watched": _ON_ZOOKEEPER,
    "prepared-not-kept": _scenario("prepared", features=("two-phase",), kill_a_client=4, kill_a_process=1),
    "aborted-records-supersede": _scenario("transactional", features=("compaction",), kill_a_process=1),
    "streams-tasks-given-too-soon": _scenario(
        "idempotent", features=("streams-groups",), longest_s=1.0, kill_a_process=1, kill_a_client=1
    ),
    **dict.fromkeys(TIER_BUGS, _TIERED),
    "followers-without-auxiliary-state": _TIERED_FOLLOWERS,
    "deleted-topics-forgotten": replace(
        _scenario("idempotent", "topics", kill_a_process=2, kill_all=1), features=("tiered",)
    ),
    # A follower that has to look what is in the store cannot reach the leader of the events that say it.
    "waiters-left-at-a-close": replace(
        _scenario(
            "idempotent", "moves", longest_s=4.0, stop_at_any_moment=5, kill_a_process=3, cut_one_link=4
        ),
        nodes=4,
        features=("tiered",),
    ),
    # Of a follower that truncates its log right after its start.
    "local-start-without-a-snapshot": ClusterScenario(nodes=3, features=("tiered",)),
}


def cluster_bug_scenario(name: str) -> ClusterScenario:
    """The scenario in which to look for this bug."""
    return SCENARIOS.get(name, _WRITERS)


@contextlib.contextmanager
def plant_cluster_bug(name: str | None) -> Iterator[None]:
    """Plant a bug for as long as the context lasts; None plants none."""
    with contextlib.ExitStack() as stack:
        for target, attribute, replacement in CLUSTER_BUGS[name]() if name is not None else ():
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield
