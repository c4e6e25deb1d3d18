"""Partitions: sizes and offsets, in-sync sets, what leads and what lags.

One walk over the partitions of the broker, in turns, gives the sums and, for at most `metrics.max.partitions`
partitions, series of their own; the first that the broker has hosted have them. The sizes and segments of the
others are one sum, with the partition `_other`, so that sums over all are right. The number of series is
therefore at most some ten for each of these partitions, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.log.unified_log import UnifiedLog
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.coordinators.producer_id_manager import ProducerIdManager
from ottla.node.fetch.session import FetchSessionCache
from ottla.node.metrics.slow_calls import SlowCall
from ottla.protocol.errors import KafkaError
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.metrics import OTHER, MetricKind, MetricsText, label_text
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns

_REPLICAS: Final = "kafka_server_replicamanager_"
_GAUGE: Final = MetricKind.GAUGE
_LABELS: Final = ("topic", "partition")
# Logs whose sizes one call in the pool reads.
_SIZES_AT_ONCE: Final = 256


class _Sums:
    """What is summed up over all partitions."""

    def __init__(self) -> None:
        self.partitions = 0
        self.leaders = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.reassigning = 0
        self.producers = 0
        self.late_transactions = 0
        self.other_size = 0
        self.other_segments = 0
        self.follower_lags: dict[int, int] = {}
        self.directories: dict[str, int] = {}


class PartitionCollector:
    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        replicas: ReplicaManager,
        replication: BrokerReplication,
        producer_ids: ProducerIdManager,
        fetch_sessions: FetchSessionCache,
    ) -> None:
        self._config: Final = config
        self._clock: Final = runtime.clock
        self._replicas: Final = replicas
        self._replication: Final = replication
        self._producer_ids: Final = producer_ids
        self._fetch_sessions: Final = fetch_sessions
        self._sizes: Final = SlowCall(runtime.pool, runtime.clock)

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        partitions = list(self._replicas)
        await self._load_sizes(partitions, turns)
        sums = _Sums()
        bound = self._config.current.number("metrics.max.partitions")
        await self._walk(text, turns, partitions, bound, sums)
        self._write_sums(text, sums)
        if turns.is_due():
            await turns.pause()
        await self._write_fetchers(text, turns, bound)

    async def _load_sizes(self, partitions: Sequence[Partition], turns: Turns) -> None:
        """Have the pool read the sizes of segments that no request has needed since the start. Those that a
        disk does not give in time count as empty.
        """
        unknown: list[UnifiedLog] = []
        for partition in partitions:
            if partition.log.local_log.known_size is None:
                unknown.append(partition.log)
            if turns.is_due():
                await turns.pause()
        for start in range(0, len(unknown), _SIZES_AT_ONCE):
            is_read = await self._sizes.run(_read_sizes, unknown[start : start + _SIZES_AT_ONCE])
            turns.begin()
            if not is_read:
                return

    async def _walk(
        self, text: MetricsText, turns: Turns, partitions: Sequence[Partition], bound: int, sums: _Sums
    ) -> None:
        family = text.family
        sizes = family("kafka_log_log_size", "Bytes of the log", _GAUGE)
        segments = family("kafka_log_log_numlogsegments", "Segments of the log", _GAUGE)
        starts = family("kafka_log_log_logstartoffset", "The first offset of the log", _GAUGE)
        ends = family("kafka_log_log_logendoffset", "The offset that the next record gets", _GAUGE)
        isrs = family(
            "kafka_cluster_partition_insyncreplicascount", "In-sync replicas, at the leader", _GAUGE
        )
        replicas = family("kafka_cluster_partition_replicascount", "Replicas, at the leader", _GAUGE)
        under = family("kafka_cluster_partition_underreplicated", "1 if a replica is not in sync", _GAUGE)
        under_min = family(
            "kafka_cluster_partition_underminisr", "1 if the in-sync set is below min.insync.replicas", _GAUGE
        )
        at_min = family(
            "kafka_cluster_partition_atminisr", "1 if the in-sync set is just min.insync.replicas", _GAUGE
        )
        current = family("kafka_topic_partition_current_offset", "The high watermark, at the leader", _GAUGE)
        unstable = family(
            "kafka_cluster_partition_laststableoffsetlag",
            "Records between the last stable offset and the high watermark, at the leader",
            _GAUGE,
        )
        now_ms = self._clock.wall_ms()
        named = 0
        for partition in partitions:
            log = partition.log
            local = log.local_log
            size, count = local.known_size or 0, len(local.segments)
            directory = log.directory.path
            sums.directories[directory] = sums.directories.get(directory, 0) + size
            if named < bound:
                named += 1
                tp = partition.topic_partition
                labels = f'{{topic="{tp.topic}",partition="{tp.partition}"}} '
                sizes.append(f"kafka_log_log_size{labels}{size}")
                segments.append(f"kafka_log_log_numlogsegments{labels}{count}")
                starts.append(f"kafka_log_log_logstartoffset{labels}{log.log_start_offset}")
                ends.append(f"kafka_log_log_logendoffset{labels}{local.log_end_offset}")
            else:
                labels = ""
                sums.other_size += size
                sums.other_segments += count
            producers = log.loaded_producer_state
            first_unstable = None
            if producers is not None and not producers.is_empty:
                sums.producers += len(producers.active_producers)
                first_unstable = producers.first_unstable_offset()
                if first_unstable is not None and producers.has_late_transaction(now_ms):
                    sums.late_transactions += 1
            if partition.leader_id == partition.broker_id:
                sums.leaders += 1
                isr, all_replicas = len(partition.isr), len(partition.replicas)
                is_under, min_isr = isr < all_replicas, partition.min_isr
                sums.under_replicated += is_under
                sums.under_min_isr += isr < min_isr
                sums.at_min_isr += isr == min_isr
                if all_replicas > 1:
                    _note_lags(partition, local.log_end_offset, sums.follower_lags)
                if labels:
                    isrs.append(f"kafka_cluster_partition_insyncreplicascount{labels}{isr}")
                    replicas.append(f"kafka_cluster_partition_replicascount{labels}{all_replicas}")
                    under.append(f"kafka_cluster_partition_underreplicated{labels}{int(is_under)}")
                    under_min.append(f"kafka_cluster_partition_underminisr{labels}{int(isr < min_isr)}")
                    at_min.append(f"kafka_cluster_partition_atminisr{labels}{int(isr == min_isr)}")
                    high = log.high_watermark
                    current.append(f"kafka_topic_partition_current_offset{labels}{high}")
                    lag = 0 if first_unstable is None else max(0, high - first_unstable)
                    unstable.append(f"kafka_cluster_partition_laststableoffsetlag{labels}{lag}")
            if turns.is_due():
                await turns.pause()
        sums.partitions = len(partitions)
        if len(partitions) > bound:
            labels = label_text(_LABELS, (OTHER, OTHER))
            sizes.append(f"kafka_log_log_size{labels} {sums.other_size}")
            segments.append(f"kafka_log_log_numlogsegments{labels} {sums.other_segments}")

    def _write_sums(self, text: MetricsText, sums: _Sums) -> None:
        gauge = text.gauge
        gauge(f"{_REPLICAS}partitioncount", "Partitions that this broker hosts", sums.partitions)
        gauge(f"{_REPLICAS}leadercount", "Partitions that this broker leads", sums.leaders)
        gauge(
            f"{_REPLICAS}underreplicatedpartitions",
            "Partitions that this broker leads and of which a replica is not in sync",
            sums.under_replicated,
        )
        gauge(
            f"{_REPLICAS}underminisrpartitioncount",
            "Partitions that this broker leads and whose in-sync set is below min.insync.replicas",
            sums.under_min_isr,
        )
        gauge(
            f"{_REPLICAS}atminisrpartitioncount",
            "Partitions that this broker leads and whose in-sync set is just min.insync.replicas",
            sums.at_min_isr,
        )
        gauge(
            f"{_REPLICAS}offlinereplicacount",
            "Replicas that this broker should have and cannot use",
            len(self._replicas.offline.keys() | self._replicas.logs.failed.keys()),
        )
        gauge(
            f"{_REPLICAS}produceridcount",
            "Producer ids in the state of the logs that is in memory",
            sums.producers,
        )
        gauge(
            f"{_REPLICAS}partitionswithlatetransactionscount",
            "Partitions with a transaction that is open for longer than any may be: it hangs",
            sums.late_transactions,
        )
        gauge(
            "ottla_follower_lag_records",
            "The most records of one partition led here that a follower has yet to fetch",
            [((str(follower),), lag) for follower, lag in sorted(sums.follower_lags.items())],
            ("follower",),
        )
        gauge(
            "ottla_log_directory_logs_bytes",
            "Bytes of the logs in a directory",
            [((path,), size) for path, size in sums.directories.items()],
            ("directory",),
        )
        gauge(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Requests that wait for replicas or for bytes",
            len(self._replicas.purgatory),
        )
        gauge(
            "ottla_producer_id_block_remaining",
            "Producer ids that this broker can give out before it asks the controller again",
            self._producer_ids.remaining,
        )
        gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "Incremental fetch sessions",
            len(self._fetch_sessions),
        )
        text.counter(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "Incremental fetch sessions that gave way to others",
            self._fetch_sessions.evictions,
        )

    async def _write_fetchers(self, text: MetricsText, turns: Turns, bound: int) -> None:
        fetchers = self._replication.fetchers
        longest, followed, fetching = 0, 0, 0
        lines = text.family(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "Records that the leader has committed and this follower lacks, as of its last fetch",
            _GAUGE,
        )
        if fetchers is not None:
            fetching = fetchers.fetchers
            for state in list(fetchers.states()):
                followed += 1
                longest = max(longest, state.lag)
                if followed <= bound:
                    tp = state.partition.topic_partition
                    lines.append(
                        f'kafka_server_fetcherlagmetrics_consumerlag{{topic="{tp.topic}",'
                        f'partition="{tp.partition}"}} {state.lag}'
                    )
                if turns.is_due():
                    await turns.pause()
        text.gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "The most records that a follower here lacks of what its leader has committed",
            longest,
        )
        text.gauge("ottla_replica_fetchers", "Fetchers from other brokers", fetching)
        text.gauge("ottla_replica_fetcher_partitions", "Partitions that are fetched from others", followed)


def _note_lags(partition: Partition, end: int, lags: dict[int, int]) -> None:
    for replica in partition.remote_replicas:
        lag = max(0, end - max(replica.log_end_offset, 0))
        lags[replica.broker_id] = max(lag, lags.get(replica.broker_id, 0))


def _read_sizes(logs: Sequence[UnifiedLog]) -> bool:
    """Read the sizes of segments, in any thread. A log that has gone meanwhile has none."""
    for log in logs:
        try:
            if log.directory.is_online and not log.is_closed:
                _ = log.size
        except KafkaError:
            continue
    return True
