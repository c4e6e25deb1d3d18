"""The guarantees of a cluster, checked while it runs.

- A partition has at most one leader in an epoch.
- A record that is committed once is never lost or changed, on any replica.
- A record that is acknowledged with acks=all is committed at that moment, at the acknowledged offset.
- No client reads above the high watermark, a `read_committed` consumer reads nothing of an open or aborted
  transaction, and a record that is read is the one that was committed.
- Two nodes that have replayed the metadata log to the same offset have the same image.

The checker observes the replicas of each node through a `NodeWatcher`; clients report what they are
acknowledged and what they read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from ottla.metadata.image.image import MetadataImage
from ottla.node.server.broker_server import BrokerServer
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import (
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TopicPartition,
)
from ottla.records._kernel import Record
from ottla.records.batch import iter_batches, read_records
from ottla.replication.partition import Partition
from ottla.sim.cluster.history import Mismatch, PartitionHistory
from ottla.sim.cluster.journal import SentRecord
from ottla.sim.cluster.share_checker import DEAD_LETTERS, ShareChecker
from ottla.sim.cluster.streams_checker import StreamsChecker
from ottla.sim.cluster.tier_checker import TierChecker
from ottla.sim.disk import SimDisk
from ottla.sim.world import SimMachine, World

_READ_BYTES = 1 << 20
_KNOWN_IMAGES = 2_000


class ClusterChecker:
    def __init__(self, world: World, *, min_insync: int = 2) -> None:
        self._world = world
        self._min_insync = min_insync
        self.histories: dict[tuple[bytes, int], PartitionHistory] = {}
        self._by_name: dict[TopicPartition, PartitionHistory] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._images: OrderedDict[int, MetadataImage] = OrderedDict()
        self.newest = MetadataImage.EMPTY
        # What each controller has decided, committed or not: it may still be committed, much later.
        self._decided: dict[int, MetadataImage] = {}
        # Topics with unclean leader election: committed records may be lost there.
        self.unclean: set[str] = set()
        # Brokers that ended without a clean shutdown, and those of them whose disks lost data, with the
        # broker epoch that they had then.
        self._ended: dict[int, int] = {}
        # The broker whose disk rots; None if none does.
        self.rotting: int | None = None
        self._lost_data: dict[int, int] = {}
        # Reassignments that were requested and are not answered yet.
        self.moves_in_flight = 0

        # Whether a broker is neither paused nor cut off from another node, and was not a moment ago.
        self.is_steady: Callable[[int], bool] = lambda _broker: True

        self.watches: dict[int, NodeWatcher] = {}  # of the nodes that are up
        self.machines: dict[int, SimMachine] = {}
        self.share = ShareChecker(world, self.histories, self._compare_share_state)
        self.streams = StreamsChecker(world)
        self.tier: TierChecker | None = None

    @property
    def elections(self) -> int:
        return len(self._leaders)

    @property
    def committed(self) -> int:
        return sum(len(history.entries) for history in self.histories.values())

    def history(self, topic: str, partition: int) -> PartitionHistory | None:
        return self._by_name.get(TopicPartition(topic, partition))

    def histories_of(self, topic: str) -> list[PartitionHistory]:
        return [history for tp, history in self._by_name.items() if tp.topic == topic]

    # Replicas

    def on_leader(self, partition: Partition, node: int) -> None:
        key = (partition.topic_id, partition.topic_partition.partition, partition.leader_epoch)
        known = self._leaders.get(key)
        if known is None:
            self._leaders[key] = node
            self._world.trace.add(
                "checker", f"node {node} leads {partition.topic_partition} in epoch {partition.leader_epoch}"
            )
            self._world.event("leads", self.machines[node])
        elif known != node:
            self._world.report_violation(
                f"node {node} leads {partition.topic_partition} in epoch {partition.leader_epoch}, "
                f"which had the leader {known}"
            )

    def history_of(self, partition: Partition) -> PartitionHistory:
        tp = partition.topic_partition
        key = (partition.topic_id, tp.partition)
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = PartitionHistory(str(tp))
            self._by_name[tp] = history
            if tp.topic == SHARE_GROUP_STATE_TOPIC:
                history.on_record = self.share.on_state_record
            elif tp.topic in DEAD_LETTERS:
                history.on_record = self._on_dead_letter
            elif tp.topic == CONSUMER_OFFSETS_TOPIC:
                history.on_record = self.streams.on_record
            elif tp.topic == REMOTE_LOG_METADATA_TOPIC and self.tier is not None:
                history.on_record = self.tier.on_metadata_record
        return history

    def _on_dead_letter(self, record: Record) -> None:
        """Check a committed dead letter: its writer may be killed before it can note that."""
        topic, index = self.share.on_dead_letter(record)
        image = self.newest.topics.by_name.get(topic)
        registration = None if image is None else image.partitions.get(index)
        if registration is not None and registration.leader in self.machines:
            self._world.event("writes a dead letter", self.machines[registration.leader])

    def compare_remote_log_metadata(self) -> None:
        """Compare what the replicas of the topic of remote segments have committed by now."""
        for watch in self.watches.values():
            watch.check(REMOTE_LOG_METADATA_TOPIC)

    def _compare_share_state(self) -> None:
        """Compare what the replicas of the share coordinator's topic have committed by now."""
        for watch in self.watches.values():
            watch.check(SHARE_GROUP_STATE_TOPIC)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The newest leader epoch of a partition in any metadata image."""
        image = self.newest.topics.by_name.get(topic)
        registration = None if image is None else image.partitions.get(partition)
        return -1 if registration is None else registration.leader_epoch

    # Metadata

    def on_image(self, image: MetadataImage, who: str) -> None:
        offset = image.provenance.last_contained_offset
        if offset < 0:
            return
        known = self._images.setdefault(offset, image)
        if known is not image and known != image:
            self._world.report_violation(f"{who} has another metadata image up to {offset} than other nodes")
        if offset > self.newest.provenance.last_contained_offset:
            self.newest = image
        if len(self._images) > _KNOWN_IMAGES:
            self._images.popitem(last=False)

    def on_decided(self, node: int, image: MetadataImage) -> None:
        """Note what the active controller on this node has decided."""
        self._decided[node] = image

    def _possible_images(self) -> Iterator[MetadataImage]:
        """The newest committed image, and what may follow it: the decisions that are not committed yet."""
        yield self.newest
        end = self.newest.provenance.last_contained_offset
        yield from (image for image in self._decided.values() if image.provenance.last_contained_offset > end)

    # Clients

    def on_acknowledged(self, sent: SentRecord) -> None:
        """Check a record that was acknowledged to a producer, at the offset in `sent`."""
        if sent.acks == 1:
            epochs = [watch.leads_with(sent) for watch in self.watches.values()]
            sent.leader_epoch = max(epochs, default=-1)
        if sent.acks != -1 or sent.offset < 0 or sent.topic in self.unclean:
            return
        history = self.history(sent.topic, sent.partition)
        entry = None if history is None else history.entries.get(sent.offset)
        if entry is None:
            end = None if history is None else history.end
            self._world.report_violation(
                f"{sent.value!r} is acknowledged at {sent.topic}-{sent.partition} {sent.offset}, and "
                f"committed is only what is below {end}"
            )
        elif entry.value != sent.value:
            self._world.report_violation(
                f"{sent.value!r} is acknowledged at {sent.topic}-{sent.partition} {sent.offset}, where "
                f"{entry.value!r} is committed"
            )

    def on_read(
        self, topic: str, partition: int, offset: int, value: bytes | None, *, read_committed: bool
    ) -> None:
        """Check a record that a consumer has read."""
        if topic in self.unclean:
            return
        history = self.history(topic, partition)
        entry = None if history is None else history.entries.get(offset)
        where = f"{topic}-{partition} {offset}"
        if history is None or entry is None:
            end = None if history is None else history.end
            self._world.report_violation(
                f"{value!r} was read at {where}, and committed is only what is below {end}"
            )
        elif entry.value != value:
            self._world.report_violation(f"{value!r} was read at {where}, where {entry.value!r} is committed")
        elif read_committed and (not entry.decided or offset >= history.last_stable_offset):
            state = "still open" if entry.decided is None else "aborted" if not entry.decided else "decided"
            self._world.report_violation(
                f"{value!r} was read as committed at {where}; its transaction is {state}, and the last "
                f"stable offset {history.last_stable_offset}"
            )

    # Which broker may end

    def may_end(self, broker: int, *, power_loss: bool) -> bool:
        """Whether all guarantees still hold if this broker ends without a clean shutdown and, with
        `power_loss`, its disk loses what was not synced.

        A broker that ended so is not elected before it has caught up, as it may have lost records. So of each
        partition an in-sync replica must remain that has not ended so; unless no replica has lost data, or
        this broker is known to be the last in-sync replica and keeps its data: then it becomes leader again.

        The replica that remains must be steady: one that is paused or cut off may be fenced before those that
        have ended are, and then the controller does not count on what it has.

        With a `min.insync.replicas` of 1 no eligible replica is kept beside the last in-sync one. If that one
        has lost data and the others are fenced, the controller elects it again, as Kafka's does: so no disk
        may lose data then. Nor may one while a reassignment is requested, which may drop the replica that
        remains.
        """
        if power_loss and (self._min_insync == 1 or self.moves_in_flight):
            return False
        return all(self._survives(image, broker, power_loss) for image in self._possible_images())

    def may_move_replicas(self) -> bool:
        """Whether all guarantees still hold if replicas are dropped: not before each broker that has lost
        data is fenced. Until then the controller counts on what it had, as Kafka's does.
        """
        return not any(self._is_out(self._lost_data, id) for id in self._lost_data)

    def may_fall_silent(self, broker: int) -> bool:
        """Whether all guarantees still hold if the controller hears nothing of this broker for a while: not
        before each broker that has lost data is out of the in-sync sets in which this one is.
        """
        if not any(self._is_out(self._lost_data, id) for id in self._lost_data):
            return True
        return not any(
            broker in registration.isr and any(self._is_out(self._lost_data, id) for id in registration.isr)
            for image in self._possible_images()
            for topic, _, registration in image.topics.partitions()
            if topic.name not in self.unclean
        )

    def keeps_sound_replicas(self, broker: int | None = None) -> bool:
        """Whether each partition that the rotting disk may have damaged keeps an in-sync replica on another
        one, also if this broker ends or falls silent. The broker that finds damage gives its replica up where
        the controller has another one in sync; it cannot know that this one has just ended.
        """
        rotting = self.rotting
        assert rotting is not None
        return all(
            any(
                id not in (broker, rotting) and not self._is_out(self._ended, id) and self.is_steady(id)
                for id in registration.isr
            )
            for image in self._possible_images()
            for _, _, registration in image.topics.partitions()
            if rotting in {*registration.isr, *registration.elr, *registration.last_known_elr}
        )

    def _survives(self, image: MetadataImage, broker: int, power_loss: bool) -> bool:
        for topic, _, registration in image.topics.partitions():
            eligible = {*registration.isr, *registration.elr, *registration.last_known_elr}
            if broker not in eligible or topic.name in self.unclean:
                continue
            staying = [
                id
                for id in registration.isr
                if id != broker and not self._is_out(self._ended, id) and self.is_steady(id)
            ]
            # A broker that has lost data counts as such until it is in sync again, also if it is back.
            lost_data = power_loss or any(
                self._is_out(self._lost_data, id) or (id in self._lost_data and id not in registration.isr)
                for id in eligible
            )
            if lost_data and not staying and (power_loss or registration.isr != (broker,)):
                return False
        return True

    def on_ended(self, broker: int, *, power_loss: bool) -> None:
        registration = self.newest.cluster.brokers.get(broker)
        epoch = -1 if registration is None else registration.epoch
        self._ended[broker] = epoch
        if power_loss:
            self._lost_data[broker] = epoch

    def _is_out(self, ends: dict[int, int], broker: int) -> bool:
        """Whether the broker has ended and has not registered since."""
        registration = self.newest.cluster.brokers.get(broker)
        return broker in ends and (registration is None or registration.epoch <= ends[broker])


class NodeWatcher:
    """Observes one process of a node for the checker: called on every progress of a partition."""

    def __init__(
        self, world: World, checker: ClusterChecker, id: int, broker: BrokerServer, disk: SimDisk
    ) -> None:
        self._world = world
        self._checker = checker
        self.id = id
        self._broker = broker
        self._disk = disk
        self._checked: dict[tuple[bytes, int], int] = {}
        broker.replicas.add_progress_listener(self.on_progress)
        checker.watches[id] = self

    def leads_with(self, sent: SentRecord) -> int:
        """The leader epoch, if this node leads the partition and has the record in its log; otherwise -1."""
        try:
            partition = self._broker.replicas.partition(TopicPartition(sent.topic, sent.partition))
            if not partition.is_leader or not 0 <= sent.offset < partition.log.log_end_offset:
                return -1
            with self._disk.undisturbed():
                data = partition.log.read(sent.offset, 1).records
        except (KafkaError, OSError):
            return -1
        found = {record.offset: record.value for record in read_records(data)} if data else {}
        return partition.leader_epoch if found.get(sent.offset) == sent.value else -1

    def check(self, topic: str | None = None) -> None:
        """Check all partitions, or those of a topic, as far as they are not checked yet."""
        for partition in self._broker.replicas:
            if topic is None or partition.topic_partition.topic == topic:
                self.on_progress(partition)

    def on_progress(self, partition: Partition) -> None:
        log = partition.log
        if partition.is_leader:
            self._checker.on_leader(partition, self.id)
        if partition.topic_partition.topic in self._checker.unclean or log.is_closed:
            return
        key = (partition.topic_id, partition.topic_partition.partition)
        high_watermark = log.high_watermark
        checked = self._checked.get(key, 0)
        if high_watermark == checked:
            return
        if partition.is_leader and key in self._checked and high_watermark > checked:
            self._check_min_insync(partition)
            self._world.event("commits", self._checker.machines[self.id])
        try:
            with self._disk.undisturbed():
                self._compare(partition, max(min(checked, high_watermark), log.local_log_start_offset))
        except Mismatch as mismatch:
            self._world.report_violation(str(mismatch))
        except (KafkaError, OSError) as error:
            self._world.trace.add("checker", f"cannot read {partition.topic_partition}: {error}")
            return
        self._checked[key] = high_watermark

    def _check_min_insync(self, partition: Partition) -> None:
        """Check that a leader that commits has `min.insync.replicas` in sync."""
        wanted = min(partition.log.config.min_insync_replicas, len(partition.replicas))
        if len(partition.isr) < wanted and len(partition.replicas) > 1:
            self._world.report_violation(
                f"node {self.id} commits {partition.topic_partition} up to {partition.log.high_watermark} "
                f"with {sorted(partition.isr)} in sync; min.insync.replicas is {wanted}"
            )

    def _compare(self, partition: Partition, start: int) -> None:
        log, history = partition.log, self._checker.history_of(partition)
        end = log.high_watermark
        if log.config.is_remote and log.log_start_offset < start <= end and start > history.end:
            raise Mismatch(
                f"node {self.id} has {history.name} on its disk from {start} on, where only what is below "
                f"{history.end} was committed"
            )
        while start < end:
            data = log.read(start, _READ_BYTES, upper_offset=end).records
            before = start
            for position, header in iter_batches(data):
                if header.next_offset > end:
                    return
                history.on_committed(
                    data, position, header, f"node {self.id}", is_compacted=log.config.compact
                )
                start = header.next_offset
            if start == before:
                return
